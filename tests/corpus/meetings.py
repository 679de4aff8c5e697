"""A shift after barriers of every form, and a ring where all meet after each step."""

from functools import partial

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import COUNTER, DMA, admit, blocks, call, flawed, push, right, ring, shifted, summed, tell, wrong


def around():
    i, n = lax.axis_index("i"), lax.axis_size("i")
    return i, lax.rem(i + n - 1, n), lax.rem(i + 1, n)


def shift_after(barrier):
    """By one, after a barrier of whatever form."""

    def kernel(x_ref, o_ref, sent, received):
        i, left, onward = around()
        barrier(i, left, onward)
        copy = push(x_ref, o_ref, sent, received, onward)
        copy.start()
        copy.wait()

    return call(kernel, scratch=(DMA, DMA))


def both_neighbours(i, left, onward):
    admit(left, onward, targets=2)


def both_neighbours_twice(i, left, onward):
    """The second time round, no early signal is left to be mistaken."""
    both_neighbours(i, left, onward)
    both_neighbours(i, left, onward)


def everybody(i, left, onward):
    n = lax.axis_size("i")
    admit(*(lax.rem(i + d, n) for d in range(1, n)), targets=n - 1)


def everybody_and_oneself(i, left, onward):
    n = lax.axis_size("i")
    admit(*(lax.rem(i + d, n) for d in range(n)), targets=n)


def through_the_first(i, left, onward):
    """All report to device 0, which then lets all go on."""
    barrier = pltpu.get_barrier_semaphore()

    @pl.when(i == 0)
    def _():
        pl.semaphore_wait(barrier, lax.axis_size("i") - 1)
        for device in range(1, lax.axis_size("i")):
            tell(barrier, device)

    @pl.when(i > 0)
    def _():
        tell(barrier, 0)
        pl.semaphore_wait(barrier, 1)


def around_the_ring(i, left, onward):
    """A token goes around from device 0 and comes back: all have entered. A second round tells everyone so."""
    barrier = pltpu.get_barrier_semaphore()
    for _ in range(2):
        pl.when(i == 0)(lambda: tell(barrier, onward))
        pl.semaphore_wait(barrier, 1)
        pl.when(i > 0)(lambda: tell(barrier, onward))


def once_around_the_ring(i, left, onward):
    """A token goes around once: whoever has it knows of those before, not of the one after."""
    barrier = pltpu.get_barrier_semaphore()
    pl.when(i == 0)(lambda: tell(barrier, onward))
    pl.semaphore_wait(barrier, 1)
    pl.when(i > 0)(lambda: tell(barrier, onward))


def nobody_lets_go(i, left, onward):
    """All report to device 0, which tells nobody."""
    barrier = pltpu.get_barrier_semaphore()
    pl.when(i > 0)(lambda: tell(barrier, 0))
    pl.when(i == 0)(lambda: pl.semaphore_wait(barrier, lax.axis_size("i") - 1))


RIGHT_BARRIERS = (
    (both_neighbours, (2, 3, 4)),
    (both_neighbours_twice, (4, 5, 6)),
    (everybody, (3, 5)),
    (everybody_and_oneself, (3, 5)),
    (through_the_first, (2, 3, 5)),
    (around_the_ring, (2, 3, 4)),
)


def reduce_in_one_slot(flaw, *, n):
    """Every block travels the whole ring; all meet after each step, so one slot to receive in is enough."""

    def kernel(x_ref, o_ref, mine, came, sent, received, met):
        i, left, onward = around()
        mine[0] = x_ref[...]
        o_ref[...] = x_ref[...]
        if flaw == "signalled_too_early":
            admit(left)
        else:
            everybody(i, left, onward)
        for s in range(n - 1):
            copy = push(mine.at[0], came.at[0], sent, received, onward)
            copy.start()
            copy.wait()
            o_ref[...] += came[0]
            mine[0] = came[0]
            if s < n - 2 and flaw != "not_met":
                others = [lax.rem(i + d, n) for d in range(1, n)]
                for other in others if flaw != "met_by_some" else others[:1]:
                    tell(met, other)
                pl.semaphore_wait(met, len(others) if flaw != "met_by_some" else 1)

    return call(kernel, scratch=(blocks(1), blocks(1), DMA, DMA, COUNTER))


MEETING = {
    "signalled_too_early": ("RS503", "those who are told that a step is over may not have entered"),
    "not_met": ("RS401", "the next block can come before this one is read"),
    "met_by_some": ("RS401", "each hears of the device on its left, not of the one that it writes to"),
}


CASES = (
    *(
        right(f"barrier_{barrier.__name__}_{n}", shift_after(barrier), "strong enough", expect=shifted, **ring(n))
        for barrier, sizes in RIGHT_BARRIERS
        for n in sizes
    ),
    *(
        wrong(
            f"barrier_both_neighbours_{n}", shift_after(both_neighbours), "too weak for that many", "RS402", **ring(n)
        )
        for n in (5, 6)
    ),
    wrong(
        "barrier_once_around",
        shift_after(once_around_the_ring),
        "nobody knows of the next one",
        "RS524",
        **ring(4),
    ),
    wrong(
        "barrier_nobody_lets_go",
        shift_after(nobody_lets_go),
        "only device 0 knows that all have entered",
        "RS402",
        **ring(4),
    ),
    *(
        right(
            f"reduce_in_one_slot_{n}",
            reduce_in_one_slot(None, n=n),
            "all have read their block before the next one is sent",
            expect=summed,
            **ring(n),
        )
        for n in (2, 3, 4)
    ),
    *flawed("reduce_in_one_slot_4", partial(reduce_in_one_slot, n=4), MEETING, **ring(4)),
)
