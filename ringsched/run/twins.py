"""What a collective must give: its twin from `jax.lax`, and for sums a reference in float64 with an error bound.

All arrays are global: the ranks' operands, or results, joined along axis 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SUMS = ("reduce_scatter", "all_reduce", "reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A collective over mesh axis "i". `permutation[s]`: the rank that gets the operand of rank s."""

    kind: str
    ranks: int
    root: int
    permutation: tuple[int, ...]

    def local(self, x: jax.Array) -> jax.Array:
        """One rank's result from its operand, inside shard_map."""
        at_root = lax.axis_index("i") == self.root
        match self.kind:
            case "all_gather":
                return lax.all_gather(x, "i", tiled=True)
            case "reduce_scatter":
                return lax.psum_scatter(x, "i", tiled=True)
            case "all_reduce":
                return lax.psum(x, "i")
            case "all_to_all":
                return lax.all_to_all(x, "i", 0, 0, tiled=True)
            case "permute":
                return lax.ppermute(x, "i", list(enumerate(self.permutation)))
            case "broadcast":
                return lax.all_gather(x, "i")[self.root]
            case "reduce":
                return jnp.where(at_root, lax.psum(x, "i"), 0)
            case "gather":
                whole = lax.all_gather(x, "i", tiled=True)
                return jnp.where(at_root, whole, jnp.zeros_like(whole))
            case "scatter":
                whole = lax.all_gather(x, "i")[self.root]
                rows = x.shape[0] // self.ranks
                return lax.dynamic_slice_in_dim(whole, lax.axis_index("i") * rows, rows)
            case _:
                raise ValueError(f"no twin for {self.kind}")

    def on(self, devices: list[Any]) -> Callable[[np.ndarray], jax.Array]:
        """The twin of global arrays."""
        mesh = jax.sharding.Mesh(np.array(devices), ("i",))
        split = jax.sharding.PartitionSpec("i")
        mapped = jax.shard_map(self.local, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
        result: Callable[[np.ndarray], jax.Array] = jax.jit(mapped)
        return result

    def expected(self, operands: tuple[np.ndarray, ...], devices: list[Any]) -> tuple[np.ndarray, np.ndarray | None]:
        """The result, and for sums of floats the error that rounding can make; None: every bit must be the same.

        Each of the N - 1 additions rounds a partial sum by half a unit in the last place at most, wherever the schedule
        puts the brackets; with twice that much for the rounding of partial sums themselves, N · eps · Σ|x|.
        """
        (x,) = operands
        if x.size == 0:  # jax.lax refuses some collectives of nothing
            result = jax.eval_shape(self.on(devices), x)
            return np.zeros(result.shape, result.dtype), None
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        if self.kind not in SUMS or not floating:
            return np.asarray(self.on(devices)(x)), None
        info = jnp.finfo(x.dtype)
        ranks = x.astype(np.float64).reshape(self.ranks, x.shape[0] // self.ranks, *x.shape[1:])
        eps, tiny = float(info.eps), float(info.smallest_normal)
        bound = self.ranks * eps * (np.abs(ranks).sum(axis=0) + tiny)
        if self.ranks == 1:
            bound = np.zeros_like(bound)
        return self._placed(ranks.sum(axis=0)), self._placed(bound)

    def typed(self, operands: tuple[np.ndarray, ...], devices: list[Any]) -> Any:
        """Shape and dtype of the result."""
        return jax.eval_shape(self.on(devices), *operands)

    def _placed(self, total: np.ndarray) -> np.ndarray:
        match self.kind:
            case "reduce_scatter":
                return total
            case "reduce":
                zeros = np.zeros_like(total)
                return np.concatenate([total if rank == self.root else zeros for rank in range(self.ranks)])
            case _:
                return np.concatenate([total] * self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A collective matmul; see `ringsched.codegen.multiply` for the shapes on a rank."""

    kind: str
    ranks: int
    moment: str
    shard: str

    def expected(self, operands: tuple[np.ndarray, ...], devices: list[Any]) -> tuple[np.ndarray, np.ndarray | None]:
        """The result in float64 (in int64 for integers), and the error that rounding can make.

        Products of bf16 and fp8 are exact in float32. Each addition into a sum of d terms rounds by eps32 / 2 of the
        sum of magnitudes at most; so do the N - 1 additions of partial sums, and the last store, in the result's dtype.
        """
        x, w = operands
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        wide = np.float64 if floating else np.int64
        result = self._placed(x.astype(wide), w.astype(wide))
        if not floating:
            return result.astype(x.dtype), None
        magnitude = self._placed(np.abs(x.astype(wide)), np.abs(w.astype(wide)))
        depth = self.ranks * w.shape[0]
        roundings = 1 if self.kind == "none" else self.ranks
        eps = float(jnp.finfo(jnp.float32).eps) * depth + float(jnp.finfo(x.dtype).eps) * roundings
        return result, magnitude * eps + float(jnp.finfo(x.dtype).smallest_normal)

    def typed(self, operands: tuple[np.ndarray, ...], devices: list[Any]) -> Any:
        """Shape and dtype of the result."""
        x, w = operands
        return jax.ShapeDtypeStruct(self._placed(x.astype(np.float64), w.astype(np.float64)).shape, x.dtype)

    def _placed(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The ranks' results, joined along axis 0; so are x and w."""
        xs, ws = np.split(x, self.ranks), np.split(w, self.ranks)
        along = 0 if self.shard == "rows" else 1
        if self.kind == "none":
            return np.concatenate([a @ b for a, b in zip(xs, ws, strict=True)])
        if self.moment == "on arrival":
            whole = np.concatenate(xs, along)
            return np.concatenate([whole @ each for each in ws])
        total = np.sum([a @ b for a, b in zip(xs, ws, strict=True)], axis=0)
        if self.kind == "all_reduce":
            return np.concatenate([total] * self.ranks)
        return np.concatenate(np.split(total, self.ranks, along))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`index`: of the first wrong element, counted within its rank's result; None where all are right."""

    max_error: float
    wrong: int
    rank: int = 0
    index: tuple[int, ...] | None = None
    got: str = ""
    want: str = ""


def compare(got: np.ndarray, want: np.ndarray, bound: np.ndarray | None, ranks: int) -> Comparison:
    """Compares two global results of the same shape."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(_wide(got) - _wide(want))
    if bound is None:
        bits = np.dtype(f"u{got.dtype.itemsize}")
        wrong = got.view(bits) != want.view(bits)
    else:
        wrong = ~(error <= bound)  # NaN is wrong, too
    # A copy of NaN or infinity is right, and its difference means nothing.
    max_error = float(np.max(error, initial=0.0, where=wrong | np.isfinite(error)))
    if not wrong.any():
        return Comparison(max_error=max_error, wrong=0)
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    rows = got.shape[0] // ranks
    return Comparison(
        max_error=max_error,
        wrong=int(wrong.sum()),
        rank=first[0] // rows,
        index=(first[0] % rows, *first[1:]),
        got=str(got[first]),
        want=str(want[first].astype(got.dtype)),
    )


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)
