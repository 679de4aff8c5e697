"""Kernels in programs whose mesh has axes beside the ranks': both settings of `check_vma`, value and gradient.

What `benchmarks/mesh_axes.py` compiles; a sample by default.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from ringsched.schedule.loader import shipped_names


def _command() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "mesh_axes.py"
    spec = importlib.util.spec_from_file_location("mesh_axes", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["mesh_axes"] = module
    spec.loader.exec_module(module)
    return module


command = _command()
SAMPLE = ("all_gather", "all_reduce", "all_gather_matmul", "tp_mlp_whole")


def check(names: list[str], target: str, three: bool, meshes: int = 2) -> None:
    rows = list(command.compiled_programs(names, target, three, seconds=900))
    assert [row for row in rows if row["why"] is not None] == []
    assert len(rows) == len(names) * meshes * 4


def test_a_sample() -> None:
    check(list(SAMPLE), "v5p:2x2x1", three=False)


def test_three_axes() -> None:
    """(1, 2, 2) alone has no more than four devices."""
    check(["all_gather_torus_by_axes"], "v5e:2x2", three=True, meshes=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", command.names_of((), 1))
def test_every_schedule(name: str) -> None:
    check([name], "v5p:2x2x1", three=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", command.names_of((), 2))
def test_every_schedule_on_three_axes(name: str) -> None:
    check([name], "v5p:2x2x2", three=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"])
def test_other_chips(target: str) -> None:
    check([*SAMPLE, "matmul_reduce_scatter", "reduce_scatter"], target, three=False)


def test_what_does_not_compile_is_told() -> None:
    """One axis has no ranks for a schedule of two sides."""
    (row, *_) = command.compiled_programs(["all_gather_torus"], "v5e:2x2", False)
    assert "ValueError" in row["why"]


def test_all_are_there() -> None:
    """Those of three sides alone are compiled elsewhere, on one mesh."""
    named = {*command.names_of((), 1), *command.names_of((), 2)}
    assert {name for name in shipped_names() if name not in named} == {
        f"{name}_torus_3d" for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    }
