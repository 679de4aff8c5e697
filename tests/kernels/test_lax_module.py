"""`ringsched.lax` in place of `jax.lax`: the same signatures, the same results."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

NAMES = ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute", "pbroadcast")
GROUPS = [[0, 2], [3, 1]]


def calls(on: Any) -> dict[str, Any]:
    """Of x [4, 4, 3], each with defaults and with options."""
    import jax.numpy as jnp

    ring = [(rank, (rank + 1) % 4) for rank in range(4)]
    return {
        "sums": lambda x: [f(x, "i") for f in (on.psum, on.pmean, on.pmax, on.pmin)],
        "trees": lambda x: on.psum({"a": x, "b": (x[0], x > 0)}, "i"),
        "gathers": lambda x: [on.all_gather(x, "i"), on.all_gather(x, "i", axis=-1, tiled=True)],
        "groups": lambda x: on.all_gather(x, ("i",), axis_index_groups=GROUPS),
        "scatters": lambda x: [on.psum_scatter(x, "i"), on.psum_scatter(x, "i", scatter_dimension=1, tiled=True)],
        "exchange": lambda x: on.all_to_all(x, "i", 1, 0),
        "permute": lambda x: [on.ppermute(x, "i", ring), on.ppermute(x, "i", ring[:2])],
        "broadcast": lambda x: [on.pbroadcast(x, "i", 0), on.pbroadcast(x, "i", 2)],
        "number": lambda x: x + on.psum(1, "i"),
        "types": lambda x: on.psum(x.astype(jnp.bfloat16), "i"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_same_signatures(name: str) -> None:
    from jax import lax

    import ringsched.lax

    ours, theirs = (inspect.signature(getattr(it, name)).parameters for it in (ringsched.lax, lax))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_the_same_results(devices: Any) -> None:
    from jax import lax
    from twins import close, data, on_ranks

    import ringsched.lax

    x = data((4, 4, 4, 3))  # exact in bfloat16, too
    for name, theirs in calls(lax).items():
        ours = calls(ringsched.lax)[name]
        if name == "broadcast":  # that of jax.lax does not run on CPUs

            def theirs(x: Any) -> Any:
                return [lax.all_gather(x, "i")[root] for root in (0, 2)]

            def ours(x: Any) -> Any:
                return [ringsched.lax.pbroadcast(x, "i", 0), lax.all_gather(x, "i")[2]]

        close(*(on_ranks(f, x) for f in (ours, theirs)))


def test_an_axis_of_vmap(devices: Any) -> None:
    """There are no devices along it: it is jax.lax's."""
    import jax
    from twins import normal, same

    import ringsched.lax

    x = normal((4, 3))
    same(*(jax.vmap(lambda row, on=on: on.psum(row, "j"), axis_name="j")(x) for on in (ringsched.lax, jax.lax)))


def test_kernels(devices: Any) -> None:
    from jax import lax
    from twins import close, normal, on_ranks

    import ringsched.lax

    x = normal((4, 4, 4, 3))
    for name in ("sums", "scatters"):
        close(*(on_ranks(calls(on)[name], x) for on in (ringsched.lax.using(interpret=True), lax)))
