"""How far results may be apart that are the same but for rounding: each element by itself, by trying.

Every result that is not exact is moved by a random part of NOISE, as much as float32 rounds it: constants of a kernel
are no closer. How far an element comes out apart in a few such runs is its error bound, whatever cancels on the way
(Monte Carlo arithmetic: D. S. Parker, UCLA CSD-970002, 1997). What is exact in float64, such as copies and sums of
integers, is not moved, and has to be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NOISE = 2.0**-23  # relative
RUNS = 4
APART = 8.0  # times the spread of both sides
LARGEST = 2.0**53  # sums and products of integers up to here are exact


class Rounding:
    """Random rounding. A generator of its own for each run, so that each moves results in another way."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def __call__(
        self, values: np.ndarray, operands: Sequence[np.ndarray], scale: np.ndarray | None = None
    ) -> np.ndarray:
        """What an operation has made of operands. scale: of what was added up to each, where that may be more."""
        if values.dtype.kind != "f":
            return values
        with np.errstate(all="ignore"):
            size = np.abs(values) if scale is None else np.maximum(scale, np.abs(values))
            inexact = np.isfinite(values) & np.isfinite(size)
            if all(map(_whole, operands)):
                inexact &= (values != np.rint(values)) | (size >= LARGEST)
            if not inexact.any():
                return values
            moved = values + size * (NOISE * self.random.uniform(-1, 1, values.shape))
        return np.where(inexact, moved, values)


def _whole(values: np.ndarray) -> bool:
    return values.dtype.kind != "f" or bool(np.all(values == np.rint(values)))


def same(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Elements that are equal as they stand; not-a-number is the same as itself."""
    found = np.asarray(left == right)
    if left.dtype.kind == "f" and right.dtype.kind == "f":
        found |= np.isnan(left) & np.isnan(right)
    return found


def close(left: np.ndarray, right: np.ndarray, lefts: Sequence[np.ndarray], rights: Sequence[np.ndarray]) -> np.ndarray:
    """Elements that are the same but for rounding. lefts, rights: what came out of runs with random rounding."""
    found = same(left, right)
    if left.dtype.kind != "f" and right.dtype.kind != "f":
        return found
    with np.errstate(all="ignore"):
        apart = APART * (_spread(left, lefts) + _spread(right, rights))
        found |= np.abs(left.astype(np.float64) - right.astype(np.float64)) <= apart
    return found


def _spread(first: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    runs = np.stack([first, *others]).astype(np.float64)
    spread: np.ndarray = np.nan_to_num(runs.max(axis=0) - runs.min(axis=0), nan=0.0, posinf=0.0)
    return spread
