"""All-gathers and reduce-scatters around a ring, with too little and enough between the steps."""

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
    blocks,
    call,
    gathered,
    meet,
    neighbours,
    push,
    right,
    scattered,
    shifted,
    tell,
    wrong,
)

N = 4


def gather_kernel(x_ref, o_ref, own, sent, received, *, shared):
    """At step s, the block that came at step s - 1 goes on to the right."""
    i, left, onward = neighbours()
    meet(left, onward)
    first = pltpu.make_async_copy(x_ref, o_ref.at[i], own)
    first.start()
    first.wait()

    @pl.loop(0, N - 1)
    def _(s):
        block = lax.rem(i + N - s, N)
        k = 0 if shared else s
        copy = push(o_ref.at[block], o_ref.at[block], sent, received.at[k], onward)
        copy.start()
        copy.wait()


def gather(*, shared):
    def kernel(*refs):
        gather_kernel(*refs, shared=shared)

    semaphores = (DMA, DMA, DMA((1 if shared else N - 1,)))
    return call(kernel, out=(N, *BLOCK), scratch=semaphores)


def unrolled_gather_kernel(x_ref, o_ref, sent, received):
    i, left, onward = neighbours()
    meet(left, onward)
    o_ref[i] = x_ref[...]
    for s in range(N - 1):
        block = o_ref.at[lax.rem(i + N - s, N)]
        copy = push(block, block, sent, received.at[s], onward)
        copy.start()
        copy.wait()


def scatter_kernel(x_ref, o_ref, slots, sent, received, *, count):
    """Sums travel to the right; the block that comes at step s has i as its (N - 2 - s)-th next owner."""
    i, left, onward = neighbours()
    meet(left, onward)
    o_ref[...] = x_ref[lax.rem(i + N - 1, N)]
    for s in range(N - 1):
        k = s % count
        copy = push(o_ref, slots.at[k], sent.at[k], received.at[k], onward)
        copy.start()
        copy.wait()
        o_ref[...] = slots[k] + x_ref[lax.rem(i + 2 * N - 2 - s, N)]


def scatter(*, count):
    def kernel(*refs):
        scatter_kernel(*refs, count=count)

    return call(kernel, scratch=(blocks(count), DMA((count,)), DMA((count,))))


def scatter_with_credits_kernel(x_ref, o_ref, slots, sent, received, free):
    """Two slots; whoever has emptied one says so to the left, where it may be filled again."""
    i, left, onward = neighbours()
    meet(left, onward)
    o_ref[...] = x_ref[lax.rem(i + N - 1, N)]

    @pl.loop(0, N - 1)
    def _(s):
        k = lax.rem(s, 2)

        @pl.when(s >= 2)
        def _():
            pl.semaphore_wait(free, 1)

        copy = push(o_ref, slots.at[k], sent.at[k], received.at[k], onward)
        copy.start()
        copy.wait()
        o_ref[...] = slots[k] + x_ref[lax.rem(i + 2 * N - 2 - s, N)]

        @pl.when(s < N - 3)
        def _():
            tell(free, left)


def split_columns_kernel(x_ref, o_ref, sent, received):
    """Half of each row goes left, half goes right: no region is one piece of memory."""
    _, left, onward = neighbours()
    meet(left, onward)
    low, high = pl.ds(0, COLS // 2), pl.ds(COLS // 2, COLS // 2)
    copies = [
        push(x_ref.at[:, low], o_ref.at[:, low], sent.at[0], received.at[0], onward),
        push(x_ref.at[:, high], o_ref.at[:, high], sent.at[1], received.at[1], left),
    ]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.wait()


def overlapping_columns_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    meet(left, onward)
    low, high = pl.ds(0, COLS // 2 + 32), pl.ds(COLS // 2 - 32, COLS // 2 + 32)
    copies = [
        push(x_ref.at[:, low], o_ref.at[:, low], sent.at[0], received.at[0], onward),
        push(x_ref.at[:, high], o_ref.at[:, high], sent.at[1], received.at[1], left),
    ]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.wait()


def halves_apart(x):
    return jnp.where(jnp.arange(COLS) < COLS // 2, shifted(x), shifted(x, -1))


OPERAND = {"args": (f"f32[{N * N},{ROWS},{COLS}]",)}

CASES = (
    wrong(
        "gather_one_receive_semaphore",
        gather(shared=True),
        "a block of a later step can satisfy the wait of an earlier one",
        "RS405",
        line="copy.start()",
    ),
    right("gather", gather(shared=False), "one receive semaphore for each step", expect=gathered),
    right(
        "gather_unrolled",
        call(unrolled_gather_kernel, out=(N, *BLOCK), scratch=(DMA, DMA((N - 1,)))),
        "one receive semaphore for each step, and the loop written out",
        expect=gathered,
    ),
    wrong(
        "scatter_one_slot",
        scatter(count=1),
        "the next sum can land before the last one is added",
        "RS401",
        line="copy.start()",
        **OPERAND,
    ),
    wrong("scatter_two_slots", scatter(count=2), "three devices can be three steps apart", "RS401", **OPERAND),
    right("scatter", scatter(count=N - 1), "a slot for each step", expect=scattered, **OPERAND),
    right(
        "scatter_credits",
        call(scatter_with_credits_kernel, scratch=(blocks(2), DMA((2,)), DMA((2,)), COUNTER)),
        "a slot is filled again only once it is free",
        expect=scattered,
        **OPERAND,
    ),
    right(
        "split_columns",
        call(split_columns_kernel, scratch=(DMA((2,)), DMA((2,)))),
        "the halves do not touch",
        expect=halves_apart,
    ),
    wrong(
        "overlapping_columns",
        call(overlapping_columns_kernel, scratch=(DMA((2,)), DMA((2,)))),
        "both neighbours write the columns in the middle",
        "RS401",
        line="copy.start()",
    ),
)
