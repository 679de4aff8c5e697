"""Chains that start and end with the whole activation, and what chains take: dtypes of operands and of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import slow

MODES = ("eager", "on_wait")
ROWS = """\
schedule: mlp_along_rows
topology: {ring: N}
params: {N: 4}
activation: whole
chain:
  - use: all_gather_matmul_bidirectional
    epilogue: gelu
  - use: matmul_reduce_scatter_bidirectional
"""


def along_rows() -> Any:
    import tempfile

    from twins import written

    with tempfile.TemporaryDirectory() as folder:
        return written(folder, ROWS)


def mlp() -> Any:
    import twins

    if "tp_mlp_whole" not in twins._compiled:
        twins._compiled["tp_mlp_whole"] = twins.Interpreted("tp_mlp_whole")
    return twins._compiled["tp_mlp_whole"]


def operands(ranks: int, layers: int, size: tuple[int, int, int], seed: int) -> tuple[Any, Any, Any]:
    """x [rows, width], w1 [ranks, layers, width, hidden], w2 [ranks, layers, hidden, width]."""
    random = np.random.default_rng(seed)
    rows, width, hidden = size
    x = random.standard_normal((rows, width))
    w1 = random.standard_normal((ranks, layers, width, hidden)) / np.sqrt(width)
    w2 = random.standard_normal((ranks, layers, hidden, width)) / np.sqrt(hidden)
    return tuple(it.astype(np.float32) for it in (x, w1, w2))  # type: ignore[return-value]


def reference(x: Any, w1: Any, w2: Any) -> Any:
    """[rows, width], in 64 bits."""
    x, w1, w2 = (it.astype(np.float64) for it in (x, w1, w2))
    for layer in range(w1.shape[1]):
        hidden = x @ w1[:, layer]
        hidden = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
        x = (hidden @ w2[:, layer]).sum(axis=0)
    return x


def on_ranks(f: Any, it: tuple[Any, Any, Any], *, check_vma: bool, out: Any = None) -> Any:
    """f(x, w1, w2) at every rank, x being the same at all of them; all results stacked, or as `out` says."""
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import ring

    def block(x: Any, w1: Any, w2: Any) -> Any:
        y = f(x, w1[0], w2[0])
        return jax.tree.map(lambda a: a[None], y) if out is None else y

    specs = (P(), P("i"), P("i"))
    mesh = ring(it[1].shape[0])
    mapped = jax.shard_map(
        block, mesh=mesh, in_specs=specs, out_specs=P("i") if out is None else out, check_vma=check_vma
    )
    return jax.jit(mapped)(*it)


def results(f: Any, calls: list[tuple[Any, Any, Any]], mode: str, **options: Any) -> list[Any]:
    """Of calls one after the other at every rank; no race, and no semaphore left over."""
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import clean, ring, watched

    def block(calls: Any) -> Any:
        found = [f(x, w1[0], w2[0], axis_name="i", interpret=watched(mode), **options) for x, w1, w2 in calls]
        return [y[None] for y in found]

    specs = ([(P(), P("i"), P("i")) for _ in calls],)
    mesh = ring(calls[0][1].shape[0])
    with clean():
        mapped = jax.shard_map(block, mesh=mesh, in_specs=specs, out_specs=P("i"), check_vma=False)
        return [np.asarray(y) for y in jax.jit(mapped)(calls)]


def check(f: Any, ranks: int, layers: int, size: tuple[int, int, int], mode: str) -> None:
    calls = [operands(ranks, layers, size, seed) for seed in (1, 2)]
    for y, it in zip(results(f, calls, mode), calls, strict=True):
        assert (y.dtype, y.shape) == (np.float32, (ranks, *it[0].shape))
        np.testing.assert_allclose(y, np.stack([reference(*it)] * ranks), rtol=0, atol=1e-4)
        assert (y == y[0]).all()


@pytest.mark.parametrize(
    ("ranks", "layers", "size", "mode"),
    [
        (2, 3, (8, 512, 128), "eager"),
        (3, 2, (8, 384, 128), "on_wait"),
        (4, 1, (5, 280, 100), "on_wait"),
        *(slow(4, 2, (8, 1024, 128), mode) for mode in MODES),
        *(slow(1, 2, (5, 70, 200), mode) for mode in MODES),
        *(slow(8, 3, (8, 2048, 128), mode) for mode in MODES),
    ],
)
def test_features(devices: Any, ranks: int, layers: int, size: tuple[int, int, int], mode: str) -> None:
    check(mlp(), ranks, layers, size, mode)


@pytest.mark.parametrize(
    ("ranks", "layers", "size", "mode"),
    [(4, 2, (12, 72, 40), "on_wait"), slow(4, 2, (12, 72, 40), "eager"), slow(3, 3, (48, 128, 128), "eager")],
)
def test_rows(devices: Any, ranks: int, layers: int, size: tuple[int, int, int], mode: str) -> None:
    check(along_rows(), ranks, layers, size, mode)


# ---- gradients --------------------------------------------------------------------------------------------------


def by_lax(x: Any, w1: Any, w2: Any) -> Any:
    """As it is written without a kernel."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def dot(a: Any, b: Any) -> Any:
        return jnp.dot(a, b, precision=lax.Precision.HIGHEST)

    for layer in range(w1.shape[0]):
        x = lax.psum(dot(jax.nn.gelu(dot(x, w1[layer])), w2[layer]), "i")
    return x


def agree(ours: Any, theirs: Any) -> None:
    import jax

    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize(
    ("rows", "check_vma"), [(False, False), slow(False, True), slow(True, False), slow(True, True)]
)
def test_gradients_on_each_rank(devices: Any, rows: bool, check_vma: bool) -> None:
    """Of x and both weights, by a derivative inside shard_map; the result weighs every element differently."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    it = operands(4, 2, (8, 48, 40), 4)
    c = np.random.default_rng(5).standard_normal((8, 48)).astype(np.float32)
    f = along_rows() if rows else mlp()

    def gradients(function: Any) -> Any:
        loss = jax.value_and_grad(lambda *args: jnp.sum(jnp.sin(function(*args)) * c), argnums=(0, 1, 2))

        def each(*args: Any) -> Any:
            y, (dx, *dw) = loss(*args)
            return (y, dx), [a[None] for a in dw]

        def stacked(*args: Any) -> Any:
            return jax.tree.map(lambda a: a[None], loss(*args))

        if check_vma:  # the loss and the gradient of x have the type that is the same at all ranks
            return on_ranks(each, it, check_vma=True, out=((P(), P()), P("i")))
        return on_ranks(stacked, it, check_vma=False, out=P("i"))

    agree(gradients(lambda *args: f(*args, axis_name="i")), gradients(by_lax))


@pytest.mark.parametrize("check_vma", [True, slow(False)])
def test_gradients_through_shard_map(devices: Any, check_vma: bool) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    it = operands(4, 2, (8, 48, 40), 6)

    def gradients(function: Any) -> Any:
        def loss(*args: Any) -> Any:
            return jnp.sum(jnp.sin(on_ranks(function, args, check_vma=check_vma, out=P())))

        return jax.grad(loss, argnums=(0, 1, 2))(*it)

    agree(gradients(lambda *args: mlp()(*args, axis_name="i")), gradients(by_lax))


# ---- types and shapes -------------------------------------------------------------------------------------------


def test_the_result_has_the_type_that_is_the_same_at_all_ranks(devices: Any) -> None:
    """`out_specs=P()` is accepted; and x of the other type is not."""
    from jax import lax
    from jax.sharding import PartitionSpec as P

    it = operands(2, 1, (8, 256, 128), 7)
    y = on_ranks(lambda *args: mlp()(*args, axis_name="i"), it, check_vma=True, out=P())
    np.testing.assert_allclose(np.asarray(y), reference(*it), rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="takes x that is the same at all ranks: its type varies over i"):
        on_ranks(
            lambda x, w1, w2: mlp()(lax.pcast(x, "i", to="varying"), w1, w2, axis_name="i"),
            it,
            check_vma=True,
            out=P("i"),
        )


@pytest.mark.parametrize("name", ["tp_mlp", "tp_mlp_whole"])
@pytest.mark.parametrize("which", ["x", "weights"])
def test_another_mesh_axis(devices: Any, name: str, which: str) -> None:
    """What differs along it makes the result differ along it, by its type as well; the gradients have their own."""
    import jax
    import jax.numpy as jnp
    import twins
    from jax.sharding import PartitionSpec as P

    f, mine = twins.Interpreted(name), "i" if name == "tp_mlp" else None
    mesh = jax.sharding.AbstractMesh((2, 2), ("d", "i"))
    d = {"x": ("d", None), "weights": (None, "d")}[which]
    specs = (P(d[0], mine), P(d[1], None, "i"), P(d[1], "i", None))
    shapes = ((16, 512), (2, 512, 256), (2, 256, 512))
    seen = []

    def loss(*args: Any) -> Any:
        y = f(*args, axis_name="i")
        seen.append(set(jax.typeof(y).mat.varying))
        return jnp.sum(y)

    gradient = jax.shard_map(jax.grad(loss, argnums=(0, 1, 2)), mesh=mesh, in_specs=specs, out_specs=specs)
    found = jax.eval_shape(gradient, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    assert seen == [{"d", "i"} if name == "tp_mlp" else {"d"}]
    assert tuple(it.shape for it in found) == shapes


def test_of_whole_arrays(devices: Any) -> None:
    import twins

    x, w1, w2 = operands(2, 2, (8, 256, 128), 8)
    y = mlp().on(twins.ring(2))(x, np.concatenate(list(w1), 2), np.concatenate(list(w2), 1))
    np.testing.assert_allclose(np.asarray(y), reference(x, w1, w2), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("size", "width", "message"),
    [
        ((8, 255, 128), 255, "shares the 255 columns of x out among 2 ranks"),
        ((8, 256, 128), 254, r"w1 to have 2 \* 128 = 256 rows"),
    ],
)
def test_what_is_refused(devices: Any, size: tuple[int, int, int], width: int, message: str) -> None:
    x, w1, w2 = operands(2, 1, size, 9)
    with pytest.raises(ValueError, match=message):
        on_ranks(lambda *args: mlp()(*args, axis_name="i"), (x, w1[:, :, :width], w2), check_vma=False)


# ---- dtypes -----------------------------------------------------------------------------------------------------


def small(ranks: int, layers: int, width: int, hidden: int, dtype: Any) -> tuple[Any, Any, Any]:
    """Operands of which every sum is a small integer: each column has one or two ones."""
    import jax.numpy as jnp

    random = np.random.default_rng(10)

    def sparse(rows: int, cols: int, ones: int) -> Any:
        w = np.zeros((rows, cols))
        for col in range(cols):
            w[random.choice(rows, ones, replace=False), col] = random.choice([-1, 1], ones)
        return w

    x = random.integers(-1, 2, (32, width))
    w1 = np.stack([[sparse(width, hidden, 2) for _ in range(layers)] for _ in range(ranks)])
    w2 = np.stack([[sparse(ranks * hidden, width, 1) for _ in range(layers)]])
    w2 = np.stack(np.split(w2[0], ranks, axis=1))
    return tuple(jnp.asarray(it, "float32").astype(dtype) for it in (x, w1, w2))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", slow("bfloat16"), slow("float8_e5m2")])
def test_exact_in_every_dtype(devices: Any, dtype: str) -> None:
    """Sums that are small integers are exact, whatever the dtype of the operands and of the result."""
    x, w1, w2 = small(2, 2, 256, 128, dtype)
    a, b, c = (np.asarray(it.astype("float32")) for it in (x, w1, w2))
    want = a
    for layer in range(2):
        want = (np.maximum(want @ b[:, layer], 0) @ c[:, layer]).sum(axis=0)
    assert 1 < np.abs(want).max() <= 4
    for out_dtype in (None, "float32"):
        (y,) = results(mlp(), [(x, w1, w2)], "on_wait", epilogue="relu", out_dtype=out_dtype)
        assert y.dtype == (x.dtype if out_dtype is None else np.float32)
        np.testing.assert_array_equal(y.astype(np.float32), np.stack([want] * 2))


@pytest.mark.parametrize("whole", [True, False])
def test_the_result_is_rounded_once(devices: Any, whole: bool) -> None:
    """With bf16 operands a result in float32 is that of the last sums, not one that bf16 has rounded."""
    import jax.numpy as jnp
    import twins

    x, w1, w2 = (jnp.asarray(it).astype("bfloat16") for it in operands(2, 1, (16, 512, 128), 11))
    options = {"partial_dtype": "float32", "out_dtype": "float32", "epilogue": "relu"}
    if whole:
        (y,) = results(mlp(), [(x, w1, w2)], "on_wait", **options)
        y = y[0]
    else:
        f = twins.Interpreted("tp_mlp")
        found = twins.on_ranks(
            lambda it: f(*it, axis_name="i", interpret=twins.watched(), **options),
            (jnp.stack(jnp.split(x, 2, axis=1)), w1, w2),
            check_vma=False,
        )
        y = np.concatenate(list(np.asarray(found)), 1)
    a, b, c = (np.asarray(it.astype("float32")).astype(np.float64) for it in (x, w1, w2))
    hidden = np.maximum(a @ b[:, 0], 0).astype(np.float32)
    hidden = np.asarray(jnp.asarray(hidden).astype("bfloat16").astype("float32")).astype(np.float64)
    want = (hidden @ c[:, 0]).sum(axis=0)
    assert y.dtype == np.float32
    error = np.abs(y - want)
    assert np.median(error) < 1e-5  # but for a hidden value here and there that is rounded the other way
    assert np.median(np.abs(want.astype(jnp.bfloat16).astype(np.float64) - want)) > 1e-4
