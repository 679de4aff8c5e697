"""What the function ought to return: a function of jax.lax collectives, or the name of one, on the same arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ringsched.auditing.arithmetic import carrier, run
from ringsched.auditing.tracing import AuditError

LARGEST = 100  # of the arguments' integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective over all ranks along the first dimension. `permutation[s]`: the rank that gets the operand of s.

    With a root, the others' results of reduce and gather are zero.
    """

    kind: str
    root: int = 0
    permutation: tuple[int, ...] = ()


Expect = Callable[..., Any] | str | Collective


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
        expect = Collective(kind=expect)
    if isinstance(expect, Collective):
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
    collective: Collective, arguments: Sequence[Sequence[np.ndarray]], results: Sequence[Sequence[tuple[int, ...]]]
) -> list[list[np.ndarray]]:
    """In the shape that the function returns."""
    name = collective.kind
    if name not in COLLECTIVES:
        raise AuditError(f"{name!r} is no collective that can be expected; there are {', '.join(COLLECTIVES)}")
    if len(arguments[0]) != 1 or len(results[0]) != 1:
        raise AuditError(f"{name} has one operand and one result; for other functions, expect is a function")
    shards = np.stack([each[0] for each in arguments])
    if name in SPLITTING and (shards.ndim < 2 or shards.shape[1] % len(shards)):
        raise AuditError(f"{name} on {len(shards)} devices splits dimension 0 of {shards.shape[1:]}")
    found = COLLECTIVES[name](shards, collective)
    for rank, each in enumerate(found):
        if each.size != math.prod(results[rank][0]):
            raise AuditError(f"{name} of {shards.shape[1:]} has {each.size} elements, the result {results[rank][0]}")
    return [[each.reshape(results[rank][0])] for rank, each in enumerate(found)]


def _sum(x: np.ndarray) -> np.ndarray:
    """Of all ranks; small integers wrap, as they do in the kernel."""
    total: np.ndarray = x.sum(axis=0, dtype=x.dtype)
    return total


def _at_root(result: np.ndarray, ranks: int, root: int) -> list[np.ndarray]:
    return [result if rank == root else np.zeros_like(result) for rank in range(ranks)]


def _permuted(x: np.ndarray, permutation: tuple[int, ...]) -> list[np.ndarray]:
    found = [np.zeros_like(x[0]) for _ in x]
    for source, target in enumerate(permutation):
        found[target] = x[source]
    return found


SPLITTING = ("reduce_scatter", "all_to_all", "scatter")
COLLECTIVES: dict[str, Callable[[np.ndarray, Collective], Sequence[np.ndarray]]] = {
    "all_gather": lambda x, c: [x] * len(x),
    "reduce_scatter": lambda x, c: list(_sum(x).reshape(len(x), -1)),
    "all_reduce": lambda x, c: [_sum(x)] * len(x),
    "all_to_all": lambda x, c: list(x.reshape(len(x), len(x), -1).swapaxes(0, 1)),
    "permute": lambda x, c: _permuted(x, c.permutation),
    "broadcast": lambda x, c: [x[c.root]] * len(x),
    "reduce": lambda x, c: _at_root(_sum(x), len(x), c.root),
    "gather": lambda x, c: _at_root(x, len(x), c.root),
    "scatter": lambda x, c: list(x[c.root].reshape(len(x), -1)),
}
