"""What the collectives hold and promise, against their definitions, and sizes that do not fit."""

from __future__ import annotations

import pytest

from ringsched.collectives import Promise, promise_of
from ringsched.diagnostics import Diagnostic, DiagnosticError, Span
from ringsched.expr import Expr, Int, Var
from ringsched.schedule.parse import parse_expression
from ringsched.schedule.schedule import Collective, CollectiveKind, Schedule, TopologyKind, TopologySpec
from ringsched.schedule.tree import Text
from ringsched.topology import topology_of


def expression(text: str) -> Expr:
    end = len(text) + 1
    span = Span(path="t", line=1, column=1, end_line=1, end_column=end)
    return parse_expression(Text(value=text, span=span, column=1))


def promise(
    kind: CollectiveKind,
    *dims: int,
    topology: TopologyKind = "ring",
    sides: tuple[int, ...] = (3,),
    root: str | None = None,
    permutation: str | None = None,
    env: dict[str, int] | None = None,
) -> Promise:
    schedule = Schedule(
        name="t",
        collective=Collective(
            kind=kind,
            root=expression(root) if root else None,
            permutation=expression(permutation) if permutation else None,
        ),
        topology=TopologySpec(kind=topology, sides=tuple(Int(value=n) for n in sides)),
        parameters=(),
        chunks=tuple(Int(value=n) for n in dims),
        items=(),
    )
    return promise_of(schedule, topology_of(schedule, {}), env or {})


def refused(kind: CollectiveKind, *dims: int, **more: object) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        promise(kind, *dims, **more)  # type: ignore[arg-type]
    (found,) = caught.value.diagnostics
    return found


def start(made: Promise) -> dict[tuple[int, ...], list[int]]:
    return {c: [made.initial(rank, c) for rank in range(made.topology.ranks)] for c in made.chunks()}


def end(made: Promise) -> dict[tuple[int, ...], list[int]]:
    return {c: [made.promised(rank, c) for rank in range(made.topology.ranks)] for c in made.chunks()}


OWN = {(0,): [1, 0, 0], (1,): [0, 2, 0], (2,): [0, 0, 4]}
TERMS = {(c,): [1, 2, 4] for c in range(3)}


def test_all_gather() -> None:
    made = promise("all_gather", 3)
    assert start(made) == OWN
    assert end(made) == {(c,): [1 << c] * 3 for c in range(3)}
    assert (made.input_shape(), made.output_shape()) == ((), (3,))


def test_reduce_scatter() -> None:
    made = promise("reduce_scatter", 3)
    assert start(made) == TERMS
    assert end(made) == {(0,): [7, 0, 0], (1,): [0, 7, 0], (2,): [0, 0, 7]}
    assert (made.input_shape(), made.output_shape()) == ((3,), ())


def test_all_reduce() -> None:
    made = promise("all_reduce", 2)
    assert start(made) == {(0,): [1, 2, 4], (1,): [1, 2, 4]}
    assert end(made) == {(0,): [7] * 3, (1,): [7] * 3}
    assert (made.input_shape(), made.output_shape()) == ((2,), (2,))


def test_all_to_all() -> None:
    made = promise("all_to_all", 3, 3, 2)
    assert start(made) == {(i, j, p): [(1 << i) * (rank == i) for rank in range(3)] for i, j, p in made.chunks()}
    assert end(made) == {(i, j, p): [(1 << i) * (rank == j) for rank in range(3)] for i, j, p in made.chunks()}
    assert (made.input_shape(), made.output_shape(), made.parts) == ((3, 2), (3, 2), (2,))


def test_permute() -> None:
    made = promise("permute", 3, 2, permutation="(r + 1) % 3")
    assert made.permutation == (1, 2, 0)
    assert start(made) == {(i, p): [(1 << i) * (rank == i) for rank in range(3)] for i, p in made.chunks()}
    assert end(made) == {(i, p): [(1 << i) * (rank == (i + 1) % 3) for rank in range(3)] for i, p in made.chunks()}
    assert (made.input_shape(), made.output_shape()) == ((2,), (2,))


def test_rooted_collectives() -> None:
    broadcast = promise("broadcast", 1, root="1")
    assert (start(broadcast), end(broadcast)) == ({(0,): [0, 2, 0]}, {(0,): [2, 2, 2]})
    reduce = promise("reduce", 1, root="1")
    assert (start(reduce), end(reduce)) == ({(0,): [1, 2, 4]}, {(0,): [0, 7, 0]})
    gather = promise("gather", 3, root="1")
    assert (start(gather), end(gather)) == (OWN, {(c,): [0, 1 << c, 0] for c in range(3)})
    assert (gather.input_shape(), gather.output_shape()) == ((), (3,))
    scatter = promise("scatter", 3, root="1")
    assert start(scatter) == {(c,): [0, 2, 0] for c in range(3)}
    assert end(scatter) == {(c,): [2 * (rank == c) for rank in range(3)] for c in range(3)}
    assert (scatter.input_shape(), scatter.output_shape()) == ((3,), ())


def test_the_root_is_rank_0_where_none_is_given() -> None:
    assert promise("broadcast", 1).root == 0


def test_owners_on_a_torus_are_coordinates_or_numbers() -> None:
    by_place = promise("all_gather", 2, 3, 2, topology="torus", sides=(2, 3))
    assert (by_place.group, by_place.owner((1, 2, 0)), by_place.parts) == (2, 5, (2,))
    by_number = promise("all_gather", 6, topology="torus", sides=(2, 3))
    assert (by_number.group, by_number.owner((5,))) == (1, 5)
    pairs = promise("all_to_all", 2, 3, 2, 3, topology="torus", sides=(2, 3))
    assert (pairs.owner((1, 2, 0, 1)), pairs.owner((1, 2, 0, 1), 1)) == (5, 1)
    assert pairs.output_shape() == (2, 3)


@pytest.mark.parametrize(
    ("kind", "dims", "sides", "wanted"),
    [
        ("all_gather", (4,), (3,), "[N]"),
        ("reduce_scatter", (), (3,), "[N]"),
        ("all_to_all", (3,), (3,), "[N, N]"),
        ("all_to_all", (3, 4), (3,), "[N, N]"),
        ("scatter", (2, 3), (3,), "[N]"),
    ],
)
def test_chunks_must_be_numbered_by_rank(
    kind: CollectiveKind, dims: tuple[int, ...], sides: tuple[int, ...], wanted: str
) -> None:
    found = refused(kind, *dims, sides=sides, env={"N": 3})
    assert (found.code, found.counterexample) == ("RS307", {"N": 3})
    assert wanted in (found.help or "")


def test_chunk_dimensions_are_between_1_and_the_limit() -> None:
    assert refused("all_reduce", 2, 0).message == "a chunk dimension of 0 has no chunks"
    assert refused("all_reduce", -1).code == "RS307"
    assert refused("all_reduce", 1 << 13, 1 << 13).code == "RS307"


def test_roots_and_permutations_that_are_none() -> None:
    assert refused("broadcast", 1, root="3").message == "the root 3 is not one of the 3 ranks"
    assert refused("broadcast", 1, root="0 - 1").code == "RS308"
    assert refused("broadcast", 1, root="1 // 0").code == "RS204"
    twice = refused("permute", 3, permutation="r // 2", env={"N": 3})
    assert (twice.code, twice.message) == ("RS308", "not a permutation: rank 0 is hit twice")
    assert twice.counterexample == {"N": 3, "r": 1}
    assert refused("permute", 3, permutation="r + 1").message == "not a permutation: rank 3 does not exist"
    assert refused("permute", 3, permutation="1 // r").counterexample == {"r": 0}


def test_dimensions_are_expressions() -> None:
    schedule = Schedule(
        name="t",
        collective=Collective(kind="all_gather"),
        topology=TopologySpec(kind="ring", sides=(Var(name="N"),)),
        parameters=(),
        chunks=(Var(name="N"), expression("2 - N % 2")),
        items=(),
    )
    for size in (3, 4):
        assert promise_of(schedule, topology_of(schedule, {"N": size}), {"N": size}).dims == (size, 2 - size % 2)
