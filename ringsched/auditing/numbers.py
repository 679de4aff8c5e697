"""Arrays as the audit computes with them: values, and which elements hang on memory that nothing has written.

Floats of every width are held as float64 and never rounded to a narrower type, so sums and products of small integers
are exact and do not depend on their order. Integers and bools are what they are in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

Taint = np.ndarray  # uint16: 0, or the number of a buffer that was read before anything had written it


class Untold(Exception):
    """Something that is not known here; `reason` completes "values are not known: …".

    `may_hang`: it may not come to an end at all, so it has to be told even where nobody asked for values.
    """

    def __init__(self, reason: str, *, may_hang: bool = False) -> None:
        self.reason, self.may_hang = reason, may_hang
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Numbers:
    """`taint` has the shape of `values`; None: all of them are known."""

    values: np.ndarray
    taint: Taint | None = None

    def __getitem__(self, index: Any) -> Numbers:
        return Numbers(self.values[index], None if self.taint is None else self.taint[index])

    @property
    def worst(self) -> int:
        """Of the taint of all elements."""
        return 0 if self.taint is None else int(self.taint.max(initial=0))

    def tainted(self, by: int) -> Numbers:
        """The same, all of which hangs on a buffer as well; 0: on none."""
        if not by:
            return self
        least = np.full(self.values.shape, by, np.uint16)
        return Numbers(self.values, least if self.taint is None else np.maximum(least, self.taint))


def taint_of(numbers: Numbers) -> Taint:
    """Its taint as an array, where there is none, too."""
    return np.zeros(numbers.values.shape, np.uint16) if numbers.taint is None else numbers.taint


def numbers(values: np.ndarray, taint: Taint | None) -> Numbers:
    """Without a taint that says nothing."""
    return Numbers(values, taint if taint is not None and taint.any() else None)


def stacked(parts: Sequence[Numbers]) -> Numbers:
    """Along a new first dimension."""
    values = np.stack([each.values for each in parts])
    if all(each.taint is None for each in parts):
        return Numbers(values)
    return Numbers(values, np.stack([taint_of(each) for each in parts]))


def carrier(dtype: Any) -> np.dtype[Any]:
    """The dtype that holds values of a kernel's dtype here. Raises Untold."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64)
    if jnp.issubdtype(dtype, jnp.bool_):
        return np.dtype(np.bool_)
    if jnp.issubdtype(dtype, jnp.integer):
        kind = np.dtype(dtype)
        return kind if kind.kind in "iu" else np.dtype(np.int8 if jnp.iinfo(dtype).min < 0 else np.uint8)
    raise Untold(f"values of dtype {dtype}")


def as_array(value: Any, dtype: Any) -> np.ndarray:
    """A number or array of a kernel in the form that it has here. Raises Untold."""
    found = np.asarray(value).astype(carrier(dtype), copy=False)
    kind = np.dtype(dtype)
    if kind.kind in "biuf" or not jnp.issubdtype(dtype, jnp.integer):
        return found
    least, count = int(jnp.iinfo(dtype).min), 1 << int(jnp.iinfo(dtype).bits)  # int4 and its kind
    wrapped: np.ndarray = ((found.astype(np.int16) - least) % count + least).astype(found.dtype)
    return wrapped
