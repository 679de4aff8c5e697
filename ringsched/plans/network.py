"""A Topology as its directed links: what the bounds count and the searches fill.

Every link carries data both ways, so it is two directed links. A link of twice the bandwidth of the narrowest one
carries two chunks in a step (`widths`). Units of bandwidth: chunks a unit of time, 1 where the topology says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ringsched.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """`links[k]` is (sender, receiver), in order; `into[r]` and `out[r]` are the numbers of the links of rank r."""

    topology: Topology
    links: tuple[tuple[int, int], ...]
    bandwidths: tuple[Fraction, ...]
    into: tuple[tuple[int, ...], ...]
    out: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        return self.topology.ranks

    @property
    def uniform(self) -> bool:
        return len(set(self.bandwidths)) == 1

    @property
    def different(self) -> range:
        """Ranks that stand for all: one where all ranks are alike, as on a ring or torus of equal links."""
        return range(1 if self.uniform and self.topology.wraps else self.ranks)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many chunks each link carries in one step."""
        least = min(self.bandwidths)
        return tuple(int(bandwidth / least) for bandwidth in self.bandwidths)

    def number(self) -> dict[tuple[int, int], int]:
        """The number of each link."""
        return {link: number for number, link in enumerate(self.links)}

    def distances(self, start: int) -> list[int]:
        """Hops from `start` to every rank."""
        hops = [-1] * self.ranks
        hops[start] = 0
        waiting = [start]
        for rank in waiting:
            for link in self.out[rank]:
                other = self.links[link][1]
                if hops[other] < 0:
                    hops[other] = hops[rank] + 1
                    waiting.append(other)
        return hops

    def capacity_out(self, ranks: Sequence[int]) -> Fraction:
        """The bandwidth of all links out of a set of ranks."""
        inside = set(ranks)
        leaving = (k for r in sorted(inside) for k in self.out[r] if self.links[k][1] not in inside)
        return sum((self.bandwidths[k] for k in leaving), Fraction(0))


def network_of(topology: Topology) -> Network:
    """The network of a connected topology; bandwidths are the attribute `bandwidth` of its graph's edges."""
    graph = topology.graph()
    bandwidth = {}
    for a, b, given in graph.edges(data="bandwidth", default=1):
        bandwidth[a, b] = bandwidth[b, a] = Fraction(given).limit_denominator(1000)
    links = tuple(sorted(bandwidth))
    into: list[list[int]] = [[] for _ in range(topology.ranks)]
    out: list[list[int]] = [[] for _ in range(topology.ranks)]
    for number, (a, b) in enumerate(links):
        out[a].append(number)
        into[b].append(number)
    return Network(
        topology=topology,
        links=links,
        bandwidths=tuple(bandwidth[link] for link in links),
        into=tuple(map(tuple, into)),
        out=tuple(map(tuple, out)),
    )
