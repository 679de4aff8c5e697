"""Right kernels as one teaches them, and the one that is free of races and sums wrongly."""

from functools import partial

import jax
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
    admit,
    blocks,
    call,
    flawed,
    gathered,
    meet,
    neighbours,
    push,
    right,
    ring,
    scattered,
    shifted,
    summed,
    tell,
    wrong,
)


def permute_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    admit(left)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()


def gather_kernel(x_ref, o_ref, copied, sent, received):
    """On a grid with a step for each hop; the operand and the result stay in HBM."""
    i, left, onward = neighbours()
    s = pl.program_id(0)

    @pl.when(s == 0)
    def _():
        meet(left, onward)
        own = pltpu.make_async_copy(x_ref, o_ref.at[i], copied)
        own.start()
        own.wait()

    n = lax.axis_size("i")
    block = lax.rem(i + n - s, n)
    copy = push(o_ref.at[block], o_ref.at[block], sent, received.at[s], onward)
    copy.start()
    copy.wait()


def gather(n):
    semaphores = (DMA, DMA, DMA((n - 1,)))
    return call(gather_kernel, out=(n, *BLOCK), scratch=semaphores, memory=pltpu.HBM, grid=(n - 1,))


def reduce_kernel(x_ref, o_ref, slots, copied, sent, received, free, *, flaw):
    """Every block travels the whole ring through two slots, and each device adds up what passes.

    Slot s % 2 holds what is sent at step s; the next slot is free once the device on the right has said so.
    """
    _, left, onward = neighbours()
    s, steps = pl.program_id(0), pl.num_programs(0)
    k = lax.rem(s, 2)

    @pl.when(s == 0)
    def _():
        meet(left, onward)
        own = pltpu.make_async_copy(x_ref, slots.at[0], copied)
        own.start()
        if flaw != "copied_late":
            own.wait()
        if flaw != "not_started":
            o_ref[...] = x_ref[...]

    @pl.when((s > 0) & (flaw != "no_credit"))
    def _():
        pl.semaphore_wait(free, 1)

    copy = push(slots.at[k], slots.at[1 - k], sent.at[k], received.at[1 - k], onward)
    copy.start()
    copy.wait()
    if flaw == "copied_late":
        pl.when(s == 0)(pltpu.make_async_copy(x_ref, slots.at[0], copied).wait)
    if flaw == "overwritten":
        o_ref[...] = slots[1 - k]
    else:
        o_ref[...] += slots[k if flaw == "sent_slot_added" else 1 - k]

    @pl.when((s < steps - (0 if flaw == "last_credit" else 1)) & (flaw != "no_credit"))
    def _():
        tell(free, onward if flaw == "credit_to_the_next" else left)


REDUCE = {
    "no_credit": ("RS401", "the slot on the right may still be in use"),
    "credit_to_the_next": ("RS401", "the credit does not go to the one that writes here"),
    "last_credit": ("RS502", "a credit after the last step, which nobody takes"),
    "copied_late": ("RS404", "the first block is sent while it is copied into its slot"),
}
REDUCE_VALUES = {
    "overwritten": ("RS801", "what comes replaces the sum"),
    "not_started": ("RS802", "the sum starts with what the result holds"),
    "sent_slot_added": ("RS801", "the slot that was sent is added, not the one that has come"),
}


def reduce(flaw, *, n):
    def kernel(*refs):
        reduce_kernel(*refs, flaw=flaw)

    scratch = (blocks(2), DMA, DMA((2,)), DMA((2,)), COUNTER)
    return call(kernel, scratch=scratch, grid=(n - 1,))


SCATTER = {
    "one_slot": ("RS401", "a slot may be filled again before it is read"),
    "one_receive_semaphore": ("RS405", "the half that goes right can satisfy the wait for the half that goes left"),
}
SCATTER_VALUES = {
    "same_chunk": ("RS801", "the half that goes left adds the chunk of the half that goes right"),
    "halves_swapped": ("RS801", "the halves are stored in each other's place"),
}


def scatter(flaw, *, n):
    """One half of each chunk travels right, the other left, each through two slots with credits of its own."""

    def kernel(x_ref, o_ref, total, slots, sent, received, free):
        i = lax.axis_index("i")
        ways = ((lax.rem(i + n - 1, n), lax.rem(i + 1, n), -1), (lax.rem(i + 1, n), lax.rem(i + n - 1, n), 1))
        for way, (source, _, _) in enumerate(ways):
            total[way] = x_ref[source, way]
        admit(*(source for source, _, _ in ways), targets=2)
        for s in range(n - 1):
            k = 0 if flaw == "one_slot" else s % 2
            copies = []
            for way, (_, target, _) in enumerate(ways):
                if s >= 2 and flaw != "no_credit":
                    pl.semaphore_wait(free.at[1 - way if flaw == "credits_crossed" else way], 1)
                counted = received.at[0 if flaw == "one_receive_semaphore" else way, k]
                copies.append(push(total.at[way], slots.at[way, k], sent.at[way], counted, target))
                copies[way].start()
            for way, (source, _, sign) in enumerate(ways):
                copies[way].wait()
                chunk = lax.rem(i + 3 * n + (-1 if flaw == "same_chunk" else sign) * (2 + s), n)
                total[way] = slots[way, k] + x_ref[chunk, way]
                if s < n - 3 and flaw != "no_credit":
                    tell(free.at[way], source)
        for way in range(2):
            o_ref[1 - way if flaw == "halves_swapped" else way] = total[way]

    scratch = (blocks(2), pltpu.VMEM((2, 2, *BLOCK), jnp.float32), DMA((2,)), DMA((2, 2)), COUNTER((2,)))
    return call(kernel, out=(2, *BLOCK), scratch=scratch)


TALL = 2 * ROWS


def add(came_ref, own_ref, total_ref):
    total_ref[...] = came_ref[...] + own_ref[...]


def overwrite(came_ref, own_ref, total_ref):
    total_ref[...] = own_ref[...]


def pass_on(came_ref, own_ref, total_ref):
    total_ref[...] = came_ref[...]


def scatter_in_hbm(body, *, n, slots_of=None):
    """Blocks in HBM; an inner pipeline streams their tiles through VMEM, where they are added."""
    count = slots_of or n - 1

    def kernel(x_ref, o_ref, slots, copied, sent, received):
        i = lax.axis_index("i")
        left, onward = lax.rem(i + n - 1, n), lax.rem(i + 1, n)
        own = pltpu.make_async_copy(x_ref.at[left], o_ref, copied)
        own.start()
        own.wait()
        admit(left)
        tile = pl.BlockSpec((ROWS, COLS), lambda k: (k, 0))
        pipeline = pltpu.emit_pipeline(body, grid=(TALL // ROWS,), in_specs=[tile, tile], out_specs=[tile])
        for s in range(n - 1):
            copy = push(o_ref, slots.at[s % count], sent, received.at[s % count], onward)
            copy.start()
            copy.wait()
            pipeline(slots.at[s % count], x_ref.at[lax.rem(i + 2 * n - 2 - s, n)], o_ref)

    def function(x):
        hbm = pl.BlockSpec(memory_space=pltpu.HBM)
        return pl.pallas_call(
            kernel,
            out_shape=[
                jax.ShapeDtypeStruct((TALL, COLS), jnp.float32),
                jax.ShapeDtypeStruct((count, TALL, COLS), jnp.float32),
            ],
            in_specs=[hbm],
            out_specs=[hbm, hbm],
            scratch_shapes=[DMA, DMA, DMA((count,))],
            compiler_params=pltpu.CompilerParams(collective_id=0),
        )(x)[0]

    return function


def in_hbm(n):
    return {"mesh": {"i": n}, "args": (f"f32[{n * n},{TALL},{COLS}]",), "expect": scattered}


def halves(n):
    return {"mesh": {"i": n}, "args": (f"f32[{n * n},2,{ROWS},{COLS}]",), "expect": scattered}


CASES = (
    right(
        "teaching_permute",
        call(permute_kernel, scratch=(DMA, DMA)),
        "whoever is written to gives leave",
        expect=shifted,
        **ring(4),
    ),
    *(
        right(f"teaching_gather_{n}", gather(n), "a receive semaphore for each step", expect=gathered, **ring(n))
        for n in (3, 4, 5)
    ),
    *(
        right(f"teaching_reduce_{n}", reduce(None, n=n), "two slots, and credits", expect=summed, **ring(n))
        for n in (3, 4, 5)
    ),
    *flawed("teaching_reduce_4", partial(reduce, n=4), REDUCE, **ring(4)),
    *flawed("teaching_reduce_4", partial(reduce, n=4), REDUCE_VALUES, expect=summed, **ring(4)),
    *(
        right(f"teaching_scatter_{n}", scatter(None, n=n), "two slots, and credits, for each way", **halves(n))
        for n in (3, 4, 5)
    ),
    *(
        right(
            f"teaching_scatter_4_{flaw}",
            scatter(flaw, n=4),
            "hearing from both sides at each step, no device is two steps ahead of the one that it sends to",
            **halves(4),
        )
        for flaw in ("no_credit", "credits_crossed")
    ),
    *flawed("teaching_scatter_4", partial(scatter, n=4), SCATTER, **halves(4)),
    *flawed("teaching_scatter_4", partial(scatter, n=4), SCATTER_VALUES, **halves(4)),
    *(
        right(f"teaching_scatter_in_hbm_{n}", scatter_in_hbm(add, n=n), "the pipeline adds", **in_hbm(n))
        for n in (2, 3, 4)
    ),
    *(
        wrong(
            f"teaching_scatter_in_hbm_{body.__name__}",
            scatter_in_hbm(body, n=3),
            "free of races, but the pipeline overwrites the sum instead of adding to it",
            "RS801",
            **in_hbm(3),
        )
        for body in (overwrite, pass_on)
    ),
    wrong(
        "teaching_scatter_in_hbm_two_slots",
        scatter_in_hbm(add, n=4, slots_of=2),
        "a slot is filled again while the pipeline reads it",
        "RS401",
        **in_hbm(4),
    ),
)
