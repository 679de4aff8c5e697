"""Kernels that multiply pass their audit, values included; with any one synchronisation removed, they do not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from test_generated import tampered_sources

import ringsched as rs
from ringsched.auditing.audit import AuditReport
from ringsched.auditing.tracing import find_calls
from ringsched.collective import as_module
from ringsched.schedule.loader import shipped_names

PRODUCTS = tuple(name for name in sorted(shipped_names()) if "matmul" in name and name != "matmul")


def by_lax(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The product as one writes it with `jax.lax`, of one rank's x and w."""
    along = 1 if "features" in name else 0

    def dot(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.dot(x, w, precision=lax.Precision.HIGHEST)

    if name.startswith("all_gather"):
        return lambda x, w: dot(lax.all_gather(x, "i", axis=along, tiled=True), w)
    if "reduce_scatter" in name:
        return lambda x, w: lax.psum_scatter(dot(x, w), "i", scatter_dimension=along, tiled=True)
    return lambda x, w: lax.psum(dot(x, w), "i")


def shapes(name: str, ranks: int) -> list[str]:
    """Of all ranks' x and w together, joined along axis 0; each unit, of two parts of a shard, is a tile."""
    rows, depth, cols = 16, 256, 256
    deep = ranks * depth if name.startswith("all_gather") and "features" in name else depth
    if name.startswith("matmul_"):
        rows, cols = (rows, ranks * cols) if "features" in name else (ranks * rows, cols)
    return [f"f32[{ranks * rows},{depth}]", f"f32[{ranks * deep},{cols}]"]


def audit(
    source: str, name: str, ranks: int, expect: Any = None, cores: int = 1, memory: str | None = None
) -> AuditReport:
    function = getattr(as_module(source, name), name)
    return rs.audit(
        lambda x, w: function(x, w, axis_name="i", cores=cores, memory=memory),
        mesh_axes={"i": ranks},
        args=shapes(name, ranks),
        in_specs="i",
        out_specs="i",
        expect=expect,
        cores=cores,
    )


@pytest.mark.parametrize("ranks", [2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_kernels_are_right(name: str, ranks: int) -> None:
    report = audit(rs.compile(name).source(N=ranks), name, ranks, by_lax(name))
    assert (report.verdict, report.values) == ("right", "right"), str(report)
    assert not report.diagnostics


@pytest.mark.parametrize(("ranks", "memory"), [(2, "vmem"), (3, "hbm"), (3, "vmem"), (4, "vmem")])
@pytest.mark.parametrize("name", PRODUCTS)
def test_kernels_on_two_cores_are_right(name: str, ranks: int, memory: str) -> None:
    report = audit(rs.compile(name).source(N=ranks), name, ranks, by_lax(name), cores=2, memory=memory)
    assert (report.verdict, report.values) == ("right", "right"), str(report)
    assert not report.diagnostics


@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4, 8, 12))])
@pytest.mark.parametrize("name", PRODUCTS)
def test_kernels_without_overlap_are_right(name: str, ranks: int) -> None:
    report = audit(rs.compile(name, overlap="none").source(N=ranks), name, ranks, by_lax(name))
    assert (report.verdict, report.values) == ("right", "right"), str(report)
    assert not report.diagnostics


@pytest.mark.parametrize(
    ("name", "ranks", "rows", "grid"),
    [
        ("all_gather_matmul_features", 2, 191, ()),
        ("all_gather_matmul_features", 2, 192, (2,)),
        ("all_gather_matmul", 2, 95, ()),  # of which two are multiplied with a weight
        ("all_gather_matmul", 2, 96, (2,)),
        ("all_gather_matmul_bidirectional", 6, 32, ()),  # a part of a shard is one tile
        ("all_gather_matmul_bidirectional", 6, 33, (2,)),
    ],
)
def test_both_cores_where_there_are_rows_enough(name: str, ranks: int, rows: int, grid: tuple[int, ...]) -> None:
    function, mesh = rs.compile(name), {"i": ranks}
    depth = 256 if "features" in name else 128
    for cores in (1, 2):
        args = [f"bf16[{ranks * rows},128]", f"bf16[{ranks * depth},128]"]
        (call,) = find_calls(lambda x, w: function(x, w, axis_name="i"), mesh, args, ("i", "i"), "i", cores=cores)[
            0
        ].calls
        assert tuple(call.eqn.params["grid_mapping"].grid) == (grid if cores == 2 else ())


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_rolled(name: str) -> None:
    source = rs.compile(name).source(N=12)
    assert "pl.loop" in source.split("# How kernels move")[0]
    report = audit(source, name, 12, by_lax(name))
    assert (report.verdict, report.values) == ("right", "right"), str(report)


OTHERS = {
    "another factor": lambda name: lambda x, w: 2 * by_lax(name)(x, w),
    "one term of the sum": lambda name: lambda x, w: by_lax(name)(x, w.at[0].set(0)),
}


@pytest.mark.parametrize("what", ["another factor", "one term of the sum"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_another_expectation_is_not_met(name: str, what: str) -> None:
    report = audit(rs.compile(name).source(N=2), name, 2, OTHERS[what](name))
    assert (report.verdict, report.values) == ("wrong", "wrong"), str(report)


@pytest.mark.parametrize(
    ("name", "ranks", "overlap"),
    [(name, 3, None) for name in PRODUCTS]
    + [pytest.param(name, 4, None, marks=pytest.mark.slow) for name in PRODUCTS]
    + [pytest.param(name, 3, "none", marks=pytest.mark.slow) for name in PRODUCTS],
)
def test_tampered_kernels_are_wrong(name: str, ranks: int, overlap: str | None) -> None:
    """Each statement of synchronisation in the kernel is needed."""
    tampered = tampered_sources(rs.compile(name, overlap=overlap).source(N=ranks), name)
    assert len(tampered) >= 8
    for text in tampered:
        report = audit(text, name, ranks)
        assert report.verdict == "wrong", str(report)
        assert all(d.primary is not None for d in report.diagnostics if d.code != "RS521")


@pytest.mark.parametrize("name", [PRODUCTS[0], *(pytest.param(it, marks=pytest.mark.slow) for it in PRODUCTS[1:])])
def test_tampered_kernels_are_wrong_on_two_cores(name: str) -> None:
    for text in tampered_sources(rs.compile(name).source(N=3), name):
        report = audit(text, name, 3, cores=2)
        assert report.verdict == "wrong", str(report)


@pytest.mark.parametrize("name", PRODUCTS)
def test_blocks_of_the_wrong_core_are_found(name: str) -> None:
    """Both cores with the rows of the first: on one core in sequence nothing races, and the result is incomplete."""
    source = rs.compile(name).source(N=2)
    text = source.replace("return *(0 for _ in grid), core, 0", "return *(0 for _ in grid), 0, 0")
    assert text != source
    report = audit(text, name, 2, by_lax(name), cores=2)
    assert report.verdict == "wrong", str(report)


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name.startswith("all_gather")])
def test_parts_in_hbm_of_the_wrong_core_are_found(name: str) -> None:
    """Both cores with the rows of the first, in HBM; x and the result of the others are in VMEM."""
    source = rs.compile(name).source(N=2)
    text = source.replace("pl.multiple_of(pl.program_id(0) * rows, rows)", "pl.multiple_of(0, rows)")
    assert text != source
    report = audit(text, name, 2, by_lax(name), cores=2, memory="hbm")
    assert report.verdict == "wrong", str(report)


@pytest.mark.parametrize("name", PRODUCTS)
def test_kernels_with_a_product_left_out_are_wrong(name: str) -> None:
    """What is no race still gives another result."""
    less = sources_with_a_product_left_out(rs.compile(name).source(N=2))
    assert len(less) >= 2
    for text in less:
        report = audit(text, name, 2, by_lax(name))
        assert report.verdict == "wrong", str(report)


def sources_with_a_product_left_out(source: str) -> list[str]:
    """The module with one product of its forward kernel less, for each of them."""
    kernel = next(f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef) and f.name == "_kernel")
    lines = source.splitlines(keepends=True)
    found = []
    for node in ast.walk(kernel):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_Product":
            segment = ast.get_source_segment(source, node)
            assert segment is not None
            before = "".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
            found.append(before + "*()" + source[len(before) + len(segment) :])
    return found


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_product_without_communication(ranks: int) -> None:
    source = rs.compile("matmul").source(N=ranks)
    right = audit(source, "matmul", ranks, lambda x, w: jnp.dot(x, w, precision=lax.Precision.HIGHEST))
    assert (right.verdict, right.values, right.diagnostics) == ("right", "right", ())
    wrong = audit(source, "matmul", ranks, lambda x, w: 2 * jnp.dot(x, w, precision=lax.Precision.HIGHEST))
    assert (wrong.verdict, wrong.values) == ("wrong", "wrong")
