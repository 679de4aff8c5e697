"""The schedule without communication, against the product in 64 bits; its gradients against those of jax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import slow

MODES = ("eager", "on_wait")


def ours(**options: Any) -> Any:
    import twins

    if "matmul" not in twins._compiled:
        twins._compiled["matmul"] = twins.Interpreted("matmul")
    return lambda x, w: twins._compiled["matmul"](x, w, axis_name="i", **options)


def on_each(f: Any, x: Any, w: Any, mode: str = "eager", **options: Any) -> np.ndarray:
    from twins import clean, on_ranks, watched

    f = f(interpret=watched(mode), **options)
    with clean():
        return np.asarray(on_ranks(lambda xw: f(*xw), (x, w), check_vma=False))


@pytest.mark.parametrize(
    ("n", "dtype", "size"),
    [
        (1, "float32", (8, 128, 128)),
        (4, "bfloat16", (5, 300, 200)),
        (2, "int8", (32, 128, 128)),
        *(slow(n, dtype, (130, 70, 7)) for n in (1, 2, 3, 8) for dtype in ("float32", "bfloat16", "int8")),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_products(devices: Any, n: int, dtype: str, size: tuple[int, int, int], mode: str) -> None:
    from twins import data

    rows, depth, cols = size
    x, w = data((n, rows, depth), dtype, 1), data((n, depth, cols), dtype, 2)
    y = on_each(ours, x, w, mode)
    wide = np.int64 if dtype == "int8" else np.float64
    np.testing.assert_array_equal(y, (np.asarray(x).astype(wide) @ np.asarray(w).astype(wide)).astype(y.dtype))
    assert y.dtype == x.dtype


def test_epilogue_and_dtype_of_the_result(devices: Any) -> None:
    import jax
    import jax.numpy as jnp
    from twins import data

    x, w = data((2, 16, 128), "bfloat16", 1), data((2, 128, 128), "bfloat16", 2)
    y = on_each(ours, x, w, epilogue="gelu", out_dtype=jnp.float32)
    want = jax.nn.gelu(np.asarray(x).astype(np.float32) @ np.asarray(w).astype(np.float32))
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("epilogue", [None, "silu"])
def test_gradients(devices: Any, epilogue: str | None, check_vma: bool) -> None:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from twins import normal, on_ranks

    x, w, c = normal((3, 5, 70), "float32", 1), normal((3, 70, 40), "float32", 2), normal((3, 5, 40), "float32", 3)

    def by_jax(x: Any, w: Any) -> Any:
        y = jnp.dot(x, w, precision=lax.Precision.HIGHEST)
        return y if epilogue is None else jax.nn.silu(y)

    def gradients(f: Any) -> Any:
        def each(xwc: Any) -> Any:
            x, w, c = xwc
            return jax.value_and_grad(lambda x, w: jnp.sum(f(x, w) * c), argnums=(0, 1))(x, w)

        return on_ranks(each, (x, w, c), check_vma=check_vma)

    for one, other in zip(
        jax.tree.leaves(gradients(ours(epilogue=epilogue))), jax.tree.leaves(gradients(by_jax)), strict=True
    ):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-5 * np.abs(other).max())


def test_whole_arrays(devices: Any) -> None:
    """Rows of x are shared out, w is the same everywhere; and so are the gradients."""
    import jax
    import jax.numpy as jnp
    import twins

    x, w = twins.data((32, 64)), twins.data((64, 256), seed=3)
    f = twins.Interpreted("matmul").on(twins.ring(4))
    np.testing.assert_array_equal(np.asarray(f(x, w)), np.asarray(x) @ np.asarray(w))
    dx, dw = jax.grad(lambda x, w: jnp.sum(f(x, w)), argnums=(0, 1))(x, w)
    np.testing.assert_array_equal(np.asarray(dx), np.ones((32, 256)) @ np.asarray(w).T)
    np.testing.assert_array_equal(np.asarray(dw), np.asarray(x).T @ np.ones((32, 256)))


def test_what_is_refused(devices: Any) -> None:
    from twins import data, on_ranks

    with pytest.raises(ValueError, match=r"matmul needs w to have 8 = 8 rows: x is \(8, 8\) and w \(9, 16\)"):
        on_ranks(lambda xw: ours()(*xw), (data((3, 8, 8)), data((3, 9, 16))))
