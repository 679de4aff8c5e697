"""Schedules that multiply, with products and transfers one after the other: the same results and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import test_product_kernels as products
from cases import slow
from test_product_kernels import MODES, PRODUCTS, operands, reference, tiles


@contextmanager
def apart(name: str) -> Iterator[None]:
    """What the tests of products call is compiled so."""
    import twins

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(twins._compiled, name, twins.Interpreted(name, overlap="none"))
        assert "overlap   none" in twins._compiled[name].source(N=3)
        yield


def quick(*names: str) -> list[Any]:
    """Of the others, too, where slow tests run."""
    return [name if name in names else slow(name) for name in PRODUCTS]


@pytest.mark.parametrize(
    ("name", "n", "mode"),
    [(name, 3, "on_wait") for name in PRODUCTS]
    + [slow(name, n, mode) for name in PRODUCTS for n in (1, 2, 3, 4, 8) for mode in MODES],
)
def test_float32(devices: Any, name: str, n: int, mode: str) -> None:
    with apart(name):
        products.check_close(name, n, mode, tiles(name))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("matmul_reduce_scatter_features", "bfloat16"), *(slow(name, "int8") for name in PRODUCTS)],
)
def test_padding_and_dtypes(devices: Any, name: str, dtype: str) -> None:
    with apart(name):
        products.check_exact(name, 4, dtype, "on_wait", (5, 70, 200))


@pytest.mark.slow
@pytest.mark.deadline(180)
@pytest.mark.parametrize("name", PRODUCTS)
def test_loops_and_credits(devices: Any, name: str) -> None:
    with apart(name):
        products.check_exact(name, 12, "float32", "on_wait", (8, 16, 128))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", quick("all_gather_matmul_features", "matmul_reduce_scatter"))
def test_epilogue_and_dtype_of_the_result(devices: Any, name: str, n: int) -> None:
    """The epilogue is applied once, to complete sums, whatever partial sums travel in."""
    import jax.numpy as jnp
    from twins import data

    x, w = operands(name, n, "bfloat16", (16, 64, 128), data)
    want = np.maximum(reference(name, np.asarray(x), np.asarray(w)), 0) + 1
    options: dict[str, Any] = {"epilogue": lambda y: jnp.maximum(y, 0) + 1, "out_dtype": jnp.float32}
    if name.startswith("matmul"):
        options["partial_dtype"] = jnp.bfloat16
    with apart(name):
        (y,) = products.results(name, [(x, w)], "eager", **options)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("name", quick("all_gather_matmul_features", "matmul_reduce_scatter"))
def test_gradients(devices: Any, name: str) -> None:
    """By the transpose, one after the other as well."""
    with apart(name):
        products.test_gradients(devices, name, False)
