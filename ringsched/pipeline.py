"""The compiler, one line a stage.

    load → flatten → data flow → lower → expand → hazards → values → generate

Each stage takes what the one before made. A stage that finds the user's input at fault raises `DiagnosticError`; a
Program of our own making that is not right raises `InternalError`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from ringsched.codegen.module import Kernel, module_text
from ringsched.diagnostics import Diagnostic, DiagnosticError, InternalError, Label
from ringsched.lower.lanes import find_lanes
from ringsched.lower.lower import Lowered, lower
from ringsched.lower.transpose import transpose
from ringsched.program.expand import Expansion, expand
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.loader import load, set_parameters, shipped_directory, shipped_names
from ringsched.schedule.schedule import Lowering, Multiply, Schedule
from ringsched.verify.dataflow import findings_of, is_symmetric, smallest_failing
from ringsched.verify.hazard_diagnostics import diagnose
from ringsched.verify.hazards import check_hazards
from ringsched.verify.values import NotComparable, WrongValue, check_values

CALLS = 2  # in a row: shows whether the barrier is strong enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """A schedule whose data flow, and a Program whose every interleaving, is right at these parameters."""

    schedule: Schedule
    flat: FlatSchedule
    symmetric: bool
    lowered: Lowered


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """`source`: the kernel module. `backward`: the proven transpose, None where gradients go through `jax.lax`."""

    proven: Proven
    backward: Proven | None
    source: str


def open_schedule(path: str | Path, values: dict[str, int] | None = None) -> Schedule:
    """Load a file, or a shipped schedule by its name, and set parameters. Raises RS1xx, RS2xx."""
    name = str(path)
    if name in shipped_names() and not Path(name).exists():
        path = shipped_directory() / f"{name}.yaml"
    return set_parameters(load(path), values or {})


def prove(schedule: Schedule) -> Proven:
    """All stages up to the values. Raises RS2xx … RS5xx with the smallest counterexample."""
    try:
        flat = flatten(schedule)
        found = findings_of(flat)
    except DiagnosticError:
        found = ()
        flat = None
    if flat is None or found:
        raise DiagnosticError(smallest_failing(schedule) or found)
    return _prove_flat(schedule, flat)


def _prove_flat(schedule: Schedule, flat: FlatSchedule) -> Proven:
    symmetric = is_symmetric(flat)
    lowered = lower(flat, symmetric=symmetric)
    expansion = expand(lowered.program)
    report = check_hazards(expansion.execution, calls=CALLS)
    if not report.ok:
        findings = diagnose(report, expansion.execution)
        if flat.schedule.lowering != Lowering():
            raise DiagnosticError(_wished(_smallest_hazard(schedule) or findings, flat.schedule.lowering))
        raise InternalError("the lowered program is wrong: " + "; ".join(f.message for f in findings))
    wrong = _values(lowered, expansion, flat)
    if wrong:
        raise InternalError(f"the lowered program computes something else: {wrong[0]}")
    return Proven(schedule=schedule, flat=flat, symmetric=symmetric, lowered=lowered)


_INSTEAD = {
    "slots": "ask for more slots, or leave `slots` out: the compiler takes as many as it needs, or credits",
    "semaphores": "ask for more semaphores, or leave `semaphores` out",
    "barrier": "leave `barrier: none` out: the compiler puts in the barrier that is needed",
}


def _wished(findings: tuple[Diagnostic, ...], wishes: Lowering) -> tuple[Diagnostic, ...]:
    """The first finding of each code, with the wish of `lowering:` that brought it about."""
    spans = [(name, span) for name, span in wishes.spans if name in _INSTEAD]
    first = {f.code: f for f in reversed(findings)}
    asked = tuple(Label(span=span, text="asked for here") for _, span in spans)
    help_ = "; ".join(_INSTEAD[name] for name, _ in spans) or None
    return tuple(
        replace(f, secondary=(*f.secondary, *asked), help=help_ or f.help) for f in findings if first[f.code] is f
    )


def _values(lowered: Lowered, expansion: Expansion, flat: FlatSchedule) -> tuple[WrongValue, ...]:
    try:
        return check_values(expansion, flat.promise, flat.schedule.compute)
    except NotComparable:
        full = expand(lowered.program, symmetric=False)
        return check_values(full, flat.promise, flat.schedule.compute)


def _smallest_hazard(schedule: Schedule) -> tuple[Diagnostic, ...]:
    """The hazards of the smallest number of ranks for which the wishes of `lowering:` fail."""
    names = [p.name for p in schedule.parameters]
    if names != ["N"]:
        return ()
    for size in range(2, schedule.parameters[0].value):
        try:
            smaller = set_parameters(schedule, {"N": size})
            flat = flatten(smaller)
            if findings_of(flat):
                continue
            expansion = expand(lower(flat, symmetric=is_symmetric(flat)).program)
        except DiagnosticError:
            continue
        report = check_hazards(expansion.execution, calls=CALLS)
        if not report.ok:
            return diagnose(report, expansion.execution)
    return ()


def prove_transpose(proven: Proven) -> Proven | None:
    """The schedule backwards in time, for the gradient; None where it does not exist or is not right."""
    compute = proven.flat.schedule.compute
    if compute is not None and proven.flat.promise.kind == "all_reduce":
        return None
    flat = transpose(find_lanes(proven.flat, symmetric=proven.symmetric))
    if flat is None:
        return None
    try:
        if findings_of(flat):
            return None
        backward = replace(flat.schedule, lowering=Lowering(), compute=compute and opposite(compute))
        return _prove_flat(proven.schedule, replace(flat, schedule=backward))
    except DiagnosticError:
        return None


def opposite(compute: Multiply) -> Multiply:
    """What is multiplied on the way back: what was gathered is summed, and the reverse."""
    return replace(compute, moment="before sending" if compute.moment == "on arrival" else "on arrival")


def compile_schedule(schedule: Schedule, *, debug: bool = False) -> Compiled:
    """Prove, and generate the kernel module."""
    proven = prove(schedule)
    backward = prove_transpose(proven)
    source = module_text(
        _kernel(proven),
        _kernel(backward) if backward else None,
        name=schedule.name,
        heading=_heading(proven),
        facts=_facts(proven, backward),
        debug=debug,
    )
    return Compiled(proven=proven, backward=backward, source=source)


def _kernel(proven: Proven) -> Kernel:
    memory = proven.flat.schedule.lowering.memory
    program, promise = proven.lowered.program, proven.flat.promise
    return Kernel(program=program, promise=promise, memory=memory, compute=proven.flat.schedule.compute)


def _heading(proven: Proven) -> str:
    topology = proven.flat.topology
    sides = " × ".join(map(str, topology.sides))
    what = proven.flat.promise.kind.replace("_", "-").capitalize()
    place = f"links of {sides} ranks" if topology.kind == "links" else f"a {topology.kind} of {sides} ranks"
    return f"{what} over {place}. Generated by ringsched; edit the schedule instead."


def _facts(proven: Proven, backward: Proven | None) -> list[tuple[str, str]]:
    """The header: where it comes from and what was proven, for which sizes."""
    schedule = proven.schedule
    path = Path(schedule.path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "unknown"
    parameters = ", ".join(f"{p.name} = {p.value}" for p in schedule.parameters) or "none"
    gradient = "by the transpose, proven likewise" if backward else "by jax.lax"
    return [
        ("schedule", f"{path.name}, sha256 {digest}…"),
        ("params", parameters),
        ("proven", f"for these sizes: data flow, values, no race, no deadlock, no leftover; {CALLS} calls in a row"),
        ("gradient", gradient),
    ]
