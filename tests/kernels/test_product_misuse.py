"""Products that cannot be computed say so, with the sizes, before their kernel is traced."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_product_kernels import GATHERS, PRODUCTS, SUMS, ours, shapes

N = 4
SIZE = (16, 64, 128)  # rows, depth, columns


def operands(name: str) -> dict[str, Any]:
    """Shapes on one rank of a call that is right."""
    x, w = shapes(name, N, *SIZE)
    return {"x": x, "w": w}


def result(name: str) -> tuple[int, int]:
    rows, _, cols = SIZE
    return (N * rows if name in GATHERS and "features" not in name else rows, cols)


def traced(name: str, given: dict[str, Any], dtypes: dict[str, Any], check_vma: bool, **options: Any) -> int:
    """How many kernels a call has that is given operands of these shapes, and of these dtypes if not float32."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.sharding import PartitionSpec as P

    f = ours(name, **options)  # takes x and w by place
    mesh = jax.sharding.AbstractMesh((N,), ("i",))

    def shaped(shape: Any, dtype: Any) -> Any:
        if isinstance(shape, list):  # of several weights, or what belongs to each
            each = dtype if isinstance(dtype, list) else [dtype] * len(shape)
            return tuple(map(shaped, shape, each))
        return jax.ShapeDtypeStruct((N, *shape), jnp.dtype(dtype))

    def each(given: dict[str, Any]) -> Any:
        given = jax.tree.map(lambda a: a[0], given)
        return f(given.pop("x"), given.pop("w"), **given)

    call = jax.shard_map(each, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)
    kernels: list[Any] = []
    launch = pl.pallas_call
    pl.pallas_call = lambda *args, **options: kernels.append(args) or launch(*args, **options)
    try:
        jax.eval_shape(call, {k: shaped(it, dtypes.get(k, "float32")) for k, it in given.items()})
    except ValueError:
        assert not kernels
        raise
    finally:
        pl.pallas_call = launch
    return len(kernels)


def refused(name: str, changes: Any = None, dtypes: Any = None, check_vma: bool = False, **options: Any) -> str:
    """The message of the ValueError where the operands are those of a right call but for these."""
    with pytest.raises(ValueError) as caught:
        traced(name, operands(name) | (changes or {}), dtypes or {}, check_vma, **options)
    return str(caught.value)


# ---- operands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRODUCTS)
def test_right_calls_are_not_refused(devices: Any, name: str) -> None:
    """What the other tests of this file change is all that is wrong with their calls."""
    given = operands(name)
    extras = {"scale": given["w"][1:], "bias": given["w"][1:], "residual": result(name)}
    if name in GATHERS:
        assert traced(name, given | {"w": [given["w"]] * 2}, {}, False) == 1
    if "scatter" in name and "features" in name:
        extras |= {"scale": (SIZE[2],), "bias": (SIZE[2],)}
    assert traced(name, given | extras, {}, False, memory="vmem") == 1
    assert traced(name, given | {"w": given["w"][::-1]}, {}, False, transposed=True, memory="hbm", tile=128) == 1


@pytest.mark.parametrize("name", PRODUCTS)
def test_depth(devices: Any, name: str) -> None:
    x, (deep, cols) = shapes(name, N, *SIZE)
    want = f"{N} * 64 = {deep}" if deep > 64 else "64 = 64"
    for w, transposed, what in (((deep + 1, cols), False, "rows"), ((cols, deep + 1), True, "columns, transposed")):
        message = refused(name, {"w": w}, transposed=transposed)
        assert message == f"{name} needs w to have {want} {what}: x is {x} and w {w}"


@pytest.mark.parametrize("name", [name for name in SUMS if "scatter" in name])
def test_what_cannot_be_shared_out(devices: Any, name: str) -> None:
    if "features" in name:
        assert refused(name, {"w": (64, 127)}) == f"{name} shares the columns of w out among 4 ranks: 127"
        message = refused(name, {"w": (127, 64)}, transposed=True)
        assert message == f"{name} shares the columns of w out among 4 ranks: 127"
    else:
        assert refused(name, {"x": (15, 64)}) == f"{name} shares the rows of x out among 4 ranks: 15"


@pytest.mark.parametrize("name", PRODUCTS)
def test_dtypes(devices: Any, name: str) -> None:
    w = operands(name)["w"]
    message = refused(name, dtypes={"w": "bfloat16"})
    assert message == f"{name} takes x and w of one dtype, not float32 and bfloat16"
    if name in GATHERS:
        message = refused(name, {"w": [w, w]}, {"w": ["float32", "int8"]})
        assert message == f"{name} takes x and w of one dtype, not float32 and float32 and int8"
    for dtype in ("float16", "int32"):
        message = refused(name, dtypes={"x": dtype, "w": dtype})
        assert message == f"{name} multiplies float32, bfloat16, int8, float8_e4m3fn, float8_e5m2, not {dtype}"


@pytest.mark.parametrize("name", PRODUCTS)
def test_number_of_weights(devices: Any, name: str) -> None:
    w = operands(name)["w"]
    most = "a weight, or a gate and a weight" if name in GATHERS else "one weight"
    for count in (0, 2, 3) if name in SUMS else (0, 3):
        assert refused(name, {"w": [w] * count}) == f"{name} takes {most}, not {count}"


@pytest.mark.parametrize("name", GATHERS)
def test_gate_of_another_shape(devices: Any, name: str) -> None:
    deep, cols = operands(name)["w"]
    message = refused(name, {"w": [(deep, cols), (deep, cols + 1)]})
    assert message == f"{name} takes a gate and a weight of one shape, not {(deep, cols)} and {(deep, cols + 1)}"


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_matrices(devices: Any, name: str) -> None:
    given = operands(name)
    x, w = given["x"], given["w"]
    assert refused(name, {"x": x[1:]}) == f"{name} takes matrices, not {x[1:]} and {w}"
    assert refused(name, {"w": (1, *w)}) == f"{name} takes matrices, not {x} and {(1, *w)}"
    assert refused(name, {"w": w[1:]}) == f"{name} takes matrices, not {x} and {w[1:]}"


# ---- epilogues --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["scale", "bias"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_scale_and_bias(devices: Any, name: str, key: str) -> None:
    for wrong in ((), (127,), (1, 128)):
        assert refused(name, {key: wrong}) == f"{name} needs a {key} [128], not [{wrong}]"
    two = [(128,), (128,)]
    assert refused(name, {key: two}) == f"{name} needs a {key} [128], not {two}"
    if name in GATHERS:
        gated = {"w": [operands(name)["w"]] * 2}
        for wrong in ((128,), (2, 128)):
            assert refused(name, {**gated, key: wrong}) == f"{name} needs a {key} two of [128], not [{wrong}]"
        message = refused(name, {**gated, key: [(128,), (1,)]})
        assert message == f"{name} needs a {key} two of [128], not [(128,), (1,)]"


@pytest.mark.parametrize("name", PRODUCTS)
def test_residual(devices: Any, name: str) -> None:
    rows, cols = result(name)
    for wrong in ((rows, cols + 1), (rows + 1, cols), (cols,)):
        message = refused(name, {"residual": wrong})
        assert message == f"{name} needs a residual {[rows, cols]}, not {list(wrong)}"


@pytest.mark.parametrize("key", ["scale", "bias", "residual"])
def test_what_ranks_must_have_alike(devices: Any, key: str) -> None:
    """The type tells that they have not; the result would not be the same on all ranks either."""
    name = "matmul_all_reduce"
    shape = result(name) if key == "residual" else (128,)
    message = refused(name, {key: shape}, check_vma=True)
    assert message == f"{name} needs a {key} that all ranks have alike"


def test_unknown_epilogue(devices: Any) -> None:
    message = refused("all_gather_matmul", epilogue="swish")
    want = "knows the epilogues gelu, gelu_exact, silu, relu or a function, not 'swish'"
    assert message == f"all_gather_matmul {want}"


@pytest.mark.parametrize(
    ("name", "option"), [("matmul_reduce_scatter", "keep_gathered"), ("all_gather_matmul", "partial_dtype")]
)
def test_options_of_the_other_kind(devices: Any, name: str, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        traced(name, operands(name), {}, False, **{option: None})


# ---- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRODUCTS)
def test_unknown_memory(devices: Any, name: str) -> None:
    for memory in ("VMEM", "smem", 1):
        message = refused(name, memory=memory)
        assert message == f'{name} has its operands in "vmem" or "hbm", not {memory!r}'


@pytest.mark.parametrize("memory", [None, "hbm"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_tile(devices: Any, name: str, memory: str | None) -> None:
    """A multiple of 128 that divides the columns of a unit, which are 384."""
    x, w = shapes(name, N, 16, 64, 384 * (2 if name == "matmul_reduce_scatter_features_bidirectional" else 1))
    for tile in (64, 192, 256, 512, 0, -128):
        message = refused(name, {"x": x, "w": w}, memory=memory, tile=tile)
        assert message == f"{name} takes tiles of a multiple of 128 that divides the 384 columns, not {tile}"
    assert traced(name, {"x": x, "w": w}, {}, False, memory=memory, tile=384) == 1


def terms(name: str, message: str) -> tuple[float, dict[str, float]]:
    """MiB that there are, and what would take how many."""
    found = re.fullmatch(rf"{name} does not fit (\d+) MiB of VMEM: (.*) MiB", message)
    assert found, message
    parts = [part.rsplit(" ", 1) for part in found[2].split(" + ")]
    return float(found[1]), {what: float(size) for what, size in parts}


@pytest.mark.parametrize("name", PRODUCTS)
def test_too_large_for_vmem(devices: Any, name: str) -> None:
    """The message has the terms of the sum; they come to more than there is."""
    x, w = shapes(name, 4, 4096, 4096, 4096)
    vmem, parts = terms(name, refused(name, {"x": x, "w": w}, memory="vmem"))
    assert sum(parts.values()) > vmem == 64
    assert list(parts) == ["x", "o", "w", "scratch"]
    assert parts["x"] == x[0] * x[1] * 4 / 2**20 and parts["w"] == w[0] * w[1] * 4 / 2**20
    rows, cols = result(name)
    rows, cols = rows * 4096 // SIZE[0], cols * 4096 // SIZE[2]
    extras = {"scale": (cols,), "residual": (rows, cols)}
    _, with_extras = terms(name, refused(name, {"x": x, "w": w} | extras, memory="vmem"))
    assert set(with_extras) == {"x", "o", "w", "scale", "residual", "scratch"}
    assert with_extras["residual"] == rows * cols * 4 / 2**20


@pytest.mark.parametrize("memory", [None, "hbm"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_too_large_for_streaming(devices: Any, name: str, memory: str | None) -> None:
    """Two tiles of the weight alone are more than VMEM; what is told is what the smallest plan takes."""
    x, w = shapes(name, 4, 8, 2**17, 256)
    vmem, parts = terms(name, refused(name, {"x": x, "w": w}, memory=memory))
    assert sum(parts.values()) > vmem
    assert list(parts) == ["buffers", "x", "weight", *(["result"] if name in GATHERS else []), "sums"]
    assert parts["weight"] >= 2 * 128 * 2**17 * 4 / 2**20


@pytest.mark.parametrize("memory", [None, "hbm"])
def test_just_too_large_for_streaming(devices: Any, memory: str | None) -> None:
    """More than the 15/16 of VMEM that a plan may take, if less than all of it."""
    name = "all_gather_matmul"
    x, w = shapes(name, 4, 8, 57984, 256)
    vmem, parts = terms(name, refused(name, {"x": x, "w": w}, memory=memory))
    assert vmem == 60 < sum(parts.values()) < 64
