"""A transformer trained on data × model in jax's default settings, by these collectives and by those of `jax.lax`."""

from __future__ import annotations

from typing import Any

import pytest
from cases import slow

SMALL = {"batch": 2, "length": 8, "features": 16, "heads": 2, "hidden": 16, "vocabulary": 16, "remat": False}
# Of the losses, absolute; of all else, as differences() has it. About thirty times, and three times, what is found.
EXACT, ROUNDED = (1e-5, 1e-4), (1e-2, 0.15)


def mesh_of(shape: tuple[int, int]) -> Any:
    import jax
    import numpy as np
    from training import AXES

    return jax.sharding.Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), AXES)


def differences(ours: Any, theirs: Any, config: Any) -> dict[str, float]:
    """The largest of the losses; of the weights, over how far training moved them; of Adam's moments, relative.

    Adam's steps do not depend on the scale of gradients: one that is twice what it should be shows in the moments.
    """
    import jax
    import numpy as np
    import training

    def norm(a: Any, b: Any) -> float:
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return float(np.sqrt(sum(np.sum((np.float64(x) - np.float64(y)) ** 2) for x, y in pairs)))

    start = jax.device_get(training.initial(config))  # its moments are zero
    found = {"losses": max(abs(a - b) for a, b in zip(ours[0], theirs[0], strict=True))}
    for name in ("weights", "first", "second"):
        mine, other, none = (getattr(state, name) for state in (ours[1], theirs[1], start))
        found[name] = norm(mine, other) / norm(other, none)
    return found


def within(found: dict[str, float], bounds: tuple[float, float]) -> bool:
    return all(value <= bounds[name != "losses"] for name, value in found.items())


def check(shape: tuple[int, int], steps: int, bounds: tuple[float, float], interpret: Any, **sizes: Any) -> None:
    import training

    config, mesh = training.Config(**sizes), mesh_of(shape)
    ours = training.trained(config, training.by_ringsched(interpret), mesh, steps)
    theirs = training.trained(config, training.by_lax(), mesh, steps)
    found = differences(ours, theirs, config)
    assert within(found, bounds), found
    assert len(ours[0]) == int(ours[1].step) == steps


@pytest.mark.deadline(240)  # both programs are compiled, in half a minute on two idle cores
@pytest.mark.parametrize(
    ("shape", "dtype", "bounds"),
    [
        ((2, 4), "float32", EXACT),
        slow((2, 2), "float32", EXACT),
        slow((2, 4), "bfloat16", ROUNDED),
        slow((2, 2), "bfloat16", ROUNDED),
    ],
)
def test_five_steps(devices: Any, shape: tuple[int, int], dtype: str, bounds: tuple[float, float]) -> None:
    """With `jax.checkpoint` around each layer, layers in a scan, and gradients along "data" summed by jax."""
    check(shape, 5, bounds, None, dtype=dtype)


@pytest.mark.slow
@pytest.mark.deadline(300)
def test_kernels(devices: Any) -> None:
    check((2, 2), 2, EXACT, True, **SMALL)


@pytest.mark.deadline(240)
def test_another_collective_is_noticed(devices: Any) -> None:
    """One whose result is wrong, and one whose gradient alone is: twice what it should be, for all weights."""
    import dataclasses

    import training
    from jax import lax

    config, mesh, right = training.Config(**SMALL), mesh_of((2, 2)), training.by_lax()

    def twice(x: Any) -> Any:
        y = right.all_reduce(x)
        return 2 * y - lax.stop_gradient(y)

    smaller = dataclasses.replace(right, matmul_reduce_scatter=lambda x, w: 0.9 * right.matmul_reduce_scatter(x, w))
    doubled = dataclasses.replace(right, all_reduce=twice)
    known, *others = (training.trained(config, on, mesh, 2) for on in (right, smaller, doubled))
    result, gradient = (differences(other, known, config) for other in others)
    assert result["losses"] > EXACT[0] and result["first"] > EXACT[1], result
    assert not within(gradient, ROUNDED) and gradient["first"] > 0.9, gradient
    assert within(differences(known, known, config), EXACT)
