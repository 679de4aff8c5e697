"""What the tests here rest on: a race, a leftover or a hang fails the test in which it happens, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

N = 4


def run(source: str, name: str, mode: str) -> Any:
    """The module of this text at N ranks, under race detection."""
    from twins import data, on_ranks, watched

    from ringsched.collective import as_module

    f = getattr(as_module(source, name), name)
    x = data((N, N * 8, 128))
    return on_ranks(lambda x: f(x, axis_name="i", interpret=watched(mode)), x, check_vma=False).block_until_ready()


def without(name: str, line: str, number: int) -> str:
    """A shipped schedule's module, a line of its kernel left out."""
    import ringsched as rs

    lines = rs.compile(name, N=N).source().splitlines(keepends=True)
    found = [i for i, text in enumerate(lines) if text.strip().startswith(line)]
    del lines[found[number]]
    return "".join(lines)


def test_race_is_seen(devices: Any) -> None:
    from twins import clean

    source = without("reduce_scatter", "_wait(slots_ref.at[0], received.at[0])", 0)
    with pytest.raises(AssertionError, match="RACE DETECTED"), clean():
        run(source, "reduce_scatter", "eager")


def test_leftover_is_seen(devices: Any) -> None:
    from twins import clean

    source = without("reduce_scatter", "_wait(slots_ref.at[1]", -1)
    with pytest.raises(AssertionError, match="has non-zero count"), clean():
        run(source, "reduce_scatter", "eager")


def hang(*, devices: Any) -> None:
    source = without("shift", "_signal(pltpu.get_barrier_semaphore()", 0)
    run(source, "shift", "eager")


def wrong(*, devices: Any) -> None:
    raise AssertionError("values differ")


def right(*, devices: Any) -> None:
    pass


def test_hang_fails_and_the_next_test_runs() -> None:
    from conftest import Devices, Failed

    own = Devices()
    try:
        with pytest.raises(Failed, match=r"(?s)no end within 6 s.*Thread 0x"):
            own.run(Path(__file__), "hang", {}, deadline=6)
        own.run(Path(__file__), "right", {}, deadline=60)
        with pytest.raises(Failed, match="AssertionError: values differ"):
            own.run(Path(__file__), "wrong", {}, deadline=60)
    finally:
        own.stop()


PROBE = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.pop("NPROC", None)
os.sched_setaffinity(0, {next(iter(os.sched_getaffinity(0)))})
import jax
jax.config.update("jax_num_cpu_devices", 4)
BEFORE
import ringsched as rs
mesh = jax.make_mesh((4,), ("i",))
y = rs.compile("all_gather").on(mesh, interpret=True)(jax.numpy.ones((4 * 512, 512)))
print(y.shape)
"""


def probe(before: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROBE.replace("BEFORE", before)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_too_few_threads_are_an_error_not_a_hang() -> None:
    result = probe("jax.devices()")
    assert result.returncode == 1
    assert (
        "RuntimeError: all_gather would hang (RS606): to interpret it on 4 devices takes 5 threads, and jax has 4."
        in result.stderr
    )


def test_import_before_jax_starts_provides_threads() -> None:
    result = probe("")
    assert result.stdout == "(2048, 512)\n", result.stderr
