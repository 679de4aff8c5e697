"""A kernel module's text → RunReport: what its interpretation in both DMA modes came to.

This process imports no jax.
"""

from __future__ import annotations

import json
import math
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

MODES: tuple[Literal["eager", "on_wait"], ...] = ("eager", "on_wait")
CALLS = 4  # a mode: two in one program, and that program again
MAX_RANKS = 16
THREADS = 64  # one a device and one more would do
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
        """The keys that `--json` promises for a run; `calls` are those of one mode, `max_error` null if not finite."""
        error = max((mode.max_error for mode in self.modes), default=0.0)
        if any(math.isnan(mode.max_error) for mode in self.modes):
            error = math.nan
        return {
            "ok": self.ok,
            "max_error": error if math.isfinite(error) else None,
            "races": sum(mode.races for mode in self.modes),
            "leftover_semaphores": sum(mode.leftover_semaphores for mode in self.modes),
            "calls": max((mode.calls for mode in self.modes), default=0),
            "dma_modes": [mode.mode for mode in self.modes],
        }


def twin_name(kind: str) -> str:
    """What the result is compared with, in words."""
    return TWINS.get(kind, f"{kind} by jax.lax")


def default_timeout(ranks: int) -> float:
    """Seconds: 120, and more for more than 8 ranks."""
    return 120.0 * max(1.0, ranks / 8)


def run_kernel(
    source: str,
    *,
    function: str,
    promise: Promise,
    operand: Operand,
    seed: int = 0,
    timeout: float | None = None,
) -> RunReport:
    """Runs `function` of the module `source` on as many virtual devices as the promise has ranks, and compares.

    operand: on one rank. timeout: seconds for everything; None: see `default_timeout`.

    The report holds RS608 for a wrong value, RS401 for a race, RS502 for a semaphore left over, RS609 for a hang.
    Raises RS607 where the function refuses the operand, InternalError where the kernel raises something else.
    """
    topology = promise.topology
    timeout = default_timeout(topology.ranks) if timeout is None else timeout
    request = {
        "function": function,
        "kind": promise.kind,
        "sides": topology.sides,
        "root": promise.root,
        "permutation": promise.permutation,
        "operand": asdict(operand),
        "seed": seed,
        "calls": CALLS,
        "modes": MODES,
        "seconds": timeout,
    }
    with tempfile.TemporaryDirectory(prefix="ringsched-") as name:
        directory = Path(name)
        (directory / "kernel.py").write_text(source, encoding="utf-8")
        (directory / "request.json").write_text(json.dumps(request), encoding="utf-8")
        start = time.perf_counter()
        exit_code = run_module("ringsched.run.child", directory, _environment(topology.ranks), timeout)
        seconds = time.perf_counter() - start
        log = read_log(directory)
    report = read_report(log, promise)
    if exit_code is None or exit_code < 0 and seconds > timeout:
        return RunReport(modes=report.modes, diagnostics=(*report.diagnostics, _hang(log, promise, timeout)))
    if exit_code != 0:
        raise InternalError(f"the kernel of {function} raises an exception when it is run\n{_last_lines(log)}")
    return report


def _environment(ranks: int) -> dict[str, str]:
    """As many devices as ranks, and a thread for each of them; see `ringsched.threads`."""
    import os

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
    for mode in MODES:
        mine = [part for part in parts if part.event.get("mode", _mode_before(parts, part)) == mode]
        if mine:
            runs.append(_mode_run(mode, mine))
            found += _findings(mode, mine, promise)
    return RunReport(modes=tuple(runs), diagnostics=tuple(found))


def _mode_before(parts: list[Part], part: Part) -> str | None:
    modes = [p.event["mode"] for p in parts[: parts.index(part)] if "mode" in p.event]
    return modes[-1] if modes else None
