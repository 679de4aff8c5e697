"""The K-th smallest clock on a semaphore that a few ranks feed for a long time, wait after wait.

The clocks that come from one rank grow with its program order in every entry, so the K smallest are, for each entry, a
first part of each rank's units. Where that part ends changes little from wait to wait: `Merge` remembers it, goes on
from there, and puts right what has changed since. So a wait costs a few looks at a row, not all units once more.
"""

from __future__ import annotations

import math

import numpy as np

from ringsched.verify.machine import Array, Feed, Geometry

FEW_RANKS = 8
MANY_UNITS = 96  # below, a plain selection is as fast


class Merge:
    """Answers for growing K; `restart` before K shrinks. `rows` may change between any two questions.

    The last row of `rows` must be the top, row 0 the bottom: they stand in before the first and behind the last unit.
    """

    def __init__(self, feed: Feed, geometry: Geometry, rows: Array) -> None:
        self.rows = rows
        self.step = math.gcd(*feed.units.tolist())  # units that always come together count as one
        bottom, top = rows[0, 0], rows[-1, 0]
        self.sources = feed.source[feed.starts].tolist()
        self.chains = []
        for group, source in enumerate(self.sources):
            mine = feed.group == group
            times = feed.units[mine] // self.step
            row = np.concatenate(([0], np.repeat(feed.row[mine], times), [len(rows) - 1]))
            position = np.concatenate(([bottom], np.repeat(feed.position[mine], times), [top]))
            columns = geometry.permutation(source) if geometry.symmetric else np.arange(geometry.ranks)
            self.chains.append((row, position, columns))
        self.restart()

    def restart(self) -> None:
        self.need = 0
        self.taken = np.zeros((len(self.chains), self.rows.shape[1]), np.int64)  # how many of each rank, by entry

    def smallest(self, need: int) -> Array:
        """The need-th smallest clock, entry by entry."""
        columns = np.arange(self.rows.shape[1])
        need = -(-need // self.step)
        while self.need < need:
            self.taken[np.argmin(self._clocks(1), axis=0), columns] += 1
            self.need += 1
        while True:
            last, following = self._clocks(0), self._clocks(1)
            out, into = np.argmax(last, axis=0), np.argmin(following, axis=0)
            greatest: Array = last[out, columns]
            wrong = np.flatnonzero(greatest > following[into, columns])
            if not len(wrong):
                return greatest
            # Each exchange takes a smaller clock for a greater one, so this ends.
            self.taken[out[wrong], wrong] -= 1
            self.taken[into[wrong], wrong] += 1

    def _clocks(self, ahead: int) -> Array:
        """For each rank, the clock of the last unit taken (0) or of the one behind it (1)."""
        clocks = np.empty(self.taken.shape, self.rows.dtype)
        for line, (source, (row, position, columns)) in enumerate(zip(self.sources, self.chains, strict=True)):
            index = self.taken[line] + ahead
            clocks[line] = self.rows[row[index], columns]
            clocks[line, source] = position[index[source]]
        return clocks


def worthwhile(feed: Feed) -> bool:
    """Whether `Merge` beats looking at all units: few ranks (one needs no merge), many units, of much the same size."""
    size, step = len(feed.units), math.gcd(*feed.units.tolist())
    return 1 < len(feed.starts) <= FEW_RANKS and size >= MANY_UNITS and int(feed.units.sum()) <= 4 * size * step
