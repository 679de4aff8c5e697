"""Kernels in programs whose mesh has axes beside the ranks': both settings of `check_vma`, value and gradient.

What `benchmarks/mesh_axes.py` compiles; a sample by default.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ringsched.schedule.loader import shipped_names

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def _command() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "mesh_axes.py"
    spec = importlib.util.spec_from_file_location("mesh_axes", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["mesh_axes"] = module
    spec.loader.exec_module(module)
    return module


command = _command()
SAMPLE = ("all_gather", "all_reduce", "all_gather_matmul")
MORE = ("matmul_reduce_scatter", "reduce_scatter", "all_gather:invarying", "tp_mlp_whole")


def check(names: Sequence[str], target: str, *meshes: tuple[int, ...]) -> None:
    requests = command.requests_of(names, meshes)
    assert len(requests) == 4 * len(names) * len(meshes)
    rows = list(command.compiled_programs(requests, target))
    assert [row for row in rows if row.why is not None] == []
    assert [row.request for row in rows] == requests


@needs_libtpu
def test_a_sample() -> None:
    check(SAMPLE, "v5p:2x2x1", (2, 2))


@needs_libtpu
def test_three_axes() -> None:
    check(["all_gather_torus_by_axes"], "v5e:2x2", (1, 2, 2))


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("name", command.names_of(1))
def test_every_schedule(name: str) -> None:
    check([name], "v5p:2x2x1", (1, 4), (2, 2))


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("name", command.names_of(2))
def test_every_schedule_on_three_axes(name: str) -> None:
    check([name], "v5p:2x2x2", (1, 2, 2), (2, 2, 2))


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("name", command.names_of(3))
def test_every_schedule_on_four_axes(name: str) -> None:
    check([name], "v5p:2x2x2", (1, 2, 2, 2))


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"])
def test_other_chips(target: str) -> None:
    check([*SAMPLE, *MORE], target, (1, 4), (2, 2))


@needs_libtpu
def test_what_does_not_compile_is_told() -> None:
    """One axis has no ranks for a schedule of two sides; the name of none is no schedule."""
    requests = command.requests_of(["all_gather_torus", "no_such_schedule"], [(1, 4)])
    rows = list(command.compiled_programs([requests[0], requests[-1]], "v5e:2x2"))
    assert [row.why is None for row in rows] == [False, False]
    assert "ValueError" in rows[0].why and "no_such_schedule" in rows[1].why


@pytest.mark.parametrize(
    ("before", "end"), [(0, "os.abort()"), (2, "os.abort()"), (1, "end_after(0.01); signal.pause()")]
)
def test_a_process_that_ends_is_told(monkeypatch: Any, tmp_path: Path, before: int, end: str) -> None:
    """Each process gives so many rows and ends, by itself or at its deadline: no program is left out or counted."""
    script = tmp_path / "ends.py"
    lines = [
        "import json, os, signal, sys",
        "from ringsched.processes import end_after",
        f"rows = min({before}, len(json.load(open(sys.argv[3]))))",
        "print('{\"seconds\": 0.1, \"why\": null}\\n' * rows, end='', flush=True)",
        end,
    ]
    script.write_text("\n".join(lines))
    monkeypatch.setattr(command, "__file__", str(script))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    requests = command.requests_of(["all_gather"], [(1, 4)])
    rows = list(command.compiled_programs(requests, "v5e:2x2"))
    assert [row.request for row in rows] == requests
    code = -signal.SIGABRT if "abort" in end else -signal.SIGALRM
    for number, row in enumerate(rows):
        if number % (before + 1) == before:
            assert f"exit code {code}" in row.why
        else:
            assert row.why is None


def test_all_are_there() -> None:
    named = {name for sides in (1, 2, 3) for name in command.names_of(sides)}
    assert set(shipped_names()) == {name for name in named if ":" not in name}
    assert {name for name in named if ":" in name} == {"all_gather:invarying", "broadcast:invarying"}
