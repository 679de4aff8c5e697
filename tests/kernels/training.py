"""A transformer trained on a mesh of axes ("data", "model"), with the collectives along "model" passed in.

Activations are sequence-parallel: [batch, rows, features], the rows of each sequence shared out along "model".
Attention has its heads, the MLP its columns, embedding and logits the vocabulary there, and the gains of the norms
are gathered where they are used. Weights are the same along "data": their gradients are summed by jax, from types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import ringsched as rs

AXES = ("data", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Along "model"; `axis` is the dimension gathered or scattered, of a product that of the rows."""

    all_gather: Callable[..., jax.Array]  # (x, axis)
    reduce_scatter: Callable[..., jax.Array]  # (x, axis)
    all_reduce: Callable[[jax.Array], jax.Array]
    all_gather_matmul: Callable[..., jax.Array]  # (x, w), or (x, (gate, w)) for silu(x gate) * (x w)
    matmul_reduce_scatter: Callable[[jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Global sizes, in elements."""

    batch: int = 4
    length: int = 16
    features: int = 32
    heads: int = 4
    hidden: int = 64
    vocabulary: int = 32
    layers: int = 2
    dtype: str = "float32"  # of what is computed; master weights and Adam are float32
    remat: bool = True
    rate: float = 1e-2


class State(NamedTuple):
    """What a step takes and returns: master weights, both moments of Adam, and the number of steps."""

    weights: dict[str, Any]
    first: dict[str, Any]
    second: dict[str, Any]
    step: jax.Array


# ---- collectives ------------------------------------------------------------------------------------------------


def by_ringsched(interpret: Any = None) -> Collectives:
    """Those of ringsched; `interpret` as of its functions."""
    calls = {name: rs.compile(name) for name in Collectives.__slots__}
    options = {"interpret": interpret}

    def gathered_product(x: jax.Array, w: Any) -> jax.Array:
        epilogue = "silu" if isinstance(w, tuple) else None
        return calls["all_gather_matmul"](x, w, "model", epilogue=epilogue, **options)

    return Collectives(
        all_gather=lambda x, axis: calls["all_gather"](x, "model", axis=axis, tiled=True, **options),
        reduce_scatter=lambda x, axis: calls["reduce_scatter"](x, "model", axis=axis, tiled=True, **options),
        all_reduce=lambda x: calls["all_reduce"](x, "model", **options),
        all_gather_matmul=gathered_product,
        matmul_reduce_scatter=lambda x, w: calls["matmul_reduce_scatter"](x, w, "model", **options),
    )


def by_lax() -> Collectives:
    """The same by `jax.lax`."""

    def dot(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.matmul(x, w, preferred_element_type=jnp.float32)

    def gathered_product(x: jax.Array, w: Any) -> jax.Array:
        whole = lax.all_gather(x, "model", axis=1, tiled=True)
        y = jax.nn.silu(dot(whole, w[0])) * dot(whole, w[1]) if isinstance(w, tuple) else dot(whole, w)
        return y.astype(x.dtype)

    return Collectives(
        all_gather=lambda x, axis: lax.all_gather(x, "model", axis=axis, tiled=True),
        reduce_scatter=lambda x, axis: lax.psum_scatter(x, "model", scatter_dimension=axis, tiled=True),
        all_reduce=lambda x: lax.psum(x, "model"),
        all_gather_matmul=gathered_product,
        matmul_reduce_scatter=lambda x, w: lax.psum_scatter(dot(x, w), "model", scatter_dimension=1, tiled=True).astype(
            x.dtype
        ),
    )


# ---- the model, on one rank -------------------------------------------------------------------------------------


def normed(x: jax.Array, gain: jax.Array) -> jax.Array:
    """x over its root mean square, times gain."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
    return (wide * gain).astype(x.dtype)


def attention(config: Config, on: Collectives, x: jax.Array, qkv: jax.Array, out: jax.Array) -> jax.Array:
    """Causal, of this rank's heads: x [batch, rows, features] → the same shape."""
    depth = config.features // config.heads
    y = on.all_gather_matmul(x, qkv)
    q, k, v = jnp.moveaxis(y.reshape(*y.shape[:2], 3, -1, depth), 2, 0)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32) / depth**0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    shares = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    seen = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
    return on.matmul_reduce_scatter(seen.reshape(*y.shape[:2], -1), out)


def block(config: Config, on: Collectives, x: jax.Array, layer: dict[str, jax.Array]) -> jax.Array:
    """Attention and a gated MLP, each behind a norm and with a residual."""
    layer = {name: w.astype(x.dtype) for name, w in layer.items()}
    gains = on.all_gather(layer["gains"], 1)
    x = x + attention(config, on, normed(x, gains[0]), layer["qkv"], layer["out"])
    hidden = on.all_gather_matmul(normed(x, gains[1]), (layer["gate"], layer["up"]))
    return x + on.matmul_reduce_scatter(hidden, layer["down"])


def own_part(tokens: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Of tokens whose entries of the vocabulary may be at other ranks: where here, and whether here."""
    place = tokens - lax.axis_index("model") * size
    return jnp.clip(place, 0, size - 1), (place >= 0) & (place < size)


def embedded(on: Collectives, table: jax.Array, positions: jax.Array, tokens: jax.Array) -> jax.Array:
    """tokens [batch, length] → this rank's rows [batch, rows, features]."""
    place, here = own_part(tokens, table.shape[0])
    return on.reduce_scatter(jnp.where(here[..., None], table[place], 0), 1) + positions


def loss(config: Config, on: Collectives, weights: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """Mean cross entropy of the next token, over the ranks of both axes; tokens [batch, length + 1]."""
    dtype = jnp.dtype(config.dtype)
    x = embedded(on, weights["table"].astype(dtype), weights["positions"].astype(dtype), tokens[:, :-1])

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        return block(config, on, x, w), None

    x, _ = lax.scan(jax.checkpoint(layer) if config.remat else layer, x, weights["layers"])
    x = normed(x, on.all_gather(weights["gain"].astype(dtype), 1))
    logits = on.all_gather_matmul(x, weights["head"].astype(dtype)).astype(jnp.float32)
    place, here = own_part(tokens[:, 1:], logits.shape[-1])
    chosen = jnp.take_along_axis(logits, place[..., None], axis=-1)[..., 0]
    total, right = on.all_reduce(jnp.stack([jnp.exp(logits).sum(-1), jnp.where(here, chosen, 0)]))
    return lax.pmean(jnp.mean(jnp.log(total) - right), "data")


def adam(config: Config, state: State, gradients: dict[str, Any]) -> State:
    """Kingma and Ba, Adam (2015), algorithm 1."""
    step = state.step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.first, gradients)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state.second, gradients)

    def moved(w: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return w - config.rate * (m / (1 - 0.9**step)) / (jnp.sqrt(v / (1 - 0.99**step)) + 1e-6)

    return State(jax.tree.map(moved, state.weights, first, second), first, second, step)


# ---- the whole program ------------------------------------------------------------------------------------------


def specs() -> dict[str, Any]:
    """Which dimension of each weight lies along "model"; none lies along "data"."""
    columns, rows = P(None, None, "model"), P(None, "model", None)
    return {
        "table": P("model"),
        "positions": P("model"),
        "layers": {"gains": columns, "qkv": columns, "out": rows, "gate": columns, "up": columns, "down": rows},
        "gain": P(None, "model"),
        "head": P(None, "model"),
    }


def shapes(config: Config) -> dict[str, Any]:
    """Of the whole weights, in which the ranks' columns of queries, keys and values are side by side."""
    n, f, h, v = config.layers, config.features, config.hidden, config.vocabulary
    layers = {
        "gains": (n, 2, f),
        "qkv": (n, f, 3 * f),
        "out": (n, f, f),
        "gate": (n, f, h),
        "up": (n, f, h),
        "down": (n, h, f),
    }
    return {"table": (v, f), "positions": (config.length, f), "layers": layers, "gain": (1, f), "head": (f, v)}


def state_specs() -> State:
    return State(specs(), specs(), specs(), P())


def abstract(config: Config, mesh: Mesh) -> tuple[State, jax.ShapeDtypeStruct]:
    """Shapes and shardings of what a step takes, for compiling it."""

    def of(shape: tuple[int, ...], spec: P, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    weights = jax.tree.map(of, shapes(config), specs(), is_leaf=lambda x: isinstance(x, tuple))
    tokens = of((config.batch, config.length + 1), P("data"), jnp.int32)
    return State(weights, weights, weights, of((), P(), jnp.int32)), tokens


def initial(config: Config, seed: int = 0) -> State:
    """The gains are one, all other weights normal, and as large as one over the root of how many are summed."""
    leaves, tree = jax.tree.flatten(shapes(config), is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [jax.random.normal(key, shape) / shape[-2] ** 0.5 for key, shape in zip(keys, leaves, strict=True)]
    weights = jax.tree.unflatten(tree, drawn)
    weights["gain"] = jnp.ones_like(weights["gain"])
    weights["layers"]["gains"] = jnp.ones_like(weights["layers"]["gains"])
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return State(weights, zeros, zeros, jnp.zeros((), jnp.int32))


def batch(config: Config, seed: int) -> jax.Array:
    """[batch, length + 1]: sequences that count up from anywhere, in steps of 1 to 3."""
    start, step = jax.random.split(jax.random.key(seed + 1000))
    start = jax.random.randint(start, (config.batch, 1), 0, config.vocabulary)
    step = jax.random.randint(step, (config.batch, 1), 1, 4)
    return (start + step * jnp.arange(config.length + 1)) % config.vocabulary


def step_on(config: Config, on: Collectives, mesh: Mesh) -> Callable[[State, jax.Array], tuple[State, jax.Array]]:
    """One step of training, (state, tokens) → (state, loss), in jax's default settings."""

    def step(state: State, tokens: jax.Array) -> tuple[State, jax.Array]:
        value, gradients = jax.value_and_grad(lambda w: loss(config, on, w, tokens))(state.weights)
        return adam(config, state, gradients), value

    types = state_specs()
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(types, P("data")), out_specs=(types, P())))


def trained(config: Config, on: Collectives, mesh: Mesh, steps: int) -> tuple[list[float], State]:
    """The losses, and the state in the end."""
    step, losses = step_on(config, on, mesh), []
    # As a step returns it, or the second one is compiled anew.
    state = jax.device_put(initial(config), jax.tree.map(lambda spec: NamedSharding(mesh, spec), state_specs()))
    for number in range(steps):
        state, value = step(state, batch(config, number))
        losses.append(float(value))
    return losses, jax.device_get(state)
