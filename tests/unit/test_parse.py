import pytest

from ringsched.diagnostics import Diagnostic, DiagnosticError, Span
from ringsched.expr import Binary, Expr, Int, Neg, Var, show
from ringsched.schedule.notation import show_chunk, show_range
from ringsched.schedule.parse import MAX_DEPTH, MAX_LENGTH, parse_chunk, parse_expression, parse_range
from ringsched.schedule.schedule import Slice
from ringsched.schedule.tree import Entry, Mapping, Scalar, Text, parse_tree

START = 11  # the column at which the texts below stand


def text(value: str) -> Text:
    span = Span(path="f", line=3, column=START, end_line=3, end_column=START + len(value))
    return Text(value=value, span=span, column=START)


def refusal(value: str, parse: object = parse_expression) -> tuple[Diagnostic, str]:
    """The finding and the characters under its carets."""
    assert callable(parse)
    with pytest.raises(DiagnosticError) as error:
        parse(text(value))
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.primary is not None
    span = diagnostic.primary.span
    return diagnostic, value[span.column - START : span.end_column - START]


@pytest.mark.parametrize(
    ("value", "culprit", "help"),
    [
        ("r / 2", "/", "use // for integer division"),
        ("(r) / (2)", "/", "use // for integer division"),
        ("r ** 2", "**", "1 << k"),
        ("r >> 1", ">>", "//"),
        ("r & 1", "&", "%"),
        ("r | 1", "|", "+"),
        ("r @ 1", "@", "*"),
        ("(r > 0) and (r < N)", "and", "when: [r > 0, r < N]"),
        ("a or b", "or", "transfers of their own"),
        ("a and (b or c)", "and", "list"),
        ("not a", "not", "!="),
        ("~a", "~", "^"),
        ("+a", "+", "sign"),
        ("a is b", "is", "=="),
        ("a is not b", "is not", "!="),
        ("a in b", "in", "a <= r < b"),
        ("a not  in b", "not  in", "range"),
        ("abs(r)", "abs", "max(a, -a)"),
        ("mim(a, b)", "mim", "did you mean min(…)?"),
        ("maximum(a, b)", "maximum", "did you mean max(…)?"),
        ("min()", "min()", "min(a, b)"),
        ("min(a, key=b)", "=", None),
        ("min(*a)", "min(*a)", "min(a, b)"),
        ("min + 1", "min", "min(a, b)"),
        ("r.real", "r.real", "expressions hold"),
        ("chunk[0]", "chunk[0]", "r and the loop variables"),
        ("1 + True", "True", "comparison"),
        ("None", "None", "comparison"),
        ("1.5 * r", "1.5", "//"),
        ("1e3", "1e3", "//"),
        ("2 + 0x1F", "0x1F", "write 31"),
        ("007", "007", "write 7"),
        ("'r'", "'r'", "quotes"),
        ("lambda: r", "lambda: r", None),
        ("(a := 1)", ":=", "cannot assign"),
        ("[i for i in r]", "[i for i in r]", None),
        ("[1, 2]", "[1, 2]", None),
        ("(1, 2)", "(1, 2)", "commas"),
        ("a if b else c", "a if b else c", "`when:`"),
        ("r = 0", "=", "=="),
        ("a && b", "&&", "when: [a, b]"),
        ("a || b", "||", "own"),
        ("!a", "!", "!="),
        ("{1}", "{1}", None),
        ("f(1)(2)", "f(1)(2)", "min"),
        ("__import__('os').system('ls')", "__import__('os').system('ls')", "min"),
    ],
)
def test_what_is_not_allowed(value: str, culprit: str, help: str | None) -> None:
    diagnostic, found = refusal(value)
    assert (diagnostic.code, found) == ("RS203", culprit)
    assert help is None or help in (diagnostic.help or "")


@pytest.mark.parametrize(
    ("value", "culprit"),
    [
        ("r +", "+"),
        ("(r", "("),
        ("r)", ")"),
        ("(r]", "]"),
        ("2r", "2r"),
        ("r s", "r s"),
        ("r − 1", "−"),
        ("r # 1", "#"),
        ("r \\ 1", "\\"),
        ("ｒ", "ｒ"),
        ("* 2", "*"),
        ("a + * b", "*"),
    ],
)
def test_what_is_no_expression(value: str, culprit: str) -> None:
    diagnostic, found = refusal(value)
    assert (diagnostic.code, found) == ("RS201", culprit)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("(" * 100 + "r" + ")" * 100, "RS215"),
        ("-" * 1900 + "r", "RS215"),
        ("r" + " + 1" * 400, "RS215"),
        ("r" + " < 1" * 2000, "RS215"),
        ("min(" * 80 + "r" + ")" * 80, "RS215"),
        ("9" * 1999, "RS205"),
        (str(1 << 62), "RS205"),
    ],
)
def test_hostile_text_is_refused(value: str, code: str) -> None:
    assert refusal(value)[0].code == code


def test_limits_themselves_are_allowed() -> None:
    assert parse_expression(text(str((1 << 62) - 1))) == Int(value=(1 << 62) - 1)
    assert show(parse_expression(text("r" + " + 1" * (MAX_DEPTH - 1)))).endswith("+ 1")
    assert parse_expression(text("r" + " " * (MAX_LENGTH + 10))) == Var(name="r")


def test_minus_and_digits_are_one_number() -> None:
    assert parse_expression(text("-5")) == Int(value=-5)
    assert parse_expression(text("--5")) == Neg(operand=Int(value=-5))
    assert parse_expression(text("3 - -5")) == Binary(op="-", left=Int(value=3), right=Int(value=-5))


def test_every_node_knows_its_place() -> None:
    whole = parse_expression(text("min(r, 12) + (s - 1) % N"))
    assert isinstance(whole, Binary) and isinstance(whole.right, Binary) and isinstance(whole.right.left, Binary)
    columns = [(e.span.column - START, e.span.end_column - START) for e in _spanned(whole)]
    assert columns == [(0, 24), (0, 10), (13, 24), (14, 19)]


def _spanned(whole: Binary) -> list[Expr]:
    assert isinstance(whole.right, Binary)
    return [whole, whole.left, whole.right, whole.right.left]


@pytest.mark.parametrize(
    "value", ["chunk[(r - s) % N, :]", "chunk[a:b, 1:, :2]", "chunk", "chunk[-1]", "chunk[min(r, 1)]", "chunk[:]"]
)
def test_chunks(value: str) -> None:
    assert show_chunk(parse_chunk(text(value))) == value


def test_places_inside_a_chunk() -> None:
    chunk = parse_chunk(text("chunk[r, 2:s]"))
    first, second = chunk.index
    assert isinstance(second, Slice) and first.span and second.span and second.stop and second.stop.span
    assert [s.column - START for s in (first.span, second.span, second.stop.span)] == [6, 9, 11]
    assert chunk.span is not None and chunk.span.end_column - START == 13


@pytest.mark.parametrize(
    ("value", "culprit"),
    [
        ("chunk(3)", "chunk(3)"),
        ("block[3]", "block"),
        ("r + 1", "r + 1"),
        ("chunk[0:4:2]", "2"),
        ("chunk[()]", "chunk[()]"),
        ("chunk[0][1]", "chunk[0][1]"),
        ("chunk[r / 2]", "/"),
        ("chunk[*r]", "*r"),
    ],
)
def test_what_is_no_chunk(value: str, culprit: str) -> None:
    diagnostic, found = refusal(value, parse_chunk)
    assert (diagnostic.code, found) == ("RS203", culprit)


def test_ranges() -> None:
    for value in ("s in 0 .. N - 2", "step in -1 .. min(a, b)"):
        assert show_range(parse_range(text(value))) == value
    tight = parse_range(text("s in 0..N"))
    assert show_range(tight) == "s in 0 .. N"
    assert tight.last.span is not None and tight.last.span.column - START == 8


@pytest.mark.parametrize(
    ("value", "code", "culprit"),
    [
        ("0 .. 3", "RS201", "0 .. 3"),
        ("s = 0 .. 3", "RS201", "s = 0 .. 3"),
        ("s in range(3)", "RS201", "range(3)"),
        ("s in 0 ..", "RS201", "."),
        ("s in .. 3", "RS201", "."),
        ("s in 0 .. 1 .. 2", "RS201", "0 .. 1 .. 2"),
        ("s in 0 .. N / 2", "RS203", "/"),
        ("", "RS201", ""),
    ],
)
def test_what_is_no_range(value: str, code: str, culprit: str) -> None:
    diagnostic, found = refusal(value, parse_range)
    assert diagnostic.code == code
    assert not culprit or found == culprit


@pytest.mark.parametrize(
    ("source", "line", "column", "end"),
    [
        ("a: r / 2", 1, 6, 7),
        ("a: 'r / 2'", 1, 7, 8),
        ('a: "r / 2"', 1, 7, 8),
        ('a: "r \\x2f 2"', 1, 4, 14),  # escapes: the whole scalar
        ("a: r\n  / 2", 1, 4, 6),  # folded: the whole scalar
        ("a:   r / 2   # why", 1, 8, 9),
        ("ä: r / 2", 1, 6, 7),
    ],
)
def test_places_in_the_file(source: str, line: int, column: int, end: int) -> None:
    tree = parse_tree(source, "f")
    assert isinstance(tree, Mapping)
    entry = tree.entries[0]
    assert isinstance(entry, Entry) and isinstance(entry.value, Scalar)
    with pytest.raises(DiagnosticError) as error:
        parse_expression(entry.value.text)
    primary = error.value.diagnostics[0].primary
    assert primary is not None
    assert (primary.span.line, primary.span.column, primary.span.end_column) == (line, column, end)
