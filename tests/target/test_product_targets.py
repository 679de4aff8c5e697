"""Kernels that multiply through the TPU compiler: every schedule, every chip. Needs libtpu, no TPU."""

from __future__ import annotations

import importlib.util
from functools import cache

import pytest

from ringsched.pipeline import compile_schedule, open_schedule
from ringsched.schedule.loader import shipped_names
from ringsched.target.aot import Operand, TargetError, compile_for_target
from ringsched.target.report import TargetReport

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

PRODUCTS = tuple(name for name in shipped_names() if "matmul" in name and name != "matmul")
TARGETS = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")
SAMPLED = ("v5p:2x2x1", "v6e:2x2")
N = 4
SAMPLE = [(name, target, "bfloat16") for name in PRODUCTS for target in SAMPLED]
MATRIX = [
    (name, target, dtype)
    for name in PRODUCTS
    for target in TARGETS
    for dtype in ("bfloat16", "float32", "int8")
    if (name, target, dtype) not in SAMPLE and (dtype, target) != ("int8", "v4:2x2x1")
]
WRAPPED = """

def with_options(x, w, *, axis_name, interpret):
    return NAME(x, w, axis_name=axis_name, interpret=interpret, OPTIONS)
"""


@cache
def source(name: str, n: int = N) -> str:
    return compile_schedule(open_schedule(name, {"N": n})).source


def compiled(
    name: str,
    target: str,
    dtype: str,
    *,
    rows: int = 64,
    depth: int = 256,
    cols: int = 512,
    n: int = N,
    options: str = "",
) -> TargetReport:
    """x of 64 rows on each rank: two parts of a shard of a quarter of it are a tile of bf16 at most, and padded."""
    deep = n * depth if name.startswith("all_gather") and "features" in name else depth
    x = Operand(name="x", shape=(rows, depth), dtype=dtype)
    w = Operand(name="w", shape=(deep, cols), dtype=dtype)
    text, function = source(name, n), name
    if options:
        text, function = text + WRAPPED.replace("NAME", name).replace("OPTIONS", options), "with_options"
    report = compile_for_target(source=text, function=function, sides=(n,), operands=(x, w), target=target)
    assert report.cycles is None or report.cycles > 0
    assert name in report.kernel
    assert report.semaphores
    return report


@pytest.mark.parametrize(("name", "target", "dtype"), SAMPLE)
def test_sample(name: str, target: str, dtype: str) -> None:
    compiled(name, target, dtype)


@pytest.mark.parametrize("name", ["all_gather_matmul_features_bidirectional", "matmul_all_reduce"])
def test_both_cores(name: str) -> None:
    """Each has half of the products, and both cores are what v5p is compiled for unless one is asked for."""
    size = {"rows": 256, "depth": 256, "cols": 1024}
    both = compiled(name, "v5p:2x2x1", "bfloat16", **size)
    one = compiled(name, "v5p:2x2x1", "bfloat16", **size, options="cores=1")
    assert (both.cores, one.cores) == (2, 1)
    assert both.ideal_cycles and one.ideal_cycles and one.ideal_cycles == 2 * both.ideal_cycles
    assert both.cycles and one.cycles and one.cycles / 2 < both.cycles < 0.85 * one.cycles


def test_one_core_where_a_device_has_no_other() -> None:
    assert compiled("all_gather_matmul", "v6e:2x2", "bfloat16").cores == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target", "dtype"), MATRIX)
def test_every_schedule_and_chip(name: str, target: str, dtype: str) -> None:
    compiled(name, target, dtype)


@pytest.mark.slow
def test_int8_is_not_for_v4() -> None:
    """Its matrix unit has none; the compiler says so."""
    with pytest.raises(TargetError, match=r"RS604: .*v4:2x2x1: .*Unsupported matmul"):
        compiled("all_gather_matmul", "v4:2x2x1", "int8")


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_shapes_that_are_padded(name: str) -> None:
    compiled(name, "v5p:2x2x1", "bfloat16", rows=20, depth=70, cols=200)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_larger(name: str) -> None:
    """A unit is of many tiles, in every dimension."""
    compiled(name, "v6e:2x2", "bfloat16", rows=512, depth=512, cols=1024)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_results_of_another_dtype(name: str) -> None:
    compiled(name, "v5p:2x2x1", "bfloat16", options="out_dtype=jnp.float32")
    if name.startswith("matmul"):
        compiled(name, "v5p:2x2x1", "bfloat16", options="partial_dtype=jnp.float32")
    compiled(name, "v6e:2x2", "int8", options="out_dtype=jnp.int32")


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_loops(name: str) -> None:
    assert "pl.loop" in source(name, 16)
    rows, cols = (256, 2048) if "reduce_scatter" in name else (64, 512)
    compiled(name, "v5e:4x4", "bfloat16", rows=rows, depth=128, cols=cols, n=16)


@pytest.mark.parametrize("overlap", ["full", "none"])
def test_without_communication_or_with_all_of_it_apart(overlap: str) -> None:
    """The issue cycles of the same products: they leave out what is waited for, so that they are close."""
    alone = compiled("matmul", "v5p:2x2x1", "bfloat16", rows=256, depth=512, cols=512)
    text = compile_schedule(open_schedule("matmul_reduce_scatter", {"N": N}, overlap)).source
    x, w = (Operand(name=name, shape=shape, dtype="bfloat16") for name, shape in (("x", (256, 512)), ("w", (512, 512))))
    function = "matmul_reduce_scatter"
    apart = compile_for_target(source=text, function=function, sides=(N,), operands=(x, w), target="v5p:2x2x1")
    assert alone.semaphores is not None and apart.semaphores is not None and alone.semaphores < apart.semaphores
    assert alone.ideal_cycles == apart.ideal_cycles
    assert alone.cycles is not None and apart.cycles is not None and alone.cycles < apart.cycles
