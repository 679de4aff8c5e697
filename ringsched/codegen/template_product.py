"""The further part that is the same in the modules of all single collective matmuls; see template.py.

Everything after the marker is copied into the module, in front of what template_stream.py has.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringsched.codegen.template import _Axes, _coordinates
from ringsched.codegen.template_call import _types
from ringsched.codegen.template_multiply import (
    _compiler_params,
    _Finish,
    _grid_of_cores,
    _multiply,
    _padded,
    _part_of_core,
    _rows_of_core,
    _Weight,
)
from ringsched.codegen.template_plan import _Chip, _plan, _stream_buffers, _Work
from ringsched.codegen.template_stream import _Streamed

RANKS = 4

# ==== marker ====
# How a collective matmul is called. What follows is the same in every module of one.


def _launch_product(call, kernel, x, weights, extras, spec, units, options):
    """Runs a kernel on units of x and weights.

    extras: scale, bias and residual, in units of the result, by name.
    Gives the units of the result, and of what was gathered, where that is kept.
    """
    cores, rows, (_, cols, dtype) = units.cores, units.rows, units.kinds["o"]
    transposed, gated = options["transposed"], len(weights) > 1
    work, sizes = _work(spec, units, weights, extras, options)
    chip = _Chip.of(call, units.kinds["x"][2])
    plan = _plan(call.name, work, chip, sizes, options)
    streams = plan is not None
    near, far = pltpu.VMEM, pltpu.HBM
    x_place = far if streams and plan.block is not None else near
    o_place = far if streams and spec["gathers"] else near
    w_place = far if streams else near

    # With their places, and whether cores share out their rows.
    operands = [(x.reshape(*spec["x"], rows, units.depth), x_place, True)]
    operands += [(w, w_place, False) for w in weights]
    for name, it in extras.items():
        residual = name == "residual"
        operands.append((_like(x, it), o_place if residual else near, residual))
    results = [((*spec["o"], rows, cols), dtype, o_place)]
    scratch = []
    for grid, kind in spec["scratch"]:
        *tile, each = units.kinds[kind]
        if kind == "x" and (options["keep"] or x_place is far):
            # Scratch is never in HBM; what is kept is another result.
            results.append(((*grid, rows, tile[1]), each, x_place))
        else:
            scratch.append(pltpu.VMEM((*grid, *tile), each))
    finish = _Finish(options["function"], gated, spec["by_columns"])
    residual = extras["residual"].dtype if "residual" in extras else None
    dtypes = (units.kinds["x"][2], dtype, residual)
    own = _stream_buffers(plan, work, dtypes, transposed) if streams else {}
    # Other ranks write into a result that is the same at all, and into what is gathered:
    # on two cores these take VMEM of their own, for the blocks of a grid have no place
    # that others know.
    asides = {}
    for number, (shape, each, place) in enumerate(results):
        if cores > 1 and place is near and (number or spec["replicated"]):
            asides[number] = pltpu.VMEM((*shape[:-2], units.share, shape[-1]), each)

    def body(*refs):
        refs = iter(refs)
        given, blocks = [], []
        for (_, space, cut), ref in zip(operands, refs, strict=False):
            given.append(_part_of_core(cores, ref) if cut and space is far else ref)
        x_ref, w_refs = given[0], given[1 : 1 + len(weights)]
        w_ref = _Weight(w_refs, transposed, units.depth, spec["w"])
        done = finish.of(**dict(zip(extras, given[1 + len(weights) :], strict=True)))
        for (*_, space), ref in zip(results, refs, strict=False):
            blocks.append(_part_of_core(cores, ref) if space is far else ref)
        others = list(itertools.islice(refs, len(scratch) + len(spec["semaphores"])))
        aside = dict(zip(asides, refs, strict=False))
        o_ref, *gathered = (aside.get(k, ref) for k, ref in enumerate(blocks))
        multiply = _multiply
        if streams:
            buffers = dict(zip(own, refs, strict=True))
            multiply = _Streamed(plan, w_ref if plan.shared else None, buffers)
        refs = (x_ref, w_ref, o_ref, *gathered, *others)
        axes = _Axes(call, None)
        kernel(*_coordinates(call), *refs, axes=axes, multiply=multiply, finish=done)
        for number, ref in aside.items():
            blocks[number][...] = ref[...]

    def placed(shape, place, cut):
        if cut and place is near:
            return _rows_of_core(cores, shape)
        return pl.BlockSpec(memory_space=place)

    shaped = functools.partial(jax.ShapeDtypeStruct, manual_axis_type=_types(x))
    shapes = [shaped(shape, each) for shape, each, _ in results]
    scratch_shapes = [*scratch, *spec["semaphores"], *asides.values(), *own.values()]
    result = pl.pallas_call(
        body,
        out_shape=shapes,
        in_specs=[placed(it.shape, place, cut) for it, place, cut in operands],
        out_specs=[placed(shape, place, True) for shape, _, place in results],
        scratch_shapes=scratch_shapes,
        **_grid_of_cores(cores),
        compiler_params=_compiler_params(call, spec, cores),
        interpret=call.interpret,
        name=call.name,
    )(*(it for it, *_ in operands))
    return result if options["keep"] else result[0]


def _like(x, it):
    """it with the type that differs wherever that of x does."""
    missing = tuple(sorted(_types(x).varying - _types(it).varying))
    return lax.pcast(it, missing, to="varying") if missing else it


def _work(spec, units, weights, extras, options):
    """What a kernel does, and how many bytes each operand takes if all are in VMEM."""
    gated = len(weights) > 1
    sizes = {name: units.bytes(spec[name], name) for name in ("x", "o")}
    sizes["w"] = sum(w.size * w.dtype.itemsize for w in weights)
    others = {k: it.size * it.dtype.itemsize for k, it in extras.items()}
    if "residual" in others:
        others["residual"] //= units.cores
    if units.cores > 1 and spec["replicated"]:
        sizes["o"] *= 2
    sizes |= others
    scratch = [(units.bytes(grid, kind), kind) for grid, kind in spec["scratch"]]
    sizes["scratch"] = sum(size for size, _ in scratch)
    gathered = sum(size for size, kind in scratch if kind == "x")
    gathers, residual = spec["gathers"], others.get("residual", 0)
    held = sizes["scratch"] - gathered + sum(others.values())
    held += -residual if gathers else sizes["o"]
    x, o = units.kinds["x"][2], units.kinds["o"][2]
    work = _Work(
        rows=units.share,
        depth=units.depth,
        cols=units.cols,
        groups=spec["groups"],
        gathers=gathers,
        by_rows=spec["by_rows"],
        rolled=spec["rolled"],
        directions=spec["directions"],
        sides=1 + gated,
        x_bytes=x.itemsize,
        o_bytes=o.itemsize,
        residual_bytes=extras["residual"].dtype.itemsize if residual else 0,
        held=held,
        x=sizes["x"],
        gathered=gathered,
    )
    return work, sizes


def _extras_in_units(extras, units, spec, pack):
    """Scale, bias and residual in units of the result; `pack` does it for the latter."""
    grid = spec["o"] if spec["by_columns"] else ()
    found = {}
    for name, it in extras.items():
        if name == "residual":
            found[name] = pack(it)
            continue
        it = _padded(it, it.shape[0], math.prod(grid) * units.cols)
        it = jnp.moveaxis(it.reshape(it.shape[0], -1, units.cols), 1, 0)
        found[name] = it.reshape(*grid, *it.shape[1:])
    return found


def _whole(call, gathered, own, count):
    """The shards of all ranks [RANKS, …], of units that have arrived and this rank's own."""
    shards = gathered.reshape(RANKS, count, *gathered.shape[-2:])
    own = own.reshape(shards.shape[1:])
    return lax.dynamic_update_index_in_dim(shards, own, call.place.index, 0)


def _side_by_side(whole, m, k):
    """Shards of features [RANKS, parts, rows, depth] as [m, RANKS * k]."""
    whole = jnp.moveaxis(whole, 2, 0)
    return whole.reshape(whole.shape[0], RANKS, -1)[:m, :, :k].reshape(m, RANKS * k)
