"""What commands print and write: findings on stderr, results on stdout, files whole or not at all."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import click

from ringsched.diagnostics import (
    EXIT_RIGHT,
    EXIT_UNDECIDED,
    EXIT_USAGE,
    EXIT_WRONG,
    Diagnostic,
    DiagnosticError,
    exit_code,
    render,
)

Verdict = Literal["right", "wrong", "undecided", "not checked"]

# These are about the command rather than the schedule: a parameter, a target or an output that cannot be used.
_ABOUT_THE_COMMAND = {"RS213", "RS218", "RS240", "RS241", "RS601", "RS602", "RS603", "RS611", "RS613", "RS831"}
_OPEN = {"RS605", "RS609"}  # a deadline decides nothing
_NOTES = {"RS610"}  # said, and no failure


def exit_status(diagnostics: Iterable[Diagnostic]) -> int:
    """The exit code for all findings together."""
    statuses = []
    for diagnostic in diagnostics:
        if diagnostic.code in _ABOUT_THE_COMMAND:
            statuses.append(EXIT_USAGE)
        elif diagnostic.code in _OPEN:
            statuses.append(EXIT_UNDECIDED)
        elif diagnostic.code not in _NOTES:
            statuses.append(exit_code([diagnostic]))
    return worst(statuses)


def worst(statuses: Iterable[int]) -> int:
    """The exit code of several files: unreadable before wrong before undecided."""
    found = set(statuses)
    return next((status for status in (EXIT_USAGE, EXIT_WRONG, EXIT_UNDECIDED) if status in found), EXIT_RIGHT)


def verdict_of(diagnostics: Iterable[Diagnostic]) -> Verdict:
    """What `--json` calls the verdict."""
    match exit_status(diagnostics):
        case code if code == EXIT_RIGHT:
            return "right"
        case code if code == EXIT_UNDECIDED:
            return "undecided"
        case code if code == EXIT_USAGE:
            return "not checked"
        case _:
            return "wrong"


def show(diagnostics: Iterable[Diagnostic]) -> None:
    """Findings on stderr, in colour on a terminal."""
    from ringsched.schedule.loader import sources

    found = tuple(diagnostics)
    texts = sources(found)
    for diagnostic in found:
        say(render(diagnostic, texts) + "\n", findings=True)


def say(text: str, *, findings: bool = False) -> None:
    """A message on stderr."""
    if findings and sys.stderr.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        _colour(text)
    else:
        click.echo(text, err=True)


def progress(text: str) -> None:
    """A message for someone who waits at a terminal."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


_STYLES = (
    (r"(?m)^error\[RS\d+\]", "bold red"),
    (r"(?m)^advice\[RS\d+\]", "bold yellow"),
    (r"(?m)^(?:error|advice)\[RS\d+\](.*)$", "bold"),
    (r"(?m)^ *(?:-->|:::) .*$", "blue"),
    (r"(?m)^ *\d* (?:\||=)", "blue"),
    (r"(?m)^ *\| *(\^+.*)$", "bold red"),
    (r"(?m)^ *\| *(-+(?: .*)?)$", "cyan"),
    (r"(?m)^ *= (help:)", "bold green"),
    (r"(?m)^ *= (more:.*)$", "dim"),
)


def _colour(text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES:
        for match in re.finditer(pattern, text):
            start, end = match.span(1 if match.re.groups else 0)
            styled.stylize(style, start, end)
    Console(stderr=True, soft_wrap=True, highlight=False).print(styled)


def print_json(entry: Mapping[str, object]) -> None:
    """One JSON document on one line of stdout."""
    click.echo(json.dumps(entry, ensure_ascii=False, allow_nan=False))


def write_file(path: Path, text: str | bytes, *, sources: Sequence[Path] = ()) -> None:
    """Writes `text` to `path` as a whole or not at all, never over one of `sources`. Raises RS611."""
    try:
        if any(path.exists() and source.exists() and path.samefile(source) for source in sources):
            raise cannot_write(path, "it is the schedule itself", "choose another file with -o")
        if path.is_dir():
            raise cannot_write(path, "it is a directory", f"-o {path / 'kernel.py'}")
        if path.exists() and not path.is_file():  # a device or a pipe has no older text to keep
            path.write_bytes(_encoded(text))
            return
        _replace(path.resolve(), text)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: of a loop of links, up to Python 3.12
        loop = os.strerror(errno.ELOOP) if isinstance(error, RuntimeError) else None
        reason = loop or getattr(error, "strerror", None) or str(error)
        raise cannot_write(path, reason, "choose a file in a directory that exists and may be written") from None


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8")


def _replace(path: Path, text: str | bytes) -> None:
    if path.exists():
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        mode = path.stat().st_mode & 0o7777
    else:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    _forget_killed(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{_hidden(path)}{os.getpid()}.")
    try:
        with open(handle, "wb") as stream:
            stream.write(_encoded(text))
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _hidden(path: Path) -> str:
    """How names of files begin that are to become this one."""
    return f".{path.name[:50]}.ringsched-"


def _forget_killed(path: Path) -> None:
    """Removes what processes have left that were killed while they wrote the file."""
    for left in path.parent.glob(f"{glob.escape(_hidden(path))}*"):
        process = left.name.removeprefix(_hidden(path)).split(".")[0]
        if process.isdecimal() and not _lives(int(process)):
            left.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # of another user
    return True


def cannot_write(path: Path, reason: str, help: str) -> DiagnosticError:
    """RS611."""
    return DiagnosticError([Diagnostic(code="RS611", message=f"{path} cannot be written: {reason}", help=help)])
