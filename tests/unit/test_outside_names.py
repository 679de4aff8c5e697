"""Whatever a schedule's writer calls things, and whatever the file is called, the module means the same."""

import ast
import builtins
import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringsched.auditing.places import sub_jaxprs
from ringsched.codegen.outside import function_name, plain, quoted, settled, spelt
from ringsched.collective import as_module
from ringsched.diagnostics import DiagnosticError
from ringsched.pipeline import compile_portable, compile_schedule, open_schedule

# A loop that stays one, `each`, a parameter and a table: {0} … {4} are names.
TEXT = """schedule: {0}
collective: all_gather
topology: {{ring: 6}}
params: {{{1}: 2}}
tables: {{{2}: [0, 1, 2, 3, 4]}}
chunks: [6, {1}]
steps:
  - for: {3} in 0 .. 4
    do:
      - send: chunk[(r - {2}[{3}]) % 6, {4}]
        each: {4} in 0 .. {1} - 1
        to: r + 1
"""
NEUTRAL = ("neutral", "halves", "hops", "turn_number", "half_number")
KNOWN = [
    "jax",
    "lax",
    "jnp",
    "pl",
    "N",
    "RANKS",
    "CHUNKS",
    "range",
    "len",
    "isinstance",
    "_kernel",
    "_collective",
    "held",
]


def sources(tmp_path: Path, names: tuple[str, ...]) -> list[str]:
    path = tmp_path / "names.yaml"
    path.write_text(TEXT.format(*names), encoding="utf-8")
    schedule = open_schedule(path)
    return [compile_schedule(schedule).source, compile_portable(schedule).source]


def traced(source: str, name: str) -> list[str]:
    """What the function is to jax: operations and types, with those that they carry."""
    function = getattr(as_module(source, name), function_name(source, name))
    mesh = jax.sharding.AbstractMesh((6,), ("i",))
    split = jax.sharding.PartitionSpec("i")
    options = {"interpret": False} if "interpret" in inspect.signature(function).parameters else {}
    mapped = jax.shard_map(
        lambda x: function(x, "i", **options), mesh=mesh, in_specs=split, out_specs=split, check_vma=False
    )
    return list(outline(jax.make_jaxpr(mapped)(jax.ShapeDtypeStruct((96, 128), "float32")).jaxpr))


def outline(jaxpr: Any) -> Iterator[str]:
    for eqn in jaxpr.eqns:
        yield f"{eqn.primitive.name} {[str(v.aval) for v in eqn.invars]} {[str(v.aval) for v in eqn.outvars]}"
        yield from (str(v.val) for v in eqn.invars if hasattr(v, "val"))
        for inner in sub_jaxprs(eqn):
            yield from outline(inner)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    found = sources(tmp_path_factory.mktemp("neutral"), NEUTRAL)
    return [traced(source, NEUTRAL[0]) for source in found]


def own_names(tmp_path: Path) -> list[str]:
    """All that the modules have a name for."""
    found = set()
    for source in sources(tmp_path, NEUTRAL):
        for node in ast.walk(ast.parse(source)):
            found |= {
                getattr(node, key) for key in ("id", "arg", "name", "attr") if isinstance(getattr(node, key, None), str)
            }
    return sorted(name for name in found if name.isidentifier())


def means_the_same(tmp_path: Path, names: tuple[str, ...], expected: list[list[str]]) -> None:
    try:
        found = sources(tmp_path, names)
    except DiagnosticError as error:  # a coordinate, `min`, …: refused, with a message
        assert {each.code for each in error.diagnostics} <= {"RS115", "RS203"}, error
        return
    for source, meaning in zip(found, expected, strict=True):
        assert not any("\U00012000" <= letter <= "\U0001207f" for letter in source)
        assert traced(source, names[0]) == meaning


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("place", range(5), ids=["schedule", "parameter", "table", "loop", "each"])
def test_names_that_modules_use(name: str, place: int, tmp_path: Path, expected: list[list[str]]) -> None:
    names = list(NEUTRAL)
    names[place] = name
    means_the_same(tmp_path, tuple(names), expected)


def test_a_sample_of_all_names(tmp_path: Path, expected: list[list[str]]) -> None:
    known = own_names(tmp_path) + [name for name in dir(builtins) if name[0].islower()]
    rng = random.Random(0)
    for _ in range(12):
        means_the_same(tmp_path, tuple(rng.sample(known, 5)), expected)


@pytest.mark.slow
def test_all_names(tmp_path: Path, expected: list[list[str]]) -> None:
    known = own_names(tmp_path) + [name for name in dir(builtins) if name[0].islower()]
    for number, name in enumerate(known):
        names = list(NEUTRAL)
        names[number % 5] = name
        means_the_same(tmp_path, tuple(names), expected)


@pytest.mark.parametrize(
    "name",
    [
        'x""";__import__("os").mkdir("D");"""y.yaml',
        "back\\slash.yaml",
        "new\nline.yaml",
        "\N{RIGHT-TO-LEFT OVERRIDE}lmay.yaml",
        "form\ffeed\x85.yaml",
        "quote'.yaml",
        'ends with ".yaml',
        "\U00012073\U00012000.yaml",
        "ends with \\.yaml",
    ],
)
def test_names_of_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_text(TEXT.format(*NEUTRAL), encoding="utf-8")
    schedule = open_schedule(path)
    for source in (compile_schedule(schedule).source, compile_portable(schedule).source):
        tree = ast.parse(source)
        docstring = ast.get_docstring(tree, clean=False)
        assert docstring is not None and docstring.startswith("All-gather over a ring of 6 ranks.")
        plainly = source.replace(source[: source.index("\nimport ")], '"""…"""\n', 1)
        assert [type(node) for node in tree.body] == [type(node) for node in ast.parse(plainly).body]
        as_module(source, "neutral")
    assert [each.name for each in tmp_path.iterdir()] == [name]


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_is_one_part_of_one_line(text: str) -> None:
    line = quoted(text)
    assert line.isprintable() and "\n" not in line
    value = ast.literal_eval(f'"""{line} """')
    assert value == f"{text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')} " or "\\u" in repr(text)


def test_a_name_is_kept_where_nothing_else_has_it() -> None:
    name = spelt("total")
    text = f"import jax\ndef f(x):\n    {name} = x\n    return {name}\ndef g(total):\n    return total\n"
    assert settled(text, ast.parse(text)) == plain(text)


def test_names_that_meet_one_of_ours() -> None:
    name, other = spelt("jax"), spelt("jax_")
    text = f"import jax\ndef {name}({other}):\n    return jax.{name}({other}, 'the {name}')\n"
    assert settled(text, ast.parse(text)) == "import jax\ndef jax_(jax__):\n    return jax.jax_(jax__, 'the jax_')\n"
