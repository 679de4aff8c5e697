"""Several kernels in one program, and the arguments that say how a kernel runs."""

from __future__ import annotations

from typing import Any

import pytest
from cases import slow

N = 4


@pytest.mark.parametrize("mode", ["on_wait", slow("eager")])
def test_different_kernels_back_to_back(devices: Any, mode: str) -> None:
    """One feeds the next, and one is independent of both."""
    from twins import clean, data, on_ranks, ours, same, twin, watched

    def program(make: Any, **options: Any) -> Any:
        scatter, gather, shift = (make(n, **options) for n in ("reduce_scatter", "all_gather", "shift"))
        return lambda x: (gather(scatter(x)), shift(x), shift(shift(x)))

    x = data((N, 8, 3))
    with clean():
        a = on_ranks(program(ours, interpret=watched(mode)), x)
    same(a, on_ranks(program(twin), x))


@pytest.mark.parametrize("name", ["shift", slow("all_reduce")])
def test_in_a_loop(devices: Any, name: str) -> None:
    from jax import lax
    from twins import clean, data, on_ranks, ours, same, twin, watched

    def program(f: Any) -> Any:
        return lambda x: lax.fori_loop(0, 3, lambda _, x: f(x) % 5, x)

    x = data((N, 8, 3))
    with clean():
        a = on_ranks(program(ours(name, interpret=watched())), x, check_vma=False)
    same(a, on_ranks(program(twin(name)), x, check_vma=False))


def test_grad_of_a_scan(devices: Any) -> None:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from twins import close, normal, on_ranks, ours, twin

    def program(f: Any) -> Any:
        def total(x: Any) -> Any:
            return jnp.sum(lax.scan(lambda x, _: (jnp.sin(f(x)), None), x, length=2)[0] * jnp.arange(3))

        return jax.grad(total)

    x = normal((N, 8, 3))
    close(on_ranks(program(ours("shift")), x), on_ranks(program(twin("shift")), x))


def test_collective_id_is_passed_on(devices: Any) -> None:
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import data, ours, ring

    def traced(**options: Any) -> str:
        f = jax.shard_map(ours("shift", **options), mesh=ring(N), in_specs=P("i"), out_specs=P("i"))
        return str(jax.make_jaxpr(f)(data((N, 3))))

    assert "collective_id=7," in traced(collective_id=7)
    assert traced() == traced()


def test_barriers_differ_with_the_pattern(devices: Any) -> None:
    """Kernels that signal other ranks at their start have another barrier semaphore."""
    import re

    import jax
    from jax.sharding import PartitionSpec as P
    from twins import data, ours, ring

    def number(name: str) -> str:
        f = jax.shard_map(ours(name), mesh=ring(N), in_specs=P("i"), out_specs=P("i"))
        found = re.search(r"collective_id=(\d+)", str(jax.make_jaxpr(f)(data((4 * N, 3)))))
        assert found
        return found[1]

    assert number("shift") == number("all_gather")
    assert len({number(n) for n in ("shift", "exchange", "all_gather_bidirectional")}) == 3
