"""What the function ought to return: a function of jax.lax collectives, or the name of one, on the same arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ringsched.auditing.arithmetic import run
from ringsched.auditing.rounding import Rounding
from ringsched.auditing.taint import MOVES
from ringsched.auditing.tracing import AuditError


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective over all ranks along the first dimension. `permutation[s]`: the rank that gets the operand of s.

    With a root, the others' results of reduce and gather are zero.
    """

    kind: str
    root: int = 0
    permutation: tuple[int, ...] = ()


Expect = Callable[..., Any] | str | Collective


def expected(
    expect: Expect,
    mesh_axes: Mapping[str, int],
    shards: Sequence[Any],
    arguments: Sequence[Sequence[np.ndarray]],
    results: Sequence[Sequence[tuple[int, ...]]],
    rounding: Rounding | None = None,
) -> list[list[np.ndarray]]:
    """For each rank, what `expect` returns there. results: the shapes that the function returns on each rank.

    Raises AuditError where it is no such function, Untold where its values cannot be followed.
    """
    if isinstance(expect, str):
        expect = Collective(kind=expect)
    if isinstance(expect, Collective):
        return _collective(expect, arguments, results, rounding)
    sides = tuple(mesh_axes.values())
    closed = _mapped(expect, mesh_axes, shards)
    joined = [np.stack(each).reshape(*sides, *each[0].shape) for each in zip(*arguments, strict=True)]
    found = run(closed.jaxpr, closed.consts, joined, rounding)
    ranks = math.prod(sides)
    return [[each.reshape(ranks, *each.shape[len(sides) :])[rank] for each in found] for rank in range(ranks)]


def _mapped(expect: Callable[..., Any], mesh_axes: Mapping[str, int], shards: Sequence[Any]) -> Any:
    """As a jaxpr over the shards of all ranks. Raises AuditError."""
    mapped = expect
    for axis, size in reversed(list(mesh_axes.items())):
        mapped = jax.vmap(mapped, axis_name=axis, axis_size=size)
    stacked = [jax.ShapeDtypeStruct((*mesh_axes.values(), *shard.shape), shard.dtype) for shard in shards]
    try:
        return jax.make_jaxpr(mapped)(*stacked)
    # The function is the user's and may raise anything.
    except Exception as error:
        text = str(error).split("\n\n")[0].strip()
        raise AuditError(f"expect cannot be traced: {type(error).__name__}: {text}") from error


def moves_and_adds(expect: Expect | None, mesh_axes: Mapping[str, int], shards: Sequence[Any]) -> bool:
    """Whether it only moves elements and adds them up: then it says what becomes of not-a-number and infinity."""
    if expect is None or isinstance(expect, str | Collective):
        return expect is not None
    closed = _mapped(expect, mesh_axes, shards)
    return all(eqn.primitive.name in (*MOVES, "add", "add_any", "gather", "reduce_sum", "split") for eqn in closed.eqns)


def _collective(
    collective: Collective,
    arguments: Sequence[Sequence[np.ndarray]],
    results: Sequence[Sequence[tuple[int, ...]]],
    rounding: Rounding | None,
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
    if rounding is not None and name in SUMS:
        with np.errstate(all="ignore"):
            sizes = COLLECTIVES[name](np.abs(shards), collective)
        found = [rounding(each, [shards], size) for each, size in zip(found, sizes, strict=True)]
    for rank, each in enumerate(found):
        if each.size != math.prod(results[rank][0]):
            raise AuditError(f"{name} of {shards.shape[1:]} has {each.size} elements, the result {results[rank][0]}")
    return [[each.reshape(results[rank][0])] for rank, each in enumerate(found)]


def _sum(x: np.ndarray) -> np.ndarray:
    """Of all ranks; small integers wrap, as they do in the kernel."""
    with np.errstate(all="ignore"):
        total: np.ndarray = x.sum(axis=0, dtype=x.dtype)
    return total


def _at_root(result: np.ndarray, ranks: int, root: int) -> list[np.ndarray]:
    return [result if rank == root else np.zeros_like(result) for rank in range(ranks)]


def _permuted(x: np.ndarray, permutation: tuple[int, ...]) -> list[np.ndarray]:
    found = [np.zeros_like(x[0]) for _ in x]
    for source, target in enumerate(permutation):
        found[target] = x[source]
    return found


SUMS = ("reduce_scatter", "all_reduce", "reduce")
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
