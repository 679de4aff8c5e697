"""The collectives of `jax.lax` by shipped schedules, with their signatures and defaults: for programs that use those.

from ringsched import lax
y = lax.psum_scatter(x, "i", tiled=True)

A kernel runs on a TPU, the schedule's transfers as `lax.ppermute` elsewhere. What no schedule is for goes to `jax.lax`:
- axes that are not manual ones of a mesh (`vmap(axis_name=…)`, also by the same name; positions), or named twice,
- arrays that are sharded over an explicit mesh axis which shard_map left (hidden by a jit inside a vmap: refused),
- axes or groups of one device, and groups of uneven size,
- permutations that leave ranks out or whose cycles differ in length (those of a shift by any distance do not),
- trees without arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax
from jax._src import core

import ringsched

AxisName = Any
Groups = Sequence[Sequence[int]] | None


@functools.cache
def _compiled(name: str) -> Any:
    return ringsched.compile(name)


def _ranks(x: Any, axis_name: AxisName, groups: Groups = None) -> int:
    """Along the axes, or in each group; 0 where a schedule is not for them."""
    names = _names(axis_name)
    mesh = jax.sharding.get_abstract_mesh()
    if not names or len(set(names)) < len(names) or not jax.tree.leaves(x):
        return 0
    if any(name not in mesh.manual_axes for name in names) or _is_of_vmap(names) or _is_sharded(x):
        return 0
    ranks = 1
    for name in names:
        ranks *= mesh.shape[name]
    if groups is not None:
        sizes = {len(group) for group in groups}
        ranks = sizes.pop() if len(sizes) == 1 else 0
    return ranks if ranks > 1 else 0


def _is_of_vmap(names: Sequence[Any]) -> bool:
    """Whether a vmap in the shard_map took a name, or maps an axis that is sharded over an explicit mesh axis.

    No public function tells: not that of the size, where sizes are equal.
    """
    trace = core.trace_ctx.trace
    while trace is not None:
        data = getattr(trace, "axis_data", None)
        if data is not None and (data.name in names or data.explicit_mesh_axis):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def _is_sharded(x: Any) -> bool:
    """Whether an array is sharded over an explicit axis that shard_map left: a schedule refuses it."""
    avals = map(jax.typeof, jax.tree.leaves(x))
    return any(axis is not None for aval in avals for axis in aval.sharding.spec)


def _cycles(pairs: Sequence[tuple[int, int]], ranks: int) -> list[list[int]] | None:
    """The cycles of a permutation of all ranks, groups in which it is a shift by one; None: they differ in length."""
    to = dict(pairs)
    if len(pairs) != ranks or set(to) != set(range(ranks)) or set(to.values()) != set(range(ranks)):
        return None
    cycles: list[list[int]] = []
    left = set(to)
    while left:
        cycle = [min(left)]
        while to[cycle[-1]] != cycle[0]:
            cycle.append(to[cycle[-1]])
        left -= set(cycle)
        cycles.append(cycle)
    return cycles if {len(cycle) for cycle in cycles} == {ranks // len(cycles)} and len(cycles) < ranks else None


def _names(axis_name: AxisName) -> tuple[Any, ...]:
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def _axes(axis_name: AxisName) -> Any:
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else axis_name


@dataclass(frozen=True, slots=True)
class Collectives:
    """The functions of this module with options for each call, such as `interpret=True`."""

    options: dict[str, Any] = field(default_factory=dict)

    def _call(self, name: str, x: Any, axis_name: AxisName, *positions: int, **more: Any) -> Any:
        return _compiled(name)(x, _axes(axis_name), *positions, **more, **self.options)

    def _reduced(
        self, reduction: str, other: Callable[..., Any], x: Any, axis_name: AxisName, axis_index_groups: Groups
    ) -> Any:
        if not _ranks(x, axis_name, axis_index_groups):
            return other(x, axis_name, axis_index_groups=axis_index_groups)
        options = {"axis_index_groups": axis_index_groups, "reduction": reduction}
        return self._call("all_reduce", x, axis_name, **options)

    def psum(self, x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
        """As `jax.lax.psum`."""
        return self._reduced("sum", lax.psum, x, axis_name, axis_index_groups)

    def pmean(self, x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
        """As `jax.lax.pmean`."""
        return self._reduced("mean", lax.pmean, x, axis_name, axis_index_groups)

    def pmax(self, x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
        """As `jax.lax.pmax`."""
        return self._reduced("max", lax.pmax, x, axis_name, axis_index_groups)

    def pmin(self, x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None) -> Any:
        """As `jax.lax.pmin`."""
        return self._reduced("min", lax.pmin, x, axis_name, axis_index_groups)

    def all_gather(
        self,
        x: Any,
        axis_name: AxisName,
        *,
        axis_index_groups: Groups = None,
        axis: int = 0,
        tiled: bool = False,
        to: str = "varying",
    ) -> Any:
        """As `jax.lax.all_gather`."""
        options = {"axis_index_groups": axis_index_groups, "axis": axis, "tiled": tiled, "to": to}
        if not _ranks(x, axis_name, axis_index_groups):
            return lax.all_gather(x, axis_name, **options)
        return self._call("all_gather", x, axis_name, **options)

    def psum_scatter(
        self,
        x: Any,
        axis_name: AxisName,
        *,
        scatter_dimension: int = 0,
        axis_index_groups: Groups = None,
        tiled: bool = False,
    ) -> Any:
        """As `jax.lax.psum_scatter`."""
        options = {
            "scatter_dimension": scatter_dimension,
            "axis_index_groups": axis_index_groups,
            "tiled": tiled,
        }
        if not _ranks(x, axis_name, axis_index_groups):
            return lax.psum_scatter(x, axis_name, **options)
        return self._call("reduce_scatter", x, axis_name, **options)

    def all_to_all(
        self,
        x: Any,
        axis_name: AxisName,
        split_axis: int,
        concat_axis: int,
        *,
        axis_index_groups: Groups = None,
        tiled: bool = False,
    ) -> Any:
        """As `jax.lax.all_to_all`."""
        options = {"axis_index_groups": axis_index_groups, "tiled": tiled}
        if not _ranks(x, axis_name, axis_index_groups):
            return lax.all_to_all(x, axis_name, split_axis, concat_axis, **options)
        return self._call("all_to_all", x, axis_name, split_axis, concat_axis, **options)

    def ppermute(self, x: Any, axis_name: AxisName, perm: Sequence[tuple[int, int]]) -> Any:
        """As `jax.lax.ppermute`."""
        pairs = [(int(source), int(target)) for source, target in perm]
        ranks = _ranks(x, axis_name)
        groups = _cycles(pairs, ranks) if ranks else None
        if groups is None:
            return lax.ppermute(x, axis_name, pairs)
        # jax.lax numbers the ranks of several axes as the mesh has them, whatever order they are named in.
        names = tuple(name for name in jax.sharding.get_abstract_mesh().axis_names if name in _names(axis_name))
        # In order, the axis itself is the ring, and the kernel needs no table of who is where.
        return self._call("shift", x, names, axis_index_groups=None if groups == [list(range(ranks))] else groups)

    def pbroadcast(self, x: Any, axis_name: AxisName, source: int) -> Any:
        """As `jax.lax.pbroadcast`."""
        ranks = _ranks(x, axis_name)
        if not 0 <= source < ranks:
            return lax.pbroadcast(x, axis_name, source)
        groups = [[source, *(rank for rank in range(ranks) if rank != source)]]  # the first is the schedule's root
        return self._call("broadcast", x, axis_name, axis_index_groups=groups if source else None)


def using(**options: Any) -> Collectives:
    """These functions with options for each call, such as `interpret=True`, which interprets the kernels on a CPU."""
    return Collectives(options)


_plain = Collectives()
psum, pmean, pmax, pmin = _plain.psum, _plain.pmean, _plain.pmax, _plain.pmin
all_gather, psum_scatter, all_to_all = _plain.all_gather, _plain.psum_scatter, _plain.all_to_all
ppermute, pbroadcast = _plain.ppermute, _plain.pbroadcast
