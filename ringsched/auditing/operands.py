"""Operands to try a function on: whatever the dtype, none of their elements is rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ringsched.auditing.numbers import as_array, carrier

LARGEST = 100  # of plain integers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """`floats`: what elements are drawn from; none: integers up to LARGEST, not zero. `told`: in a message."""

    told: str
    floats: tuple[float, ...] = ()
    integers: tuple[int, ...] = ()


PLAIN = Kind(told="integers")
VARIED = Kind(
    told="zeros, ones, fractions, numbers up to 512",
    floats=(0, 1, -1, 0.5, -0.5, 0.25, -0.75, 1.5, -3, 2.0**-9, -(2.0**-9), 96, -112, 2.0**9, -(2.0**9)),
    integers=(0, 1, -1, 2, -3, 100, -100),
)
LARGE = Kind(
    told="large and small numbers",
    floats=(0, 1, -1, 0.5, *(sign * 2.0**e for sign in (1, -1) for e in (-40, -20, 12, 20, 40))),
)
NOT_FINITE = Kind(told="not-a-number and infinities among them", floats=(1, -2, 3, -5, 7, np.nan, np.inf, -np.inf))
KINDS = (PLAIN, VARIED, LARGE, NOT_FINITE)


def arguments_of(
    shards: Sequence[Any], constants: Sequence[Mapping[int, np.ndarray]], kind: Kind = PLAIN, seed: int = 1
) -> list[list[np.ndarray]]:
    """Random shards for each rank; constants[rank]: those that are given. Raises Untold."""
    random = np.random.default_rng(seed)
    return [
        [
            as_array(given[number], shard.dtype) if number in given else _drawn(random, shard, kind)
            for number, shard in enumerate(shards)
        ]
        for given in constants
    ]


def _drawn(random: np.random.Generator, shard: Any, kind: Kind) -> np.ndarray:
    dtype = carrier(shard.dtype)
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shard.shape)).astype(bool)
    if dtype.kind == "f" and kind.floats:
        return np.asarray(random.choice([x for x in kind.floats if _held(x, shard.dtype)], shard.shape))
    if dtype.kind != "f" and kind.integers:
        values = random.choice(np.asarray(kind.integers), shard.shape)
        return as_array(np.abs(values) if dtype.kind == "u" else values, shard.dtype)
    values = random.integers(1, LARGEST + 1, shard.shape)
    if dtype.kind != "u":
        values = values * random.choice([-1, 1], shard.shape)
    return as_array(values, shard.dtype)


def _held(value: float, dtype: Any) -> bool:
    """Whether a float of the kernel's dtype can be this one."""
    found = float(np.asarray(value).astype(jnp.dtype(dtype)))
    return found == value or (np.isnan(found) and np.isnan(value))
