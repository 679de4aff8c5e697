"""The part that is the same in every generated module; everything after the marker is copied into it as it stands.

It is a module of its own so that it is formatted, checked and read like other code. Only jax is imported.
"""

import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax

SIDES = (4,)
RANKS = math.prod(SIDES)
CHUNKS = (4, 2)

# ==== marker ====
# Who sends to whom, and what arrives. What follows is the same in every module.


def _pairs(to, when=lambda *place: True):
    """(sender, receiver) of every rank that sends; `to` gives the receiver's place."""
    places = [at for at in itertools.product(*map(range, SIDES)) if when(*at)]
    return [(_rank(at), _rank(to(*at))) for at in places]


def _rank(place):
    """The number of the rank at a place: row-major, each coordinate wrapped."""
    place = place if isinstance(place, tuple) else (place,)
    number = 0
    for coordinate, side in zip(place, SIDES, strict=True):
        number = number * side + coordinate % side
    return number


def _permute(x, axes, pairs, dtype=None):
    """`lax.ppermute`, which counts devices in the mesh's order of axes, not in ours.

    dtype: as which x travels; None: as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    ordered = tuple(axis for axis in mesh.axis_names if axis in axes.axes)

    def device(index):
        place = {}
        for axis in reversed(axes.axes):
            index, place[axis] = divmod(index, mesh.shape[axis])
        number = 0
        for axis in ordered:
            number = number * mesh.shape[axis] + place[axis]
        return number

    groups = axes.groups or [range(RANKS)]
    pairs = [(device(group[a]), device(group[b])) for group in groups for a, b in pairs]
    arrived = lax.ppermute(x if dtype is None else x.astype(dtype), ordered, pairs)
    return arrived.astype(x.dtype)


def _only(pairs, axes, index):
    """The index at ranks that receive; at the others one beyond the end, to be dropped."""
    receivers = {receiver for _, receiver in pairs}
    receives = jnp.array([rank in receivers for rank in range(RANKS)])
    return jnp.where(receives[axes.index], index, math.prod(CHUNKS))


def _carried(held, axes, routes, dtype=None):
    """What comes to this rank, and where it belongs.

    routes: (sender, receiver, numbers of chunks), each rank once at most on either side.
    """
    end = math.prod(CHUNKS)
    most = max(len(chunks) for _, _, chunks in routes)
    sent, received = ([[end] * most for _ in range(RANKS)] for _ in range(2))
    for sender, receiver, chunks in routes:
        sent[sender][: len(chunks)] = chunks
        received[receiver][: len(chunks)] = chunks
    r = axes.index
    # Beyond the end there is nothing to send, and what is stored there is dropped.
    chunks = _flat(held).at[jnp.array(sent)[r]].get(mode="fill", fill_value=0)
    pairs = [(sender, receiver) for sender, receiver, _ in routes]
    return _permute(chunks, axes, pairs, dtype), jnp.array(received)[r]


def _stored(held, place, arrived):
    return _flat(held).at[place].set(arrived, mode="drop").reshape(held.shape)


def _combined(held, axes, place, arrived):
    held_flat = axes.combined(_flat(held).at[place], arrived, mode="drop")
    return held_flat.reshape(held.shape)


def _flat(held):
    """Chunks counted through."""
    return held.reshape(math.prod(CHUNKS), *held.shape[len(CHUNKS) :])


# A collective without a kernel.


def _exchanged(call, collective, shards):
    """[n, …] → [m, …]: from one shard for each rank, or one, to likewise."""
    axes, kind, shape = call.place, collective.kind, shards.shape[1:]
    place = axes.index if collective.group == 1 else tuple(axes.coordinates)
    match kind:
        case "all_gather" | "gather" | "permute":
            held = _placed(_cut(shards, CHUNKS[collective.group :]), place)
        case "all_to_all":
            sides = (RANKS,) if collective.group == 1 else SIDES
            grid = (*sides, *CHUNKS[2 * collective.group :])
            held = _placed(_cut(shards, grid, RANKS), place)
        case "reduce_scatter" | "scatter":
            held = _cut(shards, CHUNKS, RANKS)
        case _:
            held = _cut(shards, CHUNKS)
    at_root = axes.index == collective.root
    if kind in ("scatter", "broadcast"):
        held = jnp.where(at_root, held, jnp.zeros_like(held))
    held = collective.transfers(held, axes)
    if kind in ("gather", "reduce"):
        held = jnp.where(at_root, held, jnp.zeros_like(held))
    match kind:
        case "all_gather" | "gather":
            return _uncut(held, (RANKS, *shape), RANKS)
        case "reduce_scatter" | "scatter":
            return _uncut(held[place], shape)[None]
        case "all_to_all":
            own = (place,) if collective.group == 1 else place
            every = (slice(None),) * collective.group
            return _uncut(held[every + own], shards.shape, RANKS)
        case "permute":
            source = jnp.array(collective.sources)[axes.index]
            return _uncut(held.reshape(RANKS, -1)[source], shape)[None]
        case _:
            return _uncut(held, shape)[None]


def _cut(x, grid, n=1):
    """x, of n shards, as whole chunks [*grid, size], padded."""
    parts = math.prod(grid) // n
    x = x.reshape(n, math.prod(x.shape) // n)
    size = -(-x.shape[1] // parts)
    x = jnp.pad(x, ((0, 0), (0, parts * size - x.shape[1])))
    return x.reshape(*grid, size)


def _uncut(chunks, shape, n=1):
    """[*grid, size] → this shape, of n shards: undoes `_cut`."""
    size = math.prod(shape) // n
    return chunks.reshape(n, math.prod(chunks.shape) // n)[:, :size].reshape(shape)


def _placed(own, place, dimensions=1):
    """[*CHUNKS, size] with `own` in this place, and zeros where nothing is held yet.

    dimensions: how many a chunk has.
    """
    chunk = own.shape[own.ndim - dimensions :]
    held = jnp.zeros_like(own, shape=(*CHUNKS, *chunk))
    return held.at[place].set(own)
