"""Two devices that swap, and devices that pass one block to the right."""

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from corpus.case import COUNTER, DMA, call, meet, neighbours, push, right, shifted, tell, wrong

PAIR = {"mesh": {"i": 2}, "args": ("f32[16,128]",)}


def swap_kernel(x_ref, o_ref, sent, received):
    other = 1 - lax.axis_index("i")
    meet(other)
    copy = push(x_ref, o_ref, sent, received, other)
    copy.start()
    copy.wait()


def swap_at_once_kernel(x_ref, o_ref, sent, received):
    copy = push(x_ref, o_ref, sent, received, 1 - lax.axis_index("i"))
    copy.start()
    copy.wait()


def permute_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    meet(left, onward)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()


def permute_told_by_reader_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    barrier = pltpu.get_barrier_semaphore()
    tell(barrier, left)  # whoever writes here, and nobody else
    pl.semaphore_wait(barrier, 1)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()


def permute_told_by_writer_kernel(x_ref, o_ref, sent, received):
    _, _, onward = neighbours()
    barrier = pltpu.get_barrier_semaphore()
    tell(barrier, onward)  # the signal comes from the wrong side
    pl.semaphore_wait(barrier, 1)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()


def permute_mesh_tuple_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id=(left,), device_id_type=pl.DeviceIdType.MESH)
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, sent, received, device_id=(onward,), device_id_type=pl.DeviceIdType.MESH
    )
    copy.start()
    copy.wait()


def permute_logical_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, 1, device_id=left, device_id_type=pl.DeviceIdType.LOGICAL)
    pl.semaphore_wait(barrier, 1)
    copy = pltpu.make_async_remote_copy(
        x_ref, o_ref, sent, received, device_id=onward, device_id_type=pl.DeviceIdType.LOGICAL
    )
    copy.start()
    copy.wait()


def unreceived_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    meet(left, onward)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait_send()


def unsent_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    meet(left, onward)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait_recv()


def read_too_soon_kernel(x_ref, o_ref, buffer, sent, received):
    _, left, onward = neighbours()
    meet(left, onward)
    copy = push(x_ref, buffer, sent, received, onward)
    copy.start()
    o_ref[...] = buffer[...]
    copy.wait()


def half_waited_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    meet(left, onward)
    push(x_ref, o_ref, sent, received, onward).start()
    push(x_ref.at[pl.ds(0, 4)], o_ref.at[pl.ds(0, 4)], sent, received, onward).wait()


def doubled_signal_kernel(x_ref, o_ref, sent, received, ready):
    _, left, onward = neighbours()
    meet(left, onward)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.start()
    copy.wait()
    tell(ready, onward, 2)
    pl.semaphore_wait(ready, 1)


def circular_kernel(x_ref, o_ref, sent, received):
    _, left, onward = neighbours()
    meet(left, onward)
    copy = push(x_ref, o_ref, sent, received, onward)
    copy.wait_recv()
    copy.start()
    copy.wait_send()


SCRATCH = (DMA, DMA)
BUFFER = (pltpu.VMEM((8, 128), "float32"), DMA, DMA)

CASES = (
    right("swap", call(swap_kernel, scratch=SCRATCH), "each waits until the other has entered", expect=shifted, **PAIR),
    wrong(
        "swap_without_barrier",
        call(swap_at_once_kernel, scratch=SCRATCH, barrier=False),
        "the other may not have entered",
        "RS402",
        line="copy.start()",
        **PAIR,
    ),
    right(
        "permute_with_both_neighbours",
        call(permute_kernel, scratch=SCRATCH),
        "on four devices, no neighbour can get ahead far enough to signal for the other one, too",
        expect=shifted,
    ),
    wrong(
        "permute_with_both_neighbours_of_five",
        call(permute_kernel, scratch=SCRATCH),
        "the left one can be in its second call, and have signalled twice, before the right one is in its first",
        "RS402",
        line="copy.start()",
        mesh={"i": 5},
        args=("f32[40,128]",),
    ),
    right(
        "permute",
        call(permute_told_by_reader_kernel, scratch=SCRATCH),
        "the device that is written into gives leave",
        expect=shifted,
    ),
    wrong(
        "permute_with_barrier_reversed",
        call(permute_told_by_writer_kernel, scratch=SCRATCH),
        "the signal says nothing about the device that is written into",
        "RS524",
        line="copy.start()",
    ),
    right(
        "permute_mesh_tuple", call(permute_mesh_tuple_kernel, scratch=SCRATCH), "device ids as tuples", expect=shifted
    ),
    right(
        "permute_logical",
        call(permute_logical_kernel, scratch=SCRATCH),
        "on one axis, a LOGICAL id is its index",
        expect=shifted,
    ),
    wrong(
        "missing_receive_wait",
        call(unreceived_kernel, scratch=SCRATCH),
        "the device may leave before its block has come",
        "RS403",
        "RS502",
        line="copy.start()",
    ),
    wrong(
        "missing_send_wait",
        call(unsent_kernel, scratch=SCRATCH),
        "the device may leave while its operand is read",
        "RS403",
        "RS502",
        line="copy.start()",
    ),
    wrong(
        "read_before_wait",
        call(read_too_soon_kernel, scratch=BUFFER),
        "the buffer is read while the DMA writes it",
        "RS404",
        line="o_ref[...] = buffer[...]",
    ),
    wrong(
        "wait_for_half",
        call(half_waited_kernel, scratch=SCRATCH),
        "start and wait are of different sizes",
        "RS505",
        "RS403",
    ),
    wrong(
        "doubled_signal",
        call(doubled_signal_kernel, scratch=(*SCRATCH, COUNTER)),
        "two are signalled and one is taken",
        "RS502",
        line="tell(ready, onward, 2)",
    ),
    wrong(
        "circular_wait",
        call(circular_kernel, scratch=SCRATCH),
        "everyone waits for what the left one sends after its own wait",
        "RS501",
        line="copy.wait_recv()",
    ),
)
