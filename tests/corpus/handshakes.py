"""Right kernels with fewer slots or semaphores than steps, held together by handshakes; and what breaks them."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from corpus.case import (
    BLOCK,
    COUNTER,
    DMA,
    admit,
    blocks,
    call,
    flawed,
    gathered,
    push,
    right,
    ring,
    scattered,
    stacked,
    tell,
    wrong,
)


def around():
    i, n = lax.axis_index("i"), lax.axis_size("i")
    return i, lax.rem(i + n - 1, n), lax.rem(i + 1, n)


def scatter(*, n, count):
    """`count` slots; from then on, each is filled again only after a credit."""

    def kernel(x_ref, o_ref, slots, sent, received, free):
        i, left, onward = around()
        o_ref[...] = x_ref[left]
        admit(left)
        for s in range(n - 1):
            k = s % count
            if s >= count:
                pl.semaphore_wait(free, 1)
            copy = push(o_ref, slots.at[k], sent, received.at[k], onward)
            copy.start()
            copy.wait()
            o_ref[...] = slots[k] + x_ref[lax.rem(i + 2 * n - 2 - s, n)]
            if s < n - 1 - count:
                tell(free, left)

    return call(kernel, scratch=(blocks(count), DMA, DMA((count,)), COUNTER))


def gather(*, n, count, acknowledged=True):
    """`count` receive semaphores; from then on, each is used again only after the block on it has been counted."""

    def kernel(x_ref, o_ref, sent, received, counted):
        i, left, onward = around()
        o_ref[i] = x_ref[...]
        admit(left)
        for s in range(n - 1):
            if s >= count and acknowledged:
                pl.semaphore_wait(counted, 1)
            block = o_ref.at[lax.rem(i + n - s, n)]
            copy = push(block, block, sent, received.at[s % count], onward)
            copy.start()
            copy.wait()
            if s < n - 1 - count and acknowledged:
                tell(counted, left)

    return call(kernel, out=(n, *BLOCK), scratch=(DMA, DMA((count,)), COUNTER))


ROUNDS = 4


def rounds(*, slots, semaphores):
    """Two devices swap what they have, again and again, and add it up."""

    def kernel(x_ref, o_ref, came, sent, received):
        other = 1 - lax.axis_index("i")
        o_ref[...] = x_ref[...]
        admit(other)
        for r in range(ROUNDS):
            copy = push(o_ref, came.at[r % slots], sent, received.at[r % semaphores], other)
            copy.start()
            copy.wait()
            o_ref[...] += came[r % slots]

    return call(kernel, scratch=(blocks(slots), DMA, DMA((semaphores,))))


def after_rounds(x):
    return 2 ** (ROUNDS - 1) * lax.psum(x, "i")


def ping_pong(flaw, *, turns):
    """Device 0 sends, device 1 adds its own and sends back: one slot will do, since each waits for the other."""

    def kernel(x_ref, o_ref, slot, sent, received):
        i = lax.axis_index("i")
        admit(1 - i)
        copy = push(o_ref, slot.at[0], sent, received, 1 - i)

        def send():
            copy.start()
            copy.wait_send()

        def add():
            if flaw != "not_waited":
                copy.wait_recv()
            o_ref[...] = slot[0] + x_ref[...]

        @pl.when(i == 0)
        def _():
            o_ref[...] = x_ref[...]
            for turn in range(turns):
                send()
                if flaw == "impatient" and turn == 0:
                    send()
                add()

        @pl.when(i == 1)
        def _():
            for _ in range(turns):
                if flaw == "both_begin":
                    send()
                add()
                if flaw != "both_begin":
                    send()

    return call(kernel, scratch=(blocks(1), DMA, DMA))


PING_PONG = {
    "impatient": ("RS401 RS504", "one block too many is sent, over the one before", "send()"),
    "not_waited": ("RS404 RS502", "each adds up what may not have come", "send()"),
    "both_begin": ("RS401", "neither waits to be answered, so a second block can land over the first", "send()"),
}


def after_turns(x, turns):
    total = turns * lax.psum(x, "i")
    return jnp.where(lax.axis_index("i") == 0, x + total, total)


CASES = (
    *(
        right(
            f"scatter_{n}_{count}_slots_credits",
            scatter(n=n, count=count),
            "as many credits as are needed",
            expect=scattered,
            **stacked(n),
        )
        for n, count in ((3, 1), (4, 1), (5, 1), (4, 2), (5, 2), (5, 3), (4, 3))
    ),
    *(
        right(
            f"gather_{n}_{count}_semaphores_acknowledged",
            gather(n=n, count=count),
            "a semaphore is used again once its block has been counted",
            expect=gathered,
            **ring(n),
        )
        for n, count in ((3, 1), (4, 1), (5, 1), (4, 2), (5, 2))
    ),
    *(
        wrong(
            f"gather_{n}_{count}_semaphores",
            gather(n=n, count=count, acknowledged=False),
            "a semaphore is used again while its block may be on its way",
            "RS405",
            line="copy.start()",
            **ring(n),
        )
        for n, count in ((3, 1), (4, 2), (5, 3))
    ),
    *(
        right(
            f"rounds_{slots}_slots",
            rounds(slots=slots, semaphores=slots),
            "neither device is two rounds ahead of the other",
            expect=after_rounds,
            **ring(2),
        )
        for slots in (2, 3, 4)
    ),
    right(
        "rounds_2_slots_4_semaphores",
        rounds(slots=2, semaphores=4),
        "more semaphores than needed",
        expect=after_rounds,
        **ring(2),
    ),
    wrong(
        "rounds_1_slot",
        rounds(slots=1, semaphores=2),
        "the next block may come before this is read",
        "RS401",
        **ring(2),
    ),
    wrong(
        "rounds_1_semaphore",
        rounds(slots=2, semaphores=1),
        "the block of the next round can satisfy the wait for this one",
        "RS405",
        **ring(2),
    ),
    *(
        right(
            f"ping_pong_{turns}",
            ping_pong(None, turns=turns),
            "each waits for the other",
            expect=partial(after_turns, turns=turns),
            **ring(2),
        )
        for turns in (1, 2, 3)
    ),
    *flawed("ping_pong_2", partial(ping_pong, turns=2), PING_PONG, **ring(2)),
)
