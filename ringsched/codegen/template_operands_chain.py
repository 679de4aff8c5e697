"""The operands of a chain, checked: the same in all modules of chains, with or without a kernel.

Everything after the marker is copied into the module, in front of what template_operands.py has.
"""

import dataclasses

import jax

from ringsched.codegen.template_call import _Rule
from ringsched.codegen.template_operands import (
    _FACTORS,
    _check_factor,
    _epilogue,
    _pushed,
)

# ==== marker ====
# What a chain takes. What follows is the same in all modules of chains.


def _check_chain(call, x, weights, widths):
    """x [rows, width]; each weight [layers, rows, cols], as `widths` says."""
    if x.ndim != 2 or any(w.ndim != 3 for w in weights):
        have = ", ".join(str(it.shape) for it in (x, *weights))
        want = "[rows, cols] and [layers, rows, cols]"
        raise ValueError(f"{call.name} takes {want}, not {have}")
    dtypes = {it.dtype.name for it in (x, *weights)}
    if len(dtypes) > 1:
        have = ", ".join(sorted(dtypes))
        raise ValueError(f"{call.name} takes operands of one dtype, not {have}")
    floats = [name for name in _FACTORS if name != "int8"]
    _check_factor(call, x.dtype, floats)
    if any(it.size == 0 for it in (x, *weights)):
        raise ValueError(f"{call.name} takes no empty operands")
    if len({w.shape[0] for w in weights}) > 1:
        have = ", ".join(str(w.shape) for w in weights)
        raise ValueError(f"{call.name} takes as many layers of each weight: {have}")
    width = x.shape[1]
    for number, w in enumerate(weights, 1):
        factor, shares = widths[number - 1]
        if w.shape[1] != factor * width:
            times = f"{factor} * " if factor > 1 else ""
            want = f"w{number} to have {times}{width} = {factor * width} rows"
            raise ValueError(f"{call.name} needs {want}: it is {w.shape}")
        if w.shape[2] % shares:
            what = f"the {w.shape[2]} columns of w{number} out among {call.ranks} ranks"
            raise ValueError(f"{call.name} shares {what}")
        width = w.shape[2] // shares
    if width != x.shape[1]:
        have = f"it has {width} columns where a shard of x has {x.shape[1]}"
        raise ValueError(f"{call.name} gives its result to the next layer: {have}")


def _shard_of_whole(call, x, axis):
    """Shape and dtype of a rank's shard along an axis of x [rows, cols]."""
    varying = set(call.axes) & set(jax.typeof(x).mat.varying)
    if varying:
        have = f"its type varies over {', '.join(sorted(varying))}"
        raise ValueError(f"{call.name} takes x that is the same at all ranks: {have}")
    if x.ndim == 2 and x.shape[axis] % call.ranks:
        what = ("rows", "columns")[axis]
        have = f"the {x.shape[axis]} {what} of x out among {call.ranks} ranks"
        raise ValueError(f"{call.name} shares {have}")
    shape = list(x.shape)
    shape[axis] //= call.ranks
    return jax.ShapeDtypeStruct(shape, x.dtype)


def _epilogues(name, given, known):
    """The functions that are applied to the products of a layer; `known`: by name."""
    if not isinstance(given, (tuple, list)):
        given = known if given is None else (given, *known[1:])
    if len(given) != len(known):
        have = f"{len(given)} epilogues for {len(known)} products"
        raise ValueError(f"{name} is given {have}")
    return tuple(_epilogue(name, each) for each in given)


def _finished(y, finish, dtype):
    return (y if finish is None else finish(y)).astype(dtype)


@dataclasses.dataclass(frozen=True)
class _Chained(_Rule):
    """All layers by one function, a kernel say, with the gradient of another."""

    call: object
    run: object
    by_lax: object
    rest: tuple

    def function(self, x, *weights):
        return (self.run(self.call, x, weights, *self.rest),)

    def typed(self, results, operands):
        """Where the activation is whole, it comes and goes with one type."""
        return [y.update(manual_axis_type=operands[0].mat) for y in results]

    def apart(self, x, *weights):
        return (self.by_lax(x, weights, self.call.axes, *self.rest),)

    def push(self, primals, tangents):
        return _pushed(self.apart, primals, tangents)

    def pull(self, primals, cotangents):
        return jax.vjp(self.apart, *primals)[1](tuple(cotangents))
