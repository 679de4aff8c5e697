"""Meshes of several axes: device ids that name one axis, all axes, or several taken as one."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import BLOCK, COLS, DMA, ROWS, flawed, right, wrong

MESH, LOGICAL = pl.DeviceIdType.MESH, pl.DeviceIdType.LOGICAL


def around(axis):
    """This device's place on an axis, the place before and the place after."""
    i, n = lax.axis_index(axis), lax.axis_size(axis)
    return i, lax.rem(i + n - 1, n), lax.rem(i + 1, n)


def admit(writer, kind=MESH, targets=1):
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id=writer, device_id_type=kind)
    pl.semaphore_wait(barrier, targets)


def push(source, target, sent, received, device, kind=MESH):
    return pltpu.make_async_remote_copy(source, target, sent, received, device_id=device, device_id_type=kind)


def called(kernel, *, out=BLOCK, scratch, number=0):
    def function(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(out, x.dtype),
            in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)],
            out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
            scratch_shapes=scratch,
            compiler_params=pltpu.CompilerParams(collective_id=number),
        )(x)

    return function


SHIFT = {
    "logical_along": ("RS522", "the place on one axis as the number of a device", "semaphore_signal"),
    "logical_signal": ("RS522", "only the signal's device is told by a number"),
    "logical_zero": ("RS522", "device 0 of all is not device 0 of each row", "start"),
    "other_axis": ("RS523", "the place on this axis is used on the other one"),
    "not_wrapped": ("RS523", "beyond the end of the axis", "start"),
    "negative": ("RS523", "before the beginning of the axis", "semaphore_signal"),
    "signal_crosswise": ("RS524", "the signal goes along the other axis"),
    "tuple_turned": ("RS523", "the places in the order of the axes turned round"),
}


def shift(flaw, *, axis="y", spelling="dict"):
    """One place on along an axis; the other axis is kept."""
    other = "x" if axis == "y" else "y"

    def at(place):
        if spelling == "tuple" or flaw == "tuple_turned":
            places = {other: lax.axis_index(other), axis: place}
            turned = ("y", "x") if flaw == "tuple_turned" else ("x", "y")
            return tuple(places[name] for name in turned)
        if spelling == "full":
            return {other: lax.axis_index(other), axis: place}
        return {axis: place}

    def kernel(x_ref, o_ref, sent, received):
        i, before, after = around(axis)
        if flaw == "not_wrapped":
            after = i + 1
        if flaw == "negative":
            before = i - 1
        match flaw:
            case "logical_signal":
                admit(before, LOGICAL)
            case "signal_crosswise":
                admit({other: around(other)[1]})
            case "logical_along":
                admit(before, LOGICAL)
            case _:
                admit(at(before))
        match flaw:
            case "logical_along":
                copy = push(x_ref, o_ref, sent, received, after, LOGICAL)
            case "logical_zero":
                copy = push(x_ref, o_ref, sent, received, 0, LOGICAL)
            case "other_axis":
                copy = push(x_ref, o_ref, sent, received, {other: after})
            case _:
                copy = push(x_ref, o_ref, sent, received, at(after))
        copy.start()
        copy.wait()

    return called(kernel, scratch=(DMA, DMA))


def along(x, axis="y"):
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(k, (k + 1) % n) for k in range(n)])


def diagonal_kernel(x_ref, o_ref, sent, received):
    _, above, below = around("x")
    _, before, after = around("y")
    admit({"x": above, "y": before})
    copy = push(x_ref, o_ref, sent, received, {"x": below, "y": after})
    copy.start()
    copy.wait()


def transpose_kernel(x_ref, o_ref, sent, received):
    """Device (x, y) swaps with (y, x); those on the diagonal swap with themselves."""
    there = {"x": lax.axis_index("y"), "y": lax.axis_index("x")}
    admit(there)
    copy = push(x_ref, o_ref, sent, received, there)
    copy.start()
    copy.wait()


def snake_kernel(x_ref, o_ref, sent, received):
    """Both axes as one ring of all devices."""
    n = lax.axis_size(("x", "y"))
    i = lax.axis_index(("x", "y"))
    admit({("x", "y"): lax.rem(i + n - 1, n)})
    copy = push(x_ref, o_ref, sent, received, {("x", "y"): lax.rem(i + 1, n)})
    copy.start()
    copy.wait()


def gather_steps(o_ref, block, axis, sent, received):
    """The ring all-gather along one axis; `block(k)` is where the block of place k is kept."""
    i, _, after = around(axis)
    n = lax.axis_size(axis)
    for s in range(n - 1):
        ref = o_ref.at[block(lax.rem(i + n - s, n))]
        copy = push(ref, ref, sent, received.at[s], {axis: after})
        copy.start()
        copy.wait()


GATHER = {
    "one_barrier": ("RS524", "the barrier covers the neighbours along y only", "gather_steps("),
    "one_semaphore": (
        "RS405",
        "rows that come from above can satisfy the wait for a block that comes from the side",
        "gather_steps(",
    ),
    "rows_too_soon": ("RS404", "the rows go on before their last block has come"),
}
GATHER_VALUES = {
    "turned": ("RS801", "each row is stored in reverse order"),
    "rows_missing": ("RS435", "only the own row is gathered"),
    "transposed": ("RS801", "x and y are mixed up in the places, consistently"),
}


def gather(flaw, *, sides=(2, 2)):
    """Along y, then whole rows along x. o_ref: [X, Y, rows, cols]"""

    def kernel(x_ref, o_ref, sent, received):
        (x, above, _), (y, before, _) = around("x"), around("y")
        place = (x, sides[1] - 1 - y if flaw == "turned" else y)
        if flaw == "transposed":
            place = (y, x)
        o_ref[place] = x_ref[...]
        admit({"y": before})
        if flaw != "one_barrier":
            admit({"x": above})
        if flaw == "transposed":
            gather_steps(o_ref, lambda k: (k, x), "y", sent, received.at[0])
            gather_steps(o_ref, lambda k: (slice(None), k), "x", sent, received.at[1])
            return
        if flaw == "rows_too_soon":
            ref = o_ref.at[x, y]
            late = push(ref, ref, sent, received.at[0, 0], {"y": lax.rem(y + 1, sides[1])})
            late.start()
            late.wait_send()
            gather_steps(o_ref, lambda k: k, "x", sent, received.at[1])
            late.wait_recv()
            return
        gather_steps(o_ref, lambda k: (x, sides[1] - 1 - k if flaw == "turned" else k), "y", sent, received.at[0])
        if flaw != "rows_missing":
            rows = received.at[0 if flaw == "one_semaphore" else 1]
            gather_steps(o_ref, lambda k: k, "x", sent, rows)

    return called(kernel, out=(*sides, *BLOCK), scratch=(DMA, DMA((2, max(sides) - 1))))


def gathered(x):
    return lax.all_gather(lax.all_gather(x, "y"), "x")


REDUCE = {
    "one_barrier": ("RS524", "the barrier covers the partner along x only"),
    "one_slot": ("RS401", "the sum that comes along y can land before the one along x is read"),
    "one_semaphore": ("RS405", "the sum that comes along y can satisfy the wait for the one along x"),
}
REDUCE_VALUES = {
    "one_axis": ("RS801", "the sum is over one axis only"),
    "own_again": ("RS801", "along y, the own block is sent, not the sum along x"),
    "same_axis_twice": ("RS801", "the sum goes along x twice"),
}


def reduce(flaw):
    """On 2 × 2: along x, then along y."""

    def kernel(x_ref, o_ref, slots, sent, received):
        partners = {"x": {"x": 1 - lax.axis_index("x")}, "y": {"y": 1 - lax.axis_index("y")}}
        axes = {"one_axis": ("x",), "same_axis_twice": ("x", "x")}.get(flaw, ("x", "y"))
        o_ref[...] = x_ref[...]
        admit(partners["x"])
        if flaw not in ("one_barrier", "one_axis", "same_axis_twice"):
            admit(partners["y"])
        for s, axis in enumerate(axes):
            k, counted = (0 if flaw == "one_slot" else s), (0 if flaw == "one_semaphore" else s)
            source = x_ref if flaw == "own_again" else o_ref
            copy = push(source, slots.at[k], sent, received.at[counted], partners[axis])
            copy.start()
            copy.wait()
            o_ref[...] += slots[k]

    return called(kernel, scratch=(pltpu.VMEM((2, *BLOCK), jnp.float32), DMA, DMA((2,))))


def summed(x):
    return lax.psum(x, ("x", "y"))


def mesh(x, y):
    return {
        "mesh": {"x": x, "y": y},
        "args": (f"f32[{x * y * ROWS},{COLS}]",),
        "in_specs": "x+y",
        "out_specs": "x+y",
    }


def snake(x):
    everything = gathered(x)
    n = everything.shape[0] * everything.shape[1]
    return everything.reshape(n, *x.shape)[lax.rem(lax.axis_index(("x", "y")) + n - 1, n)]


def diagonal(x):
    return along(along(x, "x"), "y")


def transposed(x):
    return gathered(x)[lax.axis_index("y"), lax.axis_index("x")]


CASES = (
    *(
        right(
            f"mesh_shift_{axis}_{spelling}",
            shift(None, axis=axis, spelling=spelling),
            "the other axis is kept",
            expect=wanted,
            **mesh(2, 4),
        )
        for axis in ("x", "y")
        for spelling in ("dict", "full", "tuple")
        for wanted in (partial(along, axis=axis),)
    ),
    right(
        "mesh_diagonal", called(diagonal_kernel, scratch=(DMA, DMA)), "both axes at once", expect=diagonal, **mesh(2, 3)
    ),
    right(
        "mesh_transpose",
        called(transpose_kernel, scratch=(DMA, DMA)),
        "some swap with themselves",
        expect=transposed,
        **mesh(3, 3),
    ),
    right("mesh_snake", called(snake_kernel, scratch=(DMA, DMA)), "axes as one", expect=snake, **mesh(2, 3)),
    *(
        right(f"mesh_gather_{x}_{y}", gather(None, sides=(x, y)), "along y, then x", expect=gathered, **mesh(x, y))
        for x, y in ((2, 2), (2, 4), (3, 2))
    ),
    right("mesh_reduce", reduce(None), "along x, then y", expect=summed, **mesh(2, 2)),
    wrong(
        "mesh_shift_of_wrong_axis",
        shift(None, axis="x"),
        "free of races, along the wrong axis",
        "RS801",
        expect=partial(along, axis="y"),
        **mesh(2, 4),
    ),
    *flawed("mesh_shift", shift, SHIFT, **mesh(2, 4)),
    *flawed("mesh_gather", gather, GATHER, **mesh(2, 2)),
    *flawed("mesh_gather", gather, GATHER_VALUES, expect=gathered, **mesh(2, 2)),
    *flawed("mesh_reduce", reduce, REDUCE, **mesh(2, 2)),
    *flawed("mesh_reduce", reduce, REDUCE_VALUES, expect=summed, **mesh(2, 2)),
)
