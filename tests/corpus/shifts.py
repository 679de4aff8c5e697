"""Every device passes its block on around the ring, by one or by more, with whatever can be wrong in that."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus import barriers
from corpus.case import BLOCK, COUNTER, DMA, blocks, call, flawed, push, right, ring, shifted, tell

DIRECT = {
    **barriers.FLAWS,
    "not_wrapped": ("RS523", "the last device has no next one without the remainder", "start"),
    "negative": ("RS523", "the first device has no last one without the remainder", "tell("),
    "one_astray": ("RS501", "the first device sends to the wrong side, so the second waits for ever"),
    "odd_ones_silent": ("RS501", "only the even ones send, and all wait"),
    "send_wait_missing": ("RS403 RS502", "the device may leave while its block is read"),
    "receive_wait_missing": ("RS403 RS502", "the device may leave while its block is written"),
    "wait_before_start": ("RS501", "each waits for a block that is sent after the wait"),
    "wait_for_half": ("RS403 RS505", "the wait is for half a block"),
    "wait_for_two": ("RS501", "two blocks are waited for, and one comes"),
    "started_twice": ("RS401 RS502", "the second copy may still write when the first is waited for"),
    "one_leaves_early": ("RS403 RS504", "the first device does not wait for its block"),
    "one_leaves_unsent": ("RS403 RS504", "the first device does not wait until its block is read"),
    "other_size": ("RS432", "half a block into a whole one"),
    "counter_left_over": ("RS502", "two are signalled and one is taken", "tell(ready"),
    "counter_left_over_by_one": ("RS504", "the first device signals once too often", "tell(ready"),
}

BUFFERED = {
    "source_overwritten": ("RS401", "what is sent is cleared while it is read"),
    "source_unwritten": ("RS404", "what is sent is still being copied in"),
    "read_before_wait": ("RS404", "the block is looked at before it is waited for"),
    "cleared_after_barrier": ("RS406", "the block may come before the place for it is cleared"),
    "cleared_after_start": ("RS406", "the block may come before the place for it is cleared"),
}

VALUES = {
    "to_itself": ("RS801", "each sends to itself"),
    "backward": ("RS801", "consistently the other way round"),
    "too_far": ("RS801", "consistently too far by one"),
    "added": ("RS801", "the own block is added to the one that came"),
    "ignored": ("RS801", "the block that came is not what is stored"),
    "half_stored": ("RS435", "the lower half of the result is never written"),
    "spare_sent": ("RS802", "what is sent was never written"),
}


def direct(flaw, *, n, by):
    """From the operand into the next device's result."""

    def kernel(x_ref, o_ref, sent, received, ready):
        i = lax.axis_index("i")
        left, onward = lax.rem(i + n - by, n), lax.rem(i + by, n)
        left = i - by if flaw == "negative" else left
        onward = i + by if flaw == "not_wrapped" else onward
        to = lax.select(i == 0, left, onward) if flaw == "one_astray" else onward
        half = pl.ds(0, 4)
        copy = push(x_ref.at[half] if flaw == "other_size" else x_ref, o_ref, sent, received, to)
        if flaw == "barrier_after_start":
            copy.start()
        barriers.admit(flaw, i, left, onward)
        if flaw == "odd_ones_silent":
            pl.when(lax.rem(i, 2) == 0)(copy.start)
        elif flaw not in ("barrier_after_start", "wait_before_start"):
            copy.start()
        if flaw == "started_twice":
            copy.start()
        if flaw == "wait_for_half":
            copy = push(x_ref.at[half], o_ref.at[half], sent, received, to)
        if flaw == "one_leaves_early":
            pl.when(i != 0)(copy.wait_recv)
        elif flaw != "receive_wait_missing":
            copy.wait_recv()
        if flaw == "wait_for_two":
            copy.wait_recv()
        if flaw == "wait_before_start":
            copy.start()
        if flaw == "one_leaves_unsent":
            pl.when(i != 0)(copy.wait_send)
        elif flaw != "send_wait_missing":
            copy.wait_send()
        tell(ready, onward, 2 if flaw == "counter_left_over" else 1)
        if flaw == "counter_left_over_by_one":
            pl.when(i == 0)(lambda: tell(ready, onward))
        pl.semaphore_wait(ready, 1)

    return call(kernel, scratch=(DMA, DMA, COUNTER), barrier=flaw != "without_barrier")


def buffered(flaw, *, n, by):
    """By way of `buffer[0]` into the next device's `buffer[1]`; `buffer[2]` is of no use."""

    def kernel(x_ref, o_ref, buffer, copied, sent, received):
        i = lax.axis_index("i")
        hop = {"to_itself": 0, "backward": n - by, "too_far": by + 1}.get(flaw, by)
        left, onward = lax.rem(i + n - hop, n), lax.rem(i + hop, n)
        own = pltpu.make_async_copy(x_ref, buffer.at[0], copied)
        own.start()
        if flaw != "source_unwritten":
            own.wait()
        if flaw not in ("cleared_after_barrier", "cleared_after_start"):
            buffer[1] = jnp.zeros(BLOCK)
        barriers.admit(None, i, left, onward)
        if flaw == "cleared_after_barrier":
            buffer[1] = jnp.zeros(BLOCK)
        copy = push(buffer.at[2 if flaw == "spare_sent" else 0], buffer.at[1], sent, received, onward)
        copy.start()
        if flaw == "cleared_after_start":
            buffer[1] = jnp.zeros(BLOCK)
        if flaw == "read_before_wait":
            o_ref[...] = buffer[1]
        if flaw == "source_overwritten":
            buffer[0] = jnp.zeros(BLOCK)
        copy.wait()
        if flaw == "source_unwritten":
            own.wait()
        if flaw == "half_stored":
            o_ref[pl.ds(0, 4)] = buffer[1, pl.ds(0, 4)]
        elif flaw == "added":
            o_ref[...] = buffer[0] + buffer[1]
        elif flaw != "read_before_wait":
            o_ref[...] = buffer[0 if flaw == "ignored" else 1]

    return call(kernel, scratch=(blocks(3), DMA, DMA, DMA))


def those(flaws, *names):
    return {name: flaws[name] for name in names}


CASES = (
    *(
        right(
            f"shift_{n}_by_{by}",
            direct(None, n=n, by=by),
            "whoever is written to gives leave",
            expect=partial(shifted, by=by),
            **ring(n),
        )
        for n, by in ((2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3), (5, 1), (5, 2), (8, 3))
    ),
    *(
        right(
            f"shift_buffered_{n}",
            buffered(None, n=n, by=1),
            "in and out by way of scratch memory",
            expect=shifted,
            **ring(n),
        )
        for n in (2, 3, 4)
    ),
    *flawed("shift_4", partial(direct, n=4, by=1), DIRECT, **ring(4)),
    *flawed("shift_5_by_2", partial(direct, n=5, by=2), those(DIRECT, *barriers.FLAWS), **ring(5)),
    *flawed(
        "shift_2",
        partial(direct, n=2, by=1),
        those(DIRECT, "without_barrier", "barrier_with_oneself", "barrier_doubled", "negative", "wait_for_half"),
        **ring(2),
    ),
    right(
        "shift_2_barrier_reversed",
        direct("barrier_reversed", n=2, by=1),
        "of two devices, the one on the left is the one on the right",
        expect=shifted,
        **ring(2),
    ),
    right(
        "shift_4_by_2_barrier_reversed",
        direct("barrier_reversed", n=4, by=2),
        "two steps to the left is two steps to the right",
        expect=partial(shifted, by=2),
        **ring(4),
    ),
    *flawed("shift_buffered_4", partial(buffered, n=4, by=1), BUFFERED, **ring(4)),
    *flawed("shift_values_4", partial(buffered, n=4, by=1), VALUES, expect=shifted, **ring(4)),
)
