"""The Plan: which chunk goes over which link in which step, everything concrete. Nothing in it is taken on trust.

A Plan is written as a schedule of pinned transfers (`write`) and judged by `verify/dataflow` like any other. Moves of
one step are concurrent; the units of a step are the time that its busiest link needs, in the unit of the collective:

| collective | unit, over a link of bandwidth 1 |
|---|---|
| all_gather, reduce_scatter | one rank's shard |
| all_to_all | what one rank has for one other |
| all_reduce, broadcast, reduce | the operand divided by the number of ranks: what a shard of it would be |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, NamedTuple, assert_never

from ringsched.collectives import Chunk
from ringsched.plans.network import Network

PlanKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]
KINDS: tuple[PlanKind, ...] = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce")


class Move(NamedTuple):
    """One chunk over one link; `chunk` has an index for every dimension of the plan."""

    sender: int
    receiver: int
    chunk: Chunk
    op: Literal["copy", "reduce"] = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`dims`: the chunk space, owners as flat ranks; `size`: of one chunk, in units; `how`: the words for people."""

    network: Network
    kind: PlanKind
    dims: tuple[int, ...]
    size: Fraction
    steps: tuple[tuple[Move, ...], ...]
    how: str
    root: int = 0

    @property
    def units(self) -> Fraction:
        """The sum over all steps of the time that the busiest link needs."""
        numbers = self.network.number()
        bandwidths = self.network.bandwidths
        total = Fraction(0)
        for step in self.steps:
            loads: dict[int, int] = defaultdict(int)
            for move in step:
                loads[numbers[move.sender, move.receiver]] += 1
            total += max((Fraction(load) / bandwidths[link] for link, load in loads.items()), default=Fraction(0))
        return total * self.size

    @property
    def cost(self) -> tuple[Fraction, int]:
        """What the better of two plans has less of: units, which count for large messages, then steps."""
        return self.units, len(self.steps)

    @property
    def transfers(self) -> int:
        return sum(map(len, self.steps))


def dims_of(kind: PlanKind, ranks: int, parts: int) -> tuple[int, ...]:
    """The chunk space; `parts` of a shard, or chunks of the whole operand where nobody owns one."""
    match kind:
        case "all_gather" | "reduce_scatter":
            return (ranks,) if parts == 1 else (ranks, parts)
        case "all_to_all":
            return (ranks, ranks) if parts == 1 else (ranks, ranks, parts)
        case "all_reduce" | "broadcast" | "reduce":
            return (parts,)
        case _:
            assert_never(kind)


def backwards(plan: Plan, kind: PlanKind) -> Plan:
    """Reversed in time, every copy a sum: all_gather becomes reduce_scatter, broadcast becomes reduce.

    A rank that got a chunk over one link and passed it on over others now adds what the others send it and passes the
    sum on over the one. It takes that every rank but the chunk's owner gets each chunk exactly once.
    """
    turned = (
        (Move(move.receiver, move.sender, move.chunk, "reduce") for move in step) for step in reversed(plan.steps)
    )
    return replace(plan, kind=kind, steps=tidy(turned))


def after(first: Plan, second: Plan, kind: PlanKind, how: str) -> Plan:
    """One plan behind the other, on the same chunks."""
    return replace(first, kind=kind, steps=(*first.steps, *second.steps), how=how)


def tidy(steps: Iterable[Iterable[Move]]) -> tuple[tuple[Move, ...], ...]:
    """Steps in the one order in which they are written; empty ones are left out."""
    return tuple(ordered for ordered in (tuple(sorted(step)) for step in steps) if ordered)
