"""`ringsched verify`: each file right, wrong, or undecided."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import click

from ringsched.auditing.generated import Auditor
from ringsched.commands.audited import Outcome as Audit
from ringsched.commands.audited import audit_small, auditor
from ringsched.commands.clock import lap
from ringsched.commands.output import exit_status, print_json, say, show, verdict_of, worst
from ringsched.commands.settings import (
    Settings,
    each,
    has_range,
    parameters_json,
    parameters_text,
    parse_settings,
    single,
)
from ringsched.diagnostics import EXIT_RIGHT, EXIT_UNDECIDED, EXIT_USAGE, Diagnostic, DiagnosticError
from ringsched.pipeline import CALLS, AnyCompiled, Portable, compile_portable, compile_schedule, open_schedule, prove
from ringsched.schedule.loader import set_parameters
from ringsched.schedule.schedule import Chain, Schedule

CHECKED = f"data flow, values, races, deadlock, leftovers; {CALLS} calls in a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came out for one file. `parameters`: the last ones checked, empty where the file cannot be read."""

    file: str
    parameters: dict[str, int]
    settings: Settings
    seconds: float
    diagnostics: tuple[Diagnostic, ...]
    overlap: str | None = None  # as asked for
    audit: Audit | None = None
    checked: str = CHECKED

    def to_json(self) -> dict[str, object]:
        """The keys that `--json` promises."""
        return {
            "schedule": self.file,
            "params": parameters_json(self.parameters, {} if self.diagnostics else self.settings),
            **({} if self.overlap is None else {"overlap": self.overlap}),
            "verdict": verdict_of(self.diagnostics),
            "proof": None if self.diagnostics else "these sizes",
            "seconds": round(self.seconds, 3),
            "diagnostics": [diagnostic.to_json() for diagnostic in self.diagnostics],
            **({"audit": self.audit.to_json()} if self.audit is not None else {}),
        }

    def sentence(self) -> str:
        """The line for people; with the time that they waited."""
        seconds = f"in {lap():.2f} s"
        checked = self.checked if self.audit is None else f"{self.checked}; {self.audit.words()}"
        if self.diagnostics:
            count = len(self.diagnostics)
            errors = f"{count} {'error' if count == 1 else 'errors'}"
            if exit_status(self.diagnostics) == EXIT_USAGE:
                return f"{self.file}: not checked ({errors})"
            return f"{self.file}: {verdict_of(self.diagnostics)}{self.sizes()} ({errors}) {seconds}"
        if has_range(self.settings):
            return f"{self.file}: right, checked{self.sizes()} ({checked}) {seconds}"
        return f"{self.file}: right{self.sizes()} (checked at these sizes; {checked}) {seconds}"

    def sizes(self) -> str:
        """` for N = 4, overlap none`, as far as there is something to say."""
        found = [parameters_text(self.parameters, {} if self.diagnostics else self.settings)] if self.parameters else []
        found += [] if self.overlap is None else [f"overlap {self.overlap}"]
        return f" for {', '.join(found)}" if found else ""


def check(file: str, settings: Settings, process: Auditor | None = None, overlap: str | None = None) -> Outcome:
    """Loads a file once and checks it at all parameters, up to the first at which it is not right.

    process: that audits the kernels, too.
    """
    start = time.perf_counter()
    parameters: dict[str, int] = {}
    found: tuple[Diagnostic, ...] = ()
    compiled: list[AnyCompiled] = []
    try:
        schedule = open_schedule(file, overlap=overlap)
        for values in each(settings):
            parameters = _parameters(schedule, values)
            if process is None:
                prove(set_parameters(schedule, values))
            else:
                compiled.append(compile_schedule(set_parameters(schedule, values)))
    except DiagnosticError as error:
        found = error.diagnostics
    if process is None or found:
        return _outcome(file, parameters, settings, overlap, start, found)
    audit = audit_small(process, compiled)
    return replace(_outcome(file, parameters, settings, overlap, start, ()), audit=audit)


def check_and_compile(
    file: str, settings: Settings, *, overlap: str | None = None, debug: bool = False
) -> tuple[Outcome, AnyCompiled | None]:
    """Checks a file at one value of each parameter, and compiles it where it is right."""
    return _check_and(lambda schedule: compile_schedule(schedule, debug=debug), file, settings, overlap)


def check_and_port(file: str, settings: Settings, *, overlap: str | None = None) -> tuple[Outcome, Portable | None]:
    """The same for the portable back end, which needs the data flow alone to be right."""
    outcome, portable = _check_and(compile_portable, file, settings, overlap)
    return replace(outcome, checked="data flow"), portable


_Made = TypeVar("_Made")


def _check_and(
    make: Callable[[Schedule | Chain], _Made], file: str, settings: Settings, overlap: str | None
) -> tuple[Outcome, _Made | None]:
    start = time.perf_counter()
    parameters: dict[str, int] = {}
    try:
        schedule = open_schedule(file, overlap=overlap)
        parameters = _parameters(schedule, single(settings))
        compiled = make(set_parameters(schedule, single(settings)))
    except DiagnosticError as error:
        return _outcome(file, parameters, settings, overlap, start, error.diagnostics), None
    return _outcome(file, parameters, settings, overlap, start, ()), compiled


def _is_open(outcome: Outcome) -> bool:
    """Whether an audit was asked for that could not be made."""
    return outcome.audit is not None and bool(outcome.audit.undecided)


def _parameters(schedule: Schedule | Chain, values: dict[str, int]) -> dict[str, int]:
    return {p.name: values.get(p.name, p.value) for p in schedule.parameters}


def _outcome(
    file: str,
    parameters: dict[str, int],
    settings: Settings,
    overlap: str | None,
    start: float,
    diagnostics: tuple[Diagnostic, ...],
) -> Outcome:
    return Outcome(
        file=file,
        parameters=parameters,
        settings=settings,
        seconds=time.perf_counter() - start,
        diagnostics=diagnostics,
        overlap=overlap,
    )


def verify(
    files: tuple[str, ...], settings: tuple[str, ...], audit: bool, as_json: bool, overlap: str | None = None
) -> int:
    """Returns the exit code."""
    values = parse_settings(settings, ranges=True)
    statuses = []
    for file in files:
        with auditor(audit) as process:
            outcome = check(file, values, process, overlap)
        statuses.append(exit_status(outcome.diagnostics) or (EXIT_UNDECIDED if _is_open(outcome) else EXIT_RIGHT))
        if as_json:
            print_json(outcome.to_json())
        else:
            show(outcome.diagnostics)
            click.echo(outcome.sentence())
            if outcome.audit is not None and outcome.audit.undecided:
                say(f"not audited: {outcome.audit.undecided}")
    return worst(statuses)
