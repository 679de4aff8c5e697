"""`ringsched audit`: the Pallas kernels of a function, right, wrong or undecided."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import click

from ringsched.commands.clock import lap
from ringsched.commands.output import print_json, show
from ringsched.diagnostics import EXIT_USAGE, Diagnostic, exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command line asks for."""

    target: str
    mesh: tuple[str, ...]
    arguments: tuple[str, ...]
    in_specs: tuple[str, ...]
    out_specs: tuple[str, ...]
    expect: str | None
    chip: str
    calls: int | None
    cores: str
    as_json: bool


def audit_function(request: Request) -> int:
    """Returns the exit code."""
    mesh_axes = parse_mesh(",".join(request.mesh))
    if not request.in_specs and request.arguments:
        raise click.UsageError("--in-specs is missing; an operand that is not split has --in-specs -")
    if len(request.in_specs) not in (1, len(request.arguments)):
        raise click.UsageError(f"{len(request.arguments)} --args and {len(request.in_specs)} --in-specs")
    if not request.out_specs:
        raise click.UsageError("--out-specs is missing; a result that is not split has --out-specs -")
    # No device is needed, and where there is one, looking for it takes a while and prints lines of its own.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with _foreign_code():
        function = find_function(request.target)
        is_function = request.expect is not None and ":" in request.expect
        expect = find_function(str(request.expect), "--expect") if is_function else request.expect
        arguments = [find(text, "--args") if ":" in text else text for text in request.arguments]
    from ringsched.auditing.audit import audit
    from ringsched.auditing.chips import KINDS
    from ringsched.auditing.tracing import AuditError

    try:
        with _foreign_code():
            report = audit(
                function,
                mesh_axes=mesh_axes,
                args=arguments,
                in_specs=request.in_specs * (len(request.arguments) if len(request.in_specs) == 1 else 1),
                out_specs=request.out_specs[0] if len(request.out_specs) == 1 else request.out_specs,
                expect=expect,
                calls=request.calls,
                chip=KINDS[request.chip],
                cores=int(request.cores),
            )
    except AuditError as error:
        show([Diagnostic(code="RS612", message=str(error))])
        return EXIT_USAGE
    if request.as_json:
        print_json({**report.to_json(), "kernel": request.target})
    else:
        show(report.diagnostics)
        click.echo(replace(report, seconds=lap()).sentence())
    return exit_code(report.diagnostics)


@contextlib.contextmanager
def _foreign_code() -> Iterator[None]:
    """What the user's code prints is no data of ours, and our arguments are not for it."""
    arguments = sys.argv
    sys.argv = arguments[:1]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = arguments


def parse_mesh(text: str) -> dict[str, int]:
    """`x=2,y=4` as sizes of axes, in this order."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (piece.strip() for piece in part.partition("="))
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1 or name in axes:
            raise click.BadParameter(f"{text!r}; a mesh is written i=4 or x=2,y=4", param_hint="--mesh")
        axes[name] = int(size)
    return axes


def find_function(target: str, parameter: str = "MODULE:FUNCTION") -> Callable[..., Any]:
    """The function behind MODULE:FUNCTION, imported as Python would from the current directory."""
    found = find(target, parameter)
    if not callable(found):
        name, _, attribute = target.partition(":")
        raise click.BadParameter(f"{attribute} of {name} is no function", param_hint=parameter)
    function: Callable[..., Any] = found
    return function


def find(target: str, parameter: str) -> Any:
    """What stands behind MODULE:NAME."""
    name, _, attribute = target.partition(":")
    if not name or not attribute:
        raise click.BadParameter(f"{target!r}; write {parameter}", param_hint=parameter)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(name)
    # The module is the user's, and importing it runs whatever it holds.
    except (Exception, SystemExit) as error:
        from ringsched.auditing.tracing import told

        raise _Unreadable(f"the module {name} cannot be imported: {told(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise click.BadParameter(f"{name} has no {attribute}", param_hint=parameter)
        found = getattr(found, part)
    return found


class _Unreadable(click.ClickException):
    exit_code = EXIT_USAGE
