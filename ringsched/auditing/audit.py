"""A function with Pallas kernels  →  right, wrong or undecided. See `ringsched.audit`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ringsched.auditing import faults
from ringsched.auditing.chips import chip_of
from ringsched.auditing.cores import check_cores
from ringsched.auditing.expectation import Expect
from ringsched.auditing.extract import Extracted, extract
from ringsched.auditing.grids import CORES
from ringsched.auditing.layout import Layout, lay_out
from ringsched.auditing.manners import shared_ids
from ringsched.auditing.rounds import FEWEST, check_calls, largest_wait
from ringsched.auditing.scopes import on_shared_flags, outside_scopes, sharing
from ringsched.auditing.tracing import CHIP, AuditError, Device, find_calls
from ringsched.auditing.values import Checked, Values, check_values
from ringsched.auditing.walk import Undecided
from ringsched.auditing.words import Words, findings
from ringsched.diagnostics import EXIT_RIGHT, EXIT_UNDECIDED, EXIT_WRONG, Diagnostic, exit_code, render
from ringsched.program.trace import Execution
from ringsched.schedule.loader import sources
from ringsched.verify.hazards import check_hazards

Verdict = Literal["right", "wrong", "undecided"]
AFTER_FINDINGS = Checked(values="not checked", reason="after what was found")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What came out for one function: all its kernels, each on all devices.

    `values`: how what the kernels compute compares with what was expected. The verdict is about that, races, deadlock,
    leftover semaphores and bounds.
    """

    kernel: str
    kernels: tuple[str, ...]
    devices: int
    calls: int
    diagnostics: tuple[Diagnostic, ...]
    seconds: float
    values: Values = "not checked"
    values_reason: str | None = None  # why they are not checked, or not known

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
            "values_reason": self.values_reason,
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
        why = f": {self.values_reason}" if self.values_reason else ""
        checked = f"{what}; {self.calls} calls in a row; values {self.values}{why}"
        return f"{self.kernel}: {self.verdict} on {devices} ({checked}) in {self.seconds:.2f} s"


def audit(
    function: Callable[..., Any],
    *,
    mesh_axes: Mapping[str, int],
    args: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
    expect: Expect | None = None,
    calls: int | None = None,
    chip: str = CHIP,
    cores: int = 1,
) -> AuditReport:
    """See `ringsched.audit`."""
    if cores not in (1, CORES):
        raise AuditError(f"a device has 1 or {CORES} cores, not {cores}")
    start = time.perf_counter()
    names: tuple[str, ...] = ()
    values = AFTER_FINDINGS
    in_a_row = calls or FEWEST
    try:
        found = find_calls(function, mesh_axes, args, in_specs, out_specs, chip, cores)
        names = tuple({id(call.eqn): call.form.name for device in found for call in device.calls}.values())
        diagnostics, values, in_a_row = _check(found, mesh_axes, calls, expect, chip, cores)
    except Undecided as error:
        diagnostics = [faults.undecided(error, {})]
    return AuditReport(
        kernel=getattr(function, "__name__", "function"),
        kernels=names,
        devices=math.prod(mesh_axes.values()),
        calls=in_a_row,
        diagnostics=tuple(diagnostics),
        seconds=time.perf_counter() - start,
        values=values.values,
        values_reason=values.reason,
    )


def _check(
    found: Sequence[Device],
    mesh_axes: Mapping[str, int],
    calls: int | None,
    expect: Expect | None,
    chip: str,
    cores: int,
) -> tuple[list[Diagnostic], Checked, int]:
    """With two cores in a device, a parallel grid may run on both, or on one in sequence: either has to be right."""
    told, values, in_a_row = _check_on_one(found, mesh_axes, calls, expect, chip, cores)
    if cores == 1 or exit_code(told) != EXIT_RIGHT:
        return told, values, in_a_row
    checked = check_cores(found, mesh_axes, calls, expect)
    return [*told, *checked.findings], checked if checked.findings else values, in_a_row


def _check_on_one(
    found: Sequence[Device],
    mesh_axes: Mapping[str, int],
    asked: int | None,
    expect: Expect | None,
    chip: str,
    cores: int,
) -> tuple[list[Diagnostic], Checked, int]:
    """All steps of a grid on one core of each device."""
    extracted = extract(found, mesh_axes, chip_of(chip), cores=cores)
    if not extracted.complete:
        return list(extracted.findings), AFTER_FINDINGS, asked or FEWEST
    execution, layout = lay_out(extracted.devices, tuple(mesh_axes.values()))
    report, calls, enough = check_calls(execution, extracted.devices, asked)
    told = findings(report, execution, layout, mesh_axes, calls)
    told = _with_flat_ids(_with_shared_ids(told, extracted, mesh_axes, calls), extracted, mesh_axes)
    if not told:
        told = [*_beside_scopes(extracted, execution, layout, mesh_axes, calls)]
    if not told and not enough:
        told = [faults.more_calls(calls, largest_wait(extracted.devices))]
    if not report.ok or exit_code([*extracted.findings, *told]) != EXIT_RIGHT:
        return [*extracted.findings, *told], AFTER_FINDINGS, calls
    checked = check_values(extracted.devices, found, mesh_axes, expect)
    wrong = _with_flat_ids(list(checked.findings), extracted, mesh_axes)
    return [*extracted.findings, *told, *wrong], checked, calls


def _beside_scopes(
    extracted: Extracted, execution: Execution, layout: Layout, mesh_axes: Mapping[str, int], calls: int
) -> Iterator[Diagnostic]:
    """Of a function that is right as far as memory and semaphores of scopes are there as long as they are needed."""
    for dma in outside_scopes(execution):
        yield faults.outside_scope(Words(execution, layout).of(dma.note), dma.rank, dma.origin, len(execution.traces))
        return
    pairs = list(sharing(extracted.kernels))
    sides = tuple(mesh_axes.values())
    if pairs and not check_hazards(lay_out(on_shared_flags(extracted.devices), sides)[0], calls=calls).ok:
        (one, place), (other, elsewhere) = pairs[0]
        yield faults.shared_flags((one.name, other.name), (place, elsewhere))


def _with_flat_ids(told: list[Diagnostic], extracted: Extracted, mesh_axes: Mapping[str, int]) -> list[Diagnostic]:
    """A LOGICAL id on a mesh of several axes is most likely what is behind anything that is wrong."""
    places = [span for kernel in extracted.kernels for walker in kernel.walkers for span in walker.flat_ids]
    if not places or exit_code(told) != EXIT_WRONG:
        return told
    return [faults.logical_id(mesh_axes, places[0], told[0]), *told]


def _with_shared_ids(
    told: list[Diagnostic], extracted: Extracted, mesh_axes: Mapping[str, int], calls: int
) -> list[Diagnostic]:
    """Kernels with one collective_id that signal different devices: the reason why one is entered too early, or not."""
    shared = shared_ids(extracted.kernels)
    if not shared:
        return told
    early = [each for each in told if each.code in ("RS402", "RS524")]
    alone = [
        check_hazards(lay_out([[s for s in stays if s.kernel == k] for stays in extracted.devices], sides)[0], calls).ok
        for sides in [tuple(mesh_axes.values())]
        for k in range(len(extracted.kernels))
    ]
    if told and not (early and all(alone)):
        return told
    (first, second), reason = shared[0], early[0] if early else None
    names = first.call.form.name, second.call.form.name
    number = int(first.call.form.collective_id or 0)
    finding = faults.shared_id(number, names, reason, (first.places.call, second.places.call))
    return [finding, *(each for each in told if each not in early)]


def _json(diagnostic: Diagnostic) -> dict[str, object]:
    """With the other places, too: a race has two."""
    others = [
        {"path": label.span.path, "line": label.span.line, "column": label.span.column, "text": label.text}
        for label in diagnostic.secondary
    ]
    return {**diagnostic.to_json(), "other_places": others}
