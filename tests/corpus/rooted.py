"""Collectives with a root, whose part differs from that of the others: broadcast, reduce, scatter, gather."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, DMA, blocks, call, flawed, push, right, ring, stacked, tell

BROADCAST = {
    "without_barrier": ("RS402", "the next one may not have entered"),
    "root_tells": ("RS402 RS524", "the signals go the same way as the block"),
    "first_only": ("RS402", "only the second device says that it has entered, and only the root waits"),
    "ring_closed": ("RS504", "the last one sends to the root, which does not wait for it"),
    "last_beyond": ("RS523", "the last one sends to a device that does not exist", ".start"),
    "all_wait": ("RS501", "the root waits for a block, too"),
    "root_leaves": ("RS403 RS504", "the root does not wait until its block is read"),
    "middle_hurries": ("RS404 RS504", "a device in the middle passes the block on before it has come"),
    "last_hurries": ("RS403 RS504", "the last one leaves before the block has come"),
    "root_clears": ("RS406", "the next one clears its result after it has given leave"),
    "stops_early": ("RS501", "the last but one does not pass the block on"),
}

BROADCAST_VALUES = {
    "root_keeps": ("RS435", "the root does not store its own block"),
    "own_passed_on": ("RS801", "each passes on its own block, not the one that came"),
    "doubled": ("RS801", "the block doubles on its way"),
    "root_last": ("RS801", "the root stores a block of zeros"),
}


def chain(flaw, *, n):
    """From device 0 along the line to the last one."""

    def kernel(x_ref, o_ref, sent, received):
        i = lax.axis_index("i")
        last = i == n - 1
        receives, sends = i > 0, i < n - 1
        before, onward = lax.rem(i + n - 1, n), lax.rem(i + 1, n)
        if flaw == "last_beyond":
            sends, onward = i < n, i + 1
        if flaw == "ring_closed":
            sends = i < n
        if flaw == "stops_early":
            sends = i < n - 2
        if flaw == "all_wait":
            receives = i >= 0
        if flaw != "without_barrier":
            barrier = pltpu.get_barrier_semaphore()
            if flaw == "root_tells":
                pl.when(i < n - 1)(lambda: tell(barrier, onward))
                pl.when(i > 0)(lambda: pl.semaphore_wait(barrier, 1))
            elif flaw == "first_only":
                pl.when(i == 1)(lambda: tell(barrier, before))
                pl.when(i == 0)(lambda: pl.semaphore_wait(barrier, 1))
            else:
                pl.when(i > 0)(lambda: tell(barrier, before))
                pl.when(i < n - 1)(lambda: pl.semaphore_wait(barrier, 1))
        if flaw == "root_clears":
            o_ref[...] = jnp.zeros(BLOCK)

        @pl.when(i == 0)
        def _():
            if flaw == "root_last":
                o_ref[...] = jnp.zeros(BLOCK)
            elif flaw != "root_keeps":
                o_ref[...] = x_ref[...]

        def receive():
            push(x_ref, o_ref, sent, received, onward).wait_recv()
            if flaw == "doubled":
                o_ref[...] = 2 * o_ref[...]

        hurries = {"middle_hurries": ~last & (i > 0), "last_hurries": last}.get(flaw, i < 0)
        pl.when(receives & ~hurries)(receive)

        @pl.when(sends)
        def _():
            kept = flaw in ("own_passed_on", "root_keeps", "root_last")
            pl.when(i == 0)(push(x_ref if kept else o_ref, o_ref, sent, received, onward).start)
            pl.when(i > 0)(push(x_ref if flaw == "own_passed_on" else o_ref, o_ref, sent, received, onward).start)
            waits = i > 0 if flaw == "root_leaves" else i >= 0
            pl.when(waits)(push(x_ref, o_ref, sent, received, onward).wait_send)

    return call(kernel, scratch=(DMA, DMA), barrier=flaw != "without_barrier")


def first(x):
    """The block of device 0, everywhere."""
    return lax.all_gather(x, "i")[0]


REDUCE = {
    "without_barrier": ("RS402", "the next one may not have entered"),
    "hurries": ("RS404 RS502/RS504", "the sum is added up before it has come"),
    "sent_too_soon": ("RS401", "the sum is changed while it is sent"),
    "below_zero": ("RS523", "the root passes the sum on, too", "start"),
    "root_waits_twice": ("RS501", "the root waits for a second sum"),
}

REDUCE_VALUES = {
    "own_forgotten": ("RS801", "the root does not add its own block"),
    "last_only": ("RS801", "each passes on its own block alone"),
    "twice": ("RS801", "each adds its own block twice"),
    "not_started": ("RS802", "the last one starts with what a spare slot holds"),
}


def reduce(flaw, *, n):
    """From the last device down to device 0, which has the sum in the end; the others have their partial sums."""

    def kernel(x_ref, o_ref, slot, sent, received):
        i = lax.axis_index("i")
        below, above = lax.rem(i + n - 1, n), lax.rem(i + 1, n)
        if flaw != "without_barrier":
            barrier = pltpu.get_barrier_semaphore()
            pl.when(i < n - 1)(lambda: tell(barrier, above))
            pl.when(i > 0)(lambda: pl.semaphore_wait(barrier, 1))
        if flaw == "not_started":
            o_ref[...] = x_ref[...] + slot[1]
        else:
            o_ref[...] = x_ref[...]

        @pl.when(i < n - 1)
        def _():
            if flaw != "hurries":
                push(x_ref, slot.at[0], sent, received, below).wait_recv()
                if flaw == "root_waits_twice":
                    pl.when(i == 0)(push(x_ref, slot.at[0], sent, received, below).wait_recv)
            own = 2 * x_ref[...] if flaw == "twice" else x_ref[...]
            if flaw == "own_forgotten":
                own = jnp.where(i == 0, 0, own)
            o_ref[...] = own + slot[0]

        sends = i >= 0 if flaw == "below_zero" else i > 0
        to = i - 1 if flaw == "below_zero" else below

        @pl.when(sends)
        def _():
            copy = push(x_ref if flaw == "last_only" else o_ref, slot.at[0], sent, received, to)
            copy.start()
            if flaw == "sent_too_soon":
                o_ref[...] = x_ref[...]
            copy.wait_send()

    return call(kernel, scratch=(blocks(2), DMA, DMA), barrier=flaw != "without_barrier")


def sum_of_those_above(x):
    """On device i: the sum over the devices i, i + 1, …"""
    everything = lax.all_gather(x, "i")
    place = jnp.arange(everything.shape[0])[:, None, None]
    return jnp.sum(jnp.where(place >= lax.axis_index("i"), everything, 0), axis=0)


FROM_ROOT = {
    "without_barrier": ("RS402", "the others may not have entered"),
    "one_not_waited_for": ("RS402 RS502/RS504", "the root waits for one less than there are"),
    "leaves_early": ("RS403 RS502/RS504", "the root does not wait until its blocks are read"),
    "others_leave": ("RS403 RS502/RS504", "the others do not wait for their block"),
    "own_sent": ("RS504", "the root sends to itself as well and does not wait for it"),
}

FROM_ROOT_VALUES = {
    "one_block_for_all": ("RS801", "all get block 0"),
    "own_missing": ("RS435", "the root does not copy its own block"),
    "turned": ("RS801", "each gets the block of the device before it"),
}


def from_root(flaw, *, n):
    """Device 0 has a block for each and sends them all at once."""

    def kernel(x_ref, o_ref, sent, received):
        i = lax.axis_index("i")
        barrier = None if flaw == "without_barrier" else pltpu.get_barrier_semaphore()

        @pl.when(i == 0)
        def _():
            if flaw != "own_missing":
                o_ref[...] = x_ref[0]
            if barrier is not None:
                pl.semaphore_wait(barrier, n - 2 if flaw == "one_not_waited_for" else n - 1)
            block = {"one_block_for_all": lambda d: 0, "turned": lambda d: d - 1}.get(flaw, lambda d: d)
            copies = [push(x_ref.at[block(d)], o_ref, sent, received, d) for d in range(1, n)]
            if flaw == "own_sent":
                copies.append(push(x_ref.at[0], o_ref, sent, received, 0))
            for copy in copies:
                copy.start()
            for copy in copies:
                if flaw != "leaves_early":
                    copy.wait_send()

        @pl.when(i > 0)
        def _():
            if barrier is not None:
                tell(barrier, 0)
            if flaw != "others_leave":
                push(x_ref.at[0], o_ref, sent, received, 0).wait_recv()

    return call(kernel, scratch=(DMA, DMA), barrier=flaw != "without_barrier")


def handed_out(x):
    return lax.all_gather(x, "i")[0, lax.axis_index("i")]


TO_ROOT = {
    "without_barrier": ("RS402", "the root may not have entered"),
    "one_place": ("RS401", "all write into the same place"),
    "root_leaves": ("RS403 RS502/RS504", "the root waits for one block less than there are"),
    "cleared_late": ("RS406", "the root clears its result after it has given leave"),
    "told_once": ("RS501", "the root gives leave to one device only"),
    "past_the_end": ("RS431", "places are counted from one", "start"),
}

TO_ROOT_VALUES = {
    "own_missing": ("RS801", "the root does not copy its own block"),
    "backward": ("RS801", "the blocks are stored in reverse order"),
    "others_unset": ("RS435", "the result of the others is never written"),
}


def to_root(flaw, *, n):
    """All send their block to device 0; the others' results are zero."""

    def kernel(x_ref, o_ref, sent, received):
        i = lax.axis_index("i")
        place = {"one_place": 1, "past_the_end": i + 1, "backward": n - 1 - i}.get(flaw, i)
        barrier = None if flaw == "without_barrier" else pltpu.get_barrier_semaphore()
        if flaw == "others_unset":
            pl.when(i == 0)(lambda: clear(o_ref))
        elif flaw != "cleared_late":
            clear(o_ref)

        @pl.when(i == 0)
        def _():
            for d in range(1, 2 if flaw == "told_once" else n):
                if barrier is not None:
                    tell(barrier, d)
            if flaw == "cleared_late":
                clear(o_ref)
            if flaw != "own_missing":
                o_ref[n - 1 if flaw == "backward" else 0] = x_ref[...]
            for _ in range(n - 2 if flaw == "root_leaves" else n - 1):
                push(x_ref, o_ref.at[0], sent, received, 0).wait_recv()

        @pl.when(i > 0)
        def _():
            if barrier is not None:
                pl.semaphore_wait(barrier, 1)
            copy = push(x_ref, o_ref.at[place], sent, received, 0)
            copy.start()
            copy.wait_send()
            if flaw == "cleared_late":
                clear(o_ref)

    return call(kernel, out=(n, *BLOCK), scratch=(DMA, DMA), barrier=flaw != "without_barrier")


def clear(ref):
    ref[...] = jnp.zeros(ref.shape)


def collected(x):
    everything = lax.all_gather(x, "i")
    return jnp.where(lax.axis_index("i") == 0, everything, jnp.zeros_like(everything))


CASES = (
    *(right(f"broadcast_{n}", chain(None, n=n), "along a line", expect=first, **ring(n)) for n in (2, 3, 4, 5)),
    *flawed("broadcast_4", partial(chain, n=4), BROADCAST, **ring(4)),
    *flawed("broadcast_4", partial(chain, n=4), BROADCAST_VALUES, expect=first, **ring(4)),
    *(right(f"reduce_{n}", reduce(None, n=n), "along a line", expect=sum_of_those_above, **ring(n)) for n in (2, 3, 4)),
    *flawed("reduce_4", partial(reduce, n=4), REDUCE, **ring(4)),
    *flawed("reduce_3", partial(reduce, n=3), REDUCE_VALUES, expect=sum_of_those_above, **ring(3)),
    *(
        right(f"from_root_{n}", from_root(None, n=n), "a block for each", expect=handed_out, **stacked(n))
        for n in (2, 4)
    ),
    *flawed("from_root_4", partial(from_root, n=4), FROM_ROOT, **stacked(4)),
    *flawed("from_root_3", partial(from_root, n=3), FROM_ROOT_VALUES, expect=handed_out, **stacked(3)),
    *(right(f"to_root_{n}", to_root(None, n=n), "a place for each", expect=collected, **ring(n)) for n in (2, 4)),
    *flawed("to_root_4", partial(to_root, n=4), TO_ROOT, **ring(4)),
    *flawed("to_root_4", partial(to_root, n=4), TO_ROOT_VALUES, expect=collected, **ring(4)),
)
