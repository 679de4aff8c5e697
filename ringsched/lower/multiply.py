"""Where a schedule multiplies: each chunk as it lands, or each partial sum just before it is sent.

on arrival       what an all-gather would leave in the result lands in `gathered`; each chunk is multiplied once it is
                 there and has been sent on, this rank's own first. Along rows, each gives its own rows of the result;
                 along features, the products are summed up. Of a schedule that moves nothing, only the own are.
before sending   what a reduce-scatter would take from the operand is a product: computed into `first` where a lane
                 starts with it, or into `partial`, just before the arrival that it is added to is waited for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.expr import Expr, Int
from ringsched.lower.lanes import Lanes
from ringsched.lower.naming import INPUT, OUTPUT
from ringsched.lower.places import Places, Result
from ringsched.lower.plan import Decision
from ringsched.program.program import Buffer, Instruction, Loop, Multiply, Region, Round, When
from ringsched.schedule.schedule import Multiply as Compute

WEIGHT, GATHERED, TOTAL, FIRST, PARTIAL = "w", "gathered", "total", "first", "partial"


@dataclass(slots=True)
class Multiplier:
    """Makes the instructions of one Program.

    `starts`: which (lane, step) have their own place in `first`; `places`: those of arrivals in `partial`. `in_place`:
    the result itself is the memory of its sum.
    """

    lanes: Lanes
    compute: Compute
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    in_place: bool = False

    @property
    def on_arrival(self) -> bool:
        return self.compute.moment == "on arrival"

    @property
    def along_rows(self) -> bool:
        return self.compute.shard == "rows"

    @property
    def leading(self) -> int:
        """How many chunk dimensions a transfer always fixes: those that are shared out among the ranks."""
        promise = self.lanes.flat.promise
        return promise.group or len(promise.topology.sides)

    @property
    def result(self) -> str:
        """The buffer that chunks end in."""
        return GATHERED if self.on_arrival else OUTPUT

    def buffers(self) -> tuple[Buffer, ...]:
        """Operand, weight, result, and what is multiplied from or into; slots not among them."""
        promise, dims = self.lanes.flat.promise, self.lanes.flat.promise.dims
        parts = dims[self.leading :]
        weight = Buffer(name=WEIGHT, space="input", shape=() if self.along_rows else dims)
        if self.on_arrival:
            gathered = [Buffer(name=GATHERED, space="scratch", shape=dims)] if promise.kind != "none" else []
            operand = Buffer(name=INPUT, space="input", shape=promise.input_shape())
            if self.along_rows:
                return operand, weight, Buffer(name=OUTPUT, space="output", shape=dims), *gathered
            totals = () if self.in_place else (Buffer(name=TOTAL, space="scratch", shape=()),)
            return operand, weight, Buffer(name=OUTPUT, space="output", shape=()), *gathered, *totals
        operand = Buffer(name=INPUT, space="input", shape=dims if self.along_rows else ())
        found = [operand, weight, Buffer(name=OUTPUT, space="output", shape=promise.output_shape())]
        if self.starts:
            found.append(Buffer(name=FIRST, space="scratch", shape=(len(self.starts), *parts)))
        if self.places:
            found.append(Buffer(name=PARTIAL, space="scratch", shape=(max(self.places.values()) + 1, *parts)))
        return tuple(found)

    def decision(self) -> Decision:
        if self.lanes.flat.promise.kind == "none":
            choice, reason = "of what each rank has", "nothing is sent"
        elif self.on_arrival:
            choice, reason = "each chunk as it lands", "what somebody waits for has been sent on by then"
        else:
            choice, reason = "each term just before it is sent or added", "what it is added to is still on its way"
        return Decision(subject="products", choice=choice, reason=reason)

    def refuse(self, reason: str) -> DiagnosticError:
        """A schedule that moves chunks in a way in which they cannot be multiplied on their way."""
        return _refused(self.compute, "the multiply cannot be interleaved", reason)

    # ---- on arrival -------------------------------------------------------------------------------------------------

    def arrived(self, chunk: tuple[Expr, ...]) -> Multiply:
        """The product of a chunk that has landed."""
        return self._product(Region(buffer=GATHERED, index=chunk), chunk, first=False)

    def own(self, source: Region, chunk: tuple[Expr, ...]) -> Multiply:
        """That of this rank's own chunk; it is the first."""
        return self._product(source, chunk, first=True)

    def _product(self, source: Region, chunk: tuple[Expr, ...], *, first: bool) -> Multiply:
        note = "multiply this rank's own chunk" if first else "multiply what has landed"
        if self.along_rows:
            target, weight = Region(buffer=OUTPUT, index=chunk), Region(buffer=WEIGHT)
            return Multiply(target=target, source=source, weight=weight, note=note)
        total, weight = Region(buffer=TOTAL), Region(buffer=WEIGHT, index=chunk)
        return Multiply(target=total, source=source, weight=weight, plus=None if first else total, note=note)

    def finished(self, body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        """The total goes to the result: with the last product, or where that is in a loop or guarded, afterwards."""
        if not self.on_arrival or self.along_rows:
            return body
        result, total = Region(buffer=OUTPUT), Region(buffer=TOTAL)
        last = max((k for k, i in enumerate(body) if multiplies(i)), default=-1)
        product = body[last] if last >= 0 else None
        dims = self.lanes.flat.promise.dims
        if isinstance(product, Multiply) and math.prod(dims[len(product.weight.index) :]) == 1:
            whole = Multiply(
                target=result, source=product.source, weight=product.weight, plus=product.plus, note=product.note
            )
            return (*body[:last], whole, *body[last + 1 :])
        return (*body[: last + 1], Round(target=result, source=total, note="store the sum"), *body[last + 1 :])

    def finished_last(self, others: list[Instruction], products: list[Instruction]) -> tuple[Instruction, ...]:
        """Products behind all else. In a row without loops they are one sum, which needs no memory of its own."""
        row = [i for i in products if isinstance(i, Multiply)]
        self.in_place = self.on_arrival and not self.along_rows and len(row) == len(products)
        if not self.in_place:
            return self.finished((*others, *products))
        result = Region(buffer=OUTPUT)
        return (*others, *(replace(i, target=result, plus=None if i.plus is None else result) for i in row))

    # ---- before sending ---------------------------------------------------------------------------------------------

    def start(self, lane: int, step: int) -> Int:
        """The place in `first` of what a lane starts with in a step."""
        return Int(value=self.starts.setdefault((lane, step), len(self.starts)))

    def first(self, place: Expr, chunk: tuple[Expr, ...]) -> Region:
        return Region(buffer=FIRST, index=(place, *self._inner(chunk)))

    def take_places(self, arrivals: list[tuple[int, int]]) -> None:
        """Arrivals that are added to at one moment have places of their own; at the next they are free again."""
        self.places.update({arrival: number for number, arrival in enumerate(arrivals)})

    def partial(self, lane: int, step: int, chunk: tuple[Expr, ...]) -> Region:
        return Region(buffer=PARTIAL, index=(Int(value=self.places[lane, step]), *self._inner(chunk)))

    def _inner(self, chunk: tuple[Expr, ...]) -> tuple[Expr, ...]:
        if len(chunk) < self.leading:
            raise self.refuse("a transfer takes chunks of several ranks at once")
        return chunk[self.leading :]

    def into(self, target: Region, chunk: tuple[Expr, ...]) -> Multiply:
        """This rank's term of a chunk."""
        source = Region(buffer=INPUT, index=chunk if self.along_rows else ())
        weight = Region(buffer=WEIGHT, index=() if self.along_rows else chunk)
        return Multiply(target=target, source=source, weight=weight, note="this rank's term of the next chunk")


def check_sums(places: Places, compute: Compute) -> None:
    """Raises RS607 where a sum comes to the result from elsewhere than from its last addition, or from a result.

    That addition applies the epilogue and rounds to the result's dtype; until then a sum is in that of partial sums.
    """
    if compute.moment == "on arrival":
        return
    for ranks in places.sent.values():
        for sent in (fact for facts in ranks.values() for fact in facts):
            if isinstance(sent.target, Result) and not isinstance(sent.source, Result):
                reason = "a sum is complete at a rank that it is not promised to, and is sent on"
                raise _refused(compute, "the multiply cannot be lowered", reason)


def _refused(compute: Compute, message: str, reason: str) -> DiagnosticError:
    finding = Diagnostic(
        code="RS607",
        message=message,
        primary=None if compute.span is None else Label(span=compute.span, text=reason),
        notes=() if compute.span is not None else (reason,),
        help="leave `compute:` out, and multiply before or after the collective",
    )
    return DiagnosticError([finding])


def multiplies(i: Instruction) -> bool:
    """Whether a product is in it."""
    return isinstance(i, Multiply) or (isinstance(i, Loop | When) and any(map(multiplies, i.body)))
