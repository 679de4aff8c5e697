"""Generated kernels through the TPU compiler: every shipped schedule, every chip. Needs libtpu, no TPU."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest
from shipped import RINGS

from ringsched.pipeline import compile_schedule, open_schedule
from ringsched.target.aot import Operand, compile_for_target
from ringsched.target.report import TargetReport

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

TARGETS = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
N = 4
SAMPLE = [
    ("all_gather_bidirectional", "v5e:2x2", "bfloat16"),
    ("all_gather_bidirectional", "tpu7x:2x2x1", "float32"),
    ("all_reduce", "v5e:2x2", "float32"),
    ("all_reduce", "tpu7x:2x2x1", "bfloat16"),
]
MATRIX = [
    (name, target, dtype)
    for name in RINGS
    if "matmul" not in name and not name.startswith("tp_mlp")
    for target in TARGETS
    for dtype in ("float32", "bfloat16")
]

REDUCE_SCATTER = """\
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
"""
GRADIENT = """

def gradient(x, *, axis_name, interpret):
    def loss(x):
        return jnp.sum(NAME(x, axis_name=axis_name, interpret=interpret) ** 2)

    return jax.grad(loss)(x)
"""


@cache
def source(name: str, *, debug: bool = False) -> str:
    return compile_schedule(open_schedule(name, {"N": N}), debug=debug).source


def compiled(text: str, function: str, target: str, shape: tuple[int, ...], dtype: str, ranks: int = N) -> TargetReport:
    operand = Operand(name="x", shape=shape, dtype=dtype)
    report = compile_for_target(source=text, function=function, sides=(ranks,), operands=(operand,), target=target)
    assert report.cycles is None or report.cycles > 0
    return report


def wished(folder: Path, wishes: str, n: int = N) -> str:
    path = folder / "my_reduce_scatter.yaml"
    path.write_text(f"{REDUCE_SCATTER}lowering: {wishes}\n", encoding="utf-8")
    return compile_schedule(open_schedule(path, {"N": n})).source


@pytest.mark.parametrize(("name", "target", "dtype"), SAMPLE)
def test_sample(name: str, target: str, dtype: str) -> None:
    report = compiled(source(name), name, target, (N * 32, 256), dtype)
    assert name in report.kernel
    assert report.semaphores


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target", "dtype"), MATRIX)
def test_every_schedule_and_chip(name: str, target: str, dtype: str) -> None:
    compiled(source(name), name, target, (N * 32, 256), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "float16", "float8_e4m3fn", "bool"])
def test_other_dtypes(dtype: str) -> None:
    """Of which not every unit of the chip adds each."""
    name = "all_gather" if dtype == "bool" else "all_reduce"
    compiled(source(name), name, "v6e:2x2", (N * 32, 256), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(N, 3), (4 * N, 130), (N, 1)])
def test_shapes_that_are_padded(shape: tuple[int, ...]) -> None:
    compiled(source("reduce_scatter"), "reduce_scatter", "v5p:2x2x1", shape, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_gradient(name: str) -> None:
    compiled(source(name) + GRADIENT.replace("NAME", name), "gradient", "v5p:2x2x1", (N * 32, 256), "float32")


@pytest.mark.slow
def test_debug_prints() -> None:
    compiled(source("all_to_all", debug=True), "all_to_all", "v5p:2x2x1", (N * 32, 256), "float32")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_operands_in_hbm(tmp_path: Path, target: str, dtype: str) -> None:
    """256 MiB of f32, of which a tile at a time is in VMEM."""
    report = compiled(wished(tmp_path, "{memory: hbm}"), "my_reduce_scatter", target, (N * 8192, 2048), dtype)
    assert report.vmem_bytes is not None and report.vmem_bytes < 2**23


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e:4x4", "v5p:4x4x4"])
def test_loop_with_credits(tmp_path: Path, target: str) -> None:
    text = wished(tmp_path, "{unroll: false, slots: 2}", 16)
    assert "credit" in text and "@pl.loop(" in text
    compiled(text, "my_reduce_scatter", target, (16 * 32, 256), "float32", ranks=16)
