"""Plans for operands in HBM: they fit, read a weight once where they can, and take the memory that is modelled."""

from __future__ import annotations

import dataclasses
import functools
import math
from types import SimpleNamespace
from typing import Any

import pytest
from test_product_kernels import GATHERS, PRODUCTS, shapes

ROWS = tuple(name for name in PRODUCTS if "features" not in name)
CHIPS = {  # of one core: operations and bytes a second, generation, side of a matrix unit, bytes of VMEM
    "v4": (137e12, 614e9, 4, 128, 16 * 2**20, False),
    "v5p": (229.5e12, 1382e9, 5, 128, 64 * 2**20, False),
    "v6e": (918e12, 1640e9, 6, 256, 128 * 2**20, True),
}
DEPTH, COLS = 8192, 57344 // 8  # of a layer that 8 ranks share
EXTRAS = ("gate", "scale", "bias", "residual")


@functools.cache
def module(name: str, ranks: int) -> Any:
    import ringsched as rs
    from ringsched.collective import as_module

    return as_module(rs.compile(name).source(N=ranks), name)


class Stop(Exception):
    """The kernel is not traced any further."""


def call(name: str, ranks: int, size: tuple[int, int, int], extras: tuple[str, ...] = (), **options: Any) -> Any:
    """Traces a call with bf16 operands; size: rows, depth and columns of `shapes`."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    x, w = shapes(name, ranks, *size)
    rows = ranks * size[0] if name in GATHERS and "features" not in name else size[0]
    o = (rows * ranks if name == "matmul_all_reduce" else rows, size[2])
    if name == "matmul_all_reduce":
        x = (x[0] * ranks, x[1])
    sides = 2 if "gate" in extras and name in GATHERS else 1
    given: dict[str, Any] = {"w": (w,) * sides} | {k: (o[1:],) * sides for k in ("scale", "bias") if k in extras}
    given |= {"residual": (o,)} if "residual" in extras else {}
    pairs = {k: tuple(jax.ShapeDtypeStruct((ranks, *s), jnp.bfloat16) for s in it) for k, it in given.items()}

    def each(x: Any, given: dict[str, Any]) -> Any:
        given = {k: it if sides == 2 and k != "residual" else it[0] for k, it in given.items()}
        given = jax.tree.map(lambda a: a[0], given)
        w = given.pop("w")
        return getattr(module(name, ranks), name)(x[0], w, "i", interpret=True, **given, **options)

    mesh = jax.sharding.AbstractMesh((ranks,), ("i",))
    each = jax.shard_map(each, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    module(name, ranks)._traced.cache_clear()  # it knows nothing of what a test puts in place of the planner
    jax.eval_shape(each, jax.ShapeDtypeStruct((ranks, *x), jnp.bfloat16), pairs)


def asked(name: str, ranks: int, size: tuple[int, int, int], extras: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """What the planner is told: the work, and the bytes of each operand."""
    found: list[Any] = []
    its, planner = module(name, ranks), module(name, ranks)._plan

    def stop(_: str, work: Any, chip: Any, sizes: Any, options: Any) -> Any:
        found.extend((work, sizes))
        raise Stop

    its._plan = stop
    try:
        with pytest.raises(Stop):
            call(name, ranks, size, extras)
    finally:
        its._plan = planner
    return found[0], found[1]


def chip(name: str, ranks: int, kind: str) -> Any:
    import jax.numpy as jnp

    operations, hbm, generation, side, vmem, lite = CHIPS[kind]
    tpu = SimpleNamespace(
        bf16_ops_per_second=operations,
        generation=generation,
        is_lite=lite,
        mxu_column_size=side,
        mem_bw_bytes_per_second=hbm,
    )
    return module(name, ranks)._Chip.of(SimpleNamespace(tpu=tpu, vmem_bytes=vmem), jnp.dtype("bfloat16"))


def plan(name: str, ranks: int, size: tuple[int, int, int], kind: str = "v6e", **options: Any) -> tuple[Any, Any]:
    """The work and the plan for it."""
    work, sizes = asked(name, ranks, size, options.pop("extras", ()))
    options = {"memory": None, "tile": None} | options
    return work, module(name, ranks)._plan(name, work, chip(name, ranks, kind), sizes, options)


def read(work: Any, plan: Any) -> float:
    """How often the weight is read."""
    return sum(tiles * times for group in work.passes(plan) for _, tiles, loads, times in group if loads) / plan.count


# ---- what is chosen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in ROWS if name in GATHERS])
def test_few_gathered_rows_read_the_weight_once(devices: Any, name: str) -> None:
    """Then hardly anything but the weight's way from HBM takes time."""
    for m in (16, 32, 64, 128, 256):
        work, chosen = plan(name, 8, (m // 8, DEPTH, COLS))
        assert read(work, chosen) == 1 and chosen.loads == chosen.count, m
        seconds = DEPTH * COLS * 2 / CHIPS["v6e"][1]
        assert seconds < chip(name, 8, "v6e").seconds(work, chosen) < 1.15 * seconds


@pytest.mark.parametrize("name", [name for name in ROWS if name not in GATHERS])
def test_few_summed_rows_read_once_a_weight_that_fits(devices: Any, name: str) -> None:
    """All of it stays in VMEM, or none."""
    for m in (16, 64, 128):
        work, chosen = plan(name, 8, (m // 8, DEPTH, COLS * 3 // 4))
        assert read(work, chosen) == 1 and chosen.kept + chosen.ahead >= chosen.count, m
    work, chosen = plan(name, 8, (16, DEPTH, 2 * COLS))
    assert read(work, chosen) > 1 and chosen.kept == 0


@pytest.mark.parametrize("name", [name for name in ROWS if name in GATHERS])
def test_many_rows_read_it_often(devices: Any, name: str) -> None:
    """Where products take longer than reading, and what is kept would be in the way."""
    work, chosen = plan(name, 8, (1024, DEPTH, COLS))
    assert read(work, chosen) > 1


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_is_chosen_fits(devices: Any, name: str) -> None:
    """On each chip, for shapes of which some fit VMEM as they are, and some do not fit in any way."""
    what = set()
    for kind in CHIPS:
        vmem = CHIPS[kind][4]
        for size in ((2, 512, 256), (32, 8192, 1024), (512, 4096, 4096), (64, 2**18, 1024)):
            try:
                work, chosen = plan(name, 4, size, kind)
            except ValueError as error:
                assert "does not fit" in str(error)
                what.add("refused")
                continue
            if chosen is None:
                assert sum(asked(name, 4, size)[1].values()) <= vmem // 2
                what.add("in VMEM")
            else:
                assert sum(work.sizes(chosen).values()) <= vmem * 15 // 16
                assert chosen.tile * chosen.count == work.cols
                what.add("streamed")
    assert what == {"refused", "in VMEM", "streamed"}


@pytest.mark.parametrize("name", PRODUCTS)
def test_tile(devices: Any, name: str) -> None:
    """The one that is asked for, also where all would fit VMEM."""
    for size in ((32, 256, 2048), (32, DEPTH, 2048)):
        for tile in (128, 256, 512, 1024):
            work, chosen = plan(name, 4, size, tile=tile)
            assert (chosen.tile, chosen.tile * chosen.count) == (tile, work.cols)


def test_memory(devices: Any) -> None:
    """Nothing is streamed that takes half of VMEM at most, unless one asks for it."""
    name = "all_gather_matmul"
    assert plan(name, 4, (64, 1024, 1024))[1] is None
    assert plan(name, 4, (64, 1024, 1024), memory="vmem")[1] is None
    assert plan(name, 4, (64, 1024, 1024), memory="hbm")[1] is not None
    assert plan(name, 4, (64, 8192, 5120))[1] is not None  # 80 of 128 MiB
    assert plan(name, 4, (64, 8192, 5120), memory="vmem")[1] is None
    with pytest.raises(ValueError, match=r"^all_gather_matmul does not fit 128 MiB of VMEM: x 1\.0 \+ o .* MiB$"):
        plan(name, 4, (64, 8192, 10240), memory="vmem")


def test_what_cannot_fit_is_refused(devices: Any) -> None:
    name = "all_gather_matmul"
    for memory in (None, "hbm"):
        with pytest.raises(ValueError, match=r"does not fit 15 MiB of VMEM: buffers .* \+ weight 32\.0 \+ .* MiB$"):
            plan(name, 4, (64, 2**16, 1024), "v4", memory=memory)
    assert plan(name, 4, (64, 2**16, 1024), "v6e")[1].tile == 128


# ---- bytes ------------------------------------------------------------------------------------------------------


def every_plan(name: str, ranks: int, extras: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """Of 128 and of 256 columns at a time."""
    work, _ = asked(name, ranks, (256, 256, 1024), extras)
    return work, list(work.plans([128, 256]))


def bytes_of(ref: Any) -> int:
    return math.prod(ref.shape) * ref.dtype.itemsize


def in_vmem(name: str, ranks: int, chosen: Any, extras: tuple[str, ...]) -> int:
    """Bytes of VMEM of a kernel's operands, results and scratch."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    found: list[int] = []

    def launch(_: Any, *, out_shape: Any, in_specs: Any, out_specs: Any, scratch_shapes: Any, **options: Any) -> Any:
        def started(*operands: Any) -> Any:
            pairs = [*zip(operands, in_specs, strict=True), *zip(out_shape, out_specs, strict=True)]
            found.extend(bytes_of(ref) for ref, spec in pairs if spec.memory_space == pltpu.VMEM)
            found.extend(bytes_of(ref) for ref in scratch_shapes if getattr(ref, "memory_space", None) == pltpu.VMEM)
            raise Stop

        return started

    its, planner, pallas_call = module(name, ranks), module(name, ranks)._plan, pl.pallas_call
    its._plan, pl.pallas_call = lambda *_: chosen, launch
    try:
        with pytest.raises(Stop):
            call(name, ranks, (256, 256, 1024), extras)
    finally:
        its._plan, pl.pallas_call = planner, pallas_call
    return sum(found)


@pytest.mark.parametrize("extras", [(), EXTRAS])
@pytest.mark.parametrize("name", PRODUCTS)
def test_bytes_are_those_that_are_allocated(devices: Any, name: str, extras: tuple[str, ...]) -> None:
    """All that is in VMEM, but for values of sums, which the compiler places."""
    work, plans = every_plan(name, 4, extras)
    for chosen in plans[::7]:
        modelled = work.sizes(chosen)
        assert in_vmem(name, 4, chosen, extras) == sum(modelled.values()) - modelled["sums"], chosen


@pytest.mark.parametrize("name", PRODUCTS)
def test_buffers(devices: Any, name: str) -> None:
    """Those of each plan, one by one; another plan has others."""
    import jax.numpy as jnp

    bf16 = jnp.dtype("bfloat16")
    work, plans = every_plan(name, 4, ())
    allocated = {}
    for chosen in plans:
        refs = module(name, 4)._stream_buffers(chosen, work, (bf16, bf16, None), False)
        found = {"weight": bytes_of(refs["tiles"])}
        found |= {"result": bytes_of(refs["out"])} if "out" in refs else {}
        found |= {"x": bytes_of(refs["x"])} if "x" in refs else {}
        modelled = work.sizes(chosen)
        assert found == {k: modelled[k] for k in found}
        assert ("result" in modelled) == ("result" in found)
        allocated[chosen] = found
    ahead = dataclasses.replace(plans[0], ahead=plans[0].ahead + 1)
    assert work.sizes(ahead)["weight"] != allocated[plans[0]]["weight"]


@pytest.mark.parametrize("name", ROWS)
def test_passes_multiply_everything_once(devices: Any, name: str) -> None:
    """Each unit by each tile; no tile comes less than once. The last block of a group counts as if it were full."""
    work, plans = every_plan(name, 4, ())
    for chosen in plans:
        groups = [sum(group) * work.rows for group in work.groups]
        block = chosen.block or max(groups)
        full = [min(rows, block) * -(-rows // block) for rows in groups]
        products = sum(rows * tiles * times for group in work.passes(chosen) for rows, tiles, _, times in group)
        assert products == sum(full) * chosen.count, chosen
        assert read(work, chosen) >= 1
        assert (read(work, chosen) == 1) == (chosen.upto is not None)


@pytest.mark.parametrize("m", [1024, 2048, 8192])
def test_tiles_fill_a_matrix_unit(devices: Any, m: int) -> None:
    """128 columns take as long as 256 on a unit that has so many."""
    _, chosen = plan("all_gather_matmul_bidirectional", 8, (m // 8, DEPTH, COLS))
    assert chosen.tile % 256 == 0


def test_8_bits_on_a_chip_that_does_not_multiply_them(devices: Any) -> None:
    import jax.numpy as jnp

    its = module("all_gather_matmul", 8)
    old, new = (SimpleNamespace(generation=g, chip_version=f"v{g}") for g in (4, 5))
    for name in ("int8", "float8_e4m3fn"):
        its._check_factor(SimpleNamespace(name="f", tpu=new), jnp.dtype(name), its._FACTORS)
        with pytest.raises(ValueError, match=f"^f multiplies float32, bfloat16 on TPU v4, not {name}$"):
            its._check_factor(SimpleNamespace(name="f", tpu=old), jnp.dtype(name), its._FACTORS)
