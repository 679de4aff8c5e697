"""Which accesses of a trace overlap without a guaranteed order.

    Machine, Clocks  →  Pairs of accesses, each with the memory or semaphore they share

An access lasts from its instruction to the instruction itself (the core's own) or to an end of the DMA. The run of the
Machine is one legal order, so accesses that are ordered at all are ordered as in it; and since an access begins before
it ends, order between consecutive conflicting accesses carries over to all. So one look at each access is enough to
decide; `all_pairs` compares every two and exists to test that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, assert_never

from ringsched.program.program import BARRIER
from ringsched.program.trace import Block, Compute, Dma, Enter, Exit, Op, Signal, Wait
from ringsched.verify.clocks import NEVER, Clocks
from ringsched.verify.machine import READ_DONE, WRITE_DONE, Machine

Kind = Literal["read", "write", "entry", "exit", "signal"]
Space = Literal["memory", "semaphore"]
READS: frozenset[Kind] = frozenset({"read", "signal"})  # do not conflict among themselves


class Place(NamedTuple):
    """A buffer or semaphore array of the rank whose trace is `owner`."""

    owner: int
    space: Space
    name: str


class Touch(NamedTuple):
    """An access to units start … stop − 1 of a place. `rank` is as the owner sees it; `turn` counts along the run.

    It is over once instruction `end_position` of rank `end_rank` is (NEVER: nothing tells).
    """

    turn: int
    rank: int
    position: int
    kind: Kind
    start: int
    stop: int
    end_rank: int
    end_position: int


class _Access(NamedTuple):
    """What a Touch takes from the trace: all but when it happens. `tells` is what its end is known by (0: at once)."""

    place: Place
    rank: int
    kind: Kind
    start: int
    stop: int
    tells: int


class Pair(NamedTuple):
    """Two conflicting accesses, in the order of the run, that may overlap in time."""

    place: Place
    first: Touch
    second: Touch


@dataclass(slots=True)
class _Cell:
    """What the last accesses to a piece of memory were.

    `gone`: the exit after which it does not exist. `early`: accesses before there was any entry.
    """

    write: Touch | None = None
    reads: list[Touch] = field(default_factory=list)
    gone: Touch | None = None
    early: list[Touch] | None = field(default_factory=list)


class Races:
    """All accesses of a run, by place, and what is wrong with them."""

    def __init__(self, machine: Machine, clocks: Clocks) -> None:
        self.machine = machine
        self.clocks = clocks
        self.touches: dict[Place, list[Touch]] = {}
        frames = [op for trace in machine.traces for op in trace if isinstance(op, Enter | Exit)]
        # The barrier semaphore outlives the call, so anyone may signal it at any time.
        self.guarded = {name for frame in frames for name in frame.semaphores} - {BARRIER}
        accesses = [[tuple(self._accesses(t, op)) for op in trace] for t, trace in enumerate(machine.traces)]
        for turn, (thread, position) in enumerate(machine.order):
            for place, rank, kind, start, stop, tells in accesses[thread][position % len(accesses[thread])]:
                end = (rank, position)
                if tells:
                    # The owner of the place is also the one that waits for the end.
                    key = (thread, position, tells)
                    end = (machine.geometry.rank(place.owner), clocks.first_wait.get(key, NEVER))
                touch = Touch(turn, rank, position, kind, start, stop, *end)
                self.touches.setdefault(place, []).append(touch)

    def consecutive_pairs(self) -> Iterator[Pair]:
        """Unordered neighbours: empty iff there is no race. Linear in accesses times the pieces that they cover."""
        for place, touches in self.touches.items():
            bounds = sorted({touch.start for touch in touches} | {touch.stop for touch in touches})
            number = {bound: index for index, bound in enumerate(bounds)}
            cells = [_Cell() for _ in bounds]
            for touch in touches:
                for cell in cells[number[touch.start] : number[touch.stop]]:
                    for earlier in self._visit(cell, touch):
                        yield Pair(place, earlier, touch)
                    for outside in self._outside(cell, touch):
                        yield Pair(place, *outside)

    def all_pairs(self) -> Iterator[Pair]:
        """Every two conflicting accesses that are not ordered; quadratic, for tests."""
        for place, touches in self.touches.items():
            for index, second in enumerate(touches):
                for first in touches[:index]:
                    overlap = first.start < second.stop and second.start < first.stop
                    conflict = first.kind not in READS or second.kind not in READS
                    if overlap and conflict and not self._ordered(first, second) and not self._ordered(second, first):
                        yield Pair(place, first, second)

    def _visit(self, cell: _Cell, touch: Touch) -> list[Touch]:
        """The accesses since the last write that `touch` conflicts with and is not ordered after."""
        against = [] if cell.write is None else [cell.write]
        if touch.kind in READS:
            cell.reads.append(touch)
        else:
            against += cell.reads
            cell.write, cell.reads = touch, []
        return [earlier for earlier in against if not self._ordered(earlier, touch)]

    def _outside(self, cell: _Cell, touch: Touch) -> list[tuple[Touch, Touch]]:
        """Accesses surely after the exit, or before the entry, of memory that comes and goes within a kernel.

        Of memory that is there in the whole kernel they race as well: no one can be surely between two calls. Operands
        are there before the entry and only have an exit.
        """
        found = []
        if touch.kind == "entry":
            found = [(early, touch) for early in cell.early or () if self._ordered(early, touch)]
            cell.early, cell.gone = None, None
        elif touch.kind == "exit":
            cell.gone = touch if cell.early is None else None
        else:
            if cell.gone is not None and self._ordered(cell.gone, touch):
                found = [(cell.gone, touch)]
            if cell.early is not None:
                cell.early.append(touch)
        return found

    def _ordered(self, first: Touch, second: Touch) -> bool:
        _, rank, at, _, _, _, end_rank, end = first
        if (rank, at) == (second.rank, second.position) == (end_rank, end):
            return True  # the core reads its operands before it writes the result
        return self.clocks.precedes(end_rank, end, second.rank, second.position)

    def _accesses(self, thread: int, op: Op) -> Iterator[_Access]:
        own = self.machine.geometry.rank(thread)
        match op:
            case Dma():
                yield from self._of_dma(thread, op)
            case Compute():
                for block in op.sources:
                    yield _memory(thread, block, own, "read", 0)
                if op.target is not None:
                    yield _memory(thread, op.target, own, "write", 0)
            case Enter() | Exit():
                kind: Kind = "entry" if isinstance(op, Enter) else "exit"
                for block in op.blocks:
                    yield _memory(thread, block, own, kind, 0)
                for name in op.semaphores:
                    if name in self.guarded:
                        yield _semaphore(thread, name, own, kind, 0)
            case Signal():
                if op.semaphore[0] in self.guarded:
                    owner, source = self.machine.geometry.delivery(thread, op.rank)
                    yield _semaphore(owner, op.semaphore[0], source, "signal", 0)
            case Wait():
                return
            case _:
                assert_never(op)

    def _of_dma(self, thread: int, op: Dma) -> Iterator[_Access]:
        """Source and target, and the semaphores at both ends, which must be there for as long."""
        own = self.machine.geometry.rank(thread)
        owner, source = self.machine.geometry.delivery(thread, op.rank)
        local = (owner, source) == (thread, own)
        # A local copy counts once, on `received`, when all is done.
        read_tells = WRITE_DONE if local and op.sent is None else READ_DONE
        yield _memory(thread, op.source, own, "read", read_tells)
        yield _memory(owner, op.target, source, "write", WRITE_DONE)
        if op.sent is not None and op.sent[0] in self.guarded:
            yield _semaphore(thread, op.sent[0], own, "signal", READ_DONE)
        if op.received is not None and op.received[0] in self.guarded:
            yield _semaphore(owner, op.received[0], source, "signal", WRITE_DONE)


def _memory(owner: int, block: Block, rank: int, kind: Kind, tells: int) -> _Access:
    return _Access(Place(owner, "memory", block.buffer), rank, kind, block.start, block.stop, tells)


def _semaphore(owner: int, name: str, rank: int, kind: Kind, tells: int) -> _Access:
    """The whole array is one cell: it matters only whether its owner is in the kernel."""
    return _Access(Place(owner, "semaphore", name), rank, kind, 0, 1, tells)


def block_of(op: Op, touch: Touch, place: Place) -> Block:
    """The units of `place` that `touch` is about; for a semaphore, the element that is counted on (all: 0 … 0)."""
    if place.space == "memory":
        return Block(place.name, touch.start, touch.stop)
    match op:
        case Signal():
            index = op.semaphore[1]
        case Dma():
            keys = [key for key in (op.received, op.sent) if key is not None and key[0] == place.name]
            index = keys[0][1]
        case _:
            return Block(place.name, 0, 0)
    return Block(place.name, index, index + 1)
