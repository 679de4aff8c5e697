"""What the layers of a chain must give, in float64, and the error that rounding can make.

All arrays are global: the ranks' operands, or results, joined along axis 0. Where every rank has the whole of x, all of
them have the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]
_ERF = np.vectorize(math.erf, otypes=[np.float64])


EPILOGUES: dict[str, Callable[[Matrix], Matrix]] = {
    "gelu": lambda y: 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))),
    "gelu_exact": lambda y: 0.5 * y * (1 + _ERF(y / math.sqrt(2))),
    "silu": lambda y: 0.5 * y * (1 + np.tanh(0.5 * y)),
    "relu": lambda y: np.maximum(y, 0),
}
STEEPEST = 1.13  # no epilogue makes a difference larger by more than that
ROUNDINGS = 16  # in an epilogue, of which each is half a unit in the last place of its argument at most
DEVIATIONS = 6  # of the error that is allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The values of one rank, and the standard deviation of the kernel's from them."""

    values: Matrix
    deviation: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersTwin:
    """A chain over as many ranks; `moments` and `epilogues`: of its links.

    whole: each rank has the whole of x and gets the whole result, else its shard.
    """

    ranks: int
    shard: str
    moments: Sequence[str]
    epilogues: Sequence[str | None]
    whole: bool = False

    @property
    def _along(self) -> int:
        return 0 if self.shard == "rows" else 1

    def expected(self, operands: tuple[np.ndarray, ...], devices: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """The result in float64, and the error that rounding makes.

        A bound for the worst case grows by the sum of |w| with each product and would hide mistakes. So roundings are
        taken for independent: their variances add up, weighted by w². A sum of d terms rounds d times, by eps times the
        root of the sum of squares so far at most.
        """
        x, *weights = operands
        ranks = np.split(x.astype(np.float64), self.ranks)
        if self.whole:
            ranks = np.split(ranks[0], self.ranks, self._along)
        shards = [Known(values=each, deviation=np.zeros_like(each)) for each in ranks]
        parts = [np.split(w.astype(np.float64), self.ranks) for w in weights]
        for layer in range(parts[0][0].shape[0]):
            for each, moment, epilogue in zip(parts, self.moments, self.epilogues, strict=True):
                products = self._link(shards, [w[layer] for w in each], moment, x.dtype)
                shards = [_finished(product, epilogue, x.dtype) for product in products]
        if self.whole:
            shards = [_joined(shards, self._along)] * self.ranks
        return np.concatenate([s.values for s in shards]), DEVIATIONS * np.concatenate([s.deviation for s in shards])

    def typed(self, operands: tuple[np.ndarray, ...], devices: list[Any]) -> Any:
        """Shape and dtype of the result."""
        return jax.ShapeDtypeStruct(self.expected(operands, devices)[0].shape, operands[0].dtype)

    def _link(self, shards: list[Known], weights: list[Matrix], moment: str, dtype: Any) -> list[Known]:
        if moment == "on arrival":
            whole = _joined(shards, self._along)
            return [_product(whole, w, float(jnp.finfo(jnp.float32).eps)) for w in weights]
        products = [_product(s, w, float(jnp.finfo(jnp.float32).eps)) for s, w in zip(shards, weights, strict=True)]
        values = np.sum([p.values for p in products], axis=0)
        size = np.sqrt(np.sum([p.values**2 for p in products], axis=0))
        travels = float(jnp.finfo(dtype).eps) * math.sqrt(self.ranks) * size  # sums are in the dtype of x on their way
        deviation = np.sqrt(np.sum([p.deviation**2 for p in products], axis=0) + travels**2)
        cut = (np.split(each, self.ranks, self._along) for each in (values, deviation))
        return [Known(values=v, deviation=d) for v, d in zip(*cut, strict=True)]


def _joined(shards: list[Known], along: int) -> Known:
    return Known(
        values=np.concatenate([s.values for s in shards], along),
        deviation=np.concatenate([s.deviation for s in shards], along),
    )


def _product(x: Known, w: Matrix, eps: float) -> Known:
    own = eps**2 * w.shape[0] * (x.values**2 @ w**2)
    return Known(values=x.values @ w, deviation=np.sqrt(x.deviation**2 @ w**2 + own))


def _finished(y: Known, epilogue: str | None, dtype: Any) -> Known:
    """After the epilogue, in 32 bits, and the store."""
    values, deviation = y.values, y.deviation
    if epilogue is not None:
        values = EPILOGUES[epilogue](y.values)
        deviation = STEEPEST * deviation + ROUNDINGS * float(jnp.finfo(jnp.float32).eps) * np.abs(y.values)
    info = jnp.finfo(dtype)
    store = float(info.eps) * np.abs(values) + float(info.smallest_normal)
    return Known(values=values, deviation=np.sqrt(deviation**2 + store**2))
