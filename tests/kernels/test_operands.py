"""Shapes and dtypes that the `jax.lax` collectives take."""

from __future__ import annotations

from typing import Any

import pytest
from cases import slow

N = 3
SHAPES = [(8, 128), (3, 5), (1, 7), (12, 4, 130)]
DIVISIBLE = [(24, 128), (3, 5), (3,), (6, 4, 130)]
EMPTY = [(0, 3), (4, 0)]
PLAIN = [(), (4,), *SHAPES, *EMPTY]


def both(f: Any, g: Any, shapes: list[tuple[int, ...]]) -> None:
    """f and g agree on operands of all these shapes, in one program each."""
    from twins import data, on_ranks, same

    x = [data((N, *shape)) for shape in shapes]
    same(on_ranks(lambda x: [f(a) for a in x], x), on_ranks(lambda x: [g(a) for a in x], x))


@pytest.mark.parametrize("name", ["all_reduce", slow("broadcast"), slow("shift"), slow("all_reduce_bidirectional")])
def test_shape_stays(devices: Any, name: str) -> None:
    from twins import ours, twin

    both(ours(name), twin(name), PLAIN)


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("all_gather", -1),
        slow("all_gather", 0),
        slow("all_gather_bidirectional", 0),
        slow("all_gather_bidirectional", -1),
    ],
)
def test_gather_along_an_axis(devices: Any, name: str, axis: int) -> None:
    from twins import ours, twin

    both(ours(name, axis=axis), twin(name, axis=axis), SHAPES)


def test_gather_of_empty(devices: Any) -> None:
    """`jax.lax` cannot lower these on the CPU."""
    from twins import data, on_ranks, ours

    x = [data((N, *shape)) for shape in EMPTY]
    y = on_ranks(lambda x: [ours("all_gather", axis=1)(a) for a in x], x)
    assert [a.shape for a in y] == [(N, 0, 9), (N, 4, 0)]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_into_a_new_axis(devices: Any, axis: int) -> None:
    from twins import ours, twin

    gather = ours("all_gather", axis=axis, tiled=False)
    both(gather, twin("all_gather", axis=axis, tiled=False), [(3, 4), (4,)] if axis else [(), (3, 4)])


@pytest.mark.parametrize("name", ["reduce_scatter", slow("reduce_scatter_bidirectional")])
def test_scatter_along_the_first_axis(devices: Any, name: str) -> None:
    from twins import ours, twin

    both(ours(name), twin(name), DIVISIBLE)


def test_scatter_along_other_axes(devices: Any) -> None:
    from twins import ours, twin

    for axis, shape in ((1, (2, 6)), (-2, (2, 3, 4))):
        both(ours("reduce_scatter", axis=axis), twin("reduce_scatter", axis=axis), [shape])
    both(ours("reduce_scatter", axis=1, tiled=False), twin("reduce_scatter", axis=1, tiled=False), [(4, 3, 2)])


@pytest.mark.parametrize(
    ("split", "concat", "shape", "tiled"),
    [
        (0, 1, (3, 5), True),
        (-1, 0, (2, 6), True),
        (1, 0, (4, 3), False),
        slow(0, 0, (6, 2), True),
        slow(1, 1, (2, 3), True),
        slow(0, 1, (3, 4, 2), False),
        slow(0, 0, (3,), False),
    ],
)
def test_all_to_all_between_axes(devices: Any, split: int, concat: int, shape: tuple[int, ...], tiled: bool) -> None:
    from twins import ours, twin

    lax = twin("all_to_all", axis=split % len(shape), concat_axis=concat, tiled=tiled)
    both(ours("all_to_all", split_axis=split, concat_axis=concat, tiled=tiled), lax, [shape])


DTYPES = [
    "float32",
    "bfloat16",
    "float16",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
    "complex64",
]


@pytest.mark.parametrize(
    "name",
    [
        "all_gather",
        "all_reduce",
        slow("reduce_scatter"),
        slow("all_to_all"),
        slow("broadcast"),
        slow("reduce"),
        slow("shift"),
        slow("all_gather_bidirectional"),
    ],
)
def test_dtypes(devices: Any, name: str) -> None:
    from twins import data, on_ranks, ours, same, twin

    dtypes = [d for d in DTYPES if name != "reduce_scatter" or d != "bool"]
    if name == "all_gather":
        dtypes.append("int4")
    x = {dtype: data((2, 4, 3), dtype) for dtype in dtypes}
    f, g = ours(name), twin(name)
    same(
        on_ranks(lambda x: {k: f(a) for k, a in x.items()}, x),
        on_ranks(lambda x: {k: g(a) for k, a in x.items()}, x),
    )
