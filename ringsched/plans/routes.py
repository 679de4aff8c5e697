"""all_to_all over paths that share the links evenly, then each hop as soon as its link is free.

Paths start as the shortest ones over the links used least; then each is taken out and put back where the sum of the
loads' powers grows least, until nothing changes. On ties chance decides, so both ways round a ring and all orders of
the axes of a mesh come into use. Where shortest paths are not enough, longer ones are allowed. Hops with a long way to
go are made first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

from ringsched.plans.lists import schedule
from ringsched.plans.network import Network
from ringsched.plans.plan import Move, Plan, dims_of, tidy

STEEP = 8  # the power of a load: high, so that the busiest links count most
ROUNDS = 6  # in which every path is tried again
PASSES = 2  # of the list scheduling, each way
Path = tuple[int, ...]  # the numbers of its links


def all_to_all(network: Network, parts: int, seed: int, *, tries: int, bound: Fraction, detour: int = 0) -> Plan:
    """The best of `tries`, the first that reaches the bound ends them; parts of a chunk may go different ways.

    detour: by how many hops a path may be longer than the shortest.
    """
    best: Plan | None = None
    for attempt in range(tries):
        rng = random.Random(f"{seed} {attempt}")
        paths = balanced(network, parts, rng, detour, bound)
        for width in sorted({parts, 1}):  # that many parts over a link in a step, or steps of one part
            plan = _scheduled(network, parts, paths, width)
            if best is None or plan.cost < best.cost:
                best = plan
        if best is not None and best.units <= bound:
            break
    assert best is not None
    return best


def balanced(
    network: Network, parts: int, rng: random.Random, detour: int, bound: Fraction
) -> dict[tuple[int, int, int], Path]:
    """A path for each (sender, receiver, part); no better ones are looked for once the loads are at the bound."""
    ranks = range(network.ranks)
    hops = [network.distances(rank) for rank in ranks]
    flows = [(i, j, part) for part in range(parts) for i in ranks for j in ranks if i != j]
    keys = {flow: rng.random() for flow in flows}
    flows.sort(key=lambda flow: (-hops[flow[0]][flow[1]], keys[flow]))  # long ones first: short ones fill what is left
    loads = _Loads(network)
    paths: dict[tuple[int, int, int], Path] = {}
    for _ in range(ROUNDS):
        changed = False
        for flow in flows:
            old = paths.get(flow, ())
            loads.add(old, -1)
            new = _cheapest(network, flow[0], flow[1], hops, loads.prices, rng, detour)
            if old and loads.price(old) < loads.price(new):
                new = old
            loads.add(new, 1)
            changed = changed or new != old
            paths[flow] = new
        if not changed or loads.busiest() <= bound * parts:
            break
    return paths


class _Loads:
    """How many chunks each link carries, and how much the sum of the loads' powers grows with one more (`prices`)."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.widths = [float(bandwidth) for bandwidth in network.bandwidths]
        self.loads = [0] * len(network.links)
        self.prices = [width**-STEEP for width in self.widths]

    def add(self, path: Path, count: int) -> None:
        for link in path:
            self.loads[link] += count
            load, width = self.loads[link], self.widths[link]
            self.prices[link] = ((load + 1) / width) ** STEEP - (load / width) ** STEEP

    def price(self, path: Path) -> float:
        return sum(self.prices[link] for link in path)

    def busiest(self) -> Fraction:
        return max(load / bandwidth for load, bandwidth in zip(self.loads, self.network.bandwidths, strict=True))


def _cheapest(
    network: Network,
    start: int,
    end: int,
    hops: Sequence[Sequence[int]],
    prices: Sequence[float],
    rng: random.Random,
    detour: int,
) -> Path:
    """The path of least price that is at most `detour` hops longer than the shortest; of equal ones the shorter."""
    reached: dict[int, tuple[float, Path]] = {start: (0.0, ())}
    best: tuple[float, Path] | None = None
    for left in range(hops[start][end] + detour - 1, -1, -1):
        after: dict[int, tuple[float, float, Path]] = {}
        for rank, (price, path) in reached.items():
            for link in network.out[rank]:
                other = network.links[link][1]
                if hops[other][end] <= left:
                    offer = (price + prices[link], rng.random(), (*path, link))
                    if other not in after or offer < after[other]:
                        after[other] = offer
        reached = {rank: (price, path) for rank, (price, _, path) in after.items()}
        found = reached.pop(end, None)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    assert best is not None
    return best[1]


def _scheduled(network: Network, parts: int, paths: dict[tuple[int, int, int], Path], width: int) -> Plan:
    moves: list[Move] = []
    links: list[int] = []
    needs: list[tuple[int, ...]] = []
    for (i, j, part), path in sorted(paths.items()):
        for number, link in enumerate(path):
            needs.append((len(moves) - 1,) if number else ())
            links.append(link)
            chunk = (i, j) if parts == 1 else (i, j, part)
            moves.append(Move(*network.links[link], chunk))
    when = schedule(links, needs, [width * w for w in network.widths], PASSES)
    steps: list[list[Move]] = [[] for _ in range(max(when, default=-1) + 1)]
    for move, step in zip(moves, when, strict=True):
        steps[step].append(move)
    return Plan(
        network=network,
        kind="all_to_all",
        dims=dims_of("all_to_all", network.ranks, parts),
        size=Fraction(1, parts),
        steps=tidy(steps),
        how="paths that share the links evenly",
    )
