"""What the tests of this folder share: operands, the `jax.lax` twin of each schedule, a call of both."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import ringsched as rs

Function = Callable[[jax.Array], jax.Array]

_compiled: dict[str, Any] = {}


class Interpreted:
    """A compiled schedule whose kernel is interpreted where a call does not say otherwise."""

    def __init__(self, *arguments: Any, **parameters: Any) -> None:
        self.compiled = rs.compile(*arguments, **parameters)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.compiled(*arguments, **{"interpret": True, **options})

    def on(self, mesh: Mesh, axis_name: Any = None, **options: Any) -> Any:
        return self.compiled.on(mesh, axis_name, **{"interpret": True, **options})

    def source(self, **parameters: int) -> str:
        return self.compiled.source(**parameters)


def ours(name: str, axis_name: Any = "i", **options: Any) -> Function:
    """The kernel of a shipped schedule, for use inside shard_map."""
    if name not in _compiled:
        _compiled[name] = Interpreted(name)
    return lambda x: _compiled[name](x, axis_name=axis_name, **options)


def twin(name: str, axis_name: Any = "i", axis: int = 0, tiled: bool = True, concat_axis: int = 0) -> Function:
    """The same by `jax.lax`; `axis` is that of gathering, scattering or splitting."""

    def root(x: jax.Array) -> jax.Array:
        return jnp.where(lax.axis_index(axis_name) == 0, x, jnp.zeros_like(x))

    def permute(x: jax.Array, to: Callable[[int, int], int]) -> jax.Array:
        n = lax.axis_size(axis_name)
        return lax.ppermute(x, axis_name, [(r, to(r, n)) for r in range(n)])

    def reduced(x: jax.Array) -> jax.Array:
        total = lax.pcast(lax.psum(x, axis_name), axis_name, to="varying")
        return jnp.where(lax.axis_index(axis_name) == 0, total, jnp.zeros_like(total))

    match name.removesuffix("_bidirectional"):
        case "all_gather":
            return lambda x: lax.all_gather(x, axis_name, axis=axis % (x.ndim + (not tiled)), tiled=tiled)
        case "reduce_scatter":
            return lambda x: lax.psum_scatter(x, axis_name, scatter_dimension=axis % x.ndim, tiled=tiled)
        case "all_reduce":
            return lambda x: lax.psum(x, axis_name)
        case "all_to_all":
            return lambda x: lax.all_to_all(x, axis_name, axis, concat_axis, tiled=tiled)
        case "broadcast":
            return lambda x: lax.pcast(lax.psum(root(x), axis_name), axis_name, to="varying").astype(x.dtype)
        case "reduce":
            return reduced
        case "shift":
            return lambda x: permute(x, lambda r, n: (r + 1) % n)
        case "exchange":
            return lambda x: permute(x, lambda r, n: min(r ^ 1, n - 1))
    raise KeyError(name)


def ring(n: int) -> Mesh:
    """A mesh of n devices along "i"."""
    return Mesh(np.array(jax.devices()[:n]), ("i",))


def data(shape: tuple[int, ...], dtype: Any = "float32", seed: int = 0) -> jax.Array:
    """Random values, small enough for sums over 8 ranks to be exact in every dtype; integers use their whole range."""
    random = np.random.default_rng(seed)
    dtype = jnp.dtype(dtype)
    if dtype == jnp.bool_:
        return jnp.asarray(random.integers(0, 2, shape).astype(bool))
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return jnp.asarray(random.integers(info.min, int(info.max) + 1, shape)).astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.asarray(random.integers(-8, 8, shape) + 1j * random.integers(-8, 8, shape), dtype)
    return jnp.asarray(random.integers(-1, 2, shape), "float32").astype(dtype)


def normal(shape: tuple[int, ...], dtype: Any = "float32", seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32").astype(dtype)


def on_ranks(
    f: Callable[[Any], Any], x: Any, *, mesh: Mesh | None = None, out: Any = None, check_vma: bool = True
) -> Any:
    """f at every rank on its x[rank] (of each leaf of x), all results stacked: dimensions of the mesh come first."""
    mesh = ring(jax.tree.leaves(x)[0].shape[0]) if mesh is None else mesh
    spec = P(*mesh.axis_names)
    lead = len(mesh.axis_names)

    def block(x: Any) -> Any:
        y = f(jax.tree.map(lambda a: a.reshape(a.shape[lead:]), x))
        return jax.tree.map(lambda a: a.reshape((1,) * lead + a.shape), y)

    out = spec if out is None else out
    return jax.jit(jax.shard_map(block, mesh=mesh, in_specs=spec, out_specs=out, check_vma=check_vma))(x)


def same(a: Any, b: Any) -> None:
    """Trees of arrays with the same dtypes, shapes and values."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def close(a: Any, b: Any) -> None:
    """Trees of arrays with the same shapes and, but for rounding, values."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=1e-5)


def written(folder: str, text: str, **parameters: int) -> Any:
    """The compiled schedule of this text, which takes its name from its first line."""
    path = Path(folder) / f"{text.split()[1]}.yaml"
    path.write_text(text, encoding="utf-8")
    return Interpreted(path, **parameters)


def watched(mode: str = "on_wait") -> Any:
    """`interpret=` with race detection."""
    return pltpu.InterpretParams(detect_races=True, dma_execution_mode=mode)


@contextlib.contextmanager
def clean() -> Iterator[None]:
    """Fails where the interpreter reports a race or a semaphore that is not zero: it only prints them."""
    with printed() as text:
        yield
    assert "RACE DETECTED" not in text(), text()
    assert "has non-zero count" not in text(), text()


@contextlib.contextmanager
def printed() -> Iterator[Callable[[], str]]:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        yield text.getvalue
