"""Every schedule that multiplies, against the same in 64 bits: both DMA modes, two calls in a row, races looked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import slow

PRODUCTS = (
    "all_gather_matmul",
    "all_gather_matmul_bidirectional",
    "all_gather_matmul_features",
    "all_gather_matmul_features_bidirectional",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "matmul_reduce_scatter_bidirectional",
    "matmul_reduce_scatter_features",
    "matmul_reduce_scatter_features_bidirectional",
)
GATHERS, SUMS = PRODUCTS[:4], PRODUCTS[4:]
ONE_EACH = tuple(name for name in PRODUCTS if not name.endswith("bidirectional"))
MODES = ("eager", "on_wait")


# ---- what they must give ----------------------------------------------------------------------------------------


def shapes(name: str, n: int, rows: int, depth: int, cols: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of x and w on one rank; `rows` and `cols` are those of a shard where the result is shared out."""
    features = "features" in name
    if name in GATHERS:
        return (rows, depth), (n * depth if features else depth, cols)
    scattered = "scatter" in name
    rows = rows * n if scattered and not features else rows
    cols = cols * n if scattered and features else cols
    return (rows, depth), (depth, cols)


def tiles(name: str, dtype: str = "float32") -> tuple[int, int, int]:
    """One tile each, and two where a shard is cut in two: so that no part is nothing but padding."""
    rows = {"float32": 8, "bfloat16": 16, "int8": 32}[dtype]
    if not name.endswith("bidirectional"):
        return rows, 128, 128
    if "features" not in name:
        return 2 * rows, 128, 128
    return (rows, 256, 128) if name in GATHERS else (rows, 128, 256)


def reference(name: str, x: Any, w: Any) -> Any:
    """x [n, rows, depth], w [n, depth, cols] → the result at each rank, in 64 bits."""
    wide = np.int64 if np.issubdtype(x.dtype, np.integer) else np.float64
    x, w = x.astype(wide), w.astype(wide)
    along = 1 if "features" in name else 0
    if name in GATHERS:
        whole = np.concatenate(list(x), axis=along)
        return np.stack([whole @ each for each in w])
    total = (x @ w).sum(axis=0)
    if "scatter" in name:
        return np.stack(np.split(total, len(x), axis=along))
    return np.stack([total] * len(x))


def by_lax(name: str) -> Any:
    """The product as one writes it with `jax.lax`, of one rank's x and w."""
    import jax.numpy as jnp
    from jax import lax

    def dot(x: Any, w: Any) -> Any:
        return jnp.dot(x, w, precision=lax.Precision.HIGHEST)

    along = 1 if "features" in name else 0
    if name in GATHERS:
        return lambda x, w: dot(lax.all_gather(x, "i", axis=along, tiled=True), w)
    if "scatter" in name:
        return lambda x, w: lax.psum_scatter(dot(x, w), "i", scatter_dimension=along, tiled=True)
    return lambda x, w: lax.psum(dot(x, w), "i")


def ours(name: str, **options: Any) -> Any:
    import twins

    if name not in twins._compiled:
        twins._compiled[name] = twins.Interpreted(name)
    return lambda x, w, **more: twins._compiled[name](x, w, axis_name="i", **options, **more)


def operands(name: str, n: int, dtype: str, size: tuple[int, int, int], make: Any, seed: int = 1) -> tuple[Any, Any]:
    x, w = shapes(name, n, *size)
    return make((n, *x), dtype, seed), make((n, *w), dtype, seed + 100)


def results(name: str, calls: list[tuple[Any, Any]], mode: str, **options: Any) -> list[Any]:
    """Of calls one after the other, each [n, …]; no race, and no semaphore left over."""
    from twins import clean, on_ranks, watched

    f = ours(name, interpret=watched(mode), **options)
    with clean():
        found = on_ranks(lambda calls: [f(x, w) for x, w in calls], calls, check_vma=False)
        return [np.asarray(y) for y in found]


def check_exact(name: str, n: int, dtype: str, mode: str, size: tuple[int, int, int], **options: Any) -> None:
    """Small numbers, of which every sum is exact; integers wrap around."""
    from twins import data

    calls = [operands(name, n, dtype, size, data, seed) for seed in (1, 2)]
    for y, (x, w) in zip(results(name, calls, mode, **options), calls, strict=True):
        assert y.dtype == np.dtype(options.get("out_dtype", x.dtype))
        want = reference(name, np.asarray(x), np.asarray(w))
        if not np.issubdtype(x.dtype, np.integer):
            assert np.abs(want).max() <= 256
        np.testing.assert_array_equal(y, want.astype(y.dtype))


def check_close(name: str, n: int, mode: str, size: tuple[int, int, int]) -> None:
    """float32 is not cut short to bf16: an error of depth roundings at most, of 2^-24 each."""
    from twins import normal

    calls = [operands(name, n, "float32", size, normal, seed) for seed in (1, 2)]
    for y, (x, w) in zip(results(name, calls, mode), calls, strict=True):
        x, w = np.asarray(x), np.asarray(w)
        bound = 2.0**-24 * n * w.shape[1] * reference(name, np.abs(x), np.abs(w))
        assert y.dtype == np.float32
        assert (np.abs(y - reference(name, x, w)) <= bound).all()


# ---- every schedule ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "mode"),
    [(2, "on_wait"), (3, "eager"), (4, "on_wait"), slow(2, "eager"), slow(3, "on_wait"), slow(4, "eager")],
)
@pytest.mark.parametrize("name", PRODUCTS)
def test_float32(devices: Any, name: str, n: int, mode: str) -> None:
    check_close(name, n, mode, tiles(name))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_size_and_dtype(devices: Any, name: str, n: int, dtype: str, mode: str) -> None:
    check_exact(name, n, dtype, mode, tiles(name, dtype))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float32") for name in ONE_EACH]
    + [slow(name, "bfloat16") for name in PRODUCTS]
    + [slow(name, "int8") for name in PRODUCTS],
)
def test_shapes_that_need_padding(devices: Any, name: str, dtype: str) -> None:
    check_exact(name, 4, dtype, "on_wait", (5, 70, 200))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1, 1, 1), (130, 300, 7), (3, 257, 129)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_other_shapes(devices: Any, name: str, size: tuple[int, int, int]) -> None:
    check_close(name, 3, "eager", size)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_one_rank(devices: Any, name: str) -> None:
    check_close(name, 1, "eager", (5, 70, 200))


@pytest.mark.slow
@pytest.mark.deadline(180)
@pytest.mark.parametrize("name", PRODUCTS)
def test_loops_and_credits(devices: Any, name: str) -> None:
    check_exact(name, 12, "float32", "on_wait", (8, 16, 128))


# ---- dtypes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "out"),
    [
        ("all_gather_matmul_features", "bfloat16", "float32"),
        ("matmul_reduce_scatter", "int8", "int32"),
        *(slow(name, "bfloat16", "float32") for name in PRODUCTS),
        *(slow(name, "int8", "int32") for name in PRODUCTS),
        *(slow(name, "float32", "bfloat16") for name in PRODUCTS),
        *(slow(name, "float8_e4m3fn", "float32") for name in PRODUCTS),
        *(slow(name, "float8_e5m2", "bfloat16") for name in PRODUCTS),
    ],
)
def test_dtype_of_the_result(devices: Any, name: str, dtype: str, out: str) -> None:
    import jax.numpy as jnp

    check_exact(name, 3, dtype, "on_wait", (8, 64, 128), out_dtype=jnp.dtype(out))


@pytest.mark.parametrize("name", ["matmul_all_reduce", "matmul_reduce_scatter", *(slow(name) for name in SUMS)])
def test_partial_sums_in_float32(devices: Any, name: str) -> None:
    """Rounded to bf16 once, at the end, or at each rank: the error tells."""
    import jax.numpy as jnp
    from twins import normal

    x, w = operands(name, 4, "bfloat16", (16, 64, 128), normal)
    want = reference(name, np.asarray(x), np.asarray(w))
    once = 2.0**-8 * np.abs(want) + 2.0**-20 * reference(name, np.abs(np.asarray(x)), np.abs(np.asarray(w)))
    if name == "matmul_all_reduce" or "scatter" in name:
        (wide,) = results(name, [(x, w)], "on_wait", partial_dtype=jnp.float32)
        (narrow,) = results(name, [(x, w)], "on_wait")
        (full,) = results(name, [(x, w)], "on_wait", partial_dtype=jnp.float32, out_dtype=jnp.float32)
    assert wide.dtype == narrow.dtype == x.dtype
    assert (np.abs(wide.astype("float64") - want) <= once).all()
    assert not (np.abs(narrow.astype("float64") - want) <= once).all()
    assert np.abs(full - want).max() < 1e-4


# ---- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "check_vma"),
    [(name, True) for name in ONE_EACH]
    + [slow(name, True) for name in PRODUCTS if name not in ONE_EACH]
    + [slow(name, False) for name in PRODUCTS],
)
def test_gradients(devices: Any, name: str, check_vma: bool) -> None:
    """With respect to x and to w, of a sum that weighs every element and every rank differently."""
    import jax
    import jax.numpy as jnp
    from twins import normal, on_ranks

    x, w = operands(name, 4, "float32", (5, 70, 40), normal)
    c = normal((4, *reference(name, np.asarray(x), np.asarray(w)).shape[1:]), "float32", 7)

    def gradients(f: Any) -> Any:
        def each(xwc: Any) -> Any:
            x, w, c = xwc
            return jax.value_and_grad(lambda x, w: jnp.sum(f(x, w) * c), argnums=(0, 1))(x, w)

        return on_ranks(each, (x, w, c), check_vma=check_vma)

    close_to_scale(gradients(ours(name)), gradients(by_lax(name)))


def close_to_scale(a: Any, b: Any) -> None:
    import jax

    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-5 * np.abs(other).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_of_bf16(devices: Any, name: str) -> None:
    """Of the dtype of what they belong to."""
    import jax
    import jax.numpy as jnp
    from twins import data, on_ranks

    x, w = operands(name, 3, "bfloat16", (16, 16, 128), data)

    def gradients(f: Any) -> Any:
        def each(xw: Any) -> Any:
            return jax.grad(lambda x, w: jnp.sum(f(x, w).astype("float32")), argnums=(0, 1))(*xw)

        return on_ranks(each, (x, w), check_vma=False)

    wide = by_lax(name)
    mine = gradients(ours(name, out_dtype=jnp.float32))
    theirs = gradients(lambda x, w: wide(x.astype("float32"), w.astype("float32")))
    assert [g.dtype for g in mine] == [x.dtype, w.dtype]
    close_to_scale(mine, theirs)


# ---- transforms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matmul_reduce_scatter", slow("all_gather_matmul_features_bidirectional")])
def test_under_scan(devices: Any, name: str) -> None:
    """Calls one after the other with other weights, as the layers of a model have them."""
    import jax
    from twins import data, on_ranks

    n, layers = 3, 3
    x, _ = operands(name, n, "float32", (8, 16, 128), data)
    w = jax.numpy.stack([operands(name, n, "float32", (8, 16, 128), data, s)[1] for s in range(layers)], axis=1)
    f = ours(name)

    def every(xw: Any) -> Any:
        x, w = xw
        return jax.lax.scan(lambda carry, w: (carry, f(x, w)), 0, w)[1]

    found = np.asarray(on_ranks(every, (x, w), check_vma=False))
    for layer in range(layers):
        np.testing.assert_array_equal(found[:, layer], reference(name, np.asarray(x), np.asarray(w[:, layer])))


@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_reduce_scatter_features", *(slow(n) for n in PRODUCTS)])
def test_whole_arrays(devices: Any, name: str) -> None:
    """`rs.compile(…).on(mesh)` does the shard_map: x [rows, depth] @ w [depth, cols]."""
    import twins

    x, w = twins.data((32, 64)), twins.data((64, 512), seed=3)
    y = twins.Interpreted(name).on(twins.ring(4))(x, w)
    np.testing.assert_array_equal(np.asarray(y), np.asarray(x) @ np.asarray(w))


# ---- misuse -----------------------------------------------------------------------------------------------------


def test_axis_of_another_size(devices: Any) -> None:
    import twins
    from twins import data, on_ranks

    product = twins.Interpreted("matmul_reduce_scatter", N=4)
    with pytest.raises(ValueError, match="matmul_reduce_scatter was compiled for 4 ranks, but mesh axis 'i' has 3"):
        on_ranks(lambda xw: product(*xw, axis_name="i"), (data((3, 12, 8)), data((3, 8, 16))))


def test_operands_left_out(devices: Any) -> None:
    from twins import data, on_ranks

    with pytest.raises(TypeError, match="w"):
        on_ranks(lambda x: ours("all_gather_matmul")(x), data((3, 8, 8)))


def test_narrow_partial_sums_are_for_sums(devices: Any) -> None:
    from twins import data, on_ranks

    f = ours("all_gather_matmul", partial_dtype="float32")
    with pytest.raises(TypeError, match="partial_dtype"):
        on_ranks(lambda xw: f(*xw), (data((3, 8, 8)), data((3, 8, 16))))
