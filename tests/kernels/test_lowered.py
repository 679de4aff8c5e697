"""What the `lowering:` of a schedule asks for: loops, few slots with credits, operands in HBM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cases import slow

SCATTER = """\
schedule: my_reduce_scatter
collective: reduce_scatter
topology: {ring: N}
params: {N: 4}
chunks: [N]
steps:
  - for: s in 0 .. N - 2
    do:
      - send: chunk[(r - s - 1) % N]
        to: r + 1
        op: reduce
lowering: WISHES
"""
GATHER = """\
schedule: my_all_gather
collective: all_gather
topology: {ring: N}
params: {N: 4}
chunks: [N]
steps:
  - for: s in 0 .. N - 2
    do:
      - send: chunk[(r - s) % N]
        to: r + 1
lowering: WISHES
"""


def check(folder: Path, text: str, wishes: str, n: int, mode: str, rows: int = 8, tile: int | None = None) -> str:
    """Compares with `jax.lax`; returns the module."""
    from twins import clean, data, on_ranks, same, twin, watched, written

    name = text.split()[1]
    f = written(str(folder), text.replace("WISHES", wishes), N=n)
    module = f.compiled._function({}).__globals__
    if tile:
        module["_TILE_BYTES"] = tile
    x = data((n, n * rows if "scatter" in name else rows, 128))
    with clean():
        a = on_ranks(lambda x: f(f(x, axis_name="i", interpret=watched(mode))[:rows].repeat(n, 0), axis_name="i"), x)
    g = twin(name.removeprefix("my_"))
    same(a, on_ranks(lambda x: g(g(x)[:rows].repeat(n, 0)), x))
    return str(f.source())


@pytest.mark.parametrize("mode", [slow("eager"), "on_wait"])
def test_loop_with_two_slots(devices: Any, tmp_path: Path, mode: str) -> None:
    module = check(tmp_path, SCATTER, "{unroll: false, slots: 2}", 8, mode)
    assert "pl.loop(" in module.split("_transpose_kernel(")[0]
    assert "credit" in module


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "on_wait"])
@pytest.mark.parametrize("text", [SCATTER, GATHER])
def test_loop_of_nine_steps(devices: Any, tmp_path: Path, text: str, mode: str) -> None:
    module = check(tmp_path, text, "{unroll: false}", 10, mode)
    assert "pl.loop(" in module.split("_transpose_kernel(")[0]


def test_few_semaphores(devices: Any, tmp_path: Path) -> None:
    module = check(tmp_path, GATHER, "{semaphores: 2}", 5, "on_wait")
    assert "credit" in module


@pytest.mark.parametrize("text", [SCATTER, GATHER])
def test_operands_in_hbm(devices: Any, tmp_path: Path, text: str) -> None:
    module = check(tmp_path, text, "{memory: hbm}", 3, "on_wait")
    assert '"memory": "hbm"' in module


@pytest.mark.parametrize("mode", [slow("eager"), "on_wait"])
def test_streams_several_tiles(devices: Any, tmp_path: Path, mode: str) -> None:
    """Chunks of three tiles: one is added while the next is loaded."""
    check(tmp_path, SCATTER, "{memory: hbm, slots: 2}", 3, mode, rows=48, tile=16 * 128 * 4)


def test_tiles_in_vmem(devices: Any, tmp_path: Path) -> None:
    check(tmp_path, SCATTER, "{memory: vmem}", 3, "on_wait", rows=48, tile=16 * 128 * 4)
