"""`ringsched import`: the verdict on another tool's file, and the schedule that it becomes."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ringsched.commands.clock import lap
from ringsched.commands.output import exit_status, print_json, say, show, verdict_of, write_file
from ringsched.diagnostics import EXIT_RIGHT, EXIT_UNDECIDED, EXIT_WRONG, Diagnostic, DiagnosticError, Label
from ringsched.importers.algorithm import ROOTED
from ringsched.importers.convert import convert
from ringsched.importers.judge import Judgement, judge
from ringsched.importers.reader import read_algorithm
from ringsched.schedule.schedule import Schedule
from ringsched.schedule.tree import MAX_BYTES
from ringsched.schedule.vocabulary import name_fault

_STATUS = {"right": EXIT_RIGHT, "wrong": EXIT_WRONG, "undecided": EXIT_UNDECIDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """`schedule`: None where it is not right, or no schedule can say it (`unsaid`)."""

    judgement: Judgement
    schedule: Schedule | None
    unsaid: tuple[Diagnostic, ...]
    advice: tuple[Diagnostic, ...] = ()

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return (*self.judgement.findings, *self.unsaid, *self.judgement.advice, *self.advice)


def import_msccl(file: str, output: str | None, as_json: bool) -> int:
    """Returns the exit code. Raises RS611."""
    start = time.perf_counter()
    try:
        judgement = judge(read_algorithm(file))
    except DiagnosticError as error:
        return _unreadable(file, error, as_json)
    imported = _converted(judgement, output)
    seconds = time.perf_counter() - start
    written = None
    text = _text(imported) if output is not None else None
    if text is not None and len(text.encode()) > MAX_BYTES:
        imported = replace(imported, schedule=None, unsaid=(_too_long(judgement, text),))
    elif text is not None and output is not None:
        if output == "-":
            click.echo(text, nl=False, err=as_json)
        else:
            write_file(Path(output), text, sources=[Path(file)])
            written = output
    if as_json:
        print_json(_entry(file, imported, written, seconds))
    else:
        if imported.diagnostics:
            show(imported.diagnostics)
        click.echo(_sentence(file, imported, lap()), err=output == "-")
        if written is not None and imported.schedule is not None:
            say(f"wrote {written}, {len(imported.schedule.items)} steps")
    if output is not None and imported.unsaid:
        return EXIT_UNDECIDED
    return _STATUS[judgement.verdict]


def _text(imported: Imported) -> str | None:
    if imported.schedule is None:
        return None
    from ringsched.schedule.printer import print_schedule  # late: not needed for a verdict

    return print_schedule(imported.schedule)


def _too_long(judgement: Judgement, text: str) -> Diagnostic:
    return Diagnostic(
        code="RS705",
        message=f"no schedule can say this: its file would have {len(text.encode()):,} bytes, and the limit is 1 MiB",
        primary=Label(span=judgement.algorithm.span),
        notes=("the algorithm itself is right",),
        help="import it for fewer ranks or with fewer instances",
    )


def _unreadable(file: str, error: DiagnosticError, as_json: bool) -> int:
    if as_json:
        found = [d.to_json() for d in error.diagnostics]
        verdict = verdict_of(error.diagnostics)
        print_json({"file": file, "verdict": verdict, "least_depth": None, "diagnostics": found, "schedule": None})
    else:
        show(error.diagnostics)
        click.echo(f"{file}: not judged")
    return exit_status(error.diagnostics)


def _converted(judgement: Judgement, output: str | None) -> Imported:
    if judgement.verdict != "right":
        return Imported(judgement=judgement, schedule=None, unsaid=())
    algorithm = judgement.algorithm
    description = f"Imported from an MSCCL {algorithm.collective} of {algorithm.ranks} ranks"
    called = algorithm.name.strip()[:80]
    description += f", {called}." if called.isprintable() and called else "."
    try:
        schedule, advice = convert(judgement, _name(judgement, output), description)
    except DiagnosticError as error:
        return Imported(judgement=judgement, schedule=None, unsaid=error.diagnostics)
    return Imported(judgement=judgement, schedule=schedule, unsaid=(), advice=advice)


def _name(judgement: Judgement, output: str | None) -> str:
    """What the schedule is called: as the file that is written, or as the algorithm, or as the file that is read."""
    given = [] if output in (None, "-") else [Path(str(output)).stem]
    for text in (*given, judgement.algorithm.name, Path(judgement.algorithm.path).stem):
        name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()[:60]
        if name_fault(name) is None:
            return name
    return "imported"


def _entry(file: str, imported: Imported, written: str | None, seconds: float) -> dict[str, object]:
    """The keys that `--json` promises."""
    judgement = imported.judgement
    algorithm = judgement.algorithm
    return {
        "file": file,
        "collective": algorithm.kind or algorithm.collective,
        "ranks": algorithm.ranks,
        "root": _root(judgement),
        "protocol": algorithm.protocol,
        "depth": algorithm.depth,
        "verdict": judgement.verdict,
        "least_depth": judgement.least_depth,
        "diagnostics": [diagnostic.to_json() for diagnostic in imported.diagnostics],
        "steps": len(imported.schedule.items) if imported.schedule is not None else None,
        "schedule": written,
        "seconds": round(seconds, 3),
    }


def _root(judgement: Judgement) -> int | None:
    layout = judgement.layout
    return layout.root if layout is not None and layout.algorithm.kind in ROOTED else None


def _sentence(file: str, imported: Imported, seconds: float) -> str:
    """The line for people."""
    judgement = imported.judgement
    algorithm, least = judgement.algorithm, judgement.least_depth
    root = _root(judgement)
    what = f"{algorithm.collective} of {algorithm.ranks} ranks"
    what += f" with root {root}" if root is not None else ""
    what += ", in place" if algorithm.in_place else ""
    runs = ""
    if least is not None and least > 1:
        depth = f"{algorithm.protocol} has {algorithm.depth}"
        runs = f"; runs with {least} or more messages in flight on a connection, {depth}"
    elif least is not None:
        runs = "; runs with any number of messages in flight"
    elif any(finding.code == "RS818" for finding in judgement.findings):
        runs = "; runs with no number of messages in flight"
    errors = len(judgement.findings)
    count = f"{errors} {'error' if errors == 1 else 'errors'}, " if judgement.verdict == "wrong" else ""
    if judgement.verdict == "right":
        runs += "; no race, and every rank ends with what is promised"
    return f"{file}: {judgement.verdict} ({count}{what}{runs}) in {seconds:.2f} s"
