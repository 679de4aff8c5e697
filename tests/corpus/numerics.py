"""What a kernel computes, beside its transfers: close to right, and not right; memory nobody has written; loops."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, DMA, right, undecided, wrong

F32, I32 = jnp.float32, jnp.int32


def elementwise(function, dtype=F32):
    """A kernel that stores the function of what it loads."""

    def kernel(x_ref, o_ref):
        o_ref[...] = function(x_ref[...])

    return lambda x: pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, dtype))(x)


def on_scratch(kernel, *dtypes, space=pltpu.VMEM):
    """A kernel on memory of its own, as large as the operand."""

    def function(x):
        scratch = [space(x.shape, dtype) for dtype in dtypes]
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), scratch_shapes=scratch)(x)

    return function


def accumulates(x_ref, o_ref):
    o_ref[...] += x_ref[...]


def clears_first(x_ref, o_ref):
    o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[...] += x_ref[...]


def clears_half(x_ref, o_ref):
    o_ref[0:4] = jnp.zeros((4, 128), F32)
    o_ref[...] += x_ref[...]


def accumulates_bits(x_ref, o_ref):
    o_ref[...] = pltpu.bitcast(pltpu.bitcast(o_ref[...] + x_ref[...], I32), F32)


def flag_decides(x_ref, o_ref, flag):
    o_ref[...] = jnp.where(flag[...] > (1 << 21), 0, x_ref[...])


def flag_is_set(x_ref, o_ref, flag):
    flag[...] = jnp.zeros_like(flag)
    flag_decides(x_ref, o_ref, flag)


def junk_is_left_out(x_ref, o_ref, junk):
    """The rows that nothing has written are loaded, and not chosen."""
    junk[0:4] = x_ref[0:4]
    rows = lax.broadcasted_iota(I32, BLOCK, 0)
    o_ref[...] = jnp.where(rows < 4, junk[...], x_ref[...])


def junk_is_chosen(x_ref, o_ref, junk):
    junk[0:4] = x_ref[0:4]
    rows = lax.broadcasted_iota(I32, BLOCK, 0)
    o_ref[...] = jnp.where(rows < 5, junk[...], x_ref[...])


def junk_times_zero(x_ref, o_ref, junk):
    o_ref[...] = x_ref[...] + 0 * junk[...]


def junk_through_a_copy(x_ref, o_ref, junk, other, done):
    copy = pltpu.make_async_copy(junk, other, done)
    copy.start()
    copy.wait()
    o_ref[...] = x_ref[...] + other[...]


def junk_summed(x_ref, o_ref, junk):
    junk[:, 0:64] = x_ref[:, 0:64]
    o_ref[...] = x_ref[...] + jnp.sum(junk[...], axis=1, keepdims=True)


def half_summed(x_ref, o_ref, junk):
    junk[:, 0:64] = x_ref[:, 0:64]
    o_ref[...] = x_ref[...] + jnp.sum(junk[:, 0:64], axis=1, keepdims=True)


def with_copy(x):
    scratch = [pltpu.VMEM(x.shape, x.dtype), pltpu.VMEM(x.shape, x.dtype), DMA]
    return pl.pallas_call(
        junk_through_a_copy, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), scratch_shapes=scratch
    )(x)


def loop(more, step):
    return elementwise(lambda x: lax.while_loop(more, step, x))


def not_all_take_part(x):
    """Rank 2 adds nothing up: the others wait for it."""
    y = elementwise(lambda x: x)(x)
    return lax.cond(lax.axis_index("i") == 2, lambda y: y, lambda y: lax.psum(y, "i"), y)


def data_decides_who(x):
    y = elementwise(lambda x: x)(x)
    return lax.cond(y[0, 0] > 0, lambda y: y, lambda y: lax.psum(y, "i"), y)


def in_each_round(x):
    y = elementwise(lambda x: x)(x)
    return lax.fori_loop(0, 2, lambda _, y: lax.psum(y, "i"), y)


def all_take_part(x):
    return lax.psum(elementwise(lambda x: x)(x), "i")


ONE = {"mesh": {"i": 1}, "args": ("f32[8,128]",)}
LARGE = {"args": ("f32[8192,1024]",)}

CASES = (
    right("exp_by_powers_of_two", elementwise(lambda x: jnp.exp2(x * 1.4426950408889634)), "rounding", expect=jnp.exp),
    wrong("exp_and_one", elementwise(lambda x: jnp.exp(x) - 1), "off by one everywhere", "RS801", expect=jnp.exp),
    wrong("exp_and_a_little", elementwise(lambda x: jnp.exp(x) * 1.001), "by a thousandth", "RS801", expect=jnp.exp),
    right("tanh_by_exp", elementwise(lambda x: 1 - 2 / (1 + jnp.exp(2 * x))), "rounding", expect=jnp.tanh),
    wrong(
        "clipped", elementwise(lambda x: jnp.clip(x, -100, 100)), "another value beyond", "RS801", expect=lambda x: x
    ),
    wrong("clipped_far_out", elementwise(lambda x: jnp.clip(x, -1e5, 1e5)), "beyond 1e5", "RS801", expect=lambda x: x),
    right(
        "clipped_both", elementwise(lambda x: jnp.clip(x, -9, 9)), "as is expected", expect=lambda x: jnp.clip(x, -9, 9)
    ),
    wrong(
        "truncated", elementwise(lambda x: x.astype(I32).astype(F32)), "fractions are lost", "RS801", expect=lambda x: x
    ),
    wrong("small_lost", elementwise(lambda x: jnp.where(abs(x) < 1e-3, 0.0, x)), "2^-9", "RS801", expect=lambda x: x),
    wrong("sign_lost", elementwise(jnp.abs), "negative ones", "RS801", expect=lambda x: x),
    wrong("nan_lost", elementwise(lambda x: jnp.where(x == x, x, 0.0)), "not-a-number", "RS801", expect=lambda x: x),
    wrong("infinity_lost", elementwise(jnp.nan_to_num), "infinities", "RS801", expect=lambda x: x),
    right("through_bits", elementwise(lambda x: pltpu.bitcast(pltpu.bitcast(x, I32), F32)), "", expect=lambda x: x),
    wrong("uncleared", on_scratch(accumulates), "the result holds anything at first", "RS802"),
    wrong("uncleared_large", on_scratch(accumulates), "of 8 million elements, too", "RS802", **LARGE),
    wrong("uncleared_bits", on_scratch(accumulates_bits), "through other types, too", "RS802"),
    wrong("cleared_half", on_scratch(clears_half), "four rows are not cleared", "RS802"),
    right("cleared", on_scratch(clears_first), "cleared first", expect=lambda x: x),
    right("cleared_large", on_scratch(clears_first), "cleared first", **LARGE),
    wrong("flag_unwritten", on_scratch(flag_decides, I32), "a flag that nothing has written", "RS802"),
    right("flag_written", on_scratch(flag_is_set, I32), "set before it decides", expect=lambda x: x),
    right("junk_left_out", on_scratch(junk_is_left_out, F32), "not chosen", expect=lambda x: x),
    wrong("junk_chosen", on_scratch(junk_is_chosen, F32), "one row too many", "RS802"),
    wrong("junk_times_zero", on_scratch(junk_times_zero, F32), "not-a-number times zero", "RS802"),
    wrong("junk_copied", with_copy, "a DMA moves it on", "RS802"),
    wrong("junk_summed", on_scratch(junk_summed, F32), "half of a row is not written", "RS802"),
    right("half_summed", on_scratch(half_summed, F32), "the other half is not read"),
    wrong("endless", loop(lambda t: jnp.sum(t) * 0 == 0, lambda t: t * 1.0), "every round is alike", "RS506", **ONE),
    right("ends", loop(lambda t: jnp.max(t) > 0, lambda t: t - 1), "comes nearer", **ONE),
    undecided("open_end", loop(lambda t: jnp.sum(t) < 1e30, lambda t: t + 0.5), "needs ages", "RS703", **ONE),
    undecided("not_all_take_part", not_all_take_part, "some wait for a rank that does not come", "RS703"),
    undecided("data_decides_who", data_decides_who, "who takes part in the sum"),
    right("in_each_round", in_each_round, "all come twice", expect=lambda x: 4 * lax.psum(x, "i")),
    right("all_take_part", all_take_part, "all come", expect=lambda x: lax.psum(x, "i")),
)
