"""What the tests of this folder share: operands, the `jax.lax` twin of each schedule, a call of both."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
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

SCHEDULES = (
    "exchange",
    "shift",
    "all_gather",
    "all_gather_bidirectional",
    "reduce_scatter",
    "reduce_scatter_bidirectional",
    "all_reduce",
    "all_reduce_bidirectional",
    "broadcast",
    "reduce",
    "all_to_all",
)
ADDING = ("reduce_scatter", "reduce_scatter_bidirectional", "all_reduce", "all_reduce_bidirectional", "reduce")
_compiled: dict[str, Any] = {}


def ours(name: str, axis_name: Any = "i", **options: Any) -> Function:
    """A shipped schedule, for use inside shard_map."""
    if name not in _compiled:
        _compiled[name] = rs.compile(name)
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
            return lambda x: lax.pcast(lax.psum(root(x), axis_name), axis_name, to="varying")
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
    if dtype == bool:
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
    f: Function, x: jax.Array, *, mesh: Mesh | None = None, spec: Any = None, out: Any = None, check_vma: bool = True
) -> jax.Array:
    """f at every rank on its x[rank], all results stacked; `spec` and `out` for other meshes than a ring."""
    mesh = ring(x.shape[0]) if mesh is None else mesh
    spec = P(*mesh.axis_names) if spec is None else spec
    out = spec if out is None else out
    lead = len(mesh.axis_names)

    def block(x: jax.Array) -> jax.Array:
        y = f(x.reshape(x.shape[lead:]))
        return y.reshape((1,) * lead + y.shape)

    return jax.jit(jax.shard_map(block, mesh=mesh, in_specs=spec, out_specs=out, check_vma=check_vma))(x)


def same(a: jax.Array, b: jax.Array) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


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
