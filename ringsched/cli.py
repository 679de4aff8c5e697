"""The command line: arguments, exit codes, and what happens to errors.

Nothing but click is imported before a command runs, so that `--help` answers at once (within 0.15 s).

0 right · 1 a schedule or kernel is wrong · 2 usage or unreadable input · 3 undecided · 130 interrupted · 101 a bug
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ringsched.commands import clock

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Commands(click.Group):
    """Suggests a command for a misspelt one, and is quiet when the reader of its output goes away."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.commands, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit complains
            ctx.exit(EXIT_BROKEN_PIPE)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from ringsched import __version__

        click.echo(f"ringsched {__version__}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
@click.option("--traceback", is_flag=True, help="With a bug in ringsched, print where it happened.")
def cli(traceback: bool) -> None:
    """Compile collective communication schedules (YAML) into Pallas kernels for TPUs, proven right.

    \b
    ringsched verify all_gather.yaml --set N=8
    ringsched compile all_gather.yaml
    ringsched run all_gather.yaml

    FILE is a schedule file, or the name of a shipped schedule (see `ringsched schedules`).

    Exit codes: 0 right, 1 a schedule or kernel is wrong, 2 usage or unreadable input, 3 undecided, 130 interrupted, 101
    a bug in ringsched.
    """


def _set(help: str) -> Callable[[_Function], _Function]:
    return click.option("--set", "settings", metavar="N=8", multiple=True, help=help)


_SET = _set("Set a parameter; may be repeated.")
_SHAPE = click.option(
    "--shape", multiple=True, metavar="x=256x1024:bf16", help="The operand on one rank, and its dtype; w is the weight."
)
_OVERLAP = click.option(
    "--overlap",
    type=click.Choice(["full", "none"]),
    help="none: products and transfers one after the other, for comparison.  [default: as the schedule says]",
)
_BACKEND = click.option(
    "--backend",
    type=click.Choice(["pallas", "xla"]),
    default="pallas",
    show_default=True,
    help="xla: lax.ppermute in place of a TPU kernel, for any device.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document a file.")


@cli.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@_set("Set a parameter, to one value or to each of a range (N=2..8); may be repeated.")
@_OVERLAP
@click.option("--audit", is_flag=True, help="Also read the generated kernel back and check it, or one for fewer ranks.")
@_JSON
def verify(files: tuple[str, ...], settings: tuple[str, ...], overlap: str | None, audit: bool, as_json: bool) -> int:
    """Check schedules: data flow, values, races, deadlock, leftovers. Writes nothing."""
    from ringsched.commands.verify import verify

    return verify(files, settings, audit, as_json, overlap)


@cli.command(name="compile")
@click.argument("file", metavar="FILE")
@_SET
@_OVERLAP
@_BACKEND
@click.option("-o", "--output", metavar="OUT", help="The file to write; - is stdout. Default: the schedule's name.py.")
@click.option(
    "--emit",
    type=click.Choice(["schedule", "program", "kernel"]),
    help="Print this form, or write it to the file given by -o.",
)
@click.option("--explain", is_flag=True, help="Print the compiler's decisions and their reasons (on stderr).")
@click.option("--debug", is_flag=True, help="A kernel that prints rank, step and chunk of each transfer as it runs.")
@click.option("--target", metavar="v5p:2x2x1", help="Also compile the kernel with the TPU compiler, and report.")
@click.option(
    "--compare",
    metavar="FILE",
    help="With --target: the same figures of another schedule, kernel module or --json report beside them.",
)
@_SHAPE
@click.option(
    "--cores", type=click.Choice(["1", "2"]), help="Of a device of --target, for what multiplies.  [default: as it has]"
)
@click.option(
    "--audit/--no-audit", default=True, help="Read the kernel, or one for fewer ranks, and check it.  [default: audit]"
)
@_JSON
def compile_command(**arguments: Any) -> int:
    """Check a schedule and write its Pallas kernel."""
    from ringsched.commands.compile import Request, compile_file

    return compile_file(Request(**arguments))


@cli.command()
@click.argument("file", metavar="FILE")
@_SET
@_OVERLAP
@_BACKEND
@_SHAPE
@click.option("--dtype", metavar="bf16", help="The operand's dtype, where --shape does not say it.  [default: f32]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the operand's random values.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), metavar="S", help="Seconds after which a run counts as hung."
)
@_JSON
def run(**arguments: Any) -> int:
    """Run a schedule's kernel on virtual CPU devices and compare it with jax.lax.

    The kernel runs in TPU interpret mode with race detection, in both DMA modes, two calls in a row; with --backend
    xla the module runs as it stands.
    """
    from ringsched.commands.run import Request, run_file

    return run_file(Request(**arguments))


@cli.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option(
    "--mesh",
    multiple=True,
    required=True,
    metavar="i=4",
    help="The axes of the mesh and their sizes: i=4 or x=2,y=4; may be repeated.",
)
@click.option(
    "--args",
    "arguments",
    multiple=True,
    metavar="f32[32,128]",
    help="A global operand; once for each. MODULE:NAME is an array of integers, a constant.",
)
@click.option(
    "--in-specs", multiple=True, metavar="i", help="Its mesh axis for each dimension: i or -,i or x+y; once an operand."
)
@click.option("--out-specs", multiple=True, metavar="i", help="The same for the result; once for each.")
@click.option("--expect", metavar="NAME", help="What it ought to compute: all_gather, …, or a MODULE:FUNCTION.")
@click.option("--chip", type=click.Choice(["v4", "v5e", "v5p", "v6e", "tpu7x"]), default="v5p", show_default=True)
@click.option("--calls", type=click.IntRange(1, 64), help="Calls in a row; without it, as many as it takes.")
@click.option("--cores", type=click.Choice(["1", "2"]), default="1", show_default=True, help="Of a device.")
@_JSON
def audit(**arguments: Any) -> int:
    """Check the Pallas kernels of a function: races, deadlock, leftovers, bounds, values.

    \b
    ringsched audit mypkg.kernels:all_gather --mesh i=4 --args 'f32[32,128]' --in-specs i --out-specs i
        --expect all_gather

    FUNCTION is what jax.shard_map would be given; MODULE is looked for in the current directory, too. No device is
    needed. --expect names a collective (all_gather, reduce_scatter, all_reduce, all_to_all) or a function of jax.lax
    collectives that takes the same arguments; without it, what the kernels compute is not compared with anything.
    """
    from ringsched.commands.audit import Request, audit_function

    return audit_function(Request(**arguments))


@cli.command()
@click.argument("file", metavar="FILE")
@_SET
@click.option("-o", "--output", metavar="OUT.svg", help="Also draw it: the graph, each step, each link; - is stdout.")
@_JSON
def show(**arguments: Any) -> int:
    """Show what each step sends and what each link carries; nothing is verified.

    Units are one rank's shard over one link; a step takes as long as its busiest link.
    """
    from ringsched.commands.show import Request, show_file

    return show_file(Request(**arguments))


@cli.group(name="import")
def import_group() -> None:
    """Judge a schedule of another tool, and make it one of ringsched's."""


@import_group.command(name="msccl")
@click.argument("file", metavar="FILE.xml")
@click.option("-o", "--output", metavar="MY.yaml", help="Write the schedule there; - is stdout.  [default: write none]")
@_JSON
def import_msccl(**arguments: Any) -> int:
    """MSCCL XML, of any writer.

    The file is judged in its own terms first: races, hangs with as many messages in flight as its protocol allows, and
    what every rank holds at the end. What is right becomes a schedule.
    """
    from ringsched.commands.importing import import_msccl

    return import_msccl(**arguments)


@cli.group(name="export")
def export_group() -> None:
    """Write a schedule for another tool."""


@export_group.command(name="msccl")
@click.argument("file", metavar="FILE")
@_SET
@click.option("-o", "--output", metavar="OUT.xml", default="-", help="The file to write.  [default: stdout]")
@click.option("--protocol", type=click.Choice(["Simple", "LL", "LL128"]), default="Simple", show_default=True)
@click.option(
    "--channels",
    type=click.IntRange(1, 32),
    default=8,
    show_default=True,
    help="For messages of a step that go one way.",
)
@_JSON
def export_msccl(**arguments: Any) -> int:
    """MSCCL XML. What is written is judged as `import msccl` does before it is."""
    from ringsched.commands.exporting import export_msccl

    return export_msccl(**arguments)


@export_group.command(name="chakra")
@click.argument("file", metavar="FILE")
@_SET
@click.option("-o", "--output", metavar="PREFIX", help="Writes PREFIX.RANK.et.  [default: the schedule's name]")
@click.option(
    "--bytes", "shard", type=click.IntRange(1), default=1 << 20, show_default=True, help="Of a rank's operand."
)
@click.option("--format", "form", type=click.Choice(["et", "json"]), default="et", show_default=True)
@_JSON
def export_chakra(**arguments: Any) -> int:
    """A Chakra execution trace: for each rank its sends, receives and additions, for simulators."""
    from ringsched.commands.exporting import export_chakra

    return export_chakra(**arguments)


@cli.command()
@click.option("--collective", metavar="all_gather", required=True, help="all_gather, reduce_scatter, all_reduce, …")
@click.option("--topology", metavar="mesh:4x4", required=True, help="ring:8, line:5, torus:4x4x4, links:0-1,1-2,2-0.")
@click.option("-o", "--output", metavar="OUT", help="The schedule file to write.  [default: stdout]")
@click.option("--root", type=click.IntRange(0), help="Of broadcast and reduce.  [default: 0]")
@click.option("--parts", type=click.IntRange(1, 1000), help="That a unit is cut into.  [default: as many as do good]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the searches.")
@_JSON
def synth(**arguments: Any) -> int:
    """Make a schedule for a topology, at the bound or as near as can be found.

    \b
    ringsched synth --collective all_gather --topology mesh:4x4 -o my.yaml
    ringsched synth --collective all_reduce --topology links:0-1,1-2,2-0,2-3

    links: may also name a file with a link (0-1) on each line; the name of a schedule file stands for its topology.
    Every link carries data both ways.
    """
    from ringsched.commands.synth import Request, synth

    return synth(Request(**arguments))


@cli.command()
@click.argument("code", required=False)
def explain(code: str | None) -> int:
    """Explain the code of a message (RS301); without a code, list all."""
    from ringsched.commands.small import explain

    return explain(code)


@cli.command(name="fmt")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is not formatted.")
def format_command(files: tuple[str, ...], check: bool) -> int:
    """Format schedule files in place."""
    from ringsched.commands.small import format_files

    return format_files(files, check)


@cli.command()
def schema() -> int:
    """Print the JSON schema of schedule files, for editors."""
    from ringsched.commands.small import schema

    return schema()


@cli.command()
@click.argument("name")
def init(name: str) -> int:
    """Write NAME.yaml, a commented schedule to start from."""
    from ringsched.commands.small import init

    return init(name)


@cli.command()
def schedules() -> int:
    """List the schedules that come with ringsched."""
    from ringsched.commands.small import schedules

    return schedules()


def run_command(arguments: list[str], *, own_process: bool = False) -> int:
    """Runs a command line and returns its exit code; no exception leaves it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    clock.begin(with_start=own_process)
    try:
        result = cli.main(args=arguments, prog_name="ringsched", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Exception as error:
        from ringsched.diagnostics import EXIT_INTERNAL, EXIT_USAGE, DiagnosticError

        if isinstance(error, OSError) and error.errno in OUTPUT_ERRORS:
            _cannot_print(error)
            return EXIT_USAGE
        if isinstance(error, DiagnosticError):  # about the command itself; commands deal with those about a file
            from ringsched.commands.output import show

            show(error.diagnostics)
            return EXIT_USAGE
        _report_bug(error, arguments)
        return EXIT_INTERNAL


def _cannot_print(error: OSError) -> None:
    """Files are written with a finding of their own: this is stdout, or stderr."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            continue
        with contextlib.suppress(OSError, ValueError):  # what is left in it would be written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    with contextlib.suppress(OSError):
        click.echo(f"error[RS611]: the output cannot be written: {error.strerror}", err=True)
        click.echo("  = help: send it to a file or a device with room, or close fewer readers", err=True)


def _report_bug(error: Exception, arguments: list[str]) -> None:
    if "--traceback" in arguments:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True)
    import shlex

    from ringsched import __version__

    kind = "" if type(error).__name__ == "InternalError" else f"{type(error).__name__}: "
    command = shlex.join(["ringsched", *arguments])
    again = shlex.join(["ringsched", "--traceback", *arguments])
    click.echo(f"internal error: {kind}{error}", err=True)
    click.echo("This is a bug in ringsched, not in your schedule.", err=True)
    click.echo(f"Please report it with the schedule file, the version ({__version__}) and the command:", err=True)
    click.echo(f"  {command}", err=True)
    if "--traceback" not in arguments:
        click.echo(f"Where it happened: {again}", err=True)
