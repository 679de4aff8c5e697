"""The machine of a trace: where ranks lie, one concrete run of it, and who feeds which semaphore.

    Execution, calls  →  Machine: order of one run, its waits, the units that each semaphore receives

The trace is repeated `calls` times on the same memory and semaphores; a *position* counts instructions through all
calls. Every semaphore is taken from by one rank only, in its program order, so every execution runs into the same
waits: one run decides which instructions are ever executed, and the clocks need to look at no others.

A *thread* is a rank whose instructions are kept: every rank, or rank 0 alone in a symmetric execution, where it stands
for all. Ranks are always named as seen by the owner of the memory or semaphore in question: by their number, or, in a
symmetric execution, by their displacement from the owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt

from ringsched.program.trace import Compute, Dma, Enter, Execution, Exit, Op, SemaphoreKey, Signal, Wait

Array = npt.NDArray[Any]
Slot = tuple[int, SemaphoreKey]  # the thread that owns the semaphore, and which one

# What a unit on a semaphore tells: the signal itself, or a DMA's end of reading or of writing.
SIGNAL, READ_DONE, WRITE_DONE = 0, 1, 2


class Geometry:
    """Translates between the ranks' points of view; trivial where every rank has its own trace."""

    def __init__(self, execution: Execution) -> None:
        self.sides = execution.sides
        self.symmetric = execution.symmetric
        self.ranks = execution.ranks
        self.threads = 1 if execution.symmetric else len(execution.traces)
        self._difference: dict[tuple[int, int], int] = {}
        self.permutation = lru_cache(maxsize=256)(self._permutation)

    def delivery(self, thread: int, rank: int) -> tuple[int, int]:
        """An instruction of `thread` that names `rank` acts on this thread's memory, coming from that rank."""
        return (0, self.difference(0, rank)) if self.symmetric else (rank, thread)

    def rank(self, thread: int) -> int:
        """The rank that executes `thread`, as it sees itself."""
        return 0 if self.symmetric else thread

    def thread(self, rank: int) -> int:
        """The thread whose trace `rank` executes."""
        return 0 if self.symmetric else rank

    def entry(self, rank: int, seen_from: int) -> int:
        """Where a clock of rank `seen_from` keeps its entry for `rank`."""
        return self.difference(rank, seen_from) if self.symmetric else rank

    def difference(self, left: int, right: int) -> int:
        """left − right, coordinate by coordinate, each modulo its side."""
        if len(self.sides) == 1:
            return (left - right) % self.ranks
        known = self._difference.get((left, right))
        if known is None:
            known, scale, a, b = 0, 1, left, right
            for side in reversed(self.sides):
                known += (a - b) % side * scale
                a, b, scale = a // side, b // side, scale * side
            self._difference[left, right] = known
        return known

    def view(self, row: Array, rank: int) -> Array:
        """A clock of `rank`, its entries rearranged to the owner's point of view (a fresh array)."""
        return row.take(self.permutation(rank)) if self.symmetric else row.copy()

    def _permutation(self, rank: int) -> Array:
        """The owner's entry for rank f is entry f − `rank` of the other's clock."""
        shifts = []
        for side in reversed(self.sides):
            shifts.append(rank % side)
            rank //= side
        indices = np.arange(self.ranks).reshape(self.sides)
        return np.roll(indices, tuple(reversed(shifts)), tuple(range(len(self.sides)))).reshape(-1)


class Increment(NamedTuple):
    """Units that an instruction adds to a semaphore of `owner` (a thread), which sees them come from rank `source`."""

    owner: int
    key: SemaphoreKey
    source: int
    units: int
    tells: int


@dataclass(frozen=True, slots=True)
class WaitEvent:
    """An executed wait. `need` is what all waits on its semaphore up to this one have taken together."""

    thread: int
    position: int
    slot: Slot
    need: int


@dataclass(frozen=True, slots=True)
class Feed:
    """All units that one semaphore ever receives, grouped by the rank that causes them, each group in program order.

    `units[k]` units come from the instruction at `position[k]` of rank `source[k]` and tell `tells[k]`; `upto[k]`
    counts the units of the group up to and including these. `row[k]`: the last wait before the instruction (see
    `Clocks`). `group[k]` numbers the groups, `starts` holds their first indices.
    """

    source: Array
    position: Array
    units: Array
    upto: Array
    tells: Array
    row: Array
    group: Array
    starts: Array


class Machine:
    """One run in lockstep, each DMA ending as soon as it starts, and what the clocks need to know about it."""

    def __init__(self, execution: Execution, calls: int) -> None:
        self.execution = execution
        self.calls = calls
        self.geometry = Geometry(execution)
        self.traces = execution.traces[: self.geometry.threads]
        self.order: list[tuple[int, int]] = []  # (thread, position) as executed
        self.increments = [[tuple(self._increments_of(t, op)) for op in trace] for t, trace in enumerate(self.traces)]
        self.executed = [0] * len(self.traces)
        self.held: dict[Slot, int] = {}  # units on each semaphore, in the end
        self.waits: list[WaitEvent] = []  # as executed; clock row k + 1 belongs to waits[k], row 0 to "no wait yet"
        self.last_row: list[list[int]] = [[] for _ in self.traces]  # of each position: row of the last wait before it
        self._run()
        self.feeds = self._collect_feeds()

    def op(self, thread: int, position: int) -> Op:
        trace = self.traces[thread]
        return trace[position % len(trace)]

    def _increments_of(self, thread: int, op: Op) -> Iterator[Increment]:
        match op:
            case Dma():
                if op.sent is not None:
                    yield Increment(thread, op.sent, self.geometry.rank(thread), op.amount, READ_DONE)
                if op.received is not None:
                    owner, source = self.geometry.delivery(thread, op.rank)
                    yield Increment(owner, op.received, source, op.amount, WRITE_DONE)
            case Signal():
                owner, source = self.geometry.delivery(thread, op.rank)
                yield Increment(owner, op.semaphore, source, op.amount, SIGNAL)
            case Wait() | Compute() | Enter() | Exit():
                return
            case _:
                assert_never(op)

    def _run(self) -> None:
        """Each round executes one instruction of every thread that is not stuck in a wait."""
        asleep: dict[int, Wait] = {}
        taken: dict[Slot, int] = {}
        row = [0] * len(self.traces)
        ready = [thread for thread, trace in enumerate(self.traces) if trace and self.calls > 0]
        while ready:
            following: list[int] = []
            for thread in ready:
                position = self.executed[thread]
                trace = self.traces[thread]
                op = trace[position % len(trace)]
                self.last_row[thread].append(row[thread])
                if isinstance(op, Wait) and op.amount > 0:
                    if not self._take(thread, op, taken):
                        self.last_row[thread].pop()
                        asleep[thread] = op
                        continue
                    row[thread] = len(self.waits)
                self.order.append((thread, position))
                self.executed[thread] = position + 1
                if position + 1 < len(trace) * self.calls:
                    following.append(thread)
                for owner, key, _, units, _ in self.increments[thread][position % len(trace)]:
                    self.held[owner, key] = held = self.held.get((owner, key), 0) + units
                    sleeper = asleep.get(owner)
                    if sleeper and sleeper.semaphore == key and held >= sleeper.amount:
                        del asleep[owner]
                        following.append(owner)
            ready = following

    def _take(self, thread: int, wait: Wait, taken: dict[Slot, int]) -> bool:
        """Executes the wait that `thread` has come to, if it can return."""
        slot = (thread, wait.semaphore)
        held = self.held.get(slot, 0)
        if held < wait.amount:
            return False
        self.held[slot] = held - wait.amount
        taken[slot] = taken.get(slot, 0) + wait.amount
        self.waits.append(WaitEvent(thread, self.executed[thread], slot, taken[slot]))
        return True

    def _collect_feeds(self) -> dict[Slot, Feed]:
        rows: dict[Slot, list[tuple[int, int, int, int, int]]] = {}
        for thread, position in self.order:
            for owner, key, source, units, tells in self.increments[thread][position % len(self.traces[thread])]:
                if units > 0:
                    last = self.last_row[thread][position]
                    rows.setdefault((owner, key), []).append((source, position, units, tells, last))
        return {slot: _feed(units) for slot, units in rows.items()}


def _feed(units: list[tuple[int, int, int, int, int]]) -> Feed:
    units.sort(key=lambda unit: unit[:2])
    table = np.array(units, dtype=np.int64)
    source, amount = table[:, 0], table[:, 2]
    starts = np.flatnonzero(np.concatenate(([True], source[1:] != source[:-1])))
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(units))))
    total = np.cumsum(amount)
    upto = total - (total - amount)[starts][group]
    return Feed(source, table[:, 1], amount, upto, table[:, 3], table[:, 4], group, starts)
