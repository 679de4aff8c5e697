"""Collectives of jax.lax before, between and after kernels are followed when values are checked."""

from collections.abc import Callable
from typing import Any

import jax
import pytest
from corpus.rings import gather
from jax import lax

import ringsched as rs

GATHER = gather(shared=False)  # x [8, 128] of each device → [4, 8, 128]


def summed_before(x: jax.Array) -> Any:
    return GATHER(lax.psum(x, "i") + x)


def shifted_between(x: jax.Array) -> Any:
    return GATHER(lax.ppermute(GATHER(x)[1], "i", [(k, (k + 1) % 4) for k in range(4)]))


def scattered_after(x: jax.Array) -> Any:
    return lax.psum_scatter(GATHER(x), "i", scatter_dimension=0)


def exchanged_after(x: jax.Array) -> Any:
    # vmap, which expect= is traced under, has no right all_to_all of what is the same on all devices.
    return lax.all_to_all(GATHER(x) + lax.axis_index("i"), "i", 0, 0, tiled=True)


def gathered_between(x: jax.Array) -> Any:
    return GATHER(lax.all_gather(GATHER(x)[0, :2], "i", tiled=True))


def by_lax(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same with the kernel's twin."""

    def expect(x: jax.Array) -> Any:
        return function.__globals__ and _with_twin(function, x)

    return expect


def _with_twin(function: Callable[[Any], Any], x: Any) -> Any:
    names = function.__globals__
    kept = names["GATHER"]
    names["GATHER"] = lambda y: lax.all_gather(y, "i")
    try:
        return function(x)
    finally:
        names["GATHER"] = kept


@pytest.mark.parametrize(
    "function", [summed_before, shifted_between, scattered_after, exchanged_after, gathered_between]
)
def test_followed(function: Callable[[Any], Any]) -> None:
    options = {"mesh_axes": {"i": 4}, "args": ["f32[32,128]"], "in_specs": "i", "out_specs": "i"}
    report = rs.audit(function, expect=by_lax(function), **options)
    assert (report.verdict, report.values) == ("right", "right"), str(report)
    wrong = rs.audit(function, expect=lambda x: 2 * _with_twin(function, x), **options)
    assert [d.code for d in wrong.diagnostics] == ["RS801"]


def test_along_one_axis_of_two() -> None:
    def function(x: jax.Array) -> Any:
        return lax.psum(rs.compile("all_gather", N=2)(x, axis_name="y"), "x")

    report = rs.audit(
        function,
        mesh_axes={"x": 3, "y": 2},
        args=["f32[48,128]"],
        in_specs="x+y",
        out_specs="x+y",
        expect=lambda x: lax.psum(lax.all_gather(x, "y", tiled=True), "x"),
    )
    assert (report.verdict, report.values) == ("right", "right"), str(report)
