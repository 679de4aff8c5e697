"""All-gathers around a ring: straight into the result, or by way of slots; with whatever can be wrong in them."""

from functools import partial

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus import barriers
from corpus.case import BLOCK, DMA, blocks, call, flawed, gathered, push, right, ring

SYNCHRONISATION = {
    **barriers.FLAWS,
    "not_wrapped": ("RS523", "the last device has no next one without the remainder", "start"),
    "send_wait_missing": ("RS403 RS502", "the device may leave while a block is read"),
    "receive_wait_missing": ("RS404 RS502", "a block is passed on before it has come"),
    "last_receive_wait_missing": ("RS403 RS502", "the device may leave before the last block has come"),
    "wait_before_start": ("RS501", "each waits for a block that is sent after the wait"),
    "one_semaphore": ("RS405", "a block of a later step can satisfy the wait of an earlier one"),
    "waits_rotated": ("RS501", "the first wait is for the block of the second step"),
    "wait_for_half": ("RS404/RS405 RS505", "each wait is for half a block"),
    "own_not_waited": ("RS404", "the own block is sent while it is copied to its place"),
    "one_step_more": ("RS401", "each block comes back to where it was sent from, and may still be read there"),
    "wrong_block": ("RS401/RS406", "from the second step on, blocks of others are overwritten"),
    "one_stops_early": ("RS504", "the first device leaves out the last wait"),
    "one_astray": ("RS501", "the first device sends to the wrong side"),
    "past_the_end": ("RS431", "the block's index grows without the remainder", "start"),
    "below_zero": ("RS431", "the block's index falls below zero without adding N", "start"),
    "all_at_once": ("RS404", "all steps are started before the first block has come"),
}

VALUES = {
    "one_off": ("RS435", "each block is stored one place too far"),
    "mirrored": ("RS801", "blocks are stored in the order of a ring in the other direction"),
    "by_step": ("RS801", "blocks are stored in the order in which they come, not by their owner"),
    "own_missing": ("RS435", "the own block is not stored"),
    "own_at_zero": ("RS435", "the own block is stored at place 0"),
    "doubled": ("RS801", "what comes is stored twice as large"),
    "summed": ("RS801", "what comes is added to the own block before it is stored"),
    "last_missing": ("RS435", "the last block is not stored"),
    "old_slot": ("RS801", "the slot that was sent is stored, not the one that has come"),
    "own_again": ("RS801", "the own block is sent at every step"),
    "backward": ("RS801", "the blocks travel the other way, and are stored as if they did not"),
    "spare_slot": ("RS802", "the block is sent from a slot that nothing has written"),
}


def in_place(flaw, *, n, rolled=True):
    """At step s, the block of device i - s goes on to the right, to the place that it has there, too."""
    steps = {"one_step_more": n}.get(flaw, n - 1)

    def kernel(x_ref, o_ref, own, sent, received):
        i = lax.axis_index("i")
        left, onward = lax.rem(i + n - 1, n), lax.rem(i + 1, n)
        if flaw == "not_wrapped":
            onward = i + 1
        if flaw == "one_astray":
            onward = lax.select(i == 0, left, onward)

        def copy_at(s):
            block = lax.rem(i + (s if flaw == "wrong_block" else n - s), n)
            block = {"past_the_end": i + s, "below_zero": i - s}.get(flaw, block)
            k = 0 if flaw == "one_semaphore" else s
            return push(o_ref.at[block], o_ref.at[block], sent, received.at[k], onward)

        def awaited(s):
            if flaw == "wait_for_half":
                half = o_ref.at[0, pl.ds(0, 4)]
                return push(half, half, sent, received.at[s], onward)
            if flaw == "waits_rotated":
                return push(x_ref, o_ref.at[0], sent, received.at[lax.rem(s + 1, n - 1)], onward)
            return copy_at(s)

        def wait_at(s):
            copy = awaited(s)
            if flaw == "last_receive_wait_missing":
                pl.when(s < n - 2)(copy.wait_recv)
            elif flaw == "one_stops_early":
                pl.when((i != 0) | (s < n - 2))(copy.wait_recv)
            elif flaw != "receive_wait_missing":
                copy.wait_recv()
            if flaw != "send_wait_missing":
                copy.wait_send()

        def step(s):
            if flaw == "wait_before_start":
                wait_at(s)
                copy_at(s).start()
            elif flaw == "barrier_after_start":
                pl.when(s > 0)(lambda: copy_at(s).start())
                wait_at(s)
            else:
                copy_at(s).start()
                wait_at(s)

        first = pltpu.make_async_copy(x_ref, o_ref.at[i], own)
        first.start()
        if flaw != "own_not_waited":
            first.wait()
        if flaw == "barrier_after_start":
            copy_at(0).start()
        barriers.admit(flaw, i, left, lax.rem(i + 1, n))
        if flaw == "all_at_once":
            for s in range(n - 1):
                copy_at(s).start()
            for s in range(n - 1):
                wait_at(s)
        elif rolled:
            pl.loop(0, steps)(step)
        else:
            for s in range(steps):
                step(s)
        if flaw == "own_not_waited":
            first.wait()

    semaphores = (DMA, DMA, DMA((max(steps, 1),)))
    return call(kernel, out=(n, *BLOCK), scratch=semaphores, barrier=flaw != "without_barrier")


def by_way_of_slots(flaw, *, n):
    """Slot s + 1 takes what the left one had in slot s; `slots[n]` is a spare one."""

    def kernel(x_ref, o_ref, slots, sent, received):
        i = lax.axis_index("i")
        left, onward = lax.rem(i + n - 1, n), lax.rem(i + 1, n)
        if flaw == "backward":
            left, onward = onward, left
        slots[0] = x_ref[...]
        if flaw != "own_missing":
            o_ref[0 if flaw == "own_at_zero" else i] = x_ref[...]
        barriers.admit(None, i, left, onward)
        for s in range(n - 1):
            source = {"own_again": 0, "spare_slot": n}.get(flaw, s)
            copy = push(slots.at[source], slots.at[s + 1], sent.at[s], received.at[s], onward)
            copy.start()
            copy.wait()
            place = {
                "one_off": lax.rem(i + n - s, n),
                "mirrored": lax.rem(i + s + 1, n),
                "by_step": s + (s >= i),
            }.get(flaw, lax.rem(i + n - 1 - s, n))
            block = slots[s if flaw == "old_slot" else s + 1]
            block = {"doubled": 2 * block, "summed": block + x_ref[...]}.get(flaw, block)
            if flaw != "last_missing" or s < n - 2:
                o_ref[place] = block

    return call(kernel, out=(n, *BLOCK), scratch=(blocks(n + 1), DMA((n - 1,)), DMA((n - 1,))))


def two_way_kernel(x_ref, o_ref, sent, received):
    """Blocks go both ways at once, so half the steps do (an odd number of devices)."""
    i, n = lax.axis_index("i"), o_ref.shape[0]
    left, onward = lax.rem(i + n - 1, n), lax.rem(i + 1, n)
    o_ref[i] = x_ref[...]
    barriers.admit(None, i, left, onward)
    barriers.admit(None, i, onward, left)
    for s in range((n - 1) // 2):
        copies = []
        for k, (block, to) in enumerate(((lax.rem(i + n - s, n), onward), (lax.rem(i + s, n), left))):
            copies.append(push(o_ref.at[block], o_ref.at[block], sent.at[k], received.at[k, s], to))
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()


def to_all_kernel(x_ref, o_ref, sent, received):
    """Each block goes to every device at once: n - 1 copies of one source, counted on one semaphore."""
    i, n = lax.axis_index("i"), o_ref.shape[0]
    others = [lax.rem(i + d, n) for d in range(1, n)]
    o_ref[i] = x_ref[...]
    barrier = pltpu.get_barrier_semaphore()
    for other in others:
        pl.semaphore_signal(barrier, 1, device_id={"i": other})
    pl.semaphore_wait(barrier, n - 1)
    copies = [push(x_ref, o_ref.at[i], sent, received, other) for other in others]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.wait()


def two_way(n):
    return call(two_way_kernel, out=(n, *BLOCK), scratch=(DMA((2,)), DMA((2, (n - 1) // 2))))


def to_all(n):
    return call(to_all_kernel, out=(n, *BLOCK), scratch=(DMA, DMA))


def without(flaws, *names):
    return {name: flaw for name, flaw in flaws.items() if name not in names}


SHORT = without(SYNCHRONISATION, "one_step_more", "wait_for_half", "last_receive_wait_missing", "all_at_once")

CASES = (
    *(
        right(f"gather_{n}", in_place(None, n=n), "a receive semaphore for each step", expect=gathered, **ring(n))
        for n in (2, 3, 4, 5)
    ),
    right("gather_8", in_place(None, n=8), "the loop over the steps is rolled", expect=gathered, **ring(8)),
    right("gather_4_unrolled", in_place(None, n=4, rolled=False), "written out", expect=gathered, **ring(4)),
    right(
        "gather_2_one_semaphore",
        in_place("one_semaphore", n=2),
        "with one step there is nothing to mistake it for",
        expect=gathered,
        **ring(2),
    ),
    *(
        right(f"gather_slots_{n}", by_way_of_slots(None, n=n), "a slot for each step", expect=gathered, **ring(n))
        for n in (2, 3, 4)
    ),
    *(
        right(f"gather_two_way_{n}", two_way(n), "a semaphore for each way and step", expect=gathered, **ring(n))
        for n in (3, 5)
    ),
    *(
        right(f"gather_to_all_{n}", to_all(n), "nothing is read before all have come", expect=gathered, **ring(n))
        for n in (2, 3, 4)
    ),
    *flawed("gather_4", partial(in_place, n=4), SYNCHRONISATION, **ring(4)),
    *flawed("gather_3", partial(in_place, n=3), SHORT, **ring(3)),
    *flawed("gather_slots_4", partial(by_way_of_slots, n=4), VALUES, expect=gathered, **ring(4)),
    *flawed(
        "gather_slots_3",
        partial(by_way_of_slots, n=3),
        {name: VALUES[name] for name in ("mirrored", "one_off", "old_slot", "own_again", "backward")},
        expect=gathered,
        **ring(3),
    ),
)
