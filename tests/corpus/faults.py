"""Other things that go wrong in a kernel, and some that an audit cannot decide."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import (
    BLOCK,
    COUNTER,
    DMA,
    call,
    meet,
    neighbours,
    push,
    right,
    tell,
    undecided,
    wrong,
)

TORUS = {"mesh": {"x": 2, "y": 4}, "args": ("f32[64,128]",), "in_specs": "x+y", "out_specs": "x+y"}


def along_y_kernel(x_ref, o_ref, sent, received):
    """Shifts along y; {"y": …} keeps the other axis."""
    _, left, onward = neighbours("y")
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id={"y": left}, device_id_type=pl.DeviceIdType.MESH)
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, sent, received, device_id={"y": onward}, device_id_type=pl.DeviceIdType.MESH
    )
    copy.start()
    copy.wait()


def logical_along_y_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours("y")
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id=left, device_id_type=pl.DeviceIdType.LOGICAL)
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, sent, received, device_id=onward, device_id_type=pl.DeviceIdType.LOGICAL
    )
    copy.start()
    copy.wait()


def counted_along_y_kernel(x_ref, o_ref, sent, received):
    """The number counts all devices, as LOGICAL means it: x * Y + y."""
    _, left, onward = neighbours("y")
    first = lax.axis_index("x") * lax.axis_size("y")
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id=first + left, device_id_type=pl.DeviceIdType.LOGICAL)
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, sent, received, device_id=first + onward, device_id_type=pl.DeviceIdType.LOGICAL
    )
    copy.start()
    copy.wait()


def past_the_end_kernel(x_ref, o_ref, done):
    i = lax.axis_index("i")
    copy = pltpu.make_async_copy(x_ref, o_ref.at[i + 1], done)
    copy.start()
    copy.wait()


def long_slice_kernel(x_ref, o_ref, done):
    i = lax.axis_index("i")
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(0, 4)], o_ref.at[pl.ds(2 * i, 4)], done)
    copy.start()
    copy.wait()


def no_wrap_kernel(x_ref, o_ref, sent, received):
    i = lax.axis_index("i")
    barrier = pltpu.get_barrier_semaphore()
    tell(barrier, i - 1)
    pl.semaphore_wait(barrier, 1)
    copy = push(x_ref, o_ref, sent, received, lax.rem(i + 1, 4))
    copy.start()
    copy.wait()


def other_size_kernel(x_ref, o_ref, done):
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(0, 4)], o_ref, done)
    copy.start()
    copy.wait()


def met_without_id_kernel(x_ref, o_ref):
    _, left, onward = neighbours()
    meet(left, onward)
    o_ref[...] = x_ref[...]


def copy_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def write_operand_kernel(x_ref, o_ref, done):
    for copy in (pltpu.make_async_copy(x_ref, o_ref, done), pltpu.make_async_copy(o_ref, x_ref, done)):
        copy.start()
        copy.wait()


def nothing_kernel(x_ref, o_ref, buffer):
    buffer[...] = x_ref[...]


def scope_left_early_kernel(x_ref, o_ref):
    def stream(buffer, done):
        pltpu.make_async_copy(x_ref, buffer, done).start()
        o_ref[...] = jnp.zeros(BLOCK, jnp.float32)

    pl.run_scoped(stream, pltpu.VMEM(BLOCK, jnp.float32), DMA)


def scope_kernel(x_ref, o_ref):
    def stream(buffer, done):
        @pl.loop(0, 3)
        def _(_):
            copy = pltpu.make_async_copy(x_ref, buffer, done)
            copy.start()
            copy.wait()

        o_ref[...] = buffer[...]

    pl.run_scoped(stream, pltpu.VMEM(BLOCK, jnp.float32), DMA)


def hangs_on_data_kernel(x_ref, o_ref, done):
    @pl.when(x_ref[0, 0] > 0)
    def _():
        copy = pltpu.make_async_copy(x_ref, o_ref, done)
        copy.start()
        copy.wait()


def rounds_on_data_kernel(x_ref, o_ref, done):
    def body(_):
        copy = pltpu.make_async_copy(x_ref, o_ref, done)
        copy.start()
        copy.wait()
        return x_ref[1, 1]

    lax.while_loop(lambda value: value < 1, body, x_ref[0, 0])


def looks_at_semaphore_kernel(x_ref, o_ref, done):
    copy = pltpu.make_async_copy(x_ref, o_ref, done)
    copy.start()
    o_ref[0, 0] = pl.semaphore_read(done).astype(jnp.float32)
    copy.wait()


def scoped_and_remote_kernel(x_ref, o_ref, sent):
    """The memory that the neighbour writes into exists only now and then."""
    _, left, onward = neighbours()
    meet(left, onward)

    @pl.loop(0, 2)
    def _(_):
        def body(buffer, received):
            copy = push(x_ref, buffer, sent, received, onward)
            copy.start()
            copy.wait()
            o_ref[...] = buffer[...]

        pl.run_scoped(body, pltpu.VMEM(BLOCK, jnp.float32), DMA)


def remembers_its_place_kernel(x_ref, o_ref, place, sent, received, free):
    """An index goes through scalar memory; branches hang on it."""
    _, left, onward = neighbours()
    meet(left, onward)
    place[0] = lax.axis_index("i")

    @pl.when(place[0] % 2 == 0)
    def _():
        tell(free, place[0] + 1)
        pltpu.make_async_copy(x_ref, o_ref, received).wait()

    @pl.when(place[0] % 2 == 1)
    def _():
        pl.semaphore_wait(free, 1)
        copy = push(x_ref, o_ref, sent, received, place[0] - 1)
        copy.start()
        copy.wait_send()
        o_ref[...] = x_ref[...]


def forgets_its_neighbour_kernel(x_ref, o_ref, place, sent, received):
    place[0] = lax.axis_index("i")
    barrier = pltpu.get_barrier_semaphore()
    tell(barrier, place[0] - place[0] % 2)
    tell(barrier, place[0] - place[0] % 2 + 1)
    pl.semaphore_wait(barrier, 1)  # may be its own
    o_ref[...] = x_ref[...]

    @pl.when(place[0] % 2 == 0)
    def _():
        pltpu.make_async_copy(x_ref, o_ref, received).wait()

    @pl.when(place[0] % 2 == 1)
    def _():
        copy = push(x_ref, o_ref, sent, received, place[0] - 1)
        copy.start()
        copy.wait_send()

    pl.semaphore_wait(barrier, 1)


def grid_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] + pl.program_id(0).astype(jnp.float32)


def on_a_grid(x):
    return pl.pallas_call(
        grid_kernel,
        grid=(2,),
        out_shape=jax.ShapeDtypeStruct((16, 128), jnp.float32),
        in_specs=[pl.BlockSpec((8, 128), lambda k: (k, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda k: (k, 0)),
    )(x)


def unwaited_on_a_grid(x):
    def kernel(x_ref, o_ref, buffer, done):
        pltpu.make_async_copy(x_ref, buffer, done).start()
        o_ref[...] = x_ref[...]

        @pl.when(pl.program_id(0) == 1)
        def _():
            for _ in range(2):
                pltpu.make_async_copy(x_ref, buffer, done).wait()

    return pl.pallas_call(
        kernel,
        grid=(2,),
        out_shape=jax.ShapeDtypeStruct((16, 128), jnp.float32),
        in_specs=[pl.BlockSpec((8, 128), lambda k: (k, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda k: (k, 0)),
        scratch_shapes=[pltpu.VMEM(BLOCK, jnp.float32), DMA],
    )(x)


def along_y(x):
    return lax.ppermute(x, "y", [(k, (k + 1) % 4) for k in range(4)])


def the_odd_one(x):
    """Of each pair, the block of the odd one."""
    return lax.all_gather(x, "i")[lax.axis_index("i") // 2 * 2 + 1]


def counted_up(x):
    return x + jnp.arange(16)[:, None] // 8


BUFFER = (pltpu.VMEM(BLOCK, jnp.float32),)
LOCAL = {"barrier": False, "scratch": (DMA,)}
HBM = {"memory": pltpu.HBM}

CASES = (
    right(
        "one_axis_of_a_torus",
        call(along_y_kernel, scratch=(DMA, DMA)),
        "the other axis is kept",
        expect=along_y,
        **TORUS,
    ),
    right(
        "logical_that_counts_all",
        call(counted_along_y_kernel, scratch=(DMA, DMA)),
        "a LOGICAL id that is meant as one",
        expect=lambda x: lax.ppermute(x, "y", [(k, (k + 1) % 4) for k in range(4)]),
        **TORUS,
    ),
    wrong(
        "logical_on_a_torus",
        call(logical_along_y_kernel, scratch=(DMA, DMA)),
        "the number counts all devices, so the second row talks to the first",
        "RS522",
        **TORUS,
    ),
    wrong(
        "index_past_the_end",
        call(past_the_end_kernel, out=(4, *BLOCK), **LOCAL),
        "the last device writes behind the result",
        "RS431",
        line="copy.start()",
    ),
    wrong("slice_past_the_end", call(long_slice_kernel, **LOCAL), "2 · 3 + 4 > 8", "RS431"),
    wrong(
        "negative_device",
        call(no_wrap_kernel, scratch=(DMA, DMA)),
        "device 0 has no left neighbour without the remainder",
        "RS523",
        line="pl.semaphore_signal(",
    ),
    wrong("dma_of_other_size", call(other_size_kernel, **LOCAL), "4 rows into 8", "RS432"),
    wrong("barrier_without_id", call(met_without_id_kernel, barrier=False), "no collective_id", "RS521"),
    wrong("id_without_barrier", call(copy_kernel), "a collective_id for nothing", "RS521"),
    wrong("writes_operand", call(write_operand_kernel, **LOCAL, **HBM), "the caller's array", "RS433"),
    wrong(
        "writes_no_result",
        call(nothing_kernel, barrier=False, scratch=(pltpu.VMEM(BLOCK, jnp.float32),)),
        "the result is never written",
        "RS434",
    ),
    wrong(
        "scope_left_early",
        call(scope_left_early_kernel, barrier=False),
        "the memory of the scope is given away while the DMA writes it",
        "RS403",
        "RS502",
    ),
    right("scope", call(scope_kernel, barrier=False), "all is waited for within the scope", expect=lambda x: x),
    undecided("condition_on_data", call(hangs_on_data_kernel, **LOCAL), "whether", line="@pl.when(x_ref[0, 0] > 0)"),
    undecided("rounds_on_data", call(rounds_on_data_kernel, **LOCAL), "how often", line="lax.while_loop("),
    undecided(
        "semaphore_read",
        call(looks_at_semaphore_kernel, **LOCAL),
        "the count at some moment",
        line="pl.semaphore_read(done)",
    ),
    wrong(
        "scoped_and_remote",
        call(scoped_and_remote_kernel, scratch=(DMA,)),
        "a target that comes and goes",
        "RS402",
        "RS403",
    ),
    right(
        "remembers_its_place",
        call(remembers_its_place_kernel, scratch=(pltpu.SMEM((1,), jnp.int32), DMA, DMA, COUNTER)),
        "the even ones tell the odd ones on their right, and those write back",
        expect=the_odd_one,
    ),
    wrong(
        "forgets_its_neighbour",
        call(forgets_its_neighbour_kernel, scratch=(pltpu.SMEM((1,), jnp.int32), DMA, DMA)),
        "the odd ones write back without being told",
        "RS402",
    ),
    right("grid", on_a_grid, "the grid copies blocks in and out", expect=counted_up, args=("f32[64,128]",)),
    wrong(
        "grid_unwaited",
        unwaited_on_a_grid,
        "the block is exchanged while the DMA reads it",
        "RS401",
        args=("f32[64,128]",),
    ),
)
