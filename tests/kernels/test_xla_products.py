"""The portable back end multiplies: against 64 bits, against the kernels, and its gradients against `jax.lax`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_chain_kernels as chains
import test_whole_chains as whole_chains
from cases import slow
from test_epilogues import arguments, expected, gradients, lax_with, operands, result_shape, with_all
from test_product_kernels import GATHERS, PRODUCTS, SUMS, by_lax, close_to_scale, ours, reference
from test_product_kernels import operands as plain_operands

ODD = (3, 10, 7)  # rows, depth and columns
_compiled: dict[str, Any] = {}


def portable(name: str) -> Any:
    import ringsched as rs

    if name not in _compiled:
        _compiled[name] = rs.compile(name, backend="xla")
    return lambda *operands, **options: _compiled[name](*operands, axis_name="i", **options)


def called(f: Any, given: dict[str, Any], *, check_vma: bool = False, **options: Any) -> Any:
    from twins import on_ranks

    def each(given: dict[str, Any]) -> Any:
        x, w, more = arguments(given)
        return f(x, w, **more, **options)

    return np.asarray(on_ranks(each, given, check_vma=check_vma))


# ---- every schedule, every option -------------------------------------------------------------------------------


def check_exact(name: str, n: int, with_: str, dtype: str = "float32", **options: Any) -> None:
    """Small numbers, of which every sum is exact, and "relu", which keeps it so: rounded once, in the end."""
    given = operands(name, n, with_, ODD, dtype)
    transposed = "transposed" in with_
    y = called(portable(name), given, epilogue="relu", transposed=transposed, **options)
    want = expected(name, given, "relu", transposed)
    assert np.abs(want).max() >= 1
    np.testing.assert_array_equal(y, want.astype(np.float32).astype(y.dtype))
    wide = "float32" if dtype == "int8" and "scale" in with_ else dtype
    assert y.dtype == np.dtype(options.get("out_dtype") or given["x"].dtype if wide == dtype else wide)


@pytest.mark.parametrize("name", PRODUCTS)
def test_everything_at_once(devices: Any, name: str) -> None:
    check_exact(name, 4, with_all(name))
    check_exact(name, 1, "")


@pytest.mark.slow
@pytest.mark.parametrize("with_", ["", "scale", "bias", "residual", "transposed", "gate", "gate bias"])
@pytest.mark.parametrize("n", [1, 2, 5, 8, 12])
@pytest.mark.parametrize("name", PRODUCTS)
def test_one_at_a_time(devices: Any, name: str, n: int, with_: str) -> None:
    if name in GATHERS or "gate" not in with_:
        check_exact(name, n, with_)


@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_reduce_scatter_features", "matmul_all_reduce"])
def test_integers(devices: Any, name: str) -> None:
    """Each sum is exact in 32 bits: float32 where it is scaled."""
    import jax.numpy as jnp

    check_exact(name, 3, "scale transposed", "int8", **({"partial_dtype": jnp.int32} if name in SUMS else {}))


@pytest.mark.parametrize("name", ["matmul_reduce_scatter", "matmul_reduce_scatter_features_bidirectional"])
def test_in_which_dtype_sums_travel(devices: Any, name: str) -> None:
    """What arrives last is added to what this rank has in 32 bits."""
    import jax.numpy as jnp
    from twins import normal

    given = operands(name, 3, "", (4, 64, 12), "bfloat16", make=normal)
    want = expected(name, given, None, False)
    options = {"out_dtype": jnp.float32}
    exact, rounded = (called(portable(name), given, partial_dtype=d, **options) for d in ("float32", "bfloat16"))
    assert np.abs(exact - want).max() < 1e-4 < np.abs(rounded - want).max() < 1


def test_a_sum_is_the_same_at_all_ranks(devices: Any) -> None:
    """Although it travels in few bits."""
    import jax.numpy as jnp
    from twins import normal

    given = operands("matmul_all_reduce", 4, "", (4, 64, 12), "bfloat16", make=normal)
    y = called(portable("matmul_all_reduce"), given, partial_dtype=jnp.bfloat16, out_dtype=jnp.float32)
    assert (y == y[:1]).all()


def test_nothing_is_sent(devices: Any) -> None:
    from twins import data

    x, w = data((2, 3, 5)), data((2, 5, 4), seed=1)
    y = called(portable("matmul"), {"x": x, "w": (w,)}, epilogue="relu")
    np.testing.assert_array_equal(y, np.maximum(np.asarray(x) @ np.asarray(w), 0))


# ---- against the kernels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "n"),
    [("all_gather_matmul_bidirectional", 2), *(slow(name, n) for name in PRODUCTS for n in (2, 3, 4))],
)
def test_as_the_kernel(devices: Any, name: str, n: int) -> None:
    """Exact sums: every bit, with everything that an epilogue takes."""
    given = operands(name, n, with_all(name), ODD)
    options = {"epilogue": "relu", "transposed": True}
    np.testing.assert_array_equal(called(portable(name), given, **options), called(ours(name), given, **options))


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 4])
def test_chains_as_the_kernels(devices: Any, n: int) -> None:
    from twins import on_ranks

    it = chains.operands(n, 2, (8, 128, 128), 1)
    one, other = (on_ranks(lambda x, f=f: f(*x), it, check_vma=False) for f in (portable("tp_mlp"), chains.mlp()))
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-4)
    it = whole_chains.operands(n, 2, (8, 128 * n, 128), 1)
    mlp = whole_chains.mlp()
    one, other = (
        whole_chains.on_ranks(f, it, check_vma=False)
        for f in (portable("tp_mlp_whole"), lambda *x: mlp(*x, axis_name="i"))
    )
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=1e-4)


# ---- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "check_vma"),
    [
        ("all_gather_matmul_features", True),
        ("all_gather_matmul_bidirectional", False),
        ("matmul_reduce_scatter_features_bidirectional", False),
        ("matmul_reduce_scatter", True),
        ("matmul_all_reduce", False),
        ("matmul_all_reduce", True),
        *(slow(name, check_vma) for name in PRODUCTS for check_vma in (False, True)),
    ],
)
def test_gradients(devices: Any, name: str, check_vma: bool) -> None:
    """With respect to x, w (both of a gate), scale, bias and residual."""
    import jax
    from twins import normal

    size = (5, 12, 8)
    given = operands(name, 4, with_all(name), size, make=normal)
    fixed = {}
    if name == "matmul_all_reduce":
        fixed = {k: jax.tree.map(lambda a: a[0], given.pop(k)) for k in ("scale", "bias", "residual")}
    weights = normal((4, *result_shape(name, 4, size)), "float32", 99)

    def one(*operands: Any, **options: Any) -> Any:
        return portable(name)(*operands, epilogue="silu", transposed=True, **options)

    other = lax_with(name, jax.nn.silu, transposed=True)
    found, want = (gradients(f, given, weights, check_vma, fixed) for f in (one, other))
    assert jax.tree.structure(found) == jax.tree.structure(want)
    close_to_scale(found, want)


@pytest.mark.parametrize("name", ["all_gather_matmul_features", "matmul_all_reduce"])
def test_gradient_of_few_bits(devices: Any, name: str) -> None:
    import jax
    import jax.numpy as jnp
    from twins import normal, on_ranks

    x, w = plain_operands(name, 2, "bfloat16", (4, 16, 8), normal)

    def loss(f: Any) -> Any:
        return jax.grad(lambda x, w: jnp.sum(f(x, w).astype(jnp.float32) ** 2), argnums=(0, 1))

    found, want = (on_ranks(lambda a, f=f: loss(f)(*a), (x, w)) for f in (portable(name), by_lax(name)))
    for one, other in zip(found, want, strict=True):
        assert one.dtype == jnp.bfloat16
        scale = np.abs(np.asarray(other, np.float32)).max()
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), atol=scale / 32)


# ---- chains -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "layers", "size"),
    [(3, 2, (5, 7, 9)), slow(1, 2, (5, 7, 9)), slow(4, 3, (8, 16, 12)), slow(8, 2, (3, 10, 5))],
)
def test_layers(devices: Any, ranks: int, layers: int, size: tuple[int, int, int]) -> None:
    from twins import on_ranks

    it = chains.operands(ranks, layers, size, 1)
    y = np.asarray(on_ranks(lambda x: portable("tp_mlp")(*x), it))
    np.testing.assert_allclose(y, chains.reference(*it, "gelu"), rtol=0, atol=1e-4)
    y = np.asarray(on_ranks(lambda x: portable("tp_mlp")(*x, epilogue=("relu", None)), it))
    np.testing.assert_allclose(y, chains.reference(*it, "relu"), rtol=0, atol=1e-4)


def test_layers_along_rows(devices: Any, tmp_path: Path) -> None:
    """From the whole of x to the whole of the result."""
    import ringsched as rs

    file = tmp_path / "mlp.yaml"
    file.write_text(whole_chains.ROWS, encoding="utf-8")
    f = rs.compile(file, backend="xla")
    it = whole_chains.operands(3, 2, (9, 10, 7), 2)
    y = whole_chains.on_ranks(lambda *x: f(*x, axis_name="i"), it, check_vma=False)
    np.testing.assert_allclose(np.asarray(y), np.stack([whole_chains.reference(*it)] * 3), rtol=0, atol=1e-4)


@pytest.mark.parametrize("check_vma", [False, True])
def test_gradient_of_layers(devices: Any, check_vma: bool) -> None:
    """That of the kernels, which is that of `lax.psum` where the whole activation is the same at all ranks."""
    import jax
    import jax.numpy as jnp
    from twins import on_ranks

    def loss(f: Any) -> Any:
        return jax.grad(lambda *args: jnp.sum(jnp.sin(f(*args))), argnums=(0, 1, 2))

    it = chains.operands(2, 2, (3, 6, 4), 4)
    one, other = (
        on_ranks(lambda args, f=f: loss(f)(*args), it, check_vma=check_vma) for f in (portable("tp_mlp"), chains.mlp())
    )
    close_to_scale(one, other)

    def varying(f: Any) -> Any:
        def gradient(*args: Any) -> Any:
            found = loss(f)(*args)
            missing = [a for a in ("i",) if check_vma and a not in jax.typeof(found[0]).mat.varying]
            return (jax.lax.pcast(found[0], tuple(missing), to="varying") if missing else found[0], *found[1:])

        return gradient

    it = whole_chains.operands(2, 2, (4, 6, 4), 4)
    mlp = whole_chains.mlp()
    one, other = (
        whole_chains.on_ranks(varying(f), it, check_vma=check_vma)
        for f in (portable("tp_mlp_whole"), lambda *x: mlp(*x, axis_name="i"))
    )
    close_to_scale(one, other)


def test_the_result_of_layers_is_typed(devices: Any) -> None:
    """The whole activation leaves shard_map as `P()`."""
    from jax.sharding import PartitionSpec as P

    it = whole_chains.operands(3, 1, (4, 6, 4), 5)
    y = whole_chains.on_ranks(portable("tp_mlp_whole"), it, check_vma=True, out=P())
    np.testing.assert_allclose(np.asarray(y), whole_chains.reference(*it), rtol=0, atol=1e-4)


# ---- schedules of other kinds -----------------------------------------------------------------------------------

# Topology, sides, chunks, collective, steps.
OTHERS = {
    "torus": ("torus: [X, Y]", (2, 3), "[X, Y, X * Y - 1]", "all_gather", "[synth: all_gather]"),
    "torus, back": ("torus: [X, Y]", (2, 3), "[X, Y, X * Y - 1]", "reduce_scatter", "[synth: reduce_scatter]"),
    "mesh": ("mesh: [X, Y]", (2, 2), "[X, Y, 2]", "all_gather", "[synth: all_gather]"),
    "mesh, back": ("mesh: [X, Y]", (2, 2), "[X, Y, 2]", "reduce_scatter", "[synth: reduce_scatter]"),
    "mesh, both": ("mesh: [X, Y]", (2, 2), "[4]", "all_reduce", "[synth: all_reduce]"),
    "log steps": ("ring: X, routed: true", (4,), "[X]", "all_gather", "[{use: all_gather_doubling, with: {N: X}}]"),
    "log steps, back": (
        "ring: X, routed: true",
        (4,),
        "[X]",
        "reduce_scatter",
        "[{use: reduce_scatter_halving, with: {N: X}}]",
    ),
    "line": (
        "line: X",
        (3,),
        "[X]",
        "all_gather",
        """
  - for: s in 0 .. X - 2
    do:
      - {send: "chunk[r - s]", to: r + 1, when: [r < X - 1, r - s >= 0]}
      - {send: "chunk[r + s]", to: r - 1, when: [r > 0, r + s < X]}
""",
    ),
    "twice": (
        "ring: X",
        (3,),
        "[X]",
        "all_gather",
        """
  - use: all_gather
    with: {N: X}
  - {send: "chunk[r]", to: r + 1}
""",
    ),
}
TWINS = {
    "all_gather": "all_gather_matmul",
    "reduce_scatter": "matmul_reduce_scatter",
    "all_reduce": "matmul_all_reduce",
}
INTERLEAVED = ("torus", "line", "log steps", "log steps, back")


def other(name: str, shard: str) -> str:
    topology, sides, chunks, kind, steps = OTHERS[name]
    parameters = ", ".join(f"{letter}: {side}" for letter, side in zip("XY", sides, strict=False))
    moment = "on arrival" if kind == "all_gather" else "before sending"
    return (
        f"schedule: product\ncollective: {kind}\ntopology: {{{topology}}}\nparams: {{{parameters}}}\n"
        f"chunks: {chunks}\ncompute: {{multiply: {moment}, shard: {shard}}}\nsteps: {steps}\n"
    )


SOME = ("torus", "torus, back", "mesh, both", "log steps, back", "twice")


@pytest.mark.parametrize(
    ("name", "shard"),
    [("line", "rows"), ("line", "features"), ("mesh", "rows"), *((name, "features") for name in SOME)]
    + [slow(name, shard) for name in OTHERS for shard in ("rows", "features")],
)
def test_other_topologies(devices: Any, tmp_path: Path, name: str, shard: str) -> None:
    """Where products cannot be between transfers they are behind them, or before."""
    import jax
    from twins import data, on_ranks

    import ringsched as rs

    file = tmp_path / "product.yaml"
    file.write_text(other(name, shard), encoding="utf-8")
    _, sides, _, kind, _ = OTHERS[name]
    parameters = dict(zip("XY", sides, strict=False))
    source = rs.compile(file, backend="xla").source(**parameters)
    apart = "(held)[...]" in source or "= terms[...]" in source
    assert apart == (name not in INTERLEAVED)

    axes = ("a", "b")[: len(sides)]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: np.prod(sides)]).reshape(sides), axes)
    like = {
        "all_gather": "all_gather_matmul",
        "reduce_scatter": "matmul_reduce_scatter",
        "all_reduce": "matmul_all_reduce",
    }
    twin = like[kind] + ("_features" if shard == "features" else "")
    x, w = plain_operands(twin, mesh.size, "float32", ODD, data)
    spread = [it.reshape(*sides, *it.shape[1:]) for it in (x, w)]
    f = rs.compile(file, backend="xla")
    y = np.asarray(on_ranks(lambda a: f(*a, axis_name=axes), spread, mesh=mesh))
    np.testing.assert_array_equal(y.reshape(-1, *y.shape[len(sides) :]), reference(twin, np.asarray(x), np.asarray(w)))


def test_nothing_is_multiplied_where_nothing_arrives(devices: Any, tmp_path: Path) -> None:
    """Zero times infinity would be no number."""
    from twins import on_ranks

    import ringsched as rs

    file = tmp_path / "product.yaml"
    file.write_text(other("line", "features"), encoding="utf-8")
    f = rs.compile(file, backend="xla")
    x, w = np.ones((3, 2, 4), np.float32), np.full((3, 12, 5), np.inf, np.float32)
    assert np.isposinf(np.asarray(on_ranks(lambda a: f(*a, axis_name="i"), (x, w)))).all()


# ---- misuse -----------------------------------------------------------------------------------------------------


def test_misuse(devices: Any) -> None:
    """The same words as those of the kernels."""
    from twins import on_ranks

    def ones(*shape: int) -> Any:
        return np.ones((3, *shape), np.float32)

    for name, given, options, message in [
        ("all_gather_matmul", (ones(4, 5), ones(6, 2)), {}, "needs w to have 5 = 5 rows"),
        ("all_gather_matmul_features", (ones(4, 5), ones(5, 2)), {}, r"needs w to have 3 \* 5 = 15 rows"),
        ("matmul_reduce_scatter", (ones(4, 5), ones(5, 2)), {}, "shares the rows of x out among 3 ranks: 4"),
        ("matmul_all_reduce", (ones(4, 5), ones(5, 2)), {"bias": np.ones(3)}, r"needs a bias \[2\]"),
        ("matmul_all_reduce", (ones(4, 5), ones(5, 2)), {"epilogue": "tanh"}, "knows the epilogues gelu"),
        ("tp_mlp", (ones(4, 5), ones(2, 15, 2), ones(2, 2, 14)), {}, "shares the 14 columns of w2 out among 3 ranks"),
    ]:
        with pytest.raises(ValueError, match=message):
            on_ranks(lambda it, n=name, o=options: portable(n)(*it, **o), given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'tile'"):
        on_ranks(lambda it: portable("all_gather_matmul")(*it, tile=128), (ones(4, 5), ones(5, 2)))


DAMAGES = {
    "all_gather_matmul": ("out = out.plus(arrived)[(r - s - 1) % N]", "out = out.plus(arrived)[(r - s) % N]"),
    "all_gather_matmul_features": ("    out = out.plus(held[r])[r]\n", ""),
    "matmul_reduce_scatter": ("terms.plus(arrived)[", "terms["),
    "matmul_reduce_scatter_features": ("held = held.at[(r - 1) % N].set(", "held.at[(r - 1) % N].set("),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_module_is_noticed(devices: Any, name: str) -> None:
    from ringsched.collective import as_module
    from ringsched.pipeline import compile_portable, open_schedule

    source = compile_portable(open_schedule(name, {"N": 4})).source
    assert DAMAGES[name][0] in source
    module = as_module(source.replace(*DAMAGES[name]), name)
    given = operands(name, 4, "", ODD)
    y = called(lambda x, w: getattr(module, name)(x, w, axis_name="i"), given)
    assert (y != expected(name, given, None, False)).any()
