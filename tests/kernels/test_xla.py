"""The portable back end against `jax.lax` and against the kernels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import SCHEDULES, SPLITTING
from shipped import SINGLE, settings, sized

DTYPES = ("float32", "bfloat16", "int32")
MAIN = ("all_gather", "reduce_scatter", "all_reduce")


def portable(name: str, axis_name: Any = "i", **options: Any) -> Any:
    """A shipped schedule, for use inside shard_map."""
    import ringsched as rs

    f = rs.compile(name, backend="xla")
    return lambda x: f(x, axis_name=axis_name, **options)


def check_lax(name: str, n: int, dtypes: tuple[str, ...], shape: tuple[int, ...], check_vma: bool) -> None:
    """Every bit; the operands are such that sums are exact."""
    from twins import data, on_ranks, same, twin

    f, g = portable(name), twin(name)
    operands = [data((n, *shape), dtype, seed) for seed, dtype in enumerate(dtypes)]
    pairs = on_ranks(lambda xs: [(f(x), g(x)) for x in xs], operands, check_vma=check_vma)
    for ours, theirs in pairs:
        same(ours, theirs)


@pytest.mark.parametrize("name", SCHEDULES)
def test_as_lax(devices: Any, name: str) -> None:
    check_lax(name, 3, ("bfloat16",), (9, 5), check_vma=False)
    check_lax(name, 4, ("int32",), (12, 5), check_vma=True)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("name", SCHEDULES)
def test_as_lax_at_other_sizes(devices: Any, name: str, n: int, check_vma: bool) -> None:
    check_lax(name, n, DTYPES, (n, 5), check_vma)


@pytest.mark.parametrize("name", ["reduce_scatter"])
def test_rolled_loops(devices: Any, name: str) -> None:
    """At more than nine ranks the steps are a loop of jax, with a gradient."""
    import jax
    from test_transforms import loss
    from twins import close, normal, on_ranks, twin

    def both(f: Any) -> Any:
        return lambda x: (f(x), jax.grad(loss(f))(x))

    x = normal((12, 12, 3))
    assert "scan[" in str(jax.make_jaxpr(lambda x: on_ranks(portable(name), x))(x))
    close(on_ranks(both(portable(name)), x), on_ranks(both(twin(name)), x))


def check_kernel(name: str, n: int, dtype: str) -> None:
    """Sums are exact, so that neither the order of additions nor the padding matters."""
    from twins import data, on_ranks, ours, same

    x = data((n, *((n * 3, 5) if name in SPLITTING else (3, 5))), dtype)
    same(on_ranks(portable(name), x, check_vma=False), on_ranks(ours(name), x, check_vma=False))


@pytest.mark.parametrize(
    ("name", "n", "dtype"),
    [("reduce_scatter", 4, "float32"), ("all_to_all", 2, "bfloat16")],
)
def test_as_the_kernel(devices: Any, name: str, n: int, dtype: str) -> None:
    check_kernel(name, n, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", SCHEDULES)
def test_as_the_kernel_everywhere(devices: Any, name: str, n: int, dtype: str) -> None:
    check_kernel(name, n, dtype)


# ---- transforms -------------------------------------------------------------------------------------------------


def check_transform(name: str, transform: str, check_vma: bool) -> None:
    import test_transforms
    from twins import close, normal, on_ranks, twin

    of = getattr(test_transforms, transform)
    x = normal((3, 2, 3, 2))
    f, g = portable(name), twin(name)
    ours, theirs = on_ranks(lambda x: (of(f)(x), of(g)(x)), x, check_vma=check_vma)
    close(ours, theirs)


@pytest.mark.parametrize("name", ["all_reduce"])
def test_transforms(devices: Any, name: str) -> None:
    check_transform(name, "composed", check_vma=True)


@pytest.mark.parametrize("name", ["all_gather_bidirectional", "broadcast", "reduce"])
def test_gradient(devices: Any, name: str) -> None:
    check_transform(name, "differentiated", check_vma=name not in MAIN)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("transform", ["composed", "deeper"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_all_transforms(devices: Any, name: str, transform: str, check_vma: bool) -> None:
    check_transform(name, transform, check_vma)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_sum_has_the_type_of_what_is_the_same_everywhere(devices: Any, check_vma: bool) -> None:
    """It leaves shard_map as `P()`, and its gradient is that of `lax.psum`."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P
    from test_transforms import weigh
    from twins import close, normal, on_ranks, twin

    x = normal((3, 3, 2))

    def total(f: Any) -> Any:
        return jax.jit(jax.grad(lambda x: jnp.sum(weigh(on_ranks(f, x, out=P(), check_vma=check_vma)))))(x)

    close(total(portable("all_reduce")), total(twin("all_reduce")))


@pytest.mark.parametrize("name", ["all_reduce"])
def test_operand_that_is_the_same_at_all_ranks(devices: Any, name: str) -> None:
    import jax
    from jax import lax
    from jax.sharding import PartitionSpec as P
    from test_transforms import loss
    from twins import close, normal, ring, twin

    def grad(f: Any) -> Any:
        def total(x: Any) -> Any:
            return jax.grad(lambda x: lax.psum(loss(f)(x), "i"))(x)

        return jax.jit(jax.shard_map(total, mesh=ring(3), in_specs=P(), out_specs=P()))(normal((3, 2)))

    close(grad(portable(name)), grad(twin(name)))


# ---- operands and meshes ----------------------------------------------------------------------------------------


def test_shapes(devices: Any) -> None:
    from twins import data, on_ranks, same, twin

    for name, shape, options in [
        ("all_reduce", (), {}),
        ("all_reduce", (7, 0), {}),
        ("all_gather", (), {"tiled": False}),
        ("reduce_scatter", (3, 3, 2), {"axis": 1, "tiled": False}),
    ]:
        x = data((3, *shape))
        one, other = on_ranks(lambda x, n=name, o=options: (portable(n, **o)(x), twin(n, **o)(x)), x)
        same(one, other)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((6, 5), {"split_axis": 0, "concat_axis": 1}),
        ((5, 3, 2), {"split_axis": 1, "concat_axis": 2, "tiled": False}),
    ],
)
def test_axes_of_all_to_all(devices: Any, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    from jax import lax
    from twins import data, on_ranks, same

    def theirs(x: Any) -> Any:
        return lax.all_to_all(x, "i", options["split_axis"], options["concat_axis"], tiled=options.get("tiled", True))

    x = data((3, *shape))
    same(on_ranks(portable("all_to_all", **options), x), on_ranks(theirs, x))


def test_other_dtypes(devices: Any) -> None:
    """Those of the kernels, and more."""
    from twins import data, on_ranks, same, twin

    for dtype in ("bool", "int4", "float16", "complex64"):
        name = "all_gather" if dtype in ("bool", "int4") else "all_reduce"
        x = data((2, 4, 2), dtype)
        same(*on_ranks(lambda x, name=name: (portable(name)(x), twin(name)(x)), x))


def test_64_bits(devices: Any) -> None:
    import jax
    from twins import data, on_ranks, same, twin

    with jax.enable_x64(True):
        x = data((4, 4, 2)).astype("float64")
        same(on_ranks(portable("reduce_scatter"), x), on_ranks(twin("reduce_scatter"), x))


@pytest.mark.parametrize("name", ["all_gather", "all_reduce"])
def test_one_axis_of_two(devices: Any, name: str) -> None:
    from test_meshes import grid, value_and_grad
    from twins import close, data, on_ranks, twin

    mesh, x = grid(2, 4, ("d", "i")), data((2, 4, 4, 3))
    f, g = value_and_grad(portable(name)), value_and_grad(twin(name))
    close(*on_ranks(lambda x: (f(x), g(x)), x, mesh=mesh, check_vma=name != "all_gather"))


@pytest.mark.parametrize("axis_name", [("a", "b"), ("b", "a")])
def test_ring_over_two_axes(devices: Any, axis_name: tuple[str, str]) -> None:
    from test_meshes import grid
    from twins import data, on_ranks, same, twin

    mesh, x = grid(2, 3, ("a", "b")), data((2, 3, 6, 3))
    same(*on_ranks(lambda x: (portable("all_gather", axis_name)(x), twin("all_gather", axis_name)(x)), x, mesh=mesh))


def test_the_other_axis_may_be_automatic(devices: Any) -> None:
    """A kernel refuses it."""
    import jax
    from jax.sharding import PartitionSpec as P
    from test_meshes import grid
    from twins import data, same

    mesh, x = grid(2, 4, ("d", "i")), data((8, 4))
    f = jax.shard_map(portable("all_gather"), mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names={"i"})
    same(jax.jit(f)(x)[:8], x)


@pytest.mark.parametrize("name", ["reduce_scatter", "all_reduce"])
def test_on_a_mesh(devices: Any, name: str) -> None:
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import data, ring, same, twin

    import ringsched as rs

    mesh, x = ring(4), data((16, 3))
    out = P("i") if name == "reduce_scatter" else P()
    lax = jax.shard_map(twin(name), mesh=mesh, in_specs=P("i"), out_specs=out, check_vma=False)
    f = rs.compile(name, backend="xla").on(mesh)
    same(f(x), lax(x))
    same(jax.jit(f)(x), lax(x))


# ---- schedules of other kinds -----------------------------------------------------------------------------------

OTHER_SHIPPED = tuple(name for name in SINGLE if name not in SCHEDULES and "matmul" not in name)
FOLDER = Path(__file__).parents[1] / "xla"
OTHERS = {
    "torus_gather": [{"X": 3, "Y": 4}],
    "twisted_gather": [{"X": 2}],
    "torus_parts": [{"X": 2, "Y": 2}],
    "torus_exchange": [{"X": 2, "Y": 2}],
    "line_gather": [{"N": 4}],
    "mesh_sum": [{"X": 2, "Y": 3}],
    "pinned": [{}],
    "doubling": [{}],
    "look_up": [{}],
    "large_numbers": [{}],
    "long_lines": [{}],
}


def check_other(name: str, sides: dict[str, int], *, kernel: bool = False) -> None:
    """Every bit is that of the twin of `ringsched run`, which knows the root and the permutation; and of the kernel."""
    import jax
    from jax.sharding import PartitionSpec as P
    from twins import data, same

    from ringsched.collective import as_module
    from ringsched.pipeline import compile_portable, compile_schedule, open_schedule
    from ringsched.run.twins import Twin

    path = FOLDER / f"{name}.yaml"
    schedule = open_schedule(path if path.exists() else name, sides)
    portable = compile_portable(schedule)
    topology, promise = portable.topology, portable.flat.promise
    n, axes = topology.ranks, ("a", "b", "c")[: len(topology.sides)]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:n]).reshape(topology.sides), axes)
    x = data((n * n, 5))

    def result(source: str) -> Any:
        module = as_module(source, name)

        def local(x: Any) -> Any:
            return getattr(module, name)(x, axis_name=axes)

        mapped = jax.shard_map(local, mesh=mesh, in_specs=P(axes), out_specs=P(axes), check_vma=False)
        return np.asarray(jax.jit(mapped)(x))

    found = result(portable.source)
    twin = Twin(kind=promise.kind, ranks=n, root=promise.root, permutation=promise.permutation)
    same(found, np.asarray(twin.on(jax.devices()[:n])(x)))
    if kernel:
        same(found, result(compile_schedule(schedule).source))


@pytest.mark.parametrize("name", OTHERS)
def test_other_topologies(devices: Any, name: str) -> None:
    for sides in OTHERS[name]:
        check_other(name, sides)


@pytest.mark.parametrize("name", ["all_gather_torus", "all_reduce_swing", "all_to_all_bruck"])
def test_shipped_for_other_topologies(devices: Any, name: str) -> None:
    check_other(name, settings(name, 4) or {})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters"), sized(OTHER_SHIPPED, (4, 6, 8, 9, 12, 16)))
def test_all_shipped_for_other_topologies(devices: Any, name: str, parameters: dict[str, int]) -> None:
    check_other(name, parameters)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parameters"), sized(OTHER_SHIPPED, (4, 8)))
def test_all_shipped_for_other_topologies_as_the_kernels(devices: Any, name: str, parameters: dict[str, int]) -> None:
    check_other(name, parameters, kernel=True)


def test_every_file_is_tried() -> None:
    used = {"part_one", "part_two"}
    assert {file.stem for file in FOLDER.glob("*.yaml")} == set(OTHERS) | used


# ---- misuse -----------------------------------------------------------------------------------------------------


def test_misuse(devices: Any) -> None:
    from twins import data, on_ranks

    x = data((4, 6, 2))
    for f, kind, message in [
        (portable("all_gather", "j"), ValueError, "all_gather must run in jax.shard_map over axis 'j'"),
        (
            portable("reduce_scatter"),
            ValueError,
            "needs axis 0 of shape (6, 2) to be a multiple of N = 4, but it is 6",
        ),
        (portable("all_gather", axis=2), ValueError, "axis 2 is out of bounds for 2 dimensions"),
        (lambda x: portable("reduce_scatter")(x.astype(bool)[:4]), TypeError, "reduce_scatter does not add bool"),
        (portable("all_gather", interpret=True), TypeError, "unexpected keyword argument 'interpret'"),
    ]:
        with pytest.raises(kind) as found:
            on_ranks(f, x)
        assert message in str(found.value)


def test_module_for_other_ranks(devices: Any) -> None:
    from twins import data, on_ranks

    from ringsched.collective import as_module
    from ringsched.pipeline import compile_portable, open_schedule

    module = as_module(compile_portable(open_schedule("all_gather", {"N": 3})).source, "all_gather")
    with pytest.raises(ValueError, match="all_gather was compiled for 3 ranks, but mesh axis 'i' has 4"):
        on_ranks(lambda x: module.all_gather(x, axis_name="i"), data((4, 2)))


def test_back_ends_that_there_are_not() -> None:
    import ringsched as rs

    with pytest.raises(ValueError, match='backend=\'cuda\': it is "pallas" or "xla"'):
        rs.compile("all_gather", backend="cuda")
    with pytest.raises(ValueError, match="debug=True is for the kernels"):
        rs.compile("all_gather", backend="xla", debug=True)


@pytest.mark.parametrize("name", ["reduce_scatter", "all_reduce_bidirectional"])
def test_a_damaged_module_is_noticed(devices: Any, name: str) -> None:
    """One message replaces what it should be added to."""
    from twins import data, on_ranks, twin

    from ringsched.collective import as_module
    from ringsched.pipeline import compile_portable, open_schedule

    source = compile_portable(open_schedule(name, {"N": 4})).source
    damaged = re.sub(r"axes\.combined\((held\.at\[.*?\]), (arrived\w*)\)", r"\1.set(\2)", source, count=1)
    assert damaged != source
    module, x = as_module(damaged, name), data((4, 8, 3))
    ours, theirs = on_ranks(lambda x: (getattr(module, name)(x, axis_name="i"), twin(name)(x)), x, check_vma=False)
    assert (ours != theirs).any()
