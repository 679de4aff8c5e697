"""The fixed part of a module that multiplies what it gathers.

Everything after the marker is copied into the module, in front of what template_product.py has.
"""

import jax.numpy as jnp

from ringsched.codegen.template_operands import _dot
from ringsched.xla.template import CHUNKS, PARTS, RANKS, _placed
from ringsched.xla.template_product import (
    _At,
    _by_rows,
    _in_blocks,
    _own_place,
    _unblocked,
    _wide,
)

ALONG = 0

# ==== marker ====
# What is multiplied as it arrives.


class _Gathered:
    """The products of chunks with each weight, in 32 bits.

    Of rows, each chunk has its own: weights [depth, cols], values [*CHUNKS, rows, cols].
    Of features, they are added up: weights [*CHUNKS, depth, cols], values [rows, cols].
    """

    def __init__(self, weights, values):
        self.weights, self.values = weights, values

    def plus(self, chunks):
        """`[index]`: with those of these chunks, which belong there."""

        def at(index):
            pairs = zip(self.weights, self.values, strict=True)
            values = [_with(y, w, chunks, index) for w, y in pairs]
            return _Gathered(self.weights, values)

        return _At(at)


def _with(y, w, chunks, index):
    if ALONG == 0:
        return y.at[index].set(_by_rows(chunks, w), mode="drop")
    # Beyond the end, where nothing has arrived, there is nothing to multiply by.
    w = w.at[index].get(mode="fill", fill_value=0)
    x = jnp.moveaxis(chunks, -2, 0)
    return y + _dot(x.reshape(x.shape[0], -1), w.reshape(-1, w.shape[-1]))


def _gathered_products(transfers, call, x, weights):
    """The gathered x times each weight, in 32 bits."""
    (rows, _), wide = x.shape, _wide(x.dtype)
    held = _own_placed(x, call.place)
    if ALONG == 0:
        shapes = [(*CHUNKS, held.shape[-2], w.shape[1]) for w in weights]
    else:
        shapes = [(rows, w.shape[1]) for w in weights]
        weights = [_in_blocks(w, 0, CHUNKS, RANKS) for w in weights]
    values = [jnp.zeros_like(x, wide, shape=shape) for shape in shapes]
    _, out = transfers(held, call.place, _Gathered(weights, values))
    if ALONG == 0:
        return [_unblocked(y, 0, rows, RANKS) for y in out.values]
    return out.values


def _own_placed(x, axes):
    """This rank's chunks, and places for those of others."""
    return _placed(_in_blocks(x, ALONG, PARTS), _own_place(axes), 2)
