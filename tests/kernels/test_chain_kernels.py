"""Chains against the same layers in 64 bits: both DMA modes, two calls in a row, races looked for; gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import slow

N = 4
MODES = ("eager", "on_wait")
EPILOGUES: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda y: 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))),
    "silu": lambda y: y / (1 + np.exp(-y)),
    "relu": lambda y: np.maximum(y, 0),
}


def operands(ranks: int, layers: int, size: tuple[int, int, int], seed: int) -> tuple[Any, Any, Any]:
    """x [ranks, rows, width], w1 [ranks, layers, ranks * width, hidden], w2 [ranks, layers, hidden, ranks * width]."""
    random = np.random.default_rng(seed)
    rows, width, hidden = size

    def normal(*shape: int) -> Any:
        return (random.standard_normal(shape) / np.sqrt(shape[-2] if len(shape) > 3 else 1)).astype(np.float32)

    wide = ranks * width
    return normal(ranks, rows, width), normal(ranks, layers, wide, hidden), normal(ranks, layers, hidden, wide)


def reference(x: Any, w1: Any, w2: Any, epilogue: str) -> Any:
    """[ranks, rows, width], in 64 bits."""
    x, w1, w2 = (it.astype(np.float64) for it in (x, w1, w2))
    for layer in range(w1.shape[1]):
        whole = np.concatenate(list(x), axis=1)
        hidden = EPILOGUES[epilogue](whole @ w1[:, layer])
        x = np.stack(np.split((hidden @ w2[:, layer]).sum(axis=0), len(x), axis=1))
    return x


def mlp(**options: Any) -> Any:
    import twins

    if "tp_mlp" not in twins._compiled:
        twins._compiled["tp_mlp"] = twins.Interpreted("tp_mlp")
    return lambda *operands: twins._compiled["tp_mlp"](*operands, axis_name="i", **options)


def results(calls: list[tuple[Any, Any, Any]], mode: str, **options: Any) -> list[Any]:
    """Of calls one after the other; no race, and no semaphore left over."""
    from twins import clean, on_ranks, watched

    f = mlp(interpret=watched(mode), **options)
    with clean():
        found = on_ranks(lambda calls: [f(*it) for it in calls], calls, check_vma=False)
        return [np.asarray(y) for y in found]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ranks", "layers", "size"),
    [
        (2, 3, (8, 256, 128)),
        (3, 2, (8, 128, 128)),
        (4, 2, (8, 256, 128)),
        slow(4, 1, (5, 70, 200)),
        slow(1, 2, (5, 70, 200)),
        slow(8, 3, (8, 256, 128)),
    ],
)
def test_layers(devices: Any, ranks: int, layers: int, size: tuple[int, int, int], mode: str) -> None:
    calls = [operands(ranks, layers, size, seed) for seed in (1, 2)]
    for y, it in zip(results(calls, mode), calls, strict=True):
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, reference(*it, "gelu"), rtol=0, atol=1e-4)


@pytest.mark.parametrize("epilogue", ["relu", "silu", ("relu", None)])
def test_another_epilogue(devices: Any, epilogue: Any) -> None:
    it = operands(2, 2, (8, 256, 128), 3)
    (y,) = results([it], "on_wait", epilogue=epilogue)
    name = epilogue if isinstance(epilogue, str) else epilogue[0]
    np.testing.assert_allclose(y, reference(*it, name), rtol=0, atol=1e-4)
    assert np.abs(y - reference(*it, "gelu")).max() > 1e-2


def test_gradient(devices: Any) -> None:
    """That of the layers by jax.lax."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from twins import on_ranks

    f = mlp()
    it = operands(2, 2, (5, 70, 40), 4)

    def by_lax(x: Any, w1: Any, w2: Any) -> Any:
        def dot(a: Any, b: Any) -> Any:
            return jnp.dot(a, b, precision=lax.Precision.HIGHEST)

        for layer in range(2):
            hidden = jax.nn.gelu(dot(lax.all_gather(x, "i", axis=1, tiled=True), w1[layer]))
            x = lax.psum_scatter(dot(hidden, w2[layer]), "i", scatter_dimension=1, tiled=True)
        return x

    def gradients(function: Any) -> Any:
        loss = jax.grad(lambda *args: jnp.sum(jnp.sin(function(*args))), argnums=(0, 1, 2))
        return on_ranks(lambda args: loss(*args), it, check_vma=False)

    for ours, theirs in zip(gradients(f), gradients(by_lax), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-5)


CHANGES: dict[str, tuple[Callable[..., Any], str]] = {
    "fewer layers": (lambda x, w1, w2: (x, w1[:, :1], w2), "as many layers of each weight"),
    "rows of w1": (lambda x, w1, w2: (x, w1[:, :, 1:], w2), r"w1 to have 2 \* 256 = 512 rows"),
    "an odd column": (lambda x, w1, w2: (x, w1, w2[..., 1:]), "shares the 511 columns of w2 out among 2 ranks"),
    "another width": (lambda x, w1, w2: (x, w1, w2[..., 2:]), "it has 255 columns where a shard of x has 256"),
    "a matrix": (lambda x, w1, w2: (x, w1[:, 0], w2), r"takes \[rows, cols\] and \[layers, rows, cols\]"),
    "dtypes": (lambda x, w1, w2: (x.astype(np.float16), w1, w2), "takes operands of one dtype"),
    "integers": (lambda *it: tuple(a.astype(np.int8) for a in it), "bfloat16, float8_e4m3fn, float8_e5m2, not int8"),
    "no rows": (lambda x, w1, w2: (x[:, :0], w1, w2), "takes no empty operands"),
    "no layers": (lambda x, w1, w2: (x, w1[:, :0], w2[:, :0]), "takes no empty operands"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_refused(devices: Any, change: str) -> None:
    from twins import on_ranks

    changed, message = CHANGES[change]
    it = changed(*operands(2, 2, (8, 256, 128), 5))
    with pytest.raises(ValueError, match=message):
        on_ranks(lambda args: mlp()(*args), it, check_vma=False)


def test_epilogues_that_are_refused(devices: Any) -> None:
    from twins import on_ranks

    it = operands(2, 2, (8, 256, 128), 5)
    for epilogue, message in (("gelo", "knows the epilogues"), (("gelu",), "1 epilogues for 2 products")):
        with pytest.raises(ValueError, match=message):
            on_ranks(lambda args, e=epilogue: mlp(epilogue=e)(*args), it, check_vma=False)


def test_of_whole_arrays(devices: Any) -> None:
    import jax
    import twins

    x, w1, w2 = operands(2, 2, (8, 256, 128), 6)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    y = twins.Interpreted("tp_mlp").on(mesh)(
        np.concatenate(list(x), 1), np.concatenate(list(w1), 2), np.concatenate(list(w2), 1)
    )
    want = np.concatenate(list(reference(x, w1, w2, "gelu")), 1)
    np.testing.assert_allclose(np.asarray(y), want, rtol=0, atol=1e-4)
