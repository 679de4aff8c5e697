"""Collectives of jax.lax outside kernels: what a device gets from the operands of its group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ringsched.auditing.numbers import Numbers, Untold, numbers, taint_of
from ringsched.auditing.rounding import Rounding

COLLECTIVES = (
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "pmax",
    "pmin",
    "ppermute",
    "psum",
    "psum_invariant",
    "reduce_scatter",
)


def group_of(params: Mapping[str, Any], place: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[list[int], int]:
    """The ranks that take part with the device at `place`, in their order, and which of them it is. Raises Untold."""
    named = params["axes"] if "axes" in params else params["axis_name"]
    axes = named if isinstance(named, tuple) else (named,)
    if params.get("axis_index_groups") is not None or any(axis not in sizes for axis in axes):
        raise Untold("a collective over a part of an axis")
    ranks = []
    for index in itertools.product(*(range(sizes[axis]) for axis in axes)):
        there = {**place, **dict(zip(axes, index, strict=True))}
        rank = 0
        for axis, side in sizes.items():
            rank = rank * side + there[axis]
        ranks.append(rank)
    own = 0
    for axis in axes:
        own = own * sizes[axis] + place[axis]
    return ranks, own


def exchanged(
    name: str, params: Mapping[str, Any], operands: Sequence[Numbers], own: int, rounding: Rounding | None
) -> Numbers:
    """operands: of the group, in order; own: the place in it of the device that asks. Raises Untold."""
    arrays = [each.values for each in operands]
    with np.errstate(all="ignore"):
        values = _exchanged(name, params, arrays, own, np.sum)
        if rounding is not None and name in ("psum", "psum_invariant", "reduce_scatter"):
            values = rounding(values, arrays, _exchanged(name, params, [np.abs(each) for each in arrays], own, np.sum))
    if all(each.taint is None for each in operands):
        return Numbers(values)
    # What is reduced of taints is the worst of them, whatever is reduced of the values.
    worst = "pmax" if name in ("pmax", "pmin") else name
    return numbers(values, _exchanged(worst, params, [taint_of(each) for each in operands], own, np.max))


def _exchanged(
    name: str, params: Mapping[str, Any], operands: Sequence[np.ndarray], own: int, total: Callable[..., Any]
) -> np.ndarray:
    """total: of the group, for sums."""
    count = len(operands)
    kind = {"dtype": operands[0].dtype} if total is np.sum else {}
    match name:
        case "psum" | "psum_invariant":
            return np.asarray(total(operands, axis=0, **kind))
        case "pmax":
            return np.asarray(np.max(operands, axis=0))
        case "pmin":
            return np.asarray(np.min(operands, axis=0))
        case "all_gather" | "all_gather_invariant":
            axis = params["all_gather_dimension"]
            return np.concatenate(operands, axis) if params["tiled"] else np.stack(operands, axis)
        case "reduce_scatter":
            whole = total(operands, axis=0, **kind)
            axis = params["scatter_dimension"]
            return np.split(whole, count, axis)[own] if params["tiled"] else np.take(whole, own, axis)
        case "ppermute":
            sources = [source for source, target in params["perm"] if target == own]
            return operands[sources[0]] if sources else np.zeros_like(operands[own])
        case "all_to_all":
            split, concat = params["split_axis"], params["concat_axis"]
            if params["tiled"]:
                return np.concatenate([np.split(each, count, split)[own] for each in operands], concat)
            return np.stack([np.take(each, own, split) for each in operands], concat)
        case _:
            raise Untold(f"the operation `{name}`")
