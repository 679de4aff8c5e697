"""Values as the bits of the kernel's own dtype, and the other way round; exact, or not told."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringsched.auditing.numbers import Numbers, Untold, as_array, carrier, numbers, taint_of
from ringsched.auditing.rounding import same


def bits_of(x: Numbers, dtype: Any) -> np.ndarray:
    """In the kernel's own dtype. Raises Untold where that cannot hold them as they are."""
    with np.errstate(all="ignore"):
        found = x.values.astype(_whole(dtype), order="C")
    held = same(found.astype(x.values.dtype), x.values)
    if not np.all(held | (taint_of(x) > 0)):
        raise Untold(f"the bits of values that are not rounded to {dtype}")
    return found


def _whole(dtype: Any) -> np.dtype[Any]:
    """Raises Untold for a dtype of less than a byte."""
    kind: np.dtype[Any] = np.dtype(dtype)
    if carrier(dtype) != kind and carrier(dtype).kind in "iu":
        raise Untold(f"the bits of {dtype}")
    return kind


def recast(x: Numbers, old: Any, new: Any) -> Numbers:
    """Elements of another dtype of the same width."""
    return Numbers(as_array(bits_of(x, old).view(_whole(new)), new), x.taint)


def repacked(x: Numbers, old: Any, new: Any) -> Numbers:
    """The same memory as elements of another width: they lie along the second-last axis, the first in the low bits."""
    before, after = np.dtype(old).itemsize, np.dtype(new).itemsize
    if before == after:
        return recast(x, old, new)
    bits, taint = bits_of(x, old), taint_of(x)
    *outer, rows, columns = bits.shape
    if after > before:
        ratio = after // before
        together = bits.reshape(*outer, rows // ratio, ratio, columns).swapaxes(-1, -2)
        values = np.ascontiguousarray(together).view(_whole(new))[..., 0]
        worst = taint.reshape(*outer, rows // ratio, ratio, columns).max(axis=-2)
        return numbers(as_array(values, new), worst)
    ratio = before // after
    apart = np.ascontiguousarray(bits[..., None]).view(_whole(new)).swapaxes(-1, -2)
    values = apart.reshape(*outer, rows * ratio, columns)
    return numbers(as_array(values, new), np.repeat(taint, ratio, axis=-2))
