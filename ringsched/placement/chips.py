"""Devices by their positions: which chips are linked, how far apart two are, and which links lie on the way.

A position is the chip's coordinates, then the core on it, as a device's `coords` and `core_on_chip` say. The two cores
of a chip that are devices of their own reach each other without a link, and share the chip's.

What wraps around is taken from documentation, and where that is silent nothing does:
- v4, v5p, TPU7x: all axes of a slice of whole cubes, every side a multiple of 4. "All 4x4x4 and larger slices (one
  cube) have full 3D torus connectivity. Slices smaller than a full cube … don't have wrap-around links" (Cloud TPU,
  v5p).
- v5e, v6e: axes of 16, which is the side of a pod of 256 chips, a 2-D torus (Cloud TPU, v5e and v6e).
A twisted variant of a slice (k × k × 2k, k × 2k × 2k) cannot be told by its coordinates; slices are taken to be plain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Position = tuple[int, ...]
Chip = tuple[int, ...]

CUBE = 4  # the side of a cube of chips
POD = 16  # the side of a pod of v5e or v6e
_OF_CUBES = ("TPU v4", "TPU v5", "TPU v5p", "TPU7x")
_OF_PODS = ("TPU v5 lite", "TPU v5e", "TPU v6 lite", "TPU v6e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """Devices in the order in which they were given; their coordinates count from 0.

    extents: of the smallest box around all positions, cores included; `box`: there is one device at each of its places.
    wraps: whether there are links from the end of an axis to its start.
    """

    positions: tuple[Position, ...]
    extents: tuple[int, ...]
    box: bool
    wraps: tuple[bool, ...]

    def distance(self, a: Position, b: Position) -> int:
        """Hops from one to the other: links on the shortest way, or 1 between the cores of a chip."""
        hops = sum(abs(step) for step in self._steps(a, b))
        return hops or int(a != b)

    def route(self, a: Position, b: Position) -> tuple[tuple[Chip, Chip], ...]:
        """The links on the way, axis by axis, as (from, to); none between the cores of a chip.

        Which of several shortest ways a message takes is not documented; the order of the axes is an assumption.
        """
        links = []
        here = a[:-1]
        for axis, steps in enumerate(self._steps(a, b)):
            for _ in range(abs(steps)):
                there = (here[axis] + (1 if steps > 0 else -1)) % self.extents[axis]
                links.append((here, (*here[:axis], there, *here[axis + 1 :])))
                here = links[-1][1]
        return tuple(links)

    def _steps(self, a: Position, b: Position) -> list[int]:
        """Along each axis, the shorter way round."""
        steps = []
        for here, there, side, wraps in zip(a[:-1], b[:-1], self.extents[:-1], self.wraps, strict=True):
            step = there - here
            if wraps and abs(step) * 2 > side:
                step -= side if step > 0 else -side
            steps.append(step)
        return steps


def chips_of(positions: Sequence[Position], kind: str) -> Chips:
    """The devices of a slice. `kind`: the device kind, as JAX says it."""
    least = [min(column) for column in zip(*positions, strict=True)]
    moved = tuple(tuple(c - low for c, low in zip(p, least, strict=True)) for p in positions)
    extents = tuple(1 + max(column) for column in zip(*moved, strict=True))
    box = math.prod(extents) == len(set(moved)) == len(moved)
    whole = box and not any(least)  # else it is not known to be a whole slice
    wraps = wrapping(kind, extents[:-1]) if whole else (False,) * (len(extents) - 1)
    return Chips(positions=moved, extents=extents, box=box, wraps=wraps)


def wrapping(kind: str, sides: Sequence[int]) -> tuple[bool, ...]:
    """Which axes of a whole slice have links that wrap around."""
    if kind in _OF_CUBES:
        return (len(sides) == 3 and all(side % CUBE == 0 for side in sides),) * len(sides)
    return tuple(kind in _OF_PODS and side == POD for side in sides)
