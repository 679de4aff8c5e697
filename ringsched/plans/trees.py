"""all_reduce over spanning trees that together use every link alike, many chunks in flight at once.

A chunk is summed towards the root of its tree and then spread from there, so each link of the tree carries it once in
each direction, and a network on which 8 trees with 5 of them over each link can be found takes 5/8 of the operand's
units. How many there are is what the bound says (Nash-Williams, Tutte). Ranks with few links, the corners of a mesh,
are leaves of most trees.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from heapq import heappop, heappush

from ringsched.plans.lists import schedule
from ringsched.plans.network import Network
from ringsched.plans.plan import Move, Plan, dims_of, tidy

Tree = tuple[int, ...]  # the parent of each rank; the root's is itself
_Edge = tuple[int, int]
EXCHANGES = 2_000
REACHES = (2.0, 1.0, 4.0)  # of one attempt after the other; found by trial on meshes, as are the next two
LAG = 1.0  # steps by which a chunk is behind the one before
PASSES = 3  # of the list scheduling, each way


def pack(network: Network, count: int, rng: random.Random, reach: float) -> list[frozenset[_Edge]]:
    """`count` spanning trees, as sets of links (lower rank first), with small loads on the busiest links.

    One after the other: each grows from a middle rank over links that are used little and do not lead far out, of
    which a higher `reach` counts less. Then exchanges: a link of the busiest gives way to the least busy one that
    joins the two halves of its tree and is not busier after it than the other was.
    """
    bandwidths = {link: b for link, b in zip(network.links, network.bandwidths, strict=True) if link[0] < link[1]}
    loads = dict.fromkeys(bandwidths, Fraction(0))
    farthest = [max(network.distances(rank)) for rank in range(network.ranks)]
    middle = [rank for rank, hops in enumerate(farthest) if hops == min(farthest)]
    trees = []
    for _ in range(count):
        tree = _grown(network, middle[int(rng.random() * len(middle))], loads, reach, rng)
        for edge in sorted(tree):
            loads[edge] += 1 / bandwidths[edge]
        trees.append(tree)
    least = Fraction(count * (network.ranks - 1)) / sum(bandwidths.values())
    coarsest = 1 / min(bandwidths.values())  # loads come in such steps
    for _ in range(EXCHANGES):
        busiest = max(loads.values())
        if busiest < least + coarsest:
            break
        worst = [edge for edge in loads if loads[edge] == busiest]
        edge = worst[int(rng.random() * len(worst))]
        users = [number for number, tree in enumerate(trees) if edge in tree]
        number = users[int(rng.random() * len(users))]
        instead = _exchange(network.ranks, trees[number], edge, loads, bandwidths, rng)
        if instead is not None:
            trees[number] = trees[number] - {edge} | {instead}
            loads[edge] -= 1 / bandwidths[edge]
            loads[instead] += 1 / bandwidths[instead]
    return trees


def _grown(
    network: Network, root: int, loads: dict[_Edge, Fraction], reach: float, rng: random.Random
) -> frozenset[_Edge]:
    """Prim's algorithm, with the depth that a link leads to and its load, weighed by `reach`, for its length."""
    depth = {root: 0}
    chosen = set()
    waiting: list[tuple[float, float, int, int]] = []
    newest = root
    while len(depth) < network.ranks:
        for link in network.out[newest]:
            other = network.links[link][1]
            length = depth[newest] + 1 + reach * float(loads[_edge(newest, other)])
            heappush(waiting, (length, rng.random(), newest, other))
        while waiting[0][3] in depth:
            heappop(waiting)
        _, _, above, newest = heappop(waiting)
        depth[newest] = depth[above] + 1
        chosen.add(_edge(above, newest))
    return frozenset(chosen)


def _edge(a: int, b: int) -> _Edge:
    return (a, b) if a < b else (b, a)


def _exchange(
    ranks: int,
    tree: frozenset[_Edge],
    edge: _Edge,
    loads: dict[_Edge, Fraction],
    bandwidths: dict[_Edge, Fraction],
    rng: random.Random,
) -> _Edge | None:
    """The link to take in place of `edge`: the least busy that joins what is left, if it is not busier after it."""
    side = _side(ranks, tree - {edge}, edge[0])
    across = [e for e in loads if e != edge and side[e[0]] != side[e[1]]]
    after = {e: loads[e] + 1 / bandwidths[e] for e in across}
    fitting = [e for e in across if after[e] <= loads[edge]]
    return min(fitting, key=lambda e: (after[e], rng.random())) if fitting else None


def _side(ranks: int, edges: frozenset[_Edge], start: int) -> list[bool]:
    near = _neighbours(ranks, edges)
    reached = [False] * ranks
    reached[start] = True
    waiting = [start]
    for rank in waiting:
        for other in near[rank]:
            if not reached[other]:
                reached[other] = True
                waiting.append(other)
    return reached


def _neighbours(ranks: int, edges: frozenset[_Edge]) -> list[list[int]]:
    near: list[list[int]] = [[] for _ in range(ranks)]
    for a, b in sorted(edges):
        near[a].append(b)
        near[b].append(a)
    return near


def rooted(ranks: int, edges: frozenset[_Edge]) -> Tree:
    """The tree with its root in the middle of its longest path, the lower rank of two."""
    near = _neighbours(ranks, edges)
    degree = [len(n) for n in near]
    left, leaves = ranks, [rank for rank in range(ranks) if degree[rank] <= 1]
    while left > 2:
        left -= len(leaves)
        inner = []
        for leaf in leaves:
            for other in near[leaf]:
                degree[other] -= 1
                if degree[other] == 1:
                    inner.append(other)
        leaves = inner
    root = min(leaves)
    parent = [-1] * ranks
    parent[root] = root
    waiting = [root]
    for rank in waiting:
        for other in near[rank]:
            if parent[other] < 0:
                parent[other] = rank
                waiting.append(other)
    return tuple(parent)


def all_reduce(network: Network, chunks: int, seed: int, *, tries: int) -> Plan:
    """The best of `tries` packings of `chunks` trees, each chunk as soon as its links are free."""
    best: Plan | None = None
    for attempt in range(tries):
        rng = random.Random(f"{seed} {attempt}")
        trees = [rooted(network.ranks, edges) for edges in pack(network, chunks, rng, REACHES[attempt % len(REACHES)])]
        plan = _scheduled(network, trees)
        if best is None or plan.cost < best.cost:
            best = plan
    assert best is not None
    return best


def _scheduled(network: Network, trees: Sequence[Tree]) -> Plan:
    """Up the trees and down again, each transfer as soon as its link is free; where several wait, early chunks first.

    Without a lag between chunks all of them would be half done at half time, and links that only lead away from the
    middle would have been idle until then.
    """
    numbers = network.number()
    moves: list[Move] = []
    needs: list[tuple[int, ...]] = []
    for chunk, parent in enumerate(trees):
        up: dict[int, int] = {}
        down: dict[int, int] = {}
        order = _outwards(parent)
        children: dict[int, list[int]] = {rank: [] for rank in order}
        for rank in order[1:]:
            children[parent[rank]].append(rank)
        for rank in reversed(order[1:]):
            up[rank] = len(moves)
            moves.append(Move(rank, parent[rank], (chunk,), "reduce"))
            needs.append(tuple(up[child] for child in children[rank]))
        for rank in order[1:]:
            down[rank] = len(moves)
            moves.append(Move(parent[rank], rank, (chunk,)))
            above = parent[rank]
            needs.append((down[above],) if above in down else tuple(up[child] for child in children[above]))
    links = [numbers[move.sender, move.receiver] for move in moves]
    when = schedule(links, needs, network.widths, PASSES, [LAG * move.chunk[0] for move in moves])
    steps: list[list[Move]] = [[] for _ in range(max(when, default=-1) + 1)]
    for move, step in zip(moves, when, strict=True):
        steps[step].append(move)
    return Plan(
        network=network,
        kind="all_reduce",
        dims=dims_of("all_reduce", network.ranks, len(trees)),
        size=Fraction(network.ranks, len(trees)),
        steps=tidy(steps),
        how=f"{len(trees)} spanning trees that share the links evenly",
    )


def _outwards(parent: Tree) -> list[int]:
    """The ranks, the root first, each behind its parent."""
    children: list[list[int]] = [[] for _ in parent]
    order = []
    for rank, above in enumerate(parent):
        if rank == above:
            order.append(rank)
        else:
            children[above].append(rank)
    for rank in order:
        order.extend(children[rank])
    return order
