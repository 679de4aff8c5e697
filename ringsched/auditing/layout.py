"""Recorded operations of all devices  →  Execution: boxes become units.

A buffer is cut along each dimension wherever some access of some device begins or ends; a cell between the cuts is a
unit, numbered row by row. So traces stay small however large the arrays are. A box that is not one run of units
becomes several blocks: several reads or writes of the core, or several DMAs that share the amount. The latter is
exact: a wait tells that the whole DMA has ended iff it tells so of each part, for any unit may be the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np

from ringsched.auditing.memory import Buffer, Range, Region, subscript
from ringsched.auditing.recorded import Access, Copy, Frame, Loaded, Recorded, Stored
from ringsched.auditing.walk import Undecided
from ringsched.diagnostics import Span
from ringsched.program import trace

MARK = "#"  # ends the names of buffers in blocks, so that messages can be told in the user's indices
MOST_PIECES = 1024  # of one region


@dataclass(slots=True)
class Layout:
    """The cuts of every buffer. `cuts[name][d]`: where dimension d is cut, from 0 to its size."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    cuts: dict[str, list[list[int]]] = field(default_factory=dict)
    _runs: dict[tuple[str, tuple[Range, ...]], list[tuple[int, int]]] = field(default_factory=dict)

    def blocks(self, region: Region, span: Span | None) -> list[trace.Block]:
        """The units of a region, in runs."""
        name = region.buffer.name
        key = (name, region.ranges)
        if key not in self._runs:
            self._runs[key] = self._find_runs(region, span)
        return [trace.Block(name + MARK, start, stop) for start, stop in self._runs[key]]

    def whole(self, buffer: Buffer) -> trace.Block:
        return trace.Block(buffer.name + MARK, 0, self.units(buffer.name))

    def units(self, name: str) -> int:
        return math.prod(self._sides(name))

    def describe(self, name: str, start: int, stop: int) -> str:
        """A run of units in the user's indices: the smallest box around it."""
        sides = self._sides(name)
        if not sides or stop <= start:
            return name
        places = np.unravel_index(np.arange(start, stop), sides)
        ranges = []
        for cuts, place in zip(self.cuts[name], places, strict=True):
            first, last = cuts[int(place.min())], cuts[int(place.max()) + 1]
            ranges.append(Range(first, last - first))
        return f"{name}{subscript(tuple(ranges), self.buffers[name].shape)}"

    def _sides(self, name: str) -> tuple[int, ...]:
        return tuple(len(cuts) - 1 for cuts in self.cuts[name])

    def _find_runs(self, region: Region, span: Span | None) -> list[tuple[int, int]]:
        runs, inner = [(0, 1)], 1
        dimensions = list(zip(self.cuts[region.buffer.name], region.ranges, strict=True))
        for cuts, each in reversed(dimensions):
            found: list[tuple[int, int]] = []
            for first, last in _parts(each):
                a, b = cuts.index(first), cuts.index(last)
                if runs == [(0, inner)]:
                    found.append((a * inner, b * inner))
                else:
                    found.extend((i * inner + x, i * inner + y) for i in range(a, b) for x, y in runs)
            runs, inner = _merged(found), inner * (len(cuts) - 1)
            if len(runs) > MOST_PIECES:
                raise Undecided(f"{region} is cut into more than {MOST_PIECES} pieces", span, "audit smaller operands")
        return runs


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a kernel. `memory`: what it is in the end, None where the grid stores it block by block."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    memory: Buffer | None


@dataclass(frozen=True, slots=True)
class Stay:
    """One device in one kernel, the function's `kernel`-th.

    `memory`: what exists from the entry to the exit, semaphores included. `operands`: memory that holds a value when
    the kernel begins.
    """

    kernel: int
    ops: tuple[Recorded, ...]
    memory: tuple[Buffer, ...]
    operands: tuple[tuple[Buffer, Any], ...]
    results: tuple[Result, ...]


def lay_out(devices: Sequence[Sequence[Stay]], sides: tuple[int, ...]) -> tuple[trace.Execution, Layout]:
    """The execution of one call of the function: all kernels of each device, in its order."""
    layout = Layout()
    marks: dict[str, list[set[int]]] = {}

    def note(buffer: Buffer, ranges: Iterable[Range], span: Span | None) -> None:
        if buffer.is_semaphore:
            return
        if buffer.name not in marks:
            layout.buffers[buffer.name] = buffer
            marks[buffer.name] = [{0, side} for side in buffer.shape]
        for cuts, each in zip(marks[buffer.name], ranges, strict=False):
            if each.stride > 1 and each.count > MOST_PIECES:
                raise Undecided(
                    f"{buffer.name} is accessed with a stride, in too many pieces", span, "audit smaller operands"
                )
            for first, last in _parts(each):
                cuts.update((first, last))

    for stay in (stay for stays in devices for stay in stays):
        for buffer in stay.memory:
            note(buffer, (), None)
        for op in stay.ops:
            match op:
                case Access() | Loaded():
                    note(op.region.buffer, op.region.ranges, op.origin)
                case Copy():
                    note(op.source.buffer, op.source.ranges, op.origin)
                    note(op.target.buffer, op.target.ranges, op.origin)
                case Frame():
                    for buffer in op.buffers:
                        note(buffer, (), None)
                case trace.Wait() | trace.Signal() | Stored():
                    pass
                case _:
                    assert_never(op)
    layout.cuts = {name: [sorted(cuts) for cuts in each] for name, each in marks.items()}
    traces = tuple(tuple(op for stay in stays for op in _stay(layout, stay)) for stays in devices)
    capacity = tuple((name + MARK, layout.units(name)) for name in layout.cuts)
    return trace.Execution(sides=sides, symmetric=False, traces=traces, capacity=capacity), layout


def _stay(layout: Layout, stay: Stay) -> Iterator[trace.Op]:
    blocks, semaphores = _frame(layout, stay.memory)
    yield trace.Enter(blocks=blocks, semaphores=semaphores)
    for op in stay.ops:
        match op:
            case Access(repeated=True) | Stored():
                pass
            case Access():
                yield from _access(layout, op)
            case Loaded():
                for block in layout.blocks(op.region, op.origin):
                    yield trace.Compute(op="copy", target=block, note=op.note, origin=op.origin)
            case Copy():
                yield from _copy(layout, op)
            case Frame():
                inner, names = _frame(layout, op.buffers)
                if op.enters:
                    yield trace.Enter(blocks=inner, semaphores=names)
                else:
                    yield trace.Exit(blocks=inner, semaphores=names)
            case trace.Wait() | trace.Signal():
                yield op
            case _:
                assert_never(op)
    yield trace.Exit(blocks=blocks, semaphores=semaphores)


def _frame(layout: Layout, buffers: Sequence[Buffer]) -> tuple[tuple[trace.Block, ...], tuple[str, ...]]:
    """The barrier semaphore outlives the call and belongs to no frame."""
    memory = tuple(layout.whole(buffer) for buffer in buffers if not buffer.is_semaphore)
    return memory, tuple(buffer.name for buffer in buffers if buffer.is_semaphore and buffer.role != "barrier")


def _access(layout: Layout, op: Access) -> Iterator[trace.Op]:
    blocks = layout.blocks(op.region, op.origin)
    if op.kind == "read":
        yield trace.Compute(op="copy", target=None, sources=tuple(blocks), note=op.note, origin=op.origin)
        return
    for block in blocks:
        yield trace.Compute(op="copy", target=block, note=op.note, origin=op.origin)


def _copy(layout: Layout, op: Copy) -> Iterator[trace.Op]:
    """One DMA for each pair of runs; the shorter list is filled up with empty blocks."""
    sources, targets = layout.blocks(op.source, op.origin), layout.blocks(op.target, op.origin)
    count = max(len(sources), len(targets))
    if not op.amount:
        return
    if op.amount < count:
        raise Undecided("a DMA has more pieces than bytes", op.origin, "send contiguous rows")
    sources += [trace.Block(op.source.buffer.name + MARK, 0, 0)] * (count - len(sources))
    targets += [trace.Block(op.target.buffer.name + MARK, 0, 0)] * (count - len(targets))
    share, rest = divmod(op.amount, count)
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        yield trace.Dma(
            rank=op.rank,
            source=source,
            target=target,
            sent=op.sent,
            received=op.received,
            amount=share + (number < rest),
            note=op.note,
            origin=op.origin,
        )


def _parts(each: Range) -> Iterator[tuple[int, int]]:
    """The runs of indices of a range, ends exclusive."""
    if each.count <= 0:
        return
    if each.stride == 1:
        yield each.start, each.stop
    else:
        for number in range(each.count):
            yield each.start + number * each.stride, each.start + number * each.stride + 1


def _merged(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, stop in runs:
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found
