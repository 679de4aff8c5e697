"""Kernels on one axis of a mesh leave the others alone; a ring may run over two axes."""

from __future__ import annotations

from typing import Any

import pytest
from cases import slow

MAIN = ("all_gather", "reduce_scatter", "all_reduce")


def grid(rows: int, columns: int, names: tuple[str, str]) -> Any:
    import jax
    import numpy as np

    return jax.sharding.Mesh(np.array(jax.devices()[: rows * columns]).reshape(rows, columns), names)


def value_and_grad(f: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def both(x: Any) -> tuple[Any, Any]:
        return f(x), jax.grad(lambda x: jnp.sum(jnp.sin(f(x)) * jnp.arange(3)))(x)

    return both


def check(name: str, names: tuple[str, str], check_vma: bool) -> None:
    from twins import clean, close, data, on_ranks, ours, twin, watched

    sides = (2, 4) if names == ("d", "i") else (4, 2)
    mesh, x = grid(*sides, names), data((*sides, 4, 3))
    with clean():
        a = on_ranks(value_and_grad(ours(name, interpret=watched())), x, mesh=mesh, check_vma=check_vma)
    close(a, on_ranks(value_and_grad(twin(name)), x, mesh=mesh, check_vma=check_vma))


@pytest.mark.parametrize(("names", "check_vma"), [(("d", "i"), True), slow(("i", "d"), False)])
@pytest.mark.parametrize("name", MAIN)
def test_one_axis_of_two(devices: Any, name: str, names: tuple[str, str], check_vma: bool) -> None:
    check(name, names, check_vma)


@pytest.mark.slow
@pytest.mark.parametrize(("names", "check_vma"), [(("d", "i"), False), (("i", "d"), True)])
@pytest.mark.parametrize("name", MAIN)
def test_one_axis_of_two_otherwise(devices: Any, name: str, names: tuple[str, str], check_vma: bool) -> None:
    check(name, names, check_vma)


@pytest.mark.parametrize("axis_name", [("a", "b"), slow(("b", "a"))])
@pytest.mark.parametrize("name", ["all_gather", slow("reduce_scatter"), slow("all_reduce")])
def test_ring_over_two_axes(devices: Any, name: str, axis_name: tuple[str, str]) -> None:
    from twins import clean, close, data, on_ranks, ours, twin, watched

    mesh, x = grid(2, 3, ("a", "b")), data((2, 3, 6, 3))
    with clean():
        a = on_ranks(value_and_grad(ours(name, axis_name, interpret=watched())), x, mesh=mesh)
    close(a, on_ranks(value_and_grad(twin(name, axis_name)), x, mesh=mesh))


def test_both_axes_one_after_the_other(devices: Any) -> None:
    """Barriers of the two axes are not taken for one another."""
    from twins import clean, data, on_ranks, ours, same, twin, watched

    mesh, x = grid(2, 4, ("a", "b")), data((2, 4, 8, 3))
    with clean():
        a = on_ranks(
            lambda x: ours("all_gather", "b")(ours("reduce_scatter", "a", interpret=watched())(x)), x, mesh=mesh
        )
    same(a, on_ranks(lambda x: twin("all_gather", "b")(twin("reduce_scatter", "a")(x)), x, mesh=mesh))


@pytest.mark.parametrize("name", ["reduce_scatter", slow("all_gather"), slow("all_reduce")])
def test_on_a_mesh(devices: Any, name: str) -> None:
    """`.on(mesh)` does the shard_map itself: global arrays in and out."""
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import Interpreted, data, ring, same, twin

    mesh, x = ring(4), data((16, 3))
    out = P("i") if name == "reduce_scatter" else P()
    lax = jax.shard_map(twin(name), mesh=mesh, in_specs=P("i"), out_specs=out, check_vma=False)
    f = Interpreted(name).on(mesh)
    same(f(x), lax(x))
    same(jax.jit(f)(x), lax(x))


def test_on_one_axis_of_a_mesh(devices: Any) -> None:
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import data, same

    import ringsched as rs

    mesh, x = grid(2, 4, ("d", "i")), data((8, 4))
    f = rs.compile("all_gather").on(mesh, axis_name="i", in_specs=P("d", "i"), out_specs=P("d"), axis=1, interpret=True)
    same(jax.jit(f)(x), x)


def test_one_rank_is_the_identity(devices: Any) -> None:
    from cases import SCHEDULES
    from twins import data, on_ranks, ours, same

    x = data((1, 4, 3))
    for y in on_ranks(lambda x: [ours(name)(x) for name in SCHEDULES], x):
        same(y, x)
