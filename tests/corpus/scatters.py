"""Reduce-scatters around a ring: sums travel to the right through slots, with whatever can be wrong in that."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from corpus import barriers
from corpus.case import BLOCK, COUNTER, DMA, blocks, call, flawed, push, right, scattered, stacked, tell, wrong

SYNCHRONISATION = {
    **barriers.FLAWS,
    "negative": ("RS523", "the first device has no last one without the remainder", "semaphore_signal"),
    "send_wait_missing": ("RS401 RS403 RS502", "the sum is overwritten while it is sent"),
    "send_wait_late": ("RS401", "the sum is overwritten while it is sent"),
    "receive_wait_missing": ("RS404 RS502", "the slot is read before anything has come"),
    "receive_wait_late": ("RS404", "the slot is read before it is waited for"),
    "wait_before_start": ("RS501", "each waits for a sum that is sent after the wait"),
    "wait_for_half": ("RS505", "each wait is for half a block"),
    "one_semaphore": ("RS405", "a sum of a later step can satisfy the wait of an earlier one"),
    "one_slot": ("RS401", "the next sum can land before the last one is read"),
    "slots_cleared_after_barrier": ("RS406", "a sum may come before the slots are cleared"),
    "slot_past_the_end": ("RS431", "there are slots for the steps, and one more is asked for", "start"),
    "chunk_below_zero": ("RS431", "the chunk's index falls below zero without adding N", "x_ref[chunk]"),
    "one_stops_early": ("RS504", "the first device leaves out the last wait"),
}

VALUES = {
    "overwritten": ("RS801", "what comes is not added to"),
    "not_taken": ("RS801", "what comes is not added"),
    "twice": ("RS801", "the own term is added twice"),
    "wrong_chunk": ("RS801", "the own term of the chunk before"),
    "next_chunk": ("RS801", "the own term of the chunk after"),
    "own_forgotten": ("RS801", "the last own term is not added"),
    "first_forgotten": ("RS801", "the first own term is not sent"),
    "not_initialised": ("RS802", "the sum starts with what the memory holds"),
    "kept_on": ("RS801", "the sum that was sent is kept, so terms are added again"),
    "stale_slot": ("RS801", "the slot of the first step is read at every step"),
    "empty_slot": ("RS802", "a slot is read that nothing is sent to"),
    "shifted": ("RS801", "each device ends with the chunk of its neighbour"),
    "maximum": ("RS801", "the larger of the two instead of the sum"),
    "difference": ("RS801", "the own term is subtracted"),
    "averaged": ("RS801", "a mean is expected to be a sum"),
    "half_added": ("RS801", "only the upper half of each chunk is added up"),
    "first_chunk_only": ("RS801", "the own term is always that of chunk 0"),
    "one_step_less": ("RS801", "the last sum never travels"),
}


def scatter(flaw, *, n, slots_of=None):
    """Device i sends the sum of chunk i - 1 - s at step s, and adds its term of chunk i - 2 - s to what comes."""
    count = slots_of or (1 if flaw == "one_slot" else n - 1)

    def kernel(x_ref, o_ref, slots, sent, received):
        i = lax.axis_index("i")
        left, onward = (i - 1 if flaw == "negative" else lax.rem(i + n - 1, n)), lax.rem(i + 1, n)
        if flaw == "first_forgotten":
            o_ref[...] = jnp.zeros(BLOCK)
        elif flaw != "not_initialised":
            o_ref[...] = x_ref[lax.rem(i + n - (0 if flaw == "shifted" else 1), n)]

        def copy_at(s):
            k = s + 1 if flaw == "slot_past_the_end" else s % count
            return push(o_ref, slots.at[k], sent.at[k], received.at[0 if flaw == "one_semaphore" else k], onward)

        if flaw == "barrier_after_start":
            copy_at(0).start()
        barriers.admit(flaw, i, left, onward)
        if flaw == "slots_cleared_after_barrier":
            slots[...] = jnp.zeros(slots.shape)
        for s in range(n - 2 if flaw == "one_step_less" else n - 1):
            copy = copy_at(s)
            if flaw == "wait_before_start":
                copy.wait_recv()
            if s > 0 or flaw != "barrier_after_start":
                copy.start()
            if flaw == "wait_for_half":
                half = o_ref.at[pl.ds(0, 4)]
                copy = push(half, half, sent.at[s % count], received.at[s % count], onward)
            if flaw == "one_stops_early" and s == n - 2:
                pl.when(i != 0)(copy.wait_recv)
            elif flaw not in ("receive_wait_missing", "receive_wait_late", "wait_before_start"):
                copy.wait_recv()
            if flaw not in ("send_wait_missing", "send_wait_late"):
                copy.wait_send()
            add(flaw, n, i, s, x_ref, o_ref, slots, count)
            if flaw == "receive_wait_late":
                copy.wait_recv()
            if flaw == "send_wait_late":
                copy.wait_send()

    spare = 1 if flaw == "empty_slot" else 0
    scratch = (blocks(count + spare), DMA((count,)), DMA((count,)))
    return call(kernel, scratch=scratch, barrier=flaw != "without_barrier")


def add(flaw, n, i, s, x_ref, o_ref, slots, count):
    """What came at step s, and the own term of that chunk."""
    ahead = {"wrong_chunk": 1, "next_chunk": n - 1, "shifted": 1}.get(flaw, 0)
    chunk = lax.rem(i + 2 * n - 2 - s + ahead, n)
    chunk = {"chunk_below_zero": i - 2 - s, "first_chunk_only": 0}.get(flaw, chunk)
    own = x_ref[chunk]
    came = slots[{"stale_slot": 0, "empty_slot": count}.get(flaw, s % count)]
    total = came + own
    match flaw:
        case "overwritten":
            total = own
        case "not_taken":
            total = o_ref[...]
        case "twice":
            total = came + 2 * own
        case "own_forgotten" if s == n - 2:
            total = came
        case "kept_on":
            total = o_ref[...] + came + own
        case "not_initialised":
            total = o_ref[...] + own
        case "maximum":
            total = jnp.maximum(came, own)
        case "difference":
            total = came - own
        case "averaged":
            total = (came + own) / 2
        case "half_added":
            o_ref[pl.ds(0, 4)] = total[:4]
            return
    o_ref[...] = total


CREDITS = {
    "never_given": ("RS501", "a credit is waited for, and none comes"),
    "never_waited_for": ("RS401 RS502", "credits are given and not heeded"),
    "too_early": ("RS401", "the slot is declared free before it is read"),
    "to_the_next": ("RS401", "the credit goes to the device that does not write here"),
    "at_every_step": ("RS502", "more credits are given than are taken", "tell(free"),
    "doubled": ("RS401 RS502", "two credits for one slot"),
    "only_one_slot": ("RS401", "credits for two slots, and there is one"),
    "left_out_by_one": ("RS501", "the first device gives no credit"),
    "one_step_late": ("RS401", "the wait for a credit comes one step too late"),
}


def with_credits(flaw, *, n):
    """Two slots; whoever has read one says so to the left, where it may be filled again."""

    def kernel(x_ref, o_ref, slots, sent, received, free):
        i = lax.axis_index("i")
        left, onward = lax.rem(i + n - 1, n), lax.rem(i + 1, n)
        o_ref[...] = x_ref[left]
        barriers.admit(None, i, left, onward)

        def give():
            units = 2 if flaw == "doubled" else 1
            tell(free, onward if flaw == "to_the_next" else left, units)

        def give_at(s):
            if flaw == "left_out_by_one":
                pl.when((s < n - 3) & (i != 0))(give)
            elif flaw != "never_given":
                pl.when((s < n - 3) | (flaw == "at_every_step"))(give)

        @pl.loop(0, n - 1)
        def _(s):
            k = 0 if flaw == "only_one_slot" else lax.rem(s, 2)
            copy = push(o_ref, slots.at[k], sent.at[k], received.at[k], onward)
            if flaw not in ("never_waited_for", "one_step_late"):
                pl.when(s >= 2)(lambda: pl.semaphore_wait(free, 1))
            copy.start()
            if flaw == "one_step_late":
                pl.when(s >= 2)(lambda: pl.semaphore_wait(free, 1))
            if flaw == "too_early":
                give_at(s)
            copy.wait()
            o_ref[...] = slots[k] + x_ref[lax.rem(i + 2 * n - 2 - s, n)]
            if flaw != "too_early":
                give_at(s)

    return call(kernel, scratch=(blocks(2), DMA((2,)), DMA((2,)), COUNTER))


CASES = (
    *(
        right(f"scatter_{n}", scatter(None, n=n), "a slot for each step", expect=scattered, **stacked(n))
        for n in (2, 3, 4, 5)
    ),
    right(
        "scatter_2_one_slot",
        scatter("one_slot", n=2),
        "with one step, one slot is a slot for each step",
        expect=scattered,
        **stacked(2),
    ),
    right(
        "scatter_2_stale_slot",
        scatter("stale_slot", n=2),
        "with one step, the slot of the first step is the right one",
        expect=scattered,
        **stacked(2),
    ),
    *(
        wrong(
            f"scatter_{n}_{count}_slots",
            scatter(None, n=n, slots_of=count),
            "devices can be further apart than there are slots",
            "RS401",
            **stacked(n),
        )
        for n, count in ((3, 1), (4, 1), (4, 2), (5, 2), (5, 3))
    ),
    *(
        right(f"scatter_{n}_credits", with_credits(None, n=n), "two slots and credits", expect=scattered, **stacked(n))
        for n in (4, 5, 6)
    ),
    *flawed("scatter_4", partial(scatter, n=4), SYNCHRONISATION, **stacked(4)),
    *flawed("scatter_3", partial(scatter, n=3), barriers.FLAWS, **stacked(3)),
    *flawed("scatter_4", partial(scatter, n=4), VALUES, expect=scattered, **stacked(4)),
    *flawed(
        "scatter_3",
        partial(scatter, n=3),
        {name: VALUES[name] for name in ("overwritten", "twice", "wrong_chunk", "own_forgotten", "stale_slot")},
        expect=scattered,
        **stacked(3),
    ),
    *flawed("scatter_credits_5", partial(with_credits, n=5), CREDITS, **stacked(5)),
    *flawed(
        "scatter_credits_4",
        partial(with_credits, n=4),
        {name: CREDITS[name] for name in ("never_given", "never_waited_for", "too_early", "to_the_next")},
        **stacked(4),
    ),
)
