"""Every interleaving of a small execution, tried one by one: the measure for `hazards.py`, sharing nothing with it.

A state is how far each rank has come and how many units each DMA has delivered. A DMA has up to two streams of units,
one to the semaphore that it counts reading on and one to that for writing; the last unit of a stream is its end. For
every two events it is recorded whether the one was ever seen to happen before the other had.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, SemaphoreKey, Signal, Wait

Event = tuple[int, int, str]  # rank, position, "do" | "read" | "written"
Point = tuple[int, int]  # rank, position
State = tuple[tuple[int, ...], tuple[int, ...]]  # positions, units delivered by each stream


class TooLargeError(Exception):
    """There are more states than the caller wants to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`races` are unordered pairs, the smaller (rank, position) first; `leftovers` are of executions that finish."""

    races: frozenset[tuple[Point, Point]]
    deadlock: bool
    finishes: bool
    leftovers: frozenset[tuple[int, SemaphoreKey]]
    states: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    rank: int
    position: int
    owner: int
    semaphore: SemaphoreKey | None
    units: int
    end: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """An access: units of a buffer or semaphore of rank `memory`, from one event to another."""

    point: Point
    memory: int
    thing: tuple[str, str]
    units: frozenset[int]
    changes: bool
    begin: Event
    end: Event


def explore(execution: Execution, calls: int = 2, most_states: int = 1_000_000) -> Outcome:
    """Visits every state of a full (not symmetric) execution; raises TooLargeError beyond `most_states`."""
    return _Search([list(trace) * calls for trace in execution.traces], most_states).run()


class _Search:
    def __init__(self, traces: list[list[Op]], most_states: int) -> None:
        self.traces = traces
        self.most_states = most_states
        self.streams = [stream for rank, trace in enumerate(traces) for stream in _streams(rank, trace)]
        events = [(rank, position, "do") for rank, trace in enumerate(traces) for position in range(len(trace))]
        self.bit = {event: 1 << n for n, event in enumerate(events + [stream.end for stream in self.streams])}
        self.known: dict[tuple[int, ...], tuple[dict[tuple[int, SemaphoreKey], int], int]] = {}
        # Event → the events that had not happened at one of the times when it did.
        self.without = dict.fromkeys(self.bit, 0)

    def run(self) -> Outcome:
        start: State = (tuple(0 for _ in self.traces), tuple(0 for _ in self.streams))
        seen, pending = {start}, [start]
        deadlock = finishes = False
        leftovers: set[tuple[int, SemaphoreKey]] = set()
        while pending:
            state = pending.pop()
            following = self.successors(state)
            if not following:
                finished = all(p == len(trace) for p, trace in zip(state[0], self.traces, strict=True))
                deadlock, finishes = deadlock or not finished, finishes or finished
                if finished:
                    leftovers |= {slot for slot, value in self.observe(state)[0].items() if value}
            for successor in following:
                if successor not in seen:
                    seen.add(successor)
                    pending.append(successor)
            if len(seen) > self.most_states:
                raise TooLargeError
        return Outcome(
            races=frozenset(self.races()),
            deadlock=deadlock,
            finishes=finishes,
            leftovers=frozenset(leftovers),
            states=len(seen),
        )

    def progress(self, positions: tuple[int, ...]) -> tuple[dict[tuple[int, SemaphoreKey], int], int]:
        """What the instructions so far add to and take from each semaphore, and the bits of these instructions."""
        values: dict[tuple[int, SemaphoreKey], int] = {}
        bits = 0
        for rank, position in enumerate(positions):
            for earlier, op in enumerate(self.traces[rank][:position]):
                bits |= self.bit[rank, earlier, "do"]
                if isinstance(op, Signal):
                    values[op.rank, op.semaphore] = values.get((op.rank, op.semaphore), 0) + op.amount
                if isinstance(op, Wait):
                    values[rank, op.semaphore] = values.get((rank, op.semaphore), 0) - op.amount
        return values, bits

    def observe(self, state: State) -> tuple[dict[tuple[int, SemaphoreKey], int], int]:
        """What each semaphore holds, and the bits of all events that have happened."""
        positions, delivered = state
        if positions not in self.known:
            self.known[positions] = self.progress(positions)
        values, bits = self.known[positions]
        values = dict(values)
        for stream, units in zip(self.streams, delivered, strict=True):
            if units:
                if stream.semaphore is not None:
                    slot = (stream.owner, stream.semaphore)
                    values[slot] = values.get(slot, 0) + units
                if units == stream.units:
                    bits |= self.bit[stream.end]
        return values, bits

    def successors(self, state: State) -> list[State]:
        positions, delivered = state
        values, happened = self.observe(state)
        missing = ~happened
        following: list[State] = []
        for rank, position in enumerate(positions):
            if position == len(self.traces[rank]):
                continue
            op = self.traces[rank][position]
            if isinstance(op, Wait) and values.get((rank, op.semaphore), 0) < op.amount:
                continue
            self.without[rank, position, "do"] |= missing
            following.append(((*positions[:rank], position + 1, *positions[rank + 1 :]), delivered))
        for index, stream in enumerate(self.streams):
            units = delivered[index]
            if positions[stream.rank] <= stream.position or units == stream.units:
                continue
            if units + 1 == stream.units:
                self.without[stream.end] |= missing
            following.append((positions, (*delivered[:index], units + 1, *delivered[index + 1 :])))
        return following

    def races(self) -> set[tuple[Point, Point]]:
        uses = [
            use for rank, trace in enumerate(self.traces) for p, op in enumerate(trace) for use in _uses(rank, p, op)
        ]
        found: set[tuple[Point, Point]] = set()
        for index, left in enumerate(uses):
            for right in uses[index + 1 :]:
                if left.memory != right.memory or left.thing != right.thing or not left.units & right.units:
                    continue
                if not (left.changes or right.changes) or left.end == right.begin or right.end == left.begin:
                    continue
                if self.without[right.begin] & self.bit[left.end] and self.without[left.begin] & self.bit[right.end]:
                    first, second = sorted((left.point, right.point))
                    found.add((first, second))
        return found


def _read_end(rank: int, position: int, op: Dma) -> Event:
    """A local copy with a single semaphore ends as a whole."""
    return (rank, position, "written" if op.rank == rank and op.sent is None else "read")


def _streams(rank: int, trace: list[Op]) -> list[_Stream]:
    streams = []
    for p, op in enumerate(trace):
        if not isinstance(op, Dma):
            continue
        ends = [(rank, op.sent, "read"), (op.rank, op.received, "written")]
        for owner, semaphore, name in ends:
            if name == "written" or _read_end(rank, p, op) == (rank, p, "read"):
                units = 1 if semaphore is None else op.amount
                end = (rank, p, name)
                stream = _Stream(rank=rank, position=p, owner=owner, semaphore=semaphore, units=units, end=end)
                streams.append(stream)
    return streams


def _uses(rank: int, position: int, op: Op) -> list[_Use]:
    do: Event = (rank, position, "do")

    def use(memory: int, block: Block, changes: bool, end: Event) -> _Use:
        thing, units = ("buffer", block.buffer), frozenset(range(block.start, block.stop))
        return _Use(point=(rank, position), memory=memory, thing=thing, units=units, changes=changes, begin=do, end=end)

    def count(memory: int, name: str, changes: bool, end: Event) -> _Use:
        thing, units = ("semaphore", name), frozenset([0])
        return _Use(point=(rank, position), memory=memory, thing=thing, units=units, changes=changes, begin=do, end=end)

    if isinstance(op, Compute):
        target = [] if op.target is None else [use(rank, op.target, True, do)]
        return [use(rank, block, False, do) for block in op.sources] + target
    if isinstance(op, Enter | Exit):
        semaphores = [count(rank, name, True, do) for name in op.semaphores if name != "barrier"]
        return [use(rank, block, True, do) for block in op.blocks] + semaphores
    if isinstance(op, Signal):
        return [count(op.rank, op.semaphore[0], False, do)] if op.semaphore[0] != "barrier" else []
    if isinstance(op, Dma):
        read, written = _read_end(rank, position, op), (rank, position, "written")
        uses = [use(rank, op.source, False, read), use(op.rank, op.target, True, written)]
        if op.sent is not None:
            uses.append(count(rank, op.sent[0], False, read))
        if op.received is not None:
            uses.append(count(op.rank, op.received[0], False, written))
        return uses
    return []
