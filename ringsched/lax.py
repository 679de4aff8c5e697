"""The collectives of `jax.lax` by shipped schedules, with their signatures and defaults: for programs that use those.

from ringsched import lax
y = lax.psum_scatter(x, "i", tiled=True)

A kernel runs on a TPU, the schedule's transfers as `lax.ppermute` elsewhere. What no schedule is for goes to `jax.lax`:
axes that are none of a mesh or not manual (`vmap(axis_name=…)`, positions), axes of one device, groups of uneven size,
permutations other than a shift by one along an axis, broadcasts of another root than 0, ragged or empty trees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax

import ringsched

AxisName = Any
Groups = Sequence[Sequence[int]] | None


@functools.cache
def _compiled(name: str) -> Any:
    return ringsched.compile(name)


def _ranks(x: Any, axis_name: AxisName, groups: Groups = None) -> int:
    """Along the axes, or in each group; 0 where a schedule is not for them."""
    names = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
    mesh = jax.sharding.get_abstract_mesh()
    if not names or not jax.tree.leaves(x) or any(name not in mesh.manual_axes for name in names):
        return 0
    ranks = 1
    for name in names:
        ranks *= mesh.shape[name]
    if groups is not None:
        sizes = {len(group) for group in groups}
        ranks = sizes.pop() if len(sizes) == 1 else 0
    return ranks if ranks > 1 else 0


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
        ranks = _ranks(x, axis_name)
        if ranks and sorted(perm) == [(rank, (rank + 1) % ranks) for rank in range(ranks)]:
            return self._call("shift", x, axis_name)
        return lax.ppermute(x, axis_name, perm)

    def pbroadcast(self, x: Any, axis_name: AxisName, source: int) -> Any:
        """As `jax.lax.pbroadcast`."""
        if source == 0 and _ranks(x, axis_name):
            return self._call("broadcast", x, axis_name)
        return lax.pbroadcast(x, axis_name, source)


def using(**options: Any) -> Collectives:
    """These functions with options for each call, such as `interpret=True`, which interprets the kernels on a CPU."""
    return Collectives(options)


_plain = Collectives()
psum, pmean, pmax, pmin = _plain.psum, _plain.pmean, _plain.pmax, _plain.pmin
all_gather, psum_scatter, all_to_all = _plain.all_gather, _plain.psum_scatter, _plain.all_to_all
ppermute, pbroadcast = _plain.ppermute, _plain.pbroadcast
