"""Simplified expressions have the same value everywhere, and read well."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ringsched.diagnostics import Span
from ringsched.expr import Binary, Compare, EvaluationError, Expr, Extremum, Int, Neg, Var, integer, show
from ringsched.program.simplify import known, simplify
from ringsched.schedule.parse import parse_expression
from ringsched.schedule.tree import Text

NAMES = ("r", "s", "d")
INTEGERS = st.integers(-9, 9).map(lambda value: Int(value=value))
LEAVES = INTEGERS | st.sampled_from(NAMES).map(lambda name: Var(name=name))
MODULI = st.integers(1, 9).map(lambda value: Int(value=value))


def deeper(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    sums = st.builds(lambda op, a, b: Binary(op=op, left=a, right=b), st.sampled_from("+-*"), inner, inner)
    remainders = st.builds(lambda a, b: Binary(op="%", left=a, right=b), inner, MODULI | inner)
    others = st.builds(
        lambda op, a, b: Binary(op=op, left=a, right=b), st.sampled_from(["//", "^", "<<"]), inner, MODULI | inner
    )
    compared = st.builds(
        lambda op, a, b: Compare(first=a, rest=((op, b),)), st.sampled_from(["<", "==", ">="]), inner, inner
    )
    chosen = st.builds(
        lambda name, operands: Extremum(name=name, operands=tuple(operands)),
        st.sampled_from(["min", "max"]),
        st.lists(inner, min_size=1, max_size=3),
    )
    return sums | remainders | others | compared | chosen | inner.map(lambda e: Neg(operand=e))


EXPRESSIONS = st.recursive(LEAVES, deeper, max_leaves=10)
ENVIRONMENTS = st.fixed_dictionaries({name: st.integers(-20, 20) for name in NAMES})


@given(EXPRESSIONS, ENVIRONMENTS)
def test_equal_value(expr: Expr, env: dict[str, int]) -> None:
    try:
        value = integer(expr, env)
    except EvaluationError:
        assume(False)
    simple = simplify(expr)
    assert integer(simple, env) == value, f"{show(expr)} became {show(simple)}"


@given(EXPRESSIONS, st.data())
def test_equal_value_within_bounds(expr: Expr, data: st.DataObject) -> None:
    below = {name: data.draw(st.integers(1, 9)) for name in NAMES}
    env = {name: data.draw(st.integers(0, bound - 1)) for name, bound in below.items()}
    try:
        value = integer(expr, env)
    except EvaluationError:
        assume(False)
    simple = simplify(expr, below)
    assert integer(simple, env) == value, f"{show(expr)} became {show(simple)}"


@given(EXPRESSIONS)
def test_stays_as_it_is(expr: Expr) -> None:
    """What is simple is not changed again."""
    try:
        once = simplify(expr)
    except EvaluationError:
        assume(False)
    assert simplify(once) == once


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("((r - 1) % 4 - s) % 4", "(r - s - 1) % 4"),
        ("(r + 1 + 2) % 4", "(r - 1) % 4"),
        ("(r + 4) % 4", "r % 4"),
        ("(r + r) % 2", "0"),
        ("r - s + s", "r"),
        ("2 * r - r", "r"),
        ("(r % 8) % 4", "r % 4"),
        ("(r % 6) % 4", "r % 6 % 4"),
        ("-r + 3", "3 - r"),
        ("s * 0", "0"),
        ("max(1, 2) + r", "r + 2"),
    ],
)
def test_reads_well(text: str, wanted: str) -> None:
    assert show(simplify(expression(text))) == wanted


def expression(text: str) -> Expr:
    span = Span(path="t.yaml", line=1, column=1, end_line=1, end_column=1 + len(text))
    return parse_expression(Text(value=text, span=span, column=1))


def test_a_remainder_that_changes_nothing_is_dropped() -> None:
    expr = expression("r % 4")
    assert show(simplify(expr, {"r": 4})) == "r"
    assert show(simplify(expr, {"r": 5})) == "r % 4"


def test_known_names() -> None:
    assert show(known(expression("(r + s) % N"), {"N": 4, "s": 3})) == "(r - 1) % 4"
