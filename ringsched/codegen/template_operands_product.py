"""The operands of a single product, checked: the same in all modules of one, with or without a kernel.

Everything after the marker is copied into the module, in front of what template_operands.py has.
"""

import jax.numpy as jnp

from ringsched.codegen.template_call import _types
from ringsched.codegen.template_operands import (
    _FACTORS,
    _WIDE,
    _check_factor,
    _shape_of,
)

# ==== marker ====
# What a product takes. What follows is the same in every module of one.


def _operands(x, w):
    """x, and a tuple of the weight or of a gate and the weight."""
    weights = w if isinstance(w, (tuple, list)) else (w,)
    return jnp.asarray(x), tuple(jnp.asarray(each) for each in weights)


def _check_product(call, x, weights, options, **rule):
    """The shape of the result; raises ValueError where operands do not match.

    deeper: how many times the depth of x that of a weight is; wider: how many times the
    rows of x the result has. split: the dimension of the product that is shared out
    among the ranks. gates: whether there may be a gate.
    """
    name, gates, split = call.name, rule.get("gates", True), rule.get("split")
    deeper, wider = rule.get("deeper", 1), rule.get("wider", 1)
    if not 1 <= len(weights) <= 1 + gates:
        want = "a weight, or a gate and a weight" if gates else "one weight"
        raise ValueError(f"{name} takes {want}, not {len(weights)}")
    shapes = [x.shape, *(w.shape for w in weights)]
    if x.ndim < 2 or any(w.ndim != 2 for w in weights):
        raise ValueError(f"{name} takes matrices, not {' and '.join(map(str, shapes))}")
    dtypes = [x.dtype.name, *(w.dtype.name for w in weights)]
    if len(set(dtypes)) > 1:
        have = " and ".join(dtypes)
        raise ValueError(f"{name} takes x and w of one dtype, not {have}")
    _check_factor(call, x.dtype, _FACTORS)
    if len(set(shapes[1:])) > 1:
        have = " and ".join(map(str, shapes[1:]))
        raise ValueError(f"{name} takes a gate and a weight of one shape, not {have}")
    *batch, rows, depth = x.shape
    deep, cols = _shape_of(weights[0], options)
    if deep != deeper * depth:
        times = f"{deeper} * " if deeper > 1 else ""
        what = "columns, transposed" if options["transposed"] else "rows"
        want = f"w to have {times}{depth} = {deeper * depth} {what}"
        have = f"x is {x.shape} and w {weights[0].shape}"
        raise ValueError(f"{name} needs {want}: {have}")
    if split is not None and (rows, cols)[split] % call.ranks:
        what = ("rows of x", "columns of w")[split]
        have = f"{call.ranks} ranks: {(rows, cols)[split]}"
        raise ValueError(f"{name} shares the {what} out among {have}")
    if options.get("memory") not in (None, "vmem", "hbm"):
        have = repr(options["memory"])
        raise ValueError(f'{name} has its operands in "vmem" or "hbm", not {have}')
    shares = [call.ranks if split == dimension else 1 for dimension in (0, 1)]
    return *batch, wider * rows // shares[0], cols // shares[1]


def _result_dtype(x, scale, out_dtype):
    if out_dtype is not None:
        return jnp.dtype(out_dtype)
    integers = jnp.issubdtype(x.dtype, jnp.integer)
    return _WIDE if integers and scale is not None else x.dtype


def _extras(call, scale, bias, residual, shape, gated, same=False):
    """What an epilogue takes beside the sums: arrays by name; `shape`: of the result.

    same: the result is the same on all ranks, and so they must be.
    """
    found = {}

    def typed(name, it):
        if same and call.check_vma and set(call.axes) & _types(it).varying:
            raise ValueError(f"{call.name} needs a {name} that all ranks have alike")
        return it

    for name, given in (("scale", scale), ("bias", bias)):
        if given is None:
            continue
        both = given if isinstance(given, (tuple, list)) else (given,)
        have = [jnp.shape(each) for each in both]
        if len(both) != 1 + gated or any(it != (shape[-1],) for it in have):
            want = f"{'two of ' if gated else ''}[{shape[-1]}]"
            raise ValueError(f"{call.name} needs a {name} {want}, not {have}")
        rows = [jnp.asarray(each, jnp.float32) for each in both]
        found[name] = typed(name, jnp.stack(rows))
    if residual is not None:
        residual = typed("residual", jnp.asarray(residual))
        if residual.shape != shape:
            want = f"a residual {list(shape)}, not {list(residual.shape)}"
            raise ValueError(f"{call.name} needs {want}")
        found["residual"] = residual
    return found
