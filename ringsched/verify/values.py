"""Program → the values it computes, by one symbolic execution.

A Program without races computes the same on every interleaving, so one execution decides what it computes. A unit
holds a sum of terms; a term is a chunk and a mask of the ranks that contributed to it. Whatever is not initialised, a
term counted twice or a sum over different chunks is a value of its own that satisfies no promise.

In a symmetric execution ranks and rotating chunk dimensions are relative to the rank whose memory it is; a value that
travels is renumbered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ringsched.collectives import OWNED, Chunk, Promise
from ringsched.program.expand import Expansion
from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, Signal, Wait
from ringsched.schedule.schedule import Multiply
from ringsched.verify.dataflow_symmetric import rotation


@dataclass(frozen=True, slots=True)
class Term:
    """What rank set `mask` contributed to `chunk`; `multiplied`: by the weight that belongs to the chunk."""

    chunk: Chunk
    mask: int
    multiplied: bool = False


@dataclass(frozen=True, slots=True)
class Meaningless:
    """Uninitialised memory, a term counted twice, or a sum of different chunks."""

    reason: str


@dataclass(frozen=True, slots=True)
class ZeroValue:
    """Filled by the kernel; no chunk is promised there."""


@dataclass(frozen=True, slots=True)
class Weight:
    """The part of the weight that belongs to a chunk; None: it is the same for all."""

    chunk: Chunk | None


@dataclass(frozen=True, slots=True)
class Activations:
    """An operand of which no part belongs to a chunk: the weight's does."""


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of products of different chunks."""

    terms: frozenset[Term]


Value = Term | Meaningless | ZeroValue | Weight | Activations | Total
UNSET = Meaningless("memory that was never written")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongValue:
    """A unit of the result that does not hold what the collective promises (ranks, chunks as in the execution).

    `wanted`: the ranks whose terms it must hold; 0: none, it must be zero.
    """

    rank: int
    chunk: Chunk
    found: Value
    wanted: int


class NotComparable(Exception):
    """The symmetry of the Program is not that of the collective; ask with a full execution."""


def check_values(expansion: Expansion, promise: Promise, compute: Multiply | None = None) -> tuple[WrongValue, ...]:
    """What the Program leaves in the result, against the promise. The execution must be free of races and deadlock.

    compute: what the schedule multiplies; then every promised chunk has to be multiplied, once.
    """
    execution = expansion.execution
    machine = _Machine(execution, promise, _chunk_axes(expansion, promise, compute), compute)
    machine.run()
    if compute is not None and machine.sums_up:
        return tuple(_wrong_totals(machine))
    wrong = []
    for rank in range(len(execution.traces)):
        filled = set()
        for chunk in promise.chunks():
            wanted = promise.promised(rank, chunk)
            if not wanted:
                continue
            unit = _flat(chunk, promise.output_positions(), promise.dims)
            filled.add(unit)
            found = machine.memory[rank]["o"][unit]
            if found != Term(chunk, wanted, compute is not None):
                wrong.append(WrongValue(rank=rank, chunk=chunk, found=found, wanted=wanted))
        wrong.extend(_not_blank(rank, machine.memory[rank]["o"], filled, promise))
    return tuple(wrong)


def _wrong_totals(machine: _Machine) -> Iterator[WrongValue]:
    """Along features, the result is one sum: over every chunk that is promised."""
    promise = machine.promise
    for rank, memory in enumerate(machine.memory):
        wanted = {chunk: promise.promised(rank, chunk) for chunk in promise.chunks()}
        terms = frozenset(Term(chunk, mask, True) for chunk, mask in wanted.items() if mask)
        (found,) = memory["o"]
        if found != Total(terms):
            yield WrongValue(rank=rank, chunk=next(iter(wanted)), found=found, wanted=next(iter(wanted.values())))


def _not_blank(rank: int, result: list[Value], filled: set[int], promise: Promise) -> Iterator[WrongValue]:
    """Units of the result that no chunk is promised in are zero, as `jax.lax` has them, and nothing else."""
    positions = promise.output_positions()
    for unit, index in enumerate(itertools.product(*(range(promise.dims[p]) for p in positions))):
        if unit not in filled and result[unit] != ZeroValue():
            chunk = [0] * len(promise.dims)
            for position, value in zip(positions, index, strict=True):
                chunk[position] = value
            yield WrongValue(rank=rank, chunk=tuple(chunk), found=result[unit], wanted=0)


def _flat(chunk: Chunk, positions: tuple[int, ...], dims: tuple[int, ...]) -> int:
    number = 0
    for position in positions:
        number = number * dims[position] + chunk[position]
    return number


def _positions(promise: Promise, compute: Multiply | None) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Which chunk dimensions the buffers' dimensions are."""
    if compute is None:
        return ("x", promise.input_positions()), ("o", promise.output_positions())
    everything = tuple(range(len(promise.dims)))
    if compute.moment == "on arrival":
        if compute.shard == "rows":
            return ("x", promise.input_positions()), ("o", everything), ("gathered", everything)
        return ("x", promise.input_positions()), ("w", everything), ("gathered", everything)
    factor = ("x" if compute.shard == "rows" else "w", everything)
    terms = (("terms", everything),) if compute.overlap == "none" else ()
    return factor, *terms, ("o", promise.output_positions())


def _chunk_axes(expansion: Expansion, promise: Promise, compute: Multiply | None) -> tuple[int | None, ...]:
    """The coordinate that each chunk dimension rotates with, from how the Program indexes operand and result."""
    dims: list[int | None] = [None] * len(promise.dims)
    if not expansion.execution.symmetric:
        return tuple(dims)
    owned = OWNED[promise.kind] * promise.group
    if promise.group not in (0, len(promise.topology.sides)):
        raise NotComparable
    for position in range(owned):
        dims[position] = position % promise.group
    for name, positions in _positions(promise, compute):
        if name not in expansion.axes:
            continue  # where nothing is gathered there is no such buffer
        for position, axis in zip(positions, expansion.axes[name], strict=True):
            if position < owned and axis not in (None, dims[position]):
                raise NotComparable
            if position >= owned and axis is not None:
                if dims[position] not in (None, axis):
                    raise NotComparable
                dims[position] = axis
    _check_fixed(expansion, promise, dims, compute)
    if promise.kind in ("broadcast", "reduce", "gather", "scatter") and promise.topology.ranks > 1:
        raise NotComparable  # a root is at one place
    return tuple(dims)


def _check_fixed(expansion: Expansion, promise: Promise, dims: list[int | None], compute: Multiply | None) -> None:
    """A dimension that rotates in one buffer must not be indexed by numbers in the other."""
    for name, positions in _positions(promise, compute):
        for d, position in enumerate(positions):
            if dims[position] is not None and (name, d) in expansion.fixed and promise.dims[position] > 1:
                raise NotComparable


class _Machine:
    """Runs the traces; a DMA moves its data when it starts."""

    def __init__(
        self, execution: Execution, promise: Promise, axes: tuple[int | None, ...], compute: Multiply | None
    ) -> None:
        self.execution = execution
        self.compute = compute
        self.sums_up = compute is not None and compute.moment == "on arrival" and compute.shard == "features"
        self.promise = promise
        self.axes = axes
        self.sides = execution.sides
        self.turns: dict[int, Callable[[int], int]] = {}
        self.memory: list[dict[str, list[Value]]] = []
        self.counts: list[dict[tuple[str, int], int]] = []
        for rank in range(len(execution.traces)):
            memory: dict[str, list[Value]] = {name: [UNSET] * units for name, units in execution.capacity}
            if compute is not None and compute.moment == "before sending" and compute.shard == "features":
                memory["x"] = [Activations()]
            else:
                memory["x"] = self._operand(rank, len(memory["x"]))
            if "w" in memory:
                chunks = [None] if compute is None or compute.shard == "rows" else list(promise.chunks())
                memory["w"] = [Weight(chunk) for chunk in chunks]
            self.memory.append(memory)
            self.counts.append({})

    def _operand(self, rank: int, units: int) -> list[Value]:
        """All units of the operand: every chunk whose indices beyond the operand's are the rank's own."""
        promise = self.promise
        values: list[Value] = [UNSET] * units
        positions = promise.input_positions()
        place = promise.topology.at(rank)
        own = [position for position in range(len(promise.dims)) if position not in positions]
        fixed = dict(zip(own, place if promise.group == len(place) else (rank,), strict=True)) if own else {}
        for index in itertools.product(*(range(promise.dims[p]) for p in positions)):
            chunk = [0] * len(promise.dims)
            for position, value in (*fixed.items(), *zip(positions, index, strict=True)):
                chunk[position] = value
            values[_flat(tuple(chunk), positions, promise.dims)] = Term(tuple(chunk), 1 << rank)
        return values

    def run(self) -> None:
        place = [0] * len(self.execution.traces)
        moved = True
        while moved:
            moved = False
            for rank, trace in enumerate(self.execution.traces):
                while place[rank] < len(trace) and self._step(rank, trace[place[rank]]):
                    place[rank] += 1
                    moved = True

    def _step(self, rank: int, op: Op) -> bool:
        """Executes one instruction; False where it has to wait."""
        match op:
            case Wait():
                count = self.counts[rank].get(op.semaphore, 0)
                if count < op.amount:
                    return False
                self.counts[rank][op.semaphore] = count - op.amount
            case Signal():
                self._count(rank, op.rank, op.semaphore, op.amount)
            case Dma():
                values = self.memory[rank][op.source.buffer][op.source.start : op.source.stop]
                if self.execution.symmetric and op.rank:
                    values = [self._moved(v, op.rank) for v in values]
                target = 0 if self.execution.symmetric else op.rank
                self.memory[target][op.target.buffer][op.target.start : op.target.stop] = _fitted(values, op.target)
                if op.sent is not None:
                    self._count(rank, rank, op.sent, op.amount)
                if op.received is not None:
                    self._count(rank, op.rank, op.received, op.amount)
            case Compute():
                self._compute(rank, op)
            case Enter():
                for block in op.blocks:
                    self.memory[rank][block.buffer][block.start : block.stop] = [UNSET] * block.units
            case Exit():
                pass
        return True

    def _count(self, rank: int, target: int, key: tuple[str, int], amount: int) -> None:
        counts = self.counts[0 if self.execution.symmetric else target]
        counts[key] = counts.get(key, 0) + amount

    def _compute(self, rank: int, op: Compute) -> None:
        if op.target is None:
            return
        memory = self.memory[rank]
        sources = [memory[b.buffer][b.start : b.stop] for b in op.sources]
        values: list[Value]
        match op.op:
            case "add":
                values = [_sum(a, b) for a, b in zip(*(_fitted(s, op.target) for s in sources), strict=True)]
            case "copy":
                values = list(sources[0])
            case "multiply":
                values = self._products(rank, sources)
            case "zero":
                values = [ZeroValue()] * op.target.units
        memory[op.target.buffer][op.target.start : op.target.stop] = _fitted(values, op.target)

    def _products(self, rank: int, sources: list[list[Value]]) -> list[Value]:
        """Units of the operand and of the weight, pairwise, or one for all; then what is added to."""
        left, right, *plus = sources
        count = max(len(left), len(right))
        left, right = (each * count if len(each) == 1 else each for each in (left, right))
        products = [_product(a, b, rank) for a, b in zip(left, right, strict=False)]
        if len(left) != len(right):
            return [Meaningless("a product of different numbers of chunks")]
        if not self.sums_up:
            return [Meaningless("a product is added to something")] if plus else products
        total = plus[0][0] if plus else Total(frozenset())
        for product in products:
            if not isinstance(total, Total) or not isinstance(product, Term) or product in total.terms:
                return [Meaningless("a sum of something else than products of different chunks")]
            total = Total(total.terms | {product})
        return [total]

    def _moved(self, value: Value, hop: int) -> Value:
        """A value as the rank at displacement `hop` numbers it."""
        if not isinstance(value, Term):
            return value
        place = self.promise.topology.at(hop)
        flips = self.sides != self.promise.topology.sides  # displacements are exclusive ors
        chunk = tuple(
            index if axis is None else index ^ hop if flips else (index - place[axis]) % self.promise.dims[d]
            for d, (index, axis) in enumerate(zip(value.chunk, self.axes, strict=True))
        )
        return Term(chunk, self._turned(hop)(value.mask), value.multiplied)

    def _turned(self, hop: int) -> Callable[[int], int]:
        """Masks of displacements as the rank at displacement `hop` counts them."""
        if hop not in self.turns:
            place: list[int] = []
            left = hop
            for side in reversed(self.sides):
                left, coordinate = divmod(left, side)
                place.insert(0, coordinate)
            self.turns[hop] = rotation(self.sides, tuple(place))
        return self.turns[hop]


def _fitted(values: list[Value], target: Block) -> list[Value]:
    """Source and target must be of one size."""
    return values if len(values) == target.units else [Meaningless("a block of another size")] * target.units


def _product(a: Value, b: Value, rank: int) -> Value:
    match a, b:
        case Term(multiplied=False), Weight() if b.chunk in (None, a.chunk):
            return Term(a.chunk, a.mask, True)
        case Activations(), Weight(chunk=chunk) if chunk is not None:
            return Term(chunk, 1 << rank, True)
        case _:
            return a if isinstance(a, Meaningless) else Meaningless("a product of things that do not belong together")


def _sum(a: Value, b: Value) -> Value:
    if not isinstance(a, Term) or not isinstance(b, Term):
        return a if isinstance(a, Meaningless) else b if isinstance(b, Meaningless) else Meaningless("a sum with zero")
    if a.multiplied != b.multiplied:
        return Meaningless("a sum of a product and what is none")
    if a.chunk != b.chunk:
        return Meaningless(f"a sum of chunks {a.chunk} and {b.chunk}")
    if a.mask & b.mask:
        return Meaningless(f"a term of chunk {a.chunk} counted twice")
    return Term(a.chunk, a.mask | b.mask, a.multiplied)
