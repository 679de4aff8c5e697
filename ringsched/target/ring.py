"""The order of a topology's devices in which neighbouring ranks are one link apart."""

import itertools
import math
from collections.abc import Sequence

Position = tuple[int, ...]  # coordinates of the chip, then the core on it


def device_order(positions: Sequence[Position], sides: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the indices of the devices of a ring or line (one side) or a mesh or torus, row-major.

    Several sides are laid along axes of the devices' grid, as close to its extents as they go, so that links that wrap
    around can be used. Where they do not fit, the devices are the first ones in the order given.
    """
    if len(sides) == 1:
        return ring_order(positions, sides[0])
    extents = [1 + max(column) for column in zip(*positions, strict=True)]
    number = {position: index for index, position in enumerate(positions)}
    fitting = [
        axes
        for axes in itertools.permutations(range(len(extents)), len(sides))
        if all(side <= extents[axis] for side, axis in zip(sides, axes, strict=True))
    ]
    if not fitting:
        return tuple(range(math.prod(sides)))
    best = min(fitting, key=lambda axes: (sum(extents[axis] for axis in axes), axes))
    order = []
    for place in itertools.product(*map(range, sides)):
        position = [0] * len(extents)
        for axis, coordinate in zip(best, place, strict=True):
            position[axis] = coordinate
        order.append(number[tuple(position)])
    return tuple(order)


def ring_order(positions: Sequence[Position], ranks: int) -> tuple[int, ...]:
    """Returns the indices of `ranks` devices that form a cycle of links and hold the first device.

    Where there is none (an odd number of chips on a grid), only the hop from the last to the first is longer than
    a link; where there is not even that, they are the first ones in the order given. Wrap-around links are not used.
    """
    given = tuple(range(ranks))
    if ranks < 2:
        return given
    cycle = _grow(positions, ranks) or _grow(positions, ranks + 1)
    return tuple(cycle[:ranks]) if cycle else given


def linked(a: Position, b: Position) -> bool:
    """Returns whether one link joins two positions: chips side by side, or the two cores of one chip."""
    hops = sum(abs(i - j) for i, j in zip(a[:-1], b[:-1], strict=True))
    return hops == 1 or (hops == 0 and a[-1] != b[-1])


def _grow(positions: Sequence[Position], ranks: int) -> list[int] | None:
    """Grows a cycle from one link, as a bubble: a hop a-b becomes a-c-d-b, or a-c-b, until it has `ranks` devices."""
    near = [{j for j, b in enumerate(positions) if linked(a, b)} for a in positions]
    free = set(range(1, len(positions)))
    cycle = [0]
    while len(cycle) < ranks:
        detours = [
            (at, detour)
            for at, a in enumerate(cycle)
            for detour in _detours(near, free, a, cycle[(at + 1) % len(cycle)], ranks - len(cycle))
        ]
        if not detours:
            return None
        # Devices with few free neighbours first: later, no bubble might reach them any more.
        at, detour = min(detours, key=lambda d: (-len(d[1]), sum(len(near[c] & free) for c in d[1]), d))
        cycle[at + 1 : at + 1] = detour
        free -= set(detour)
    return cycle


def _detours(near: Sequence[set[int]], free: set[int], a: int, b: int, room: int) -> list[tuple[int] | tuple[int, int]]:
    short: list[tuple[int] | tuple[int, int]] = [(c,) for c in near[a] & near[b] & free]
    if room < 2:
        return short
    return short + [(c, d) for c in near[a] & free for d in near[c] & near[b] & free]
