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


def _coordinates(axes):
    """The place of this rank."""
    rank, place = lax.axis_index(axes), []
    for side in reversed(SIDES):
        place.insert(0, rank % side)
        rank = rank // side
    return place


def _permute(x, axes, pairs, dtype=None):
    """`lax.ppermute`, which counts devices in the mesh's order of axes, not in ours.

    dtype: as which x travels; None: as it is.
    """
    mesh = jax.sharding.get_abstract_mesh()
    ordered = tuple(axis for axis in mesh.axis_names if axis in axes)

    def device(rank):
        place = {}
        for axis in reversed(axes):
            rank, place[axis] = divmod(rank, mesh.shape[axis])
        number = 0
        for axis in ordered:
            number = number * mesh.shape[axis] + place[axis]
        return number

    pairs = [(device(sender), device(receiver)) for sender, receiver in pairs]
    arrived = lax.ppermute(x if dtype is None else x.astype(dtype), ordered, pairs)
    return arrived.astype(x.dtype)


def _only(pairs, axes, index):
    """The index at ranks that receive; at the others one beyond the end, to be dropped."""
    receivers = {receiver for _, receiver in pairs}
    receives = jnp.array([rank in receivers for rank in range(RANKS)])
    return jnp.where(receives[lax.axis_index(axes)], index, math.prod(CHUNKS))


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
    r = lax.axis_index(axes)
    # Beyond the end there is nothing to send, and what is stored there is dropped.
    chunks = _flat(held).at[jnp.array(sent)[r]].get(mode="fill", fill_value=0)
    pairs = [(sender, receiver) for sender, receiver, _ in routes]
    return _permute(chunks, axes, pairs, dtype), jnp.array(received)[r]


def _stored(held, place, arrived):
    return _flat(held).at[place].set(arrived, mode="drop").reshape(held.shape)


def _added(held, place, arrived):
    return _flat(held).at[place].add(arrived, mode="drop").reshape(held.shape)


def _flat(held):
    """Chunks counted through."""
    return held.reshape(math.prod(CHUNKS), *held.shape[len(CHUNKS) :])


# How a collective is called.


def _axes(name, axis_name):
    """The mesh axes, as a tuple. Raises ValueError where they are not the ranks."""
    axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    mesh = jax.sharding.get_abstract_mesh()
    missing = [axis for axis in axes if axis not in mesh.manual_axes]
    if missing:
        axis = missing[0]
        raise ValueError(f"{name} must run in jax.shard_map over axis {axis!r}")
    sizes = tuple(mesh.shape[axis] for axis in axes)
    if math.prod(sizes) != RANKS or (len(sizes) == len(SIDES) and sizes != SIDES):
        want = " × ".join(map(str, SIDES))
        have = " × ".join(map(str, sizes))
        where = f"mesh axis {axis_name!r} has {have}"
        raise ValueError(f"{name} was compiled for {want} ranks, but {where}")
    return axes


def _vary(x, axes):
    """x with the type that differs from rank to rank, which collectives take."""
    types = jax.typeof(lax.axis_index(axes)).mat.varying - jax.typeof(x).mat.varying
    return lax.pcast(x, tuple(sorted(types)), to="varying") if types else x


def _axis(axis, ndim):
    """The axis, counted from the front."""
    if not -ndim <= axis < ndim:
        raise ValueError(f"axis {axis} is out of bounds for {ndim} dimensions")
    return axis % ndim


def _check_divides(name, shape, axis, tiled=True):
    if shape[axis] % RANKS if tiled else shape[axis] != RANKS:
        rule = "a multiple of" if tiled else "equal to"
        want = f"axis {axis} of shape {shape} to be {rule} N = {RANKS}"
        raise ValueError(f"{name} needs {want}, but it is {shape[axis]}")


def _split(x, axis):
    """[..., RANKS * size, ...] → [RANKS, ..., size, ...]: the shards along the axis."""
    shape = (*x.shape[:axis], RANKS, x.shape[axis] // RANKS, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


def _join(x, axis):
    """[RANKS, ..., size, ...] → [..., RANKS * size, ...]: the inverse of `_split`."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], RANKS * x.shape[axis + 1], *x.shape[axis + 2 :])


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
