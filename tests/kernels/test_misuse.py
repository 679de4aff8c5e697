"""Calls that cannot work say so, with the sizes."""

from __future__ import annotations

from typing import Any

import pytest

N = 4


def test_uneven_division_names_the_sizes(devices: Any) -> None:
    from twins import data, on_ranks, ours

    x = data((N, 3, 6))
    for name, option in (("reduce_scatter", "axis"), ("all_to_all", "split_axis")):
        for axis, size in ((0, 3), (1, 6), (-1, 6)):
            want = rf"{name} needs axis {axis % 2} of shape \(3, 6\) to be a multiple of N = 4, but it is {size}"
            with pytest.raises(ValueError, match=want):
                on_ranks(ours(name, **{option: axis}), x)
        with pytest.raises(ValueError, match="to be equal to N = 4, but it is 8"):
            on_ranks(ours(name, tiled=False), data((N, 8)))


def test_axis_out_of_bounds(devices: Any) -> None:
    from twins import data, on_ranks, ours

    for axis in (2, -3):
        with pytest.raises(ValueError, match=f"axis {axis} is out of bounds for 2 dimensions"):
            on_ranks(ours("all_gather", axis=axis), data((N, 3, 6)))


def test_outside_shard_map(devices: Any) -> None:
    from twins import data, ours

    with pytest.raises(ValueError, match=r"all_gather must run in jax.shard_map over axis 'i'"):
        ours("all_gather")(data((4, 3)))


def test_wrong_axis_name(devices: Any) -> None:
    from twins import data, on_ranks, ours

    with pytest.raises(ValueError, match=r"all_gather must run in jax.shard_map over axis 'j'"):
        on_ranks(ours("all_gather", axis_name="j"), data((N, 3)))


def test_axis_of_another_size(devices: Any) -> None:
    from twins import Interpreted, data, on_ranks

    gather = Interpreted("all_gather", N=4)
    with pytest.raises(ValueError, match="all_gather was compiled for 4 ranks, but mesh axis 'i' has 3"):
        on_ranks(lambda x: gather(x, axis_name="i"), data((3, 8)))


def test_some_axes_not_manual(devices: Any) -> None:
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P
    from twins import data, ours

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("d", "i"))
    specs = {"in_specs": P("i"), "out_specs": P("i"), "axis_names": {"i"}}
    message = r"needs all mesh axes manual, and 'd' is not: call jax.shard_map without axis_names"
    with pytest.raises(ValueError, match=message):
        jax.jit(jax.shard_map(ours("all_gather"), mesh=mesh, **specs))(data((N, 3)))


def test_dtypes_that_are_not_taken(devices: Any) -> None:
    import jax
    from twins import data, on_ranks, ours

    with pytest.raises(TypeError, match="reduce_scatter does not add bool"):
        on_ranks(ours("reduce_scatter"), data((N, 4), "bool"))
    message = "the kernel of reduce_scatter does not add float64, of 64 bits"
    with jax.enable_x64(True), pytest.raises(TypeError, match=message):
        on_ranks(ours("reduce_scatter"), data((N, 4)).astype("float64"))


def test_not_interpreted_without_a_tpu(devices: Any) -> None:
    """`interpret=False` is taken at its word."""
    from twins import data, on_ranks, ours

    with pytest.raises(ValueError, match="interpret"):
        on_ranks(ours("all_gather", interpret=False), data((N, 3)))
