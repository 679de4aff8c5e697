"""The collectives in other dtypes, their results by name, and with loops of every kind."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import DMA, ROWS, admit, push, right, wrong

N = 4
COLS = 128
ROWS_OF = {"f32": 8, "bf16": 16, "i32": 8, "i8": 32}


def called(kernel, x, *, out, scratch):
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(out, x.dtype),
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(x)


def around():
    i = lax.axis_index("i")
    return i, lax.rem(i + N - 1, N), lax.rem(i + 1, N)


def rows(block, count):
    return pl.ds(pl.multiple_of(block * count, count), count)


def for_each(steps, body):
    pl.loop(0, steps)(body)


def by_fori_loop(steps, body):
    lax.fori_loop(0, steps, lambda s, _: body(s), None)


def by_while_loop(steps, body):
    def once(s):
        body(s)
        return s + 1

    lax.while_loop(lambda s: s < steps, once, 0)


def by_scan(steps, body):
    def once(s, _):
        body(s)
        return s + 1, None

    lax.scan(once, 0, None, length=steps)


def written_out(steps, body):
    for s in range(steps):
        body(s)


def gather(x, loop=written_out, step_of=lambda s: s):
    """[rows, cols] → [N * rows, cols], in rows of one result."""
    count = x.shape[0]

    def kernel(x_ref, o_ref, sent, received):
        i, left, onward = around()
        o_ref[rows(i, count)] = x_ref[...]
        admit(left)

        def step(s):
            mine = o_ref.at[rows(lax.rem(i + N - s, N), count)]
            copy = push(mine, mine, sent, received.at[step_of(s)], onward)
            copy.start()
            copy.wait()

        loop(N - 1, step)

    return called(kernel, x, out=(N * count, x.shape[1]), scratch=[DMA, DMA((N - 1,))])


def scatter(x, loop=written_out, step_of=lambda s: s):
    """[N * rows, cols] → [rows, cols]"""
    count = x.shape[0] // N

    def kernel(x_ref, o_ref, slots, sent, received):
        i, left, onward = around()
        o_ref[...] = x_ref[rows(left, count)]
        admit(left)

        def step(s):
            k = step_of(s)
            copy = push(o_ref, slots.at[k], sent, received.at[k], onward)
            copy.start()
            copy.wait()
            o_ref[...] = slots[k] + x_ref[rows(lax.rem(i + 2 * N - 2 - s, N), count)]

        loop(N - 1, step)

    slots = pltpu.VMEM((N - 1, count, x.shape[1]), x.dtype)
    return called(kernel, x, out=(count, x.shape[1]), scratch=[slots, DMA, DMA((N - 1,))])


def everything_added(x):
    """[rows, cols] → [rows, cols]: every block travels the whole ring and is added up as it passes."""

    def kernel(x_ref, o_ref, slots, sent, received):
        _, left, onward = around()
        slots[0] = x_ref[...]
        o_ref[...] = x_ref[...]
        admit(left)
        for s in range(N - 1):
            copy = push(slots.at[s], slots.at[s + 1], sent, received.at[s], onward)
            copy.start()
            copy.wait()
            o_ref[...] += slots[s + 1]

    return called(kernel, x, out=x.shape, scratch=[pltpu.VMEM((N, *x.shape), x.dtype), DMA, DMA((N - 1,))])


def to_each(x):
    """[N * rows, cols] → [N * rows, cols]"""
    count = x.shape[0] // N

    def kernel(x_ref, o_ref, sent, received):
        i = lax.axis_index("i")
        others = [lax.rem(i + d, N) for d in range(1, N)]
        o_ref[rows(i, count)] = x_ref[rows(i, count)]
        admit(*others, targets=N - 1)
        copies = [
            push(x_ref.at[rows(other, count)], o_ref.at[rows(i, count)], sent, received.at[d], other)
            for d, other in enumerate(others)
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    return called(kernel, x, out=x.shape, scratch=[DMA, DMA((N - 1,))])


COLLECTIVES = {"all_gather": gather, "reduce_scatter": scatter, "all_reduce": everything_added, "all_to_all": to_each}
LOOPS = (for_each, by_fori_loop, by_while_loop, by_scan)


def operand(name, spelling, count):
    """Of one device: a block, or one for each device."""
    many = N if name in ("reduce_scatter", "all_to_all") else 1
    return {"args": (f"{spelling}[{N * many * count},{COLS}]",)}


def started_one_late(s):
    return lax.rem(s + 1, N - 1)


CASES = (
    *(
        right(f"{name}_{spelling}", function, "in every dtype", expect=name, **operand(name, spelling, count))
        for name, function in COLLECTIVES.items()
        for spelling, count in ROWS_OF.items()
    ),
    *(
        right(
            f"{name}_{loop.__name__}",
            lambda x, function=COLLECTIVES[name], loop=loop: function(x, loop),
            "the steps are a loop of the kernel",
            expect=name,
            **operand(name, "f32", ROWS),
        )
        for name in ("all_gather", "reduce_scatter")
        for loop in LOOPS
    ),
    *(
        right(
            f"{name}_slots_turned",
            lambda x, function=COLLECTIVES[name]: function(x, for_each, started_one_late),
            "which semaphore is for which step does not matter, so long as all agree",
            expect=name,
            **operand(name, "f32", ROWS),
        )
        for name in ("all_gather", "reduce_scatter")
    ),
    *(
        wrong(
            f"{name}_one_slot_{loop.__name__}",
            lambda x, function=COLLECTIVES[name], loop=loop: function(x, loop, lambda s: 0),
            "one semaphore, or slot, for all steps",
            code,
            line="copy.start()",
            **operand(name, "f32", ROWS),
        )
        for name, code in (("all_gather", "RS405"), ("reduce_scatter", "RS401"))
        for loop in LOOPS
    ),
)
