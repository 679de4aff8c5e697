import pytest

from ringsched.diagnostics import Span
from ringsched.expr import (
    LIMIT,
    Affine,
    Binary,
    Compare,
    EvaluationError,
    Expr,
    Extremum,
    Int,
    Neg,
    NotAffine,
    Var,
    binary,
    evaluate,
    holds,
    integer,
    names,
    show,
    substitute,
)
from ringsched.schedule.parse import parse_expression
from ringsched.schedule.tree import Text


def expr(text: str) -> Expr:
    span = Span(path="f", line=1, column=1, end_line=1, end_column=len(text) + 1)
    return parse_expression(Text(value=text, span=span, column=1))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(r - 3) % N", 3),
        ("-7 // 2", -4),
        ("-7 % 4", 1),
        ("7 % -4", -1),
        ("r ^ 1", 3),
        ("1 << 3 ^ 1", 9),
        ("1 + 2 << 1", 6),
        ("2 * 3 + 4", 10),
        ("2 - 3 - 4", -5),
        ("2 - (3 - 4)", 3),
        ("--5", 5),
        ("min(r, N, 9)", 2),
        ("max(r)", 2),
        ("0 <= r < N", 1),
        ("0 <= r < 2", 0),
        ("(r == 2) + (N != 4)", 1),
    ],
)
def test_value(text: str, value: int) -> None:
    assert integer(expr(text), {"r": 2, "N": 4}) == value


@pytest.mark.parametrize(
    ("text", "code", "culprit"),
    [
        ("r % (N - 4)", "RS204", "N - 4"),
        ("1 + r // 0", "RS204", "0"),
        ("1 << 63", "RS205", "63"),
        ("1 << -1", "RS205", "-1"),
        ("(1 << 61) * 4", "RS205", "(1 << 61) * 4"),
        ("r + M", "RS202", "M"),
    ],
)
def test_no_value(text: str, code: str, culprit: str) -> None:
    with pytest.raises(EvaluationError) as error:
        evaluate(expr(text), {"r": 2, "N": 4})
    assert error.value.code == code
    assert show(error.value.expr) == culprit


def test_a_chain_stops_at_the_first_false_link() -> None:
    assert integer(expr("1 < 0 < 1 // 0"), {}) == 0


def test_conditions_are_evaluated_left_to_right() -> None:
    assert not holds((expr("r != 2"), expr("1 // (r - 2) > 0")), {"r": 2})
    assert holds((), {})


def test_remainder_of_a_rank_stays_symbolic() -> None:
    rank = Affine(0, (1,))
    assert evaluate(expr("(r - s - 1) % N"), {"r": rank, "s": 2, "N": 4}) == Affine(1, (1,), 4)
    assert evaluate(expr("(4 * r + 3) % N"), {"r": rank, "N": 4}) == 3


@pytest.mark.parametrize("text", ["r * r", "r < 2", "r // 2", "r ^ 1", "min(r, 1)", "r % N + 1", "1 << r"])
def test_what_a_rotation_does_not_preserve(text: str) -> None:
    with pytest.raises(NotAffine):
        evaluate(expr(text), {"r": Affine(0, (1,)), "N": 4})


def test_names() -> None:
    assert names(expr("min(r, -s) + (0 < N) * 3")) == {"r", "s", "N"}


def test_substitution_folds_constants() -> None:
    assert show(substitute(expr("(r - s - 1) % N"), {"s": 2, "N": 8})) == "(r - 3) % 8"
    assert show(substitute(expr("min(a, 2) + r * b"), {"a": 5, "b": 1})) == "r + 2"
    assert show(substitute(expr("a - (b - 1)"), {"a": expr("r")})) == "r - b + 1"


def test_folding_keeps_sums_in_one_form() -> None:
    assert show(binary("+", binary("-", Var(name="r"), 1), 3)) == "r + 2"
    assert show(binary("-", Var(name="r"), Var(name="r"))) == "0"
    assert show(binary("+", 1, Neg(operand=Var(name="r")))) == "1 - r"


@pytest.mark.parametrize(
    "text",
    [
        "a - (b - c)",
        "a - b - c",
        "-(a + b)",
        "-a * b",
        "(a < b) < c",
        "a < b < c",
        "(a ^ b) < c",
        "a ^ b << c + d * -e",
    ],
)
def test_parentheses_are_neither_lost_nor_added(text: str) -> None:
    assert show(expr(text)) == text


def test_nodes_compare_without_their_place() -> None:
    assert expr("r + 1") == Binary(op="+", left=Var(name="r"), right=Int(value=1))
    assert expr(" (r) ") == Var(name="r")
    assert expr("a < 1") == Compare(first=Var(name="a"), rest=(("<", Int(value=1)),))
    assert expr("min(a)") == Extremum(name="min", operands=(Var(name="a"),))
    assert LIMIT == 2**62
