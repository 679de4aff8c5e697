"""A collective and a topology → the best plan that is known how to make, its bound, and its schedule.

A construction where one at the bound is known, else what the searches of `plans/choose` find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, assert_never

from ringsched.model.loads import loads_of
from ringsched.plans.bounds import Bound, bound_of
from ringsched.plans.choose import plan_of
from ringsched.plans.network import Network, network_of
from ringsched.plans.plan import PlanKind
from ringsched.schedule.flat import flatten
from ringsched.schedule.schedule import Schedule
from ringsched.synth.place import name_of
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
    """The construction of `plans/construct` on a ring or torus whose links are alike, None elsewhere.

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
