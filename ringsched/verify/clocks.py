"""What has surely happened before what, on every interleaving: vector clocks over ranks.

The rule of docs/proofs.md, exactly. An event x is guaranteed to precede an event e iff e does not happen
in the run in which x is held up for ever; that run is unique, because each semaphore is taken from by one rank only. A
wait that needs K units (all that its semaphore has been asked for so far) does not happen in it iff the instruction
before it does not, or fewer than K units arrive. Per rank, what is held up further down holds up less, so one number
a rank says it all:

    clock(wait) = entry by entry, the larger of clock(previous instruction)
                  and the K-th smallest among the clocks of all units on the semaphore, their own events included

This is solved for the *greatest* solution, downwards from "everything precedes everything". (The least one is safe
too, but misses what holds in a circle: where three devices signal each other and wait for two signals, call by call, no
two signals of one device can stand in for those of two, because it had to pass its own wait between them.)

The end of a DMA has a single consequence: units on one semaphore, hence on the waits of one rank. So its *first wait*
says it all: the first one that lacks a unit without it, which is the first whose units, those that are known to come
after it left aside, are no more than K.
"""

from __future__ import annotations

import numpy as np

from ringsched.verify.machine import Array, Feed, Machine, Slot, WaitEvent
from ringsched.verify.merge import Merge, worthwhile

NEVER = 1 << 30


class Clocks:
    """`rows[k]`: for every rank, the last position that is guaranteed to be over once wait k − 1 has returned.

    Row 0 is the bottom, the start of the kernel; the row behind the last wait is the top.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.geometry = machine.geometry
        longest = max(machine.executed, default=0)
        dtype = np.int16 if longest < np.iinfo(np.int16).max else np.int32
        # Rows not yet computed are the top of the lattice: they hold up nothing that could do with less.
        self.rows: Array = np.full((len(machine.waits) + 2, machine.geometry.ranks), np.iinfo(dtype).max, dtype)
        self.rows[0] = -1
        self.merges = {
            slot: Merge(feed, self.geometry, self.rows) for slot, feed in machine.feeds.items() if worthwhile(feed)
        }
        self._solve()
        self.first_wait = self._first_waits()

    def precedes(self, of: int, at: int, rank: int, position: int) -> bool:
        """Whether instruction `at` of rank `of` is surely over before instruction `position` of `rank` begins."""
        if of == rank:
            return at < position
        row = self.machine.last_row[self.geometry.thread(rank)][position]
        return bool(self.rows[row, self.geometry.entry(of, rank)] >= at)

    def _solve(self) -> None:
        """Sweeps over the waits in the order of the run until nothing changes; the second one mostly finds nothing."""
        waits = self.machine.waits
        plans = [self._plan(wait) for wait in waits]
        previous = [self.machine.last_row[wait.thread][wait.position] for wait in waits]
        changed = np.zeros(len(waits) + 1, np.int64)  # the tick of each row's last change
        computed = [-1] * len(waits)
        tick, stable = 0, False
        while not stable:
            stable = True
            for merge in self.merges.values():
                merge.restart()
            for index, (wait, plan, before) in enumerate(zip(waits, plans, previous, strict=True)):
                tick += 1
                if computed[index] >= 0:
                    latest = changed[plan[1]] if isinstance(plan, tuple) else changed[plan.row].max()
                    if computed[index] > max(latest, changed[before]):
                        continue
                row = self._single(*plan) if isinstance(plan, tuple) else self._several(plan, wait)
                np.maximum(row, self.rows[before], out=row)
                row[wait.thread] = wait.position
                if computed[index] < 0 or not np.array_equal(row, self.rows[index + 1]):
                    self.rows[index + 1] = row
                    changed[index + 1] = tick
                    stable = False
                computed[index] = tick

    def _plan(self, wait: WaitEvent) -> tuple[int, int, int] | Feed:
        """Units from one rank come in its program order: the K-th is known beforehand (its rank, row, position)."""
        feed = self.machine.feeds[wait.slot]
        if len(feed.starts) > 1:
            return feed
        index = int(np.searchsorted(feed.upto, wait.need))
        return int(feed.source[0]), int(feed.row[index]), int(feed.position[index])

    def _single(self, source: int, row: int, position: int) -> Array:
        clock = self.geometry.view(self.rows[row], source)
        clock[source] = position
        return clock

    def _several(self, feed: Feed, wait: WaitEvent) -> Array:
        """The K-th smallest clock, entry by entry, among units from several ranks.

        A unit with K units before it on its own rank cannot be it. Nor can one that has more units behind it there
        than are to spare: it is among the smaller ones whatever the others are.
        """
        if wait.slot in self.merges:
            return self.merges[wait.slot].smallest(wait.need)
        need = wait.need
        early = feed.upto - feed.units < need
        reached = np.maximum.reduceat(np.where(early, feed.upto, 0), feed.starts)
        spare = int(reached.sum()) - need
        low = early & (feed.upto < reached[feed.group] - spare)
        chosen = np.flatnonzero(early & ~low)
        need -= int(feed.units[low].sum())
        units = feed.units[chosen]
        if self.geometry.symmetric:
            clocks = np.empty((len(chosen), self.geometry.ranks), self.rows.dtype)
            for line, index in enumerate(chosen.tolist()):
                clocks[line] = self.geometry.view(self.rows[feed.row[index]], int(feed.source[index]))
        else:
            clocks = self.rows[feed.row[chosen]]
        clocks[np.arange(len(chosen)), feed.source[chosen]] = feed.position[chosen]
        return _weighted_smallest(clocks, units, need)

    def _first_waits(self) -> dict[tuple[int, int, int], int]:
        """(thread, position, what it tells) → position of the first wait of the semaphore's owner that needs it."""
        waits: dict[Slot, list[WaitEvent]] = {}
        for wait in self.machine.waits:
            waits.setdefault(wait.slot, []).append(wait)
        found: dict[tuple[int, int, int], int] = {}
        for slot, feed in self.machine.feeds.items():
            first = self._first_waits_of(feed, waits.get(slot, []))
            threads = [self.geometry.thread(source) for source in feed.source.tolist()]
            for key in zip(threads, feed.position.tolist(), feed.tells.tolist(), first.tolist(), strict=True):
                found[key[:3]] = key[3]
        return found

    def _first_waits_of(self, feed: Feed, waits: list[WaitEvent]) -> Array:
        """For each unit of `feed`, the first of `waits` (in program order) that cannot do without any one unit."""
        if not waits:
            return np.full(len(feed.source), NEVER)
        owner = self.geometry.rank(waits[0].thread)
        entries = np.array([self.geometry.entry(owner, source) for source in feed.source[feed.starts].tolist()])
        # A unit counts from the first wait on that it does not come after.
        known = self.rows[feed.row, entries[feed.group]]
        counts_from = np.searchsorted([wait.position for wait in waits], known, side="right")
        counted = np.cumsum(np.bincount(counts_from, weights=feed.units, minlength=len(waits))[: len(waits)])
        tight = counted == [wait.need for wait in waits]
        position = np.where(tight, [wait.position for wait in waits], NEVER)
        from_here_on = np.append(np.minimum.accumulate(position[::-1])[::-1], NEVER)
        first: Array = from_here_on[counts_from]
        return first


def _weighted_smallest(clocks: Array, units: Array, need: int) -> Array:
    """Column by column, the smallest value that `need` units (`units[k]` of them on line k) do not exceed."""
    total = int(units.sum())
    if need == total:
        greatest: Array = clocks.max(axis=0)
        return greatest
    if total == len(units):
        smallest: Array = np.partition(clocks, need - 1, axis=0)[need - 1]
        return smallest
    order = np.argsort(clocks, axis=0, kind="stable")
    enough = np.cumsum(units[order], axis=0) >= need
    line = np.take_along_axis(order, np.argmax(enough, axis=0)[None], axis=0)
    found: Array = np.take_along_axis(clocks, line, axis=0)[0]
    return found
