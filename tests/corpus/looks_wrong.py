"""Right kernels that look as if they were wrong, and next to each what would be wrong."""

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
    exchanged,
    gathered,
    push,
    right,
    ring,
    shifted,
    stacked,
    tell,
    wrong,
)

HALF = ROWS // 2


def around():
    i, n = lax.axis_index("i"), lax.axis_size("i")
    return i, lax.rem(i + n - 1, n), lax.rem(i + 1, n)


def overwrite_after_send_kernel(x_ref, o_ref, mine, sent, received):
    """Only the send has to be waited for before the source is written again."""
    _, left, onward = around()
    mine[0] = x_ref[...]
    admit(left)
    copy = push(mine.at[0], o_ref, sent, received, onward)
    copy.start()
    copy.wait_send()
    mine[0] = jnp.zeros(BLOCK)
    copy.wait_recv()


def overwrite_after_receive_kernel(x_ref, o_ref, mine, sent, received):
    """That a block has come from the left says nothing about the own one."""
    _, left, onward = around()
    mine[0] = x_ref[...]
    admit(left)
    copy = push(mine.at[0], o_ref, sent, received, onward)
    copy.start()
    copy.wait_recv()
    mine[0] = jnp.zeros(BLOCK)
    copy.wait_send()


def halves(flaw):
    """The own half is written while the other half comes: they do not touch."""

    def kernel(x_ref, o_ref, sent, received):
        _, left, onward = around()
        admit(left)
        low, high = pl.ds(0, HALF), pl.ds(HALF, HALF)
        copy = push(x_ref.at[low], o_ref.at[high], sent, received, onward)
        copy.start()
        if flaw == "too_much":
            o_ref[pl.ds(0, HALF + 1)] = x_ref[pl.ds(0, HALF + 1)]
        else:
            o_ref[low] = x_ref[low]
        copy.wait()

    return call(kernel, scratch=(DMA, DMA))


def both_halves(x):
    return jnp.concatenate([x[:HALF], shifted(x)[:HALF]])


def two_on_one_semaphore(flaw):
    """Two halves on one semaphore are no harm, if both are waited for before either is used."""

    def kernel(x_ref, o_ref, came, sent, received):
        _, left, onward = around()
        admit(left)
        parts = [pl.ds(0, HALF), pl.ds(HALF, HALF)]
        copies = [push(x_ref.at[part], came.at[0, part], sent, received, onward) for part in parts]
        for copy in copies:
            copy.start()
        if flaw == "one_by_one":
            for copy, part in zip(copies, parts, strict=True):
                copy.wait_recv()
                o_ref[part] = came[0, part]
        elif flaw == "as_one":
            push(x_ref, came.at[0], sent, received, onward).wait_recv()
            o_ref[...] = came[0]
        else:
            for copy in reversed(copies):
                copy.wait_recv()
            o_ref[...] = came[0]
        push(x_ref, o_ref, sent, received, onward).wait_send()

    return call(kernel, scratch=(blocks(1), DMA, DMA))


def stand_in_kernel(x_ref, o_ref, sent, received):
    """A wait looks at nothing but the semaphore and the number of bytes."""
    i, left, onward = around()
    admit(left)
    push(x_ref, o_ref, sent, received, onward).start()
    push(x_ref, x_ref, sent, sent, i).wait_send()
    push(o_ref, o_ref, received, received, i).wait_recv()


def to_oneself_kernel(x_ref, o_ref, sent, received):
    """One's own memory needs no barrier."""
    copy = push(x_ref, o_ref, sent, received, lax.axis_index("i"))
    copy.start()
    copy.wait()


def onward_by_where_kernel(x_ref, o_ref, came, sent, received):
    """The next device is told by a condition, not by a remainder."""
    i, n = lax.axis_index("i"), lax.axis_size("i")
    admit(lax.rem(i + n - 1, n))
    to = jnp.where(i == n - 1, 0, i + 1)
    copy = push(x_ref, o_ref, sent, received, to)
    copy.start()
    copy.wait()
    came[0] = o_ref[...]


def floor_mod_kernel(x_ref, o_ref, sent, received):
    """`%` of Python never gives a negative number."""
    i, n = lax.axis_index("i"), lax.axis_size("i")
    admit((i - 1) % n)
    copy = push(x_ref, o_ref, sent, received, (i + 1) % n)
    copy.start()
    copy.wait()


def truncating_remainder_kernel(x_ref, o_ref, sent, received):
    """lax.rem does: of -1, it is -1."""
    i, n = lax.axis_index("i"), lax.axis_size("i")
    admit(lax.rem(i - 1, n))
    copy = push(x_ref, o_ref, sent, received, lax.rem(i + 1, n))
    copy.start()
    copy.wait()


def counts(given, taken):
    """`given` units at a time from the left, taken in other portions."""

    def kernel(x_ref, o_ref, sent, received, ready):
        _, left, onward = around()
        admit(left)
        copy = push(x_ref, o_ref, sent, received, onward)
        copy.start()
        copy.wait()
        for units in given:
            tell(ready, onward, units)
        for units in taken:
            pl.semaphore_wait(ready, units)

    return call(kernel, scratch=(DMA, DMA, COUNTER))


def flag(flaw):
    """A signal after the block on another semaphore says nothing about the block; waiting for both does."""

    def kernel(x_ref, o_ref, came, sent, received, ready):
        _, left, onward = around()
        admit(left)
        copy = push(x_ref, came.at[0], sent, received, onward)
        copy.start()
        copy.wait_send()
        tell(ready, onward)
        pl.semaphore_wait(ready, 1)
        if flaw == "flag_only":
            o_ref[...] = came[0]
        copy.wait_recv()
        if flaw != "flag_only":
            o_ref[...] = came[0]

    return call(kernel, scratch=(blocks(1), DMA, DMA, COUNTER))


def late_waits(n):
    """Blocks that are not passed on are waited for at the end, in any order."""

    def kernel(x_ref, o_ref, sent, received):
        i = lax.axis_index("i")
        others = [lax.rem(i + d, n) for d in range(1, n)]
        admit(*others, targets=n - 1)
        copies = [push(x_ref.at[to], o_ref.at[i], sent, received.at[k], to) for k, to in enumerate(others)]
        for copy in reversed(copies):
            copy.start()
        o_ref[i] = x_ref[i]
        for copy in copies[1:] + copies[:1]:
            copy.wait_recv()
        for copy in copies:
            copy.wait_send()

    return call(kernel, out=(n, *BLOCK), scratch=(DMA, DMA((n - 1,))))


def gather_from_operand(n):
    """The first step sends the operand itself, so the own block need not have arrived in its place."""

    def kernel(x_ref, o_ref, own, sent, received):
        i, left, onward = around()
        first = pltpu.make_async_copy(x_ref, o_ref.at[i], own)
        first.start()
        admit(left)
        for s in range(n - 1):
            block = o_ref.at[lax.rem(i + n - s, n)]
            copy = push(x_ref if s == 0 else block, block, sent, received.at[s], onward)
            copy.start()
            copy.wait()
        first.wait()

    return call(kernel, out=(n, *BLOCK), scratch=(DMA, DMA, DMA((n - 1,))))


def sends_waited_at_the_end(n):
    """No source is written again, so all sends may wait until the end, on one semaphore."""

    def kernel(x_ref, o_ref, sent, received):
        i, left, onward = around()
        o_ref[i] = x_ref[...]
        admit(left)
        copies = []
        for s in range(n - 1):
            block = o_ref.at[lax.rem(i + n - s, n)]
            copies.append(push(block, block, sent, received.at[s], onward))
            copies[-1].start()
            copies[-1].wait_recv()
        for copy in copies:
            copy.wait_send()

    return call(kernel, out=(n, *BLOCK), scratch=(DMA, DMA((n - 1,))))


def logical_beside_one(x):
    """A LOGICAL id on a mesh whose other axis has one device."""

    def kernel(x_ref, o_ref, sent, received):
        i, n = lax.axis_index("y"), lax.axis_size("y")
        barrier = pltpu.get_barrier_semaphore()
        logical = pl.DeviceIdType.LOGICAL
        pl.semaphore_signal(barrier, 1, device_id=lax.rem(i + n - 1, n), device_id_type=logical)
        pl.semaphore_wait(barrier, 1)
        copy = pltpu.make_async_remote_copy(
            x_ref, o_ref, sent, received, device_id=lax.rem(i + 1, n), device_id_type=logical
        )
        copy.start()
        copy.wait()

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[DMA, DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(x)


def along_y(x):
    return lax.ppermute(x, "y", [(k, (k + 1) % 4) for k in range(4)])


BESIDE_ONE = {"mesh": {"x": 1, "y": 4}, "args": (f"f32[{4 * ROWS},{COLS}]",), "in_specs": "x+y", "out_specs": "x+y"}
BUFFERED = (blocks(1), DMA, DMA)
PLAIN = (DMA, DMA)

CASES = (
    right(
        "overwritten_after_send",
        call(overwrite_after_send_kernel, scratch=BUFFERED),
        "it has been read",
        expect=shifted,
        **ring(3),
    ),
    wrong(
        "overwritten_after_receive",
        call(overwrite_after_receive_kernel, scratch=BUFFERED),
        "a block that has come says nothing about the own one",
        "RS401",
        **ring(3),
    ),
    right("halves", halves(None), "they do not touch", expect=both_halves, **ring(3)),
    wrong("halves_too_much", halves("too_much"), "one row too many is written", "RS406", **ring(3)),
    *(
        right(
            f"two_on_one_semaphore_{how}", two_on_one_semaphore(how), "both are waited for", expect=shifted, **ring(3)
        )
        for how in ("as_one", "reversed")
    ),
    wrong(
        "two_on_one_semaphore_one_by_one",
        two_on_one_semaphore("one_by_one"),
        "the second half can satisfy the wait for the first",
        "RS405",
        **ring(3),
    ),
    right("stand_in", call(stand_in_kernel, scratch=PLAIN), "bytes are what is waited for", expect=shifted, **ring(4)),
    right(
        "to_oneself",
        call(to_oneself_kernel, scratch=PLAIN, barrier=False),
        "it has entered",
        expect=lambda x: x,
        **ring(4),
    ),
    right(
        "ring_by_where",
        call(onward_by_where_kernel, scratch=BUFFERED),
        "0 comes after the last",
        expect=shifted,
        **ring(4),
    ),
    right("floor_mod", call(floor_mod_kernel, scratch=PLAIN), "never negative", expect=shifted, **ring(4)),
    wrong("truncating_remainder", call(truncating_remainder_kernel, scratch=PLAIN), "-1 % n is -1", "RS523", **ring(4)),
    *(
        right(f"counts_{'_'.join(map(str, given))}", counts(given, taken), "as many in all", expect=shifted, **ring(4))
        for given, taken in (((2,), (1, 1)), ((1, 1), (2,)), ((3, 1), (2, 2)))
    ),
    wrong("counts_one_less", counts((2, 1), (1, 1)), "three given and two taken", "RS502", **ring(4)),
    wrong("counts_one_more", counts((1, 1), (3,)), "two given and three taken", "RS501", **ring(4)),
    right("flag_and_block", flag(None), "the block is waited for, too", expect=shifted, **ring(4)),
    wrong("flag_only", flag("flag_only"), "the flag may overtake the block", "RS404", **ring(4)),
    *(
        right(f"late_waits_{n}", late_waits(n), "nothing is read before", expect=exchanged, **stacked(n))
        for n in (3, 4)
    ),
    *(
        right(f"gather_from_operand_{n}", gather_from_operand(n), "own block later", expect=gathered, **ring(n))
        for n in (2, 3, 4)
    ),
    *(
        right(f"sends_at_the_end_{n}", sends_waited_at_the_end(n), "sources stay", expect=gathered, **ring(n))
        for n in (3, 4)
    ),
    right(
        "logical_beside_one", logical_beside_one, "one axis of one device does not count", expect=along_y, **BESIDE_ONE
    ),
)
