"""A kernel module's text → RunReport: what its interpretation in both DMA modes came to.

This process imports no jax.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ringsched.collectives import Promise
from ringsched.diagnostics import Diagnostic, DiagnosticError, InternalError
from ringsched.operand import Operand
from ringsched.processes import read_log, run_module
from ringsched.run.events import Event, Part, read
from ringsched.schedule.schedule import Layers, Multiply

Mode = Literal["eager", "on_wait", "xla"]  # "xla": nothing is interpreted
MODES: tuple[Mode, ...] = ("eager", "on_wait")
CALLS = 4  # a mode: two in one program, and that program again
MAX_RANKS = 16
THREADS = 64  # one a device and one more would do
SECONDS_A_LINE = 0.005  # of each rank, on a busy machine with two cores
TWINS = {
    "all_gather": "jax.lax.all_gather",
    "reduce_scatter": "jax.lax.psum_scatter",
    "all_reduce": "jax.lax.psum",
    "all_to_all": "jax.lax.all_to_all",
    "permute": "jax.lax.ppermute",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRun:
    """One DMA mode. `seconds` is None where it did not finish; `bound` None where results must be equal."""

    mode: str
    calls: int
    seconds: float | None
    max_error: float
    bound: float | None
    races: int
    leftover_semaphores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What came out; `diagnostics` are empty where the kernel did right in every mode."""

    modes: tuple[ModeRun, ...]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def ok(self) -> bool:
        return not self.diagnostics

    def to_json(self) -> dict[str, object]:
        """The keys that `--json` promises for a run; `calls` are those of one mode, `max_error` null if not finite.

        Where no kernel is interpreted nobody looks for races and semaphores: they are null, and there is no DMA mode.
        """
        interpreted = [mode for mode in self.modes if mode.mode != "xla"]
        counted = interpreted or not self.modes
        error = max((mode.max_error for mode in self.modes), default=0.0)
        if any(math.isnan(mode.max_error) for mode in self.modes):
            error = math.nan
        return {
            "ok": self.ok,
            "max_error": error if math.isfinite(error) else None,
            "races": sum(mode.races for mode in interpreted) if counted else None,
            "leftover_semaphores": sum(mode.leftover_semaphores for mode in interpreted) if counted else None,
            "calls": max((mode.calls for mode in self.modes), default=0),
            "dma_modes": [mode.mode for mode in interpreted],
        }


def twin_name(kind: str) -> str:
    """What the result is compared with, in words."""
    return TWINS.get(kind, f"{kind} by jax.lax")


def default_timeout(ranks: int, source: str) -> float:
    """Seconds: 120, more for more than 8 ranks, whose messages the race detector compares, and for a long module."""
    return 120.0 * max(1.0, (ranks / 8) ** 3) + SECONDS_A_LINE * ranks * source.count("\n")


def run_kernel(
    source: str,
    *,
    function: str,
    promise: Promise,
    compute: Multiply | None = None,
    layers: Layers | None = None,
    operands: tuple[Operand, ...],
    seed: int = 0,
    timeout: float | None = None,
    modes: tuple[Mode, ...] = MODES,
) -> RunReport:
    """Runs `function` of the module `source` on as many virtual devices as the promise has ranks, and compares.

    operands: x, and w where it multiplies, on one rank. layers: of a chain; promise and compute are its last link's.
    timeout: seconds for everything; None: see `default_timeout`.

    The report holds RS608 for a wrong value, RS401 for a race, RS502 for a semaphore left over, RS609 for a hang.
    Raises RS607 where the function refuses the operand, InternalError where the kernel raises something else.
    """
    topology = promise.topology
    timeout = default_timeout(topology.ranks, source) if timeout is None else timeout
    request = {
        "function": function,
        "kind": promise.kind,
        "sides": topology.sides,
        "root": promise.root,
        "permutation": promise.permutation,
        "operands": [asdict(operand) for operand in operands],
        "compute": None if compute is None else {"moment": compute.moment, "shard": compute.shard},
        "layers": None if layers is None else asdict(layers),
        "seed": seed,
        "calls": CALLS,
        "modes": modes,
        "seconds": timeout,
    }
    with tempfile.TemporaryDirectory(prefix="ringsched-") as name:
        directory = Path(name)
        (directory / "kernel.py").write_text(source, encoding="utf-8")
        (directory / "request.json").write_text(json.dumps(request), encoding="utf-8")
        start = time.perf_counter()
        exit_code = run_module("ringsched.run.child", directory, _environment(topology.ranks), timeout)
        seconds = time.perf_counter() - start
        log = read_log(directory).replace(f"{directory}{os.sep}", "")
    report = read_report(log, promise)
    late = exit_code is None or (exit_code < 0 and seconds > timeout)
    if late and any(mode.seconds is not None for mode in report.modes[len(modes) - 1 :]):
        return report
    if late:
        return RunReport(modes=report.modes, diagnostics=(*report.diagnostics, _hang(log, promise, modes, timeout)))
    if exit_code != 0:
        raise InternalError(f"the kernel of {function} raises an exception when it is run\n{_last_lines(log)}")
    return report


def _environment(ranks: int) -> dict[str, str]:
    """As many devices as ranks, and a thread for each of them; see `ringsched.threads`."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags = re.sub(r"--xla_force_host_platform_device_count=\S*", "", flags)
    return {
        "NPROC": str(max(THREADS, 2 * ranks)),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "-1",
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count={ranks}".strip(),
        "PYTHONUNBUFFERED": "1",
    }


def read_report(log: str, promise: Promise) -> RunReport:
    """The report that a child's log gives; hangs and crashes are not in it."""
    parts = read(log)
    for part in parts:
        if "refused" in part.event:
            raise DiagnosticError([_refused(part.event["refused"])])
    runs, found = [], []
    for mode in (*MODES, "xla"):
        mine = [part for part in parts if part.mode == mode]
        if mine:
            runs.append(_mode_run(mode, mine))
            found += _findings(mode, mine, promise)
    return RunReport(modes=tuple(runs), diagnostics=tuple(found))


def _mode_run(mode: str, parts: list[Part]) -> ModeRun:
    compared = [part.event for part in parts if "max_error" in part.event]
    bounds = [event["bound"] for event in compared if event["bound"] is not None]
    errors = [event["max_error"] for event in compared]
    return ModeRun(
        mode=mode,
        calls=len({part.event["call"] for part in parts if "call" in part.event}),
        seconds=next((part.event["seconds"] for part in parts if part.event.get("phase") == "done"), None),
        max_error=math.nan if any(map(math.isnan, errors)) else max(errors, default=0.0),
        bound=max(bounds, default=None),
        races=sum(len(part.races) for part in parts),
        leftover_semaphores=sum(len(part.leftovers) for part in parts),
    )


def _findings(mode: str, parts: list[Part], promise: Promise) -> list[Diagnostic]:
    """At most one of each kind: the first."""
    found = [f for f in (_wrong_value(mode, part.event, promise) for part in parts) if f is not None][:1]
    races = [race for part in parts for race in part.races]
    if races:
        found.append(
            Diagnostic(
                code="RS401",
                message=f"the interpreter's race detector reports {_count(len(races), 'race')} (DMA mode {mode})",
                notes=("the first:\n" + "\n".join(_first_lines(races[0])),),
            )
        )
    leftovers = [text for part in parts for text in part.leftovers]
    if leftovers:
        devices = {match[1] for match in (re.search(r"for (\d+)", text) for text in leftovers) if match}
        found.append(
            Diagnostic(
                code="RS502",
                message=f"a semaphore is left over on {_count(len(devices), 'device')} (DMA mode {mode})",
                notes=("the first: " + leftovers[0].replace("Semaphore", "semaphore"),),
            )
        )
    return found


def _wrong_value(mode: str, event: Event, promise: Promise) -> Diagnostic | None:
    where = f"(call {event.get('call')}{_mode(mode)})"
    twin = twin_name(promise.kind)
    if "shape" in event:
        got, got_dtype, want, want_dtype = event["shape"]
        message = f"the result is {got_dtype}{got} where {twin} gives {want_dtype}{want}, all ranks together {where}"
        return Diagnostic(code="RS608", message=message)
    if not event.get("wrong"):
        return None
    place = ", ".join(map(str, event["index"]))
    wrong = "element is" if event["wrong"] == 1 else "elements are"
    most = f", by {event['max_error']:.3g} at most" if math.isfinite(event["max_error"]) else ""
    bound = "" if event["bound"] is None else f"; rounding explains {event['bound']:.3g}"
    return Diagnostic(
        code="RS608",
        message=f"rank {event['rank']} has {event['got']} at [{place}], and {twin} gives {event['want']} {where}",
        counterexample={"rank": event["rank"], "call": event["call"]},
        notes=(f"{event['wrong']:,} {wrong} wrong{most}{bound}",),
    )


def _hang(log: str, promise: Promise, modes: tuple[Mode, ...], timeout: float) -> Diagnostic:
    """Says how far the child was."""
    parts = read(log)
    last = next((part for part in reversed(parts) if "phase" in part.event), None)
    phase = last.event["phase"] if last else "starting"
    if phase == "calls" and last is not None:
        returned = sum(1 for part in parts[parts.index(last) :] if part.event.get("returned"))
        call = last.event["first"] + (returned >= promise.topology.ranks)
        where = f"it hangs in call {call}{_mode(last.mode)}"
    else:
        where = f"it was {phase}{_mode(last.mode if last is not None else None)}"
    tried = {part.mode for part in parts}
    left = [mode for mode in modes if mode not in tried]
    return Diagnostic(
        code="RS609",
        message=f"the run did not end within {timeout:g} s: {where}",
        notes=(f"not tried: DMA mode {', '.join(left)}",) if left else (),
        help="if the machine is slow or busy, allow more: --timeout SECONDS",
    )


def _mode(mode: str | None) -> str:
    return "" if mode is None or mode == "xla" else f", DMA mode {mode}"


def _refused(text: str) -> Diagnostic:
    return Diagnostic(code="RS607", message=text, help="give another operand: --shape x=…")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _first_lines(race: str) -> list[str]:
    """The two accesses, without their clocks."""
    return [line.strip() for line in race.splitlines() if re.match(r"\s*(?:read|write) of ", line)][:2]


def _last_lines(log: str) -> str:
    return "\n".join([line for line in log.splitlines() if line.strip() and "##ringsched" not in line][-12:])
