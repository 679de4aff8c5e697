"""Every shipped schedule against its `jax.lax` twin: both DMA modes, two calls in a row, race detection on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import ADDING, SCHEDULES, SPLITTING

SIZES = (2, 3, 4, 5, 8)
DTYPES = ("float32", "bfloat16", "int32")


def operand_shape(name: str, n: int) -> tuple[int, ...]:
    return (n * 8, 128) if name in SPLITTING else (8, 128)


def bound(n: int, dtype: str, x: Any) -> Any:
    """Of the error of a sum of n terms, each partial sum rounded once: (n - 1) eps times the sum of sizes."""
    import jax.numpy as jnp

    return (n - 1) * float(jnp.finfo(dtype).eps) * np.abs(np.asarray(x, "float64")).sum(axis=0).max()


def check(name: str, n: int, dtype: str, mode: str) -> None:
    import jax.numpy as jnp
    from twins import clean, data, normal, on_ranks, ours, same, twin, watched

    exact = name not in ADDING or dtype == "int32"
    make = data if exact else normal
    x = jnp.stack([make((n, *operand_shape(name, n)), dtype, seed) for seed in (1, 2)], axis=1)
    both = {}
    kernel = ours(name, interpret=watched(mode))
    with clean():
        both["ours"] = on_ranks(lambda x: jnp.stack([kernel(x[0]), kernel(x[1])]), x, check_vma=False)
        both["ours"].block_until_ready()
    wide = x if exact else x.astype("float32")
    theirs = twin(name)
    both["lax"] = on_ranks(lambda x: jnp.stack([theirs(x[0]), theirs(x[1])]), wide, check_vma=False)
    if exact:
        same(both["ours"], both["lax"])
    else:
        difference = np.asarray(both["ours"], "float64") - np.asarray(both["lax"], "float64")
        assert np.abs(difference).max() <= bound(n, dtype, x)


SAMPLE = [(name, 4, "float32", "on_wait") for name in SCHEDULES] + [
    ("all_gather", 2, "bfloat16", "eager"),
    ("reduce_scatter", 3, "int32", "eager"),
    ("all_gather_bidirectional", 5, "bfloat16", "eager"),
    ("all_reduce", 8, "bfloat16", "eager"),
    ("exchange", 5, "int32", "eager"),
]
ALL = [(name, n, dtype, mode) for name in SCHEDULES for n in SIZES for dtype in DTYPES for mode in ("eager", "on_wait")]
REST = [case for case in ALL if case not in SAMPLE]


@pytest.mark.parametrize(("name", "n", "dtype", "mode"), SAMPLE)
def test_sample(devices: Any, name: str, n: int, dtype: str, mode: str) -> None:
    check(name, n, dtype, mode)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n", "dtype", "mode"), REST)
def test_every_size_and_dtype(devices: Any, name: str, n: int, dtype: str, mode: str) -> None:
    check(name, n, dtype, mode)
