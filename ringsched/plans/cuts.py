"""Cuts of a network that hold a collective back most, found exactly by maximum flows.

`densest_side`: the set S of ranks that has most to send out for its links, max |S| / capacity out of S. It is what an
all-gather cannot beat, and what trees that are packed well reach (Zhao and others, "ForestColl: throughput-optimal
collective communications on heterogeneous network fabrics", 2024).

`weakest_partition`: the partition of the ranks into q groups with the least capacity between groups for q − 1, the
strength of the graph. Nash-Williams and Tutte: so many spanning trees, in fractions, can be packed into it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from ringsched.plans.network import Network

if TYPE_CHECKING:
    import networkx

MOST_RANKS = 100  # beyond it a flow for each rank takes too long; the cuts that are tried are then not all


def densest_side(network: Network, start: Sequence[int]) -> tuple[int, ...]:
    """The set with the largest |S| / capacity out of S; at least as good as `start`.

    Dinkelbach's iteration: as long as some set beats the ratio so far, take it. A set beats it that is the smaller
    side of a minimum cut between a source joined to all ranks and one rank that the set leaves out.
    """
    best = tuple(start)
    better = True
    while better:
        better = False
        ratio = Fraction(len(best)) / network.capacity_out(best)
        graph = _scaled(network, ratio)
        for rank in range(network.ranks):
            graph.add_edge("source", rank, capacity=_scale(network, ratio))
        for outside in network.different:  # where ranks are alike, a set can be moved so that it leaves out this one
            side = _source_side(graph, "source", outside)
            if side and len(side) > ratio * network.capacity_out(side):
                best, better = side, True
                break
    return best


def weakest_partition(network: Network) -> tuple[tuple[int, ...], ...]:
    """The partition with the least (capacity between its groups) / (groups − 1); a link counts in one direction.

    Dinkelbach's iteration again. For a ratio x the partition that minimises capacity − x · groups comes from the
    greedy algorithm for the intersecting submodular function cut(S) / 2 − x: ranks join one by one, each by one
    minimum cut that says how much of x it can bear, and groups that a tight set meets grow together (Cunningham,
    "Optimal attack and reinforcement of a network", Journal of the ACM 32, 1985).
    """
    best: tuple[tuple[int, ...], ...] = tuple((rank,) for rank in range(network.ranks))
    while True:
        ratio = _between(network, best) / (len(best) - 1)
        found = _tight_partition(network, ratio)
        if len(found) < 2 or _between(network, found) / (len(found) - 1) >= ratio:
            return best
        best = found


def _between(network: Network, partition: Sequence[Sequence[int]]) -> Fraction:
    return sum((network.capacity_out(group) for group in partition), Fraction(0)) / 2


def _tight_partition(network: Network, ratio: Fraction) -> tuple[tuple[int, ...], ...]:
    """Minimises Σ (cut(S) / 2 − ratio) over the groups S of a partition."""
    groups: list[set[int]] = []
    borne: list[Fraction] = []  # for each rank so far, how much of the sum is its own
    for newest in range(network.ranks):
        side, least = _least_set(network, ratio, borne, newest)
        borne.append(least)
        merged = {newest} | side
        met = [group for group in groups if group & merged]
        groups = [group for group in groups if not group & merged]
        groups.append(merged.union(*met))
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _least_set(network: Network, ratio: Fraction, borne: Sequence[Fraction], newest: int) -> tuple[set[int], Fraction]:
    """The set S of ranks up to `newest`, with it, of the least cut(S) / 2 − ratio − borne(S without it); and that."""
    import networkx

    scale = math.lcm(2, *(b.denominator for b in borne), *(b.denominator for b in network.bandwidths)) * 2
    graph = networkx.DiGraph()
    graph.add_node("sink")
    outwards = [Fraction(0)] * (newest + 1)
    for (a, b), bandwidth in zip(network.links, network.bandwidths, strict=True):
        if a <= newest and b <= newest:
            graph.add_edge(a, b, capacity=int(bandwidth * scale / 2))
        elif a <= newest:
            outwards[a] += bandwidth / 2
    graph.add_edge("source", newest)  # without a capacity: never cut
    base = Fraction(0)
    for rank, outward in enumerate(outwards):
        worth = (borne[rank] if rank < newest else Fraction(0)) - outward
        if worth > 0:  # what a set is better off with costs what it is worth where it is left out
            graph.add_edge("source", rank, capacity=int(worth * scale))
            base -= worth
        elif worth < 0:
            graph.add_edge(rank, "sink", capacity=int(-worth * scale))
    cut, (inside, _) = networkx.minimum_cut(graph, "source", "sink")
    return {rank for rank in inside if rank != "source"}, Fraction(int(cut), scale) + base - ratio


def _scale(network: Network, ratio: Fraction) -> int:
    return ratio.denominator * math.lcm(*(b.denominator for b in network.bandwidths))


def _scaled(network: Network, ratio: Fraction) -> networkx.DiGraph:
    """The links with integer capacities, `ratio` times their bandwidth in units of 1 / `_scale`."""
    import networkx

    graph = networkx.DiGraph()
    scale = _scale(network, ratio)
    for (a, b), bandwidth in zip(network.links, network.bandwidths, strict=True):
        graph.add_edge(a, b, capacity=int(bandwidth * ratio * scale))
    return graph


def _source_side(graph: networkx.DiGraph, source: object, sink: object) -> tuple[int, ...]:
    import networkx

    _, (side, _) = networkx.minimum_cut(graph, source, sink)
    return tuple(sorted(rank for rank in side if rank != source))


def connectivity(network: Network, root: int) -> tuple[Fraction, tuple[int, ...]]:
    """The least capacity that leads from `root` to any one rank, and the ranks on the root's side of that cut."""
    import networkx

    graph = _scaled(network, Fraction(1))
    scale = _scale(network, Fraction(1))
    found: list[tuple[int, tuple[int, ...]]] = []
    for rank in range(network.ranks):
        if rank != root:
            cut, (side, _) = networkx.minimum_cut(graph, root, rank)
            found.append((int(cut), tuple(sorted(side))))
    least, side = min(found, key=lambda f: f[0])
    return Fraction(least, scale), side
