"""The further part that is the same in the modules of all chains; see template.py.

Everything after the marker is copied into the module, in front of what template_multiply.py has.
"""

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringsched.codegen.template import _Axes, _coordinates
from ringsched.codegen.template_call import _types
from ringsched.codegen.template_multiply import (
    _compiler_params,
    _Finish,
    _grid_of_cores,
    _padded,
    _part_of_core,
    _rows_of_core,
)

RANKS = 4

# ==== marker ====
# How the layers of a chain are run. What follows is the same in all modules of chains.


def _weight_of_gather(w, units, parts):
    """w [layers, RANKS * depth, cols] as blocks of rows, padded: one for each unit of x."""
    layers, depth, cols = w.shape
    w = w.reshape(layers, RANKS, depth // RANKS, cols)
    return _padded(w, parts * units.depth, units.cols)


def _weight_of_scatter(w, units, parts):
    """w [layers, depth, RANKS * cols], padded: each unit of the result has its block of columns."""
    layers, depth, cols = w.shape
    w = w.reshape(layers, depth, RANKS, cols // RANKS)
    w = _padded(w, RANKS, parts * units.cols)
    w = jnp.pad(w, ((0, 0), (0, units.depth - depth), (0, 0), (0, 0)))
    return w.reshape(layers, units.depth, RANKS * parts * units.cols)


def _launch_chain(call, kernel, x, weights, spec, units, finishes):
    """Runs a kernel on units of x and weights; gives the units of the result."""
    share, cols, dtype = units[-1].kinds["o"]
    cores, rows = units[0].cores, units[0].rows
    layers = weights[0].shape[0]
    scratch = []
    for grid, kind, number in spec["scratch"]:
        columns = math.prod(grid) if kind == "columns" else 1
        *tile, each = units[number].kinds["w" if kind == "columns" else kind]
        shape = (*(() if kind == "columns" else grid), tile[0], columns * tile[1])
        scratch.append(pltpu.VMEM(shape, each))
    sizes = {} if spec["whole"] else {"x": x.size * x.dtype.itemsize // cores}
    sizes["o"] = math.prod(spec["o"]) * share * cols * dtype.itemsize
    sizes["scratch"] = sum(math.prod(it.shape) * it.dtype.itemsize for it in scratch)
    if sum(sizes.values()) > call.vmem_bytes:
        parts = " + ".join(f"{name} {size / 2**20:.1f}" for name, size in sizes.items())
        have = f"{call.vmem_bytes / 2**20:.0f} MiB of VMEM"
        raise ValueError(f"{call.name} does not fit {have}: {parts} MiB")
    x = x.reshape(*spec["x"], rows, units[0].depth)
    weights = [
        w if grid is None else w.reshape(layers, *grid, *unit.kinds["w"][:2])
        for w, grid, unit in zip(weights, spec["weights"], units, strict=True)
    ]

    # Other ranks write into a result that is the same at all: on two cores it takes VMEM
    # of its own, for the blocks of a grid have no place that others know.
    aside = []
    if spec["whole"] and cores > 1:
        aside = [pltpu.VMEM((*spec["o"], share, cols), dtype)]

    def body(x_ref, *refs):
        done = [_Finish(finish) for finish in finishes]
        options = {"axes": _Axes(call, None), "layers": layers, "finishes": done}
        x_ref = _part_of_core(cores, x_ref) if spec["whole"] else x_ref
        refs = list(refs)
        o_ref = refs[len(weights)]
        if aside:
            refs[len(weights)] = refs.pop()
        kernel(*_coordinates(call), x_ref, *refs, **options)
        if aside:
            o_ref[...] = refs[len(weights)][...]

    far = pl.BlockSpec(memory_space=pltpu.HBM)
    fars = [far] * len(weights)
    shape = (*spec["o"], rows, cols)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=_types(x)),
        in_specs=[far if spec["whole"] else _rows_of_core(cores, x.shape), *fars],
        out_specs=_rows_of_core(cores, shape),
        scratch_shapes=scratch + spec["semaphores"] + aside,
        **_grid_of_cores(cores),
        compiler_params=_compiler_params(call, spec, cores),
        interpret=call.interpret,
        name=call.name,
    )(x, *weights)
