"""Blocks, views and aliases: how a kernel's memory can be given, and what an audit does not follow."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, COUNTER, DMA, right, undecided, wrong

F32 = jnp.float32
SHAPE = jax.ShapeDtypeStruct(BLOCK, F32)


def copy_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def squeezed(x):
    block = pl.BlockSpec((None, *BLOCK), lambda k: (k, 0, 0))
    two = jax.ShapeDtypeStruct((2, *BLOCK), F32)
    return pl.pallas_call(copy_kernel, out_shape=two, grid=(2,), in_specs=[block], out_specs=block)(jnp.stack([x, x]))


def block_from_table(x):
    """The index map looks into scalar memory."""

    def kernel(table_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[pl.BlockSpec((4, 128), lambda k, table: (table[k], 0))],
        out_specs=pl.BlockSpec((4, 128), lambda k, table: (k, 0)),
    )
    return pl.pallas_call(kernel, out_shape=SHAPE, grid_spec=grid)(jnp.array([1, 0], jnp.int32), x)


def in_place(space, *, waits):
    """The result is the operand's memory; the kernel reads and writes it through VMEM."""

    def kernel(x_ref, o_ref, buffer, done):
        load = pltpu.make_async_copy(x_ref, buffer, done)
        store = pltpu.make_async_copy(buffer, o_ref, done)
        load.start()
        if waits:
            load.wait()
        store.start()
        store.wait()
        if not waits:
            load.wait()

    def function(x):
        spec = pl.BlockSpec(memory_space=space)
        return pl.pallas_call(
            kernel,
            out_shape=SHAPE,
            in_specs=[spec],
            out_specs=spec,
            scratch_shapes=[pltpu.VMEM(BLOCK, F32), DMA],
            input_output_aliases={0: 0},
        )(x)

    return function


def every_other_kernel(x_ref, o_ref):
    o_ref[pl.ds(0, 4, 2)] = x_ref[pl.ds(1, 4, 2)]
    o_ref[pl.ds(1, 4, 2)] = x_ref[pl.ds(0, 4, 2)]


def every_other_too_far_kernel(x_ref, o_ref, i_ref):
    i_ref[0] = 3
    o_ref[pl.ds(i_ref[0], 4, 2)] = x_ref[pl.ds(0, 4, 2)]


def masked_kernel(x_ref, o_ref):
    mask = jnp.broadcast_to(jnp.arange(128)[None] < 64, BLOCK)
    pltpu.store(o_ref, x_ref[...], mask=mask)


def bitcast_kernel(x_ref, o_ref):
    o_ref[...] = pltpu.bitcast(x_ref.bitcast(jnp.int32)[...], F32)


def reshaped_kernel(x_ref, o_ref):
    for half in range(2):
        o_ref.reshape(2, 4, 128)[half] = x_ref[pl.ds(4 * half, 4)]


def reshaped_in_part_kernel(x_ref, o_ref):
    o_ref.reshape(2, 4, 128)[0] = x_ref[pl.ds(0, 4)]


def reshaped_too_far_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]
    for half in range(3):
        o_ref.reshape(2, 4, 128).at[half + 0 * lax.axis_index("i")][...] = x_ref[pl.ds(0, 4)]


def reshaped_askew_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]
    o_ref.reshape(2, 4, 128)[:, pl.ds(0, 2)] = jnp.zeros((2, 2, 128))


def widened_kernel(x_ref, o_ref):
    def body(narrow, other, done):
        narrow[...] = jnp.zeros((16, 128), jnp.bfloat16)
        copy = pltpu.make_async_copy(narrow.bitcast(jnp.int32), other.bitcast(jnp.int32), done)
        copy.start()
        copy.wait()
        o_ref[...] = x_ref[...]

    pl.run_scoped(body, pltpu.VMEM((16, 128), jnp.bfloat16), pltpu.VMEM((16, 128), jnp.bfloat16), DMA)


def selected_kernel(x_ref, o_ref, a, b, done, copied, *, loaded=0):
    """One of two refs is copied, the other is still being loaded."""
    even = lax.rem(lax.axis_index("i"), 2)
    a[...] = x_ref[...]
    load = pltpu.make_async_copy(x_ref, b, done)
    load.start()
    copy = pltpu.make_async_copy(pl.select_ref(loaded + 0 * even, a, b), o_ref, copied)
    copy.start()
    copy.wait()
    load.wait()


def selected_too_soon_kernel(*refs):
    selected_kernel(*refs, loaded=1)


SELECTED = (pltpu.VMEM(BLOCK, F32), pltpu.VMEM(BLOCK, F32), DMA, DMA)


def counts_for_itself_kernel(x_ref, o_ref, ready):
    """What a device alone counts on is known."""
    pl.semaphore_signal(ready, 3)

    @pl.when(pl.semaphore_read(ready) == 3)
    def _():
        o_ref[...] = x_ref[...]

    pl.semaphore_wait(ready, pl.semaphore_read(ready))


def unequal_shapes_kernel(x_ref, o_ref, buffer, done):
    pltpu.make_async_copy(x_ref, buffer, done).start()
    pltpu.make_async_copy(x_ref, buffer, done).wait()
    o_ref[...] = x_ref[...]


def patient_for_ever_kernel(x_ref, o_ref, ready):
    pl.semaphore_signal(ready, 1)
    pl.semaphore_wait(ready, 1, decrement=False)
    o_ref[...] = x_ref[...]


def patient_kernel(x_ref, o_ref, ready):
    pl.semaphore_signal(ready, 1)
    pl.semaphore_wait(ready, 1, decrement=False)
    pl.semaphore_wait(ready, 1)
    o_ref[...] = x_ref[...]


def local(kernel, *scratch):
    return lambda x: pl.pallas_call(kernel, out_shape=SHAPE, scratch_shapes=scratch)(x)


def halves_swapped(x):
    return jnp.concatenate([x[4:], x[:4]])


CASES = (
    right("squeezed", squeezed, "a block with a dimension less than the array", expect=lambda x: jnp.stack([x, x])),
    right(
        "block_from_table", block_from_table, "blocks are copied by the grid, whichever they are", expect=halves_swapped
    ),
    right("in_place", in_place(pltpu.HBM, waits=True), "loaded before it is stored", expect=lambda x: x),
    right("in_place_any", in_place(pl.ANY, waits=True), "loaded before it is stored", expect=lambda x: x),
    wrong("in_place_too_soon", in_place(pltpu.HBM, waits=False), "stored while it is loaded", "RS404"),
    right("in_place_vmem", in_place(pltpu.VMEM, waits=True), "a window for each", expect=lambda x: x),
    right("every_other", local(every_other_kernel), "slices with a stride"),
    wrong("every_other_too_far", local(every_other_too_far_kernel, pltpu.SMEM((1,), jnp.int32)), "3 + 6 > 7", "RS431"),
    undecided("masked", local(masked_kernel), "a mask hangs on data"),
    right("bitcast", local(bitcast_kernel), "a view in another dtype"),
    right("reshaped", local(reshaped_kernel), "a view in another shape", expect=lambda x: x),
    wrong("reshaped_in_part", local(reshaped_in_part_kernel), "half of the result is not written", "RS435"),
    wrong("reshaped_too_far", local(reshaped_too_far_kernel), "there are two halves", "RS431"),
    undecided("reshaped_askew", local(reshaped_askew_kernel), "rows 0, 1, 4, 5 are no slice"),
    right("widened", local(widened_kernel), "rows 2 k and 2 k + 1 of bf16 are row k of 32 bits"),
    wrong("selected_too_soon", local(selected_too_soon_kernel, *SELECTED), "the one that is still loaded", "RS404"),
    right("selected", local(selected_kernel, *SELECTED), "the one that has been loaded", expect=lambda x: x),
    right("patient", local(patient_kernel, COUNTER), "a wait that takes nothing off"),
    wrong("patient_for_ever", local(patient_for_ever_kernel, COUNTER), "what is not taken off is left", "RS502"),
    right("counts_for_itself", local(counts_for_itself_kernel, COUNTER), "nobody else signals", expect=lambda x: x),
    wrong(
        "unequal_shapes", local(unequal_shapes_kernel, pltpu.VMEM((4, 256), F32), DMA), "(8, 128), (4, 256)", "RS432"
    ),
)
