"""A collective and a topology → the best plan that is known how to make, its bound, and its schedule.

A constructed plan where one at the bound is known, else searches. How long they go on is a number of attempts that
depends on the number of ranks alone, so the same question with the same seed has the same answer, whatever the
machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, assert_never

from ringsched.model.loads import loads_of
from ringsched.schedule.flat import flatten
from ringsched.schedule.schedule import Schedule
from ringsched.synth import gather, rooted, routes, trees
from ringsched.synth.bounds import Bound, bound_of
from ringsched.synth.network import Network, network_of
from ringsched.synth.place import name_of
from ringsched.synth.plan import Plan, PlanKind, after, backwards
from ringsched.synth.write import constructed, judged, schedule_of, too_large
from ringsched.topology import Topology

UNITS: dict[PlanKind, str] = {
    "all_gather": "a rank's shard",
    "reduce_scatter": "a rank's shard",
    "all_reduce": "the operand divided by the number of ranks,",
    "all_to_all": "what one rank has for one other",
    "broadcast": "the operand divided by the number of ranks,",
    "reduce": "the operand divided by the number of ranks,",
}
MOST_MOVES = 500_000  # of a plan, estimated; beyond it a search takes minutes
WORTH = Fraction(21, 20)  # what units have to be saved by for many times the steps
MOST_TRANSFERS = 16_000  # that a unit is cut finer for
MOST_IN_HALVES = 20_000  # that it is cut in halves for, where trees take long to fill
MOST_REROUTED = 8_000  # hops of all_to_all for which parts and detours are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """What was made: `units` as the loads of the schedule have them, `how` in words, what the data flow says."""

    kind: PlanKind
    topology: Topology
    schedule: Schedule
    steps: int
    units: Fraction
    how: str
    bound: Bound
    verdict: Literal["right", "undecided"]


def synthesise(
    topology: Topology, kind: PlanKind, *, root: int = 0, parts: int | None = None, seed: int = 0
) -> Synthesis:
    """A verified schedule for a connected topology of two or more ranks. Raises RS241.

    root: of broadcast and reduce. parts: that a unit is cut into (of broadcast and reduce: the operand); None: as many
    as do good.
    """
    network = network_of(topology)
    closed = torus_schedule(network, kind) if parts is None else None
    if closed is None:
        _check_size(network, kind, parts or 1)
    bound = bound_of(network, kind, root)
    if closed is None:
        plan = plan_of(network, kind, bound, root=root, parts=parts, seed=seed)
        how, schedule = plan.how, schedule_of(plan)
    else:
        how, schedule = "a construction that is the same at every rank and uses every link", closed
    flat = flatten(schedule)
    units, verdict = loads_of(flat).units, judged(flat)
    steps = len(flat.steps)
    tables = ("Entry s * ranks + r of a table: the number of the chunk that rank r sends that way, -1: none.",)
    if closed is not None:
        tables = ("Tables: how far the chunk that goes the first way (0), the second, … has come from its owner.",)
    words = (
        description(how, steps, units, bound, kind),
        *(tables if schedule.tables else ()),
        f"Made by {_command(topology, kind, root, parts, seed)}",
    )
    return Synthesis(
        kind=kind,
        topology=topology,
        schedule=replace(schedule, description="\n".join(words)),
        steps=steps,
        units=units,
        how=how,
        bound=bound,
        verdict=verdict,
    )


def torus_schedule(network: Network, kind: PlanKind) -> Schedule | None:
    """The construction of `schedule/construct` on a ring or torus whose links are alike, None elsewhere.

    Parts even out the last step of a gather; a chunk of all_to_all is halved where both ways round are equally long.
    """
    topology = network.topology
    if not topology.alike or topology.ranks < 3:
        return None
    fair = Fraction(network.ranks - 1, len(network.out[0])).denominator
    match kind:
        case "all_gather" | "reduce_scatter":
            return constructed(topology, kind, (kind,), fair)
        case "all_reduce":
            return constructed(topology, kind, ("reduce_scatter", "all_gather"), fair)
        case "all_to_all":
            options = [constructed(topology, kind, (kind,), count) for count in (1, 2)]
            return min(options, key=lambda schedule: loads_of(flatten(schedule)).units)
        case "broadcast" | "reduce":
            return None
        case _:
            assert_never(kind)


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


def description(how: str, steps: int, units: Fraction, bound: Bound, kind: PlanKind) -> str:
    """The lines at the top of a file: what was reached, and why no schedule needs fewer units than the bound."""
    reached = f"{shown(units)} units in {steps} steps, by {how}. A unit is {UNITS[kind]} over one link."
    return f"{reached}\n{distance(units, bound)}"


def distance(units: Fraction, bound: Bound) -> str:
    """How far from the bound that is, with the bound's reason."""
    if units == bound.units:
        return f"At the bound: {bound.reason}."
    excess = 100 * float(units / bound.units - 1)
    return f"{excess:.1f} % above the bound of {shown(bound.units)} units: {bound.reason}."


def shown(value: Fraction) -> str:
    """`7.5`, `85.17`."""
    return f"{float(value):.2f}".rstrip("0").rstrip(".")


def _command(topology: Topology, kind: PlanKind, root: int, parts: int | None, seed: int) -> str:
    words = [f"ringsched synth --collective {kind} --topology {name_of(topology)}"]
    if topology.kind == "links":
        words = [f"ringsched synth --collective {kind} on these links"]
    words += [f"--root {root}"] if root else []
    words += [] if parts is None else [f"--parts {parts}"]
    words += [f"--seed {seed}"] if seed else []
    return " ".join(words)


def _check_size(network: Network, kind: PlanKind, parts: int) -> None:
    """RS241 where a search would take minutes and no file could hold the result."""
    ranks = network.ranks
    moves = (ranks if kind in ("broadcast", "reduce") else ranks * (ranks - 1)) * parts
    if kind == "all_reduce":
        moves *= 2
    if kind == "all_to_all" and moves <= MOST_MOVES:
        moves = (
            sum(sum(network.distances(rank)) for rank in network.different) * ranks * parts // len(network.different)
        )
    if moves > MOST_MOVES:
        raise too_large(f"it has over {MOST_MOVES:,} transfers; a search copes with no more")


# -- each collective ---------------------------------------------------------------------------------------------------


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
