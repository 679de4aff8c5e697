"""Which tables a rank has its column of, and what is looked up in it."""

from __future__ import annotations

import itertools

import pytest

from ringsched.expr import Expr, Int, Lookup, Var, binary, integer
from ringsched.program.program import RANK, Loop, Program, SemaphoreRef, Signal
from ringsched.program.tables import row_of, tables_of

S = Var(name="s")


def plus(left: Expr, right: Expr | int) -> Expr:
    return binary("+", left, right)


@pytest.mark.parametrize(
    ("index", "row"),
    [
        (RANK, Int(value=0)),
        (plus(RANK, 12), Int(value=3)),
        (plus(binary("*", 4, S), RANK), S),
        (plus(plus(binary("*", 8, S), RANK), -4), plus(binary("*", 2, S), -1)),
    ],
)
def test_the_row_of_an_entry(index: Expr, row: Expr) -> None:
    found = row_of(index, 4)
    assert found is not None
    for r, s in itertools.product(range(4), range(1, 5)):
        env = {"r": r, "s": s}
        assert integer(found, env) * 4 + r == integer(index, env)
        assert integer(found, env) == integer(row, env)


@pytest.mark.parametrize(
    "index",
    [
        S,
        plus(RANK, 1),
        binary("*", 2, RANK),
        plus(binary("*", 3, S), RANK),
        binary("%", plus(RANK, 1), 4),
        Int(value=4),
    ],
)
def test_other_entries_are_in_no_column(index: Expr) -> None:
    assert row_of(index, 4) is None


def program(*lookups: Lookup) -> Program:
    """One that signals as many ranks as there are look-ups, in each of three steps."""
    ref = SemaphoreRef(semaphore="b")
    signals = tuple(Signal(semaphore=ref, peer=(lookup,)) for lookup in lookups)
    body = (Loop(var="s", first=Int(value=0), last=Int(value=2), body=signals),)
    return Program(name="p", coordinates=("r",), sides=(4,), buffers=(), semaphores=(), body=body)


def look(name: str, table: tuple[int, ...], index: Expr) -> Lookup:
    return Lookup(name=name, table=table, index=index)


def test_a_table_is_whole_if_one_looks_elsewhere() -> None:
    own, next_ = plus(binary("*", 4, S), RANK), plus(binary("*", 4, S), binary("%", plus(RANK, 1), 4))
    one, two, three = tuple(range(12)), tuple(range(12, 24)), tuple(range(13))
    found = tables_of(program(look("a", one, own), look("b", two, next_), look("c", three, own), look("d", one, own)))
    assert found.by_rank == {one: "a"}
    assert found.whole == {two: "b", three: "c"}  # thirteen entries are no columns of four ranks
    found = tables_of(program(look("a", one, own), look("a", one, next_)))
    assert (found.by_rank, found.whole) == ({}, {one: "a"})


def test_names_are_of_one_table_each() -> None:
    own, step = plus(binary("*", 4, S), RANK), S
    found = tables_of(program(look("a", (1, 2, 3), step), look("a", tuple(range(12)), own)))
    assert list(found.whole.values()) == ["a"] and list(found.by_rank.values()) == ["a_1"]
