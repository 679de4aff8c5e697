"""Recorded operations of all devices, arguments  →  what the function returns on each: one run, with numbers.

Where nothing races, every interleaving gives the same, so one will do: each device goes on until it has to wait, and a
DMA ends when it starts. What hangs on memory that nothing has written is marked, through all that is computed of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import numpy as np
from jax._src import dtypes

from ringsched.auditing.arithmetic import Setting, perform
from ringsched.auditing.bits import repacked
from ringsched.auditing.data import (
    Added,
    Argument,
    Box,
    Computation,
    Constant,
    Exchanged,
    KernelResult,
    Lost,
    Outcome,
    Part,
    Stacked,
)
from ringsched.auditing.exchange import exchanged, group_of
from ringsched.auditing.layout import Stay
from ringsched.auditing.memory import Buffer, Region
from ringsched.auditing.numbers import Numbers, Taint, Untold, as_array, carrier, numbers, stacked, taint_of
from ringsched.auditing.recorded import Access, Copy, Frame, Loaded, Recorded, Stored
from ringsched.auditing.rounding import Rounding
from ringsched.auditing.scalars import Unknown
from ringsched.auditing.tracing import Device
from ringsched.diagnostics import Span
from ringsched.program.trace import SemaphoreKey, Signal, Wait

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Written:
    """A result of a kernel at its end: its values, and for each element which of `Run.writers` wrote it last."""

    numbers: Numbers
    writers: np.ndarray


@dataclass(slots=True)
class Run:
    """What came out. `results[rank][k]`: result k of the function there; `kernels[rank, call, number]`."""

    results: list[list[Numbers]] = field(default_factory=list)
    kernels: dict[tuple[int, int, int], Written] = field(default_factory=dict)
    writers: list[Span | None] = field(default_factory=list)
    buffers: list[str] = field(default_factory=lambda: [""])  # by the number that is the taint of its memory
    unwritten: dict[str, Span | None] = field(default_factory=dict)  # read before anything wrote it: buffer → first


@dataclass(slots=True)
class _Memory:
    """One device's. `values`, `taint`, `writers`: of each buffer."""

    values: dict[str, np.ndarray] = field(default_factory=dict)
    taint: dict[str, Taint] = field(default_factory=dict)
    writers: dict[str, np.ndarray] = field(default_factory=dict)


def compute(
    devices: Sequence[Sequence[Stay]],
    traced: Sequence[Device],
    arguments: Sequence[Sequence[np.ndarray]],
    places: Sequence[Mapping[str, int]],
    sizes: Mapping[str, int],
    rounding: Rounding | None = None,
) -> Run:
    """One run of all devices, whose kernels are known to end as far as their waits go.

    arguments[rank]: shards. places: mesh coordinates. Raises Untold where a value is needed that cannot be followed,
    Endless where a loop on data does not end.
    """
    world = _World(sizes=sizes, rounding=rounding)
    threads = [
        _Device(world, rank, stays, arguments[rank], places[rank], traced[rank].exchanges)
        for rank, stays in enumerate(devices)
    ]
    world.devices.extend(threads)
    moved = True
    while moved:
        moved = False
        for thread in threads:
            moved |= thread.advance()
    if not all(thread.finished for thread in threads):
        raise Untold("the kernels do not end")
    for thread, device in zip(threads, traced, strict=True):
        world.run.results.append([thread.value(value) for value in device.results])
    return world.run


@dataclass(slots=True, kw_only=True)
class _World:
    """What the devices share. `semaphores`: units on each, by rank; `origins`: numbers of the places in run.writers."""

    sizes: Mapping[str, int]
    rounding: Rounding | None
    devices: list[_Device] = field(default_factory=list)
    semaphores: dict[tuple[int, SemaphoreKey], int] = field(default_factory=dict)
    origins: dict[Span | None, int] = field(default_factory=dict)
    run: Run = field(default_factory=Run)


class _Later(Exception):
    """A value that hangs on a kernel of another device that has not ended yet."""


class _Device:
    """Executes what one device recorded, as far as its semaphores let it."""

    def __init__(
        self,
        world: _World,
        rank: int,
        stays: Sequence[Stay],
        arguments: Sequence[np.ndarray],
        place: Mapping[str, int],
        exchanges: Mapping[tuple[int, int], Exchanged],
    ) -> None:
        self.world, self.run = world, world.run
        self.rank, self.stays, self.arguments, self.exchanges = rank, stays, arguments, exchanges
        self.place = place
        self.setting = Setting(place=place, rounding=world.rounding)
        self.memory = _Memory()
        self.call = 0
        self.position = -1  # in the kernel; -1: before it begins
        self.known: dict[Any, Any] = {}  # what Data nodes and Computations have come to
        self.stored: dict[int, Written] = {}

    @property
    def finished(self) -> bool:
        return self.call == len(self.stays)

    def advance(self) -> bool:
        """Goes on until it has to wait; whether it did anything."""
        moved = False
        while not self.finished:
            stay = self.stays[self.call]
            if self.position < 0:
                try:
                    self._enter(stay)
                except _Later:
                    return moved
            elif self.position == len(stay.ops):
                self._leave(stay)
                self.call, self.position = self.call + 1, -2
            elif not self._execute(stay.ops[self.position]):
                return moved
            self.position += 1
            moved = True
        return moved

    def _enter(self, stay: Stay) -> None:
        operands = [(b, self.value(value, b.dtype)) for b, value in stay.operands if not b.is_semaphore]
        self._begin(stay.memory)
        for buffer, given in operands:
            self.memory.values[buffer.name][...] = given.values.reshape(buffer.shape)
            self.memory.taint[buffer.name][...] = taint_of(given).reshape(buffer.shape)
            self.memory.writers[buffer.name][...] = self._origin(None)
        self.stored = {
            number: Written(self._unwritten(each.shape, each.dtype, each.name), _nobody(each.shape))
            for number, each in enumerate(stay.results)
            if each.memory is None
        }

    def _begin(self, buffers: Sequence[Buffer]) -> None:
        for each in buffers:
            if not each.is_semaphore:
                empty = self._unwritten(each.shape, each.dtype, each.name)
                self.memory.values[each.name], self.memory.taint[each.name] = empty.values, taint_of(empty)
                self.memory.writers[each.name] = _nobody(each.shape)

    def _unwritten(self, shape: tuple[int, ...], dtype: Any, name: str) -> Numbers:
        """What memory holds at first: nobody knows what."""
        buffers = self.run.buffers
        if name not in buffers:
            buffers.append(name)
        return Numbers(np.zeros(shape, carrier(dtype)), np.full(shape, buffers.index(name), np.uint16))

    def _leave(self, stay: Stay) -> None:
        for number, result in enumerate(stay.results):
            written = self.stored.get(number)
            if written is None:
                values, taint = self.memory.values[result.name], self.memory.taint[result.name]
                written = Written(numbers(values.copy(), taint.copy()), self.memory.writers[result.name].copy())
            self.run.kernels[self.rank, self.call, number] = written

    def _execute(self, op: Recorded) -> bool:
        """False: it has to wait."""
        match op:
            case Access(kind="read"):
                self.known[op.value] = self._load(op.region, op.origin)
            case Access(value=Box() as box):
                self._refresh(op.region, box)
            case Access():
                self._write(self.rank, op.region, self.value(op.value, op.region.dtype), op.origin)
            case Loaded():
                pass  # it has its value since the entry
            case Stored():
                self._store(op)
            case Copy():
                self._copy(op)
                if op.sent is not None:
                    self._count(self.rank, op.sent, op.amount)
                self._count(op.rank, op.received, op.amount)
            case Frame():
                if op.enters:
                    self._begin(op.buffers)
            case Signal():
                self._count(op.rank, op.semaphore, op.amount)
            case Wait():
                if self.world.semaphores.get((self.rank, op.semaphore), 0) < op.amount:
                    return False
                self._count(self.rank, op.semaphore, -op.amount)
            case _:
                assert_never(op)
        return True

    def _count(self, rank: int, key: SemaphoreKey, units: int) -> None:
        semaphores = self.world.semaphores
        semaphores[rank, key] = semaphores.get((rank, key), 0) + units

    def _origin(self, span: Span | None) -> int:
        """The number of a place among the writers."""
        origins = self.world.origins
        if span not in origins:
            origins[span] = len(self.run.writers)
            self.run.writers.append(span)
        return origins[span]

    # -- memory

    def _load(self, region: Region, origin: Span | None) -> Numbers:
        name, pieces = region.buffer.name, region.pieces()
        found = numbers(self.memory.values[name][pieces].copy(), self.memory.taint[name][pieces].copy())
        if found.taint is not None and np.any(self.memory.writers[name][pieces] == NOBODY):
            self.run.unwritten.setdefault(name, origin)
        if region.dtype != region.buffer.dtype:
            found = repacked(found, region.buffer.dtype, region.dtype)
        values = found.values.transpose(region.order()).reshape(region.shape)
        if found.taint is None:
            return Numbers(values)
        return Numbers(values, found.taint.transpose(region.order()).reshape(region.shape))

    def _write(self, rank: int, region: Region, given: Numbers, origin: Span | None) -> None:
        memory, name, pieces, order = self._memory(rank, region), region.buffer.name, region.pieces(), region.order()
        counts = [each.count for each in region.ranges]
        if region.dtype != region.buffer.dtype:  # as many elements as the view has, then as many as the buffer
            shown = memory.values[name][pieces].shape
            counts = [*shown[:-2], shown[-2] * region.buffer.bits // dtypes.itemsize_bits(region.dtype), shown[-1]]
        back = np.argsort(order, kind="stable")
        values = given.values.reshape([counts[d] for d in order]).transpose(back)
        taint = taint_of(given).reshape([counts[d] for d in order]).transpose(back)
        if region.dtype != region.buffer.dtype:
            packed = repacked(numbers(values, taint), region.dtype, region.buffer.dtype)
            values, taint = packed.values, taint_of(packed)
        memory.values[name][pieces], memory.taint[name][pieces] = values, taint
        memory.writers[name][pieces] = self._origin(origin)

    def _copy(self, op: Copy) -> None:
        """A DMA moves bytes: where both ends hold them in one way, whatever the views say, they stay as they are."""
        source, target = op.source, op.target
        if source.dtype == target.dtype and source.buffer.dtype == target.buffer.dtype:
            source, target = _as_held(source), _as_held(target)
            if source.elements == target.elements:
                self._write(op.rank, target, self._load(source, op.origin), op.origin)
                return
        self._write(op.rank, op.target, self._load(op.source, op.origin), op.origin)

    def _memory(self, rank: int, region: Region) -> _Memory:
        memory = self.world.devices[rank].memory
        if region.buffer.name not in memory.values:  # on a device that has not entered; there it is told as a race
            raise Untold("a device writes to another that is not in the kernel")
        return memory

    def _store(self, op: Stored) -> None:
        """What of a block lies in the array."""
        name, target = op.region.buffer.name, self.stored[op.number]
        if op.starts is None:
            raise Untold(f"which block {name} is")
        outside, inside = _overlap(op.starts, op.sizes, target.writers.shape)
        target.numbers.values[outside] = self.memory.values[name].reshape(op.sizes)[inside]
        taint_of(target.numbers)[outside] = self.memory.taint[name].reshape(op.sizes)[inside]
        target.writers[outside] = self.memory.writers[name].reshape(op.sizes)[inside]

    def _refresh(self, region: Region, box: Box) -> None:
        """Where a block reaches over the end of its array, it holds nothing in particular there."""
        window = region.buffer
        self._begin((window,))
        if box.array is None:
            return
        array = self.value(box.array, window.dtype)
        outside, inside = _overlap(box.starts, box.sizes, array.values.shape)
        for block, content in (
            (self.memory.values[window.name], array.values[outside]),
            (self.memory.taint[window.name], taint_of(array)[outside]),
            (self.memory.writers[window.name], self._origin(None)),
        ):
            block.reshape(box.sizes)[inside] = content  # a view: blocks are contiguous

    # -- values

    def value(self, value: Any, dtype: Any = None) -> Numbers:
        """The numbers behind a value. dtype: of those that the walker knew."""
        if not isinstance(value, Unknown):
            return _known(value, dtype)
        pending = [value]
        while pending:  # depth first, without recursion: sums of long loops are deep
            node = pending[-1]
            missing = [each for each in _needs(node) if each not in self.known]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if node not in self.known:
                self.known[node] = self._found(node)
        found: Numbers = self.known[value]
        return found

    def _found(self, node: Any) -> Any:
        """The value of a node whose parts are known."""
        match node:
            case Computation():
                kinds = [atom.aval.dtype for atom in node.eqn.invars]
                operands = [self._part(each, kind) for each, kind in zip(node.operands, kinds, strict=True)]
                return perform(node.eqn, operands, self.setting)
            case Outcome():
                return self.known[node.computation][node.number]
            case Argument():
                return Numbers(self.arguments[node.number])
            case Constant():
                return _known(node.value, node.value.dtype)
            case Added():
                return self._sum(self._part(node.left), self._part(node.right))
            case Stacked():
                return stacked([self._part(each) for each in node.parts])
            case Part():
                return self._part(node.whole)[node.index]
            case KernelResult():
                key = self.rank, node.call, node.number
                if key not in self.run.kernels:
                    raise _Later
                return self.run.kernels[key].numbers
            case Exchanged():
                return self._exchange(node)
            case Lost():
                raise Untold(node.reason)
            case _:
                raise Untold("a value that the audit did not follow")

    def _sum(self, left: Numbers, right: Numbers) -> Numbers:
        with np.errstate(all="ignore"):
            total = np.asarray(left.values + right.values)
            if self.world.rounding is not None:
                size = np.abs(left.values) + np.abs(right.values)
                total = self.world.rounding(total, [left.values, right.values], size)
        return numbers(total, np.maximum(taint_of(left), taint_of(right)))

    def _exchange(self, node: Exchanged) -> Numbers:
        """All devices of the group come upon the same collectives in the same order, or it would hang."""
        ranks, own = group_of(node.eqn.params, self.place, self.world.sizes)
        operands = []
        for rank in ranks:
            thread = self.world.devices[rank]
            if node.key not in thread.exchanges:
                raise Untold(f"not all devices take part in the `{node.eqn.primitive.name}`", may_hang=True)
            dtype = node.eqn.invars[node.number].aval.dtype
            operands.append(thread.value(thread.exchanges[node.key].operands[node.number], dtype))
        return exchanged(node.eqn.primitive.name, node.eqn.params, operands, own, self.world.rounding)

    def _part(self, value: Any, dtype: Any = None) -> Numbers:
        if isinstance(value, Unknown):
            found: Numbers = self.known[value]
            return found
        return _known(value, dtype)


def _known(value: Any, dtype: Any) -> Numbers:
    """A value that the walker knew."""
    return Numbers(as_array(value, dtype if dtype is not None else np.asarray(value).dtype))


def _as_held(region: Region) -> Region:
    """Without a view of other elements."""
    shape = tuple(region.ranges[d].count for d in region.order())
    return replace(region, shape=shape, axes=region.order(), dtype=region.buffer.dtype)


def _nobody(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, NOBODY, np.int32)


def _overlap(
    starts: tuple[int, ...], sizes: tuple[int, ...], sides: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of an array that a block covers, as an index of the array and as one of the block."""
    ends = [min(start + size, side) for start, size, side in zip(starts, sizes, sides, strict=True)]
    outside = tuple(slice(start, end) for start, end in zip(starts, ends, strict=True))
    return outside, tuple(slice(0, max(end - start, 0)) for start, end in zip(starts, ends, strict=True))


def _needs(node: Any) -> list[Any]:
    """The nodes that have to be known before this one."""
    match node:
        case Computation():
            parts = node.operands
        case Outcome():
            return [node.computation]
        case Exchanged():
            parts = (node.operands[node.number],)
        case Added():
            parts = (node.left, node.right)
        case Stacked():
            parts = node.parts
        case Part():
            parts = (node.whole,)
        case _:
            return []
    return [each for each in parts if isinstance(each, Unknown)]
