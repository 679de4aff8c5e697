"""The further part that is the same in every generated module that multiplies; see template.py.

Everything after the marker is copied into the module, in front of what template.py has.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

N = 4

# ==== marker ====
# How chunks are multiplied. What follows is the same in every module that multiplies.


def _multiply(y_ref, x_ref, w_ref, plus_ref=None, finish=None):
    """y = x @ w, plus what there is already; `finish` is applied to what is complete."""
    _multiply_all(y_ref, plus_ref, x_ref, w_ref, finish=finish)


def _multiply_all(y_ref, plus_ref, *factors, finish=None):
    """y = x @ w for each x and w of `factors`, summed up, plus what there is already."""
    y = None if plus_ref is None else plus_ref[...]
    for x, w in _blocks(factors):
        y = _dot(x, w) if y is None else y + _dot(x, w)
    if finish is not None:
        y = finish(y)
    y_ref[...] = y.astype(y_ref.dtype)


def _multiply_columns(x_ref, w_ref, *y_refs, finish=None):
    """y = x @ w, for each y its block of columns."""
    y = None
    for x, w in _blocks((x_ref, w_ref)):
        y = _dot(x, w) if y is None else y + _dot(x, w)
    if finish is not None:
        y = finish(y)
    start = 0
    for y_ref in y_refs:
        cols = y_ref.shape[-1]
        y_ref[...] = y[:, start : start + cols].astype(y_ref.dtype)
        start += cols


def _blocks(factors):
    """x and w in pieces of _DEPTH, of which one may be put together from several."""
    xs, ws = [], []
    for x_ref, w_ref in zip(factors[::2], factors[1::2], strict=True):
        depth = x_ref.shape[-1]
        for start in range(0, depth, _DEPTH):
            block = pl.ds(start, min(_DEPTH, depth - start))
            if xs and sum(x.shape[1] for x in xs) + block.size > _DEPTH:
                yield _joined(xs, 1), _joined(ws, 0)
                xs, ws = [], []
            xs.append(x_ref[:, block])
            ws.append(w_ref[block])
    yield _joined(xs, 1), _joined(ws, 0)


def _joined(parts, axis):
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=axis)


# A product over more depth at once spills its operand out of registers; sums of short
# ones are added up by the matrix unit itself.
_DEPTH = 256


def _dot(x, w):
    """x @ w, summed up in 32 bits; f32 is not cut short to bf16."""
    wide = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jnp.dot(x, w, precision=precision, preferred_element_type=wide)


def _round(y_ref, sum_ref, finish=None):
    y = sum_ref[...] if finish is None else finish(sum_ref[...])
    y_ref[...] = y.astype(y_ref.dtype)


def _columns(ref, i, n):
    """The i-th of n blocks of columns."""
    cols = ref.shape[-1] // n
    return ref.at[:, pl.ds(pl.multiple_of(i * cols, cols), cols)]


class _Units:
    """Rows, depth and columns of a unit, in whole tiles; how units of each kind look.

    Each core of a device has its own share of the rows of every unit.
    """

    def __init__(self, call, sizes, parts, dtype, out, partial=None):
        """sizes, parts: of rows, depth and columns of a shard."""
        partial = out if partial is None else partial
        sublanes = max(32 // each.itemsize for each in (dtype, out, partial))
        self.cores, most = call.cores, call.device_cores
        if self.cores is None:
            rows = _tiled(sizes[0], parts[0], sublanes)
            self.cores = most if rows >= most * sublanes else 1
        tiles = (self.cores * sublanes, 128, 128)
        self.rows, self.depth, self.cols = map(_tiled, sizes, parts, tiles)
        share = self.rows // self.cores
        wide = jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else jnp.int32
        self.kinds = {
            "x": (share, self.depth, dtype),
            "w": (self.depth, self.cols, dtype),
            "o": (share, self.cols, out),
            "sum": (share, self.cols, jnp.dtype(wide)),
            "partial": (share, self.cols, partial),
        }

    def bytes(self, grid, kind):
        rows, cols, dtype = self.kinds[kind]
        return math.prod(grid) * rows * cols * dtype.itemsize


def _tiled(size, parts, tile):
    """What one of so many parts of a dimension takes, in whole tiles."""
    return -(-size // (parts * tile)) * tile


def _padded(x, rows, cols):
    """x [..., m, n], with zeros up to [..., rows, cols]."""
    m, n = x.shape[-2:]
    if (m, n) == (rows, cols):
        return x
    return jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, rows - m), (0, cols - n)))


# A kernel on two cores is a grid of two: each core runs it on its share of the rows, in
# a ring of its own with the same core of other devices. VMEM and semaphores are a core's.

# Each core reads the whole of the weights from HBM: on v5p, with fewer rows of bf16 for
# it to multiply, two cores take longer for that than one takes for everything.
_ROWS_OF_CORE = 96


def _spread(call, rows):
    """Leaves it to one core where there are few rows, those of all shards together."""
    if rows < call.device_cores * _ROWS_OF_CORE:
        call.device_cores = 1


def _rows_of_core(cores, shape):
    """The block of each core: its share of the rows of every unit [*grid, rows, cols]."""
    if cores == 1:
        return pl.BlockSpec(memory_space=pltpu.VMEM)
    *grid, rows, cols = shape
    block = (*grid, rows // cores, cols)

    def index(core):
        return *(0 for _ in grid), core, 0

    return pl.BlockSpec(block, index, memory_space=pltpu.VMEM)


def _grid_of_cores(cores):
    return {"grid": (cores,)} if cores > 1 else {}


def _compiler_params(call, spec, cores):
    barrier = spec["barrier"]
    if barrier is not None and cores > 1:
        barrier = (barrier, cores)
    return pltpu.CompilerParams(
        dimension_semantics=("parallel",) if cores > 1 else None,
        collective_id=call.barrier_id(barrier),
        vmem_limit_bytes=call.vmem_bytes,
        # Proven: no index out of bounds, no semaphore left over.
        disable_bounds_checks=True,
        disable_semaphore_checks=True,
    )


def _launch_product(call, kernel, x, w, spec, units, finish):
    """Runs a kernel on units of x and w; gives the units of the result."""
    share, cols, dtype = units.kinds["o"]
    cores, rows = units.cores, units.rows
    types = jax.typeof(x).mat
    if spec["replicated"]:
        types = types.update(varying=types.varying - set(call.axes))
    # Other ranks write into a result that is the same at all of them: on two cores that
    # takes memory of its own, for the blocks of a grid have no place that others know.
    aside = cores > 1 and spec["replicated"]
    grids = [(spec[name], name) for name in ("x", "o")]
    sizes = {name: units.bytes(grid, name) for grid, name in grids}
    sizes["w"] = w.size * w.dtype.itemsize
    sizes["o"] *= 2 if aside else 1
    sizes["scratch"] = sum(units.bytes(grid, kind) for grid, kind in spec["scratch"])
    if sum(sizes.values()) > call.vmem_bytes:
        parts = " + ".join(f"{name} {size / 2**20:.1f}" for name, size in sizes.items())
        have = f"{call.vmem_bytes / 2**20:.0f} MiB of VMEM"
        raise ValueError(f"{call.name} does not fit {have}: {parts} MiB")
    x = x.reshape(*spec["x"], rows, units.depth)
    if not spec["in_columns"]:
        w = w.reshape(*spec["w"], *units.kinds["w"][:2])

    shape = (*spec["o"], rows, cols)
    scratch = [pltpu.VMEM((*spec["o"], share, cols), dtype)] if aside else []

    def body(x_ref, w_ref, o_ref, *refs):
        block_ref = o_ref
        if aside:
            o_ref, *refs = refs
        options = {"axes": call.axes, "finish": finish}
        kernel(*call.coordinates(), x_ref, w_ref, o_ref, *refs, **options)
        if aside:
            block_ref[...] = o_ref[...]

    place = pl.BlockSpec(memory_space=pltpu.VMEM)
    for grid, kind in spec["scratch"]:
        *tile, each = units.kinds[kind]
        scratch.append(pltpu.VMEM((*grid, *tile), each))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=types),
        in_specs=[_rows_of_core(cores, x.shape), place],
        out_specs=_rows_of_core(cores, shape),
        scratch_shapes=scratch + spec["semaphores"],
        **_grid_of_cores(cores),
        compiler_params=_compiler_params(call, spec, cores),
        interpret=call.interpret,
        name=call.name,
    )(x, w)


def _differentiable(call, forward, backward, x, w, *rest):
    """forward(call, x, w, *rest), with the gradient that `backward` computes."""
    apply = jax.custom_vjp(lambda x, w: forward(call, x, w, *rest))
    apply.defvjp(
        lambda x, w: (apply(x, w), (x, w)),
        lambda saved, ct: backward(call, *saved, ct, *rest),
    )
    return apply(x, w)


_WIDE = jnp.dtype("float32")  # of sums in a gradient


def _epilogue(name, epilogue):
    """The function that is applied to complete sums, in 32 bits."""
    known = {
        "gelu": jax.nn.gelu,
        "gelu_exact": lambda y: jax.nn.gelu(y, approximate=False),
        "silu": jax.nn.silu,
        "relu": jax.nn.relu,
    }
    if epilogue is None or callable(epilogue):
        return epilogue
    if epilogue not in known:
        have = f"{', '.join(known)} or a function"
        raise ValueError(f"{name} knows the epilogues {have}, not {epilogue!r}")
    return known[epilogue]


_FACTORS = ("float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")


def _check_product(call, x, w, factor, split):
    """x [rows, depth] @ w [factor * depth, cols], `split` along a dimension of it."""
    if x.ndim != 2 or w.ndim != 2:
        raise ValueError(f"{call.name} takes matrices, not {x.shape} and {w.shape}")
    if x.dtype != w.dtype:
        have = f"{x.dtype} and {w.dtype}"
        raise ValueError(f"{call.name} takes x and w of one dtype, not {have}")
    if x.dtype.name not in _FACTORS:
        raise ValueError(f"{call.name} multiplies {', '.join(_FACTORS)}, not {x.dtype}")
    if w.shape[0] != factor * x.shape[1]:
        times = f"{factor} * " if factor > 1 else ""
        want = f"w to have {times}{x.shape[1]} = {factor * x.shape[1]} rows"
        have = f"x is {x.shape} and w {w.shape}"
        raise ValueError(f"{call.name} needs {want}: {have}")
    if split is not None and (x.shape[0], w.shape[1])[split] % N:
        what = ("rows of x", "columns of w")[split]
        size = (x.shape[0], w.shape[1])[split]
        raise ValueError(f"{call.name} shares the {what} out among {N} ranks: {size}")
