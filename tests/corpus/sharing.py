"""Functions that call several kernels, with one collective_id for all or one for each."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, COLS, DMA, ROWS, admit, push, right, ring, shifted, undecided, wrong


def called(kernel, x, *, number, out=None, scratch):
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(out or x.shape, x.dtype),
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(collective_id=number),
    )(x)


def shift(x, by=1, number=0):
    """Each block goes `by` places on; whoever is written to gives leave."""

    def kernel(x_ref, o_ref, sent, received):
        i, n = lax.axis_index("i"), lax.axis_size("i")
        admit(lax.rem(i + 2 * n - by, n))
        copy = push(x_ref, o_ref, sent, received, lax.rem(i + n + by, n))
        copy.start()
        copy.wait()

    return called(kernel, x, number=number, scratch=[DMA, DMA])


def gather(x, by=1, number=0):
    """An all-gather around the ring, to the right (1) or to the left (-1)."""
    n = lax.axis_size("i")

    def kernel(x_ref, o_ref, sent, received):
        i = lax.axis_index("i")
        o_ref[i] = x_ref[...]
        admit(lax.rem(i + n - by, n))
        for s in range(n - 1):
            block = o_ref.at[lax.rem(i + n * n - by * s, n)]
            copy = push(block, block, sent, received.at[s], lax.rem(i + n + by, n))
            copy.start()
            copy.wait()

    return called(kernel, x, number=number, out=(n, *x.shape), scratch=[DMA, DMA((n - 1,))])


def in_turn(*steps):
    """Kernels one after the other. steps: (which kernel, by, number)"""

    def function(x):
        for kernel, by, number in steps:
            x = kernel(x, by, number)
        return x

    return function


def expected(*steps):
    def function(x):
        for kernel, by, _ in steps:
            x = shifted(x, by) if kernel is shift else lax.all_gather(x, "i")
        return x

    return function


def gathers_added(numbers):
    def function(x):
        return gather(x, 1, numbers[0]) + gather(x, -1, numbers[1])

    return function


def twice_gathered(x):
    return 2 * lax.all_gather(x, "i")


def with_other_work(x):
    """Whatever happens in between."""
    return shift(jnp.maximum(shift(2 * x) + 1, 0))


def in_a_scan(x):
    return lax.scan(lambda y, _: (shift(y), None), x, None, length=3)[0]


def first_stays_away(x):
    """Device 0 does not call the kernel."""
    return lax.cond(lax.axis_index("i") == 0, lambda y: y, shift, x)


def even_ones_the_other_way(x):
    """Even devices call one kernel and odd ones the other, each with a barrier of its own."""
    there, back = (lambda y: shift(y, 1, 0)), (lambda y: shift(y, -1, 1))
    return lax.cond(lax.axis_index("i") % 2 == 0, there, back, x)


def as_the_data_says(x):
    return lax.cond(x[0, 0] > 0, shift, lambda y: y, x)


def scatter_rows_then_gather(x, number):
    """A reduce-scatter and an all-gather in two kernels: an all-reduce. x: [N, rows, cols]"""
    n = lax.axis_size("i")

    def kernel(x_ref, o_ref, slots, sent, received):
        i = lax.axis_index("i")
        left = lax.rem(i + n - 1, n)
        o_ref[...] = x_ref[left]
        admit(left)
        for s in range(n - 1):
            copy = push(o_ref, slots.at[s], sent, received.at[s], lax.rem(i + 1, n))
            copy.start()
            copy.wait()
            o_ref[...] = slots[s] + x_ref[lax.rem(i + 2 * n - 2 - s, n)]

    scratch = [pltpu.VMEM((n - 1, *BLOCK), jnp.float32), DMA, DMA((n - 1,))]
    return gather(called(kernel, x, number=number, out=BLOCK, scratch=scratch))


SAME = {
    "shift_twice": (4, (shift, 1, 0), (shift, 1, 0)),
    "shift_three_times": (3, (shift, 1, 0), (shift, 1, 0), (shift, 1, 0)),
    "shift_then_gather": (4, (shift, 1, 0), (gather, 1, 0)),
    "shift_there_and_back_of_two": (2, (shift, 1, 0), (shift, -1, 0)),
}

OTHERS = {
    "shift_back": (4, (shift, 1, 0), (shift, -1, 0)),
    "shift_back_of_five": (5, (shift, 1, 0), (shift, -1, 0)),
    "shift_further": (4, (shift, 1, 0), (shift, 2, 0)),
    "shift_further_of_five": (5, (shift, 1, 0), (shift, 2, 0)),
    "shift_less_far_of_five": (5, (shift, 2, 0), (shift, 1, 0)),
    "shift_there_and_back_and_there": (4, (shift, 1, 0), (shift, -1, 0), (shift, 1, 0)),
    "shift_then_gather_back": (4, (shift, 1, 0), (gather, -1, 0)),
    "second_of_two_numbers": (4, (shift, 1, 0), (shift, 2, 1), (shift, -1, 1)),
}


def numbered(steps):
    return tuple((kernel, by, number) for number, (kernel, by, _) in enumerate(steps))


def one_ring(n, *steps):
    """A result that is gathered has one dimension more, which is not the ring's."""
    return {"expect": expected(*steps), **ring(n)}


STACKED = {"args": (f"f32[16,{ROWS},{COLS}]",)}

CASES = (
    *(
        right(f"sharing_{name}", in_turn(*steps), "all of them signal the same devices", **one_ring(n, *steps))
        for name, (n, *steps) in SAME.items()
    ),
    *(
        wrong(
            f"sharing_{name}",
            in_turn(*steps),
            "a signal of one kernel is taken for one of the other, which comes from elsewhere",
            "RS525",
            **ring(n),
        )
        for name, (n, *steps) in OTHERS.items()
    ),
    *(
        right(f"own_number_{name}", in_turn(*numbered(steps)), "each has its own barrier", **one_ring(n, *steps))
        for name, (n, *steps) in OTHERS.items()
    ),
    right(
        "sharing_shift_back_of_three",
        in_turn((shift, 1, 0), (shift, -1, 0)),
        "of three devices, each hears of both others before it goes on",
        expect=lambda x: x,
        codes=frozenset({"RS905"}),
        **ring(3),
    ),
    right(
        "sharing_gathers_both_ways",
        gathers_added((0, 0)),
        "nobody is through a gather before all have begun it, so no signal comes too soon",
        expect=twice_gathered,
        codes=frozenset({"RS905"}),
        **ring(4),
    ),
    right(
        "own_number_gathers_both_ways",
        gathers_added((0, 1)),
        "each has its own barrier",
        expect=twice_gathered,
        **ring(4),
    ),
    right(
        "sharing_with_other_work",
        with_other_work,
        "what is computed in between touches no barrier",
        expect=lambda x: shifted(jnp.maximum(shifted(2 * x) + 1, 0)),
        **ring(4),
    ),
    right("sharing_in_a_scan", in_a_scan, "one kernel", expect=lambda x: shifted(x, 3), **ring(4)),
    right(
        "sharing_scatter_then_gather",
        lambda x: scatter_rows_then_gather(x, 0),
        "an all-reduce of two kernels",
        expect=lambda x: lax.psum(x, "i"),
        **STACKED,
    ),
    wrong("sharing_first_stays_away", first_stays_away, "the others wait for it", "RS501", **ring(4)),
    wrong("sharing_even_ones_the_other_way", even_ones_the_other_way, "nobody meets anybody", "RS501", **ring(4)),
    undecided("sharing_as_the_data_says", as_the_data_says, "whether there is a kernel hangs on data", **ring(4)),
)
