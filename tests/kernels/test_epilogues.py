"""Products with scale, bias, residual, gate and transposed weights, in VMEM and streamed, against 64 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import slow
from test_product_kernels import GATHERS, PRODUCTS, SUMS, by_lax, close_to_scale, ours, reference, shapes

EVERYTHING = "scale bias residual transposed"
SIZE = (3, 100, 200)  # rows, depth and columns, none of whole tiles
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda y: 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))),
    "gelu_exact": lambda y: 0.5 * y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))),
    "silu": lambda y: y / (1 + np.exp(-y)),
    "relu": lambda y: np.maximum(y, 0),
    "tanh": np.tanh,
}


# ---- what they are given, and what they must give ---------------------------------------------------------------


def operands(
    name: str, n: int, with_: str, size: tuple[int, int, int], dtype: str = "float32", make: Any = None, seed: int = 1
) -> dict[str, Any]:
    """Of all ranks, each [n, …]. with_: of "gate", "scale", "bias", "residual", "transposed".

    What an all-reduce is given beside x and w is the same on all ranks.
    """
    from twins import data

    make = make or data
    options = with_.split()
    x, w = shapes(name, n, *size)
    shape = result_shape(name, n, size)
    w = w[::-1] if "transposed" in options else w
    sides = 2 if "gate" in options else 1

    def extra(shape: tuple[int, ...], seed: int) -> Any:
        same = make((1, *shape), "float32", seed)
        return same.repeat(n, 0) if name == "matmul_all_reduce" else make((n, *shape), "float32", seed)

    found: dict[str, Any] = {"x": make((n, *x), dtype, seed)}
    found["w"] = tuple(make((n, *w), dtype, seed + 10 + side) for side in range(sides))
    for key in ("scale", "bias"):
        if key in options:
            found[key] = tuple(extra(shape[1:], seed + 20 + side + ord(key[0])) for side in range(sides))
    if "residual" in options:
        found["residual"] = extra(shape, seed + 50)
    return found


def result_shape(name: str, n: int, size: tuple[int, int, int]) -> tuple[int, int]:
    """On one rank."""
    rows, _, cols = size
    return (n * rows if name in GATHERS and "features" not in name else rows, cols)


def arguments(given: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """x, w and options of a call; those for each side are alone where there is no gate."""
    sides = len(given["w"])
    found = {k: it[0] if k in ("w", "scale", "bias") and sides == 1 else it for k, it in given.items()}
    return found.pop("x"), found.pop("w"), found


def expected(name: str, given: dict[str, Any], function: str | None, transposed: bool) -> Any:
    """[n, rows, cols], in 64 bits."""
    given = {k: tuple(map(np.asarray, it)) if isinstance(it, tuple) else np.asarray(it) for k, it in given.items()}
    ws = [w.swapaxes(1, 2) if transposed else w for w in given["w"]]
    ys = [reference(name, given["x"], w).astype(np.float64) for w in ws]
    for side, y in enumerate(ys):
        scale = given["scale"][side][:, None] if "scale" in given else 1.0
        bias = given["bias"][side][:, None] if "bias" in given else 0.0
        ys[side] = y * np.float64(scale) + bias
    y = ys[0] if function is None else FUNCTIONS[function](ys[0])
    y = y * ys[1] if len(ys) > 1 else y
    return y + given["residual"].astype(np.float64) if "residual" in given else y


def called(name: str, given: dict[str, Any], mode: str, **options: Any) -> Any:
    """The result; no race, and no semaphore left over."""
    from twins import clean, on_ranks, watched

    f = ours(name, interpret=watched(mode), **options)

    def each(given: dict[str, Any]) -> Any:
        x, w, more = arguments(given)
        return f(x, w, **more)

    with clean():
        return np.asarray(on_ranks(each, given, check_vma=False))


def check_exact(
    name: str,
    n: int,
    with_: str,
    memory: str,
    size: tuple[int, int, int] = SIZE,
    dtype: str = "float32",
    mode: str = "on_wait",
    **options: Any,
) -> None:
    """Small numbers, of which every sum is exact, and "relu", which keeps it so: rounded once, in the end."""
    given = operands(name, n, with_, size, dtype)
    options |= {"transposed": "transposed" in with_, "tile": 128 if memory == "hbm" else None}
    y = called(name, given, mode, epilogue="relu", memory=memory, **options)
    want = expected(name, given, "relu", options["transposed"])
    assert np.abs(want).max() > 8
    assert y.dtype == np.dtype(options.get("out_dtype") or ("float32" if dtype == "int8" else given["x"].dtype))
    np.testing.assert_array_equal(y, want.astype(np.float32).astype(y.dtype))


# ---- every schedule ---------------------------------------------------------------------------------------------


def with_all(name: str) -> str:
    return f"gate {EVERYTHING}" if name in GATHERS else EVERYTHING


@pytest.mark.parametrize(
    ("name", "n", "memory"),
    [
        ("all_gather_matmul", 2, "hbm"),
        ("all_gather_matmul_bidirectional", 3, "hbm"),
        ("all_gather_matmul_features", 2, "vmem"),
        ("matmul_all_reduce", 2, "hbm"),
        ("matmul_reduce_scatter", 3, "hbm"),
        ("matmul_reduce_scatter_features", 3, "vmem"),
        ("matmul_reduce_scatter_features_bidirectional", 2, "hbm"),
    ]
    + [slow(name, n, memory) for name in PRODUCTS for n in (2, 3, 4, 8) for memory in ("vmem", "hbm")],
)
def test_everything_at_once(devices: Any, name: str, n: int, memory: str) -> None:
    check_exact(name, n, with_all(name), memory)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["vmem", "hbm"])
@pytest.mark.parametrize("with_", ["", "scale", "bias", "residual", "transposed", "gate", "gate bias"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_one_at_a_time(devices: Any, name: str, with_: str, memory: str) -> None:
    if name in GATHERS or "gate" not in with_:
        check_exact(name, 4, with_, memory, mode="eager")


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("all_gather_matmul_features", "gelu"),
        ("matmul_reduce_scatter", "gelu_exact"),
        ("all_gather_matmul", "silu"),
        ("matmul_all_reduce", "tanh"),
        *(slow(name, function) for name in PRODUCTS for function in FUNCTIONS),
    ],
)
def test_functions(devices: Any, name: str, function: str) -> None:
    """By name, and one of jax: of sums in 32 bits."""
    import jax.numpy as jnp
    from twins import normal

    given = operands(name, 2, "scale bias", (8, 64, 128), make=normal)
    given["scale"] = tuple(it / 8 for it in given["scale"])
    y = called(name, given, "eager", epilogue=jnp.tanh if function == "tanh" else function)
    want = expected(name, given, function, False)
    assert np.abs(want).max() > 0.9
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "rows", "dtype", "memory"),
    [
        ("all_gather_matmul", 8, "float32", "hbm"),
        ("matmul_reduce_scatter", 16, "bfloat16", "hbm"),
        *(
            slow(name, rows, dtype, memory)
            for name in PRODUCTS
            for rows in (8, 16, 32)
            for dtype in ("float32", "bfloat16")
            for memory in ("vmem", "hbm")
        ),
    ],
)
def test_few_rows(devices: Any, name: str, rows: int, dtype: str, memory: str) -> None:
    check_exact(name, 2, "scale residual", memory, (rows, 64, 256), dtype)


@pytest.mark.parametrize(
    ("name", "memory", "out"),
    [
        ("all_gather_matmul", "hbm", None),
        ("matmul_reduce_scatter", "vmem", "bfloat16"),
        *(slow(name, memory, out) for name in PRODUCTS for memory in ("vmem", "hbm") for out in (None, "bfloat16")),
    ],
)
def test_scaled_integers(devices: Any, name: str, memory: str, out: str | None) -> None:
    """int8, each sum of which is exact in 32 bits: float32 unless one asks for something else."""
    import jax.numpy as jnp

    partial = {"partial_dtype": jnp.int32} if name in SUMS else {}
    out_dtype = jnp.dtype(out) if out else None
    check_exact(name, 3, "scale transposed", memory, (32, 64, 256), "int8", out_dtype=out_dtype, **partial)


@pytest.mark.parametrize(
    ("name", "dtype", "out"),
    [
        ("all_gather_matmul_features", "bfloat16", "float32"),
        *(slow(name, *pair) for name in PRODUCTS for pair in (("bfloat16", "float32"), ("float32", "bfloat16"))),
    ],
)
def test_dtype_of_a_gated_result(devices: Any, name: str, dtype: str, out: str) -> None:
    import jax.numpy as jnp

    with_ = "gate bias residual" if name in GATHERS else "bias residual"
    check_exact(name, 2, with_, "hbm", (16, 64, 256), dtype, out_dtype=jnp.dtype(out))


def test_each_part_of_the_reference_matters(devices: Any) -> None:
    """A result with everything is not what is expected with one thing less, or of another function."""
    name = "all_gather_matmul"
    given = operands(name, 2, with_all(name), (8, 128, 128))  # square, so that w may be taken as it is
    y = called(name, given, "eager", epilogue="relu", transposed=True)
    np.testing.assert_array_equal(y, expected(name, given, "relu", True))
    for without in ("scale", "bias", "residual"):
        less = {k: it for k, it in given.items() if k != without}
        assert not np.allclose(y, expected(name, less, "relu", True))
    ungated = {k: it[1:] if isinstance(it, tuple) else it for k, it in given.items()}
    for wrong in (
        expected(name, ungated, "relu", True),
        expected(name, given, "relu", False),
        expected(name, given, None, True),
        expected(name, given, "silu", True),
    ):
        assert not np.allclose(y, wrong)


# ---- gradients --------------------------------------------------------------------------------------------------


def lax_with(name: str, function: Callable[[Any], Any], transposed: bool) -> Callable[..., Any]:
    """The same by `jax.lax`."""

    def call(x: Any, w: Any, scale: Any = None, bias: Any = None, residual: Any = None) -> Any:
        gated = isinstance(w, tuple)
        ys = [by_lax(name)(x, each.T if transposed else each) for each in (w if gated else (w,))]
        if scale is not None:
            ys = [y * each for y, each in zip(ys, scale if gated else (scale,), strict=True)]
        if bias is not None:
            ys = [y + each for y, each in zip(ys, bias if gated else (bias,), strict=True)]
        y = function(ys[0]) * ys[1] if gated else function(ys[0])
        return y if residual is None else y + residual

    return call


def gradients(f: Callable[..., Any], given: dict[str, Any], weights: Any, check_vma: bool, fixed: Any) -> Any:
    """The value and the gradients of a sum that weighs every element and every rank differently.

    fixed: what is the same on all ranks, and has the type to tell it.
    """
    import jax
    import jax.numpy as jnp
    from twins import on_ranks

    def each(operands: Any) -> Any:
        given, c = operands

        def loss(given: dict[str, Any], fixed: dict[str, Any]) -> Any:
            x, w, more = arguments({**given, **fixed})
            return jnp.sum(f(x, w, **more) * c)

        value, (own, shared) = jax.value_and_grad(loss, argnums=(0, 1))(given, fixed)
        return value, own, jax.tree.map(varying, shared)

    def varying(it: Any) -> Any:
        return jax.lax.pcast(it, "i", to="varying") if check_vma else it

    return on_ranks(each, (given, weights), check_vma=check_vma)


def check_gradients(name: str, check_vma: bool, with_: str, shared: bool, **options: Any) -> None:
    import jax
    from twins import normal

    size = (5, 40, 24)
    given = operands(name, 4, with_, size, make=normal)
    fixed = {}
    if shared:
        fixed = {k: jax.tree.map(lambda a: a[0], given.pop(k)) for k in ("scale", "bias", "residual") if k in given}
    weights = normal((4, *result_shape(name, 4, size)), "float32", 99)
    transposed = "transposed" in with_
    ours_ = ours(name, epilogue="silu", transposed=transposed, **options)
    theirs = lax_with(name, jax.nn.silu, transposed)
    found, want = (gradients(f, given, weights, check_vma, fixed) for f in (ours_, theirs))
    assert jax.tree.structure(found) == jax.tree.structure(want)
    close_to_scale(found, want)


@pytest.mark.parametrize(
    ("name", "check_vma", "with_", "options"),
    [
        ("all_gather_matmul", False, f"gate {EVERYTHING}", {"keep_gathered": True}),
        ("matmul_reduce_scatter", True, EVERYTHING, {"memory": "hbm", "tile": 128}),
    ]
    + [
        slow(name, check_vma, with_, {"keep_gathered": keep})
        for name in GATHERS
        for check_vma in (False, True)
        for with_ in (EVERYTHING, f"gate {EVERYTHING}", "gate scale bias residual")
        for keep in (False, True)
    ]
    + [
        slow(name, check_vma, with_, options)
        for name in SUMS
        for check_vma in (False, True)
        for with_ in (EVERYTHING, "bias residual")
        for options in ({}, {"memory": "hbm"})
    ],
)
def test_gradients(devices: Any, name: str, check_vma: bool, with_: str, options: dict[str, Any]) -> None:
    """With respect to x, w (both of a gate), scale, bias and residual.

    What an all-reduce takes beside x and w is the same on all ranks, and has the type to tell it.
    """
    check_gradients(name, check_vma, with_, shared=name == "matmul_all_reduce", **options)


def test_gradients_of_what_all_ranks_have_alike(devices: Any) -> None:
    check_gradients("matmul_all_reduce", True, "scale bias residual", shared=True)


@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_reduce_scatter"])
def test_a_tile_is_none_of_the_gradient(devices: Any, name: str) -> None:
    """x has 384 columns on a rank, which tiles of 256 do not divide."""
    import jax
    import jax.numpy as jnp
    import twins
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    rows, cols, depth = P("i", None), P(None, "i"), 384
    gathers = name == "all_gather_matmul"
    x, w = ((32, depth), (depth, 1024)) if gathers else ((32, 2 * depth), (2 * depth, 512))
    function = twins.Interpreted(name)
    mapped = jax.shard_map(
        lambda x, w: function(x, w, axis_name="i", memory="hbm", tile=256),
        mesh=Mesh(np.array(jax.devices()[:2]), ("i",)),
        in_specs=(rows, cols) if gathers else (cols, rows),
        out_specs=cols if gathers else rows,
        check_vma=False,
    )
    gradient = jax.grad(lambda x, w: mapped(x, w).sum(), argnums=(0, 1))
    dx, dw = jax.eval_shape(gradient, jnp.zeros(x), jnp.zeros(w))
    assert (dx.shape, dw.shape) == (x, w)


def test_a_weight_that_differs_along_another_axis(devices: Any) -> None:
    """So does the result, for which x, being the same there, has to have that type."""
    import jax
    import jax.numpy as jnp
    import twins
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    function, seen = twins.Interpreted("all_gather_matmul"), []

    def product(x: Any, w: Any) -> Any:
        y = function(x, w, axis_name="i", interpret=False)
        seen.append(jax.typeof(y).mat.varying)
        return y

    mapped = jax.shard_map(
        product,
        mesh=Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "i")),
        in_specs=(P("i", None), P(None, ("data", "i"))),
        out_specs=P(None, ("data", "i")),
    )
    jax.eval_shape(mapped, jnp.zeros((32, 128)), jnp.zeros((128, 512)))
    assert seen == [{"data", "i"}]
