"""Limits of the chip, grids and tiles that do not fit their arrays, and things that are merely not good."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import (
    BLOCK,
    COLS,
    COUNTER,
    DMA,
    ROWS,
    admit,
    blocks,
    call,
    flawed,
    push,
    right,
    ring,
    shifted,
    undecided,
    wrong,
)

F32 = jnp.float32
MIB = 1024 * 1024 // (ROWS * COLS * 4)  # blocks


def shift_kernel(x_ref, o_ref, *rest):
    """By one, with the last semaphores there are; all before them are of no use."""
    sent, received = rest[-1].at[rest[-1].shape[0] - 2], rest[-1].at[rest[-1].shape[0] - 1]
    i, n = lax.axis_index("i"), lax.axis_size("i")
    admit(lax.rem(i + n - 1, n))
    copy = push(x_ref, o_ref, sent, received, lax.rem(i + 1, n))
    copy.start()
    copy.wait()


def with_semaphores(*counts):
    return call(shift_kernel, scratch=tuple(DMA((count,)) for count in counts))


def with_scratch(*counts):
    """Blocks of VMEM that are of no use."""
    return call(shift_kernel, scratch=(*(blocks(count) for count in counts), DMA((2,))))


def with_scope(count):
    def kernel(x_ref, o_ref, semaphores):
        def body(buffer):
            buffer[0] = x_ref[...]
            shift_kernel(buffer.at[0], o_ref, semaphores)

        pl.run_scoped(body, blocks(count))

    return call(kernel, scratch=(DMA((2,)),))


def by_way_of_hbm(x):
    """As large as can be, but not in VMEM."""
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        shift_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[hbm],
        out_specs=hbm,
        scratch_shapes=[DMA((2,))],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(x)


def hop(by):
    def kernel(x_ref, o_ref, sent, received):
        i, n = lax.axis_index("i"), lax.axis_size("i")
        admit(lax.rem(i + n - by, n))
        copy = push(x_ref, o_ref, sent, received, lax.rem(i + by, n))
        copy.start()
        copy.wait()

    return call(kernel, scratch=(DMA, DMA))


def tiled(tile, steps, *, shape, place=lambda k: (k, 0)):
    """Twice the operand, tile by tile, each by way of a DMA within VMEM."""

    def kernel(x_ref, o_ref, buffer, done):
        copy = pltpu.make_async_copy(x_ref, buffer, done)
        copy.start()
        copy.wait()
        o_ref[...] = 2 * buffer[...]

    def function(x):
        return pl.pallas_call(
            kernel,
            grid=(steps,),
            out_shape=jax.ShapeDtypeStruct(shape, F32),
            in_specs=[pl.BlockSpec(tile, lambda k: (k, 0))],
            out_specs=pl.BlockSpec(tile, place),
            scratch_shapes=[pltpu.VMEM(tile, F32), DMA],
        )(x)

    return function


def doubled(x):
    return 2 * x


def own(rows, cols=COLS, n=2):
    """Each of two devices has an array of this shape."""
    return {"mesh": {"i": n}, "args": (f"f32[{n * rows},{cols}]",)}


def running_sum(flaw):
    """All tiles are added up in one block of the result, which stays while the grid goes on."""

    def kernel(x_ref, o_ref, buffer, done):
        k = pl.program_id(0)
        copy = pltpu.make_async_copy(x_ref, buffer, done)
        copy.start()
        copy.wait()
        if flaw == "cleared_each_time":
            o_ref[...] = jnp.zeros(BLOCK)
        elif flaw != "not_cleared":
            pl.when(k == (1 if flaw == "cleared_late" else 0))(lambda: clear(o_ref))
        if flaw == "overwritten":
            o_ref[...] = buffer[...]
        else:
            o_ref[...] += buffer[...]

    def function(x):
        return pl.pallas_call(
            kernel,
            grid=(3 if flaw == "one_step_less" else 4,),
            out_shape=jax.ShapeDtypeStruct(BLOCK, F32),
            in_specs=[pl.BlockSpec(BLOCK, lambda k: (0 if flaw == "same_tile" else k, 0))],
            out_specs=pl.BlockSpec(BLOCK, lambda k: (0, 0)),
            scratch_shapes=[pltpu.VMEM(BLOCK, F32), DMA],
        )(x)

    return function


def clear(ref):
    ref[...] = jnp.zeros(ref.shape)


def sum_of_tiles(x):
    return jnp.sum(x.reshape(-1, *BLOCK), axis=0)


RUNNING_SUM = {
    "not_cleared": ("RS802", "the sum starts with what the block holds"),
    "cleared_each_time": ("RS801", "only the last tile is left"),
    "cleared_late": ("RS801", "the first tile is cleared away"),
    "overwritten": ("RS801", "each tile replaces the sum"),
    "one_step_less": ("RS801", "the last tile is not added"),
    "same_tile": ("RS801", "the first tile is added each time"),
}


def unused_operand(x, y):
    def kernel(x_ref, y_ref, o_ref, semaphores):
        shift_kernel(x_ref, o_ref, semaphores)

    return call(kernel, scratch=(DMA((2,)),))(x, y)


def noisy_kernel(x_ref, o_ref, sent, received):
    """Random bits come into the result."""
    i, n = lax.axis_index("i"), lax.axis_size("i")
    admit(lax.rem(i + n - 1, n))
    copy = push(x_ref, o_ref, sent, received, lax.rem(i + 1, n))
    copy.start()
    copy.wait()
    pltpu.prng_seed(i)
    o_ref[...] = o_ref[...] + pltpu.prng_random_bits(BLOCK).astype(F32)


CASES = (
    right("semaphores_400", with_semaphores(200, 200), "fewer than there are", expect=shifted, **ring(2)),
    wrong("semaphores_500", with_semaphores(500), "more than there are", "RS621", **ring(2)),
    wrong("semaphores_600", with_semaphores(200, 200, 200), "more than there are, together", "RS621", **ring(2)),
    right("semaphores_500_on_7x", with_semaphores(500), "fewer than there are", chip="TPU7x", **ring(2)),
    wrong("semaphores_4000_on_7x", with_semaphores(4000), "more than there are", "RS621", chip="TPU7x", **ring(2)),
    wrong("vmem_65", with_scratch(65 * MIB), "65 MiB of 64", "RS622", **ring(2)),
    wrong("vmem_65_together", with_scratch(30 * MIB, 35 * MIB), "65 MiB of 64", "RS622", **ring(2)),
    right("vmem_17", with_scratch(17 * MIB), "17 MiB of 64", **ring(2)),
    wrong("vmem_17_on_v4", with_scratch(17 * MIB), "17 MiB of 16", "RS622", chip="TPU v4", **ring(2)),
    wrong("vmem_17_in_a_scope", with_scope(17 * MIB), "17 MiB of 16", "RS622", chip="TPU v4", **ring(2)),
    right("hbm_operands", by_way_of_hbm, "not in VMEM", chip="TPU v4", **own(18432)),
    wrong(
        "vmem_blocks",
        tiled((5 * MIB * ROWS, COLS), 2, shape=(10 * MIB * ROWS, COLS)),
        "blocks of 5 MiB, two of each at a time",
        "RS622",
        chip="TPU v4",
        **own(10 * MIB * ROWS, n=1),
    ),
    *(
        right(
            f"hop_{by}_on_v5e",
            hop(by),
            "a power of two",
            chip="TPU v5e",
            expect=lambda x, by=by: shifted(x, by),
            **ring(8),
        )
        for by in (1, 2, 4, 7)
    ),
    *(
        right(f"hop_{by}_on_v5e", hop(by), "no power of two", chip="TPU v5e", codes=frozenset({"RS903"}), **ring(8))
        for by in (3, 5)
    ),
    right("hop_3_on_v5p", hop(3), "any hop will do", expect=lambda x: shifted(x, 3), **ring(8)),
    right("tiles", tiled(BLOCK, 3, shape=(24, COLS)), "they divide", expect=doubled, **own(24)),
    right(
        "tiles_rounded_up",
        tiled(BLOCK, 3, shape=(20, COLS)),
        "the last tile is over the end, where nothing is stored",
        codes=frozenset({"RS904"}),
        expect=doubled,
        **own(20),
    ),
    wrong("tiles_rounded_down", tiled(BLOCK, 2, shape=(20, COLS)), "4 rows are left out", "RS435", **own(20)),
    wrong("tiles_too_few", tiled(BLOCK, 2, shape=(24, COLS)), "8 rows are left out", "RS435", **own(24)),
    wrong(
        "columns_rounded_down",
        tiled(BLOCK, 2, shape=(8, 320), place=lambda k: (0, k)),
        "64 columns are left out",
        "RS435",
        **own(16),
    ),
    wrong(
        "tiles_on_one_another",
        tiled(BLOCK, 3, shape=(24, COLS), place=lambda k: (0, 0)),
        "all tiles are stored in the first place",
        "RS435",
        **own(24),
    ),
    wrong(
        "every_other_tile",
        tiled(BLOCK, 2, shape=(24, COLS), place=lambda k: (2 * k, 0)),
        "every other tile is left out",
        "RS435",
        **own(16),
    ),
    wrong(
        "tiles_backward",
        tiled(BLOCK, 3, shape=(24, COLS), place=lambda k: (2 - k, 0)),
        "tiles are stored in reverse order",
        "RS801",
        expect=doubled,
        **own(24),
    ),
    right("running_sum", running_sum(None), "cleared at the first step", expect=sum_of_tiles, **own(32)),
    *flawed("running_sum", running_sum, RUNNING_SUM, expect=sum_of_tiles, **own(32)),
    right(
        "unused_operand",
        unused_operand,
        "advice only",
        codes=frozenset({"RS902"}),
        mesh={"i": 2},
        args=("f32[16,128]", "f32[16,128]"),
        in_specs=("i", "i"),
        expect=lambda x, y: shifted(x),
    ),
    right("unused_scratch", with_scratch(1), "advice only", codes=frozenset({"RS902"}), expect=shifted, **ring(2)),
    right(
        "unused_counter",
        call(shift_kernel, scratch=(COUNTER, DMA((2,)))),
        "advice only",
        codes=frozenset({"RS902"}),
        expect=shifted,
        **ring(2),
    ),
    undecided(
        "random_bits", call(noisy_kernel, scratch=(DMA, DMA)), "nobody knows them", "RS703", expect=shifted, **ring(2)
    ),
    right("random_bits_not_checked", call(noisy_kernel, scratch=(DMA, DMA)), "free of races", **ring(2)),
)
