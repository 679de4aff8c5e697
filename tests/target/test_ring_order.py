"""The order of devices, on the coordinates of every known target."""

import itertools

import pytest

from ringsched.target.aot import TARGETS, device_count
from ringsched.target.ring import linked, ring_order


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
