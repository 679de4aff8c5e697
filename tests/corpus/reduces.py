"""All-reduces: everything to everyone at once, by doubling, and as a reduce-scatter and an all-gather around a ring."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from corpus import barriers
from corpus.case import BLOCK, DMA, admit, blocks, call, flawed, push, right, ring, stacked, summed, wrong

AT_ONCE = {
    "without_barrier": ("RS402", "the others may not have entered"),
    "barrier_with_neighbours": ("RS524", "the barrier leaves out the device on the other side"),
    "barrier_waits_less": ("RS402 RS502", "one of the others may still be missing"),
    "one_place": ("RS401", "all write into the same slot"),
    "added_up_too_soon": ("RS405", "the first block that comes is taken for the one that is read"),
    "added_up_before_wait": ("RS404", "the slots are read before anything is waited for"),
    "cleared_after_barrier": ("RS406", "blocks may come before the slots are cleared"),
    "one_wait_less": ("RS404/RS405 RS403 RS502", "the last block is not waited for"),
    "one_wait_more": ("RS501", "each waits for a block of its own, which it does not send"),
    "not_wrapped": ("RS523", "device ids go beyond the last device", "semaphore_signal"),
    "one_silent": ("RS501", "the first device sends nothing"),
}

AT_ONCE_VALUES = {
    "own_forgotten": ("RS801", "the own block is not added"),
    "own_not_stored": ("RS802", "the own slot is added, and nothing has written it"),
    "own_twice": ("RS801", "the own block is added twice"),
    "one_left_out": ("RS801", "one slot is not added"),
    "not_cleared": ("RS802", "the sum starts with what the result holds"),
    "last_only": ("RS801", "each block overwrites the sum"),
    "first_added_twice": ("RS801", "one slot is added twice"),
}


def at_once(flaw, *, n):
    """Each block goes into slot i of all others."""

    def kernel(x_ref, o_ref, slots, sent, received):
        i = lax.axis_index("i")
        others = [i + d if flaw == "not_wrapped" else lax.rem(i + d, n) for d in range(1, n)]
        if flaw != "own_not_stored":
            slots[i] = x_ref[...]
        if flaw == "barrier_with_neighbours":
            admit(others[0], others[-1], targets=2)
        elif flaw != "without_barrier":
            admit(*others, targets=n - 2 if flaw == "barrier_waits_less" else n - 1)
        if flaw == "cleared_after_barrier":
            slots[...] = jnp.zeros(slots.shape)
        copies = [push(x_ref, slots.at[0 if flaw == "one_place" else i], sent, received, to) for to in others]
        for copy in copies:
            if flaw == "one_silent":
                pl.when(i != 0)(copy.start)
            else:
                copy.start()
        if flaw == "added_up_before_wait":
            o_ref[...] = total(flaw, n, i, x_ref, o_ref, slots)
        for number, copy in enumerate(copies):
            if flaw != "one_wait_less" or number > 0:
                copy.wait_recv()
            if flaw == "added_up_too_soon" and number == 0:
                o_ref[...] = slots[others[0]] + x_ref[...]
        if flaw == "one_wait_more":
            copies[0].wait_recv()
        for copy in copies:
            if flaw == "one_silent":
                pl.when(i != 0)(copy.wait_send)
            else:
                copy.wait_send()
        o_ref[...] = total(flaw, n, i, x_ref, o_ref, slots)

    return call(kernel, scratch=(blocks(n), DMA, DMA), barrier=flaw != "without_barrier")


def total(flaw, n, i, x_ref, o_ref, slots):
    terms = [slots[lax.rem(i + d, n)] for d in range(1, n)]
    match flaw:
        case "own_not_stored":
            terms.append(slots[i])
        case "own_twice":
            terms.append(2 * x_ref[...])
        case "not_cleared":
            terms += [x_ref[...], o_ref[...]]
        case "one_left_out":
            terms[0] = x_ref[...]
        case "last_only":
            return terms[-1]
        case "first_added_twice":
            terms += [x_ref[...], slots[0]]
        case "own_forgotten":
            pass
        case _:
            terms.append(x_ref[...])
    return sum(terms[1:], terms[0])


DOUBLING = {
    "without_barrier": ("RS402", "the others may not have entered"),
    "barrier_with_first": ("RS524", "the barrier covers the partner of the first step only"),
    "one_slot": ("RS401", "partners of different steps write into one slot"),
    "one_semaphore": ("RS405", "the block of a later step can satisfy the wait of an earlier one"),
    "sum_overwritten": ("RS401", "the sum is overwritten while it is sent"),
    "read_too_soon": ("RS404", "the slot is read before it is waited for"),
    "one_sided": ("RS501", "only the lower of two partners sends"),
    "beyond": ("RS523", "the partner is beyond the last device", "semaphore_signal"),
}

DOUBLING_VALUES = {
    "one_step_less": ("RS801", "the sums of the last two groups are never added"),
    "one_partner": ("RS801", "the same partner at every step"),
    "overwritten": ("RS801", "the partner's sum replaces the own one"),
    "original_sent": ("RS801", "the own block is sent at every step, not the sum"),
    "original_added": ("RS801", "the own block is added at every step, not the sum"),
    "stale_slot": ("RS801", "the slot of the first step is read at every step"),
}


def doubling(flaw, *, n):
    """At step s, sums are swapped with the device whose number differs in bit s."""
    steps = n.bit_length() - 1

    def kernel(x_ref, o_ref, slots, sent, received):
        i = lax.axis_index("i")
        partners = [i ^ (1 if flaw == "one_partner" else 1 << s) for s in range(steps)]
        if flaw == "beyond":
            partners[-1] = i ^ n
        o_ref[...] = x_ref[...]
        if flaw == "barrier_with_first":
            admit(partners[0])
        elif flaw != "without_barrier":
            admit(*partners, targets=steps)
        for s in range(steps - 1 if flaw == "one_step_less" else steps):
            k = 0 if flaw == "one_slot" else s
            source = x_ref if flaw == "original_sent" else o_ref
            semaphore = received.at[0 if flaw == "one_semaphore" else s]
            copy = push(source, slots.at[k], sent, semaphore, partners[s])
            if flaw == "one_sided":
                pl.when(i < partners[s])(copy.start)
                pl.when(i < partners[s])(copy.wait_send)
            else:
                copy.start()
            if flaw != "read_too_soon":
                copy.wait_recv()
            if flaw not in ("sum_overwritten", "one_sided"):
                copy.wait_send()
            came = slots[0 if flaw == "stale_slot" else k]
            own = x_ref[...] if flaw == "original_added" else o_ref[...]
            o_ref[...] = came if flaw == "overwritten" else own + came
            if flaw == "read_too_soon":
                copy.wait_recv()
            if flaw == "sum_overwritten":
                copy.wait_send()

    semaphores = (DMA, DMA((steps,)))
    return call(kernel, scratch=(blocks(steps), *semaphores), barrier=flaw != "without_barrier")


def dissemination_kernel(x_ref, o_ref, slots, sent, received):
    """Sums go 1, 2, 4, … to the right: each term once where N is a power of two, and more than once where it is not."""
    i, n, steps = lax.axis_index("i"), lax.axis_size("i"), slots.shape[0]
    o_ref[...] = x_ref[...]
    admit(*(lax.rem(i + n - (1 << s), n) for s in range(steps)), targets=steps)
    for s in range(steps):
        copy = push(o_ref, slots.at[s], sent, received.at[s], lax.rem(i + (1 << s), n))
        copy.start()
        copy.wait()
        o_ref[...] += slots[s]


def dissemination(steps):
    return call(dissemination_kernel, scratch=(blocks(steps), DMA, DMA((steps,))))


RING = {
    **barriers.FLAWS,
    "semaphores_shared": ("RS405", "a block of the second half can satisfy a wait of the first"),
    "one_gather_semaphore": ("RS405", "a block of a later step can satisfy the wait of an earlier one"),
    "gathered_too_soon": ("RS404", "a sum is passed on before it has come"),
    "slots_shared": ("RS401", "the gather writes into slots that are still being added up"),
}

RING_VALUES = {
    "wrong_place": ("RS801", "all finished sums are stored in the place of the next chunk"),
    "overwritten": ("RS801", "what comes is not added to"),
    "own_term_stored": ("RS801", "the own term is stored instead of the finished sum"),
    "gather_one_less": ("RS435", "the last finished sum is not passed on"),
    "doubled": ("RS801", "the finished sum is doubled before it is passed on"),
    "unreduced": ("RS801", "the first half stops one step early"),
}


def ring_reduce(flaw, *, n):
    """Chunk i is finished on device i; then finished sums go around."""

    def kernel(x_ref, o_ref, total, slots, sent, received):
        i = lax.axis_index("i")
        left, onward = lax.rem(i + n - 1, n), lax.rem(i + 1, n)
        total[...] = x_ref[left]
        if flaw == "barrier_after_start":
            push(total, slots.at[0], sent, received.at[0], onward).start()
        barriers.admit(flaw, i, left, onward)
        for s in range(n - 2 if flaw == "unreduced" else n - 1):
            copy = push(total, slots.at[s], sent, received.at[s], onward)
            if s > 0 or flaw != "barrier_after_start":
                copy.start()
            copy.wait()
            own = x_ref[lax.rem(i + 2 * n - 2 - s, n)]
            total[...] = own if flaw == "overwritten" else own + slots[s]
        finished = 2 * total[...] if flaw == "doubled" else total[...]
        turned = 1 if flaw == "wrong_place" else 0
        o_ref[lax.rem(i + turned, n)] = x_ref[i] if flaw == "own_term_stored" else finished
        for s in range(n - 2 if flaw == "gather_one_less" else n - 1):
            block = lax.rem(i + n - s + turned, n)
            k = {"semaphores_shared": s, "one_gather_semaphore": n - 1}.get(flaw, n - 1 + s)
            target = slots.at[s] if flaw == "slots_shared" else o_ref.at[block]
            copy = push(o_ref.at[block], target, sent, received.at[k], onward)
            copy.start()
            if flaw != "gathered_too_soon":
                copy.wait_recv()
            copy.wait_send()
            if flaw == "slots_shared":
                o_ref[lax.rem(i + n - 1 - s, n)] = slots[s]
        if flaw == "gathered_too_soon":
            for s in range(n - 1):
                push(x_ref.at[0], o_ref.at[0], sent, received.at[n - 1 + s], onward).wait_recv()

    semaphores = (DMA, DMA((2 * n - 2,)))
    scratch = (blocks(1), blocks(n - 1), *semaphores)
    return call(squeezed(kernel), out=(n, *BLOCK), scratch=scratch, barrier=flaw != "without_barrier")


def squeezed(kernel):
    def squeezed_kernel(x_ref, o_ref, total, *rest):
        kernel(x_ref, o_ref, total.at[0], *rest)

    return squeezed_kernel


CASES = (
    *(
        right(f"reduce_at_once_{n}", at_once(None, n=n), "a slot for each device", expect=summed, **ring(n))
        for n in (2, 3, 4)
    ),
    *(
        right(f"reduce_doubling_{n}", doubling(None, n=n), "a slot for each step", expect=summed, **ring(n))
        for n in (2, 4, 8)
    ),
    *(
        right(f"reduce_ring_{n}", ring_reduce(None, n=n), "a semaphore for each step", expect=summed, **stacked(n))
        for n in (2, 3, 4)
    ),
    *(
        right(
            f"reduce_dissemination_{n}", dissemination(n.bit_length() - 1), "each term once", expect=summed, **ring(n)
        )
        for n in (4, 8)
    ),
    wrong(
        "reduce_dissemination_3",
        dissemination(2),
        "three is no power of two: the own term comes back",
        "RS801",
        expect=summed,
        **ring(3),
    ),
    *flawed("reduce_at_once_4", partial(at_once, n=4), AT_ONCE, **ring(4)),
    *flawed("reduce_at_once_3", partial(at_once, n=3), AT_ONCE_VALUES, expect=summed, **ring(3)),
    *flawed("reduce_doubling_4", partial(doubling, n=4), DOUBLING, **ring(4)),
    *flawed("reduce_doubling_8", partial(doubling, n=8), DOUBLING_VALUES, expect=summed, **ring(8)),
    *flawed("reduce_ring_3", partial(ring_reduce, n=3), RING, **stacked(3)),
    *flawed("reduce_ring_3", partial(ring_reduce, n=3), RING_VALUES, expect=summed, **stacked(3)),
)
