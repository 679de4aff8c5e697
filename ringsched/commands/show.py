"""`ringsched show`: what each step sends, as a table and as a picture."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import click

from ringsched.commands.output import exit_status, print_json, say, write_file
from ringsched.commands.output import show as show_findings
from ringsched.commands.settings import parse_settings, single
from ringsched.diagnostics import EXIT_RIGHT, DiagnosticError
from ringsched.model.loads import Loads, direction, loads_of
from ringsched.pictures.picture import picture
from ringsched.pictures.svg import decimal
from ringsched.pipeline import open_schedule
from ringsched.plans.bounds import Bound, bound_of
from ringsched.plans.network import network_of
from ringsched.plans.plan import KINDS
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.schedule import Chain
from ringsched.verify.words import place_name

MOST_ROWS = 24  # steps in the table
FIRST_ROWS = 15  # of a schedule with more
MOST_DRAWN = 1024  # ranks
MOST_BOUND = 1024  # ranks for which the bound is looked for
WIDTH = 96  # columns of the table where there is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command's arguments."""

    file: str
    settings: tuple[str, ...]
    output: str | None
    as_json: bool


def show_file(request: Request) -> int:
    """Prints the table, and writes the picture where -o names a file."""
    try:
        schedule = open_schedule(request.file, single(parse_settings(request.settings, ranges=False)))
        if isinstance(schedule, Chain):
            raise click.UsageError(f"{request.file} is a chain; show the schedules that it uses, one by one.")
        flat = flatten(schedule)
        loads = loads_of(flat)
    except DiagnosticError as error:
        show_findings(error.diagnostics)
        return exit_status(error.diagnostics)
    bound = _bound(flat)
    if request.output is not None:
        if flat.topology.ranks > MOST_DRAWN:
            raise click.UsageError(f"A picture of {flat.topology.ranks} ranks is none; draw {MOST_DRAWN} or fewer.")
        svg = picture(flat, loads, summary(flat, loads, bound))
        if request.output == "-":
            click.echo(svg, nl=False)
            return EXIT_RIGHT
        write_file(Path(request.output), svg, sources=[Path(schedule.path)] if schedule.path else [])
    if request.as_json:
        print_json(_json(request, flat, loads, bound))
        return EXIT_RIGHT
    _print_tables(flat, loads, summary(flat, loads, bound))
    if request.output is not None:
        say(f"wrote {request.output}")
    return EXIT_RIGHT


def summary(flat: FlatSchedule, loads: Loads, bound: Bound | None) -> str:
    """One line: what it is, and what it costs."""
    topology = flat.topology
    sides = " × ".join(map(str, topology.sides))
    twisted = "twisted " if topology.twist else ""
    place = f"{len(topology.links)} links of {sides} ranks" if topology.kind == "links" else f"{twisted}{topology.kind}"
    where = f"on {place}" if topology.kind == "links" else f"on a {place} of {sides}"
    many = len(loads.sending)
    text = f"{flat.promise.kind} {where}: {many} step{'s' * (many != 1)}, {_units(loads.units)}"
    if topology.speeds and any(speed.latency != 1 for speed in topology.speeds):
        text += f", latency {loads.latency}"
    if bound is None:
        return text
    if topology.routed:  # several links in a step: the bound on steps, by hops, does not hold
        return f"{text}; no schedule takes fewer than {_units(bound.units)}"
    return f"{text}; no schedule takes fewer than {bound.hops} and {decimal(bound.units)}"


def _bound(flat: FlatSchedule) -> Bound | None:
    """What no schedule can beat; None where none is known."""
    kind = next((kind for kind in KINDS if kind == flat.promise.kind), None)
    if kind is None or not 1 < flat.topology.ranks <= MOST_BOUND:
        return None
    return bound_of(network_of(flat.topology), kind, flat.promise.root)


def _units(value: Fraction) -> str:
    return f"{decimal(value)} unit{'' if value == 1 else 's'}"


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _json(request: Request, flat: FlatSchedule, loads: Loads, bound: Bound | None) -> dict[str, object]:
    steps = []
    for number, step in enumerate(loads.sending, 1):
        hop, time = loads.busiest(step)
        chunks = sum(loads.everywhere(loads.steps[step]).values())
        steps.append({"step": number, "chunks": chunks, "busiest": hop, "units": _number(time)})
    links = [[*hop, _number(chunks * loads.chunk)] for hop, chunks in loads.totals().items()]
    return {
        "schedule": request.file,
        "params": {p.name: p.value for p in flat.schedule.parameters},
        "collective": flat.promise.kind,
        "topology": flat.topology.kind,
        "sides": list(flat.topology.sides),
        "steps": len(loads.sending),
        "units": _number(loads.units),
        "latency": loads.latency,
        "bound_steps": None if bound is None or flat.topology.routed else bound.hops,
        "bound_units": None if bound is None else _number(bound.units),
        "chunk_units": _number(loads.chunk),
        "per_step": steps,
        "links": links,
        "path": request.output,
    }


def _print_tables(flat: FlatSchedule, loads: Loads, summary: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(f"[bold]{flat.schedule.name}[/]  {summary}", soft_wrap=True)
    steps = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("step", "right"), ("chunks", "right"), ("links", "right"), ("busiest link", "left")):
        steps.add_column(heading, justify=justify)  # type: ignore[arg-type]
    steps.add_column("units", justify="right")
    for step in _rows(loads.sending):
        if step is None:
            steps.add_row("…", "", "", f"{len(loads.sending) - MOST_ROWS} more", "")
            continue
        everywhere = loads.everywhere(loads.steps[step])
        hop, time = loads.busiest(step)
        assert hop is not None  # of a step that sends
        busiest = _hop(loads, hop)
        number = loads.sending.index(step) + 1
        steps.add_row(str(number), f"{sum(everywhere.values()):,}", f"{len(everywhere):,}", busiest, decimal(time))
    steps.add_section()
    steps.add_row("all", f"{sum(loads.totals().values()):,}", "", "", decimal(loads.units), style="bold")
    console.print(steps)
    links = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    links.add_column("over the links" if flat.topology.kind != "links" else "over the link")
    links.add_column("mean", justify="right")
    links.add_column("most", justify="right")
    ways = list(loads.directions().items())
    for name, (mean, most) in ways[:MOST_ROWS]:
        links.add_row(name, decimal(mean), decimal(most))
    if len(ways) > MOST_ROWS:
        links.add_row(f"… {len(ways) - MOST_ROWS} more", "", "")
    console.print(links)
    console.print("a unit: one rank's shard over one link", style="dim")


def _rows(steps: tuple[int, ...]) -> list[int | None]:
    """The steps that have a row; None stands for those left out."""
    if len(steps) <= MOST_ROWS:
        return list(steps)
    return [*steps[:FIRST_ROWS], None, *steps[len(steps) - (MOST_ROWS - FIRST_ROWS) :]]


def _hop(loads: Loads, hop: tuple[int, int]) -> str:
    topology = loads.topology
    a, b = (place_name(topology.at(rank)) for rank in hop)
    way = "" if topology.axis(*hop) is None else f" ({direction(topology, hop)})"
    return f"{a} → {b}{way}"
