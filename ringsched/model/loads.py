"""FlatSchedule → Loads: what each step sends over each link, and what that adds up to.

The unit is one rank's shard over one plain link:

    all_gather, permute, gather     the operand of a rank        reduce_scatter, scatter   the result of a rank
    all_to_all                      what one rank has for another
    all_reduce, broadcast, reduce   1 / ranks of the operand, which has no owners     none: likewise

A link carries both directions at once, so each is a link of its own here: (sender, receiver). A step takes as long as
its busiest link: the chunks on it, over its bandwidth. `units` is the sum of that over the steps, so it counts them
as if they were kept apart by barriers, as the bounds in the literature do. A schedule that is the same at every rank is
looked at from rank 0 only, whatever the number of ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ringsched.collectives import OWNED, Promise
from ringsched.diagnostics import DiagnosticError
from ringsched.expr import NotAffine
from ringsched.schedule.flat import FlatSchedule
from ringsched.topology import Topology
from ringsched.verify.dataflow_symmetric import Symmetric
from ringsched.verify.resolve import Move, Resolver

Hop = tuple[int, int]  # from a rank to a neighbour: one direction of a link


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """`steps[k]`: the chunks that step k sends over each link, without the idle ones.

    symmetric: only hops of rank 0 are listed; every rank makes the same ones. `chunk`: the units of one chunk.
    """

    topology: Topology
    symmetric: bool
    chunk: Fraction
    steps: tuple[dict[Hop, int], ...]

    def time(self, hop: Hop, chunks: int) -> Fraction:
        """How long the chunks take over the link, in units."""
        return chunks * self.chunk / self.topology.speed(*hop).bandwidth

    def busiest(self, step: int) -> tuple[Hop | None, Fraction]:
        """The link that the step waits for, the first of several, and how long; none where nothing is sent."""
        times = {hop: self.time(hop, chunks) for hop, chunks in self.steps[step].items()}
        if not times:
            return None, Fraction(0)
        hop = min(times, key=lambda hop: (-times[hop], hop))
        return hop, times[hop]

    @property
    def sending(self) -> tuple[int, ...]:
        """The steps in which something is sent."""
        return tuple(number for number, counts in enumerate(self.steps) if counts)

    @property
    def units(self) -> Fraction:
        """The busiest link of each step, added up."""
        return sum((self.busiest(step)[1] for step in range(len(self.steps))), Fraction(0))

    @property
    def latency(self) -> int:
        """The slowest link of each step, added up: the number of steps that send, where all links are plain."""
        speed = self.topology.speed
        return sum(max((speed(*hop).latency for hop in step), default=0) for step in self.steps)

    def everywhere(self, counts: dict[Hop, int]) -> dict[Hop, int]:
        """`counts`, such as one of `steps`, with the hops of all ranks listed."""
        if not self.symmetric:
            return dict(counts)
        found = {}
        topology = self.topology
        for (_, to), chunks in counts.items():
            offset = topology.at(to)
            for rank in range(topology.ranks):
                receiver = topology.rank(tuple(a + b for a, b in zip(topology.at(rank), offset, strict=True)))
                assert receiver is not None  # a symmetric schedule is on a ring or torus
                found[rank, receiver] = chunks
        return found

    def totals(self) -> dict[Hop, int]:
        """The chunks that each link carries in all steps together, those that stay idle included, in order."""
        sums: Counter[Hop] = Counter()
        for step in self.steps:
            sums.update(step)
        carried = self.everywhere(sums)
        return {hop: carried.get(hop, 0) for hop in hops(self.topology)}

    def directions(self) -> dict[str, tuple[Fraction, Fraction]]:
        """For each direction (`x + 1`, on explicit links `0 → 1`) the mean and the largest total of a link, in units.

        A link that two directions share (a side of 2) is counted in the first.
        """
        groups: dict[str, list[int]] = {}
        for hop, chunks in self.totals().items():
            groups.setdefault(direction(self.topology, hop), []).append(chunks)
        return {
            name: (sum(counts) * self.chunk / len(counts), max(counts) * self.chunk)
            for name, counts in sorted(groups.items(), key=lambda item: _order(item[0]))
        }


def hops(topology: Topology) -> Iterator[Hop]:
    """Both directions of every link, in order."""
    for rank in range(topology.ranks):
        for other in topology.neighbours(rank):
            yield rank, other


def direction(topology: Topology, hop: Hop) -> str:
    """`r + 1`, `x - 1`, …; on explicit links the hop itself."""
    axis = topology.axis(*hop)
    if axis is None:
        return f"{hop[0]} → {hop[1]}"
    place = topology.at(hop[0])
    onward = topology.rank((*place[:axis], place[axis] + 1, *place[axis + 1 :]))
    return f"{topology.coordinates[axis]} {'+' if onward == hop[1] else '-'} 1"


def _order(name: str) -> tuple[str, int, int, str]:
    """Axes in order, + before −; explicit links by number."""
    first, sign, last = name.split()
    return ("", int(first), int(last), "") if sign == "→" else (first, 0, 0, sign)


def shard_chunks(promise: Promise) -> Fraction:
    """How many chunks make up one unit."""
    total = math.prod(promise.dims)
    if OWNED[promise.kind]:
        return Fraction(math.prod(promise.parts))
    return Fraction(total, promise.topology.ranks)


def moves_of(flat: FlatSchedule) -> tuple[bool, list[list[Move]]]:
    """The moves of each step, and whether they are rank 0's only, which then stand for those of all.

    Raises DiagnosticError (RS2xx) for a statement that makes no transfer.
    """
    try:
        if flat.flips:  # what goes up from one rank goes down from another
            raise NotAffine("links differ")
        mode = Symmetric(flat)
        return True, [[carried.move for carried in mode.step(number)] for number in range(len(flat.steps))]
    except NotAffine:
        pass
    resolver = Resolver(flat)
    moves = [list(resolver.step(number)) for number in range(len(flat.steps))]
    if resolver.diagnostics:
        raise DiagnosticError(resolver.diagnostics)
    return False, moves


def loads_of(flat: FlatSchedule) -> Loads:
    """The loads of a schedule. Raises DiagnosticError (RS2xx) for a statement that makes no transfer.

    Where ranks are alike up to a flip of bits, or transfers are routed (halfway round a ring the way depends on the
    rank), rank 0 does not stand for the links of all, and those of every rank are counted.
    """
    topology = flat.topology
    symmetric, moves = moves_of(flat)
    turned = symmetric and (flat.flips or topology.routed)
    steps = []
    for step in moves:
        sent: Counter[Hop] = Counter()
        for move in step:
            sent[move.sender, move.receiver] += len(move.chunks)
        if turned:
            ranks = range(topology.ranks)
            sent = Counter({(q, _onward(flat, q, to)): many for (_, to), many in sent.items() for q in ranks})
        counts: Counter[Hop] = Counter()
        for pair, chunks in sent.items():
            for hop in topology.route(*pair) if topology.routed else (pair,):
                counts[hop] += chunks
        steps.append(dict(counts))
    chunk = 1 / shard_chunks(flat.promise)
    return Loads(topology=topology, symmetric=symmetric and not turned, chunk=chunk, steps=tuple(steps))


def _onward(flat: FlatSchedule, rank: int, offset: int) -> int:
    """The rank that is to `rank` what `offset` is to rank 0."""
    at = flat.topology.at
    ways = zip(at(rank), at(offset), flat.topology.sides, strict=True)
    receiver = flat.topology.rank(tuple(flat.onward(index, by, side) for index, by, side in ways))
    assert receiver is not None  # within the sides
    return receiver
