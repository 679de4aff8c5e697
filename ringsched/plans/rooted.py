"""broadcast on any network: the operand in many parts, passed on as a stream. Backwards in time, reduce.

With K parts over links that let λ parts a step reach the rank that is worst off, about K / λ steps and as many more as
the farthest rank has hops: for large messages as many parts as the file may have, for short ones (`--parts 1`) few
steps.
"""

from __future__ import annotations

import random
from fractions import Fraction

from ringsched.plans.flood import flood
from ringsched.plans.network import Network
from ringsched.plans.plan import Move, Plan, dims_of, tidy


def broadcast(network: Network, root: int, parts: int, seed: int, *, tries: int, target: int) -> Plan:
    """The best of `tries` searches; the first with no more than `target` steps ends them."""
    best: Plan | None = None
    start = [(1 << parts) - 1 if rank == root else 0 for rank in range(network.ranks)]
    for attempt in range(tries):
        rng = random.Random(f"{seed} {attempt}")
        steps = flood(network, start, parts, 1, rng, attempt)
        plan = Plan(
            network=network,
            kind="broadcast",
            dims=dims_of("broadcast", network.ranks, parts),
            size=Fraction(network.ranks, parts),
            steps=tidy((Move(hop.sender, hop.receiver, (hop.item,)) for hop in step) for step in steps),
            how=f"a stream of {parts} parts" if parts > 1 else "the whole operand at once",
            root=root,
        )
        if best is None or plan.cost < best.cost:
            best = plan
        if len(best.steps) <= target:
            break
    assert best is not None
    return best
