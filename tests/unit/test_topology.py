"""Link graphs: coordinates, neighbours, wrapping, and sizes that make none."""

from __future__ import annotations

import subprocess
import sys

import networkx
import pytest

from ringsched.diagnostics import Diagnostic, DiagnosticError
from ringsched.expr import Expr, Int, Var, binary
from ringsched.schedule.schedule import Collective, Parameter, Schedule, TopologyKind, TopologySpec
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


ALL = [
    topology("ring", 1),
    topology("ring", 2),
    topology("ring", 5),
    topology("line", 4),
    topology("mesh", 2, 3),
    topology("torus", 2, 3),
    topology("torus", 3, 1, 4),
    topology("links", links=((0, 1), (2, 1), (1, 3))),
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
