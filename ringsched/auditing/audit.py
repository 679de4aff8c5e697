"""A function with Pallas kernels  →  right, wrong or undecided. See `ringsched.audit`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ringsched.auditing import faults
from ringsched.auditing.extract import extract
from ringsched.auditing.layout import MARK, Layout, lay_out
from ringsched.auditing.tracing import CHIP, Call, find_calls
from ringsched.auditing.walk import Undecided
from ringsched.diagnostics import EXIT_RIGHT, EXIT_UNDECIDED, Diagnostic, Label, exit_code, render
from ringsched.program.trace import Execution, Wait
from ringsched.schedule.loader import sources
from ringsched.verify.hazard_diagnostics import diagnose
from ringsched.verify.hazards import check_hazards

Verdict = Literal["right", "wrong", "undecided"]
NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What came out for one function: all its kernels, each on all devices.

    `values` says whether what the kernels compute was checked; the verdict is about races, deadlock, leftover
    semaphores and bounds.
    """

    kernel: str
    kernels: tuple[str, ...]
    devices: int
    calls: int
    diagnostics: tuple[Diagnostic, ...]
    seconds: float
    values: str = NOT_CHECKED

    @property
    def verdict(self) -> Verdict:
        """Wrong where anything was found wrong, else undecided where anything is open."""
        match exit_code(self.diagnostics):
            case code if code == EXIT_RIGHT:
                return "right"
            case code if code == EXIT_UNDECIDED:
                return "undecided"
            case _:
                return "wrong"

    @property
    def ok(self) -> bool:
        return self.verdict == "right"

    def to_json(self) -> dict[str, object]:
        """The keys that `--json` promises, and more."""
        return {
            "kernel": self.kernel,
            "kernels": list(self.kernels),
            "devices": self.devices,
            "calls": self.calls,
            "verdict": self.verdict,
            "values": self.values,
            "seconds": round(self.seconds, 3),
            "diagnostics": [_json(diagnostic) for diagnostic in self.diagnostics],
        }

    def __str__(self) -> str:
        """The findings as the command line shows them, then the verdict."""
        texts = sources(self.diagnostics)
        parts = [render(diagnostic, texts) for diagnostic in self.diagnostics]
        return "\n\n".join([*parts, self.sentence()])

    def sentence(self) -> str:
        """The line for people."""
        count = len(self.diagnostics)
        what = (
            "races, deadlock, leftovers, bounds" if not count else f"{count} {'finding' if count == 1 else 'findings'}"
        )
        devices = f"{self.devices} {'device' if self.devices == 1 else 'devices'}"
        checked = f"{what}; {self.calls} calls in a row; values {self.values}"
        return f"{self.kernel}: {self.verdict} on {devices} ({checked}) in {self.seconds:.2f} s"


def audit(
    function: Callable[..., Any],
    *,
    mesh_axes: Mapping[str, int],
    args: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
    calls: int = 2,
    chip: str = CHIP,
) -> AuditReport:
    """See `ringsched.audit`."""
    start = time.perf_counter()
    names: tuple[str, ...] = ()
    try:
        found = find_calls(function, mesh_axes, args, in_specs, out_specs, chip)
        names = tuple({id(call.eqn): call.name for device in found for call in device}.values())
        diagnostics = _check(found, mesh_axes, calls)
    except Undecided as error:
        diagnostics = [faults.undecided(error, {})]
    return AuditReport(
        kernel=getattr(function, "__name__", "function"),
        kernels=names,
        devices=math.prod(mesh_axes.values()),
        calls=calls,
        diagnostics=tuple(diagnostics),
        seconds=time.perf_counter() - start,
    )


def _check(found: Sequence[Sequence[Call]], mesh_axes: Mapping[str, int], calls: int) -> list[Diagnostic]:
    extracted = extract(found, mesh_axes)
    if not extracted.complete:
        return list(extracted.findings)
    execution, layout = lay_out(extracted.devices, tuple(mesh_axes.values()))
    hazards = diagnose(check_hazards(execution, calls=calls), execution)
    told = [_in_users_words(hazard, execution, layout, mesh_axes) for hazard in hazards]
    return [*extracted.findings, *told]


_POSITION = re.compile(r"the wait at position (\d+) of the trace")
_UNITS = re.compile(rf"(\w+){MARK}(?:\[(\d+)(?::(\d+))?\])?")


def _in_users_words(
    diagnostic: Diagnostic, execution: Execution, layout: Layout, mesh_axes: Mapping[str, int]
) -> Diagnostic:
    """Units as the indices that the user's source has, positions as lines, and ranks with their places on the mesh."""

    def told(text: str) -> str:
        return _POSITION.sub(wait, _UNITS.sub(region, text))

    def wait(found: re.Match[str]) -> str:
        return _wait_at(int(found[1]), execution)

    def region(found: re.Match[str]) -> str:
        name, start, stop = found.groups()
        if start is None:
            return name
        return layout.describe(name, int(start), int(stop) if stop is not None else int(start) + 1)

    scopes = [layout.buffers[name].role == "scoped" for name, _, _ in _UNITS.findall(diagnostic.message)]
    if diagnostic.code in ("RS402", "RS403") and any(scopes):
        diagnostic = _of_a_scope(diagnostic)

    def labelled(label: Label) -> Label:
        return replace(label, text=told(label.text))

    return replace(
        diagnostic,
        message=told(diagnostic.message),
        primary=None if diagnostic.primary is None else labelled(diagnostic.primary),
        secondary=tuple(labelled(label) for label in diagnostic.secondary),
        notes=(*(told(note) for note in diagnostic.notes), *_places(diagnostic, mesh_axes)),
        help=None if diagnostic.help is None else told(diagnostic.help),
    )


def _of_a_scope(diagnostic: Diagnostic) -> Diagnostic:
    """Memory of a run_scoped comes and goes with the scope, not with the kernel."""
    primary = diagnostic.primary

    def told(text: str) -> str:
        return text.replace("the kernel", "the run_scoped")

    return replace(
        diagnostic,
        message=told(diagnostic.message),
        primary=None if primary is None else replace(primary, text=told(primary.text)),
        help=None if diagnostic.help is None else told(diagnostic.help),
    )


def _wait_at(position: int, execution: Execution) -> str:
    """The wait by its line, where all devices wait at the same one there."""
    ops = [trace[position] for trace in execution.traces if position < len(trace)]
    lines = {f"{op.origin.path}:{op.origin.line}" for op in ops if isinstance(op, Wait) and op.origin is not None}
    return f"the wait in {lines.pop()}" if len(lines) == 1 else "a later wait"


def _places(diagnostic: Diagnostic, mesh_axes: Mapping[str, int]) -> tuple[str, ...]:
    """On a mesh of several axes: where the ranks that are spoken of are."""
    if len(mesh_axes) < 2:
        return ()
    texts = (diagnostic.message, *diagnostic.notes)
    ranks = sorted({int(rank) for text in texts for rank in re.findall(r"rank (\d+)", text)})
    told = []
    for rank in ranks:
        place: list[str] = []
        rest = rank
        for axis, side in reversed(list(mesh_axes.items())):
            place.insert(0, f"{axis}={rest % side}")
            rest //= side
        told.append(f"rank {rank} is at {', '.join(place)}")
    return ("; ".join(told),) if told else ()


def _json(diagnostic: Diagnostic) -> dict[str, object]:
    """With the other places, too: a race has two."""
    others = [
        {"path": label.span.path, "line": label.span.line, "column": label.span.column, "text": label.text}
        for label in diagnostic.secondary
    ]
    return {**diagnostic.to_json(), "other_places": others}
