"""`rs.make_mesh` and `rs.check_mesh`, on stand-ins that have the coordinates of chips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from slices import KINDS, positions_of

import ringsched as rs
from ringsched.placement.mesh import PlacementError, PlacementWarning

ALL_GATHER = """\
schedule: both_axes
collective: all_gather
topology: {torus: [X, Y]}
params: {X: 4, Y: 4}
chunks: [X, Y]
steps:
  - {for: s in 0 .. X - 2, do: [{send: "chunk[(x - s) % X, y]", to: [x + 1, y]}]}
  - {for: s in 0 .. Y - 2, do: [{send: "chunk[:, (y - s) % Y]", to: [x, y + 1]}]}
"""


@dataclass(frozen=True)
class Chip:
    """What `make_mesh` looks at of a device."""

    id: int
    coords: tuple[int, ...]
    core_on_chip: int
    device_kind: str
    process_index: int = 0
    platform: str = "tpu"


def chips(target: str) -> list[Chip]:
    kind = KINDS[target.split(":")[0]]
    return [Chip(i, tuple(place), core, kind) for i, (*place, core) in enumerate(positions_of(target))]


class Grid:
    """A mesh of stand-ins."""

    def __init__(self, devices: Any, names: tuple[str, ...]) -> None:
        self.devices, self.axis_names = devices, names
        self.shape = dict(zip(names, devices.shape, strict=True))


@pytest.fixture(autouse=True)
def _grid(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    real = jax.sharding.Mesh
    monkeypatch.setattr(
        jax.sharding, "Mesh", lambda d, names: Grid(d, names) if isinstance(d.flat[0], Chip) else real(d, names)
    )


def ids(mesh: Any) -> list[Any]:
    return np.vectorize(lambda device: device.id)(mesh.devices).tolist()


def test_a_ring_goes_round_the_square() -> None:
    mesh = rs.make_mesh(chips("v5p:2x2x1"), "ring:4")
    assert mesh.axis_names == ("r",)
    assert ids(mesh) == [0, 1, 3, 2]
    assert rs.check_mesh(mesh, "ring:4").longest == 1


def test_a_torus_has_its_axes_named() -> None:
    mesh = rs.make_mesh(chips("v5p:4x4x4"), "torus:4x4x4", strict=True)
    assert mesh.axis_names == ("x", "y", "z")
    assert mesh.devices[1, 2, 3].coords == (1, 2, 3)
    named = rs.make_mesh(chips("v5p:4x4x4"), "torus:4x16", axis_names=("data", "model"), strict=True)
    assert (named.axis_names, named.devices.shape) == (("data", "model"), (4, 16))
    assert rs.check_mesh(named, "torus:4x16").diagnostics == ()
    assert rs.check_mesh(named, "ring:16", axis_names="model").longest == 1


def test_what_chips_cannot_do_is_told() -> None:
    with pytest.warns(PlacementWarning) as told:
        mesh = rs.make_mesh(chips("v5e:4x4"), "torus:4x4")
    assert [str(one.message) for one in told] == [
        "RS906: mesh axis 'x' is no ring of links: it has hops of up to 2; its hops: 16 of 1 link, 16 of 2 links",
        "RS906: mesh axis 'y' is no ring of links: it has hops of up to 2; its hops: 16 of 1 link, 16 of 2 links",
        "RS907: up to 2 hops meet on a link, on 48 of the 48 links that are used; a step that uses them all takes so "
        "many times as long",
    ]
    assert rs.check_mesh(mesh, "torus:4x4").longest == 2
    with pytest.raises(PlacementError, match="RS906: mesh axis 'x' is no ring of links"):
        rs.make_mesh(chips("v5e:4x4"), "torus:4x4", strict=True)


def test_an_order_that_does_not_match() -> None:
    devices = np.array(chips("v5e:2x4"), object).reshape(2, 4)
    report = rs.check_mesh(Grid(devices, ("data", "model")), "mesh:2x4")  # type: ignore[arg-type]
    assert report.longest == 2
    assert report.diagnostics[0].message == "mesh axis 'data' is no line of links: it has hops of up to 2"
    assert rs.check_mesh(rs.make_mesh(chips("v5e:2x4"), "mesh:2x4"), "mesh:2x4").diagnostics == ()


def test_two_rings() -> None:
    first, second = (rs.make_mesh(chips("v5e:16x16"), "ring:256", ring=number, strict=True) for number in (1, 2))
    links = [set(rs.check_mesh(mesh, "ring:256").links) for mesh in (first, second)]
    assert len(links[0]) == len(links[1]) == 512
    assert not links[0] & links[1]
    for target, topology, ring, message in [
        ("v5e:4x4", "ring:16", 1, "no two rings that share no link: 4 × 4 × 1 chips"),
        ("v5e:4x4", "torus:4x4", 1, "ring=1 is for the first or second"),
        ("v5e:16x16", "ring:256", 3, "ring=3 is for the first or second"),
    ]:
        with pytest.raises(PlacementError, match=message):
            rs.make_mesh(chips(target), topology, ring=ring)


@pytest.mark.parametrize(("topology", "options", "message"), [
    ("torus:4x4", {}, "torus:4x4 has 16 ranks, but there are 4 devices"),
    ("ring:2x2", {}, "RS210: a ring has one side, not 2: for example ring:8, "),
    ("circle:4", {}, "RS210: `circle:4` names no topology: "),
    ("torus:4", {"axis_names": ("a", "b")}, r"torus:4 has 1 axes, but axis_names has 2: \('a', 'b'\)"),
    ("torus:4x1", {}, "RS210: a torus cannot have 1 rank along a side"),
    ("torus:2x", {}, "RS210: `torus:2x` names no topology"),
    ("torus:2x2x1x1", {}, "RS210: a torus has 1 to 3 sides, not 4"),
    ("ring", {}, "RS210: `ring` names no topology"),
])  # fmt: skip
def test_misuse(topology: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        rs.make_mesh(chips("v5e:2x2"), topology, **options)


def test_misuse_of_check() -> None:
    mesh = rs.make_mesh(chips("v5p:2x2x2"), "torus:2x4")
    with pytest.raises(PlacementError, match="the mesh has no axis 'i'; its axes are 'x', 'y'"):
        rs.check_mesh(mesh, "ring:8", axis_names="i")
    with pytest.raises(PlacementError, match="torus:4x2 does not fit mesh axes 'x' and 'y' of 2 × 4"):
        rs.check_mesh(mesh, "torus:4x2")
    with pytest.raises(PlacementError, match="ring:8 does not fit mesh axis 'y' of 4"):
        rs.check_mesh(mesh, "ring:8", axis_names="y")
    assert rs.check_mesh(mesh, "ring:8").longest > 1  # over both axes, row by row


def test_a_schedule_tells_what_its_mesh_costs(tmp_path: Any) -> None:
    file = tmp_path / "both_axes.yaml"
    file.write_text(ALL_GATHER)
    gather = rs.compile(file)
    good = rs.make_mesh(chips("v5p:2x2x2"), "torus:2x4")
    assert gather.check(good, ("x", "y")).diagnostics == ()
    gather.on(good)
    bad = Grid(good.devices.reshape(4, 2), ("x", "y"))
    assert gather.check(bad, ("x", "y")).name == "torus:4x2"
    with pytest.warns(PlacementWarning) as told:
        gather.on(bad)
    assert [str(one.message)[:5] for one in told] == [d.code for d in gather.check(bad, ("x", "y")).diagnostics]
