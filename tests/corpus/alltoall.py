"""All-to-alls: every device has a block for every device; with whatever can be wrong in that."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, DMA, admit, blocks, call, exchanged, flawed, push, right, stacked, wrong

SYNCHRONISATION = {
    "without_barrier": ("RS402", "the others may not have entered"),
    "barrier_with_neighbours": ("RS524", "the barrier leaves out the device on the other side"),
    "barrier_waits_less": ("RS402 RS502", "one of the others may still be missing"),
    "barrier_tells_less": ("RS501", "each waits for a device that does not signal"),
    "send_wait_missing": ("RS403 RS502", "the device may leave while its blocks are read"),
    "receive_wait_missing": ("RS403 RS502", "the device may leave before its blocks have come"),
    "last_wait_missing": ("RS403 RS502", "the device may leave before its last block has come"),
    "own_not_waited": ("RS403 RS502", "the own block may still be on its way at the end"),
    "waits_for_own": ("RS501", "each waits for a block from itself, which it does not send"),
    "one_place": ("RS401", "all write into the same place"),
    "place_by_distance": ("RS401/RS406", "a block lands where the device copies its own"),
    "device_not_wrapped": ("RS523", "device ids go beyond the last device", "semaphore_signal"),
    "block_not_wrapped": ("RS431", "block indices go beyond the last block", "start"),
    "cleared_after_barrier": ("RS406", "blocks may come before the result is cleared"),
    "one_leaves_early": ("RS504", "the first device does not wait for its last block"),
    "two_blocks_for_one": ("RS432", "two blocks into the place of one"),
}

VALUES = {
    "block_of_sender": ("RS801", "each sends the block that is its own to all"),
    "block_of_next": ("RS801", "each sends the block of the next device"),
    "own_missing": ("RS435", "the own block is not copied"),
    "own_first": ("RS801", "as the own block, block 0 is copied"),
    "place_turned": ("RS801", "all blocks are consistently stored one place too far"),
    "mirrored": ("RS801", "the sender counts the other way round than the device ids"),
}


def to_each(flaw, *, n, shared=False):
    """For each distance d, the block of device i + d goes there at once, to place i."""

    def kernel(x_ref, o_ref, own, sent, received):
        i = lax.axis_index("i")
        others = [i + d if flaw == "device_not_wrapped" else lax.rem(i + d, n) for d in range(1, n)]
        if flaw == "barrier_with_neighbours":
            admit(others[0], others[-1], targets=2)
        elif flaw == "barrier_tells_less":
            admit(*others[1:], targets=n - 1)
        elif flaw != "without_barrier":
            admit(*others, targets=n - 2 if flaw == "barrier_waits_less" else n - 1)
        if flaw == "cleared_after_barrier":
            o_ref[...] = jnp.zeros(o_ref.shape)
        turned = lax.rem(i + 1, n) if flaw == "place_turned" else i
        if flaw != "own_missing":
            first = pltpu.make_async_copy(x_ref.at[0 if flaw == "own_first" else i], o_ref.at[turned], own)
            first.start()
            if flaw != "own_not_waited":
                first.wait()
        copies = []
        for d, to in enumerate(others, 1):
            block = {
                "block_of_sender": i,
                "block_of_next": lax.rem(to + 1, n),
                "mirrored": lax.rem(i + n - d, n),
                "block_not_wrapped": i + d,
                "two_blocks_for_one": pl.ds(0, 2),
            }.get(flaw, to)
            place = {"one_place": 0, "place_by_distance": d, "place_turned": turned}.get(flaw, i)
            k = 0 if shared else d - 1
            copies.append(push(x_ref.at[block], o_ref.at[place], sent.at[k], received.at[k], to))
        for copy in copies:
            copy.start()
        for copy in copies if flaw != "last_wait_missing" else copies[1:]:
            if flaw == "one_leaves_early" and copy is copies[-1]:
                pl.when(i != 0)(copy.wait_recv)
            elif flaw != "receive_wait_missing":
                copy.wait_recv()
        if flaw == "waits_for_own":
            copies[0].wait_recv()
        for copy in copies:
            if flaw != "send_wait_missing":
                copy.wait_send()

    count = 1 if shared else n - 1
    semaphores = (DMA, DMA((count,)), DMA((count,)))
    return call(kernel, out=(n, *BLOCK), scratch=semaphores, barrier=flaw != "without_barrier")


def in_rounds_kernel(x_ref, o_ref, slots, sent, received):
    """One distance after the other, by way of a slot for each."""
    i, n = lax.axis_index("i"), lax.axis_size("i")
    o_ref[i] = x_ref[i]
    admit(*(lax.rem(i + d, n) for d in range(1, n)), targets=n - 1)
    for d in range(1, n):
        to, source = lax.rem(i + d, n), lax.rem(i + n - d, n)
        copy = push(x_ref.at[to], slots.at[d - 1], sent, received.at[d - 1], to)
        copy.start()
        copy.wait()
        o_ref[source] = slots[d - 1]


def in_rounds_one_slot_kernel(x_ref, o_ref, slots, sent, received):
    """The blocks of different distances come from different devices, so nothing orders them."""
    i, n = lax.axis_index("i"), lax.axis_size("i")
    o_ref[i] = x_ref[i]
    admit(*(lax.rem(i + d, n) for d in range(1, n)), targets=n - 1)
    for d in range(1, n):
        to, source = lax.rem(i + d, n), lax.rem(i + n - d, n)
        copy = push(x_ref.at[to], slots.at[0], sent, received.at[0], to)
        copy.start()
        copy.wait()
        o_ref[source] = slots[0]


def in_rounds(kernel, n):
    return call(kernel, out=(n, *BLOCK), scratch=(blocks(n - 1), DMA, DMA((n - 1,))))


CASES = (
    *(
        right(f"to_each_{n}", to_each(None, n=n), "a place for each block", expect=exchanged, **stacked(n))
        for n in (2, 3, 4, 5)
    ),
    right(
        "to_each_4_one_semaphore",
        to_each(None, n=4, shared=True),
        "nothing is read before everything is waited for",
        expect=exchanged,
        **stacked(4),
    ),
    right(
        "to_each_3_neighbours",
        to_each("barrier_with_neighbours", n=3),
        "of three devices, the neighbours are all the others",
        expect=exchanged,
        **stacked(3),
    ),
    *(
        right(
            f"to_each_in_rounds_{n}",
            in_rounds(in_rounds_kernel, n),
            "a slot for each round",
            expect=exchanged,
            **stacked(n),
        )
        for n in (3, 4)
    ),
    wrong(
        "to_each_in_rounds_one_slot",
        in_rounds(in_rounds_one_slot_kernel, 4),
        "a block of a later round lands in the slot before it is read",
        "RS401",
        **stacked(4),
    ),
    *flawed("to_each_4", partial(to_each, n=4), SYNCHRONISATION, **stacked(4)),
    *flawed("to_each_4", partial(to_each, n=4), VALUES, expect=exchanged, **stacked(4)),
)
