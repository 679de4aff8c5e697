"""Items to everyone, step by step: every rank passes on what it holds until all ranks hold all items.

After TACOS (Won and others, "TACOS: topology-aware collective algorithm synthesizer for distributed machine learning",
MICRO 2024): in each step links are matched with the items that they carry. What a rank receives does not depend on
what others receive in the same step, so every receiver gets, one after the other, a largest matching of its links in
to the items that it lacks and the senders held before the step, those that few ranks hold first. Once every rank can
get all it lacks in one step, parts of an item go over different links in that last step, which is then shorter.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from ringsched.plans.matching import match
from ringsched.plans.network import Network

NOISE = (0.1, 0.5, 1.0, 2.0)  # holders that chance may outweigh, by the number of the attempt


class Hop(NamedTuple):
    """An item over one link: one part of it, or all of them (None)."""

    sender: int
    receiver: int
    item: int
    part: int | None = None


def flood(
    network: Network, start: Sequence[int], items: int, parts: int, rng: random.Random, attempt: int
) -> list[list[Hop]]:
    """The steps; `start[r]` is the set of items that rank r holds at first, as a bit mask."""
    everything = (1 << items) - 1
    widths = network.widths
    holds = list(start)
    holders = [sum(held >> item & 1 for held in holds) for item in range(items)]
    noise = NOISE[attempt % len(NOISE)]
    steps: list[list[Hop]] = []
    while any(held != everything for held in holds):
        last = _last_step(network, widths, holds, everything, parts)
        if last is not None:
            return [*steps, last]
        before = tuple(holds)
        steps.append([])
        for receiver in range(network.ranks):
            near = _near(network, before, receiver) & ~before[receiver]
            if not near:
                continue
            weights = {item: holders[item] + noise * rng.random() for item in _members(near)}
            wanted = sorted(weights, key=weights.__getitem__)
            for item, link in _matched(network, widths, receiver, before, wanted, 1).items():
                holds[receiver] |= 1 << item
                holders[item] += 1  # at once, so that the next receivers of this step rather take other items
                steps[-1].append(Hop(network.links[link][0], receiver, item))
    return steps


def _near(network: Network, holds: Sequence[int], receiver: int) -> int:
    """What any neighbour holds."""
    near = 0
    for link in network.into[receiver]:
        near |= holds[network.links[link][0]]
    return near


def _members(mask: int) -> list[int]:
    """The numbers of the bits that are set, in order."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found


def _matched(
    network: Network, widths: Sequence[int], receiver: int, holds: Sequence[int], wanted: Sequence[int], parts: int
) -> dict[int, int]:
    """What is wanted → the link that brings it. With parts, number n is part n % parts of item n // parts."""
    offers = {}
    for link in network.into[receiver]:
        held = holds[network.links[link][0]]
        offers[link] = [number for number in wanted if held >> (number // parts) & 1]
    order = sorted(offers, key=lambda link: len(offers[link]))
    return match(order, widths, offers.__getitem__)


def _last_step(
    network: Network, widths: Sequence[int], holds: Sequence[int], everything: int, parts: int
) -> list[Hop] | None:
    """All that is lacking in one step of the least load; None where some link had to carry more than a whole item."""
    lacking = [_members(everything & ~held) for held in holds]
    for rank, items in enumerate(lacking):
        room = sum(widths[link] for link in network.into[rank])
        if len(items) > room or everything & ~holds[rank] & ~_near(network, holds, rank):
            return None
    for load in range(1, parts + 1):
        hops: list[Hop] = []
        wide = [load * width for width in widths]
        for receiver, items in enumerate(lacking):
            wanted = [item * parts + part for item in items for part in range(parts)]
            taken = _matched(network, wide, receiver, holds, wanted, parts)
            if len(taken) < len(wanted):
                break
            for number, link in taken.items():
                item, part = divmod(number, parts)
                hops.append(Hop(network.links[link][0], receiver, item, part))
        else:
            return hops
    return None
