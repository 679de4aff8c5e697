"""What the hazard check found in a kernel, in the words of its source, with a run in which it happens.

HazardReport, Execution, Layout  →  Diagnostics
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ringsched.auditing.layout import MARK, Layout
from ringsched.diagnostics import Diagnostic, InternalError, Label
from ringsched.program.trace import Execution, Wait
from ringsched.verify.hazard_diagnostics import diagnosed
from ringsched.verify.hazards import HazardReport
from ringsched.verify.replay import replay
from ringsched.verify.retelling import describe
from ringsched.verify.witness import Finding, shown, witness

_POSITION = re.compile(r"the wait at position (\d+) of the trace")
_UNITS = re.compile(rf"(\w+){MARK}(?:\[(\d+)(?::(\d+))?\])?")


@dataclass(frozen=True, slots=True)
class Words:
    """Units as the indices that the user's source has, and positions as lines."""

    execution: Execution
    layout: Layout

    def of(self, text: str) -> str:
        return _POSITION.sub(self._wait, _UNITS.sub(self._region, text))

    def is_scoped(self, text: str) -> bool:
        """Whether memory of a run_scoped is spoken of."""
        return any(self.layout.buffers[name].role == "scoped" for name, _, _ in _UNITS.findall(text))

    def _region(self, found: re.Match[str]) -> str:
        name, start, stop = found.groups()
        if start is None:
            return str(name)
        return self.layout.describe(name, int(start), int(stop) if stop is not None else int(start) + 1)

    def _wait(self, found: re.Match[str]) -> str:
        """The wait by its line, where all devices wait at the same one there."""
        position = int(found[1])
        ops = [trace[position] for trace in self.execution.traces if position < len(trace)]
        lines = {f"{op.origin.path}:{op.origin.line}" for op in ops if isinstance(op, Wait) and op.origin is not None}
        return f"the wait in {lines.pop()}" if len(lines) == 1 else "a later wait"


def findings(
    report: HazardReport, execution: Execution, layout: Layout, mesh_axes: Mapping[str, int], calls: int
) -> list[Diagnostic]:
    """One for each pair of places that race, one for a deadlock, one for each semaphore left over."""
    words = Words(execution, layout)
    found = []
    for finding, diagnostic in diagnosed(report, execution):
        if diagnostic.code in ("RS402", "RS403", "RS524") and words.is_scoped(diagnostic.message):
            diagnostic = _of_a_scope(diagnostic)
        steps = () if diagnostic.follows else tuple(words.of(step) for step in _run(execution, finding, calls))
        found.append(_with(words, diagnostic, _places(diagnostic, mesh_axes), steps))
    return found


def _run(execution: Execution, finding: Finding, calls: int) -> tuple[str, ...]:
    """An interleaving that shows the finding when it is replayed."""
    run = witness(execution, finding, calls)
    if shown(execution, finding, replay(execution, run, calls)) is None:
        raise InternalError(f"the run for {finding} does not show it")
    return describe(execution, run, calls)


def _with(words: Words, diagnostic: Diagnostic, notes: tuple[str, ...], steps: tuple[str, ...]) -> Diagnostic:
    def labelled(label: Label) -> Label:
        return replace(label, text=words.of(label.text))

    return replace(
        diagnostic,
        message=words.of(diagnostic.message),
        primary=None if diagnostic.primary is None else labelled(diagnostic.primary),
        secondary=tuple(labelled(label) for label in diagnostic.secondary),
        notes=(*(words.of(note) for note in diagnostic.notes), *notes),
        interleaving=steps,
        help=None if diagnostic.help is None else words.of(diagnostic.help),
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
