"""How a collective is called: the same in every generated module, with or without a kernel.

Everything after the marker is copied into the module.
"""

import dataclasses
import functools
import math
from collections.abc import Hashable

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding

from ringsched.xla.template import _exchanged

SIDES = (4,)
RANKS = math.prod(SIDES)

# ==== marker ====
# How a collective is called. What follows is the same in every module.


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call over mesh axes. Equal calls are traced once.

    groups: of ranks along the axes, None: one of all. portable: by `lax.ppermute`, not
    by a kernel.
    """

    name: str
    axes: tuple
    groups: tuple
    mesh: object
    check_vma: bool
    reduction: str
    portable: bool = True
    tpu = None  # whose matrix units would not take every dtype

    @classmethod
    def of(cls, name, axis_name, *, axis_index_groups=None, reduction="sum", **options):
        """The call that these arguments ask for."""
        axes = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
        if len(set(axes)) < len(axes):
            raise ValueError(f"{name} needs axes that differ, not {axis_name!r}")
        mesh = jax.sharding.get_abstract_mesh()
        missing = [axis for axis in axes if axis not in mesh.manual_axes]
        if missing:
            axis = missing[0]
            raise ValueError(f"{name} must run in jax.shard_map over axis {axis!r}")
        if reduction not in ("sum", "mean", "max", "min"):
            have = f"sum, mean, max and min, not {reduction!r}"
            raise ValueError(f"{name} knows the reductions {have}")
        return cls(
            name=name,
            axes=axes,
            groups=_check_sizes(name, axis_name, axes, mesh, axis_index_groups),
            mesh=mesh,
            check_vma=_checks_types(axes),
            reduction=reduction,
            **options,
        )

    @property
    def ranks(self):
        return RANKS

    @property
    def place(self):
        """Where ranks are."""
        return _Ranks(self.axes, self.groups, self.reduction)

    def vary(self, x, axes=None):
        """x with the type that differs from rank to rank, which collectives take."""
        axes = self.axes if axes is None else axes
        fixed = tuple(a for a in axes if a not in _types(x).varying)
        return lax.pcast(x, fixed, to="varying") if fixed and self.check_vma else x


def _checks_types(axes):
    """Whether shard_map tells by the type over which axes a value varies."""
    index = jax.make_jaxpr(lambda: lax.axis_index(axes))()
    return bool(index.out_avals[0].mat.varying)


def _check_sizes(name, axis_name, axes, mesh, groups):
    """Groups as tuples. Raises ValueError where there are more or fewer ranks."""
    sizes = tuple(mesh.shape[axis] for axis in axes)
    have = " × ".join(map(str, sizes))
    want = " × ".join(map(str, SIDES))
    if groups is not None:
        groups = tuple(tuple(map(int, group)) for group in groups)
        named = sorted(index for group in groups for index in group)
        if named != list(range(math.prod(sizes))):
            what = f"each index of mesh axis {axis_name!r} exactly once"
            raise ValueError(f"{name} needs axis_index_groups that have {what}")
        if any(len(group) != RANKS for group in groups):
            what = f"groups of {RANKS}, as many as it was compiled for"
            raise ValueError(f"{name} needs axis_index_groups that are {what}")
    elif math.prod(sizes) != RANKS or (len(sizes) == len(SIDES) and sizes != SIDES):
        where = f"mesh axis {axis_name!r} has {have}"
        raise ValueError(f"{name} was compiled for {want} ranks, but {where}")
    return groups


@dataclasses.dataclass(frozen=True)
class _Ranks:
    """The ranks of a call on its mesh axes. reduction: what is done to what arrives."""

    axes: tuple
    groups: tuple = None
    reduction: str = "sum"

    @property
    def index(self):
        """The number of this rank, in its group."""
        index = lax.axis_index(self.axes)
        if self.groups is None:
            return index
        places = {at: i for group in self.groups for i, at in enumerate(group)}
        return jnp.array([places[at] for at in sorted(places)], jnp.int32)[index]

    @property
    def members(self):
        """[RANKS]: the indices along the axes of the ranks of this one's group."""
        groups = {at: group for group in self.groups for at in group}
        table = jnp.array([groups[at] for at in sorted(groups)], jnp.int32)
        return table[lax.axis_index(self.axes)]

    @property
    def coordinates(self):
        """The place of this rank in the topology."""
        return _place_of(self.index)

    def combined(self, held, arrived, **options):
        """held: `array.at[place]`; the array with what arrived added, or the larger of both."""
        combine = {"max": held.max, "min": held.min}.get(self.reduction, held.add)
        return combine(arrived, **options)


def _place_of(rank):
    place = []
    for side in reversed(SIDES):
        place.insert(0, rank % side)
        rank = rank // side
    return place


def _types(x):
    """The manual axes over which x varies, is unreduced, or is reduced."""
    return jax.typeof(x).mat


# What jax is told of it: how it is traced, differentiated, transposed and batched.


class _Rule:
    """A function of arrays as jax sees it, with rules of its own; compared by value.

    function: of arrays, gives a tuple of them. push: of primals and tangents. pull: of
    primals and the cotangents of results, gives those of each primal, or None.
    """

    def __call__(self, *operands):
        avals = tuple(map(jax.typeof, operands))
        for aval in avals:
            _check_whole(aval)
        jaxpr = _traced(self, avals, _settings())
        return _call_p.bind(*operands, jaxpr=jaxpr, rule=self)

    def inner(self, aval):
        """The type of an operand in the function."""
        return aval.mat

    def typed(self, results, operands):
        """The types of results, of those that the function gave them."""
        return results

    def jvp(self, primals, tangents):
        results = self(*primals)
        if all(type(tangent) is ad.Zero for tangent in tangents):
            return results, [_no_tangent(y) for y in results]
        known = tuple(type(tangent) is ad.Zero for tangent in tangents)
        some = [t for t in tangents if type(t) is not ad.Zero]
        return results, _Tangent(self, known)(*primals, *some)

    def batch(self, operands, dimensions):
        operands = _batched(operands, dimensions)
        return lax.map(lambda them: self(*them), operands)


@dataclasses.dataclass(frozen=True)
class _Tangent(_Rule):
    """The tangents of a rule's results: linear in the last operands.

    zero: which primals have no tangent.
    """

    rule: _Rule
    zero: tuple

    def inner(self, aval):
        return self.rule.inner(aval)

    def function(self, *operands):
        primals, given = operands[: len(self.zero)], iter(operands[len(self.zero) :])
        tangents = [None if zero else next(given) for zero in self.zero]
        return tuple(self.rule.push(primals, tangents))

    def typed(self, results, operands):
        return self.rule.typed(results, operands[: len(self.zero)])

    def jvp(self, primals, tangents):
        tangents = [ad.instantiate_zeros(tangent) for tangent in tangents]
        return jax.jvp(self.function, tuple(primals), tuple(tangents))

    def transpose(self, cotangents, operands):
        primals = operands[: len(self.zero)]
        if all(type(ct) is ad.Zero for ct in cotangents):
            return [None] * len(operands)
        cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]
        found = self.rule.pull(primals, cotangents)
        wanted = [ct for ct, zero in zip(found, self.zero, strict=True) if not zero]
        return [None] * len(primals) + wanted

    def batch(self, operands, dimensions):
        return jax.vmap(self.function, tuple(dimensions))(*operands)


def _no_tangent(y):
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def _batched(operands, dimensions):
    """Operands with the batch in front; dimensions: where it is, None: there is none."""
    pairs = list(zip(operands, dimensions, strict=True))
    size = next(x.shape[at] for x, at in pairs if at is not None)

    def batched(x, at):
        if at is None:
            return jnp.broadcast_to(x, (size, *x.shape))
        return jnp.moveaxis(x, at, 0)

    return [batched(*pair) for pair in pairs]


def _check_whole(aval):
    """Raises ValueError where an operand is sharded over an axis that shard_map left."""
    axes = [axis for axis in aval.sharding.spec if axis is not None]
    if axes:
        what = f"an operand that is sharded over the explicit mesh axis {axes[0]!r}"
        cure = "let jax.shard_map take all axes"
        raise ValueError(f"a collective does not take {what}: {cure}")


def _settings():
    """What tracing depends on beside its operands."""
    return jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision


@functools.lru_cache(maxsize=1024)
def _traced(rule, avals, settings):
    """The jaxpr of a rule's function, the same one for equal rules and operands."""
    operands = [
        jax.ShapeDtypeStruct(
            aval.shape,
            aval.dtype,
            sharding=aval.sharding,
            manual_axis_type=rule.inner(aval),
        )
        for aval in avals
    ]
    closed = jax.make_jaxpr(rule.function)(*operands)
    if any(isinstance(value, jax.core.Tracer) for value in closed.consts):
        raise ValueError(
            "a function that a kernel applies uses a traced value from outside of it: "
            "pass it as an operand (scale, bias or residual)"
        )
    return closed


_call_p = Primitive("ringsched_call")
_call_p.multiple_results = True


@_call_p.def_impl
def _run_call(*operands, jaxpr, rule):
    return jaxpr_as_fun(jaxpr)(*operands)


@_call_p.def_effectful_abstract_eval
def _abstract_call(*avals, jaxpr, rule):
    return list(rule.typed(jaxpr.out_avals, avals)), jaxpr.effects


def _lower_call(context, *operands, jaxpr, rule):
    _check_nesting(context, jaxpr)
    # The types are those that it was traced with.
    inner = context.replace(avals_in=jaxpr.in_avals)
    results = mlir.lower_fun(jaxpr_as_fun(jaxpr))(inner, *operands)
    context.set_tokens_out(inner.tokens_out)
    return results


def _check_nesting(context, jaxpr):
    """The interpreter calls back, which jax cannot do in one shard_map in another."""
    axes = context.module_context.axis_context
    outer = getattr(getattr(axes, "mesh", None), "manual_axes", ())
    if outer and any("IOEffect" in type(effect).__name__ for effect in jaxpr.effects):
        raise NotImplementedError(
            "a kernel cannot be interpreted in one jax.shard_map inside another: let one "
            "take all axes, or leave interpret=None, which takes the portable back end"
        )


def _jvp_of_call(primals, tangents, *, jaxpr, rule):
    return rule.jvp(primals, tangents)


def _transpose_call(cotangents, *operands, jaxpr, rule):
    return rule.transpose(cotangents, operands)


def _batch_call(operands, dimensions, *, jaxpr, rule):
    results = rule.batch(operands, dimensions)
    return results, [0] * len(results)


mlir.register_lowering(_call_p, _lower_call)
batching.primitive_batchers[_call_p] = _batch_call
ad.primitive_jvps[_call_p] = _jvp_of_call
ad.primitive_transposes[_call_p] = _transpose_call


# Collectives: what they do to chunks, for arrays of every kind.


class _Collective:
    """What a module computes: its transfers, and kernels for both directions.

    forward, backward: a _Kernel each. None: there is none; where there is no backward,
    gradients take the transfers backwards. transfers: by `lax.ppermute`, between chunks
    [*CHUNKS], of which the first `group` dimensions say whose they are. sources: of a
    permutation, the rank whose chunk each one gets.
    """

    def __init__(
        self,
        kind,
        transfers,
        *,
        forward=None,
        backward=None,
        group=1,
        root=0,
        sources=None,
    ):
        self.kind, self.transfers = kind, transfers
        self.forward, self.backward = forward, backward
        self.group, self.root, self.sources = group, root, sources

    @property
    def cuts(self):
        """Whether an operand has a shard for every rank."""
        return self.kind in ("reduce_scatter", "scatter", "all_to_all")

    def adds(self, back):
        """Whether chunks are summed up; back: in the transpose."""
        if back:
            return self.kind in ("all_gather", "all_reduce", "broadcast")
        return self.kind in ("reduce_scatter", "all_reduce", "reduce")


@dataclasses.dataclass(frozen=True)
class _Linear(_Rule):
    """A collective of several arrays of one dtype at once.

    axes: of each, the one that is cut into a shard for every rank, and the one along
    which shards of all ranks are joined; None: none is. source, to: as what the operand
    comes, and what the result is, over the ranks' axes: varying, unreduced, ….
    """

    call: _Call
    collective: _Collective
    back: bool
    axes: tuple
    source: str = "varying"
    to: str = "varying"

    def function(self, *xs):
        pairs = zip(xs, self.axes, strict=True)
        shards = [x[None] if cut is None else _split(x, cut) for x, (cut, _) in pairs]
        if len(xs) == 1:
            results = [self._run(shards[0])]
        else:
            count = shards[0].shape[0]
            flat = [it.reshape(count, -1) for it in shards]
            joined = self._run(jnp.concatenate(flat, axis=1))
            ends = [sum(it.shape[1] for it in flat[: i + 1]) for i in range(len(flat))]
            parts = jnp.split(joined, ends[:-1], axis=1)
            pairs = zip(parts, shards, strict=True)
            results = [part.reshape(-1, *it.shape[1:]) for part, it in pairs]
        pairs = zip(results, self.axes, strict=True)
        return tuple(y[0] if join is None else _join(y, join) for y, (_, join) in pairs)

    def _run(self, shards):
        """[n, …] → [m, …]: from one shard for each rank, or one, to likewise."""
        call, collective = self.call, self.collective
        way = collective.backward if self.back else collective.forward
        if not call.portable and way is not None:
            return way(call, shards, collective.adds(self.back))
        forward = functools.partial(_exchanged, call, collective)
        if not self.back:
            return forward(shards)
        count = RANKS if collective.cuts else 1
        # Not jax.linear_transpose, which knows no scatter that replaces.
        anywhere = jnp.zeros_like(shards, shape=(count, *shards.shape[1:]))
        return jax.vjp(forward, anywhere)[1](shards)[0]

    def inner(self, aval):
        types, axes = aval.mat, frozenset(self.call.axes)
        if not self.call.check_vma:
            return types
        varying = types.varying | types.unreduced | types.reduced | axes
        return types.update(varying=varying, unreduced=frozenset(), reduced=frozenset())

    def typed(self, results, operands):
        axes, check = frozenset(self.call.axes), self.call.check_vma
        for y, x in zip(results, operands, strict=True):
            kinds = ("varying", "unreduced", "reduced")
            types = {kind: getattr(x.mat, kind) - axes for kind in kinds}
            if check and self.to != "invarying":
                types[self.to] |= axes
            changed = x.mat.update(**types)
            yield y.update(manual_axis_type=changed, weak_type=x.weak_type)

    def jvp(self, primals, tangents):
        results = self(*primals)
        if all(type(tangent) is ad.Zero for tangent in tangents):
            return results, [_no_tangent(y) for y in results]
        if self.call.reduction in ("max", "min"):
            what = f"the {self.call.reduction}imum of all ranks"
            raise NotImplementedError(f"{self.call.name} does not differentiate {what}")
        return results, self(*map(ad.instantiate_zeros, tangents))

    def transpose(self, cotangents, operands):
        if all(type(ct) is ad.Zero for ct in cotangents):
            return [None] * len(operands)
        cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]
        if self.to == "invarying":
            return [self._own(*it) for it in zip(cotangents, self.axes, strict=True)]
        turned = {"unreduced": "reduced", "reduced": "unreduced"}
        other = dataclasses.replace(
            self,
            back=not self.back,
            axes=tuple((join, cut) for cut, join in self.axes),
            source=turned.get(self.to, "varying"),
            to=turned.get(self.source, "varying"),
        )
        return other(*cotangents)

    def _own(self, ct, axes):
        """The cotangent of a result that is the same at all ranks: it needs no sum."""
        call, (_, join) = self.call, axes
        if self.source == "unreduced":
            return lax.pcast(ct, call.axes, to="reduced")
        ct = call.vary(ct)
        if join is not None:
            shards = _split(ct, join)
            return lax.dynamic_index_in_dim(shards, call.place.index, keepdims=False)
        if self.collective.kind != "broadcast":
            return ct
        at_root = call.place.index == self.collective.root
        return jnp.where(at_root, ct, jnp.zeros_like(ct))

    def batch(self, operands, dimensions):
        def behind(axis):
            return None if axis is None else axis + 1

        axes = tuple((behind(cut), behind(join)) for cut, join in self.axes)
        operands = _batched(operands, dimensions)
        return dataclasses.replace(self, axes=axes)(*operands)


# Bytes of arrays that are sent together: they travel faster than one by one.
_JOINED = 2**20


def _apply(call, collective, tree, plan, to="varying"):
    """A collective of all arrays in a tree.

    plan: of an array and the number of its dimensions gives what is sent, along which
    axes it is cut and joined, and what is done to the result, None: nothing.
    """
    # Where no type tells that all ranks have a sum, its cotangent is summed, as jax does it.
    if not call.check_vma and (to == "reduced" or collective.kind == "all_reduce"):
        to = "varying"
    leaves, structure = jax.tree.flatten(tree)
    results, together = [None] * len(leaves), {}
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, jax.core.Tracer) and collective.kind == "all_reduce":
            results[number] = _sum_of_constant(call, leaf)
            continue
        leaf = jnp.asarray(leaf)
        x, finish = _sent(call, collective, leaf)
        x, *axes, last = plan(x, leaf.ndim)
        x, source = _source(call, collective, x)
        key = (number,)
        if x.size * x.dtype.itemsize <= _JOINED:
            key = (x.dtype, _types(x), source, x.aval.weak_type)
        finishes = [each for each in (last, finish) if each is not None]
        together.setdefault(key, []).append((number, x, tuple(axes), source, finishes))
    for group in together.values():
        numbers, xs, axes, sources, finishes = zip(*group, strict=True)
        rule = _Linear(call, collective, False, axes, sources[0], to)
        for number, y, last in zip(numbers, rule(*xs), finishes, strict=True):
            for finish in last:
                y = finish(y)
            results[number] = y
    return jax.tree.unflatten(structure, results)


def _source(call, collective, x):
    """x as a collective takes it, and as what it comes over the ranks' axes."""
    types, axes = _types(x), frozenset(call.axes)
    if axes <= types.unreduced:
        if collective.kind in ("all_reduce", "reduce_scatter"):
            return x, "unreduced"
        what = "is unreduced, a term of a sum at each rank"
        raise ValueError(f"{call.name} adds nothing, but its operand {what}")
    if axes & types.unreduced:
        some = ", ".join(sorted(axes & types.unreduced))
        what = f"an operand that is unreduced over all its axes or none, not {some}"
        raise ValueError(f"{call.name} takes {what}")
    reduced = tuple(axis for axis in call.axes if axis in types.reduced)
    if reduced:
        x = lax.pcast(x, reduced, to="varying")
    return call.vary(x), "varying"


def _sum_of_constant(call, x):
    """What is no traced array is the same at all ranks, and needs no kernel."""
    if isinstance(x, bool):
        x = int(x)
    elif getattr(x, "dtype", None) == jnp.bool_:
        x = jnp.asarray(x, jnp.int32)
    match call.reduction:
        case "sum":
            return x * RANKS
        case "mean":
            return x * RANKS / RANKS
        case _:
            return x


def _sent(call, collective, x):
    """x in a dtype that collectives take, and what makes a result of it again."""
    name, adds = call.name, collective.adds(False)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        if adds:
            raise TypeError(f"{name} does not add keys of random numbers")
        impl = jax.random.key_impl(x)
        as_key = functools.partial(jax.random.wrap_key_data, impl=impl)
        return jax.random.key_data(x), as_key
    if not adds:
        return x, None
    if x.dtype == bool:
        if collective.kind == "reduce_scatter":
            raise TypeError(f"{name} does not add bool")
        x = x.astype(jnp.int32) if call.reduction in ("sum", "mean") else x
    if call.reduction == "mean":
        return x, lambda total: total / RANKS
    if call.reduction != "sum" and jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{name} does not compare complex numbers")
    return x, None


# How each kind is called.


def _all_gathered(call, collective, tree, axis, tiled, to="varying"):
    """all_gather and gather: shards are joined."""
    if to not in ("varying", "invarying", "reduced"):
        have = f"varying, invarying or reduced, not {to!r}"
        raise ValueError(f"{call.name} gives a result that is {have}")

    def plan(x, ndim):
        at = _axis(axis, ndim + (not tiled))
        return x if tiled else jnp.expand_dims(x, at), None, at, None

    return _apply(call, collective, tree, plan, to)


def _scattered(call, collective, tree, axis, tiled):
    """reduce_scatter and scatter: an array is cut into shards."""

    def plan(x, ndim):
        at = _axis(axis, ndim)
        _check_divides(call.name, x.shape, at, tiled)
        return x, at, None, None if tiled else lambda y: jnp.squeeze(y, at)

    return _apply(call, collective, tree, plan)


def _exchanged_shards(call, collective, tree, split_axis, concat_axis, tiled):
    """all_to_all: an array is cut into shards, and others are joined."""

    def plan(x, ndim):
        split, concat = _axis(split_axis, ndim), _axis(concat_axis, ndim)
        _check_divides(call.name, x.shape, split, tiled)
        if tiled:
            return x, split, concat, None
        return jnp.moveaxis(x, split, 0), 0, 0, lambda y: jnp.moveaxis(y, 0, concat)

    return _apply(call, collective, tree, plan)


def _kept_shape(call, collective, tree, to="varying"):
    """All other kinds: the shape stays."""
    return _apply(call, collective, tree, lambda x, ndim: (x, None, None, None), to)


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


def _sharded(function, operands, mesh, axis_name, specs, options):
    """function(*operands, …) in a shard_map of its own, compiled once for equal arguments.

    specs: in_specs, one for each operand, and out_specs.
    """
    pairs = zip(operands, specs[0], strict=True)
    operands = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in pairs]
    axes = axis_name if isinstance(axis_name, str) else tuple(axis_name)
    arguments = (function, mesh, axes, specs, tuple(options.items()))
    plain = all(isinstance(each, Hashable) for each in options.values())
    mapped = _mapped if plain else _mapped.__wrapped__  # an array is none, say
    return mapped(*arguments)(*operands)


@functools.lru_cache(maxsize=256)
def _mapped(function, mesh, axis_name, specs, options):
    apply = functools.partial(function, axis_name=axis_name, **dict(options))
    in_specs, out_specs = specs
    specs = {"in_specs": in_specs, "out_specs": out_specs}
    return jax.jit(jax.shard_map(apply, mesh=mesh, **specs))
