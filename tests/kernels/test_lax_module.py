"""`ringsched.lax` in place of `jax.lax`: the same signatures, the same results."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

NAMES = ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute", "pbroadcast")
GROUPS = [[0, 2], [3, 1]]
UNEVEN = [[0, 1, 2], [3]]


def shift(by: int) -> list[tuple[int, int]]:
    return [(rank, (rank + by) % 4) for rank in range(4)]


def calls(on: Any) -> dict[str, Any]:
    """Of x [4, 4, 3], each with defaults and with options; all by schedules."""
    import jax
    import jax.numpy as jnp

    return {
        "sums": lambda x: [f(x, "i") for f in (on.psum, on.pmean, on.pmax, on.pmin)],
        "trees": lambda x: on.psum({"a": x, "b": (x[0], x > 0), "c": None}, "i"),
        "gathers": lambda x: [on.all_gather(x, "i"), on.all_gather(x, "i", axis=-1, tiled=True)],
        "groups": lambda x: on.all_gather(x, ("i",), axis_index_groups=GROUPS),
        "scatters": lambda x: [on.psum_scatter(x, "i"), on.psum_scatter(x, "i", scatter_dimension=1, tiled=True)],
        "exchange": lambda x: on.all_to_all(x, "i", 1, 0),
        "shifts": lambda x: [on.ppermute(x, "i", shift(by)) for by in (1, 2, 3)],
        "cycles": lambda x: [
            on.ppermute(x, "i", [(r, r ^ 1) for r in range(4)]),
            on.ppermute(x, "i", cycle(0, 2, 1, 3)),
        ],
        "number": lambda x: x + on.psum(1, "i"),
        "types": lambda x: on.psum(x.astype(jnp.bfloat16), "i"),
        "gradients": lambda x: [jax.grad(lambda x, f=f: jnp.sum(f(x**2) * x))(x) for f in linear(on)],
    }


def cycle(*ranks: int) -> list[tuple[int, int]]:
    return list(zip(ranks, (*ranks[1:], ranks[0]), strict=True))


def linear(on: Any) -> list[Any]:
    return [lambda x: on.psum(x, "i"), lambda x: on.pmean(x, "i"), lambda x: on.ppermute(x, "i", shift(3))]


def without_types(on: Any) -> dict[str, Any]:
    """What jax.lax does only with check_vma=False."""
    reductions = (on.psum, on.pmean, on.pmax, on.pmin)
    return {
        "sums in groups": lambda x: [f(x, "i", axis_index_groups=GROUPS) for f in reductions],
        "scatter in groups": lambda x: on.psum_scatter(x, "i", axis_index_groups=GROUPS, tiled=True),
        "exchange in groups": lambda x: on.all_to_all(x, "i", 0, 1, axis_index_groups=GROUPS, tiled=True),
    }


def others(on: Any) -> dict[str, Any]:
    """What no schedule is for."""
    import jax

    return {
        "uneven groups": lambda x: on.psum(x, "i", axis_index_groups=UNEVEN),
        "a part": lambda x: on.ppermute(x, "i", shift(1)[:2]),
        "cycles of two lengths": lambda x: on.ppermute(x, "i", [(0, 1), (1, 0), (2, 2), (3, 3)]),
        "nothing": lambda x: on.psum({"a": None}, "i"),
        "no axes": lambda x: on.psum(x, ()),
        "vmap": lambda x: jax.vmap(lambda row: on.psum(row, "j"), axis_name="j")(x),
        "vmap by the name of the mesh axis": lambda x: jax.vmap(lambda row: on.psum(row, "i"), axis_name="i")(x),
        "vmap of jit by that name": lambda x: jax.vmap(jax.jit(lambda row: on.all_gather(row, "i")), axis_name="i")(x),
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_same_signatures(name: str) -> None:
    from jax import lax

    import ringsched.lax

    ours, theirs = (inspect.signature(getattr(it, name)).parameters for it in (ringsched.lax, lax))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_imported_only_when_asked_for() -> None:
    code = "import sys, ringsched; sys.exit('ringsched.lax' in sys.modules or 'jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def traced(f: Any, x: Any, **options: Any) -> str:
    import jax
    from twins import on_ranks

    return str(jax.make_jaxpr(lambda x: on_ranks(f, x, **options))(x))


def test_the_same_results(devices: Any) -> None:
    from jax import lax
    from twins import close, data, on_ranks

    import ringsched.lax

    x = data((4, 4, 4, 3))  # exact in bfloat16, too
    for name, theirs in calls(lax).items():
        ours = calls(ringsched.lax)[name]
        close(*(on_ranks(f, x) for f in (ours, theirs)))
        assert name == "number" or "ringsched_call" in traced(ours, x), name


def test_in_groups(devices: Any) -> None:
    from jax import lax
    from twins import close, data, on_ranks

    import ringsched.lax

    x = data((4, 4, 4, 3))
    for name, theirs in without_types(lax).items():
        ours = without_types(ringsched.lax)[name]
        close(*(on_ranks(f, x, check_vma=False) for f in (ours, theirs)))
        assert "ringsched_call" in traced(ours, x, check_vma=False), name


def test_without_a_schedule(devices: Any) -> None:
    from jax import lax
    from twins import close, data, on_ranks

    import ringsched.lax

    x = data((4, 4, 4, 3))
    for name, theirs in others(lax).items():
        ours = others(ringsched.lax)[name]
        close(*(on_ranks(f, x, check_vma=False) for f in (ours, theirs)))
        assert "ringsched_call" not in traced(ours, x, check_vma=False), name


def test_an_axis_of_one_device(devices: Any) -> None:
    from jax import lax
    from twins import data, on_ranks, same

    import ringsched.lax

    x = data((1, 1, 4, 3))
    same(*(on_ranks(lambda x, on=on: [on.psum(x, "i"), on.all_gather(x, "i")], x) for on in (ringsched.lax, lax)))


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast(devices: Any, root: int) -> None:
    """That of jax.lax does not run on CPUs."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from twins import close, normal, on_ranks

    import ringsched.lax

    def twice(f: Any) -> Any:
        return lambda x: [f(x), jax.grad(lambda x: jnp.sum(f(x**2) * x))(x)]

    def ours(x: Any) -> Any:
        return ringsched.lax.pbroadcast(x, "i", root)

    x = normal((4, 3))
    close(*(on_ranks(twice(f), x) for f in (ours, lambda x: lax.all_gather(x, "i")[root])))


def test_keys(devices: Any) -> None:
    """jax.lax gathers no keys of random numbers."""
    import jax
    from jax import lax
    from twins import on_ranks, same

    import ringsched.lax

    def ours(key: Any) -> Any:
        return jax.random.key_data(ringsched.lax.all_gather(key, "i"))

    def theirs(key: Any) -> Any:
        return lax.all_gather(jax.random.key_data(key), "i")

    same(*(on_ranks(f, jax.random.split(jax.random.key(1), 4)) for f in (ours, theirs)))


def test_numbers(devices: Any) -> None:
    """The number of ranks is known while tracing, as a shape."""
    import jax.numpy as jnp
    from twins import data, on_ranks

    import ringsched.lax

    assert on_ranks(lambda x: jnp.zeros(ringsched.lax.psum(1, "i")), data((4, 3))).shape == (4, 4)


def test_a_mesh_of_two_axes(devices: Any) -> None:
    import jax
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh
    from twins import close, data, on_ranks

    import ringsched.lax

    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("d", "i"))

    def every(on: Any) -> Any:
        perm = [(rank, (rank + 3) % 8) for rank in range(8)]
        both = [("d", "i"), ("i", "d")]
        return lambda x: [on.psum(x, "i"), on.psum(x, ("d", "i")), *(on.ppermute(x, axes, perm) for axes in both)]

    x = data((2, 4, 4, 3))
    close(*(on_ranks(every(on), x, mesh=mesh) for on in (ringsched.lax, lax)))


def test_64_bits(devices: Any) -> None:
    import jax
    import numpy as np
    from jax import lax
    from twins import on_ranks, same

    import ringsched.lax

    with jax.enable_x64(True):
        x = np.arange(48.0).reshape(4, 4, 3) + 2.0**-40
        same(*(on_ranks(lambda x, on=on: [on.all_gather(x, "i"), on.pmax(x, "i")], x) for on in (ringsched.lax, lax)))


def test_kernels(devices: Any) -> None:
    from jax import lax
    from twins import close, normal, on_ranks

    import ringsched.lax

    x = normal((4, 4, 4, 3))
    for name in ("sums", "scatters", "shifts"):
        close(*(on_ranks(calls(on)[name], x) for on in (ringsched.lax.using(interpret=True), lax)))


def test_kernels_do_not_add_64_bits(devices: Any) -> None:
    import jax
    import numpy as np
    from twins import on_ranks

    import ringsched.lax

    with jax.enable_x64(True), pytest.raises(TypeError, match="float64"):
        on_ranks(lambda x: ringsched.lax.using(interpret=True).psum(x, "i"), np.arange(12.0).reshape(4, 3))


def test_an_explicit_axis_that_vmap_takes(devices: Any) -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType
    from jax.sharding import PartitionSpec as P
    from twins import same

    import ringsched.lax

    mesh = jax.make_mesh((2, 4), ("d", "i"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:8])

    def summed(on: Any) -> Any:
        f = jax.shard_map(lambda x: on.psum(x, "i"), in_specs=P("i"), out_specs=P(None))
        return [
            g(jax.device_put(jnp.arange(16).reshape(2, 8), P("d", "i"))) for g in (jax.vmap(f), jax.jit(jax.vmap(f)))
        ]

    with jax.set_mesh(mesh):
        same(*(summed(on) for on in (ringsched.lax, jax.lax)))
