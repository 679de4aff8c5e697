"""parse(print(x)) == x, for expressions and for whole schedules."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringsched.diagnostics import DiagnosticError, Span
from ringsched.expr import LIMIT, Binary, Compare, EvaluationError, Expr, Extremum, Int, Neg, Var, evaluate, show
from ringsched.schedule.loader import load, shipped_directory
from ringsched.schedule.notation import show_chunk, show_range
from ringsched.schedule.parse import parse_chunk, parse_expression, parse_range
from ringsched.schedule.printer import format_text, print_schedule
from ringsched.schedule.schedule import (
    Beside,
    ChunkRef,
    Collective,
    Item,
    Loop,
    Lowering,
    Parameter,
    Range,
    Rank,
    Schedule,
    Slice,
    Speed,
    Step,
    TopologySpec,
    Transfer,
    Use,
)
from ringsched.schedule.tree import Text

QUICK = settings(max_examples=150, deadline=None, derandomize=True)
NAMES = ("N", "M", "null", "true", "on", "_a1")


def text(value: str) -> Text:
    return Text(value=value, span=Span(path="f", line=1, column=1, end_line=1, end_column=len(value) + 1), column=1)


def expressions(names: tuple[str, ...], depth: int = 12) -> st.SearchStrategy[Expr]:
    leaves = st.integers(-LIMIT + 1, LIMIT - 1).map(lambda v: Int(value=v)) | st.integers(-3, 9).map(
        lambda v: Int(value=v)
    )
    if names:
        leaves = leaves | st.sampled_from(names).map(lambda n: Var(name=n))

    def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        links = st.lists(st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), inner), min_size=1, max_size=2)
        return st.one_of(
            # a minus before a plain number is part of the number
            inner.filter(lambda e: not (isinstance(e, Int) and e.value >= 0)).map(lambda e: Neg(operand=e)),
            st.builds(
                lambda op, a, b: Binary(op=op, left=a, right=b),
                st.sampled_from(["+", "-", "*", "//", "%", "^", "<<"]),
                inner,
                inner,
            ),
            st.builds(lambda a, rest: Compare(first=a, rest=tuple(rest)), inner, links),
            st.builds(
                lambda n, es: Extremum(name=n, operands=tuple(es)),
                st.sampled_from(["min", "max"]),
                st.lists(inner, min_size=1, max_size=3),
            ),
        )

    return st.recursive(leaves, grown, max_leaves=depth)


@QUICK
@given(expressions(("r", "N", "s")))
def test_expressions(expr: Expr) -> None:
    assert parse_expression(text(show(expr))) == expr


@QUICK
@given(expressions(("r", "N")), st.integers(0, 9), st.integers(1, 9))
def test_shown_expressions_mean_to_python_what_they_mean_here(expr: Expr, r: int, n: int) -> None:
    try:
        value = evaluate(expr, {"r": r, "N": n})
    except EvaluationError:
        return
    functions = {"min": lambda *values: min(values), "max": lambda *values: max(values)}
    assert eval(show(expr), functions, {"r": r, "N": n}) == value


@settings(QUICK, max_examples=400)
@given(st.text(alphabet="rsN019+-*/%^<>=!(),.[]:&|~'\"minax andor#\\{}", max_size=40))
def test_any_text_gives_an_expression_or_a_diagnostic(value: str) -> None:
    for parse in (parse_expression, parse_chunk, parse_range):
        try:
            parse(text(value))
        except DiagnosticError as error:
            (diagnostic,) = error.diagnostics
            assert diagnostic.primary is not None
            assert 1 <= diagnostic.primary.span.column <= max(len(value), 1) + 1


def indices(names: tuple[str, ...]) -> st.SearchStrategy[Expr | Slice]:
    expr = expressions(names, 4)
    return expr | st.builds(lambda a, b: Slice(start=a, stop=b), st.none() | expr, st.none() | expr)


def chunks(names: tuple[str, ...]) -> st.SearchStrategy[ChunkRef]:
    return st.lists(indices(names), max_size=3).map(lambda parts: ChunkRef(index=tuple(parts)))


@QUICK
@given(chunks(("r", "N")))
def test_chunks(chunk: ChunkRef) -> None:
    assert parse_chunk(text(show_chunk(chunk))) == chunk


@QUICK
@given(expressions(("N",)), expressions(("N",)))
def test_ranges(first: Expr, last: Expr) -> None:
    range = Range(var="s", first=first, last=last)
    assert parse_range(text(show_range(range))) == range


@st.composite
def transfers(draw: st.DrawFn, outer: tuple[str, ...], ranks: int) -> Transfer:
    coordinates = ("x", "y", "z")[:ranks] if ranks else ()
    everywhere = (*outer, "r", *coordinates)
    each = None
    if draw(st.booleans()):
        each = Range(var="d", first=draw(expressions(outer, 3)), last=draw(expressions(outer, 3)))
        everywhere = (*everywhere, "d")

    def rank(names: tuple[str, ...]) -> Rank:
        count = draw(st.sampled_from([1, max(ranks, 1)]))
        return Rank(coordinates=tuple(draw(expressions(names, 3)) for _ in range(count)))

    return Transfer(
        chunk=draw(chunks(everywhere)),
        to=rank(everywhere),
        op=draw(st.sampled_from(["copy", "reduce"])),
        when=tuple(draw(st.lists(expressions(everywhere, 3), max_size=2))),
        each=each,
        sender=rank(outer) if draw(st.booleans()) else None,
    )


@st.composite
def items(draw: st.DrawFn, outer: tuple[str, ...], ranks: int, inner: Schedule, depth: int = 0) -> Item:
    kind = draw(st.sampled_from(["step", "step", "loop", "use", "beside"] if depth < 3 else ["step"]))
    if kind == "step":
        return Step(transfers=tuple(draw(st.lists(transfers(outer, ranks), min_size=1, max_size=2))))
    if kind == "loop":
        var = f"s{depth}"
        span = Range(var=var, first=draw(expressions(outer, 3)), last=draw(expressions(outer, 3)))
        body = draw(st.lists(items((*outer, var), ranks, inner, depth + 1), max_size=3))
        return Loop(range=span, body=tuple(body))

    def use() -> Use:
        given_ = draw(st.booleans())
        arguments = [("N", draw(expressions(outer, 3)) if given_ else Var(name="N"))]
        if draw(st.booleans()):
            arguments.append(("K", draw(expressions(outer, 3))))
        on = draw(st.none() | chunks(outer))
        return Use(path="inner.yaml", schedule=inner, arguments=tuple(arguments), on=on)

    if kind == "use":
        return use()
    return Beside(uses=tuple(use() for _ in range(draw(st.integers(1, 2)))))


SPEEDS = st.builds(Speed, st.integers(1, 3), st.integers(0, 3)) | st.just(Speed())
TABLES = st.dictionaries(
    st.sampled_from(["far", "x0", "to_y1"]), st.lists(st.integers(-9, 1 << 40), min_size=1, max_size=60).map(tuple)
)


@st.composite
def schedules(draw: st.DrawFn, inner: Schedule) -> Schedule:
    more = draw(st.lists(st.sampled_from(NAMES[1:]), unique=True, max_size=3))
    names = ("N", *more)
    values = st.integers(-LIMIT + 1, LIMIT - 1) | st.integers(0, 9)
    kind = draw(st.sampled_from(["ring", "line", "mesh", "torus", "links"]))
    ranks = draw(st.integers(1, 3)) if kind in ("mesh", "torus") else 0
    if kind == "links":
        link = st.tuples(st.integers(0, 99), st.integers(0, 99)).filter(lambda pair: pair[0] != pair[1])
        links = tuple(draw(st.lists(link, min_size=1, max_size=40, unique_by=frozenset)))
        speeds = tuple(draw(st.lists(SPEEDS, min_size=len(links), max_size=len(links))))
        speeds = speeds if set(speeds) != {Speed()} else ()
        topology = TopologySpec(kind="links", links=links, speeds=speeds, routed=draw(st.booleans()))
    else:
        sides = tuple(draw(expressions(names, 3)) for _ in range(max(ranks, 1)))
        speeds = tuple(draw(st.lists(SPEEDS, min_size=len(sides), max_size=len(sides))))
        speeds = speeds if set(speeds) != {Speed()} else ()
        topology = TopologySpec(kind=kind, sides=sides, speeds=speeds, routed=draw(st.booleans()))
    collective = draw(
        st.sampled_from([Collective(kind="all_gather"), Collective(kind="all_to_all")])
        | st.builds(lambda e: Collective(kind="reduce", root=e), expressions(names, 3))
        | st.builds(lambda e: Collective(kind="permute", permutation=e), expressions((*names, "r"), 5))
    )
    return Schedule(
        name=draw(st.sampled_from(["s", "true", "null", "_1", "reduce_scatter"])),
        collective=collective,
        topology=topology,
        parameters=tuple(Parameter(name=n, value=draw(values)) for n in names),
        tables=tuple(draw(TABLES).items()),
        chunks=tuple(draw(st.lists(expressions(names, 3), min_size=1, max_size=3))),
        items=tuple(draw(st.lists(items(names, ranks, inner), max_size=4))),
        lowering=Lowering(
            slots=draw(st.none() | st.integers(1, 9)),
            memory=draw(st.sampled_from([None, "vmem", "hbm"])),
            unroll=draw(st.sampled_from([None, True, False])),
            barrier=draw(st.sampled_from([None, "writers", "none"])),
        ),
    )


INNER = """\
schedule: inner
collective: all_gather
topology: {ring: N}
params: {N: 4, K: 1, L: 0}
chunks: [N]
steps: []
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schedules")
    (folder / "inner.yaml").write_text(INNER)
    return folder


@settings(QUICK, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_schedules(folder: Path, data: st.DataObject) -> None:
    inner = load(folder / "inner.yaml")
    schedule = data.draw(schedules(inner))
    printed = print_schedule(schedule)
    path = str(folder / "outer.yaml")
    again = load(path, printed)
    assert again == schedule
    assert print_schedule(again) == printed
    assert format_text(printed, path) == printed


@settings(QUICK, max_examples=60)
@given(st.randoms(use_true_random=False), st.sampled_from(sorted(shipped_directory().glob("*.yaml"))))
def test_formatting_keeps_every_comment(random: Random, file: Path) -> None:
    """Comments above, behind and below lines, and blank lines, anywhere in a shipped schedule."""
    lines = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n")):
        if random.random() < 0.3:
            lines.append(random.choice(["", " " * random.randint(0, 9) + f"# above {number}"]))
        if line.strip() and "#" not in line and random.random() < 0.3:
            line += f"   # behind {number}"
        lines.append(line)
    source = "\n".join(lines)
    formatted = format_text(source, str(file))
    comments = [line[line.index("#") :].rstrip() for line in lines if "#" in line]
    assert sorted(row[row.index("#") :] for row in formatted.split("\n") if "#" in row) == sorted(comments)
    assert format_text(formatted, str(file)) == formatted
    assert load(file, formatted) == load(file, source)
