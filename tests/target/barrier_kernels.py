"""Kernels that differ in what may make the compiler add its barrier: `FORMS[name](skip)` gives one, with it or without.

As a module for the TPU compiler, `every(x)` calls each of them twice: as it is, and with `skip_device_barrier`.
"""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR


def right():
    return {"i": lax.rem(lax.axis_index("i") + 1, lax.axis_size("i"))}


def send(x_ref, o_ref, sent, received, flag):
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=right())
    copy.start()
    copy.wait()


def send_never(x_ref, o_ref, sent, received, flag):
    pl.when(lax.axis_size("i") + x_ref.shape[0] < lax.axis_index("i"))(lambda: send(x_ref, o_ref, sent, received, flag))


def send_in_loop(x_ref, o_ref, sent, received, flag):
    @pl.loop(0, 3)
    def _(_):
        send(x_ref, o_ref, sent, received, flag)


def send_to_itself(x_ref, o_ref, sent, received, flag):
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id={"i": lax.axis_index("i")})
    copy.start()
    copy.wait()


def signal(x_ref, o_ref, sent, received, flag):
    pl.semaphore_signal(flag, 1, device_id=right())
    pl.semaphore_wait(flag, 1)
    o_ref[...] = x_ref[...]


def wait_only(x_ref, o_ref, sent, received, flag):
    pl.semaphore_wait(flag, 1)
    o_ref[...] = x_ref[...]


def signal_here(x_ref, o_ref, sent, received, flag):
    pl.semaphore_signal(flag, 1)
    pl.semaphore_wait(flag, 1)
    o_ref[...] = x_ref[...]


def copy_here(x_ref, o_ref, sent, received, flag):
    copy = pltpu.make_async_copy(x_ref, o_ref, sent)
    copy.start()
    copy.wait()


def own_barrier(x_ref, o_ref, sent, received, flag):
    pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id=right())
    pl.semaphore_wait(pltpu.get_barrier_semaphore(), 1)
    send(x_ref, o_ref, sent, received, flag)


def own_barrier_unused(x_ref, o_ref, sent, received, flag):
    pltpu.get_barrier_semaphore()
    send(x_ref, o_ref, sent, received, flag)


def called(body, **params):
    def call(x, skip):
        vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            in_specs=[vmem],
            out_specs=vmem,
            scratch_shapes=[DMA, DMA, REGULAR],
            compiler_params=pltpu.CompilerParams(skip_device_barrier=skip, has_side_effects=True, **params),
            interpret=False,
            name=f"{body.__name__}{'_with_id' if params else ''}{'_skip' if skip else ''}",
        )(x)

    return call


def on_cores(x, skip):
    """The same shift as a kernel of `pl.kernel`."""
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=1)
    return pl.kernel(
        send,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        mesh=mesh,
        scratch_types=[DMA, DMA, REGULAR],
        compiler_params=pltpu.CompilerParams(skip_device_barrier=skip, has_side_effects=True),
        interpret=False,
        name=f"on_cores{'_skip' if skip else ''}",
    )(x)


FORMS = {
    **{
        body.__name__: called(body)
        for body in (
            send,
            send_never,
            send_in_loop,
            send_to_itself,
            signal,
            wait_only,
            signal_here,
            copy_here,
            own_barrier_unused,
        )
    },
    "own_barrier_with_id": called(own_barrier, collective_id=3),
    "send_with_id": called(send, collective_id=3, allow_collective_id_without_custom_barrier=True),
    "on_cores": on_cores,
}


def every(x, *, axis_name, interpret):
    for call in FORMS.values():
        x = call(call(x, False), True)
    return x
