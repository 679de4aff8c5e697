"""Ranks on chips: device orders for the coordinates of every target, and what they cost. No jax."""

from __future__ import annotations

import itertools

import pytest
from slices import KINDS, SLICES, positions_of

from ringsched.placement.chips import Chips, chips_of, wrapping
from ringsched.placement.layout import device_order, disjoint_order
from ringsched.placement.report import MeshReport, report_of
from ringsched.placement.rings import comb, disjoint_rings, folded, grown, snake
from ringsched.topology import Topology, named_topology


def slice_of(target: str) -> Chips:
    return chips_of(positions_of(target), KINDS[target.split(":")[0]])


def laid(target: str, name: str) -> MeshReport:
    """The report of the order that is found, which holds each device once at most."""
    chips, topology = slice_of(target), named_topology(name)
    order = device_order(chips, topology)
    assert len(set(order)) == len(order) == topology.ranks
    assert all(0 <= index < len(chips.positions) for index in order)
    return report_of(chips, topology, [order], topology.coordinates)


def closed(walk: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return list(zip(walk, walk[1:] + walk[:1], strict=True))


# -- chips -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "sides", "wraps"), [
    ("TPU v4", (4, 4, 4), (True, True, True)),
    ("TPU v4", (2, 2, 4), (False, False, False)),
    ("TPU v5", (4, 4, 8), (True, True, True)),
    ("TPU v5p", (2, 4, 4), (False, False, False)),
    ("TPU7x", (8, 8, 12), (True, True, True)),
    ("TPU7x", (2, 2, 1), (False, False, False)),
    ("TPU v5 lite", (16, 16, 1), (True, True, False)),
    ("TPU v5 lite", (8, 16, 1), (False, True, False)),
    ("TPU v5e", (8, 8, 1), (False, False, False)),
    ("TPU v6 lite", (4, 8, 1), (False, False, False)),
    ("TPU v6e", (16, 16, 1), (True, True, False)),
    ("TPU v3", (4, 4, 4), (False, False, False)),  # unknown: nothing is taken to wrap
])  # fmt: skip
def test_what_wraps(kind: str, sides: tuple[int, ...], wraps: tuple[bool, ...]) -> None:
    assert wrapping(kind, sides) == wraps


def test_a_part_of_a_slice_does_not_wrap() -> None:
    positions = positions_of("v5p:4x4x4")
    assert chips_of(positions, "TPU v5").wraps == (True,) * 3
    assert chips_of(positions[:-1], "TPU v5").wraps == (False,) * 3
    assert chips_of([(x + 4, y, z, core) for x, y, z, core in positions], "TPU v5").wraps == (False,) * 3


def test_distances_and_routes() -> None:
    mesh, torus, cores = slice_of("v5e:4x4"), slice_of("v5p:4x4x4"), slice_of("v4:2x2x1")
    assert mesh.distance((0, 0, 0, 0), (3, 2, 0, 0)) == 5
    assert torus.distance((0, 0, 0, 0), (3, 2, 0, 0)) == 3
    assert torus.route((0, 0, 0, 0), (3, 1, 0, 0)) == (((0, 0, 0), (3, 0, 0)), ((3, 0, 0), (3, 1, 0)))
    assert cores.distance((0, 0, 0, 0), (0, 0, 0, 1)) == 1
    assert cores.route((0, 0, 0, 0), (0, 0, 0, 1)) == ()
    assert cores.distance((0, 0, 0, 0), (0, 1, 0, 1)) == 1
    for chips in (mesh, torus, cores):
        for a, b in itertools.islice(itertools.product(chips.positions, repeat=2), 500):
            assert len(chips.route(a, b)) == (chips.distance(a, b) if a[:-1] != b[:-1] else 0)


# -- walks -------------------------------------------------------------------------------------------------------------


def steps(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(abs(i - j) for i, j in zip(a, b, strict=True))


@pytest.mark.parametrize("sides", [(2, 2), (4, 3), (3, 4), (2, 2, 4), (4, 4, 4), (3, 2, 5), (6, 6)])
def test_walks_follow_links(sides: tuple[int, ...]) -> None:
    places = set(itertools.product(*map(range, sides)))
    line = snake(sides)
    assert set(line) == places and len(line) == len(places)
    assert all(steps(a, b) == 1 for a, b in itertools.pairwise(line))
    for axis in (axis for axis, side in enumerate(sides) if side % 2 == 0):
        walk = comb(sides, axis)
        assert set(walk) == places and len(walk) == len(places)
        assert all(steps(a, b) == 1 for a, b in closed(walk))


@pytest.mark.parametrize("side", [3, 4, 7, 8])
def test_a_folded_walk_has_hops_of_two_at_most(side: int) -> None:
    assert sorted(folded(side)) == [(c,) for c in range(side)]
    assert max(steps(a, b) for a, b in closed(folded(side))) == 2


@pytest.mark.parametrize("sides", [(3, 3), (3, 5), (5, 5), (3, 3, 3)])
def test_odd_meshes_have_no_ring_and_get_one_hop_of_two(sides: tuple[int, ...]) -> None:
    walk = grown(snake(sides), steps)
    assert sorted(walk) == snake_sorted(sides)
    assert sorted(steps(a, b) for a, b in closed(walk)) == [1] * (len(walk) - 1) + [2]


def snake_sorted(sides: tuple[int, ...]) -> list[tuple[int, ...]]:
    return sorted(itertools.product(*map(range, sides)))


ALL = [(m, n) for m in range(3, 9) for n in range(3, 12)] + [(16, 16), (4, 32), (4, 4, 4), (3, 5, 5), (4, 4, 8)]


@pytest.mark.parametrize("sides", ALL)
def test_two_rings_share_no_link(sides: tuple[int, ...]) -> None:
    rings = disjoint_rings(sides)
    if len(sides) == 2 and min(sides) % 2 == 0 and max(sides) % 2:
        assert rings is None
        return
    assert rings is not None
    links: set[frozenset[tuple[int, ...]]] = set()
    for ring in rings:
        assert sorted(ring) == snake_sorted(sides)
        for a, b in closed(ring):
            assert sum(min((i - j) % n, (j - i) % n) for i, j, n in zip(a, b, sides, strict=True)) == 1
            links.add(frozenset((a, b)))
    assert len(links) == 2 * len(rings[0])


@pytest.mark.parametrize("sides", [(4,), (2, 4), (2, 2, 2), (4, 4, 2), (3, 3, 3, 3)])
def test_there_are_no_two_rings_where_links_are_few(sides: tuple[int, ...]) -> None:
    assert disjoint_rings(sides) is None


# -- orders on every target --------------------------------------------------------------------------------------------

GOOD = {
    "v4:2x2x1": ["ring:8", "ring:4", "line:8", "torus:2x4", "torus:2x2x2", "mesh:2x4"],
    "v4:4x4x4": ["ring:128", "torus:4x4x8", "torus:8x16"],
    "v5e:2x2": ["ring:4", "torus:2x2", "mesh:2x2", "line:4"],
    "v5e:2x4": ["ring:8", "ring:6", "mesh:2x4", "mesh:4x2", "line:8"],
    "v5e:4x4": ["ring:16", "mesh:4x4", "line:16", "ring:8", "mesh:2x4", "torus:2x2"],
    "v5e:16x16": ["ring:256", "torus:16x16", "mesh:16x16"],
    "v5p:2x2x1": ["ring:4", "ring:2", "torus:2x2"],
    "v5p:2x2x2": ["ring:8", "torus:2x4", "torus:2x2x2", "mesh:2x4", "torus:2x2"],
    "v5p:4x4x4": ["ring:64", "torus:4x4x4", "torus:4x16", "torus:16x4", "mesh:4x16", "ring:16", "torus:2x2x2"],
    "v6e:2x4": ["ring:8", "mesh:2x4"],
    "tpu7x:2x2x1": ["ring:8", "torus:2x4", "torus:4x2", "torus:2x2x2"],
}


@pytest.mark.parametrize(("target", "name"), [(t, n) for t, names in GOOD.items() for n in names])
def test_neighbours_are_neighbours(target: str, name: str) -> None:
    report = laid(target, name)
    assert report.longest == 1
    both_cores = target.startswith(("v4", "tpu7x")) and not name.startswith(("ring", "line"))
    assert report.busiest <= (2 if both_cores else 1)
    assert [d.code for d in report.diagnostics] == ["RS907"] * (report.busiest > 1)


@pytest.mark.parametrize(("target", "name", "longest", "busiest"), [
    ("v5e:4x4", "torus:4x4", 2, 2),  # no link wraps around: folded, out over every other chip and back
    ("v5e:8x8", "torus:8x8", 2, 2),
    ("v6e:2x4", "torus:2x4", 2, 2),
    ("v5e:4x4", "torus:2x8", 2, 2),
    ("v5p:2x2x4", "torus:4x4", 2, 2),  # one axis round the squares of 2 x 2, the other folded
    ("v5e:2x4", "ring:5", 2, 2),
    ("v5e:4x4", "ring:9", 2, 2),
    ("v5p:4x4x4", "torus:8x8", 2, 2),
    ("v5p:2x2x1", "ring:3", 2, 2),
])  # fmt: skip
def test_the_least_where_neighbours_cannot_be(target: str, name: str, longest: int, busiest: int) -> None:
    report = laid(target, name)
    assert (report.longest, report.busiest) == (longest, busiest)
    assert {d.code for d in report.diagnostics} == {"RS906", "RS907"}


def test_the_order_given_is_no_ring_but_the_one_found_is() -> None:
    chips, ring = slice_of("v5p:2x2x1"), named_topology("ring:4")
    given = report_of(chips, ring, [range(4)], ("i",))
    assert given.longest == 2
    (first, second) = given.diagnostics
    assert first.message == "mesh axis 'i' is no ring of links: it has hops of up to 2"
    assert first.notes == ("its hops: 4 of 1 link, 4 of 2 links",)
    assert second.message == "up to 2 hops meet on a link, on 4 of the 8 links that are used"
    assert laid("v5p:2x2x1", "ring:4").diagnostics == ()


def test_the_axis_at_fault_is_named() -> None:
    chips, torus = slice_of("v5e:4x4"), named_topology("torus:4x4")
    natural = sorted(range(16), key=lambda i: chips.positions[i])
    report = report_of(chips, torus, [natural], ("data", "model"))
    assert [d.message for d in report.diagnostics if d.code == "RS906"] == [
        "mesh axis 'data' is no ring of links: it has hops of up to 3",
        "mesh axis 'model' is no ring of links: it has hops of up to 3",
    ]
    assert report.diagnostics[0].notes == ("its hops: 24 of 1 link, 8 of 3 links",)
    mesh = report_of(chips, named_topology("mesh:4x4"), [natural], ("data", "model"))
    assert mesh.diagnostics == ()
    assert str(mesh) == "mesh:4x4: hops of up to 1, 1 on a link at most"
    assert "RS906: mesh axis 'model'" in str(report)


def test_copies_along_another_axis_share_links() -> None:
    """Two lines of two, the first over the second: their hops meet."""
    chips = chips_of([(x, 0, 0, 0) for x in range(4)], "TPU v5 lite")
    line = named_topology("line:2")
    assert report_of(chips, line, [(0, 1), (2, 3)], ("i",)).busiest == 1
    assert report_of(chips, line, [(0, 2), (1, 3)], ("i",)).busiest == 2


def test_scattered_devices() -> None:
    apart = chips_of([(2 * x, 0, 0, 0) for x in range(4)], "TPU v5 lite")
    assert not apart.box
    assert device_order(apart, named_topology("mesh:2x2")) == (0, 1, 2, 3)
    assert (
        report_of(apart, named_topology("line:4"), [device_order(apart, named_topology("line:4"))], ("r",)).longest > 1
    )
    corner = chips_of(
        [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0), (1, 2, 0), (0, 2, 0)], "TPU v5 lite"
    )
    ring = named_topology("ring:8")
    assert not corner.box
    assert report_of(corner, ring, [device_order(corner, ring)], ("r",)).longest == 1


@pytest.mark.parametrize("target", ["v5e:16x16", "v5p:4x4x4"])
def test_two_rings_on_chips(target: str) -> None:
    chips = slice_of(target)
    ring = Topology(kind="ring", sides=(len(chips.positions),))
    used: set[frozenset[tuple[int, ...]]] = set()
    for number in (1, 2):
        report = report_of(chips, ring, [disjoint_order(chips, number)], ("r",))
        assert (report.longest, report.busiest) == (1, 1)
        used |= {frozenset(link) for link in report.links}
    assert len(used) == 2 * ring.ranks


@pytest.mark.parametrize("target", ["v5e:4x4", "v5e:8x16", "v4:4x4x4", "v5p:2x2x2"])
def test_no_two_rings_on_chips(target: str) -> None:
    with pytest.raises(ValueError, match="no two rings that share no link"):
        disjoint_order(slice_of(target), 1)


def test_every_slice_is_a_box() -> None:
    assert {target.split(":")[0] for target in SLICES} == set(KINDS)
    assert all(slice_of(target).box for target in SLICES)
