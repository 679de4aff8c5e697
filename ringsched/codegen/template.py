"""How kernels move and add chunks, and how they start: the same in every module that has kernels.

Everything after the marker is copied into the module. Only jax is imported.
"""

import dataclasses
import functools
import math
import operator
import os
import zlib

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringsched.codegen.template_call import _Call, _place_of, _types

SIDES = (4,)
RANKS = math.prod(SIDES)

# ==== marker ====
# How kernels move and add chunks. What follows is the same in every module.


class _Axes:
    """The mesh axes that ranks lie along, and where this device is on the others.

    Every axis has to be named: for those that are left out, jax would lower casts from
    type to type, which a TPU kernel has none of. members: the indices of the ranks along
    the axes, where they are a group among others.
    """

    def __init__(self, call, members):
        self.names, self.members = call.axes, members
        others = [axis for axis in call.mesh.axis_names if axis not in call.axes]
        self.others = {axis: _own_index(call, axis) for axis in others}


def _device(axes, *rank):
    """The device of a rank: its place on the ranks' axes; on others it is this one's."""
    if len(axes.names) != len(SIDES) or axes.members is not None:
        flat = 0
        for side, coordinate in zip(SIDES, rank, strict=True):
            flat = flat * side + coordinate
        flat = flat if axes.members is None else axes.members[flat + 1]
        rank = []
        for axis in reversed(axes.names):
            rank.insert(0, flat % lax.axis_size(axis))
            flat = flat // lax.axis_size(axis)
    return {**axes.others, **dict(zip(axes.names, rank, strict=True))}


def _signal(semaphore, device):
    """Adds one to this semaphore of a device."""
    pl.semaphore_signal(
        semaphore,
        1,
        device_id=device,
        device_id_type=pl.DeviceIdType.MESH,
    )


def _send(source_ref, target_ref, sent, received, device):
    """Starts a copy into the memory of a device.

    `sent` rises here, as the source is read, and `received` there.
    """
    pltpu.make_async_remote_copy(
        source_ref,
        target_ref,
        sent,
        received,
        device_id=device,
        device_id_type=pl.DeviceIdType.MESH,
    ).start()


def _copy(source_ref, target_ref, done):
    """Starts a copy within this rank; `done` rises as it is written."""
    pltpu.make_async_copy(source_ref, target_ref, done).start()


def _wait(ref, semaphore):
    """Waits until the semaphore has risen by the bytes of `ref`; takes them off."""
    pltpu.make_async_copy(ref, ref, semaphore).wait()


def _in_vmem(ref):
    whole = getattr(ref, "ref", ref)  # of a slice, what it is a slice of
    return jax.typeof(whole).memory_space == pltpu.VMEM


_COMBINING = {"max": jnp.maximum, "min": jnp.minimum}


def _adder(reduction):
    """The `_add` of a kernel that takes the greatest, or least, in place of the sum."""
    combine = _COMBINING.get(reduction)
    return _add if combine is None else functools.partial(_add, combine=combine)


def _add(sum_ref, a_ref, b_ref, finish=None, combine=operator.add):
    """sum = a + b, a tile of rows at a time. sum_ref may be a_ref."""
    if len(sum_ref.shape) > 2:
        for i in range(sum_ref.shape[0]):
            parts = (sum_ref.at[i], a_ref.at[i], b_ref.at[i])
            _add(*parts, finish and finish.at[i], combine)
        return
    rows, tiles, tile = _tiles(sum_ref)

    if _in_vmem(sum_ref):

        @pl.loop(0, tiles)
        def _(i):
            a, b = tile(a_ref, i)[...], tile(b_ref, i)[...]
            done = finish and finish.each(lambda ref: tile(ref, i), "residual")
            tile(sum_ref, i)[...] = _sum(a, b, sum_ref.dtype, done, combine)

        return

    # In HBM, two tiles of each operand: one is added while the next is loaded.
    def stream(a, b, loaded, stored):
        def load(i, k):
            _copy(tile(a_ref, i), a.at[k], loaded.at[k])
            _copy(tile(b_ref, i), b.at[k], loaded.at[k])

        load(0, 0)

        @pl.loop(0, tiles)
        def _(i):
            k = i % 2

            @pl.when((i > 0) & (i + 1 < tiles))
            def _():
                _wait(a.at[1 - k], stored.at[1 - k])

            @pl.when(i + 1 < tiles)
            def _():
                load(i + 1, 1 - k)

            _wait(a.at[k], loaded.at[k])
            _wait(b.at[k], loaded.at[k])
            a[k] = _sum(a[k], b[k], sum_ref.dtype, combine=combine)
            _copy(a.at[k], tile(sum_ref, i), stored.at[k])

        for k in range(min(2, tiles)):
            _wait(a.at[k], stored.at[k])

    two_tiles = pltpu.VMEM((2, rows, sum_ref.shape[1]), sum_ref.dtype)
    two = pltpu.SemaphoreType.DMA((2,))
    pl.run_scoped(stream, two_tiles, two_tiles, two, two)


def _zero(ref):
    """Fills with zeros, a tile of rows at a time."""
    if len(ref.shape) > 2:
        for i in range(ref.shape[0]):
            _zero(ref.at[i])
        return
    rows, tiles, tile = _tiles(ref)

    if _in_vmem(ref):

        @pl.loop(0, tiles)
        def _(i):
            tile(ref, i)[...] = jnp.zeros((rows, ref.shape[1]), ref.dtype)

        return

    def stream(zeros, stored):
        zeros[...] = jnp.zeros(zeros.shape, zeros.dtype)

        @pl.loop(0, tiles)
        def _(i):
            _copy(zeros, tile(ref, i), stored)
            _wait(zeros, stored)

    one_tile = pltpu.VMEM((rows, ref.shape[1]), ref.dtype)
    pl.run_scoped(stream, one_tile, pltpu.SemaphoreType.DMA)


_TILE_BYTES = 2**19  # of a chunk, at a time


def _tiles(ref):
    """Rows of a tile, how many tiles make up the chunk, and the i-th of them."""
    rows, cols = ref.shape
    sublanes = 32 // ref.dtype.itemsize
    most = max(1, _TILE_BYTES // (sublanes * cols * ref.dtype.itemsize))
    blocks = rows // sublanes
    rows = sublanes * max(k for k in range(1, most + 1) if blocks % k == 0)

    def tile(ref, i):
        return ref.at[pl.ds(pl.multiple_of(i * rows, rows), rows)]

    return rows, ref.shape[0] // rows, tile


def _sum(a, b, dtype, finish=None, combine=operator.add):
    """a + b, added in 32 bits as the vector unit does; integers wrap just the same."""
    if a.dtype.itemsize < 4 or b.dtype.itemsize < 4:
        floating = jnp.issubdtype(a.dtype, jnp.floating)
        wide = jnp.float32 if floating else jnp.int32
        a, b = a.astype(wide), b.astype(wide)
    total = combine(a, b)
    total = total if finish is None else finish(total)
    return total.astype(dtype)


# How kernels start.


@dataclasses.dataclass(frozen=True)
class _KernelCall(_Call):
    """A call that runs kernels, on a TPU or interpreted.

    interpret: False, or how. cores: to run on, None: as many as can be kept busy.
    """

    interpret: object = False
    collective_id: object = None
    cores: object = None
    device_cores: int = 1
    vmem_bytes: int = 2**26

    @classmethod
    def of(cls, name, axis_name, interpret, collective_id=None, cores=None, **options):
        """The call that these arguments ask for."""
        if cores not in (None, 1, 2):
            raise ValueError(f"{name} runs on 1 or 2 cores of a device, not {cores!r}")
        call = super().of(name, axis_name, **options)
        device = call.mesh.abstract_device
        platform = jax.default_backend() if device is None else device.platform
        if interpret is None and platform != "tpu":
            return call
        if interpret is True:
            interpret = pltpu.InterpretParams()
        changes = {"collective_id": collective_id, "cores": cores, "portable": False}
        changes["interpret"] = interpret or False
        manual = call.mesh.manual_axes
        automatic = [axis for axis in call.mesh.axis_names if axis not in manual]
        if automatic:
            what = f"all mesh axes manual, and {automatic[0]!r} is not"
            cure = 'call jax.shard_map without axis_names, or use the back end "xla"'
            raise ValueError(f"the kernel of {name} needs {what}: {cure}")
        if changes["interpret"]:
            _check_interpreter(name, call.mesh.size)
        elif platform == "tpu":
            chip = pltpu.get_tpu_info()
            changes |= {
                "vmem_bytes": chip.vmem_capacity_bytes,
                "device_cores": chip.num_cores,
            }
        return dataclasses.replace(call, **changes)

    @property
    def tpu(self):
        """The chip, where the kernel is compiled for one."""
        device = self.mesh.abstract_device
        platform = jax.default_backend() if device is None else device.platform
        on_chip = platform == "tpu" and not self.portable and not self.interpret
        return pltpu.get_tpu_info() if on_chip else None

    def barrier_id(self, barrier):
        """The same for kernels whose ranks signal the same ranks, else another."""
        if barrier is None or self.collective_id is not None:
            return self.collective_id if barrier else None
        pattern = (barrier, self.axes, tuple(self.mesh.shape.items()))
        pattern += () if self.groups is None else (self.groups,)
        # The numbers of the interpreter's other semaphores begin at 2000.
        numbers = 2000 if self.interpret else 2**31 - 1
        return zlib.crc32(repr(pattern).encode()) % numbers


class _Kernel:
    """A kernel and its specification: grids of chunks, semaphores, the barrier, memory."""

    def __init__(self, function, spec):
        self.function, self.spec = function, spec

    def __call__(self, call, shards, adds):
        """[n, …] → [m, …]: from one shard for each rank, or one, to likewise."""
        wire = _to_wire(call, shards, adds)
        kernel = self.function
        if adds:
            kernel = functools.partial(kernel, add=_adder(call.reduction))
        chunks = _launch(call, kernel, _pack(wire, self.spec["operand"]), self.spec)
        grid, parts = (
            self.spec["result"],
            math.prod(self.spec["operand"]) // shards.shape[0],
        )
        results = _unpack(chunks, (math.prod(grid) // parts, *wire.shape[1:]))
        return _from_wire(results, shards.dtype)


def _launch(call, kernel, x, spec):
    """Runs a kernel on chunks [*operand, rows, cols]; gives [*result, rows, cols]."""
    chunk = x.shape[-2:]
    if x.size == 0:
        return jnp.zeros_like(x, shape=(*spec["result"], *chunk))
    grids = [spec["operand"], spec["result"], *spec["scratch"]]
    chunks = sum(math.prod(grid) for grid in grids)
    need = chunks * math.prod(chunk) * x.dtype.itemsize
    memory = spec["memory"]
    if memory is None:
        memory = "vmem" if need <= call.vmem_bytes * 3 // 4 else "hbm"
    place = pltpu.VMEM if memory == "vmem" else pltpu.HBM
    # Scratch is never in HBM: there, slots are an output that nobody reads.
    slots = [(*grid, *chunk) for grid in spec["scratch"]]
    outputs = [(*spec["result"], *chunk)] + (slots if memory == "hbm" else [])
    scratch = [place(slot, x.dtype) for slot in slots] if memory == "vmem" else []

    def result(shape):
        return jax.ShapeDtypeStruct(shape, x.dtype, manual_axis_type=_types(x))

    members = _members(call)
    tables = members + _tables(spec, call.place.index)

    def body(*refs):
        place = _coordinates(call, *refs[: len(members)])
        axes = _Axes(call, *refs[: len(members)] or (None,))
        kernel(*place, *refs[len(members) :], axes=axes)

    places = [pltpu.SMEM] * len(tables) + [place]
    return pl.pallas_call(
        body,
        out_shape=[result(shape) for shape in outputs],
        in_specs=[pl.BlockSpec(memory_space=place) for place in places],
        out_specs=[pl.BlockSpec(memory_space=place)] * len(outputs),
        scratch_shapes=scratch + spec["semaphores"],
        compiler_params=pltpu.CompilerParams(
            collective_id=call.barrier_id(spec["barrier"]),
            vmem_limit_bytes=call.vmem_bytes,
            # Proven: no index out of bounds, no semaphore left over.
            disable_bounds_checks=True,
            disable_semaphore_checks=True,
        ),
        interpret=call.interpret,
        name=call.name,
    )(*tables, x)[0]


def _members(call):
    """Of a group: this rank's number in it and the indices of its members, for SMEM."""
    if call.groups is None:
        return []
    place = call.place
    return [jnp.concatenate([place.index[None], place.members])]


def _coordinates(call, members=None):
    """Where the device that runs the kernel is among the ranks."""
    if members is not None:
        return _place_of(members[0])
    place = [_own_index(call, axis) for axis in call.axes]
    if len(place) == len(SIDES):
        return place
    rank = 0
    for axis, index in zip(call.axes, place, strict=True):
        rank = rank * lax.axis_size(axis) + index
    return _place_of(rank)


def _own_index(call, axis):
    """Where this device is along a mesh axis.

    The interpreter refuses sums of an index that has the type "varying". What is read
    from memory has no such type.
    """
    index = lax.axis_index(axis)
    if not (call.interpret and call.check_vma):
        return index

    def reread(ref):
        ref[0] = index
        return ref[0]

    return pl.run_scoped(reread, pltpu.SMEM((1,), jnp.int32))


def _tables(spec, rank):
    """The constants that a kernel looks up, as operands for SMEM.

    Those by rank are [rows, RANKS], and a rank gets its column.
    """

    def entries(text):
        return jnp.array([int(entry) for entry in text.split()], jnp.int32)

    by_rank = [entries(text).reshape(-1, RANKS) for text in spec.get("by_rank", ())]
    own = [table[:, rank] for table in by_rank]
    return own + [entries(text) for text in spec.get("tables", ())]


def _pack(x, grid):
    """[n, ...] → [*grid, rows, cols]: shards as chunks of whole tiles, padded."""
    n, size = x.shape[0], math.prod(x.shape[1:])
    parts = math.prod(grid) // n
    sublanes = 32 // x.dtype.itemsize
    cols = x.shape[-1] if x.ndim > 2 else 0
    if cols == 0 or cols % 128 or size // cols % (parts * sublanes):
        cols = 128
    rows = -(-size // (parts * sublanes * cols)) * sublanes
    x = jnp.pad(x.reshape(n, size), ((0, 0), (0, parts * rows * cols - size)))
    return x.reshape(*grid, rows, cols)


def _unpack(chunks, shape):
    """[*grid, rows, cols] → [n, ...] of this shape: undoes `_pack`."""
    n, size = shape[0], math.prod(shape[1:])
    padded = chunks.reshape(n, math.prod(chunks.shape) // max(n, 1))
    return padded[:, :size].reshape(shape)


def _to_wire(call, x, adds):
    """x [n, ...] in a dtype that kernels take: 8 to 32 bits, no bool, no float16."""
    dtype = x.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return _to_wire(call, jnp.stack([x.real, x.imag], axis=1), adds)
    if dtype.itemsize > 4:
        if adds:
            name = call.name
            raise TypeError(f"the kernel of {name} does not add {dtype}, of 64 bits")
        return lax.bitcast_convert_type(x, jnp.uint32)
    if dtype == jnp.float16 and adds:
        return x.astype(jnp.float32)
    if dtype == jnp.float16:
        return lax.bitcast_convert_type(x, jnp.uint16)
    if dtype == jnp.bool_:
        return x.astype(jnp.int32 if adds else jnp.uint8)
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return x.astype(jnp.int8)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 8:
        return x.astype(jnp.bfloat16)
    return x


def _from_wire(x, dtype):
    """Undoes `_to_wire`."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real = jnp.dtype("float64" if dtype.itemsize > 8 else "float32")
        return lax.complex(_from_wire(x[:, 0], real), _from_wire(x[:, 1], real))
    if dtype.itemsize > 4 or (dtype == jnp.float16 and x.dtype == jnp.uint16):
        return lax.bitcast_convert_type(x, dtype)
    return x.astype(dtype)


# The interpreter needs a thread for each device and one more, of a pool whose size
# jax takes from NPROC when it starts.


def _jax_has_started():
    """Whether jax has made its devices: then their number can no longer change."""
    devices = jax.config.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", devices + 1)
        jax.config.update("jax_num_cpu_devices", devices)
    except RuntimeError:
        return True
    return False


def _cpus():
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


if "NPROC" not in os.environ and _cpus() < 64 and not _jax_has_started():
    os.environ["NPROC"] = "64"


def _check_interpreter(name, devices):
    if jax.process_count() > 1:
        processes = jax.process_count()
        have = f"{processes} processes, which would wait for each other for ever"
        raise RuntimeError(f"the kernel of {name} cannot be interpreted in {have}")
    threads = int(os.environ.get("NPROC", _cpus()))
    threads = max(threads, jax.local_device_count("cpu"))
    if threads <= devices:
        raise RuntimeError(
            f"{name} would hang (RS606): to interpret it on {devices} devices takes "
            f"{devices + 1} threads, and jax has {threads}. Set the environment "
            "variable NPROC=64, or import this module, before jax starts."
        )
