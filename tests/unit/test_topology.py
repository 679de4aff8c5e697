"""Link graphs: coordinates, neighbours, wrapping, and sizes that make none."""

from __future__ import annotations

import subprocess
import sys

import networkx
import pytest

from ringsched.diagnostics import Diagnostic, DiagnosticError
from ringsched.expr import Expr, Int, Var, binary
from ringsched.schedule.loader import load
from ringsched.schedule.printer import print_schedule
from ringsched.schedule.schedule import Collective, Parameter, Schedule, Speed, TopologyKind, TopologySpec
from ringsched.topology import MAX_RANKS, Topology, topology_of


def schedule(kind: TopologyKind, *sides: Expr, links: tuple[tuple[int, int], ...] = (), **values: int) -> Schedule:
    return Schedule(
        name="t",
        collective=Collective(kind="all_gather"),
        topology=TopologySpec(kind=kind, sides=sides, links=links),
        parameters=tuple(Parameter(name=name, value=value) for name, value in values.items()),
        chunks=(),
        items=(),
    )


def topology(kind: TopologyKind, *sides: int, links: tuple[tuple[int, int], ...] = ()) -> Topology:
    return topology_of(schedule(kind, *(Int(value=side) for side in sides), links=links), {})


def refused(made: Schedule, env: dict[str, int] | None = None) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        topology_of(made, env or {})
    (found,) = caught.value.diagnostics
    return found


def written(place: str) -> Topology:
    """The topology of a file that says `topology: PLACE`; printing it and reading it again makes no difference."""
    made = load("t.yaml", f"schedule: t\ncollective: all_gather\ntopology: {place}\nchunks: [1]\nsteps: []\n")
    again = print_schedule(made)
    assert load("t.yaml", again) == made
    assert f"topology: {place}\n" in again
    return topology_of(made, {})


ALL = [
    topology("ring", 1),
    topology("ring", 2),
    topology("ring", 5),
    topology("line", 4),
    topology("mesh", 2, 3),
    topology("torus", 2, 3),
    topology("torus", 3, 2, 4),
    topology("links", links=((0, 1), (2, 1), (1, 3))),
    written("{torus: [2, 4], twist: {x: [0, 2]}}"),
    written("{torus: [3, 4], twist: {y: [1, 0]}}"),
    written("{torus: [2, 4, 4], twist: {x: [0, 2, 2]}}"),
    written("{torus: [2, 2, 4], twist: {x: [0, 0, 2], y: [0, 0, 2]}}"),
    written("{torus: [2, 4, 4], twist: {x: [0, 2, 1], y: [0, 0, 2]}}"),
]


@pytest.mark.parametrize("made", ALL, ids=lambda t: f"{t.kind}{t.sides}")
def test_the_views_of_a_graph_agree(made: Topology) -> None:
    graph = made.graph()
    assert sorted(graph) == list(range(made.ranks))
    for rank in range(made.ranks):
        assert made.rank(made.at(rank)) == rank
        assert tuple(sorted(graph[rank])) == made.neighbours(rank)
        for other in range(made.ranks):
            assert made.linked(rank, other) == graph.has_edge(rank, other) == (other in made.neighbours(rank))
        assert rank not in made.neighbours(rank)
        assert graph.nodes[rank]["place"] == made.at(rank)


def test_graphs_are_the_known_ones() -> None:
    known = {
        "ring": (topology("ring", 5), networkx.cycle_graph(5)),
        "line": (topology("line", 4), networkx.path_graph(4)),
        "mesh": (topology("mesh", 2, 3), networkx.grid_graph([3, 2])),
        "torus": (topology("torus", 3, 4), networkx.grid_graph([4, 3], periodic=True)),
    }
    for made, graph in known.values():
        assert networkx.is_isomorphic(made.graph(), graph)


def test_numbers_are_row_major_and_wrap_only_where_the_topology_does() -> None:
    torus, mesh = topology("torus", 2, 3), topology("mesh", 2, 3)
    assert [torus.at(rank) for rank in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert torus.rank((-1, 3)) == 3
    assert mesh.rank((-1, 0)) is None
    assert mesh.rank((0, 3)) is None
    assert topology("ring", 4).rank((-1,)) == 3
    assert topology("line", 4).rank((4,)) is None
    assert topology("links", links=((0, 1),)).rank((2,)) is None


def test_names_of_the_coordinates() -> None:
    assert topology("ring", 3).environment(2) == {"r": 2}
    assert topology("torus", 2, 3).environment(4) == {"r": 4, "x": 1, "y": 1}
    assert topology("mesh", 2, 3, 2).coordinates == ("x", "y", "z")
    assert topology("links", links=((0, 1),)).environment(1) == {"r": 1}


def test_sides_are_expressions_of_the_parameters() -> None:
    made = schedule("torus", Var(name="X"), binary("*", Int(value=2), Var(name="X")), X=3)
    assert topology_of(made, {"X": 3}).sides == (3, 6)
    assert refused(made, {}).code == "RS202"
    assert refused(schedule("ring", binary("//", Var(name="X"), Var(name="Y"))), {"X": 1, "Y": 0}).code == "RS204"


@pytest.mark.parametrize("size", [0, -1, MAX_RANKS + 1, 10**9])
def test_sizes_that_make_no_ring(size: int) -> None:
    found = refused(schedule("ring", Var(name="N"), N=size), {"N": size})
    assert (found.code, found.counterexample) == ("RS210", {"N": size})
    assert str(size) in found.message


@pytest.mark.parametrize(
    ("links", "reason"),
    [
        (((0, 1), (2, 3)), "do not join"),
        (((1, 2),), "do not join"),
        (((1, 1),), "with itself"),
        (((0, MAX_RANKS),), "link ends"),
        (((-1, 0),), "link ends"),
    ],
)
def test_links_that_make_no_graph(links: tuple[tuple[int, int], ...], reason: str) -> None:
    found = refused(schedule("links", links=links))
    assert found.code == "RS210"
    assert reason in found.message


def test_sides_that_are_too_many_or_none() -> None:
    assert refused(schedule("mesh", *[Int(value=2)] * 4)).code == "RS210"
    assert refused(schedule("torus")).code == "RS210"


def test_networkx_is_imported_only_for_the_graph() -> None:
    code = "import sys, ringsched.schedule.flat, ringsched.verify.dataflow; sys.exit('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_two_ranks_have_one_link() -> None:
    """A side of 2 has no second link between the two; with a twist along it there are two, to different ranks."""
    plain, twisted = topology("torus", 2, 4), written("{torus: [2, 4], twist: {x: [0, 2]}}")
    assert plain.rank((1, 0)) == plain.rank((-1, 0))
    assert [len(plain.neighbours(rank)) for rank in range(8)] == [3] * 8
    assert [len(twisted.neighbours(rank)) for rank in range(8)] == [4] * 8
    assert (twisted.rank((1, 0)), twisted.rank((-1, 0))) == (4, 6)


@pytest.mark.parametrize(("place", "least"), [
    ("{torus: [4, 8], twist: {x: [0, 4]}}", 4),
    ("{torus: [4, 8, 8], twist: {x: [0, 4, 4]}}", 6),
    ("{torus: [4, 4, 8], twist: {x: [0, 0, 4], y: [0, 0, 4]}}", 6),
])  # fmt: skip
def test_twists_bring_ranks_closer(place: str, least: int) -> None:
    """The diameters of the twisted tori of Cámara et al.; without the twist 6, 10 and 8."""
    twisted = written(place)
    plain = topology("torus", *twisted.sides)
    assert networkx.diameter(twisted.graph()) == least
    assert networkx.diameter(plain.graph()) == sum(side // 2 for side in plain.sides) > least
    assert twisted.graph().number_of_edges() == plain.graph().number_of_edges()


def test_a_twist_is_a_shift_of_the_lattice() -> None:
    """Once around along an axis, then the shift back along the others, ends where it began, whatever the order."""
    made = written("{torus: [2, 4, 4], twist: {x: [0, 2, 1], y: [0, 0, 2]}}")
    for rank in range(made.ranks):
        for axis, row in enumerate(made.twist):
            place = list(made.at(rank))
            place[axis] += made.sides[axis]
            assert made.rank(tuple(place)) == made.rank(tuple(c + s for c, s in zip(made.at(rank), row, strict=True)))


def test_a_twist_by_whole_sides_is_none() -> None:
    assert written("{torus: [4, 8], twist: {x: [0, 8]}}") == topology("torus", 4, 8)
    assert written("{torus: [4, 8], twist: {x: [0, -4]}}") == written("{torus: [4, 8], twist: {x: [0, 12]}}")
    # 4 along y is once around there, and shifts z in turn
    assert written("{torus: [2, 4, 4], twist: {x: [0, 4, 0], y: [0, 0, 2]}}").twist == ((0, 0, 2), (0, 0, 2), (0, 0, 0))


def test_speeds_of_links() -> None:
    plain = {"axis": None, "bandwidth": 1, "latency": 1}
    graph = written("{links: [[0, 1], {between: [2, 1], bandwidth: 2, latency: 0}]}").graph()
    assert graph.edges[0, 1] == plain
    assert graph.edges[1, 2] == {**plain, "bandwidth": 2, "latency": 0}
    torus = written("{torus: [2, 3], bandwidth: [2, 1], latency: 3}")
    assert torus.speed(0, 3) == Speed(2, 3)
    assert torus.speed(0, 2) == Speed(1, 3)
    assert torus.graph().edges[0, 2] == {"axis": 1, "bandwidth": 1, "latency": 3}
    assert written("{ring: 4, bandwidth: 2}").speed(3, 0) == Speed(2, 1)
    assert (
        load(
            "t.yaml", "schedule: t\ncollective: all_gather\ntopology: {ring: 4, bandwidth: 1}\nchunks: [4]\nsteps: []\n"
        ).topology.speeds
        == ()
    )


def test_the_axis_of_a_link() -> None:
    twisted = written("{torus: [2, 4], twist: {x: [0, 2]}}")
    assert [twisted.axis(0, other) for other in range(8)] == [None, 1, None, 1, 0, None, 0, None]
