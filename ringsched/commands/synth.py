"""`ringsched synth`: a schedule made to order, with its bound and its distance from it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import click

from ringsched.commands.clock import lap
from ringsched.commands.output import print_json, say, show, write_file
from ringsched.diagnostics import EXIT_RIGHT, EXIT_UNDECIDED, EXIT_USAGE, Diagnostic, DiagnosticError
from ringsched.plans.plan import KINDS, PlanKind
from ringsched.schedule.vocabulary import closest
from ringsched.synth.place import parse_topology
from ringsched.synth.search import Synthesis, distance, shown, synthesise
from ringsched.synth.write import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command's arguments."""

    collective: str
    topology: str
    output: str | None
    root: int | None
    parts: int | None
    seed: int
    as_json: bool


def synth(request: Request) -> int:
    """Makes the schedule, and writes or prints it; 2 where there is none to make."""
    start = time.perf_counter()
    kind = _kind(request)
    try:
        topology = parse_topology(request.topology)
        root = request.root or 0
        if root >= topology.ranks:
            raise _no_root(root, topology.ranks)
        made = synthesise(topology, kind, root=root, parts=request.parts, seed=request.seed)
        text = None if request.as_json and request.output is None else text_of(made.schedule)
    except DiagnosticError as error:
        show(error.diagnostics)
        return EXIT_USAGE
    if request.output is not None and text is not None:
        write_file(Path(request.output), text)
    elif text is not None:
        click.echo(text, nl=False)
    seconds = time.perf_counter() - start
    if request.as_json:
        print_json(_json(request, made, seconds))
    else:
        say(_sentence(request, made, lap()))
    return EXIT_RIGHT if made.verdict == "right" else EXIT_UNDECIDED


def _kind(request: Request) -> PlanKind:
    """The collective; raises UsageError where it is none that is made, or has no root."""
    for kind in KINDS:
        if kind == request.collective:
            if request.root is not None and kind not in ("broadcast", "reduce"):
                raise click.UsageError(f"--root is for broadcast and reduce; {kind} has no root.")
            return kind
    near = closest(request.collective, KINDS)
    hint = f" Did you mean {near}?" if near else ""
    raise click.UsageError(f"No schedule is made for {request.collective!r}.{hint} There are {', '.join(KINDS)}.")


def _no_root(root: int, ranks: int) -> DiagnosticError:
    message = f"the root {root} is not one of the {ranks} ranks"
    return DiagnosticError([Diagnostic(code="RS308", message=message, help=f"choose a root in 0 … {ranks - 1}")])


def _json(request: Request, made: Synthesis, seconds: float) -> dict[str, object]:
    return {
        "collective": made.kind,
        "topology": request.topology,
        "steps": made.steps,
        "units": _number(made.units),
        "bound_steps": made.bound.steps,
        "bound_units": _number(made.bound.units),
        "reason": made.bound.reason,
        "how": made.how,
        "verdict": made.verdict,
        "seconds": round(seconds, 3),
        "path": request.output,
    }


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _sentence(request: Request, made: Synthesis, seconds: float) -> str:
    """The line for people."""
    where = f" → {request.output}" if request.output is not None else ""
    figures = f"{shown(made.units)} units in {made.steps} steps"
    bound = distance(made.units, made.bound).rstrip(".")
    return (
        f"{made.kind} on {request.topology}{where}: {made.verdict} (data flow), {figures}. {bound}. "
        f"At least {made.bound.steps} steps: {made.bound.steps_reason}. {seconds:.2f} s"
    )
