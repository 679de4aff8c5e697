"""Plan → Schedule, checked by the data flow before anyone sees it, and its text.

A list of pinned transfers while that can be read; beyond, few statements with tables (`tabled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ringsched.diagnostics import Diagnostic, DiagnosticError, InternalError
from ringsched.expr import Int
from ringsched.plans.plan import Plan, PlanKind
from ringsched.schedule.flat import FlatSchedule
from ringsched.schedule.planned import pinned_dims, pinned_steps
from ringsched.schedule.printer import print_schedule
from ringsched.schedule.schedule import Collective, Constructed, Item, Schedule
from ringsched.schedule.statements import statements, tables
from ringsched.schedule.tabled import tabled
from ringsched.schedule.tree import MAX_BYTES, MAX_KEYS, MAX_NODES
from ringsched.synth.place import name_of, spec_of
from ringsched.topology import Topology
from ringsched.verify.dataflow import findings_of

MOST_PINNED = 2_000  # transfers: a file of some 150 KB, which takes about a second to load
MOST_OTHERS = 20_000  # values of a file besides the entries of its tables


def schedule_of(plan: Plan, pinned: int = MOST_PINNED) -> Schedule:
    """The plan as a schedule, with at most so many pinned transfers: more of them go into tables."""
    collective = Collective(kind=plan.kind, root=Int(value=plan.root) if plan.kind in ("broadcast", "reduce") else None)
    topology = plan.network.topology
    form = tabled(plan) if plan.transfers > pinned else None
    if form is not None:
        return _schedule(topology, collective, plan.dims, form.items, form.tables)
    return _schedule(topology, collective, pinned_dims(plan), pinned_steps(plan))


def constructed(topology: Topology, kind: PlanKind, steps: Sequence[Constructed], parts: int) -> Schedule:
    """A schedule of the steps that `synth:` stands for, written out, each shard in `parts` parts."""
    owners = topology.sides * (2 if kind == "all_to_all" else 1)
    dims = owners if parts == 1 else (*owners, parts)
    items: tuple[Item, ...] = ()
    for step in steps:
        tag = f"_{step}" if len(steps) > 1 else ""
        items += statements(step, topology, parts, split=parts > 1, tag=tag)
    return _schedule(topology, Collective(kind=kind), dims, items, tables(items))


def _schedule(
    topology: Topology,
    collective: Collective,
    dims: Sequence[int],
    items: tuple[Item, ...],
    tables: tuple[tuple[str, tuple[int, ...]], ...] = (),
) -> Schedule:
    return Schedule(
        name=f"{collective.kind}_{name_of(topology).replace(':', '_')}",
        collective=collective,
        topology=spec_of(topology),
        parameters=(),
        tables=tables,
        chunks=tuple(Int(value=size) for size in dims),
        items=items,
    )


def text_of(schedule: Schedule) -> str:
    """The text of a schedule file. Raises RS241 where no file may be that long."""
    text = print_schedule(schedule)
    size = len(text.encode())
    if size > MAX_BYTES:
        raise too_large(f"its file would have {size:,} bytes; one has at most {MAX_BYTES:,}")
    entries = sum(len(table) for _, table in schedule.tables)
    if entries > MAX_NODES - MOST_OTHERS or len(schedule.tables) > MAX_KEYS:
        raise too_large(f"it would have {entries:,} entries in {len(schedule.tables)} tables, too many for a file")
    return text


def too_large(problem: str) -> DiagnosticError:
    """RS241."""
    help_ = "take fewer ranks, or fewer --parts; with --json and without -o the figures come without the file"
    return DiagnosticError([Diagnostic(code="RS241", message=f"the schedule is too large: {problem}", help=help_)])


def judged(flat: FlatSchedule) -> Literal["right", "undecided"]:
    """What the data-flow check says; a schedule that is wrong is a fault of ours. Raises InternalError."""
    found = findings_of(flat)
    if not found:
        return "right"
    if all(finding.code.startswith("RS7") for finding in found):
        return "undecided"
    raise InternalError(f"the synthesised schedule is wrong: {found[0].message}")
