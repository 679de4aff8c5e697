"""The part that is the same in every generated module; everything after the marker is copied into it as it stands.

It is a module of its own so that it is formatted, checked and read like other code. Only jax is imported.
"""

import math
import os
import zlib

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

SIDES = (4,)
N = math.prod(SIDES)

# ==== marker ====
# How kernels move and add chunks. What follows is the same in every module.


def _device(axes, *rank):
    """The device of a rank: its place on these mesh axes; on others it is this one's."""
    if len(axes) != len(SIDES):
        flat = 0
        for side, coordinate in zip(SIDES, rank, strict=True):
            flat = flat * side + coordinate
        rank = []
        for axis in reversed(axes):
            rank.insert(0, flat % lax.axis_size(axis))
            flat = flat // lax.axis_size(axis)
    return dict(zip(axes, rank, strict=True))


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


def _add(sum_ref, a_ref, b_ref, finish=None):
    """sum = a + b, a tile of rows at a time. sum_ref may be a_ref."""
    if len(sum_ref.shape) > 2:
        for i in range(sum_ref.shape[0]):
            _add(sum_ref.at[i], a_ref.at[i], b_ref.at[i], finish and finish.at[i])
        return
    rows, tiles, tile = _tiles(sum_ref)

    if _in_vmem(sum_ref):

        @pl.loop(0, tiles)
        def _(i):
            a, b = tile(a_ref, i)[...], tile(b_ref, i)[...]
            done = finish and finish.each(lambda ref: tile(ref, i), "residual")
            tile(sum_ref, i)[...] = _sum(a, b, sum_ref.dtype, done)

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
            a[k] = _sum(a[k], b[k], sum_ref.dtype)
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


def _sum(a, b, dtype, finish=None):
    """a + b, added in 32 bits as the vector unit does; integers wrap just the same."""
    if a.dtype.itemsize < 4 or b.dtype.itemsize < 4:
        floating = jnp.issubdtype(a.dtype, jnp.floating)
        wide = jnp.float32 if floating else jnp.int32
        a, b = a.astype(wide), b.astype(wide)
    total = a + b if finish is None else finish(a + b)
    return total.astype(dtype)


# How a collective is called.


class _Call:
    """One call over mesh axes: where it runs, and how its kernels start."""

    def __init__(self, name, axis_name, interpret, collective_id, cores=None):
        axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
        mesh = jax.sharding.get_abstract_mesh()
        missing = [axis for axis in axes if axis not in mesh.manual_axes]
        if missing:
            axis = missing[0]
            raise ValueError(f"{name} must run in jax.shard_map over axis {axis!r}")
        sizes = tuple(mesh.shape[axis] for axis in axes)
        if math.prod(sizes) != N or (len(sizes) == len(SIDES) and sizes != SIDES):
            want = " × ".join(map(str, SIDES))
            have = " × ".join(map(str, sizes))
            where = f"mesh axis {axis_name!r} has {have}"
            raise ValueError(f"{name} was compiled for {want} ranks, but {where}")
        if set(mesh.manual_axes) != set(mesh.axis_names):
            cure = "call jax.shard_map without axis_names"
            raise ValueError(f"{name} needs all mesh axes manual: {cure}")
        self.name, self.axes, self.mesh, self.ranks = name, axes, mesh, N
        device = mesh.abstract_device
        platform = jax.default_backend() if device is None else device.platform
        if interpret is None:
            interpret = platform != "tpu"
        self.interpret = pltpu.InterpretParams() if interpret is True else interpret
        self.collective_id = collective_id
        self.check_vma = bool(jax.typeof(lax.axis_index(axes)).mat.varying)
        self.vmem_bytes, self.tpu = 2**26, None
        # Cores to run on, None: as many as can be kept busy; those of the device.
        self.cores, self.device_cores = cores, 1
        if cores not in (None, 1, 2):
            raise ValueError(f"{name} runs on 1 or 2 cores of a device, not {cores!r}")
        if self.interpret:
            _check_threads(name, mesh.size)
        elif platform == "tpu":
            self.tpu = pltpu.get_tpu_info()
            self.vmem_bytes = self.tpu.vmem_capacity_bytes
            self.device_cores = self.tpu.num_cores

    def launch(self, kernel, x, spec, replicated=False):
        """Runs a kernel on chunks [*operand, rows, cols]; gives [*result, rows, cols].

        replicated: the result is the same at all ranks, and has that type.
        """
        types = jax.typeof(x).mat
        if replicated:
            types = types.update(varying=types.varying - set(self.axes))
        chunk = x.shape[-2:]
        if x.size == 0:
            zeros = jnp.zeros((*spec["result"], *chunk), x.dtype)
            return lax.pcast(zeros, tuple(sorted(types.varying)), to="varying")

        grids = [spec["operand"], spec["result"], *spec["scratch"]]
        chunks = sum(math.prod(grid) for grid in grids)
        need = chunks * math.prod(chunk) * x.dtype.itemsize
        memory = spec["memory"]
        if memory is None:
            memory = "vmem" if need <= self.vmem_bytes * 3 // 4 else "hbm"
        place = pltpu.VMEM if memory == "vmem" else pltpu.HBM
        # Scratch is never in HBM: there, slots are an output that nobody reads.
        slots = [(*grid, *chunk) for grid in spec["scratch"]]
        outputs = [(*spec["result"], *chunk)] + (slots if memory == "hbm" else [])
        scratch = [place(slot, x.dtype) for slot in slots] if memory == "vmem" else []

        def result(shape):
            return jax.ShapeDtypeStruct(shape, x.dtype, manual_axis_type=types)

        def body(*refs):
            kernel(*self.coordinates(), *refs, axes=self.axes)

        tables = _tables(spec, lax.axis_index(self.axes))
        places = [pltpu.SMEM] * len(tables) + [place]
        return pl.pallas_call(
            body,
            out_shape=[result(shape) for shape in outputs],
            in_specs=[pl.BlockSpec(memory_space=place) for place in places],
            out_specs=[pl.BlockSpec(memory_space=place)] * len(outputs),
            scratch_shapes=scratch + spec["semaphores"],
            compiler_params=pltpu.CompilerParams(
                collective_id=self.barrier_id(spec["barrier"]),
                vmem_limit_bytes=self.vmem_bytes,
                # Proven: no index out of bounds, no semaphore left over.
                disable_bounds_checks=True,
                disable_semaphore_checks=True,
            ),
            interpret=self.interpret,
            name=self.name,
        )(*tables, x)[0]

    def coordinates(self):
        """Where the device that runs the kernel is among the ranks."""
        place = [self._plain(lax.axis_index(axis)) for axis in self.axes]
        if len(place) == len(SIDES):
            return place
        rank = 0
        for axis, index in zip(self.axes, place, strict=True):
            rank = rank * lax.axis_size(axis) + index
        place = []
        for side in reversed(SIDES):
            place.insert(0, rank % side)
            rank = rank // side
        return place

    def _plain(self, index):
        """The interpreter refuses sums of an index that has the type "varying".

        What is read from memory has no such type.
        """
        if not (self.interpret and self.check_vma):
            return index

        def reread(ref):
            ref[0] = index
            return ref[0]

        return pl.run_scoped(reread, pltpu.SMEM((1,), jnp.int32))

    def barrier_id(self, barrier):
        """The same for kernels whose ranks signal the same ranks, else another."""
        if barrier is None or self.collective_id is not None:
            return self.collective_id if barrier else None
        pattern = (barrier, self.axes, tuple(self.mesh.shape.items()))
        # The numbers of the interpreter's other semaphores begin at 2000.
        numbers = 2000 if self.interpret else 2**31 - 1
        return zlib.crc32(repr(pattern).encode()) % numbers

    def vary(self, x):
        """x with the type that differs from rank to rank, which collectives take."""
        fixed = tuple(a for a in self.axes if a not in jax.typeof(x).mat.varying)
        return lax.pcast(x, fixed, to="varying") if fixed and self.check_vma else x


def _tables(spec, rank):
    """The constants that a kernel looks up, as operands for SMEM.

    Those by rank are [rows, N], and a rank gets its column.
    """

    def entries(text):
        return jnp.array([int(entry) for entry in text.split()], jnp.int32)

    own = [entries(text).reshape(-1, N)[:, rank] for text in spec.get("by_rank", ())]
    return own + [entries(text) for text in spec.get("tables", ())]


def _linear(call, forward, transpose, x, *axes):
    """forward(call, x, *axes), with its transpose; vmap adds a dimension to chunks."""

    def batchable(*axes):
        apply = jax.custom_batching.custom_vmap(lambda x: forward(call, x, *axes))
        inner = tuple(axis + 1 for axis in axes)
        # Traced only when it is called, or this would never end.
        apply.def_vmap(lambda size, batched, x: (batchable(*inner)(x), True))
        return apply

    apply = jax.custom_vjp(batchable(*axes))
    apply.defvjp(
        lambda x: (apply(x), None),
        lambda _, ct: (_linear(call, transpose, forward, ct, *axes),),
    )
    return apply(x)


def _axis(axis, ndim):
    """The axis, counted from the front."""
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} is out of bounds for {ndim} dimensions")
    return axis % ndim


def _check_divides(name, shape, axis, tiled=True):
    if shape[axis] % N if tiled else shape[axis] != N:
        rule = "a multiple of" if tiled else "equal to"
        want = f"axis {axis} of shape {shape} to be {rule} N = {N}"
        raise ValueError(f"{name} needs {want}, but it is {shape[axis]}")


def _split(x, axis):
    """[..., N * size, ...] → [N, ..., size, ...]: the shards along the axis."""
    shape = (*x.shape[:axis], N, x.shape[axis] // N, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


def _join(x, axis):
    """[N, ..., size, ...] → [..., N * size, ...]: the inverse of `_split`."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], N * x.shape[axis + 1], *x.shape[axis + 2 :])


def _pack(x, grid, adds):
    """[n, ...] → [*grid, rows, cols]: shards as chunks of whole tiles, padded."""
    x = _to_wire(x, adds)
    n, size = x.shape[0], math.prod(x.shape[1:])
    parts = math.prod(grid) // n
    sublanes = 32 // x.dtype.itemsize
    cols = x.shape[-1] if x.ndim > 2 else 0
    if cols == 0 or cols % 128 or size // cols % (parts * sublanes):
        cols = 128
    rows = -(-size // (parts * sublanes * cols)) * sublanes
    x = jnp.pad(x.reshape(n, size), ((0, 0), (0, parts * rows * cols - size)))
    return x.reshape(*grid, rows, cols)


def _unpack(chunks, shape, dtype):
    """[*grid, rows, cols] → [n, ...] of this shape and dtype: undoes `_pack`."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        pair = _unpack(chunks, (shape[0], 2, *shape[1:]), chunks.dtype)
        return lax.complex(pair[:, 0], pair[:, 1])
    n, size = shape[0], math.prod(shape[1:])
    x = chunks.reshape(n, math.prod(chunks.shape) // max(n, 1))[:, :size].reshape(shape)
    if dtype == jnp.float16 and x.dtype == jnp.uint16:
        return lax.bitcast_convert_type(x, dtype)
    return x.astype(dtype)


def _to_wire(x, adds):
    """x [n, ...] in a dtype that kernels take: 8 to 32 bits, no bool, no float16."""
    if x.dtype == jnp.complex64:
        return jnp.stack([x.real, x.imag], axis=1)
    if x.dtype == jnp.float16:
        wide = x.astype(jnp.float32)
        return wide if adds else lax.bitcast_convert_type(x, jnp.uint16)
    if x.dtype == bool:
        return x.astype(jnp.int32 if adds else jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 8:
        return x.astype(jnp.int8)
    if x.dtype.itemsize > 4:
        raise TypeError(f"a TPU kernel takes no dtype wider than 32 bits: {x.dtype}")
    return x


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


def _check_threads(name, devices):
    threads = int(os.environ.get("NPROC", _cpus()))
    threads = max(threads, jax.local_device_count("cpu"))
    if threads <= devices:
        raise RuntimeError(
            f"{name} would hang (RS606): to interpret it on {devices} devices takes "
            f"{devices + 1} threads, and jax has {threads}. Set the environment "
            "variable NPROC=64, or import this module, before jax starts."
        )
