"""Kernels over all links of tori and meshes, in log steps, and with what each rank does looked up in tables."""

from __future__ import annotations

from typing import Any

import pytest
from cases import slow

TORUS, CUBE = {"X": 2, "Y": 3}, {"X": 2, "Y": 2, "Z": 2}
CASES = [
    ("all_gather_torus", TORUS),
    ("reduce_scatter_mesh", TORUS),
    slow("all_gather_mesh", TORUS),
    slow("reduce_scatter_torus", TORUS),
    slow("all_reduce_torus", TORUS),
    slow("all_to_all_torus", TORUS),
    slow("all_reduce_mesh", TORUS),
    slow("all_to_all_mesh", TORUS),
    slow("all_gather_torus_by_axes", TORUS),
    slow("reduce_scatter_torus_by_axes", TORUS),
    slow("all_reduce_torus_by_axes", TORUS),
    slow("all_gather_torus_3d", CUBE),
    slow("reduce_scatter_torus_3d", CUBE),
    slow("all_reduce_torus_3d", CUBE),
    slow("all_to_all_torus_3d", CUBE),
    ("all_reduce_halving_doubling", {"N": 4}),
    slow("all_gather_doubling", {"N": 8}),
    slow("reduce_scatter_halving", {"N": 8}),
    slow("all_reduce_doubling", {"N": 8}),
    slow("all_reduce_swing", {"N": 8}),
    slow("all_gather_bruck", {"N": 7}),
    slow("all_to_all_bruck", {"N": 5}),
]
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_values_and_gradients(devices: Any, name: str, parameters: dict[str, int]) -> None:
    import math

    import jax
    import jax.numpy as jnp
    import numpy as np
    from twins import Interpreted, clean, close, data, on_ranks, twin, watched

    def both(f: Any) -> Any:
        return lambda x: (f(x), jax.grad(lambda x: jnp.sum(jnp.sin(f(x)) * jnp.arange(3)))(x))

    sides = tuple(parameters.values())
    axes = ("x", "y", "z")[: len(sides)]
    ranks = math.prod(sides)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:ranks]).reshape(sides), axes)
    collective = Interpreted(name, **parameters)
    kind = next(kind for kind in KINDS if name.startswith(kind))
    x = data((*sides, 2 * ranks, 3))
    with clean():
        a = on_ranks(both(lambda x: collective(x, axis_name=axes, interpret=watched())), x, mesh=mesh)
    close(a, on_ranks(both(twin(kind, axes)), x, mesh=mesh))
