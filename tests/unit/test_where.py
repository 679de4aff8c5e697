"""Sets of ranks as conditions: they hold on exactly these ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringsched.expr import Expr, Int, holds, show
from ringsched.lower.where import where
from ringsched.topology import Topology


def text(topology: Topology, ranks: set[int]) -> str:
    return " and ".join(show(c) for c in where(topology, frozenset(ranks), lambda v: Int(value=v)))


def members(topology: Topology, conditions: tuple[Expr, ...]) -> set[int]:
    found = set()
    for rank in range(topology.ranks):
        env = topology.environment(rank)
        if holds(conditions, env):
            found.add(rank)
    return found


@st.composite
def subsets(draw: st.DrawFn) -> tuple[Topology, frozenset[int]]:
    kind = draw(st.sampled_from(["ring", "line", "mesh", "torus"]))
    sides = (draw(st.integers(1, 12)),)
    if kind in ("mesh", "torus"):
        sides = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    topology = Topology(kind=kind, sides=sides)
    return topology, draw(st.frozensets(st.integers(0, topology.ranks - 1), min_size=1))


@given(subsets())
def test_exactly_these_ranks(case: tuple[Topology, frozenset[int]]) -> None:
    topology, ranks = case
    assert members(topology, where(topology, ranks, lambda v: Int(value=v))) == set(ranks)


@given(st.integers(1, 10), st.data())
def test_every_rank_of_a_ring_or_some(side: int, data: st.DataObject) -> None:
    """All ranks need no condition, and fewer need one."""
    topology = Topology(kind="ring", sides=(side,))
    ranks = data.draw(st.frozensets(st.integers(0, side - 1), min_size=1))
    assert (where(topology, ranks, lambda v: Int(value=v)) == ()) == (len(ranks) == side)


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, ""),
        ({3}, "r == 3"),
        ({0, 1, 2}, "r <= 2"),
        ({5, 6, 7}, "r >= 5"),
        ({2, 3, 4}, "2 <= r <= 4"),
        ({0, 2, 4, 6}, "r % 2 == 0"),
        ({1, 3}, "r % 2 == 1 and r <= 3"),
        ({0, 1, 6}, "max(0 <= r <= 1, r == 6)"),
    ],
)
def test_reads_well(ranks: set[int], wanted: str) -> None:
    assert text(Topology(kind="ring", sides=(8,)), ranks) == wanted


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [
        ({0, 1, 2}, "x == 0"),
        ({1, 4}, "y == 1"),
        ({4}, "x == 1 and y == 1"),
        ({0, 4}, "r % 4 == 0"),
    ],
)
def test_two_coordinates(ranks: set[int], wanted: str) -> None:
    """A block of ranks is told by its coordinates, any other set by the rank's number."""
    assert text(Topology(kind="mesh", sides=(2, 3)), ranks) == wanted


def test_numbers_are_written_by_the_caller() -> None:
    """Those that change from step to step become holes."""
    asked: list[int] = []

    def number(value: int) -> Expr:
        asked.append(value)
        return Int(value=value)

    where(Topology(kind="ring", sides=(8,)), frozenset({2, 3, 4}), number)
    assert sorted(asked) == [2, 4]
