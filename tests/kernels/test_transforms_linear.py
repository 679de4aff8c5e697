"""Collectives are linear functions for jax, and products bilinear ones: jvp, linearize, transpose, and what is made of
these, against `jax.lax`, with kernels and without, in a mesh that has another axis."""

from __future__ import annotations

from typing import Any

import pytest

BACK_ENDS = (None, True)  # `interpret=`: without a kernel where there is no TPU, or the kernel interpreted
MAIN = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def transforms(f: Any) -> dict[str, Any]:
    """Functions of x [rows, cols]."""
    import jax
    import jax.numpy as jnp

    def loss(x: Any) -> Any:
        return jnp.sum(jnp.sin(f(x)))

    def linearized(x: Any) -> Any:
        y, tangent = jax.linearize(f, x)
        return y, tangent(2 * x)

    return {
        "value": f,
        "jvp": lambda x: jax.jvp(f, (x,), (3 * x,)),
        "linearize": linearized,
        "linear_transpose": lambda x: jax.linear_transpose(f, x)(f(x))[0],
        "grad": jax.grad(loss),
        "forward over reverse": lambda x: jax.jvp(jax.grad(loss), (x,), (x,))[1],
        "reverse over reverse": jax.grad(lambda x: jnp.sum(jnp.cos(jax.grad(loss)(x)))),
        "vmap": lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])),
        "vmap of grad": lambda x: jax.vmap(jax.grad(loss))(jnp.stack([x, 2 * x])),
        "scan": lambda x: jax.lax.scan(lambda total, _: (total + jnp.sum(f(total)), None), x, length=2)[0],
    }


def mesh_of_two() -> Any:
    import jax
    import numpy as np

    return jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("d", "i"))


def varying(y: Any, check_vma: bool) -> Any:
    """With a type that can be returned for each device."""
    import jax

    def cast(y: Any) -> Any:
        missing = tuple(axis for axis in ("d", "i") if axis not in jax.typeof(y).mat.varying)
        return jax.lax.pcast(y, missing, to="varying") if missing and check_vma else y

    return jax.tree.map(cast, y)


def on_mesh(f: Any, operands: Any, specs: Any, check_vma: bool = True) -> Any:
    """All results of f, those of each device."""
    import jax
    from jax.sharding import PartitionSpec as P

    def body(*operands: Any) -> Any:
        return jax.tree.map(lambda y: varying(y, check_vma)[None], f(*operands))

    mapped = jax.shard_map(body, mesh=mesh_of_two(), in_specs=specs, out_specs=P(("d", "i")), check_vma=check_vma)
    return jax.jit(mapped)(*operands)


def with_lax(name: str) -> Any:
    from jax import lax

    return {
        "all_gather": lambda x: lax.all_gather(x, "i", tiled=True),
        "reduce_scatter": lambda x: lax.psum_scatter(x, "i", tiled=True),
        "all_reduce": lambda x: lax.psum(x, "i"),
        "all_to_all": lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True),
    }[name]


def with_ours(name: str, **options: Any) -> Any:
    import ringsched as rs

    compiled, more = rs.compile(name), (1, 0) if name == "all_to_all" else ()
    return lambda x: compiled(x, "i", *more, **options)


def check_linear(name: str, check_vma: bool, interpret: bool | None) -> None:
    from jax.sharding import PartitionSpec as P
    from twins import close, normal

    x = normal((16, 4))
    found = transforms(with_ours(name, interpret=interpret))
    for key, theirs in transforms(with_lax(name)).items():
        got, want = (on_mesh(f, (x,), P(("d", "i")), check_vma) for f in (found[key], theirs))
        close(got, want)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", MAIN)
def test_without_a_kernel(devices: Any, name: str, check_vma: bool) -> None:
    check_linear(name, check_vma, None)


@pytest.mark.parametrize("name", ["reduce_scatter", "all_reduce"])
def test_kernels(devices: Any, name: str) -> None:
    check_linear(name, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", MAIN)
def test_all_kernels(devices: Any, name: str, check_vma: bool) -> None:
    check_linear(name, check_vma, True)


def test_checks_of_jax_pass(devices: Any) -> None:
    """Which look at every jaxpr that is made."""
    import jax

    with jax.enable_checks(True):
        check_linear("reduce_scatter", True, None)


def test_remat_and_export(devices: Any) -> None:
    """Where there is no TPU, neither can be with an interpreted kernel."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P
    from twins import close, normal

    x, f = normal((16, 4)), with_ours("all_gather")
    got, want = (
        on_mesh(jax.grad(lambda x, g=g: jnp.sum(jnp.sin(jax.checkpoint(g)(x)))), (x,), P(("d", "i")))
        for g in (f, with_lax("all_gather"))
    )
    close(got, want)
    every = P(("d", "i"))
    program = jax.jit(jax.shard_map(f, mesh=mesh_of_two(), in_specs=every, out_specs=every))
    exported = jax.export.export(program)(jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert exported.platforms == ("cpu",) and "collective_permute" in exported.mlir_module()


def products(f: Any) -> dict[str, Any]:
    """Functions of x and w."""
    import jax
    import jax.numpy as jnp

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(jnp.sin(f(x, w)))

    return {
        "jvp": lambda x, w: jax.jvp(f, (x, w), (2 * x, w)),
        "jvp along w": lambda x, w: jax.jvp(lambda w: f(x, w), (w,), (w,)),
        "grad": jax.grad(loss, (0, 1)),
        "forward over reverse": lambda x, w: jax.jvp(jax.grad(loss, (0, 1)), (x, w), (x, w))[1],
        "reverse over reverse": jax.grad(lambda x, w: jnp.sum(jnp.cos(jax.grad(loss)(x, w))), (0, 1)),
        "vmap along x": lambda x, w: jax.vmap(f, (0, None))(jnp.stack([x, 2 * x]), w),
        "vmap along w": lambda x, w: jax.vmap(f, (None, 0))(x, jnp.stack([w, 2 * w])),
        "grad of vmap": lambda x, w: jax.grad(lambda x, w: jnp.sum(jnp.sin(jax.vmap(f)(x, w))), (0, 1))(
            jnp.stack([x, 2 * x]), jnp.stack([w, 2 * w])
        ),
        "batch": lambda x, w: f(jnp.stack([x, 2 * x]), w),
        "no rows": lambda x, w: f(x[:0], w),
    }


def product_by_lax(name: str) -> Any:
    import jax.numpy as jnp
    from jax import lax

    def dot(x: Any, w: Any) -> Any:
        return jnp.matmul(x, w, precision="highest")

    def some(f: Any) -> Any:
        """jax.lax gathers and scatters no empty arrays."""
        return lambda x, w: f(x, w) if x.shape[-2] else dot(x, w)

    return {
        "matmul": dot,
        "all_gather_matmul": some(lambda x, w: dot(lax.all_gather(x, "i", axis=x.ndim - 2, tiled=True), w)),
        "matmul_reduce_scatter": some(
            lambda x, w: lax.psum_scatter(dot(x, w), "i", scatter_dimension=x.ndim - 2, tiled=True)
        ),
        "matmul_all_reduce": lambda x, w: lax.psum(dot(x, w), "i"),
    }[name]


def check_products(name: str, keys: tuple[str, ...] | None = None, **options: Any) -> None:
    """The weight is the same along "d", as in every data-parallel program."""
    from jax.sharding import PartitionSpec as P
    from twins import close, normal

    import ringsched as rs

    x, w, compiled = normal((16, 6)), normal((6, 8), seed=1), rs.compile(name)
    found = products(lambda x, w: compiled(x, w, "i", **options))
    for key, theirs in products(product_by_lax(name)).items():
        if keys is None or key in keys:
            specs = (P(("d", "i")), P(None, "i"))
            got, want = (on_mesh(f, (x, w), specs) for f in (found[key], theirs))
            close(got, want)


PRODUCTS = ("matmul", "all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_without_a_kernel(devices: Any, name: str) -> None:
    check_products(name)


@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_reduce_scatter"])
def test_products(devices: Any, name: str) -> None:
    check_products(name, ("grad", "forward over reverse", "vmap along x"), interpret=True)


def test_what_was_gathered_is_kept(devices: Any) -> None:
    keys = ("jvp along w", "grad", "forward over reverse")
    check_products("all_gather_matmul", keys, interpret=True, keep_gathered=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_all_of_products(devices: Any, name: str) -> None:
    check_products(name, interpret=True)


def test_a_wrong_rule_would_show(devices: Any) -> None:
    """What these tests compare differs where a transpose is another one."""
    from jax.sharding import PartitionSpec as P
    from twins import normal

    x = normal((16, 4))
    good, bad = transforms(with_lax("all_gather")), transforms(lambda x: 2 * with_lax("all_gather")(x))
    assert (on_mesh(good["grad"], (x,), P(("d", "i"))) != on_mesh(bad["grad"], (x,), P(("d", "i")))).any()
