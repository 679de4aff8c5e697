"""all_gather on any network: both ways round a ring of all ranks, or a search. Backwards in time, reduce_scatter."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from fractions import Fraction

from ringsched.plans.flood import Hop, flood
from ringsched.plans.network import Network
from ringsched.plans.plan import Move, Plan, dims_of, tidy


def ring_of(network: Network) -> tuple[int, ...] | None:
    """The ranks in an order in which each is linked with the next one and the last with the first.

    On a ring, and on a mesh of two sides one of which is even: along one edge, then to and fro over the rest. None
    elsewhere.
    """
    topology = network.topology
    if topology.kind == "ring" and topology.ranks > 2:
        return tuple(range(topology.ranks))
    if topology.kind != "mesh" or len(topology.sides) != 2 or topology.ranks % 2 or min(topology.sides) < 2:
        return None
    x, y = topology.sides
    turned = x % 2 == 1  # then the other side is the even one
    rows, columns = (y, x) if turned else (x, y)
    places = [(row, 0) for row in range(rows)]
    for row in reversed(range(rows)):
        rest = range(1, columns)
        places += [(row, column) for column in (rest if (rows - row) % 2 else reversed(rest))]
    ranks = (topology.rank((b, a) if turned else (a, b)) for a, b in places)
    return tuple(rank for rank in ranks if rank is not None)


def around(network: Network, order: Sequence[int]) -> Plan:
    """Both ways round a ring of all ranks; for an even number of them the farthest shard comes in halves.

    ⌈(P − 1) / 2⌉ steps of one unit, or the last of them half a unit: the bound wherever a rank has only two links.
    """
    ranks = len(order)
    parts = 2 - ranks % 2
    steps: list[list[Hop]] = []
    for hop in range(ranks // 2):
        halves = parts == 2 and hop == ranks // 2 - 1
        steps.append([])
        for place, rank in enumerate(order):
            for number, way in enumerate((1, -1)):
                receiver, owner = order[(place + way) % ranks], order[(place - way * hop) % ranks]
                steps[-1].append(Hop(rank, receiver, owner, number if halves else None))
    return _plan(network, steps, parts, "going both ways round a ring of all ranks")


def search(network: Network, parts: int, seed: int, *, tries: int, bound: Fraction, fine: bool = False) -> Plan:
    """The best of `tries` searches; the first that reaches the bound ends them.

    parts: of a shard. Only the last step sends less than whole shards over a link; or, `fine`, every step sends one
    part over each: many times the steps, but ranks that are several hops behind a narrow link wait for less.
    """
    best: Plan | None = None
    items, inside = (parts, 1) if fine else (1, parts)
    start = [((1 << items) - 1) << (rank * items) for rank in range(network.ranks)]
    how = f"a search, step by step with {'parts of shards' if fine else 'whole shards'}"
    for attempt in range(tries):
        rng = random.Random(f"{seed} {attempt}")
        steps = flood(network, start, network.ranks * items, inside, rng, attempt)
        if fine:
            steps = [[Hop(h.sender, h.receiver, *divmod(h.item, items)) for h in step] for step in steps]
        plan = _plan(network, steps, parts, how)
        if best is None or plan.cost < best.cost:
            best = plan
        if best.units <= bound:
            break
    assert best is not None
    return best


def _plan(network: Network, steps: Iterable[Iterable[Hop]], parts: int, how: str) -> Plan:
    return Plan(
        network=network,
        kind="all_gather",
        dims=dims_of("all_gather", network.ranks, parts),
        size=Fraction(1, parts),
        steps=tidy((move for hop in step for move in _moves(hop, parts)) for step in steps),
        how=how,
    )


def _moves(hop: Hop, parts: int) -> Iterable[Move]:
    if parts == 1:
        return [Move(hop.sender, hop.receiver, (hop.item,))]
    chosen = range(parts) if hop.part is None else (hop.part,)
    return [Move(hop.sender, hop.receiver, (hop.item, part)) for part in chosen]
