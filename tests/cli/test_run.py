"""`ringsched run`: right kernels pass, and each kind of fault in a kernel is found.

The faults are put into the text of a generated module, so that the execution alone has to find them.
"""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from ringsched.diagnostics import DiagnosticError, InternalError
from ringsched.operand import Operand, smallest_operand
from ringsched.pipeline import compile_schedule, open_schedule
from ringsched.run.events import MARK, read
from ringsched.run.runner import default_timeout, read_report, run_kernel


def ringsched(*arguments: str) -> subprocess.CompletedProcess[str]:
    # settings of the user's that do not suit
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "NPROC": "1"}
    command = [sys.executable, "-m", "ringsched", "run", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_sum():
    result = ringsched("reduce_scatter", "--set", "N=4", "--dtype", "bf16")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("reduce_scatter: right for N = 4 (checked at these sizes; ")
    for mode, line in zip(("eager", "on_wait"), lines[1:3], strict=True):
        assert re.fullmatch(
            rf"  {mode} +4 calls, max error \S+ \(rounding explains \S+\), no race, no leftover semaphore +\S+ s", line
        )
    assert lines[3] == (
        "reduce_scatter: the kernel agrees with jax.lax.psum_scatter on 4 virtual devices, x=64x128:bf16 on each"
    )


def test_a_copy_as_json():
    result = ringsched("all_gather", "--set", "N=2", "--shape", "x=3x5:i16", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    entry = json.loads(result.stdout)
    assert entry["verdict"] == "right" and entry["ok"] is True and entry["diagnostics"] == []
    assert (entry["max_error"], entry["races"], entry["leftover_semaphores"]) == (0, 0, 0)
    assert (entry["calls"], entry["dma_modes"]) == (4, ["eager", "on_wait"])


def test_more_ranks_than_are_simulated():
    result = ringsched("all_gather", "--set", "N=17")
    assert result.returncode == 0
    assert "right for N = 17" in result.stdout
    assert "note[RS610]" in result.stderr and "verification holds" in result.stderr
    entry = json.loads(ringsched("all_gather", "--set", "N=17", "--json").stdout)
    assert (entry["verdict"], entry["ok"]) == ("right", None)
    assert entry["diagnostics"][0]["code"] == "RS610"


def test_an_operand_that_does_not_divide():
    result = ringsched("reduce_scatter", "--shape", "x=10x128")
    assert result.returncode == 2
    assert "error[RS607]" in result.stderr and "help: --shape x=12x128" in result.stderr


# -- faults -----------------------------------------------------------------------------------------------------------

RANKS = 2
SIGNAL = r"    _signal\(pltpu\.get_barrier_semaphore\(\).*\n"


@pytest.fixture(scope="module")
def compiled():
    return compile_schedule(open_schedule("reduce_scatter", {"N": RANKS}))


def run_with(compiled, pattern, replacement, **options):
    """Runs the kernel with the first match of the pattern in it changed."""
    head, kernel = compiled.source.split("def _kernel(", 1)
    changed, count = re.subn(pattern, replacement, kernel, count=1)
    assert count == 1, "the generated kernel no longer contains this"
    promise = compiled.proven.flat.promise
    source = f"{head}def _kernel({changed}"
    operand = smallest_operand(promise)
    return run_kernel(source, function="reduce_scatter", promise=promise, operands=(operand,), **options)


def test_a_wrong_chunk_is_found(compiled):
    report = run_with(compiled, r"(\badd\([^\n]*x_ref\.at\[)r\]", r"\1(r + 1) % N]")
    assert not report.ok
    assert [(f.code, "DMA mode eager" in f.message) for f in report.diagnostics] == [("RS608", True), ("RS608", False)]
    assert re.match(
        r"rank 0 has \S+ at \[0, 0\], and jax\.lax\.psum_scatter gives \S+ \(call 1, ", report.diagnostics[0].message
    )
    assert "2,048 elements are wrong" in report.diagnostics[0].notes[0]
    entry = report.to_json()
    assert (
        entry["ok"] is False and entry["max_error"] > 0.1 and (entry["races"], entry["leftover_semaphores"]) == (0, 0)
    )


def test_a_missing_wait_is_found(compiled):
    report = run_with(compiled, r"    _wait\(slots_ref[^\n]*\n", "", modes=("eager",))
    assert {"RS401", "RS502"} <= {f.code for f in report.diagnostics}
    race = next(f for f in report.diagnostics if f.code == "RS401")
    assert re.search(r"kernel\.py:\d+", race.notes[0]) and "ringsched-" not in race.notes[0]
    assert report.to_json()["races"] > 0


def test_an_extra_signal_is_found(compiled):
    report = run_with(compiled, SIGNAL, r"\g<0>\g<0>", modes=("eager",))
    assert [f.code for f in report.diagnostics] == ["RS502"]
    assert report.diagnostics[0].message == "a semaphore is left over on 2 devices (DMA mode eager)"
    assert report.to_json()["max_error"] < 1e-5


def test_a_missing_signal_hangs_and_is_ended(compiled):
    start = time.perf_counter()
    report = run_with(compiled, SIGNAL, "", timeout=20)
    assert time.perf_counter() - start < 30
    [finding] = report.diagnostics
    assert finding.code == "RS609"
    assert finding.message == "the run did not end within 20 s: it hangs in call 1, DMA mode eager"
    assert finding.notes == ("not tried: DMA mode on_wait",)


def test_a_deadline_from_the_command_line():
    result = ringsched("all_gather", "--set", "N=2", "--timeout", "0.2")
    assert result.returncode == 3  # a deadline decides nothing
    assert "error[RS609]: the run did not end within 0.2 s" in result.stderr
    assert "the kernel did not end: not compared with jax.lax.all_gather" in result.stdout
    assert "--timeout SECONDS" in result.stderr


def test_many_ranks_and_long_kernels_may_take_longer() -> None:
    """all_reduce_mesh at 16 ranks, 15,000 lines, was given up after 580 s, in the fourth of eight calls."""
    assert default_timeout(2, "") == default_timeout(8, "") == 120
    assert default_timeout(16, "") > 2 * default_timeout(8, "")
    assert default_timeout(16, "x = 0\n" * 15_000) > 1800


def test_a_kernel_that_raises_is_a_fault_of_ours(compiled):
    with pytest.raises(InternalError, match="NameError: name '_sygnal' is not defined"):
        run_with(compiled, r"    _signal\(", "    _sygnal(")


def test_what_the_function_says_about_its_operand_is_the_users_business(compiled):
    promise = compiled.proven.flat.promise
    source = compiled.source.replace("at = _axis(axis, ndim)\n", 'raise TypeError("not this dtype")\n', 1)
    with pytest.raises(DiagnosticError, match="RS607: not this dtype"):
        run_kernel(
            source,
            function="reduce_scatter",
            promise=promise,
            operands=(Operand(name="x", shape=(16, 128), dtype="int8"),),
        )


# -- what the child's log says, without a child -----------------------------------------------------------------------


def line(**event):
    return f"\n{MARK}{json.dumps(event)}\n"


def test_a_log_is_read_by_mode(compiled):
    promise = compiled.proven.flat.promise
    right = {"max_error": 0.5, "bound": 1.0, "wrong": 0, "rank": 0, "index": None, "got": "", "want": ""}
    log = (
        "noise"
        + line(mode="eager", phase="calls", first=1)
        + "RACE DETECTED\n  write of b[0] from 1, 0,\n  clock: [1]\n  read of b[0] from 0, 0,\n  clock: [2]\n"
        + line(returned=True)
        + "RACE DETECTED\n"
        + line(mode="eager", call=1, **right)
        + line(mode="eager", phase="done", seconds=1.5)
        + line(mode="on_wait", phase="calls", first=1)
        + "Semaphore 2001 has non-zero count for 3 (global core 3) at kernel exit: 4096\n"
        + line(mode="on_wait", call=1, **(right | {"max_error": float("nan")}))
        + line(mode="on_wait", phase="done", seconds=2.5)
    )
    assert [part.mode for part in read(log)] == ["eager"] * 4 + ["on_wait"] * 3
    report = read_report(log, promise)
    eager, on_wait = report.modes
    assert (eager.races, eager.leftover_semaphores, eager.seconds, eager.max_error) == (2, 0, 1.5, 0.5)
    assert (on_wait.races, on_wait.leftover_semaphores, on_wait.seconds) == (0, 1, 2.5)
    assert [finding.code for finding in report.diagnostics] == ["RS401", "RS502"]
    assert "write of b[0] from 1, 0,\nread of b[0] from 0, 0," in report.diagnostics[0].notes[0]
    assert report.to_json()["max_error"] is None  # JSON has no NaN


def test_products_apart_from_transfers():
    result = ringsched("matmul_reduce_scatter", "--set", "N=2", "--overlap", "none")
    assert result.returncode == 0, result.stderr
    assert "right for N = 2, overlap none (" in result.stdout
    assert "the kernel agrees with the product in float64 on 2 virtual devices" in result.stdout
