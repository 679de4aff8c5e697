"""Kernels in HBM with a pipeline inside, and functions that call several kernels one after the other."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import (
    COLS,
    COUNTER,
    DMA,
    call,
    gathered,
    meet,
    neighbours,
    push,
    right,
    shifted,
    tell,
    undecided,
    wrong,
)

N = 4
ROWS = 32


def doubled_kernel(x_ref, o_ref, slots, own, sent, received, *, next_slot):
    """While a block goes on to the right, it is streamed through VMEM and doubled."""
    i, left, onward = neighbours()
    meet(left, onward)
    first = pltpu.make_async_copy(x_ref, slots.at[0], own)
    first.start()
    first.wait()

    def double(tile_ref, twice_ref):
        twice_ref[...] = 2 * tile_ref[...]

    tiles = pl.BlockSpec((8, COLS), lambda k: (k, 0))
    pipeline = pltpu.emit_pipeline(double, grid=(ROWS // 8,), in_specs=[tiles], out_specs=[tiles])

    @pl.loop(0, N)
    def _(s):
        copy = push(slots.at[s], slots.at[next_slot(s)], sent, received.at[s], onward)
        pl.when(s < N - 1)(copy.start)
        pipeline(slots.at[s], o_ref.at[lax.rem(i + N - s, N)])
        pl.when(s < N - 1)(copy.wait)


def doubled(next_slot):
    def kernel(*refs):
        doubled_kernel(*refs, next_slot=next_slot)

    def function(x):
        hbm = pl.BlockSpec(memory_space=pltpu.HBM)
        whole = jax.ShapeDtypeStruct((N, ROWS, COLS), jnp.float32)
        return pl.pallas_call(
            kernel,
            out_shape=[whole, whole],
            in_specs=[hbm],
            out_specs=[hbm, hbm],
            scratch_shapes=[DMA, DMA, DMA((N,))],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)[0]

    return function


def shift_kernel(x_ref, o_ref, sent, received, *, forward):
    _, left, onward = neighbours()
    source, target = (left, onward) if forward else (onward, left)
    barrier = pltpu.get_barrier_semaphore()
    tell(barrier, source)
    pl.semaphore_wait(barrier, 1)
    copy = push(x_ref, o_ref, sent, received, target)
    copy.start()
    copy.wait()


def shift(x, *, forward, number):
    def kernel(*refs):
        shift_kernel(*refs, forward=forward)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[DMA, DMA],
        compiler_params=pltpu.CompilerParams(collective_id=number),
    )(x)


def there_and_back(x):
    return shift(shift(x, forward=True, number=0), forward=False, number=1)


def there_and_back_on_one_barrier(x):
    return shift(shift(x, forward=True, number=0), forward=False, number=0)


def twice_the_same(x):
    return shift(shift(x, forward=True, number=0), forward=True, number=0)


def in_a_loop(x):
    return lax.fori_loop(0, 100, lambda _, y: shift(y, forward=True, number=0), x)


def two_in_a_loop(x):
    return lax.fori_loop(0, 100, lambda _, y: there_and_back(y), x)


def as_long_as_it_is_small(x):
    return lax.while_loop(lambda y: y[0, 0] < 1, lambda y: shift(y, forward=True, number=0), x)


def idle_kernel(x_ref, o_ref, buffer, done, idle):
    copy = pltpu.make_async_copy(x_ref, buffer, done)
    copy.start()
    copy.wait()
    o_ref[...] = buffer[...]


def told_by_table(x):
    """The neighbour comes out of a table in scalar memory that the caller computes."""

    def kernel(table_ref, x_ref, o_ref, sent, received):
        barrier = pltpu.get_barrier_semaphore()
        tell(barrier, table_ref[0])
        pl.semaphore_wait(barrier, 1)
        copy = push(x_ref, o_ref, sent, received, table_ref[1])
        copy.start()
        copy.wait()

    i = lax.axis_index("i")
    table = jnp.stack([(i - 1) % N, (i + 1) % N])
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)],
        scratch_shapes=[DMA, DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(table, x)


def told_by_neighbour_kernel(x_ref, o_ref, place, told, sent, received):
    """Where to send comes from another device: nobody knows before it runs."""
    i, left, onward = neighbours()
    meet(left, onward)
    place[0] = i
    told[0] = i
    note = push(place, told, sent, received, onward)
    note.start()
    note.wait()
    copy = push(x_ref, o_ref, sent, received, told[0])
    copy.start()
    copy.wait()


def same(x):
    return x


def twice_gathered(x):
    return 2 * gathered(x)


TALL = {"args": (f"f32[{N * ROWS},{COLS}]",)}
VMEM = pltpu.VMEM((8, COLS), jnp.float32)
PLACE = pltpu.SMEM((1,), jnp.int32)

CASES = (
    right(
        "pipeline_in_hbm",
        doubled(lambda s: s + 1),
        "each block comes into a slot of its own",
        expect=twice_gathered,
        **TALL,
    ),
    wrong(
        "pipeline_in_hbm_on_one_slot",
        doubled(lambda s: s),
        "a block comes into the slot that the pipeline reads",
        "RS401",
        line="pipeline(slots.at[s]",
        **TALL,
    ),
    right("there_and_back", there_and_back, "two kernels, each with a barrier of its own", expect=same),
    wrong(
        "there_and_back_on_one_barrier",
        there_and_back_on_one_barrier,
        "a signal for the second kernel is taken for one of the first: it comes from the other side",
        "RS525",
    ),
    right("twice_the_same", twice_the_same, "the same kernel twice on one barrier", expect=lambda x: shifted(x, 2)),
    right("in_a_loop", in_a_loop, "the same kernel again and again"),
    undecided("two_in_a_loop", two_in_a_loop, "two kernels, and their order round by round"),
    undecided("as_long_as_it_is_small", as_long_as_it_is_small, "how often hangs on data"),
    right("idle_memory", call(idle_kernel, barrier=False, scratch=(VMEM, DMA, COUNTER)), "advice only", expect=same),
    right("told_by_table", told_by_table, "what the caller computes from the axis index is known", expect=shifted),
    undecided(
        "told_by_neighbour",
        call(told_by_neighbour_kernel, scratch=(PLACE, PLACE, DMA, DMA)),
        "the target of a DMA is what another device sent",
        line="copy.start()",
    ),
)
