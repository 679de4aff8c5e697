"""The jaxpr of a call does not grow with the number of ranks."""

from __future__ import annotations

from typing import Any

import pytest
from cases import SCHEDULES


def equations(jaxpr: Any) -> int:
    """Equations of a jaxpr and of all jaxprs in their parameters."""
    import jax

    total = 0
    for equation in jaxpr.eqns:
        total += 1
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += equations(inner)
    return total


def traced(name: str, n: int) -> int:
    """Of the value and of the gradient, on an abstract mesh of n ranks; compiled for a TPU."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P
    from twins import ours

    mesh = jax.sharding.AbstractMesh((n,), ("i",))
    f = ours(name, interpret=False)

    def both(x: Any) -> tuple[Any, Any]:
        return f(x), jax.grad(lambda x: jnp.sum(f(x)))(x)

    call = jax.shard_map(both, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    return equations(jax.make_jaxpr(call)(jnp.zeros((n * n, 3))).jaxpr)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter_bidirectional"])
def test_no_larger_at_64_ranks_than_at_16(devices: Any, name: str) -> None:
    assert 100 < traced(name, 64) <= traced(name, 16)


@pytest.mark.slow
@pytest.mark.deadline(300)
@pytest.mark.parametrize("name", SCHEDULES)
def test_no_larger_at_256_ranks_than_at_16(devices: Any, name: str) -> None:
    assert traced(name, 256) <= traced(name, 16)
