"""The small commands: explain, fmt, schema, init, schedules."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import click

from ringsched.commands.output import cannot_write, exit_status, say, show, worst, write_file
from ringsched.diagnostics import EXIT_RIGHT, EXIT_USAGE, EXIT_WRONG, Diagnostic, DiagnosticError

STARTER = """\
# A schedule says which chunk goes to which neighbour at which step. It is written for one rank, `r`; all ranks run it.
#     ringsched verify {name}.yaml --set N=8      is it right?
#     ringsched compile {name}.yaml               writes the Pallas kernel {name}.py
#     ringsched run {name}.yaml                   runs it on virtual devices and compares with jax.lax
schedule: {name}

# What is held at the start and promised at the end: all_gather, reduce_scatter, all_reduce, all_to_all,
# {{permute: EXPRESSION}}, or with a root {{broadcast: 0}}, {{reduce: 0}}, {{gather: 0}}, {{scatter: 0}}.
collective: all_gather

# The links: {{ring: N}}, {{line: N}}, {{mesh: [X, Y]}}, {{torus: [X, Y]}}, or {{links: [[0, 1], [1, 2]]}}.
topology: {{ring: N}}

# Parameters and their defaults; `--set N=8` gives another value.
params: {{N: 4}}

# The index space of the chunks. Rank r starts with chunk[r], and all_gather promises every chunk to every rank.
chunks: [N]

# Steps run one after the other; the transfers of one step are concurrent.
steps:
  - for: s in 0 .. N - 2  # both ends included
    do:
      # Forward the chunk that arrived in the step before; in the first step, the rank's own.
      # `op: reduce` would add it to what the receiver holds; `when: r > 0` would let only some ranks send.
      - send: chunk[(r - s) % N]  # % is never negative
        to: r + 1                 # on a ring the last rank's neighbour is rank 0
"""


def explain(code: str | None) -> int:
    """Prints the catalogue's entry for a code, or one line for each code."""
    from ringsched.codes import CATALOGUE
    from ringsched.codes import explain as text_of
    from ringsched.schedule.vocabulary import closest

    if code is None:
        for entry in CATALOGUE.values():
            click.echo(f"{entry.code}  {entry.title}")
        return EXIT_RIGHT
    text = text_of(code)
    if text is None:
        near = closest(code.upper(), CATALOGUE)
        hint = f"Did you mean {near}? " if near else ""
        raise click.UsageError(f"There is no code {code!r}. {hint}`ringsched explain` lists all.")
    click.echo(text, nl=False)
    return EXIT_RIGHT


def format_files(files: tuple[str, ...], check: bool) -> int:
    """Formats files in place, or with `check` says which are not formatted."""
    from ringsched.schedule.loader import read_text
    from ringsched.schedule.printer import format_text

    statuses = []
    for file in files:
        try:
            formatted = format_text(read_text(file), file)
            if Path(file).read_bytes() == formatted.encode():
                continue
            if check:
                click.echo(f"{file}: not formatted")
                statuses.append(EXIT_WRONG)
            else:
                write_file(Path(file), formatted)
                click.echo(f"{file}: formatted")
        except DiagnosticError as error:
            show(error.diagnostics)
            statuses.append(exit_status(error.diagnostics))
    return worst(statuses)


def schema() -> int:
    """Prints the JSON schema of schedule files."""
    from ringsched.schedule.surface import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
    return EXIT_RIGHT


def init(name: str) -> int:
    """Writes NAME.yaml, unless there is such a file."""
    from ringsched.schedule.vocabulary import name_fault

    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    fault = name_fault(path.stem)
    if fault:
        message = f"a schedule cannot be called `{path.stem}`: {fault}"
        show([Diagnostic(code="RS115", message=message, help="ringsched init my_all_gather")])
        return EXIT_USAGE
    if path.exists() or path.is_symlink():
        raise cannot_write(path, "it exists already", "choose another name")
    write_file(path, STARTER.format(name=path.stem))
    say(f"wrote {path}, a ring all-gather to start from")
    return EXIT_RIGHT


def schedules() -> int:
    """Lists the shipped schedules, each with what its file says about itself."""
    from ringsched.schedule.loader import load, shipped_directory, shipped_names

    names = shipped_names()
    width = max((len(name) for name in names), default=0)
    for name in names:
        path = shipped_directory() / f"{name}.yaml"
        about = load(path).description or _first_comment(path.read_text(encoding="utf-8"))
        first, *rest = textwrap.wrap(about, 100 - width, break_on_hyphens=False) or [""]
        click.echo(f"{name:<{width}}  {first}".rstrip())
        for line in rest:
            click.echo(f"{'':<{width}}  {line}")
    click.echo(f"\nThe files are in {shipped_directory()}", err=True)
    return EXIT_RIGHT


def _first_comment(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return " ".join(lines)
