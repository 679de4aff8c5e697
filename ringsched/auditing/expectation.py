"""What the function ought to return: a function of jax.lax collectives, or the name of one, on the same arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ringsched.auditing.arithmetic import carrier, run
from ringsched.auditing.tracing import AuditError

Expect = Callable[..., Any] | str
LARGEST = 100  # of the arguments' integers


def arguments_of(shards: Sequence[Any], ranks: int, seed: int = 1) -> list[list[np.ndarray]]:
    """Random small integers for each rank's shards, not zero; whatever the dtype, none is rounded."""
    random = np.random.default_rng(seed)
    return [[_integers(random, shard) for shard in shards] for _ in range(ranks)]


def _integers(random: np.random.Generator, shard: Any) -> np.ndarray:
    dtype = carrier(shard.dtype)
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shard.shape)).astype(bool)
    values: np.ndarray = random.integers(1, LARGEST + 1, shard.shape)
    if dtype.kind != "u":
        values = values * random.choice([-1, 1], shard.shape)
    found: np.ndarray = values.astype(dtype, copy=False)
    return found


def expected(
    expect: Expect,
    mesh_axes: Mapping[str, int],
    shards: Sequence[Any],
    arguments: Sequence[Sequence[np.ndarray]],
    results: Sequence[Sequence[tuple[int, ...]]],
) -> list[list[np.ndarray]]:
    """For each rank, what `expect` returns there. results: the shapes that the function returns on each rank.

    Raises AuditError where it is no such function, Untold where its values cannot be followed.
    """
    if isinstance(expect, str):
        return _collective(expect, arguments, results)
    sides = tuple(mesh_axes.values())
    mapped = expect
    for axis, size in reversed(list(mesh_axes.items())):
        mapped = jax.vmap(mapped, axis_name=axis, axis_size=size)
    stacked = [jax.ShapeDtypeStruct((*sides, *shard.shape), shard.dtype) for shard in shards]
    try:
        closed = jax.make_jaxpr(mapped)(*stacked)
    # The function is the user's and may raise anything.
    except Exception as error:
        text = str(error).split("\n\n")[0].strip()
        raise AuditError(f"expect cannot be traced: {type(error).__name__}: {text}") from error
    joined = [np.stack(each).reshape(*sides, *each[0].shape) for each in zip(*arguments, strict=True)]
    found = run(closed.jaxpr, closed.consts, joined)
    ranks = math.prod(sides)
    return [[each.reshape(ranks, *each.shape[len(sides) :])[rank] for each in found] for rank in range(ranks)]


def _collective(
    name: str, arguments: Sequence[Sequence[np.ndarray]], results: Sequence[Sequence[tuple[int, ...]]]
) -> list[list[np.ndarray]]:
    """A collective over all ranks along the first dimension, in the shape that the function returns."""
    if name not in COLLECTIVES:
        raise AuditError(f"{name!r} is no collective that can be expected; there are {', '.join(COLLECTIVES)}")
    if len(arguments[0]) != 1 or len(results[0]) != 1:
        raise AuditError(f"{name} has one operand and one result; for other functions, expect is a function")
    shards = [each[0] for each in arguments]
    if name in SPLITTING and (not shards[0].ndim or shards[0].shape[0] % len(shards)):
        raise AuditError(f"{name} on {len(shards)} devices splits dimension 0 of {shards[0].shape}")
    found = COLLECTIVES[name](np.stack(shards))
    for rank, each in enumerate(found):
        if each.size != math.prod(results[rank][0]):
            raise AuditError(f"{name} of {shards[rank].shape} has {each.size} elements, the result {results[rank][0]}")
    return [[each.reshape(results[rank][0])] for rank, each in enumerate(found)]


def _all_to_all(x: np.ndarray) -> Sequence[np.ndarray]:
    ranks = len(x)
    return list(x.reshape(ranks, ranks, -1).swapaxes(0, 1))


def _sum(x: np.ndarray) -> np.ndarray:
    """Of all ranks; small integers wrap, as they do in the kernel."""
    total: np.ndarray = x.sum(axis=0, dtype=x.dtype)
    return total


SPLITTING = ("reduce_scatter", "all_to_all")
COLLECTIVES: dict[str, Callable[[np.ndarray], Sequence[np.ndarray]]] = {
    "all_gather": lambda x: [x] * len(x),
    "reduce_scatter": lambda x: list(_sum(x).reshape(len(x), -1)),
    "all_reduce": lambda x: [_sum(x)] * len(x),
    "all_to_all": _all_to_all,
}
