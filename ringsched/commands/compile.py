"""`ringsched compile`: prove a schedule, write its kernel, and compile that for a TPU where asked."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import click

from ringsched.commands.audited import PATIENCE, audit_small, auditor
from ringsched.commands.audited import Outcome as Audit
from ringsched.commands.clock import lap
from ringsched.commands.compare import GENERATED, Compared, Figures, Other, comparison_text, figures_of, open_other
from ringsched.commands.operands import fitting
from ringsched.commands.output import cannot_write, exit_status, print_json, progress, say, show, write_file
from ringsched.commands.settings import Settings, parse_settings, single
from ringsched.commands.verify import CHECKED, Outcome, check_and_compile, check_and_port
from ringsched.diagnostics import EXIT_RIGHT, Diagnostic, DiagnosticError
from ringsched.lower.plan import Decision
from ringsched.operand import Operand, parse_operands
from ringsched.pipeline import AnyCompiled
from ringsched.program.printer import print_program
from ringsched.schedule.printer import print_schedule
from ringsched.schedule.schedule import Chain, Schedule
from ringsched.target.aot import TargetError, compile_for_target, device_count
from ringsched.target.report import TargetReport

_DEFAULT = {False: "float32", True: "bfloat16"}  # dtypes; of a schedule that multiplies, that of models


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command's arguments, as typed."""

    file: str
    settings: tuple[str, ...]
    overlap: str | None
    backend: str
    output: str | None
    emit: str | None
    explain: bool
    debug: bool
    target: str | None
    compare: str | None
    shape: tuple[str, ...]
    cores: str | None
    audit: bool
    as_json: bool

    @property
    def prints(self) -> bool:
        """Whether stdout holds the emitted text."""
        return self.output == "-" or (self.output is None and self.emit is not None)


def compile_file(request: Request) -> int:
    """Returns the exit code."""
    settings = parse_settings(request.settings, ranges=False)
    operands = parse_operands(request.shape)
    _check_usage(request)
    if request.backend == "xla":
        return _port(request, settings)
    other = None if request.compare is None else open_other(request.compare, single(settings))
    with auditor(request.audit and not request.debug) as process:
        outcome, compiled = check_and_compile(request.file, settings, overlap=request.overlap, debug=request.debug)
        if compiled is None:
            return _fail(request, outcome)
        audit = None if process is None else audit_small(process, [compiled], PATIENCE)
    return _deliver(request, outcome, compiled, operands, audit, other)


def _check_usage(request: Request) -> None:
    """What can be told before anything is compiled."""
    if request.backend == "xla":
        _check_portable(request)
    if request.prints and request.as_json:
        raise click.UsageError("--json and the emitted text would both go to stdout. Give the text a file: -o FILE.")
    if request.shape and not request.target:
        raise click.UsageError("--shape is the operand of --target; the kernel itself takes any shape.")
    if request.cores and not request.target:
        raise click.UsageError(
            "--cores is about the devices of --target; the kernel's own option of this name decides."
        )
    if request.compare and not request.target:
        raise click.UsageError("--compare puts two reports of --target side by side.")
    if request.target:
        try:
            device_count(request.target)
        except TargetError as error:
            raise DiagnosticError([_target_diagnostic(error)]) from None


_KERNELS_ONLY = ("explain", "debug", "target", "compare", "cores", "shape")


def _check_portable(request: Request) -> None:
    asked = [name for name in _KERNELS_ONLY if getattr(request, name)]
    if asked:
        raise click.UsageError(f"--{asked[0]} is about the TPU kernel; the module of --backend xla has none.")
    if request.emit == "program":
        raise click.UsageError("--emit program: --backend xla makes no Program. Take --emit schedule or kernel.")


def _port(request: Request, settings: Settings) -> int:
    """The module of the portable back end."""
    outcome, portable = check_and_port(request.file, settings, overlap=request.overlap)
    if portable is None:
        return _fail(request, outcome)
    path = None if request.prints else _path(request, portable.schedule)
    text = print_schedule(portable.schedule) if request.emit == "schedule" else portable.source
    if path is None:
        click.echo(text, nl=False)
    else:
        write_file(path, text, sources=_files(portable.schedule))
    if request.as_json:
        print_json(outcome.to_json() | {"output": path and str(path), "backend": "xla"})
        return EXIT_RIGHT
    written = f" → {path}" if path is not None else ""
    sentence = outcome.sentence().removeprefix(request.file)
    click.echo(f"{request.file}{written}{sentence}", err=request.prints)
    return EXIT_RIGHT


def _fail(request: Request, outcome: Outcome) -> int:
    if request.as_json:
        print_json(outcome.to_json())
    else:
        show(outcome.diagnostics)
        say(f"{outcome.sentence()}; nothing was written" if not request.prints else outcome.sentence())
    return exit_status(outcome.diagnostics)


def _refused(request: Request, outcome: Outcome, finding: Diagnostic) -> int:
    """The schedule is right, and the kernel was not compiled for the target."""
    if request.as_json:
        figures = dict.fromkeys(field.name for field in fields(TargetReport))
        about = {"target": request.target, "kernel": None, "output": None, "diagnostics": [finding.to_json()]}
        print_json(outcome.to_json() | figures | about)
    else:
        show([finding])
        say(f"{request.file}: right, but not compiled for {request.target}; nothing was written")
    return exit_status([finding])


def _deliver(
    request: Request,
    outcome: Outcome,
    compiled: AnyCompiled,
    given: tuple[Operand, ...],
    audit: Audit | None,
    other: Other | None,
) -> int:
    """Writes the text, unless the target's compiler refuses the kernel."""
    schedule = compiled.proven.schedule
    operands: tuple[Operand, ...] = ()
    path = None if request.prints else _path(request, schedule)
    report: TargetReport | None = None
    if request.target:
        multiplies = _multiplies(compiled)
        operands = fitting(compiled, given, dtype=_DEFAULT[multiplies], smallest=False)
        progress(f"compiling for {request.target} …")
        try:
            report = _compile_for(request.target, compiled, operands, request.cores if multiplies else None)
        except TargetError as error:
            return _refused(request, outcome, _target_diagnostic(error))
    text = _text(request, compiled)
    if path is not None:
        write_file(path, text, sources=_files(schedule))
    else:
        click.echo(text, nl=False)
    if request.explain:
        say(decisions_text(compiled.proven.lowered.decisions))
    if request.as_json:
        about: dict[str, object] = {"output": path and str(path), "audit": audit and audit.to_json()}
        about |= _report_json(report, compiled, operands)
        found: tuple[Diagnostic, ...] = ()
        if report is not None and other is not None:
            second, found = _compared(request, other, operands)
            about["compared"] = None if second is None else _figures_json(second)
            about["diagnostics"] = [finding.to_json() for finding in found]
        print_json(outcome.to_json() | about)
        return exit_status(found)
    written = f" → {path}" if path is not None else ""
    checked = CHECKED if audit is None else f"{CHECKED}; {audit.words()}"
    sizes, seconds = outcome.sizes(), f"{lap():.2f} s"
    sentence = f"{request.file}{written}: right{sizes} (checked at these sizes; {checked}) in {seconds}"
    click.echo(sentence, err=request.prints)
    if audit is not None and audit.undecided:
        say(f"not audited: {audit.undecided}")
    if report is None:
        return EXIT_RIGHT
    second, found = (None, ()) if other is None else _compared(request, other, operands)
    if second is None:
        click.echo(report_text(report, operands), err=request.prints)
        show(found)
        return exit_status(found)
    label = request.file if request.overlap is None else f"{request.file}, overlap {request.overlap}"
    ranks = compiled.proven.topology.ranks
    first = Figures(label=label, ranks=ranks, operands=tuple(map(str, operands)), report=report)
    click.echo(comparison_text(first, second), err=request.prints)
    return EXIT_RIGHT


def _multiplies(compiled: AnyCompiled) -> bool:
    schedule = compiled.proven.schedule
    return isinstance(schedule, Chain) or schedule.compute is not None


def _compared(
    request: Request, other: Other, operands: tuple[Operand, ...]
) -> tuple[Figures | None, tuple[Diagnostic, ...]]:
    """The other kernel's figures, or why there are none; the first one's hold all the same."""
    progress(f"compiling {other.label} for {request.target} …")
    try:
        multiplies = not isinstance(other, Compared) or _multiplies(other.compiled)
        cores = int(request.cores) if request.cores and multiplies else None
        return figures_of(other, operands, str(request.target), cores), ()
    except DiagnosticError as error:
        return None, error.diagnostics


def _report_json(
    report: TargetReport | None, compiled: AnyCompiled, operands: tuple[Operand, ...]
) -> dict[str, object]:
    if report is None:
        return {}
    known = {"ranks": compiled.proven.topology.ranks, "operands": [str(operand) for operand in operands]}
    return {**known, **report.to_json()}


def _figures_json(figures: Figures) -> dict[str, object]:
    about: dict[str, object] = {"file": figures.label, "ranks": figures.ranks, "operands": list(figures.operands)}
    return {**about, **figures.report.to_json()}


def _files(schedule: Schedule | Chain) -> list[Path]:
    return [Path(schedule.path)] if schedule.path else []


def _path(request: Request, schedule: Schedule | Chain) -> Path:
    """Where the text goes. A file that ringsched did not write is only overwritten when -o names it."""
    if request.output is not None:
        return Path(request.output)
    path = Path(f"{schedule.name}.py")
    if path.is_file():
        try:
            with path.open("rb") as stream:
                start = stream.read(1000)
        except OSError:
            start = b""
        if GENERATED.encode() not in start:
            raise cannot_write(path, "there is a file of this name that ringsched did not write", f"-o {path}, or -o …")
    return path


def _text(request: Request, compiled: AnyCompiled) -> str:
    match request.emit:
        case "schedule":
            return print_schedule(compiled.proven.schedule)
        case "program":
            return print_program(compiled.proven.lowered.program)
        case _:
            return compiled.source


def decisions_text(decisions: Sequence[Decision]) -> str:
    """What the compiler decided, each with the reason under it."""
    width = max((len(decision.subject) for decision in decisions), default=0)
    lines = ["decisions"]
    for decision in decisions:
        lines.append(f"  {decision.subject:<{width}}  {decision.choice}")
        lines += textwrap.wrap(
            decision.reason, 100, initial_indent=" " * (width + 6), subsequent_indent=" " * (width + 6)
        )
    return "\n".join(lines) + "\n"


def _compile_for(target: str, compiled: AnyCompiled, operands: tuple[Operand, ...], cores: str | None) -> TargetReport:
    return compile_for_target(
        source=compiled.source,
        function=compiled.function,
        sides=compiled.proven.topology.sides,
        topology=compiled.proven.topology,
        operands=operands,
        target=target,
        cores=None if cores is None else int(cores),
    )


def _target_diagnostic(error: TargetError) -> Diagnostic:
    return Diagnostic(code=error.code, message=error.message, help=error.help)


def report_text(report: TargetReport, operands: tuple[Operand, ...]) -> str:
    """The compiler's figures as a small table."""

    def figure(value: int | None, unit: str = "") -> str:
        return "not known" if value is None else f"{value:,}{unit}"

    rows = [
        ("target", report.target),
        ("operand", f"{', '.join(map(str, operands))} on each rank"),
        ("compiled in", f"{report.compile_seconds:.1f} s"),
        ("VMEM", figure(report.vmem_bytes, " bytes")),
        ("semaphores", figure(report.semaphores)),
        ("issue cycles", figure(report.cycles) + (" on each of 2 cores of a device" if report.cores == 2 else "")),
    ]
    if report.ideal_cycles is not None and report.utilization is not None:
        peak = "a core's peak" if report.cores == 2 else "the peak"
        rows.append(("matmul cycles", f"{report.ideal_cycles:,} at {peak}: {report.utilization:.1%} of issue cycles"))
    for note in report.notes:
        about, _, placed = note.partition(": ")
        if re.fullmatch(r"RS\d+", about):  # where ranks lie on the chips
            rows.append((about, placed))
            continue
        rows += [("operands" if k == 0 else "", part) for k, part in enumerate(placed.split("; "))]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
