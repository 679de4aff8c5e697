"""jit, grad, vmap and their compositions agree with those of the `jax.lax` twins."""

from __future__ import annotations

from typing import Any

import pytest
from cases import SCHEDULES, slow

N = 3
MAIN = ("all_gather", "reduce_scatter", "all_reduce")
OTHERS = tuple(name for name in SCHEDULES if name not in MAIN)


def weigh(y: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sin(y) * jnp.cos(jnp.arange(y.size, dtype="float32")).reshape(y.shape)


def loss(f: Any) -> Any:
    """A scalar function of x through f that differs between ranks."""
    import jax.numpy as jnp
    from jax import lax

    return lambda x: jnp.sum(weigh(f(x))) * (1 + lax.axis_index("i"))


def differentiated(f: Any) -> Any:
    import jax

    return lambda x: jax.grad(loss(f))(x[0])


def composed(f: Any) -> Any:
    """All the transforms of f: x [2, rows, cols]."""
    import jax
    import jax.numpy as jnp

    def every(x: Any) -> dict[str, Any]:
        batched = jax.vmap(f)
        other = jax.vmap(f, in_axes=1, out_axes=1)
        return {
            "grad": jax.grad(loss(f))(x[0]),
            "vmap": weigh(batched(x)),
            "vmap along 1": weigh(other(jnp.moveaxis(x, 0, 1))),
            "grad of vmap": jax.grad(loss(batched))(x),
            "vmap of grad": jax.vmap(jax.grad(loss(f)))(x),
            "jit of grad": jax.jit(jax.grad(loss(jax.jit(f))))(x[1]),
        }

    return every


def deeper(f: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def every(x: Any) -> dict[str, Any]:
        return {
            "vmap of vmap": weigh(jax.vmap(jax.vmap(f))(jnp.stack([x, x + 1]))),
            "grad of grad": jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(loss(f))(x))))(x[0]),
        }

    return every


def check(name: str, transform: Any, check_vma: bool) -> None:
    from twins import close, normal, on_ranks, ours, twin

    x = normal((N, 2, 3, 2))
    f, g = transform(ours(name)), transform(twin(name))
    close(on_ranks(f, x, check_vma=check_vma), on_ranks(g, x, check_vma=check_vma))


@pytest.mark.parametrize("check_vma", [True, slow(False)])
@pytest.mark.parametrize("name", MAIN)
def test_main(devices: Any, name: str, check_vma: bool) -> None:
    check(name, composed, check_vma)


@pytest.mark.parametrize("name", MAIN)
def test_grad_without_types(devices: Any, name: str) -> None:
    check(name, differentiated, check_vma=False)


@pytest.mark.parametrize("name", ["shift", "broadcast", "reduce", "all_to_all", "all_gather_bidirectional"])
def test_grad(devices: Any, name: str) -> None:
    check(name, differentiated, check_vma=True)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", OTHERS)
def test_others(devices: Any, name: str, check_vma: bool) -> None:
    check(name, composed, check_vma)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", SCHEDULES)
def test_deeper(devices: Any, name: str, check_vma: bool) -> None:
    check(name, deeper, check_vma)


@pytest.mark.parametrize(
    ("name", "check_vma"),
    [
        ("all_reduce", True),
        ("all_reduce", False),
        ("all_gather", True),
        slow("all_gather", False),
        slow("reduce_scatter", True),
        slow("reduce_scatter", False),
    ],
)
def test_grad_of_the_shard_map(devices: Any, name: str, check_vma: bool) -> None:
    """A sum that is the same at all ranks leaves shard_map as such."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P
    from twins import close, normal, on_ranks, ours, twin

    x = normal((N, 3, 2))
    out = P() if name == "all_reduce" else P("i")

    def total(f: Any) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(weigh(on_ranks(f, x, out=out, check_vma=check_vma)))))(x)

    close(total(ours(name)), total(twin(name)))


@pytest.mark.parametrize("name", ["all_reduce", slow("all_gather"), slow("reduce_scatter")])
def test_operand_that_is_the_same_at_all_ranks(devices: Any, name: str) -> None:
    import jax
    from jax import lax
    from jax.sharding import PartitionSpec as P
    from twins import close, normal, ours, ring, twin

    x = normal((3, 2))

    def grad(f: Any) -> Any:
        def total(x: Any) -> Any:
            return jax.grad(lambda x: lax.psum(loss(f)(x), "i"))(x)

        return jax.jit(jax.shard_map(total, mesh=ring(N), in_specs=P(), out_specs=P()))(x)

    close(grad(ours(name)), grad(twin(name)))


def test_gradient_needs_a_reduction_kernel(devices: Any) -> None:
    """The gradient is a kernel of its own, not `jax.lax`."""
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import normal, ours, ring

    f = jax.shard_map(differentiated(ours("all_gather")), mesh=ring(N), in_specs=P("i"), out_specs=P("i"))
    text = str(jax.make_jaxpr(f)(normal((N, 3, 2))))
    assert text.count("pallas_call[") == 2
    assert "psum" not in text and "reduce_scatter[" not in text


def test_checkpoint(devices: Any) -> None:
    """On a TPU; the interpreter calls back to the host, which `jax.checkpoint` refuses."""
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import normal, ours

    def grad(x: Any) -> Any:
        return jax.grad(jax.checkpoint(loss(ours("all_gather", interpret=False))))(x)

    mesh = jax.sharding.AbstractMesh((N,), ("i",))
    text = str(jax.make_jaxpr(jax.shard_map(grad, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(normal((N, 3, 2))))
    assert text.count("pallas_call[") >= 2
