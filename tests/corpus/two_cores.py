"""Grids that two cores of a device share out: what each has for itself, and where they meet."""

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
    flawed,
    meet,
    neighbours,
    push,
    right,
    shifted,
    tell,
)
from corpus.case import undecided as not_decided

PARALLEL = ("parallel",)


def of_step(*_):
    """The step of the first dimension has its own block of rows."""
    return pl.BlockSpec(BLOCK, lambda step, *_: (step, 0))


def of_every_other():
    return pl.BlockSpec(BLOCK, lambda step: (step % 2, 0))


def two(
    kernel,
    *scratch,
    steps=2,
    grid=None,
    semantics=PARALLEL,
    in_spec=None,
    out_spec=None,
    out=None,
    barrier=True,
    **options,
):
    """The function of a kernel with a grid; a device has a block for each step, and its result has `out` rows."""
    grid = (steps,) if grid is None else grid

    def function(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape if out is None else (out, COLS), x.dtype),
            grid=grid,
            in_specs=[of_step() if in_spec is None else in_spec],
            out_specs=of_step() if out_spec is None else out_spec,
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(collective_id=0 if barrier else None, dimension_semantics=semantics),
            **options,
        )(x)

    return function


def on(ranks, steps=2, cores=2):
    return {"mesh": {"i": ranks}, "args": (f"f32[{ranks * steps * ROWS},{COLS}]",), "cores": cores}


HBM = pl.BlockSpec(memory_space=pltpu.HBM)
VMEM = pl.BlockSpec(memory_space=pltpu.VMEM)
SLOT = pltpu.VMEM(BLOCK, jnp.float32)


# -- each core in a ring of its own


def shift_kernel(x_ref, o_ref, slot, sent, received):
    """Each step sends its block on; on two cores each has its slot, its semaphores, and its barrier."""
    _, left, onward = neighbours()
    admit(left)
    copy = push(x_ref, slot, sent, received, onward)
    copy.start()
    copy.wait()
    o_ref[...] = slot[...]


def unguarded_kernel(x_ref, o_ref, slots, sent, received):
    """The barrier is passed by the first step only, and so by the first core."""
    _, left, onward = neighbours()
    step = pl.program_id(0)
    pl.when(step == 0)(lambda: meet(left, onward))
    copy = push(x_ref, slots.at[step], sent.at[step], received.at[step], onward)
    copy.start()
    copy.wait()
    o_ref[...] = slots[step]


def to_other_kernel(x_ref, o_ref, ready):
    """The first step tells the neighbour, and the second waits for it: on the other core nobody ever tells it."""
    _, left, onward = neighbours()

    @pl.when(pl.program_id(0) == 0)
    def _():
        meet(left, onward)
        tell(ready, onward)

    pl.when(pl.program_id(0) == 1)(lambda: pl.semaphore_wait(ready, 1))
    o_ref[...] = x_ref[...]


def kept_kernel(x_ref, o_ref, slot, sent, received):
    """What has come in the first step is the result of both, and lies in the first core's memory."""
    _, left, onward = neighbours()

    @pl.when(pl.program_id(0) == 0)
    def _():
        admit(left)
        copy = push(x_ref, slot, sent, received, onward)
        copy.start()
        copy.wait()

    o_ref[...] = slot[...]


# -- both in HBM


def place(ref, start, rows=ROWS):
    return ref.at[pl.ds(start, rows)]


def hbm_kernel(step_of):
    """Each step copies its block into HBM; step_of: where it begins there."""

    def kernel(x_ref, o_ref, done):
        copy = pltpu.make_async_copy(x_ref, place(o_ref, step_of(pl.program_id(0))), done)
        copy.start()
        copy.wait()

    return kernel


def remote_kernel(step_of):
    """Each step sends its block straight into the neighbour's result in HBM."""

    def kernel(x_ref, o_ref, sent, received):
        _, left, onward = neighbours()
        admit(left)
        copy = push(x_ref, place(o_ref, step_of(pl.program_id(0))), sent, received, onward)
        copy.start()
        copy.wait()

    return kernel


def shared_read_kernel(x_ref, o_ref, whole, done):
    """Both read the same operand in HBM, each into its own VMEM."""
    copy = pltpu.make_async_copy(x_ref, whole, done)
    copy.start()
    copy.wait()
    o_ref[...] = whole[pl.ds(pl.multiple_of(pl.program_id(0) * ROWS, ROWS), ROWS)]


def in_place_kernel(x_ref, o_ref, slot, done):
    """The result is the operand: the first step reads the block that the second writes."""
    del x_ref
    step = pl.program_id(0)
    copy = pltpu.make_async_copy(place(o_ref, ROWS - step * ROWS), slot, done)
    copy.start()
    copy.wait()
    back = pltpu.make_async_copy(slot, place(o_ref, step * ROWS), done)
    back.start()
    back.wait()


def whole_kernel(x_ref, o_ref, sent):
    """Each core writes its part of a result that is stored as a whole."""
    copy = pltpu.make_async_copy(x_ref, place(o_ref, pl.program_id(0) * ROWS), sent)
    copy.start()
    copy.wait()


# -- what is not known


def to_core_kernel(x_ref, o_ref, ready):
    _, left, onward = neighbours()
    meet(left, onward)
    pl.semaphore_signal(ready, 1, device_id={"i": onward}, device_id_type=pl.DeviceIdType.MESH, core_index=0)
    pl.semaphore_wait(ready, 1)
    o_ref[...] = x_ref[...]


def early(x):
    """Rank 1's first kernel ends when rank 0 is in its second one."""

    def waits_kernel(x_ref, o_ref):
        pl.when(lax.axis_index("i") == 1)(lambda: pl.semaphore_wait(pltpu.get_barrier_semaphore(), 1))
        o_ref[...] = x_ref[...]

    def tells_kernel(x_ref, o_ref):
        pl.when(lax.axis_index("i") == 0)(lambda: tell(pltpu.get_barrier_semaphore(), 1))
        o_ref[...] = x_ref[...]

    return two(tells_kernel)(two(waits_kernel)(x))


SHIFT = SLOT, DMA, DMA
BUILD = {
    "barrier_of_one": two(unguarded_kernel, blocks(2), DMA((2,)), DMA((2,))),
    "signal_to_the_other": two(to_other_kernel, COUNTER),
    "memory_of_the_other": two(kept_kernel, *SHIFT),
    "block_of_both": two(shift_kernel, *SHIFT, out_spec=pl.BlockSpec(BLOCK, lambda step: (0, 0)), out=ROWS),
    "blocks_of_both": two(shift_kernel, *SHIFT, steps=4, in_spec=of_every_other(), out_spec=of_every_other()),
    "hbm_of_both": two(hbm_kernel(lambda step: 0 * step), DMA, out_spec=HBM, out=ROWS, barrier=False),
    "hbm_overlaps": two(hbm_kernel(lambda step: step * 4), DMA, out_spec=HBM, out=12, barrier=False),
    "remote_overlaps": two(remote_kernel(lambda step: step * 4), DMA, DMA, out_spec=HBM, out=12),
    "in_place": two(in_place_kernel, SLOT, DMA, in_spec=HBM, out_spec=HBM, barrier=False, input_output_aliases={0: 0}),
    "whole_result": two(whole_kernel, DMA, out_spec=VMEM, barrier=False),
}
WRONG = flawed(
    "two_cores",
    BUILD.__getitem__,
    {
        "barrier_of_one": ("RS402", "the second cores never meet, and send to each other", "copy.start()"),
        "signal_to_the_other": ("RS501", "a signal goes to the same core of the other device", "semaphore_wait"),
        "memory_of_the_other": ("RS802", "VMEM is a core's own: the second core's slot is never written", "slot["),
        "block_of_both": ("RS407", "both cores store the one block of the result", "return pl.pallas_call("),
        "blocks_of_both": ("RS407", "both cores store both blocks of the result", "return pl.pallas_call("),
        "hbm_of_both": ("RS407", "both cores write the first block in HBM", "copy.start()"),
        "hbm_overlaps": ("RS407", "the parts that the cores write in HBM overlap", "copy.start()"),
        "remote_overlaps": ("RS407", "the cores of a neighbour write overlapping parts in HBM", "copy.start()"),
        "in_place": ("RS407", "a core reads in HBM what the other one writes", ".start()"),
        "whole_result": ("RS407", "each core stores all of a result, half of which is meaningless", "pl.pallas_call("),
    },
    **on(4),
)

CASES = (
    *(
        right(f"two_cores_shift_{n}", two(shift_kernel, *SHIFT), "two rings", expect=shifted, **on(n))
        for n in (2, 3, 4)
    ),
    right("two_cores_four_steps", two(shift_kernel, *SHIFT, steps=4), "two each, in order", expect=shifted, **on(3, 4)),
    right(
        "two_cores_two_dimensions",
        two(shift_kernel, *SHIFT, grid=(2, 2), semantics=("parallel", "arbitrary")),
        "each core shifts its block twice",
        expect=shifted,
        **on(4),
    ),
    right(
        "two_cores_hbm_parts",
        two(hbm_kernel(lambda step: step * ROWS), DMA, out_spec=HBM, barrier=False),
        "each core has its part of the result",
        expect=lambda x: x,
        **on(2),
    ),
    right(
        "two_cores_remote_parts",
        two(remote_kernel(lambda step: step * ROWS), DMA, DMA, out_spec=HBM),
        "each core has its part of the neighbour's result",
        expect=shifted,
        **on(4),
    ),
    right(
        "two_cores_read_both",
        two(shared_read_kernel, pltpu.VMEM((2 * ROWS, COLS), jnp.float32), DMA, in_spec=HBM, barrier=False),
        "two reads do not race",
        expect=lambda x: x,
        **on(2),
    ),
    right(
        "two_cores_in_sequence",
        two(kept_kernel, *SHIFT, semantics=("arbitrary",)),
        "steps of a dimension that is not parallel run on one core",
        **on(4),
    ),
    *WRONG,
    not_decided("cores_not_told", two(shift_kernel, *SHIFT), "nobody says how many cores there are", **on(4, cores=1)),
    not_decided("two_cores_three_steps", two(shift_kernel, *SHIFT, steps=3), "how three are halved", **on(4, 3)),
    not_decided(
        "two_cores_two_parallel",
        two(shift_kernel, *SHIFT, grid=(2, 2), semantics=("parallel", "parallel")),
        "which of them is cut in two",
        **on(4),
    ),
    not_decided("two_cores_named", two(to_core_kernel, COUNTER), "a signal that names a core", **on(4)),
    not_decided("two_cores_early", early, "a core might wait for the next kernel, and the next kernel for it", **on(2)),
)
