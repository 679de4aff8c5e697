"""The order of devices, on the coordinates of every known target."""

import itertools
import math

import numpy as np
import pytest

from ringsched.target.aot import TARGETS, device_count
from ringsched.target.ring import device_order, linked, ring_order


def positions_of(target: str) -> list[tuple[int, ...]]:
    """The coordinates as libtpu lists them: x fastest, then y, then z; the cores of a chip side by side."""
    extents = [int(extent) for extent in target.split(":")[1].split("x")]
    chips = list(itertools.product(*(range(extent) for extent in reversed(extents))))
    cores = device_count(target) // len(chips)
    return [(*reversed(chip), core) for chip in chips for core in range(cores)]


def long_hops(positions, order):
    return [
        (a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True) if not linked(positions[a], positions[b])
    ]


def test_a_square_is_walked_around():
    positions = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    assert ring_order(positions, 4) in {(0, 1, 3, 2), (0, 2, 3, 1)}


@pytest.mark.parametrize("target", TARGETS)
def test_an_even_number_of_ranks_is_a_ring(target):
    positions = positions_of(target)
    for ranks in range(2, len(positions) + 1, 2):
        order = ring_order(positions, ranks)
        assert len(set(order)) == ranks and order[0] == 0
        assert not long_hops(positions, order)


@pytest.mark.parametrize("target", TARGETS)
def test_an_odd_number_of_ranks_is_a_path(target):
    positions = positions_of(target)
    for ranks in range(3, len(positions), 2):
        order = ring_order(positions, ranks)
        assert len(set(order)) == ranks
        assert long_hops(positions, order) in ([], [(order[-1], order[0])])


def test_scattered_devices_stay_in_the_order_given():
    positions = [(0, 0, 0), (2, 0, 0), (4, 0, 0), (6, 0, 0)]
    assert ring_order(positions, 3) == (0, 1, 2)
    assert ring_order(positions, 1) == (0,)


def test_links():
    assert linked((0, 0, 0, 0), (0, 1, 0, 0)) and linked((0, 0, 0, 0), (0, 0, 0, 1))
    assert not linked((0, 0, 0, 0), (1, 1, 0, 0)) and not linked((0, 0, 0, 0), (0, 0, 0, 0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sides", [(2, 2), (2, 4), (4, 4), (2, 2, 2), (4, 4, 4)])
def test_a_mesh_lies_along_the_links(target, sides):
    positions = positions_of(target)
    if math.prod(sides) > len(positions):
        return
    order = device_order(positions, sides)
    assert len(set(order)) == len(order) == math.prod(sides)
    extents = [1 + max(column) for column in zip(*positions, strict=True)]
    if not any(all(a <= b for a, b in zip(sides, axes, strict=False)) for axes in itertools.permutations(extents)):
        assert order == tuple(range(len(order)))  # 2 x 2 x 2 does not fit 2 x 4
        return
    grid = np.array(order).reshape(sides)
    for axis in range(len(sides)):
        here, there = np.split(grid, [-1], axis)[0], np.split(grid, [1], axis)[1]
        for a, b in zip(here.ravel(), there.ravel(), strict=True):
            assert linked(positions[a], positions[b])


def test_one_side_is_a_ring():
    positions = positions_of("v5e:4x4")
    assert device_order(positions, (16,)) == ring_order(positions, 16)
