"""The further part that is the same in every generated module that multiplies; see template.py.

Everything after the marker is copied into the module, behind what template_operands.py has.
"""

import copy
import dataclasses
import itertools
import math

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringsched.codegen.template_operands import _dot, _Epilogue, _joined

# ==== marker ====
# How chunks are multiplied. What follows is the same in every module that multiplies.


class _Product:
    """target = x @ w, summed up over all x and w, plus what there is already.

    A target that is a tuple has the columns shared out among its references.
    """

    def __init__(self, target, *factors, plus=None, finish=None):
        self.targets = target if isinstance(target, tuple) else (target,)
        self.factors = list(zip(factors[::2], factors[1::2], strict=True))
        self.plus, self.finish = plus, finish

    def of(self, **changes):
        """The same with other targets, factors, …."""
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    @property
    def rows(self):
        return self.factors[0][0].shape[-2]

    @property
    def weights(self):
        return [w for _, w in self.factors]

    @property
    def grid(self):
        """Of several units that are multiplied by the same weight."""
        return self.factors[0][0].shape[:-2]

    def parts(self):
        """One product for each unit."""
        if not self.grid:
            return [self]
        units = itertools.product(*(range(extent) for extent in self.grid))
        return [self.at(index) for index in units]

    def at(self, index):
        """Those of its units, or rows, that have this index."""
        return self.of(
            targets=tuple(target.at[index] for target in self.targets),
            factors=[(x.at[index], w) for x, w in self.factors],
            plus=None if self.plus is None else self.plus.at[index],
            finish=self.finish and self.finish.at[index],
        )


def _multiply(*products):
    """Products of operands in VMEM."""
    for stack in _stacks([part for product in products for part in product.parts()]):
        for product, y in zip(stack, _values(stack), strict=True):
            _store(product, y)


def _stacks(products, most=None):
    """Products in a row by the same weights, of at most so many rows together."""
    most = _ROWS if most is None else most
    stacks = []
    for product in products:
        known = stacks[-1] if stacks else None
        if known and product.plus is None and known[0].plus is None:
            pairs = zip(known[0].weights, product.weights, strict=False)
            same = len(known[0].factors) == len(product.factors)
            rows = product.rows + sum(each.rows for each in known)
            if same and rows <= most and all(a is b for a, b in pairs):
                known.append(product)
                continue
        stacks.append([product])
    return stacks


_ROWS = 1024  # in one product; more of them make longer code, but none that is faster


def _values(stack):
    """What each product of a stack sums up to, in 32 bits."""
    y = None if stack[0].plus is None else stack[0].plus[...]
    for x, w, transposed in _blocks(stack):
        y = _dot(x, w, transposed) if y is None else y + _dot(x, w, transposed)
    start = 0
    for product in stack:
        yield y[start : start + product.rows] if len(stack) > 1 else y
        start += product.rows


def _store(product, y):
    if product.finish is not None:
        y = product.finish(y)
    if len(product.targets) == 1:
        product.targets[0][...] = y.astype(product.targets[0].dtype)
        return
    start = 0
    for target in product.targets:
        cols = target.shape[-1]
        target[...] = y[:, start : start + cols].astype(target.dtype)
        start += cols


def _blocks(stack):
    """x and w in pieces of _DEPTH, of which one may be put together from several."""
    xs, ws, transposed, deep = [], [], False, 0
    for place, w_ref in enumerate(stack[0].weights):
        x_refs = [product.factors[place][0] for product in stack]
        transposed = isinstance(w_ref, _Weight) and w_ref.transposed
        depth = x_refs[0].shape[-1]
        for start in range(0, depth, _DEPTH):
            block = pl.ds(start, min(_DEPTH, depth - start))
            if xs and deep + block.size > _DEPTH:
                yield _joined(xs, 1), _joined(ws, int(transposed)), transposed
                xs, ws, deep = [], [], 0
            xs.append(_joined([x_ref[:, block] for x_ref in x_refs], 0))
            ws.append(w_ref[block])
            deep += block.size
    yield _joined(xs, 1), _joined(ws, int(transposed)), transposed


# A product over more depth at once spills its operand out of registers; sums of short
# ones are added up by the matrix unit itself.
_DEPTH = 256


def _round(y_ref, sum_ref, finish=None):
    y = sum_ref[...] if finish is None else finish(sum_ref[...])
    y_ref[...] = y.astype(y_ref.dtype)


class _Weight:
    """A block of a weight [rows, cols]; of a gate and a weight, both side by side.

    transposed: the references are [cols, rows].
    unit: rows that belong to a chunk; `grid`: how chunks are numbered.
    """

    def __init__(self, refs, transposed=False, unit=None, grid=()):
        self.refs, self.transposed = tuple(refs), transposed
        self.unit, self.grid = unit, grid
        sizes = self.refs[0].shape[::-1] if transposed else self.refs[0].shape
        # Where a block starts, its size, and what is known to divide where it starts.
        self.rows, self.cols = ((0, size, 0) for size in sizes)

    @property
    def at(self):
        return _Indexed(self._of_chunk)

    def _of_chunk(self, index):
        number = 0
        for each, extent in zip(index, self.grid, strict=True):
            number = number * extent + each
        return self._part(rows=(number * self.unit, self.unit, self.unit))

    def columns(self, i, size):
        """The i-th `size` columns of each matrix."""
        first, _, step = self.cols
        return self._part(cols=(first + i * size, size, math.gcd(step, size)))

    def _part(self, **changes):
        part = copy.copy(self)
        vars(part).update(changes)
        return part

    def references(self):
        """The block of each matrix."""
        for ref in self.refs:
            places = [self.rows, self.cols]
            if self.transposed:
                places.reverse()
            yield ref.at[tuple(_span(*place) for place in places)]

    def __getitem__(self, block):
        """The value of these rows, all matrices side by side."""
        first, _, step = self.rows
        rows = (first + block.start, block.size, math.gcd(step, block.start))
        parts = self._part(rows=rows).references()
        return _joined([ref[...] for ref in parts], 0 if self.transposed else 1)


def _span(start, size, step):
    """A slice; where it starts is a multiple of `step`."""
    return pl.ds(start if isinstance(start, int) else pl.multiple_of(start, step), size)


class _Indexed:
    """`thing.at[index]`, as references have it."""

    def __init__(self, get):
        self.get = get

    def __getitem__(self, index):
        return self.get(index if isinstance(index, tuple) else (index,))


def _columns(ref, i, n):
    """The i-th of n blocks of columns."""
    if isinstance(ref, _Weight):
        return ref.columns(i, ref.cols[1] // n)
    cols = ref.shape[-1] // n
    return ref.at[:, _span(i * cols, cols, cols)]


class _Finish(_Epilogue):
    """An epilogue whose operands are references.

    by_columns: chunks of the result are columns, and scale and bias are cut likewise.
    """

    def __init__(self, function=None, gated=False, by_columns=False):
        super().__init__(function, gated)
        self.by_columns = by_columns

    @property
    def at(self):
        return _Indexed(self._of_chunk)

    def _of_chunk(self, index):
        other = self.each(lambda ref: ref.at[index], "residual")
        unit = tuple(i for i in index if not isinstance(i, pl.Slice))
        if not (self.by_columns and unit):
            return other
        return other.each(lambda ref: ref.at[unit], "scale", "bias")

    def each(self, function, *names):
        """The same with other references: function of those that have these names."""
        known = [name for name in names if getattr(self, name) is not None]
        return self.of(**{name: function(getattr(self, name)) for name in known})


class _Units:
    """Rows, depth and columns of a unit, in whole tiles; how units of each kind look.

    Each core of a device has its own share of the rows of every unit.
    """

    def __init__(self, call, sizes, parts, dtype, out, partial=None, sides=1):
        """sizes, parts: of rows, depth and columns of a shard; sides: 2 with a gate."""
        partial = out if partial is None else partial
        sublanes = max(32 // each.itemsize for each in (dtype, out, partial))
        self.cores, most = call.cores, call.device_cores
        if self.cores is None:
            rows = _tiled(sizes[0], parts[0], sublanes)
            self.cores = most if rows >= most * sublanes else 1
        tiles = (self.cores * sublanes, 128, 128)
        self.rows, self.depth, self.cols = map(_tiled, sizes, parts, tiles)
        self.share = share = self.rows // self.cores
        wide = jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else jnp.int32
        self.kinds = {
            "x": (share, self.depth, dtype),
            "w": (self.depth, self.cols, dtype),
            "o": (share, self.cols, out),
            "sum": (share, sides * self.cols, jnp.dtype(wide)),
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
    """The call, left to one core where there are few rows, those of all shards together."""
    few = not call.portable and rows < call.device_cores * _ROWS_OF_CORE
    return dataclasses.replace(call, device_cores=1) if few else call


def _rows_of_core(cores, shape):
    """The block of each core: its share of the rows of every unit [*grid, rows, cols]."""
    if cores == 1:
        return pl.BlockSpec(memory_space=pltpu.VMEM)
    *grid, rows, cols = shape
    block = (*grid, rows // cores, cols)

    def index(core):
        return *(0 for _ in grid), core, 0

    return pl.BlockSpec(block, index, memory_space=pltpu.VMEM)


def _part_of_core(cores, ref):
    """The same of a ref in HBM, which no grid cuts."""
    if cores == 1:
        return ref
    rows = ref.shape[-2] // cores
    part = pl.ds(pl.multiple_of(pl.program_id(0) * rows, rows), rows)
    return ref.at[(*(slice(None) for _ in ref.shape[:-2]), part)]


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


def _padded_weights(weights, rows, cols, options):
    """Each weight with zeros behind its blocks of rows and of columns.

    rows, cols: how many blocks there are, and the size of each with its zeros.
    """
    if options["transposed"]:
        rows, cols = cols, rows

    def padded(w):
        (n, high), (m, wide) = rows, cols
        if w.shape == (n * high, m * wide):
            return w
        blocks = w.reshape(n, w.shape[0] // n, m, w.shape[1] // m)
        blocks = _padded(jnp.moveaxis(blocks, 2, 1), high, wide)
        return jnp.moveaxis(blocks, 1, 2).reshape(n * high, m * wide)

    return [padded(w) for w in weights]
