"""Kernels whose course depends on data: an audit cannot tell, and has to say so, and where."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, COUNTER, DMA, admit, blocks, call, push, ring, shifted, tell, undecided, wrong

SCALARS = {"mesh": {"i": 4}, "args": ("i32[4]", "f32[32,128]"), "in_specs": ("i", "i")}


def around():
    i, n = lax.axis_index("i"), lax.axis_size("i")
    return i, lax.rem(i + n - 1, n), lax.rem(i + 1, n)


def with_table(kernel, *scratch):
    """The first operand is in scalar memory, and nobody knows what is in it."""

    def function(table, x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)],
            scratch_shapes=[*scratch, DMA, DMA],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(table, x)

    return function


def device_kernel(table_ref, x_ref, o_ref, sent, received):
    _, left, _ = around()
    admit(left)
    copy = push(x_ref, o_ref, sent, received, table_ref[0])
    copy.start()
    copy.wait()


def place_kernel(table_ref, x_ref, o_ref, slots, sent, received):
    _, left, onward = around()
    admit(left)
    copy = push(x_ref, slots.at[table_ref[0]], sent, received, onward)
    copy.start()
    copy.wait()
    o_ref[...] = slots[0]


def rounds_kernel(table_ref, x_ref, o_ref, sent, received):
    _, left, onward = around()
    admit(left)

    @pl.loop(0, table_ref[0])
    def _(_):
        copy = push(x_ref, o_ref, sent, received, onward)
        copy.start()
        copy.wait()


def units_kernel(table_ref, x_ref, o_ref, ready, sent, received):
    _, left, onward = around()
    admit(left)
    tell(ready, onward, table_ref[0])
    pl.semaphore_wait(ready, table_ref[0])
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()


def part_kernel(table_ref, x_ref, o_ref, sent, received):
    """Only a part that a table tells is sent."""
    _, left, onward = around()
    admit(left)
    part = pl.ds(table_ref[0], 4)
    copy = push(x_ref.at[part], o_ref.at[part], sent, received, onward)
    copy.start()
    copy.wait()


def only_if_large_kernel(x_ref, o_ref, sent, received):
    """Whether a block is worth sending hangs on what is in it."""
    _, left, onward = around()
    admit(left)
    copy = push(x_ref, o_ref, sent, received, onward)
    pl.when(jnp.max(x_ref[...]) > 0)(copy.start)
    pl.when(jnp.max(x_ref[...]) > 0)(copy.wait)


def until_small_kernel(x_ref, o_ref, sent, received):
    _, left, onward = around()
    admit(left)

    def step(rest):
        copy = push(x_ref, o_ref, sent, received, onward)
        copy.start()
        copy.wait()
        return rest / 2

    lax.while_loop(lambda rest: rest > 1, step, x_ref[0, 0])


def polling_kernel(x_ref, o_ref, sent, received):
    """Looks at the semaphore until something has come."""
    _, left, onward = around()
    admit(left)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    count = lax.while_loop(lambda count: count == 0, lambda _: pl.semaphore_read(received), jnp.int32(0))
    pl.when(count > 0)(copy.wait)


def wrong_whatever_comes_kernel(table_ref, x_ref, o_ref, sent, received):
    """What is computed may be unknown; that the barrier is missing is not."""
    _, _, onward = around()
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()
    o_ref[...] = jnp.where(table_ref[0] > 0, o_ref[...], 0)
    barrier = pltpu.get_barrier_semaphore()
    tell(barrier, onward)
    pl.semaphore_wait(barrier, 1)


def random_kernel(x_ref, o_ref, sent, received):
    _, left, onward = around()
    admit(left)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()
    pltpu.prng_seed(0)
    o_ref[...] = pltpu.prng_random_bits(BLOCK).astype(jnp.float32)


SCRATCH = (DMA, DMA)

CASES = (
    undecided("device_of_table", with_table(device_kernel), "who is written to", line="copy.start()", **SCALARS),
    undecided("place_of_table", with_table(place_kernel, blocks(2)), "where it is written to", **SCALARS),
    undecided("rounds_of_table", with_table(rounds_kernel), "how often", **SCALARS),
    undecided("units_of_table", with_table(units_kernel, COUNTER), "how many are signalled", **SCALARS),
    undecided("part_of_table", with_table(part_kernel), "which part is sent", **SCALARS),
    undecided("only_if_large", call(only_if_large_kernel, scratch=SCRATCH), "whether it is sent", **ring(4)),
    undecided("until_small", call(until_small_kernel, scratch=SCRATCH), "how often", **ring(4)),
    undecided("polling", call(polling_kernel, scratch=SCRATCH), "the count at some moment", **ring(4)),
    undecided(
        "random_result", call(random_kernel, scratch=SCRATCH), "random numbers", "RS703", expect=shifted, **ring(2)
    ),
    wrong("wrong_whatever_comes", with_table(wrong_whatever_comes_kernel), "no barrier before", "RS402", **SCALARS),
)
