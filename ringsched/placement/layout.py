"""Chips and a topology → the order of the devices that lays its links along theirs.

Each axis of the topology takes whole axes of the box of chips, so that different axes use different links; where that
does not come out, a factor of one. Within its share of the box an axis that closes (of a ring or torus) goes round a
closed walk, any other one along a snake. The cores of a chip count as one axis more; where they belong to a ring, the
ring passes them one after the other. The ways to share out the box are compared: by the longest hop, then by how many
hops meet on a link, then by the sum of hops.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringsched.placement.chips import Chips, Position
from ringsched.placement.rings import Place, around, comb, disjoint_rings, folded, grown, snake
from ringsched.topology import Topology

MOST_GROWN = 400  # devices that no box describes, through which a ring is grown
MOST_SPLIT = 256  # ranks for which axes are split


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What an axis of the topology has of an axis of the chips: every `stride`-th place, `side` of them."""

    axis: int
    side: int
    stride: int
    wraps: bool
    core: bool


def device_order(chips: Chips, topology: Topology) -> tuple[int, ...]:
    """The indices of the devices for each rank, in order; fewer ranks than devices take a part of the box.

    Where nothing fits, the devices are the first ones in the order given.
    """
    ranks = topology.ranks
    number = {position: index for index, position in enumerate(chips.positions)}
    best: tuple[_Cost, bool, tuple[int, ...]] | None = None
    for splits in (False, True) if ranks <= MOST_SPLIT else (False,):
        for extents in _boxes(chips, ranks):
            for order in _orders(chips, topology, extents, number, splits):
                cost = _cost(chips, topology, order)
                if best is None or (cost, splits, order) < best:
                    best = (cost, splits, order)
                if cost[:2] <= (1, 1):
                    return order
        if best is not None and best[0][0] == 1:
            break
    if best is not None:
        return best[2]
    if len(topology.sides) == 1 and ranks > 1 and len(number) <= MOST_GROWN:
        return _grown(chips, topology, number)
    return tuple(range(ranks))


def disjoint_order(chips: Chips, number: int) -> tuple[int, ...]:
    """The order of the first or second (`number` 1 or 2) of two rings of all devices that share no link.

    Raises ValueError where there are none.
    """
    axes = [axis for axis, extent in enumerate(chips.extents) if extent > 1]
    chips_wrap = chips.box and chips.extents[-1] == 1 and all(chips.wraps[axis] for axis in axes)
    rings = disjoint_rings([chips.extents[axis] for axis in axes]) if chips_wrap else None
    if rings is None:
        shape = " × ".join(map(str, chips.extents[:-1]))
        problem = (
            "with links that wrap around along no or not all axes" if not chips_wrap else "on which none were found"
        )
        raise ValueError(f"no two rings that share no link: {shape} chips, {problem}")
    places = {tuple(p[axis] for axis in axes): index for index, p in enumerate(chips.positions)}
    return tuple(places[place] for place in rings[number - 1])


def _boxes(chips: Chips, ranks: int) -> Iterator[tuple[int, ...]]:
    """The extents of boxes with so many places, all of them or a part from the first corner on."""
    if not chips.box:
        return
    for extents in itertools.product(*(range(1, extent + 1) for extent in chips.extents)):
        if math.prod(extents) == ranks:
            yield extents


def _orders(
    chips: Chips, topology: Topology, extents: tuple[int, ...], number: dict[Position, int], splits: bool
) -> Iterator[tuple[int, ...]]:
    """An order for each way to share out a box."""
    closes = topology.kind not in ("line", "mesh")
    known: dict[tuple[_Part, ...], list[Position]] = {}
    for shares in _shares(chips, extents, topology.sides, splits):
        walks = []
        for share in shares:
            if share not in known:
                known[share] = _walk(chips, share, closes)
            walks.append(known[share])
        yield tuple(number[tuple(map(sum, zip(*offsets, strict=True)))] for offsets in itertools.product(*walks))


def _shares(
    chips: Chips, extents: tuple[int, ...], sides: tuple[int, ...], split: bool
) -> Iterator[tuple[tuple[_Part, ...], ...]]:
    """All ways to give each side axes that multiply to it; `split`: factors of an axis can go to different sides."""
    cores = len(extents) - 1
    axes = [axis for axis, extent in enumerate(extents) if extent > 1]

    def part(axis: int, side: int, stride: int) -> _Part:
        whole = axis != cores and side == chips.extents[axis]
        return _Part(axis=axis, side=side, stride=stride, wraps=whole and chips.wraps[axis], core=axis == cores)

    def share(axes: Sequence[int], left: tuple[int, ...]) -> Iterator[tuple[tuple[_Part, ...], ...]]:
        if not axes:
            if set(left) == {1}:
                yield ((),) * len(left)
            return
        axis, extent = axes[0], extents[axes[0]]
        uses: list[tuple[tuple[int, int], ...]] = [((side, extent),) for side in range(len(left))]
        for inner in (n for n in range(2, extent) if split and extent % n == 0):
            uses += [((a, inner), (b, extent // inner)) for a, b in itertools.permutations(range(len(left)), 2)]
        for use in uses:
            rest, stride, parts = list(left), 1, []
            for side, factor in use:
                if rest[side] % factor:
                    break
                rest[side] //= factor
                parts.append((side, part(axis, factor, stride)))
                stride *= factor
            else:
                for found in share(axes[1:], tuple(rest)):
                    given = list(found)
                    for side, piece in parts:
                        given[side] = (piece, *given[side])
                    yield tuple(given)

    yield from share(axes, sides)


def _walk(chips: Chips, share: tuple[_Part, ...], closes: bool) -> list[Position]:
    """Offsets of the places of a share, in order: the best of several walks."""
    sides = [part.side for part in share]

    def offset(place: Place) -> Position:
        found = [0] * len(chips.extents)
        for part, c in zip(share, place, strict=True):
            found[part.axis] += c * part.stride
        return tuple(found)

    walks = [snake(sides)] if not closes or math.prod(sides) < 3 else list(_closed(share))
    if not walks:
        walks = [grown(snake(sides), lambda a, b: chips.distance(offset(a), offset(b)))]
    found = [[offset(place) for place in walk] for walk in walks]

    def cost(walk: list[Position]) -> tuple[int, int]:
        hops = [chips.distance(a, b) for a, b in zip(walk, walk[1:] + walk[:1], strict=True)]
        return max(hops), sum(hops)

    return min(found, key=cost) if closes else found[0]


def _closed(share: tuple[_Part, ...]) -> Iterator[list[Place]]:
    """Closed walks through a share of three places or more."""
    sides = [part.side for part in share]
    if len(share) == 1:
        yield around(sides[0])
        yield folded(sides[0])
        return
    core = next((at for at, part in enumerate(share) if part.core), None)
    if core is not None:  # a walk through the chips, both cores of each one after the other
        rest = (*share[:core], *share[core + 1 :])
        inner = _closed(rest) if math.prod(part.side for part in rest) > 2 else iter([snake([p.side for p in rest])])
        for walk in inner:
            yield [(*place[:core], c, *place[core:]) for place in walk for c in range(sides[core])]
    for axis, side in enumerate(sides):
        if side % 2 == 0:
            yield comb(sides, axis)


def _grown(chips: Chips, topology: Topology, number: dict[Position, int]) -> tuple[int, ...]:
    """A walk through scattered devices, or an odd number of them; through one more and past that one, if it helps."""
    ranks = topology.ranks
    best = None
    for many in (ranks, ranks + 1):
        start = _near(chips, many)
        if len(start) < many:
            continue
        walk = grown(start, chips.distance)[:ranks]
        order = tuple(number[place] for place in walk)
        cost = _cost(chips, topology, order)
        if best is None or cost < best[0]:
            best = (cost, order)
    assert best is not None
    return best[1]


def _near(chips: Chips, many: int) -> list[Position]:
    """So many devices around the first one, the nearest first."""
    first = chips.positions[0]
    return sorted(chips.positions, key=lambda p: (chips.distance(first, p), chips.positions.index(p)))[:many]


_Cost = tuple[int, int, int]


def _cost(chips: Chips, topology: Topology, order: tuple[int, ...]) -> _Cost:
    """The longest hop, how many meet on one link, and the sum of them."""
    longest = total = 0
    meeting: Counter[object] = Counter()
    for rank in range(topology.ranks):
        for other in topology.neighbours(rank):
            a, b = chips.positions[order[rank]], chips.positions[order[other]]
            hops = chips.distance(a, b)
            longest, total = max(longest, hops), total + hops
            meeting.update(chips.route(a, b))
    return longest, max(meeting.values(), default=0), total
