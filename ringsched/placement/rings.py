"""Closed walks through a box of places, and pairs of them that share no link."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random

Place = tuple[int, ...]
Distance = Callable[[Place, Place], int]

MOST_STAIRS = 2000  # that are tried


def snake(sides: Sequence[int]) -> list[Place]:
    """All places of a box, each next to the one before: back and forth along the last axis."""
    if not sides:
        return [()]
    inner = snake(sides[1:])
    return [(c, *rest) for c in range(sides[0]) for rest in (inner if c % 2 == 0 else inner[::-1])]


def comb(sides: Sequence[int], axis: int) -> list[Place]:
    """A closed walk along the links of a box: up along an even axis at one end of a snake, down back and forth over it.

    The other axes must have two places at least.
    """
    line = snake([side for other, side in enumerate(sides) if other != axis])
    rows = range(sides[axis])
    walk = [(row, line[0]) for row in rows]
    for row in reversed(rows):
        columns = line[1:] if row % 2 else line[:0:-1]
        walk += [(row, place) for place in columns]
    return [(*place[:axis], row, *place[axis:]) for row, place in walk]


def folded(side: int) -> list[Place]:
    """A closed walk along an axis that ends: out over every other place, and back over the rest. No hop exceeds two."""
    return [(c,) for c in (*range(0, side, 2), *reversed(range(1, side, 2)))]


def around(side: int) -> list[Place]:
    """A closed walk along an axis that wraps around."""
    return [(c,) for c in range(side)]


def grown(places: Sequence[Place], distance: Distance) -> list[Place]:
    """A closed walk through all places, along links as far as that goes.

    It grows as a bubble: a hop a-b becomes a-c-d-b, or a-c-b. What no bubble reaches is put in where it costs least.
    """
    near = {a: {b for b in places if distance(a, b) == 1} for a in places}
    walk, free = [places[0]], set(places[1:])
    while free:
        detours = [
            (at, detour) for at, a in enumerate(walk) for detour in _detours(near, free, a, walk[(at + 1) % len(walk)])
        ]
        if detours:
            # Places with few free neighbours first: later, no bubble might reach them any more.
            at, detour = min(detours, key=lambda d: (-len(d[1]), sum(len(near[c] & free) for c in d[1]), d))
        else:
            at, detour = min(
                ((at, (c,)) for at in range(len(walk)) for c in free), key=lambda d: _cost(walk, d, distance)
            )
        walk[at + 1 : at + 1] = detour
        free -= set(detour)
    return walk


def _detours(near: dict[Place, set[Place]], free: set[Place], a: Place, b: Place) -> Iterator[tuple[Place, ...]]:
    for c in near[a] & free:
        if b == a or c in near[b]:
            yield (c,)
        yield from ((c, d) for d in near[c] & near[b] & free)


def _cost(walk: list[Place], detour: tuple[int, tuple[Place, ...]], distance: Distance) -> tuple[int, int, object]:
    at, (c,) = detour
    a, b = walk[at], walk[(at + 1) % len(walk)]
    return max(distance(a, c), distance(c, b)), distance(a, c) + distance(c, b) - distance(a, b), detour


def disjoint_rings(sides: Sequence[int]) -> tuple[list[Place], list[Place]] | None:
    """Two closed walks through a torus of two or three axes that share no link; None where this finds none.

    Rows and columns are two sets of rings that share no link. In a square of four places, the links along the row and
    those along the column change owners: two rows become one ring, and two columns. A square between each two columns
    makes these one ring; the rows that the squares are at are varied, beginning with a staircase, until all rows are
    one ring as well. That is never so where an even number of rows meets a larger, odd number of columns. Each
    place needs four links, so a side of 2 has no such rings. Of three axes, the last two first become one ring.
    """
    if len(sides) == 3:
        inner = disjoint_rings(sides[1:])
        outer = inner and disjoint_rings((sides[0], len(inner[0])))
        if inner is None or outer is None:
            return None
        first, second = ([(a, *inner[0][b]) for a, b in ring] for ring in outer)
        return first, second
    if len(sides) != 2 or min(sides) < 3 or (min(sides) % 2 == 0 and max(sides) % 2):
        return None
    if sides[0] > sides[1]:
        turned = disjoint_rings(sides[::-1])
        return turned and ([(a, b) for b, a in turned[0]], [(a, b) for b, a in turned[1]])
    rows, columns = sides
    random = Random(0)  # the same walks each time
    stairs = [column % rows for column in range(columns - 1)]
    rings = _rings(rows, columns, stairs, 1)
    for _ in range(MOST_STAIRS):
        if len(rings) == 1:
            return rings[0], _rings(rows, columns, stairs, 0)[0]
        other = list(stairs)
        other[int(random.random() * len(other))] = int(random.random() * rows)
        if all(a != b for a, b in itertools.pairwise(other)):  # squares side by side would share a link
            changed = _rings(rows, columns, other, 1)
            if len(changed) <= len(rings):
                stairs, rings = other, changed
    return None


def _rings(rows: int, columns: int, stairs: Sequence[int], along: int) -> list[list[Place]]:
    """The rings that began as columns (`along` 0) or rows (1), after the squares at `stairs` have changed."""
    squares = frozenset((row, column) for column, row in enumerate(stairs))
    free: dict[Place, None] = dict.fromkeys(itertools.product(range(rows), range(columns)))
    rings: list[list[Place]] = []
    while free:
        ring: list[Place] = [next(iter(free))]
        while True:
            del free[ring[-1]]
            one, other = _beside(ring[-1], rows, columns, squares, along)
            there = other if len(ring) > 1 and one == ring[-2] else one
            if there == ring[0]:
                break
            ring.append(there)
        rings.append(ring)
    return rings


def _beside(place: Place, rows: int, columns: int, squares: frozenset[Place], along: int) -> list[Place]:
    """The two neighbours of a place in its ring."""
    found: list[Place] = []
    for axis, step in itertools.product((0, 1), (1, -1)):
        there = list(place)
        there[axis] += step
        corner = [min(a, b) for a, b in zip(place, there, strict=True)]  # of the square behind the link, and before it
        behind = (corner[0] % rows, corner[1] % columns)
        corner[1 - axis] -= 1
        changed = behind in squares or (corner[0] % rows, corner[1] % columns) in squares
        if (axis == along) != changed:
            found.append((there[0] % rows, there[1] % columns))
    return found
