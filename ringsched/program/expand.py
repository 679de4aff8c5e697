"""Program → Execution: loops unrolled, every index a number, one trace a rank.

Where all ranks run the same text up to translation, rank 0's trace stands for all (`Expansion.execution.symmetric`).
That is decided on the expressions: coordinates are bound to `Affine` numbers, and each index must be free of them (a
*fixed* dimension of its buffer) or exactly one coordinate plus a constant, modulo that coordinate's side (a *rotating*
dimension). Unit numbers in a symmetric trace are relative: along a rotating dimension they count from the coordinate
of the rank whose memory it is; ranks are displacements. Where ranks exchange with those that differ from them in some
bits, the text is the same up to an exclusive or: each bit of the rank is then a coordinate with a side of 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import assert_never

from ringsched.expr import Affine, Flipped, NotAffine, Value, evaluate, holds
from ringsched.program import trace
from ringsched.program.program import (
    Add,
    Buffer,
    Copy,
    Instruction,
    Loop,
    Multiply,
    Program,
    Region,
    Round,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
    When,
    Zero,
)

Axes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """`axes[buffer][d]`: the coordinate that dimension d rotates with, None: fixed, or only taken whole.

    `fixed` holds the (buffer, dimension) pairs that are indexed by numbers. Both for symmetric executions only.
    """

    execution: trace.Execution
    axes: dict[str, Axes]
    fixed: frozenset[tuple[str, int]] = frozenset()


class IndexOutOfRange(Exception):
    """A Program indexes past a buffer or a semaphore array: the compiler's fault, or a mutant's."""


def expand(program: Program, *, symmetric: bool | None = None) -> Expansion:
    """The traces of one call. `symmetric`: False forces a trace for each rank; None tries for one."""
    if symmetric is not False:
        reasons = []
        for env, sides in _points_of_view(program):
            try:
                return _expand_symmetric(program, env, sides)
            except NotAffine as reason:
                reasons.append(reason)
        if symmetric:
            raise reasons[0]
    traces = []
    for place in itertools.product(*(range(side) for side in program.sides)):
        walker = _Walker(program, place)
        number = sum(a * stride for a, stride in zip(place, _strides(program), strict=True))
        traces.append(tuple(walker.call({"r": number, **dict(zip(program.coordinates, place, strict=True))})))
    return Expansion(execution=_execution(program, False, tuple(traces)), axes={})


def _points_of_view(program: Program) -> Iterator[tuple[dict[str, Value], tuple[int, ...]]]:
    """Coordinates as symbols, and the sides along which displacements add up: by translation, by flips of bits."""
    count = len(program.sides)
    env: dict[str, Value] = {"r": Affine(0, _strides(program))}  # no constant: nothing symmetric can use it
    env |= {
        name: Affine(0, tuple(int(i == axis) for i in range(count))) if program.sides[axis] > 1 else 0
        for axis, name in enumerate(program.coordinates)
    }
    yield env, program.sides
    ranks = program.sides[0]
    if count == 1 and ranks > 1 and not ranks & (ranks - 1):
        yield {program.coordinates[0]: Flipped(0, ranks)}, (2,) * (ranks.bit_length() - 1)


def _expand_symmetric(program: Program, env: dict[str, Value], sides: tuple[int, ...]) -> Expansion:
    walker = _Walker(program, (0,) * len(program.sides))
    ops = tuple(walker.call(env))
    axes = {b.name: tuple(walker.axes.get((b.name, d)) for d in range(len(b.shape))) for b in program.buffers}
    fixed = frozenset(key for key, axis in walker.axes.items() if axis is None)
    execution = replace(_execution(program, True, (ops,)), sides=sides)
    return Expansion(execution=execution, axes=axes, fixed=fixed)


def _strides(program: Program) -> tuple[int, ...]:
    return tuple(math.prod(program.sides[axis + 1 :]) for axis in range(len(program.sides)))


def _execution(program: Program, symmetric: bool, traces: tuple[tuple[trace.Op, ...], ...]) -> trace.Execution:
    return trace.Execution(
        sides=program.sides,
        symmetric=symmetric,
        traces=traces,
        capacity=tuple((b.name, math.prod(b.shape)) for b in program.buffers),
        coordinates=program.coordinates,
    )


@dataclass(slots=True)
class _Walker:
    """Executes the text of one rank at `place`, or of all ranks seen from rank 0."""

    program: Program
    place: tuple[int, ...]
    axes: dict[tuple[str, int], int | None] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(init=False)
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = {b.name: b for b in self.program.buffers}
        self.counts = {s.name: s.count for s in self.program.semaphores}

    def call(self, env: dict[str, Value]) -> Iterator[trace.Op]:
        """Enter, the body, Exit."""
        whole = {b.name: trace.Block(b.name, 0, math.prod(b.shape)) for b in self.program.buffers}
        own = tuple(whole[b.name] for b in self.program.buffers if b.space != "input")
        semaphores = tuple(s.name for s in self.program.semaphores if s.kind != "barrier")
        yield trace.Enter(blocks=own, semaphores=semaphores)
        yield from self.run(self.program.body, env)
        yield trace.Exit(blocks=tuple(whole.values()), semaphores=semaphores)

    def run(self, body: tuple[Instruction, ...], env: dict[str, Value]) -> Iterator[trace.Op]:
        for instruction in body:
            match instruction:
                case Loop():
                    first, last = self.number(evaluate(instruction.first, env)), evaluate(instruction.last, env)
                    for value in range(first, self.number(last) + 1):
                        yield from self.run(instruction.body, {**env, instruction.var: value})
                case When():
                    if holds(instruction.conditions, env):
                        yield from self.run(instruction.body, env)
                case _:
                    yield self.op(instruction, env)

    def op(self, i: Instruction, env: dict[str, Value]) -> trace.Op:
        match i:
            case Send():
                hop = self.peer(i.peer, env)
                source = self.block(i.source, env, None)
                return trace.Dma(
                    rank=self.rank(hop),
                    source=source,
                    target=self.block(i.target, env, hop),
                    sent=self.key(i.sent, env),
                    received=self.key(i.received, env),
                    amount=source.units,
                    note=i.note,
                    origin=i.origin,
                )
            case Copy():
                source = self.block(i.source, env, None)
                return trace.Dma(
                    rank=self.rank(self.place),
                    source=source,
                    target=self.block(i.target, env, None),
                    sent=None,
                    received=self.key(i.done, env),
                    amount=source.units,
                    note=i.note,
                    origin=i.origin,
                )
            case WaitDma():
                amount = self.block(i.region, env, None).units
                return trace.Wait(semaphore=self.key(i.semaphore, env), amount=amount, note=i.note, origin=i.origin)
            case Wait():
                return trace.Wait(semaphore=self.key(i.semaphore, env), amount=i.amount, note=i.note, origin=i.origin)
            case Signal():
                rank = self.rank(self.peer(i.peer, env))
                key = self.key(i.semaphore, env)
                return trace.Signal(rank=rank, semaphore=key, amount=i.amount, note=i.note, origin=i.origin)
            case Add():
                sources = (self.block(i.left, env, None), self.block(i.right, env, None))
                target = self.block(i.target, env, None)
                return trace.Compute(op="add", target=target, sources=sources, note=i.note, origin=i.origin)
            case Multiply():
                regions = (i.source, i.weight) if i.plus is None else (i.source, i.weight, i.plus)
                factors = tuple(self.block(region, env, None) for region in regions)
                target = self.block(i.target, env, None)
                return trace.Compute(op="multiply", target=target, sources=factors, note=i.note, origin=i.origin)
            case Round():
                block = self.block(i.source, env, None)
                return trace.Compute(op="copy", target=self.block(i.target, env, None), sources=(block,), note=i.note)
            case Zero():
                return trace.Compute(op="zero", target=self.block(i.target, env, None), note=i.note)
            case Loop() | When():
                raise AssertionError("handled by run")
            case _:
                assert_never(i)

    def number(self, value: Value) -> int:
        if isinstance(value, Affine | Flipped):
            raise NotAffine("a bound that depends on the rank")
        return value

    def key(self, semaphore: SemaphoreRef, env: dict[str, Value]) -> trace.SemaphoreKey:
        index = self.number(evaluate(semaphore.index, env))
        if not 0 <= index < self.counts[semaphore.semaphore]:
            raise IndexOutOfRange(f"{semaphore.semaphore}[{index}] of {self.counts[semaphore.semaphore]}")
        return semaphore.semaphore, index

    def peer(self, peer: tuple[object, ...], env: dict[str, Value]) -> tuple[int, ...]:
        """The peer's place; seen from rank 0 it is the displacement."""
        place = []
        for axis, (expr, side) in enumerate(zip(peer, self.program.sides, strict=True)):
            value = evaluate(expr, env)  # type: ignore[arg-type]
            if isinstance(value, Flipped):
                place.append(value.constant)
                continue
            if isinstance(value, Affine):
                place.append(self.relative(value, side, axis))
                continue
            if side > 1 and len(env) and isinstance(env[self.program.coordinates[axis]], Affine | Flipped):
                raise NotAffine("a peer at a fixed place")
            if not 0 <= value < side:
                raise IndexOutOfRange(f"peer {value} of {side}")
            place.append(value)
        return tuple(place)

    def relative(self, value: Affine, side: int, axis: int | None = None) -> int:
        """The constant of `coordinate + constant (mod side)`; the axis must be the one asked for."""
        if axis is None or value.coefficients != tuple(int(i == axis) for i in range(len(value.coefficients))):
            raise NotAffine("not one coordinate plus a constant")
        if value.modulus == side or (value.modulus == 0 and value.constant == 0):
            return value.constant
        raise NotAffine("not reduced modulo the side")

    def rank(self, place: tuple[int, ...]) -> int:
        number = 0
        for coordinate, side in zip(place, self.program.sides, strict=True):
            number = number * side + coordinate
        return number

    def block(self, region: Region, env: dict[str, Value], hop: tuple[int, ...] | None) -> trace.Block:
        """The units of `region`; with `hop` they are in that rank's memory, else in this one's."""
        shape = self.buffers[region.buffer].shape
        start = 0
        for d, expr in enumerate(region.index):
            value = evaluate(expr, env)
            axis = None
            if isinstance(value, Flipped):
                if shape[d] != value.ranks:
                    raise NotAffine("a dimension that is not as long as the side it rotates with")
                axis, value = 0, value.constant if hop is None else value.constant ^ hop[0]
            elif isinstance(value, Affine):
                axis = next((i for i, c in enumerate(value.coefficients) if c), None)
                value = self.relative(value, shape[d], axis)
                if axis is None or self.program.sides[axis] != shape[d]:
                    raise NotAffine("a dimension that is not as long as the side it rotates with")
                if hop is not None:
                    value = (value - hop[axis]) % shape[d]
            if self.axes.setdefault((region.buffer, d), axis) != axis:
                raise NotAffine("a dimension that is rotating here and fixed there")
            if not 0 <= value < shape[d]:
                raise IndexOutOfRange(f"{region.buffer}: index {value} of {shape[d]} in dimension {d}")
            start = start * shape[d] + value
        rest = math.prod(shape[len(region.index) :])
        return trace.Block(region.buffer, start * rest, (start + 1) * rest)
