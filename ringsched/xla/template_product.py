"""The fixed part of every module of this back end that multiplies.

Everything after the marker is copied into the module, in front of what template.py has.
"""

import math

import jax.numpy as jnp
from jax import lax

from ringsched.codegen.template_operands import _dot

GROUP = 1

# ==== marker ====
# How chunks are multiplied. What follows is the same in every module that multiplies.


def _own_place(axes):
    """Where this rank's chunks are."""
    return axes.index if GROUP == 1 else tuple(axes.coordinates)


def _in_blocks(x, axis, grid, n=1):
    """x [rows, cols], n shards along an axis, as padded parts of them [*grid, …, …]."""
    parts, size = math.prod(grid) // n, x.shape[axis] // n
    unit = -(-size // parts)
    x = x.reshape(*x.shape[:axis], n, size, *x.shape[axis + 1 :])
    padding = [(0, 0)] * x.ndim
    padding[axis + 1] = (0, parts * unit - size)
    x = jnp.pad(x, padding)
    x = x.reshape(*x.shape[:axis], n * parts, unit, *x.shape[axis + 2 :])
    x = jnp.moveaxis(x, axis, 0)
    return x.reshape(*grid, *x.shape[1:])


def _unblocked(x, axis, size, n=1):
    """Blocks [*grid, rows, cols] as n shards of this size along an axis: undoes `_in_blocks`."""
    x = jnp.moveaxis(x.reshape(-1, *x.shape[-2:]), 0, axis)
    x = x.reshape(*x.shape[:axis], n, -1, *x.shape[axis + 2 :])
    x = lax.slice_in_dim(x, 0, size, axis=axis + 1)
    return x.reshape(*x.shape[:axis], n * size, *x.shape[axis + 2 :])


def _by_rows(x, w):
    """[…, rows, depth] times [depth, cols]."""
    y = _dot(x.reshape(-1, x.shape[-1]), w)
    return y.reshape(*x.shape[:-1], w.shape[-1])


class _At:
    """thing[index] is get(index)."""

    def __init__(self, get):
        self.get = get

    def __getitem__(self, index):
        return self.get(index)
