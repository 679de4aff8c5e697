"""The fixed part of a module that sums products.

Everything after the marker is copied into the module, in front of what template_product.py has.
"""

import jax.numpy as jnp

from ringsched.codegen.template_operands import _dot
from ringsched.xla.template import CHUNKS, RANKS
from ringsched.xla.template_product import (
    _At,
    _by_rows,
    _in_blocks,
    _own_place,
    _unblocked,
    _wide,
)

ALONG = 0
SHARES = RANKS

# ==== marker ====
# What is multiplied before it is sent.


class _Terms:
    """This rank's terms of the sums, each of which is computed when it is asked for.

    Of rows: x [*CHUNKS, rows, depth], w [depth, cols].
    Of features: x [rows, depth], w [*CHUNKS, depth, cols].
    dtype: that of the sums; partial: the one as which they travel.
    """

    def __init__(self, x, w, dtype, partial):
        self.x, self.w, self.dtype, self.partial = x, w, dtype, partial

    def __getitem__(self, index):
        return self._sum(index).astype(self.dtype)

    def plus(self, arrived):
        """`[index]`: with what has arrived for these."""
        wide = _wide(self.dtype)

        def at(index):
            y = arrived.astype(wide) + self._sum(index).astype(wide)
            return y.astype(self.dtype)

        return _At(at)

    def _sum(self, index):
        if ALONG == 0:
            return _by_rows(self.x[index], self.w)
        w = jnp.moveaxis(self.w[index], -2, 0)
        y = _dot(self.x, w.reshape(w.shape[0], -1))
        return jnp.moveaxis(y.reshape(y.shape[0], *w.shape[1:]), 0, -2)


def _summed_products(transfers, call, x, w, partial):
    """This rank's share of the sum of x @ w."""
    size = (x.shape[0], w.shape[1])[ALONG] // SHARES
    if ALONG == 0:
        x = _in_blocks(x, 0, CHUNKS, SHARES)
    else:
        w = _in_blocks(w, 1, CHUNKS, SHARES)
    # A sum that all ranks have is rounded as it travels, so that it is the same at all.
    dtype = _wide(partial) if SHARES > 1 else partial
    chunk = (x.shape[-2], w.shape[-1])
    held = jnp.zeros_like(x, dtype, shape=(*CHUNKS, *chunk))
    held = transfers(held, call.place, _Terms(x, w, dtype, partial))
    if SHARES > 1:
        held = held[_own_place(call.place)]
    return _unblocked(held, ALONG, size)
