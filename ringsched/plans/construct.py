"""Schedules made for a ring or torus: the same at every rank up to translation, every link busy in every step.

They are written for one root. `spread` lists, step by step, which displacement from the root is reached along which
direction: each displacement once, from one that was reached before. Done for all roots at once that is an all-gather,
in which every link carries one chunk in each step but the last. The chunks that are left for the last step go in parts
over all directions, where they can, so that the links carry the same. Backwards in time it is a reduce-scatter.

`exchange` routes a chunk for each displacement along a shortest path; one direction carries one chunk in each step.
That is an all-to-all.

Bounds: a rank with D links needs (P - 1) / D shards over each of them; a k-ary torus has p·k/8 chunks of an all-to-all
on its busiest link, for even k (W. Dally, B. Towles, Principles and Practices of Interconnection Networks, ch. 3).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

Place = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A chunk that has come `start` far from its root goes on in `direction`; `parts` of it, first and behind last.

    `target`: where it is to end, from the root on. All are displacements, each coordinate modulo its side.
    """

    direction: int
    start: Place
    target: Place
    parts: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """`steps`: the moves of each step, by direction."""

    directions: tuple[Place, ...]
    steps: tuple[tuple[Move, ...], ...]


def directions(sides: Sequence[int]) -> tuple[Place, ...]:
    """The displacements that are one link long. Along a side of 2 both ways are the same link."""
    found: list[Place] = []
    for axis, side in enumerate(sides):
        for hop in (1, -1)[: min(side - 1, 2)]:
            found.append(tuple(hop if i == axis else 0 for i in range(len(sides))))
    return tuple(found)


def moved(place: Place, hop: Place, sides: Sequence[int]) -> Place:
    return tuple((a + b) % side for a, b, side in zip(place, hop, sides, strict=True))


@lru_cache(maxsize=16)
def spread(sides: tuple[int, ...], parts: int) -> Construction:
    """One chunk, in `parts` parts, from a root to all others; see the module.

    The farthest displacements come first: they keep the choice large for the steps to come.
    """
    ways = directions(sides)
    back = [tuple(-by for by in way) for way in ways]
    reached = {(0,) * len(sides)}
    open_: list[list[tuple[int, Place]]] = [[] for _ in ways]  # heaps: what each direction can reach, farthest first

    def reach(place: Place) -> None:
        reached.add(place)
        for k, way in enumerate(ways):
            target = moved(place, way, sides)
            if target not in reached:
                heapq.heappush(open_[k], (-_distance(target, sides), target))

    reach((0,) * len(sides))
    steps: list[tuple[Move, ...]] = []
    while math.prod(sides) - len(reached) >= max(len(ways), 1):
        chosen = _matching([_best(heap, reached, len(ways)) for heap in open_])
        if not chosen:
            break
        steps.append(
            tuple(
                Move(direction=k, start=moved(target, back[k], sides), target=target, parts=(0, parts))
                for target, k in sorted(chosen.items(), key=lambda item: item[1])
            )
        )
        for target in chosen:
            reach(target)
    while len(reached) < math.prod(sides):
        rest = [p for p in itertools.product(*map(range, sides)) if p not in reached]
        step = _shared(rest, reached, ways, sides, parts)
        steps.append(step)
        for move in step:
            reached.add(move.target)
    return Construction(directions=ways, steps=tuple(steps))


def _distance(place: Place, sides: Sequence[int]) -> int:
    return sum(min(a, side - a) for a, side in zip(place, sides, strict=True))


def _best(heap: list[tuple[int, Place]], reached: set[Place], count: int) -> list[Place]:
    """The first `count` entries that are not reached yet; they stay in the heap."""
    found: list[tuple[int, Place]] = []
    while heap and len(found) < count:
        item = heapq.heappop(heap)
        if item[1] not in reached and item not in found:
            found.append(item)
    for item in found:
        heapq.heappush(heap, item)
    return [place for _, place in found]


def _matching(candidates: Sequence[Sequence[Place]]) -> dict[Place, int]:
    """A largest matching of directions to places, by augmenting paths; the first candidates are preferred."""
    owner: dict[Place, int] = {}

    def give(k: int, tried: set[Place]) -> bool:
        for place in candidates[k]:
            if place not in tried:
                tried.add(place)
                if place not in owner or give(owner[place], tried):
                    owner[place] = k
                    return True
        return False

    for k in range(len(candidates)):
        give(k, set())
    return owner


def _shared(
    rest: list[Place], reached: set[Place], ways: tuple[Place, ...], sides: Sequence[int], parts: int
) -> tuple[Move, ...]:
    """One step that brings `rest`, as much of it as can be, in parts over all directions, evenly."""
    enter = {
        place: [k for k, way in enumerate(ways) if moved(place, tuple(-by for by in way), sides) in reached]
        for place in rest
    }
    ready = [place for place in rest if enter[place]]
    capacity = -(-len(ready) * parts // len(ways))
    while True:
        # as many seats in each direction as its share: a matching of parts to seats
        seats_of = {place: [(k, seat) for seat in range(capacity) for k in enter[place]] for place in ready}
        wanted = [seats_of[place] for place in ready for _ in range(parts)]
        seats = _matching(wanted)
        if len(seats) == len(wanted):
            break
        capacity += 1
    load: dict[Place, list[int]] = {place: [0] * len(ways) for place in ready}
    for (k, _), number in seats.items():
        load[ready[number // parts]][k] += 1
    moves = []
    for place in ready:
        first = 0
        for k, count in enumerate(load[place]):
            if count:
                start = moved(place, tuple(-by for by in ways[k]), sides)
                moves.append(Move(direction=k, start=start, target=place, parts=(first, first + count)))
                first += count
    return tuple(sorted(moves, key=lambda move: (move.direction, move.target)))


def backwards(construction: Construction) -> Construction:
    """Every move the other way, in the opposite order: from all to one. `start` stays the end away from the root."""
    sides_back = tuple(tuple(-by for by in way) for way in construction.directions)
    number = {way: k for k, way in enumerate(construction.directions)}
    opposite = [number.get(way, k) for k, way in enumerate(sides_back)]  # along a side of 2: the same link
    steps = []
    for step in reversed(construction.steps):
        turned = [replace(m, direction=opposite[m.direction], start=m.target, target=m.start) for m in step]
        steps.append(tuple(sorted(turned, key=lambda move: (move.direction, move.start))))
    return Construction(directions=construction.directions, steps=tuple(steps))


@lru_cache(maxsize=16)
def exchange(sides: tuple[int, ...], parts: int) -> Construction:
    """A chunk for each displacement, in `parts` parts that travel on their own, along shortest paths; see the module.

    Where both ways round are as long, the parts and chunks take turns. In each step every direction takes the chunk
    with the farthest way to go among those that want it, by a largest matching.
    """
    ways = directions(sides)
    number = {way: k for k, way in enumerate(ways)}
    jobs = _jobs(sides, parts, number)
    steps: list[tuple[Move, ...]] = []
    while any(job.left for job in jobs):
        waiting: list[list[tuple[int, ...]]] = [[] for _ in ways]
        order = sorted((j for j in range(len(jobs)) if jobs[j].left), key=lambda j: (-sum(jobs[j].left.values()), j))
        for j in order:
            for k in jobs[j].left:
                if len(waiting[k]) < len(ways):
                    waiting[k].append((j,))
        chosen = _matching(waiting)
        moves = []
        for (j,), k in sorted(chosen.items(), key=lambda item: item[1]):
            job = jobs[j]
            part = (job.part, job.part + 1)
            moves.append(Move(direction=k, start=job.at, target=job.target, parts=part))
            job.go(k, moved(job.at, ways[k], sides))
        steps.append(tuple(moves))
    return Construction(directions=ways, steps=tuple(steps))


@dataclass(slots=True)
class _Job:
    """A part of a chunk on its way: `left[k]`, hops still to be made in direction k."""

    target: Place
    part: int
    at: Place
    left: dict[int, int]

    def go(self, k: int, place: Place) -> None:
        self.at = place
        self.left[k] -= 1
        if not self.left[k]:
            del self.left[k]


def _jobs(sides: tuple[int, ...], parts: int, number: dict[Place, int]) -> list[_Job]:
    turns = [0] * len(sides)  # of each axis, for ways that are as long both ways round
    jobs = []
    for target in itertools.product(*map(range, sides)):
        for part in range(parts):
            left: dict[int, int] = {}
            for axis, (distance, side) in enumerate(zip(target, sides, strict=True)):
                if not distance:
                    continue
                ahead = 2 * distance < side
                if 2 * distance == side:
                    ahead = turns[axis] % 2 == 0 or side == 2
                    turns[axis] += 1
                hop = tuple((1 if ahead else -1) if i == axis else 0 for i in range(len(sides)))
                left[number[hop]] = distance if ahead else side - distance
            if left:
                jobs.append(_Job(target=target, part=part, at=(0,) * len(sides), left=left))
    return jobs
