"""Spans, diagnostics and how they are shown.

A user's mistake is a value, `Diagnostic`; a stage collects all of them and raises one `DiagnosticError`. A fault of
ours is an `InternalError`. "Undecided" is a verdict of its own and never stands for success.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

EXIT_RIGHT = 0
EXIT_WRONG = 1
EXIT_USAGE = 2
EXIT_UNDECIDED = 3
EXIT_INTERNAL = 101

WIDTH = 110  # columns of a rendered finding
SHOWN_STEPS = 16  # of an interleaving


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of a file. Lines and columns count from 1; the end column is exclusive."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A span and what is to be said about it, printed beside the carets."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding: a code of the catalogue, a sentence, the places, and what would mend it.

    `interleaving`: a run in which it happens, step by step.
    """

    code: str
    message: str
    primary: Label | None = None
    secondary: tuple[Label, ...] = ()
    counterexample: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()
    interleaving: tuple[str, ...] = ()
    help: str | None = None
    follows: str | None = None  # the code of another finding: mend that one, and this one goes; shown in one line

    def to_json(self) -> dict[str, object]:
        """The keys that `--json` promises: code, message, path, line, column, counterexample, help."""
        span = self.primary.span if self.primary else None
        return {
            "code": self.code,
            "message": self.message,
            "path": span.path if span else None,
            "line": span.line if span else None,
            "column": span.column if span else None,
            "counterexample": dict(self.counterexample) if self.counterexample is not None else None,
            "help": self.help,
            "notes": list(self.notes),
            **({"interleaving": list(self.interleaving)} if self.interleaving else {}),
            **({"follows": self.follows} if self.follows else {}),
        }


class DiagnosticError(Exception):
    """The user's input is at fault; carries every finding of the stage that stopped."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("; ".join(f"{d.code}: {d.message}" for d in self.diagnostics))


class InternalError(Exception):
    """ringsched itself is at fault (exit code 101)."""


@dataclass(slots=True)
class Collector:
    """Gathers the diagnostics of one stage; `check` raises them together."""

    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    def check(self) -> None:
        if self.diagnostics:
            raise DiagnosticError(self.diagnostics)


def exit_code(diagnostics: Iterable[Diagnostic]) -> int:
    """RS1xx is input that cannot be read (2), RS7xx an open question (3), RS9xx advice (0), the rest wrong (1)."""
    rank = {"1": EXIT_USAGE, "7": EXIT_UNDECIDED, "9": EXIT_RIGHT}
    codes = {rank.get(d.code[2], EXIT_WRONG) for d in diagnostics}
    for code in (EXIT_USAGE, EXIT_WRONG, EXIT_UNDECIDED):
        if code in codes:
            return code
    return EXIT_RIGHT


def render(diagnostic: Diagnostic, sources: Mapping[str, str]) -> str:
    """The text of one finding, in the layout of the manual; `sources` maps a path to the file's text."""
    severity = "advice" if diagnostic.code.startswith("RS9") else "error"
    if diagnostic.follows is not None:
        return f"{severity}[{diagnostic.code}]: {diagnostic.message} (follows from {diagnostic.follows})"
    lines = [f"{severity}[{diagnostic.code}]: {diagnostic.message}"]
    labels = ([diagnostic.primary] if diagnostic.primary else []) + list(diagnostic.secondary)
    width = max((len(str(label.span.line)) for label in labels), default=1)
    gutter = " " * width
    for number, label in enumerate(labels):
        lines.append(f"{gutter} {'-->' if number == 0 else ':::'} {label.span}")
        lines.extend(_excerpt(label, sources, width, "^" if number == 0 else "-"))
    facts = []
    if diagnostic.counterexample:
        facts.append("counterexample: " + ", ".join(f"{k} = {v}" for k, v in diagnostic.counterexample.items()))
    facts.extend(diagnostic.notes)
    if diagnostic.interleaving:
        facts.append("\n".join(("so it happens:", *_shortened(diagnostic.interleaving))))
    if diagnostic.help is not None:
        facts.append(f"help: {diagnostic.help}")
    facts.append(f"more: ringsched explain {diagnostic.code}")
    if labels:
        lines.append(f"{gutter} |")
    for fact in facts:
        first, *rest = _wrapped(fact, WIDTH - width - 3)
        lines.append(f"{gutter} = {first}")
        lines.extend(f"{gutter}   {line}" for line in rest)
    return "\n".join(lines)


def _shortened(steps: Sequence[str]) -> list[str]:
    """Long runs are cut in the middle."""
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    if len(numbered) <= SHOWN_STEPS:
        return numbered
    half = SHOWN_STEPS // 2
    left_out = len(numbered) - 2 * half
    return [*numbered[:half], f"… {left_out} more steps, which --json shows", *numbered[-half:]]


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a note; one that is too long goes on in the next, indented."""
    lines: list[str] = []
    for line in text.split("\n"):
        room = textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        lines.extend(room if len(line) > width else [line])
    return lines


def _excerpt(label: Label, sources: Mapping[str, str], width: int, mark: str) -> list[str]:
    """The source line with carets under the span; nothing where the text is not at hand."""
    rows = sources.get(label.span.path, "").split("\n")
    if not 1 <= label.span.line <= len(rows):
        return []
    row = rows[label.span.line - 1].rstrip("\r").replace("\t", " ")
    row = re.sub(r"[\x00-\x1f\x7f-\x9f]", "\ufffd", row)  # a file must not steer the terminal
    start = label.span.column - 1
    if label.span.end_line == label.span.line:
        stop = max(label.span.end_column - 1, start + 1)
    else:
        stop = max(len(row), start + 1)
    if len(row) > 160:  # a window of a line too long to be read
        left = max(0, start - 60)
        row = ("…" if left else "") + row[left : left + 150] + "…"
        start, stop = start - left + bool(left), min(stop - left + bool(left), 151)
    gutter = " " * width
    carets = " " * start + mark * max(stop - start, 1)
    text = f" {label.text}" if label.text else ""
    return [f"{gutter} |", f"{label.span.line:>{width}} | {row}", f"{gutter} | {carets}{text}"]
