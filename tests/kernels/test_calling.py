"""Calls as programs that use `jax.lax` make them: trees, axes by position, groups, types, keys; both back ends."""

from __future__ import annotations

from typing import Any

import pytest

BACK_ENDS = (None, True)  # `interpret=`: without a kernel where there is no TPU, or the kernel interpreted
GROUPS = [[0, 2], [3, 1]]
both = pytest.mark.parametrize("interpret", BACK_ENDS)


def compiled(name: str, interpret: bool | None) -> Any:
    import functools

    import ringsched as rs

    return functools.partial(rs.compile(name), interpret=interpret)


def agree(ours: Any, theirs: Any, x: Any = None, **options: Any) -> None:
    from twins import close, normal, on_ranks

    x = normal((4, 8, 8)) if x is None else x
    close(on_ranks(ours, x, **options), on_ranks(theirs, x, **options))


@both
def test_trees(devices: Any, interpret: bool | None) -> None:
    """Of several dtypes and sizes; a list is no array."""
    import jax.numpy as jnp
    from jax import lax

    gather, total = compiled("all_gather", interpret), compiled("all_reduce", interpret)
    scatter = compiled("reduce_scatter", interpret)

    def tree(x: Any) -> Any:
        return {"a": x, "b": [x[:4], (x > 0)], "c": (x.astype(jnp.int8), x[0])}

    agree(lambda x: gather(tree(x), "i"), lambda x: lax.all_gather(tree(x), "i", tiled=True))
    agree(lambda x: gather([x, x], "i"), lambda x: lax.all_gather([x, x], "i", tiled=True))
    agree(lambda x: total(tree(x), "i"), lambda x: lax.psum(tree(x), "i"))
    agree(lambda x: scatter((x, x[:4]), "i"), lambda x: lax.psum_scatter((x, x[:4]), "i", tiled=True))


def test_small_arrays_travel_together(devices: Any) -> None:
    """A kernel for each dtype, not for each array; large ones have their own."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P
    from twins import ring

    gather = compiled("all_gather", True)

    def kernels(*shapes: tuple[int, ...]) -> int:
        trees = [jax.ShapeDtypeStruct((4 * shape[0], *shape[1:]), jnp.float32) for shape in shapes]
        f = jax.shard_map(lambda x: gather(x, "i"), mesh=ring(4), in_specs=P("i"), out_specs=P("i"))
        return str(jax.make_jaxpr(f)(trees)).count("pallas_call[")

    assert kernels((8, 8), (4, 8), (3,)) == 1
    assert kernels((8, 8), (1024, 1024)) == 2


@both
def test_axes_by_position_and_by_other_names(devices: Any, interpret: bool | None) -> None:
    from jax import lax

    scatter, exchange = compiled("reduce_scatter", interpret), compiled("all_to_all", interpret)
    agree(
        lambda x: scatter(x, "i", scatter_dimension=1),
        lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
    )
    agree(lambda x: exchange(x, "i", 1, 0), lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True))


@both
def test_reductions(devices: Any, interpret: bool | None) -> None:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from twins import normal, on_ranks

    total, scatter = compiled("all_reduce", interpret), compiled("reduce_scatter", interpret)
    for reduction, theirs in (("max", lax.pmax), ("min", lax.pmin), ("mean", lax.pmean)):
        agree(lambda x, r=reduction: total(x, "i", reduction=r), lambda x, f=theirs: f(x, "i"))
        agree(lambda x, r=reduction: total(x > 0, "i", reduction=r) * 1.0, lambda x, f=theirs: f((x > 0) * 1.0, "i"))

    def shard_of_maximum(x: Any) -> Any:
        return lax.dynamic_slice_in_dim(lax.pmax(x, "i"), lax.axis_index("i") * 2, 2)

    agree(lambda x: scatter(x, "i", reduction="max"), shard_of_maximum)
    agree(
        lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(total(x, "i", reduction="mean"))))(x),
        lambda x: jax.grad(lambda x: jnp.sum(jnp.sin(lax.pmean(x, "i"))))(x),
    )
    with pytest.raises(NotImplementedError, match="all_reduce does not differentiate the maximum of all ranks"):
        on_ranks(lambda x: jax.grad(lambda x: jnp.sum(total(x, "i", reduction="max")))(x), normal((4, 8, 8)))
    with pytest.raises(TypeError, match="all_reduce does not compare complex numbers"):
        on_ranks(lambda x: total(x + 1j, "i", reduction="max"), normal((4, 8, 8)))
    with pytest.raises(ValueError, match="all_reduce knows the reductions sum, mean, max and min, not 'product'"):
        on_ranks(lambda x: total(x, "i", reduction="product"), normal((4, 8, 8)))


@both
def test_groups(devices: Any, interpret: bool | None) -> None:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from twins import normal, on_ranks

    pairs = [
        (compiled("all_gather", interpret), lambda x, **g: lax.all_gather(x, "i", tiled=True, **g)),
        (compiled("reduce_scatter", interpret), lambda x, **g: lax.psum_scatter(x, "i", tiled=True, **g)),
        (compiled("all_to_all", interpret), lambda x, **g: lax.all_to_all(x, "i", 0, 0, tiled=True, **g)),
        (compiled("all_reduce", interpret), lambda x, **g: lax.psum(x, "i", **g)),
    ]
    for ours, theirs in pairs:

        def both_ways(f: Any) -> Any:
            return lambda x: (f(x), jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))(x))

        agree(
            both_ways(lambda x, f=ours: f(x, "i", axis_index_groups=GROUPS)),
            both_ways(lambda x, f=theirs: f(x, axis_index_groups=GROUPS)),
            check_vma=False,
        )
    for groups, message in (
        ([[0, 1], [2, 2]], "each index of mesh axis 'i' exactly once"),
        ([[0, 1, 2], [3]], "groups of 3, as many as it was compiled for"),
    ):
        with pytest.raises(ValueError, match=message):
            on_ranks(lambda x, g=groups: pairs[0][0](x, "i", axis_index_groups=g), normal((4, 8, 8)))


def test_groups_have_barriers_of_their_own(devices: Any) -> None:
    """Ranks signal others in other groups: a signal of one call must not be taken for one of the other."""
    import re

    import jax
    from jax.sharding import PartitionSpec as P
    from twins import normal, ring

    def barrier(groups: Any) -> str:
        gather = compiled("all_gather", True)
        f = jax.shard_map(
            lambda x: gather(x, "i", axis_index_groups=groups), mesh=ring(4), in_specs=P("i"), out_specs=P("i")
        )
        (found,) = re.findall(r"collective_id=(\d+)", str(jax.make_jaxpr(f)(normal((8, 4)))))
        return str(found)

    assert barrier(GROUPS) == barrier(GROUPS)
    assert len({barrier(GROUPS), barrier([[0, 1], [2, 3]]), barrier([[0, 2], [1, 3]])}) == 3


@both
def test_types_of_results_and_operands(devices: Any, interpret: bool | None) -> None:
    """`out_specs=P()` for what is the same at all ranks; terms of a sum, and what is to be summed in the gradient."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P
    from twins import close, normal, ring

    x = normal((32, 8))

    def on(f: Any, out: Any = None) -> Any:
        out = P("i") if out is None else out
        return jax.jit(jax.shard_map(f, mesh=ring(4), in_specs=P("i"), out_specs=out))(x)

    gather, total = compiled("all_gather", interpret), compiled("all_reduce", interpret)
    scatter, cast = compiled("reduce_scatter", interpret), compiled("broadcast", interpret)
    close(on(lambda x: gather(x, "i", to="invarying"), P()), x)
    close(on(lambda x: cast(x, "i", to="invarying"), P()), x[:8])
    sums = x.reshape(4, 8, 8).sum(0)
    close(on(lambda x: total(lax.pcast(x, "i", to="unreduced"), "i"), P()), sums)
    close(on(lambda x: scatter(lax.pcast(x, "i", to="unreduced"), "i")), sums)

    def weighed(y: Any) -> Any:
        return jnp.sum(y**2 * jnp.arange(y.size).reshape(y.shape))

    def ours(x: Any, to: str) -> Any:
        return gather(x, "i", to=to)

    def theirs(x: Any, to: str) -> Any:
        return lax.all_gather(x, "i", tiled=True, to=to)

    for to in ("invarying", "reduced"):

        def loss(x: Any, f: Any, to: str = to) -> Any:
            y = f(x, to)
            return weighed(lax.pcast(y, "i", to="varying") if to == "reduced" else y)

        close(*(on(lambda x, f=loss, g=g: jax.grad(f)(x, g)) for g in (ours, theirs)))
    root = on(lambda x: jax.grad(lambda x: weighed(cast(x, "i", to="invarying")))(x))
    close(root[:8], jax.grad(weighed)(x[:8]))
    assert not root[8:].any()
    with pytest.raises(ValueError, match="gives a result that is varying, invarying or reduced, not 'same'"):
        on(lambda x: gather(x, "i", to="same"))
    with pytest.raises(ValueError, match="all_gather adds nothing, but its operand is unreduced"):
        on(lambda x: gather(lax.pcast(x, "i", to="unreduced"), "i"))


def test_a_gradient_where_no_types_are_checked(devices: Any) -> None:
    """That of `all_gather(to="invarying")` is this rank's part, and that of a sum a sum, as in jax.lax."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    gather, total = compiled("all_gather", None), compiled("all_reduce", None)
    pairs = [
        (
            lambda x: gather(x, "i", to="invarying"),
            lambda x: lax.all_gather(x, "i", tiled=True, to="invarying"),
        ),
        (lambda x: total(x, "i"), lambda x: lax.psum(x, "i")),
    ]
    for ours, theirs in pairs:
        grads = [lambda x, f=f: jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))(x) for f in (ours, theirs)]
        agree(*grads, check_vma=False)


def test_an_axis_named_twice(devices: Any) -> None:
    from twins import normal, on_ranks

    with pytest.raises(ValueError, match=r"all_gather needs axes that differ, not \('i', 'i'\)"):
        on_ranks(lambda x: compiled("all_gather", None)(x, ("i", "i")), normal((4, 2)))


def test_numbers(devices: Any) -> None:
    """What is no traced array is the same at all ranks."""
    from twins import normal, on_ranks

    total, found = compiled("all_reduce", None), []

    def f(x: Any) -> Any:
        found.extend([total(1, "i"), total(2.5, "i"), total(True, "i"), total(3, "i", reduction="max")])
        return x

    on_ranks(f, normal((4, 2)))
    assert [(type(it), it) for it in found] == [(int, 4), (float, 10.0), (int, 4), (int, 3)]


@both
def test_weak_types(devices: Any, interpret: bool | None) -> None:
    import jax.numpy as jnp
    from jax import lax

    total = compiled("all_reduce", interpret)
    # 2.0 takes the type of what it is added to, a traced one as well
    agree(
        lambda x: total(lax.cond(x[0, 0] > 0, lambda: 2.0, lambda: 1.0), "i") + x.astype(jnp.bfloat16),
        lambda x: lax.psum(lax.cond(x[0, 0] > 0, lambda: 2.0, lambda: 1.0), "i") + x.astype(jnp.bfloat16),
    )


@both
def test_keys_of_random_numbers(devices: Any, interpret: bool | None) -> None:
    import jax
    from jax import lax
    from twins import on_ranks, same

    keys = jax.random.split(jax.random.key(0), (4, 3))
    gather, exchange = compiled("all_gather", interpret), compiled("all_to_all", interpret)
    for ours, theirs in (
        (lambda x: gather(x, "i", axis=-1), lambda x: lax.all_gather(x, "i", axis=0, tiled=True)),
        (lambda x: exchange(x.repeat(4), "i"), lambda x: lax.all_to_all(x.repeat(4), "i", 0, 0, tiled=True)),
    ):
        same(*(on_ranks(lambda x, f=f: jax.random.key_data(f(x)), keys) for f in (ours, theirs)))
    with pytest.raises(TypeError, match="all_reduce does not add keys of random numbers"):
        on_ranks(lambda x: jax.random.key_data(compiled("all_reduce", interpret)(x, "i")), keys)


@both
def test_64_bits(devices: Any, interpret: bool | None) -> None:
    """In pairs of words where nothing is added."""
    import jax
    from twins import data, on_ranks, same

    with jax.enable_x64(True):
        for dtype in ("float64", "int64", "uint64", "complex128"):
            x = data((4, 3, 5), "int32").astype(dtype) * 3
            y = on_ranks(lambda x: compiled("all_gather", interpret)(x, "i"), x)
            same(y[0], x.reshape(12, 5))


def test_as_an_object(devices: Any) -> None:
    """It can be a static argument, a key, and pickled."""
    import pickle
    import weakref

    import jax
    from jax.sharding import PartitionSpec as P
    from twins import normal, ring, same

    import ringsched as rs

    gather, x = rs.compile("all_gather"), normal((8, 4))

    def mapped(x: Any, f: Any) -> Any:
        return jax.shard_map(lambda x: f(x, "i"), mesh=ring(4), in_specs=P("i"), out_specs=P("i"))(x)

    want = mapped(x, gather)
    same(jax.jit(mapped, static_argnames="f")(x, f=gather), want)
    same(mapped(x, jax.jit(gather, static_argnums=1)), want)
    same(mapped(x, pickle.loads(pickle.dumps(gather))), want)
    assert {gather: 1}[gather] == 1 and weakref.ref(gather)() is gather
    with pytest.raises(TypeError, match="all_gather needs axis_name"):
        jax.shard_map(gather, mesh=ring(4), in_specs=P("i"), out_specs=P("i"))(x)


def test_a_name_that_is_nearly_right() -> None:
    import ringsched as rs

    with pytest.raises(ValueError, match="did you mean all_gather"):
        rs.compile("allgather")


def test_nested_and_automatic_axes(devices: Any) -> None:
    """Without a kernel both work; with one they are refused, with the reason."""
    import jax
    import numpy as np
    from jax.sharding import PartitionSpec as P
    from twins import normal, same

    mesh, x = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("d", "i")), normal((8, 4))

    def run(interpret: bool | None, nested: bool, mesh: Any = mesh, x: Any = x) -> Any:
        gather = compiled("all_gather", interpret)
        inner = {"in_specs": P("i"), "out_specs": P("i"), "axis_names": {"i"}}
        outer = {"in_specs": P("d"), "out_specs": P("d"), "axis_names": {"d"}, "mesh": mesh}
        if nested:
            f = jax.shard_map(jax.shard_map(lambda x: gather(x, "i"), **inner), **outer)
        else:
            f = jax.shard_map(lambda x: gather(x, "i"), mesh=mesh, **inner)
        return jax.jit(f)(x)

    same(run(None, nested=False), np.tile(x, (2, 1)))
    same(run(None, nested=True), np.concatenate([np.tile(half, (2, 1)) for half in np.split(np.asarray(x), 2)]))
    with pytest.raises(ValueError, match="needs all mesh axes manual, and 'd' is not"):
        run(True, nested=False)
    with pytest.raises(NotImplementedError, match=r"cannot be interpreted in one jax\.shard_map inside another"):
        run(True, nested=True)
    explicit = jax.make_mesh((2, 2), ("d", "i"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(explicit):
        sharded = jax.device_put(x, jax.sharding.NamedSharding(explicit, P("i", "d")))
        with pytest.raises(ValueError, match="sharded over the explicit mesh axis 'd'"):
            run(None, nested=False, mesh=explicit, x=sharded)


def test_several_processes_are_not_interpreted(devices: Any) -> None:
    """The interpreter of one would wait for the other for ever."""
    import jax
    from twins import normal, on_ranks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(RuntimeError, match="cannot be interpreted in 2 processes"):
            on_ranks(lambda x: compiled("all_gather", True)(x, "i"), normal((4, 2)))


def test_an_epilogue_with_a_value_from_outside(devices: Any) -> None:
    """It is no operand, for which there would be a gradient."""
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import normal, ring

    chain, x, w = compiled("tp_mlp_whole", None), normal((8, 16)), normal((1, 16, 16))

    def f(x: Any, w: Any) -> Any:
        return chain(x, w, w.swapaxes(1, 2), "i", epilogue=lambda y: y * w[0, 0, 0])

    with pytest.raises(ValueError, match="pass it as an operand"):
        jax.shard_map(f, mesh=ring(4), in_specs=(P(), P(None, None, "i")), out_specs=P())(x, w)
