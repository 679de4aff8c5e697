"""Blocks, views and aliases: how a kernel's memory can be given, and what an audit does not follow."""

import jax
import jax.numpy as jnp
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
    o_ref.reshape(2, 4, 128)[0] = x_ref[pl.ds(0, 4)]


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
    undecided("in_place_vmem", in_place(pltpu.VMEM, waits=True), "one window or two"),
    right("every_other", local(every_other_kernel), "slices with a stride"),
    wrong("every_other_too_far", local(every_other_too_far_kernel, pltpu.SMEM((1,), jnp.int32)), "3 + 6 > 7", "RS431"),
    undecided("masked", local(masked_kernel), "a mask hangs on data"),
    undecided("bitcast", local(bitcast_kernel), "a view in another dtype"),
    undecided("reshaped", local(reshaped_kernel), "a view in another shape"),
    undecided("patient", local(patient_kernel, COUNTER), "a wait that takes nothing off"),
)
