"""Tables of constants: in expressions, in files, in Programs."""

from __future__ import annotations

import pytest

from ringsched.closures import compiled
from ringsched.diagnostics import DiagnosticError
from ringsched.expr import (
    Affine,
    EvaluationError,
    Int,
    Lookup,
    NotAffine,
    Var,
    binary,
    evaluate,
    integer,
    lookups,
    show,
    substitute,
)
from ringsched.expr import names as names_of
from ringsched.program.simplify import simplify
from ringsched.schedule.loader import load
from ringsched.schedule.printer import format_text, print_schedule
from ringsched.schedule.schedule import Schedule

TABLE = (3, 1, 4, 1, 5)
S = Var(name="s")
ENTRY = Lookup(name="far", table=TABLE, index=binary("+", S, 1))


def test_values() -> None:
    assert [integer(ENTRY, {"s": s}) for s in range(4)] == [1, 4, 1, 5]
    assert [compiled(ENTRY)({"s": s}) for s in range(4)] == [1, 4, 1, 5]
    assert names_of(ENTRY) == {"s"}
    assert lookups(binary("*", ENTRY, ENTRY)) == (ENTRY, ENTRY)
    assert show(binary("%", binary("-", Var(name="r"), ENTRY), 8)) == "(r - far[s + 1]) % 8"


@pytest.mark.parametrize("s", [-2, 4])
def test_outside_of_the_table(s: int) -> None:
    """An index below 0 does not count from the end."""
    with pytest.raises(EvaluationError, match="has no entry") as error:
        evaluate(ENTRY, {"s": s})
    assert error.value.code == "RS206"
    with pytest.raises(OverflowError):
        compiled(ENTRY)({"s": s})


def test_an_index_that_depends_on_the_rank() -> None:
    with pytest.raises(NotAffine):
        evaluate(ENTRY, {"s": Affine(0, (1,))})


def test_numbers_are_looked_up_at_once() -> None:
    assert substitute(ENTRY, {"s": 1}) == Int(value=4)
    assert simplify(Lookup(name="far", table=TABLE, index=binary("-", binary("+", S, 2), S))) == Int(value=4)
    assert simplify(binary("-", ENTRY, ENTRY)) == Int(value=0)
    assert simplify(binary("+", ENTRY, ENTRY)) == binary("*", 2, ENTRY)


def test_whole_of_quotient_and_rest() -> None:
    """4 * (e // 4) + e % 4 is e, for any e; other factors are not."""
    rest, quotient = binary("%", ENTRY, 4), binary("//", ENTRY, 4)
    assert simplify(binary("+", binary("*", quotient, 4), rest)) == ENTRY
    assert simplify(binary("+", binary("*", quotient, 8), binary("*", rest, 2))) == binary("*", 2, ENTRY)
    uneven = simplify(binary("+", binary("*", quotient, 8), rest))  # twice the quotient, once the rest
    assert [integer(uneven, {"s": s}) for s in range(4)] == [TABLE[s + 1] // 4 * 8 + TABLE[s + 1] % 4 for s in range(4)]
    kept = simplify(binary("+", binary("*", quotient, 3), rest))
    assert kept != ENTRY
    for value in (-5, -1, 0, 3, 4, 11):
        e = {"r": value}
        r = Var(name="r")
        whole = binary("+", binary("*", binary("//", r, 4), 4), binary("%", r, 4))
        assert integer(simplify(whole), e) == value


FILE = """\
schedule: all_gather
collective: all_gather
topology: {ring: N}
params: {N: 4}
tables:
  behind: [0, 1, 2]   # the farthest last
chunks: [N]
steps:
  - for: s in 0 .. N - 2
    do:
      - send: chunk[(r - behind[ s ])%N]
        to: r + 1
"""


def test_files() -> None:
    schedule = load("t.yaml", FILE)
    assert isinstance(schedule, Schedule)
    assert schedule.tables == (("behind", (0, 1, 2)),)
    assert load("t.yaml", print_schedule(schedule)) == schedule
    laid_out = format_text(FILE, "t.yaml")
    assert "chunk[(r - behind[s]) % N]" in laid_out
    assert "# the farthest last" in laid_out
    assert format_text(laid_out, "t.yaml") == laid_out


def test_a_long_table_takes_several_lines() -> None:
    table = list(range(100, 180))
    schedule = load("t.yaml", FILE.replace("[0, 1, 2] ", str(table)))
    text = print_schedule(schedule)
    assert max(map(len, text.splitlines())) <= 100
    assert load("t.yaml", text) == schedule
    assert format_text(text, "t.yaml") == text


@pytest.mark.parametrize("index", ["behind[0:2]", "behind[s, 0]", "behind", "chunk[s]", "behind[s][0]"])
def test_not_one_entry(index: str) -> None:
    with pytest.raises(DiagnosticError) as error:
        load("t.yaml", FILE.replace("behind[ s ]", index))
    assert error.value.diagnostics[0].code == "RS203"
