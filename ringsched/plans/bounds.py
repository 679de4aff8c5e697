"""What no schedule for a collective on these links can beat, in units and in steps, with the reason in words.

Units are those of `plan`. Each bound is a cut or a count of link uses that holds whatever the schedule does:

all_gather          the shards of a set S of ranks have to leave it: the largest |S| / capacity out of S, by flows.
reduce_scatter      the same, backwards in time.
all_reduce          merge the ranks into q groups: each element needs 2 (q − 1) transfers between groups, for with one
                    fewer some group would lack what another has. So 2 P (q − 1) / capacity out of all groups, for all
                    partitions; with q = P all link uses are counted, with q = 2 it is a cut.
all_to_all          a chunk takes as many links as the ranks are apart: Σ distances / Σ bandwidths. And |S| · |rest|
                    chunks leave S, for the sets that are tried: balls round each rank, slabs of a mesh or torus.
broadcast, reduce   P / the least capacity from the root to any one rank (Edmonds: as many disjoint trees exist).

In steps: data needs a step for each hop; where, but for broadcast and reduce, a step takes one unit at most, it needs
as many as there are units, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, assert_never

from ringsched.plans.cuts import MOST_RANKS, connectivity, densest_side, weakest_partition
from ringsched.plans.network import Network
from ringsched.plans.plan import PlanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """`reason`: why no schedule takes fewer units. `hops`: no schedule without routes takes fewer steps.

    steps, steps_reason: of schedules in whose steps a link carries one unit at most, as synthesis makes them.
    """

    units: Fraction
    steps: int
    hops: int
    reason: str
    steps_reason: str


def bound_of(network: Network, kind: PlanKind, root: int = 0) -> Bound:
    """The best bound that is known for a connected network of two or more ranks."""
    match kind:
        case "all_gather" | "reduce_scatter":
            units, reason = _gathered(network, backwards=kind == "reduce_scatter")
        case "all_reduce":
            units, reason = _all_reduced(network)
        case "all_to_all":
            units, reason = _exchanged(network)
        case "broadcast" | "reduce":
            units, reason = _rooted(network, root, backwards=kind == "reduce")
        case _:
            assert_never(kind)
    rooted = kind in ("broadcast", "reduce")
    farthest = max(max(network.distances(rank)) for rank in ([root] if rooted else network.different))
    busy = 0 if rooted else math.ceil(units * min(network.bandwidths))
    if busy > farthest:
        steps_reason = f"{_number(units)} units, of which a step takes at most one"
    else:
        steps_reason = f"the farthest rank is {_count(farthest, 'hop')} {'from the root' if rooted else 'away'}"
    steps = max(busy, farthest)
    return Bound(units=units, steps=steps, hops=farthest, reason=reason, steps_reason=steps_reason)


# -- each collective ---------------------------------------------------------------------------------------------------


def _gathered(network: Network, *, backwards: bool) -> tuple[Fraction, str]:
    """All cuts, or beyond `MOST_RANKS` those round one rank and the slabs of a mesh."""
    poorest = min(network.different, key=lambda rank: (network.capacity_out([rank]), rank))
    start = _others(network, [poorest])
    if network.ranks <= MOST_RANKS:
        side = densest_side(network, start)
    else:
        sides = (_others(network, slab) for slab in _slabs(network))
        side = max([start, *sides], key=lambda side: Fraction(len(side)) / network.capacity_out(side))
    capacity = network.capacity_out(side)
    rest = _others(network, side)
    shards = _count(len(side), "shard")
    if len(rest) == 1 and backwards:
        reason = f"{_links_of(network, rest[0], 'out')} for its terms of {shards}"
    elif len(rest) == 1:
        reason = f"{_links_of(network, rest[0], 'in')} and needs {shards}"
    elif backwards:
        reason = f"{_leading(network, capacity)} to {_ranks(side)}, whose {shards} need terms from the others"
    else:
        reason = f"{_leading(network, capacity)} out of {_ranks(side)}, whose {shards} the others need"
    return len(side) / capacity, reason


def _all_reduced(network: Network) -> tuple[Fraction, str]:
    ranks = network.ranks
    finest = tuple((rank,) for rank in range(ranks))
    exact = 1 < len(network.different) <= MOST_RANKS  # where ranks are alike, no partition is weaker than the finest
    groups = weakest_partition(network) if exact else _least_of(network, finest)
    between = sum((network.capacity_out(group) for group in groups), Fraction(0))
    units = 2 * ranks * (len(groups) - 1) / between
    links = _capacity(network, between)
    if len(groups) == ranks:
        return units, f"each of the {ranks} units needs 2 · {ranks - 1} transfers, and there are {links}"
    if len(groups) == 2:
        return units, f"{ranks} units have to cross between {_ranks(groups[0])} and the rest, both ways, on {links}"
    count = len(groups)
    return units, f"each of the {ranks} units needs 2 · {count - 1} transfers between {count} groups, on {links}"


def _least_of(network: Network, finest: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """The weaker of the finest partition and those into a slab and the rest."""
    options = [finest, *((slab, _others(network, slab)) for slab in _slabs(network))]
    return min(options, key=lambda p: sum(network.capacity_out(group) for group in p) / (len(p) - 1))


def _exchanged(network: Network) -> tuple[Fraction, str]:
    hops = sum(sum(network.distances(rank)) for rank in network.different) * network.ranks // len(network.different)
    total = sum(network.bandwidths, Fraction(0))
    units = Fraction(hops) / total
    reason = f"the chunks have {hops} hops to go, and there are {_capacity(network, total)}"
    for side in _tried(network):
        capacity = network.capacity_out(side)
        crossing = len(side) * (network.ranks - len(side))
        if Fraction(crossing) / capacity > units:
            units = Fraction(crossing) / capacity
            reason = f"{crossing} chunks have to leave {_ranks(side)}, over {_capacity(network, capacity)}"
    return units, reason


def _rooted(network: Network, root: int, *, backwards: bool) -> tuple[Fraction, str]:
    if 1 < len(network.different) <= MOST_RANKS:
        capacity, side = connectivity(network, root)
    else:  # where ranks are alike, no cut is less than the links of one (Mader)
        sides = [(root,), *(_others(network, [rank]) for rank in range(network.ranks) if rank != root)]
        side = min(sides, key=network.capacity_out)
        capacity = network.capacity_out(side)
    rest = _others(network, side)
    units = network.ranks / capacity
    if len(side) == 1:
        return units, f"the root, {_links_of(network, root, 'in' if backwards else 'out', alone=True)}"
    if len(rest) == 1:
        return units, _links_of(network, rest[0], "out" if backwards else "in", alone=True)
    way = f"{_leading(network, capacity)} {'to' if backwards else 'out of'}"
    return units, f"{way} {_ranks(side)}, the root among them"


# -- sets of ranks -----------------------------------------------------------------------------------------------------


def _others(network: Network, ranks: Iterable[int]) -> tuple[int, ...]:
    inside = set(ranks)
    return tuple(rank for rank in range(network.ranks) if rank not in inside)


def _slabs(network: Network) -> Iterator[tuple[int, ...]]:
    """On a mesh, torus, line or ring: the ranks up to a coordinate along one axis."""
    topology = network.topology
    if topology.kind == "links":
        return
    for axis, side in enumerate(topology.sides):
        for stop in range(1, side):
            yield tuple(rank for rank in range(network.ranks) if topology.at(rank)[axis] < stop)


def _tried(network: Network) -> Iterator[tuple[int, ...]]:
    """Slabs, and the ranks nearest to each rank, as many as there may be."""
    yield from _slabs(network)
    if network.ranks > MOST_RANKS:
        return
    for start in range(network.ranks):
        hops = network.distances(start)
        order = sorted(range(network.ranks), key=lambda rank: (hops[rank], rank))
        for size in range(1, network.ranks // 2 + 1):
            yield tuple(sorted(order[:size]))


# -- words -------------------------------------------------------------------------------------------------------------


def _links_of(network: Network, rank: int, way: Literal["in", "out"], *, alone: bool = False) -> str:
    """`each corner has 2 links in`, or each rank, or this one; alone: this one in any case."""
    count = len(network.out[rank])
    topology = network.topology
    at_end = all(c in (0, side - 1) for c, side in zip(topology.at(rank), topology.sides, strict=True))
    if alone:
        who = f"rank {rank}"
    elif network.uniform and all(len(links) == count for links in network.out):
        who = "each rank"
    elif topology.kind in ("mesh", "line") and at_end:
        who = "each corner" if len(topology.sides) > 1 else "each end"
    else:
        who = f"rank {rank}"
    capacity = network.capacity_out([rank])
    links = _count(count, "link") if capacity == count else f"links of bandwidth {_number(capacity)}"
    return f"{who} has {links} {way}"


def _leading(network: Network, capacity: Fraction) -> str:
    words = _capacity(network, capacity)
    return f"{words} {'leads' if words == '1 link' else 'lead'}"


def _capacity(network: Network, capacity: Fraction) -> str:
    if all(bandwidth == 1 for bandwidth in network.bandwidths):
        return _count(int(capacity), "link")
    return f"links of bandwidth {_number(capacity)} in all"


def _ranks(ranks: Sequence[int]) -> str:
    """`the 3 ranks 0, 1, 4`, some of them where there are many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:6])) + (", …" if len(ranks) > 6 else "")
    return f"the {len(ranks)} ranks {shown}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _number(value: Fraction) -> str:
    return f"{float(value):.4g}"
