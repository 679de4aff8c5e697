"""A collective on a network → the best plan that the searches find.

How long they go on is a number of attempts that depends on the number of ranks alone, so that the same question with
the same seed has the same answer, whatever the machine.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import assert_never

from ringsched.plans import gather, rooted, routes, trees
from ringsched.plans.bounds import Bound, bound_of
from ringsched.plans.network import Network
from ringsched.plans.plan import Plan, PlanKind, after, backwards

WORTH = Fraction(21, 20)  # what units have to be saved by for many times the steps
MOST_TRANSFERS = 16_000  # that a unit is cut finer for
MOST_IN_HALVES = 20_000  # that it is cut in halves for, where trees take long to fill
MOST_REROUTED = 8_000  # hops of all_to_all for which parts and detours are tried


def plan_of(network: Network, kind: PlanKind, bound: Bound, *, root: int, parts: int | None, seed: int) -> Plan:
    """The better of the plans that are made for the collective."""
    match kind:
        case "all_gather":
            return _gathered(network, bound.units, parts, seed)
        case "reduce_scatter":
            return backwards(_gathered(network, bound.units, parts, seed), kind)
        case "all_reduce":
            return _all_reduced(network, bound.units, parts, seed)
        case "all_to_all":
            return _exchanged(network, bound.units, parts, seed)
        case "broadcast":
            return _streamed(network, bound, root, parts, seed)
        case "reduce":
            return backwards(_streamed(network, bound, root, parts, seed), kind)
        case _:
            assert_never(kind)


def _tries(ranks: int) -> int:
    """How many searches are made where none reaches the bound: 16 for 79 ranks, one for 225."""
    return max(1, min(16, 100_000 // ranks**2))


def _gathered(network: Network, bound: Fraction, parts: int | None, seed: int) -> Plan:
    order = gather.ring_of(network) if network.uniform and parts is None else None
    if order is not None:
        plan = gather.around(network, order)
        if plan.units == bound:
            return plan
    fair = bound.denominator if bound.denominator <= 6 else 4
    whole = gather.search(network, parts or fair, seed, tries=_tries(network.ranks), bound=bound)
    fine = min(8, MOST_TRANSFERS // (network.ranks * (network.ranks - 1)))
    if parts is not None or whole.units <= WORTH * bound or fine < 2:
        return whole
    stream = gather.search(network, fine, seed, tries=_tries(network.ranks) // 4 + 1, bound=bound, fine=True)
    return stream if WORTH * stream.units < whole.units else whole


def _all_reduced(network: Network, bound: Fraction, parts: int | None, seed: int) -> Plan:
    """Scatter, then gather, unless trees use the links better."""
    half = _gathered(network, bound_of(network, "all_gather").units, parts, seed)
    how = f"a reduce-scatter and an all-gather, each {half.how}"
    both = after(backwards(half, "reduce_scatter"), half, "all_reduce", how)
    if both.units == bound:
        return both
    ranks = network.ranks
    radius = min(max(network.distances(rank)) for rank in range(ranks))
    fill = math.ceil(20 * radius / bound)  # the trees take some steps to fill and empty: a twentieth of the whole
    once = 2 * ranks * (ranks - 1)  # transfers of chunks of one unit
    limits = (
        (2 * fill, MOST_TRANSFERS // 4),
        (fill, MOST_TRANSFERS),
        (2, MOST_IN_HALVES),
    )  # finer while files are short
    fine = max(1, *(min(most, transfers // once) for most, transfers in limits))
    packed = trees.all_reduce(network, ranks * (parts or fine), seed, tries=3 if ranks <= 32 else 1)
    return min(both, packed, key=lambda plan: plan.cost)


def _exchanged(network: Network, bound: Fraction, parts: int | None, seed: int) -> Plan:
    """Whole chunks over shortest paths; where that is above the bound, chunks in parts, and detours."""
    tries = min(6, _tries(network.ranks))
    best = routes.all_to_all(network, parts or 1, seed, tries=tries, bound=bound)
    small = 4 * best.transfers <= MOST_REROUTED
    finer = (2, 3, 4) if parts is None else (parts,)
    for detour in (0, 2) if small else ():
        for count in finer:
            if best.units > bound and count * best.transfers <= MOST_REROUTED:
                plan = routes.all_to_all(network, count, seed, tries=(tries + 2) // 3, bound=bound, detour=detour)
                best = min(best, plan, key=lambda plan: plan.cost)
    return best


def _streamed(network: Network, bound: Bound, root: int, parts: int | None, seed: int) -> Plan:
    """A part for each link of the narrowest cut where that is enough, else as many as the file may have."""
    cut, hops = bound.units / network.ranks, max(network.distances(root))

    def stream(count: int, tries: int) -> Plan:
        target = math.ceil(count * cut) + hops - 1  # the cut takes its time, and the last part has the hops to go
        return rooted.broadcast(network, root, count, seed, tries=tries, target=target)

    few = stream(parts or math.ceil(1 / cut), min(4, _tries(network.ranks)))
    most = min(96, MOST_TRANSFERS // (network.ranks - 1))
    if parts is not None or few.units <= WORTH * bound.units or most < 2:
        return few
    return min(few, stream(most, min(4, _tries(network.ranks))), key=lambda plan: plan.cost)
