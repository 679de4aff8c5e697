"""The symbolic machine, run along one interleaving: which faults does this very run show?

    Execution, Interleaving, calls  →  Replay, or ImpossibleError

Nothing is concluded here, as the hazard check does: every event is tried on the machine's state, and a fault is
something that can be seen there. Shares nothing with the hazard check, like `exhaustive.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from ringsched.program.program import BARRIER
from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, SemaphoreKey, Signal, Wait
from ringsched.verify.interleaving import (
    Conflict,
    Do,
    End,
    Event,
    Fault,
    Interleaving,
    Kind,
    Left,
    Outside,
    Replay,
    Space,
    Stream,
    Stuck,
    StuckRank,
    Touch,
    Units,
    read_end,
    streams,
)

WHOLE_ARRAY = (0, 1)  # semaphores are given and taken away as arrays

_Place = tuple[int, Space, str]  # owner, and the name of a buffer or semaphore array


class ImpossibleError(ValueError):
    """An event of an interleaving cannot happen when it should; the text says which and why."""


def replay(execution: Execution, interleaving: Interleaving, calls: int = 2) -> Replay:
    """Runs `calls` calls of a full (not symmetric) execution along `interleaving`, which may stop anywhere.

    Raises ImpossibleError where an event cannot happen.
    """
    if execution.symmetric:
        raise ValueError("only an execution with every rank's trace can be replayed")
    machine = _Machine(execution, calls)
    for at, event in enumerate(interleaving):
        machine.happen(at, event)
    machine.stop(len(interleaving))
    return Replay(faults=tuple(machine.faults), positions=tuple(machine.positions))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Access:
    """An access to `block` (of a semaphore array: all of it) of `owner`, over at once or with an end of the DMA."""

    touch: Touch
    owner: int
    space: Space
    block: Block
    end: End | None

    @property
    def place(self) -> _Place:
        return self.owner, self.space, self.block.buffer

    def conflicts(self, other: _Access) -> bool:
        harmless = ("read", "signal")
        overlap = self.block.start < other.block.stop and other.block.start < self.block.stop
        return overlap and not (self.touch.kind in harmless and other.touch.kind in harmless)


def _accesses(rank: int, position: int, op: Op) -> Iterator[_Access]:
    def memory(owner: int, block: Block, kind: Kind, end: End | None = None) -> _Access:
        touch = Touch(rank=rank, position=position, kind=kind)
        return _Access(touch=touch, owner=owner, space="memory", block=block, end=end)

    def semaphore(owner: int, name: str, kind: Kind, end: End | None = None) -> Iterator[_Access]:
        # The barrier semaphore outlives the call, so anyone may signal it at any time.
        if name != BARRIER:
            touch = Touch(rank=rank, position=position, kind=kind)
            yield _Access(touch=touch, owner=owner, space="semaphore", block=Block(name, *WHOLE_ARRAY), end=end)

    match op:
        case Dma():
            yield memory(rank, op.source, "read", read_end(rank, op))
            yield memory(op.rank, op.target, "write", "written")
            if op.sent is not None:
                yield from semaphore(rank, op.sent[0], "signal", "read")
            if op.received is not None:
                yield from semaphore(op.rank, op.received[0], "signal", "written")
        case Compute():
            yield from (memory(rank, block, "read") for block in op.sources)
            if op.target is not None:
                yield memory(rank, op.target, "write")
        case Enter() | Exit():
            kind: Kind = "entry" if isinstance(op, Enter) else "exit"
            yield from (memory(rank, block, kind) for block in op.blocks)
            for name in op.semaphores:
                yield from semaphore(rank, name, kind)
        case Signal():
            yield from semaphore(op.rank, op.semaphore[0], "signal")
        case Wait():
            return
        case _:
            assert_never(op)


class _Machine:
    """The state: positions, units on semaphores, units still to come, accesses under way."""

    def __init__(self, execution: Execution, calls: int) -> None:
        self.traces = execution.traces
        self.totals = [len(trace) * calls for trace in self.traces]
        self.positions = [0] * len(self.traces)
        self.held: dict[tuple[int, SemaphoreKey], int] = defaultdict(int)
        self.to_come: dict[tuple[int, int, End], tuple[Stream, int]] = {}
        self.under_way: dict[_Place, list[_Access]] = defaultdict(list)
        self.faults: list[Fault] = []
        self.frames: dict[_Place, list[_Access]] = defaultdict(list)  # in order, through all calls
        for rank, trace in enumerate(self.traces):
            for position, op in enumerate(trace * calls):
                if isinstance(op, Enter | Exit):
                    for access in _accesses(rank, position, op):
                        self.frames[access.place].append(access)

    def _op(self, rank: int, position: int) -> Op:
        return self.traces[rank][position % len(self.traces[rank])]

    def happen(self, at: int, event: Event) -> None:
        match event:
            case Do():
                self._do(at, event.rank)
            case Units():
                self._arrive(at, event)
            case _:
                assert_never(event)

    def _do(self, at: int, rank: int) -> None:
        if not 0 <= rank < len(self.traces):
            raise ImpossibleError(f"event {at}: there is no rank {rank}")
        position = self.positions[rank]
        if position >= self.totals[rank]:
            raise ImpossibleError(f"event {at}: rank {rank} has finished")
        op = self._op(rank, position)
        if isinstance(op, Wait):
            held = self.held[rank, op.semaphore]
            if held < op.amount:
                name = f"{op.semaphore[0]}[{op.semaphore[1]}]"
                raise ImpossibleError(f"event {at}: rank {rank} waits for {op.amount} units of {name}, it holds {held}")
            self.held[rank, op.semaphore] = held - op.amount
        if isinstance(op, Signal):
            self.held[op.rank, op.semaphore] += op.amount
        if isinstance(op, Dma):
            for stream in streams(rank, position, op):
                self.to_come[rank, position, stream.end] = (stream, stream.units)
        for access in _accesses(rank, position, op):
            self._begin(at, access)
        self.positions[rank] = position + 1

    def _arrive(self, at: int, event: Units) -> None:
        key = (event.rank, event.position, event.end)
        dma = f"the DMA at position {event.position} of rank {event.rank}"
        if key not in self.to_come:
            raise ImpossibleError(f"event {at}: {dma} has not started, is over, or does not end as {event.end!r}")
        stream, to_come = self.to_come[key]
        if not 1 <= event.count <= to_come:
            raise ImpossibleError(f"event {at}: {event.count} units of {dma} cannot arrive, {to_come} are to come")
        if stream.semaphore is not None:
            self.held[stream.owner, stream.semaphore] += event.count
        self.to_come[key] = (stream, to_come - event.count)
        if event.count == to_come:
            del self.to_come[key]
            for access in _accesses(event.rank, event.position, self._op(event.rank, event.position)):
                if access.end == event.end:
                    self.under_way[access.place].remove(access)

    def _begin(self, at: int, access: _Access) -> None:
        block = access.block
        if access.owner != access.touch.rank:
            self._check_inside(at, access)
        for earlier in self.under_way[access.place]:
            if earlier.conflicts(access):
                start, stop = max(block.start, earlier.block.start), min(block.stop, earlier.block.stop)
                overlap = Block(block.buffer, start, stop)
                fault = Conflict(
                    at=at,
                    earlier=earlier.touch,
                    later=access.touch,
                    owner=access.owner,
                    space=access.space,
                    overlap=overlap,
                )
                self.faults.append(fault)
        if access.end is not None:
            self.under_way[access.place].append(access)

    def _check_inside(self, at: int, access: _Access) -> None:
        """Outside is who would have to enter first, or has left for good. What has no frame is always there."""
        frames = [f for f in self.frames[access.place] if f.conflicts(access)]
        here = self.positions[access.owner]
        before = next((f.touch for f in reversed(frames) if f.touch.position < here), None)
        after = next((f.touch for f in frames if f.touch.position >= here), None)
        entry = after.position if after is not None and after.kind == "entry" else None
        left = before.position if before is not None and before.kind == "exit" else None
        if entry is not None or (after is None and left is not None):
            fault = Outside(
                at=at,
                touch=access.touch,
                owner=access.owner,
                space=access.space,
                block=access.block,
                left=left,
                entry=entry,
            )
            self.faults.append(fault)

    def stop(self, at: int) -> None:
        """What can be seen only when nothing is on its way any more."""
        if self.to_come:
            return
        halted = []
        for rank, (position, total) in enumerate(zip(self.positions, self.totals, strict=True)):
            if position == total:
                continue
            op = self._op(rank, position)
            if not isinstance(op, Wait) or self.held[rank, op.semaphore] >= op.amount:
                break
            halted.append(StuckRank(rank=rank, position=position, has=self.held[rank, op.semaphore]))
        else:
            if halted:
                self.faults.append(Stuck(at=at, ranks=tuple(halted)))
        self._check_left(at)

    def _check_left(self, at: int) -> None:
        done = {divmod(p, len(trace)) for p, trace in zip(self.positions, self.traces, strict=True) if trace}
        if len(done) != 1:
            return
        ((calls, within),) = done
        if calls and not within:
            for (owner, semaphore), units in sorted(self.held.items()):
                if units:
                    self.faults.append(Left(at=at, owner=owner, semaphore=semaphore, units=units, calls=calls))
