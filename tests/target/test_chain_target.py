"""Chains by the TPU compiler: the MLP's cycles, and that other forms compile."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ringsched.operand import Operand
from ringsched.pipeline import compile_schedule, open_schedule
from ringsched.target.aot import compile_for_target
from ringsched.target.report import TargetReport

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

ROWS = ("all_gather_matmul_bidirectional", "matmul_reduce_scatter_bidirectional")


def compiled(
    source: str,
    name: str,
    target: str,
    shapes: tuple[tuple[int, ...], ...],
    dtype: str,
    cores: int | None = None,
) -> TargetReport:
    operands = tuple(Operand(name="x", shape=shape, dtype=dtype) for shape in shapes)
    return compile_for_target(source=source, function=name, sides=(4,), operands=operands, target=target, cores=cores)


@pytest.mark.slow
@pytest.mark.parametrize(("cores", "most"), [(1, 103_000), (2, 0.53 * 101_748), (None, 0.53 * 101_748)])
def test_three_layers_of_the_mlp(cores: int | None, most: float) -> None:
    """32,768 cycles of products a layer, and about 1,100 for five points of synchronisation; on two cores, half."""
    source = compile_schedule(open_schedule("tp_mlp", {"N": 4})).source
    shapes = ((256, 256), (3, 1024, 4096), (3, 4096, 1024))
    report = compiled(source, "tp_mlp", "v5p:2x2x1", shapes, "bfloat16", cores)
    assert report.cores == cores or (cores is None and report.cores == 2)
    assert report.ideal_cycles == 98304 // report.cores
    assert report.cycles is not None and report.cycles <= most


@pytest.mark.slow
def test_three_layers_of_the_whole_activation() -> None:
    """As many products, and about 80 cycles for the shard that is taken and the result that is gathered."""
    source = compile_schedule(open_schedule("tp_mlp_whole", {"N": 4})).source
    shapes = ((256, 1024), (3, 1024, 4096), (3, 4096, 1024))
    report = compiled(source, "tp_mlp_whole", "v5p:2x2x1", shapes, "bfloat16")
    assert report.cycles is not None and report.ideal_cycles == 98304
    assert report.cycles <= 103_000


def test_small_with_the_whole_activation() -> None:
    source = compile_schedule(open_schedule("tp_mlp_whole", {"N": 4})).source
    report = compiled(source, "tp_mlp_whole", "v6e:2x2", ((16, 160), (2, 160, 128), (2, 128, 160)), "float32")
    assert report.kernel == "tp_mlp_whole" and report.cycles is not None


@pytest.mark.parametrize("target", ["v5e:2x2", pytest.param("v6e:2x2", marks=pytest.mark.slow)])
def test_small(target: str) -> None:
    source = compile_schedule(open_schedule("tp_mlp", {"N": 4})).source
    report = compiled(source, "tp_mlp", target, ((16, 40), (2, 160, 128), (2, 128, 160)), "float32")
    assert report.kernel == "tp_mlp"


@pytest.mark.slow
def test_along_rows(tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    uses = "".join(f"  - use: {link}\n    epilogue: silu\n" for link in ROWS)
    file.write_text(f"schedule: chain\ntopology: {{ring: N}}\nparams: {{N: 4}}\nchain:\n{uses}")
    source = compile_schedule(open_schedule(file)).source
    report = compiled(source, "chain", "v5p:2x2x1", ((64, 512), (3, 512, 1024), (3, 1024, 512)), "bfloat16")
    assert report.cycles
