"""A transformer trained on data × model in jax's default settings, by these collectives and by those of `jax.lax`."""

from __future__ import annotations

from typing import Any

import pytest
from cases import slow

SMALL = {"batch": 2, "length": 8, "features": 16, "heads": 2, "hidden": 16, "vocabulary": 16, "remat": False}


def mesh_of(shape: tuple[int, int]) -> Any:
    import jax
    import numpy as np
    from training import AXES

    return jax.sharding.Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), AXES)


def differences(ours: Any, theirs: Any) -> tuple[float, float]:
    """The largest of the losses, and of the weights in the end."""
    import jax
    import numpy as np

    losses = max(abs(a - b) for a, b in zip(ours[0], theirs[0], strict=True))
    pairs = zip(jax.tree.leaves(ours[1].weights), jax.tree.leaves(theirs[1].weights), strict=True)
    return losses, max(float(np.abs(a - b).max()) for a, b in pairs)


def check(shape: tuple[int, int], steps: int, bounds: tuple[float, float], interpret: Any, **sizes: Any) -> None:
    import training

    config, mesh = training.Config(**sizes), mesh_of(shape)
    ours = training.trained(config, training.by_ringsched(interpret), mesh, steps)
    theirs = training.trained(config, training.by_lax(), mesh, steps)
    losses, weights = differences(ours, theirs)
    assert losses <= bounds[0] and weights <= bounds[1], (losses, weights)
    assert ours[0][-1] != ours[0][0] and int(ours[1].step) == steps


@pytest.mark.parametrize(
    ("shape", "dtype", "bounds"),
    [
        ((2, 4), "float32", (1e-4, 2e-3)),
        slow((2, 2), "float32", (1e-4, 2e-3)),
        slow((2, 4), "bfloat16", (0.1, 0.1)),
    ],
)
def test_five_steps(devices: Any, shape: tuple[int, int], dtype: str, bounds: tuple[float, float]) -> None:
    """With `jax.checkpoint` around each layer, layers in a scan, and gradients along "data" summed by jax."""
    check(shape, 5, bounds, None, dtype=dtype)


@pytest.mark.slow
def test_kernels(devices: Any) -> None:
    check((2, 2), 2, (1e-4, 2e-3), True, **SMALL)


def test_another_collective_is_noticed(devices: Any) -> None:
    """One whose gradient leaves a factor out, say."""
    import dataclasses

    import training

    config, mesh, right = training.Config(), mesh_of((2, 2)), training.by_lax()
    wrong = dataclasses.replace(right, matmul_reduce_scatter=lambda x, w: 0.9 * right.matmul_reduce_scatter(x, w))
    losses, weights = differences(*(training.trained(config, on, mesh, 2) for on in (right, wrong)))
    assert losses > 1e-3 and weights > 2e-3
