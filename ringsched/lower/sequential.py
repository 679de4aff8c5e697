"""The code of a schedule with `overlap: none`: all products behind the collective, or before it. For comparison.

on arrival       the all-gather; then every product, in the same order as else
before sending   every product, into `terms`; then the reduce-scatter or all-reduce of these
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringsched.expr import Expr, Int, Var, binary
from ringsched.lower.emit import Emitter
from ringsched.lower.lanes import Lanes
from ringsched.lower.multiply import WEIGHT
from ringsched.lower.naming import INPUT, OUTPUT
from ringsched.lower.places import Place, Result
from ringsched.lower.plan import Decision
from ringsched.program.program import Buffer, Instruction, Loop, Multiply, Region, Round, When
from ringsched.program.simplify import simplify
from ringsched.schedule.schedule import Multiply as Compute

TERMS = "terms"
SHARD = "c"  # the variable of a loop over the first dimension of the chunks


def products_apart(body: tuple[Instruction, ...]) -> tuple[list[Instruction], list[Instruction]]:
    """What is no product, and what is one; of a loop both, each in a loop of its own."""
    others: list[Instruction] = []
    products: list[Instruction] = []
    for i in body:
        match i:
            case Multiply():
                products.append(i)
            case Loop() | When():
                for found, inner in zip((others, products), products_apart(i.body), strict=True):
                    if inner:
                        found.append(replace(i, body=tuple(inner)))
            case _:
                others.append(i)
    return others, products


@dataclass(frozen=True, slots=True)
class Terms:
    """The products that come before a reduction, and the buffers that it works in."""

    lanes: Lanes
    compute: Compute
    unroll: bool

    @property
    def along_rows(self) -> bool:
        return self.compute.shard == "rows"

    def buffers(self) -> tuple[Buffer, ...]:
        """Operand, weight, result and the terms; slots not among them."""
        promise, dims = self.lanes.flat.promise, self.lanes.flat.promise.dims
        return (
            Buffer(name=INPUT, space="input", shape=dims if self.along_rows else ()),
            Buffer(name=WEIGHT, space="input", shape=() if self.along_rows else dims),
            Buffer(name=OUTPUT, space="output", shape=promise.output_shape()),
            Buffer(name=TERMS, space="scratch", shape=dims),
        )

    def finished(self, body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        """The reduction's code behind all products."""
        if self.unroll:
            return (self._product(()), *body)
        size = self.lanes.flat.promise.dims[0]
        axis = self.lanes.rotation[0] if self.lanes.rotation else None
        index: Expr = Var(name=SHARD)
        if axis is not None:  # counted from the rank on, so that all ranks run one text
            own = Var(name=self.lanes.flat.topology.coordinates[axis])
            index = simplify(binary("%", binary("+", own, index), size))
        body_ = (self._product((index,)),)
        return (Loop(var=SHARD, first=Int(value=0), last=Int(value=size - 1), body=body_), *body)

    def _product(self, index: tuple[Expr, ...]) -> Multiply:
        """This rank's terms of the chunks that begin with `index`."""
        source = Region(buffer=INPUT, index=index if self.along_rows else ())
        weight = Region(buffer=WEIGHT, index=() if self.along_rows else index)
        target = Region(buffer=TERMS, index=index)
        return Multiply(target=target, source=source, weight=weight, note="this rank's terms of all chunks")


@dataclass(slots=True, kw_only=True)
class TermsEmitter(Emitter):
    """The reduction alone, of the terms."""

    def operand(self) -> str:
        return TERMS

    def kept(self, place: Place, chunk: tuple[Expr, ...], *, early: bool) -> Instruction:
        """A sum that is not complete by an addition gets the result's dtype, and the epilogue, as it is stored."""
        target = self.naming.region(self.code, Result(), chunk, None)
        source = self.naming.region(self.code, place, chunk, Int(value=0))
        return Round(target=target, source=source, note="store the sum")

    def end_copies(self) -> None:
        """There are none."""


def decision(compute: Compute, kind: str) -> Decision:
    where = "behind" if compute.moment == "on arrival" else "before"
    choice = f"all of them {where} the {kind.replace('_', '-')}"
    return Decision(subject="products", choice=choice, reason="asked for by `overlap: none`, for comparison")
