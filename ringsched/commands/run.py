"""`ringsched run`: prove a schedule, run its kernel, compare it with `jax.lax`."""

from __future__ import annotations

from dataclasses import dataclass

import click

from ringsched.codegen.outside import function_name
from ringsched.commands.operands import fitting
from ringsched.commands.output import exit_status, print_json, progress, say, show
from ringsched.commands.settings import Settings, parse_settings
from ringsched.commands.verify import Outcome, check_and_compile, check_and_port
from ringsched.diagnostics import EXIT_RIGHT, EXIT_UNDECIDED, Diagnostic
from ringsched.operand import Operand, parse_dtype, parse_operands
from ringsched.pipeline import ProvenChain, layers_of
from ringsched.run.runner import MAX_RANKS, MODES, Mode, ModeRun, RunReport, run_kernel, twin_name
from ringsched.schedule.flat import FlatSchedule
from ringsched.schedule.schedule import Chain, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command's arguments, as typed."""

    file: str
    settings: tuple[str, ...]
    overlap: str | None
    backend: str
    shape: tuple[str, ...]
    dtype: str | None
    seed: int
    timeout: float | None
    as_json: bool


def run_file(request: Request) -> int:
    """Returns the exit code."""
    settings = parse_settings(request.settings, ranges=False)
    dtype = parse_dtype(request.dtype) if request.dtype else None
    given = parse_operands(request.shape, dtype)
    if request.backend == "xla":
        return _run_portable(request, settings, given, dtype or "float32")
    outcome, compiled = check_and_compile(request.file, settings, overlap=request.overlap)
    if not request.as_json:
        show(outcome.diagnostics)
        click.echo(outcome.sentence())
    if compiled is None:
        if request.as_json:
            print_json(outcome.to_json() | _not_run(None))
        return exit_status(outcome.diagnostics)
    operands = fitting(compiled, given, dtype=dtype or "float32", smallest=True)
    proven = compiled.proven
    flat = proven.links[-1].flat if isinstance(proven, ProvenChain) else proven.flat
    return _run(request, outcome, compiled.source, proven.schedule, flat, operands, MODES)


def _run_portable(request: Request, settings: Settings, given: tuple[Operand, ...], dtype: str) -> int:
    """The module of the portable back end on as many virtual devices."""
    outcome, portable = check_and_port(request.file, settings, overlap=request.overlap)
    if not request.as_json:
        show(outcome.diagnostics)
        click.echo(outcome.sentence())
    if portable is None:
        if request.as_json:
            print_json(outcome.to_json() | _not_run(None))
        return exit_status(outcome.diagnostics)
    operands = fitting(portable, given, dtype=dtype, smallest=True)
    return _run(request, outcome, portable.source, portable.schedule, portable.flat, operands, ("xla",))


def _too_many(request: Request, outcome: Outcome, ranks: int) -> bool:
    """Whether there are more ranks than are run (RS610), which is said here; else that it runs now."""
    if ranks <= MAX_RANKS:
        progress(f"running on {_devices(ranks)} …")
        return False
    message = f"execution is not simulated for more than {MAX_RANKS} ranks; verification holds as it is"
    finding = Diagnostic(code="RS610", message=message, help="to see the kernel run, take fewer: --set N=8")
    if request.as_json:
        print_json(outcome.to_json() | _not_run(finding))
    else:
        say(f"note[RS610]: {message}\n  = help: {finding.help}")
    return True


def _told(
    request: Request, outcome: Outcome, report: RunReport, twin: str, operands: tuple[Operand, ...], ranks: int
) -> int:
    if request.as_json:
        found = [diagnostic.to_json() for diagnostic in report.diagnostics]
        about = {"operand": ", ".join(map(str, operands)), "backend": request.backend}
        print_json(outcome.to_json() | {"diagnostics": found} | report.to_json() | about)
    else:
        _print_report(request.file, report, twin, operands, ranks)
    return exit_status(report.diagnostics)


def _run(
    request: Request,
    outcome: Outcome,
    source: str,
    schedule: Schedule | Chain,
    flat: FlatSchedule,
    operands: tuple[Operand, ...],
    modes: tuple[Mode, ...],
) -> int:
    """flat: of a chain, that of its last link."""
    promise, compute = flat.promise, flat.schedule.compute
    layers = layers_of(schedule) if isinstance(schedule, Chain) else None
    ranks = promise.topology.ranks
    if _too_many(request, outcome, ranks):
        return EXIT_RIGHT
    report = run_kernel(
        source,
        function=function_name(source, schedule.name),
        promise=promise,
        compute=compute,
        layers=layers,
        operands=operands,
        seed=request.seed,
        timeout=request.timeout,
        modes=modes,
    )
    product = "the product in float64" if layers is None else "the layers in float64"
    twin = twin_name(promise.kind) if compute is None else product
    return _told(request, outcome, report, twin, operands, ranks)


def _not_run(finding: Diagnostic | None) -> dict[str, object]:
    entry: dict[str, object] = {
        "ok": None,
        "max_error": None,
        "races": None,
        "leftover_semaphores": None,
        "calls": 0,
        "dma_modes": [],
    }
    return entry | ({"diagnostics": [finding.to_json()]} if finding else {})


def _print_report(file: str, report: RunReport, twin: str, operands: tuple[Operand, ...], ranks: int) -> None:
    for mode in report.modes:
        click.echo(_mode_line(mode))
    show(report.diagnostics)
    late = exit_status(report.diagnostics) == EXIT_UNDECIDED
    verdict = (
        "agrees with" if report.ok else "did not end: not compared with" if late else "fails in the comparison with"
    )
    what = "module" if any(mode.mode == "xla" for mode in report.modes) else "kernel"
    click.echo(f"{file}: the {what} {verdict} {twin} on {_devices(ranks)}, {', '.join(map(str, operands))} on each")


def _devices(ranks: int) -> str:
    return f"{ranks} virtual {'device' if ranks == 1 else 'devices'}"


def _mode_line(mode: ModeRun) -> str:
    if mode.seconds is None:
        result = "did not finish"
    elif mode.bound is None:
        result = "every bit equal" if mode.max_error == 0 else f"max error {mode.max_error:.3g}"
    else:
        result = f"max error {mode.max_error:.2g} (rounding explains {mode.bound:.2g})"
    parts = [f"{mode.calls} calls", result]
    if mode.mode != "xla":
        parts += [_count(mode.races, "race"), _count(mode.leftover_semaphores, "leftover semaphore")]
    seconds = "" if mode.seconds is None else f"  {mode.seconds:.1f} s"
    return f"  {mode.mode:<8} {', '.join(parts)}{seconds}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if number else f"no {noun}"
