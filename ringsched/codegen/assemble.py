"""The own part of a module and the files of its fixed part → its text: what can be reached, and the imports for that.

A file of the fixed part is a module of its own, so that it is formatted, checked and read like other code; what comes
after its marker is copied, but for the definitions that nothing in this module uses.
"""

from __future__ import annotations

import ast
import functools
import importlib.resources
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ringsched.codegen.outside import global_names, quoted, settled
from ringsched.lines import paragraph

MARKER = "# ==== marker ====\n"

# In the order in which a formatter has them. The names that a line brings, and the line.
_IMPORTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("copy",), "import copy"),
    (("dataclasses",), "import dataclasses"),
    (("functools",), "import functools"),
    (("itertools",), "import itertools"),
    (("logging",), "import logging"),
    (("math",), "import math"),
    (("operator",), "import operator"),
    (("os",), "import os"),
    (("zlib",), "import zlib"),
    (("Callable", "Hashable", "Sequence"), "from collections.abc import "),
    (("Any",), "from typing import "),
    ((), ""),
    (("jax",), "import jax"),
    (("jnp",), "import jax.numpy as jnp"),
    (("lax",), "from jax import lax"),
    (("pl",), "from jax.experimental import pallas as pl"),
    (("pltpu",), "from jax.experimental.pallas import tpu as pltpu"),
    (("Primitive", "jaxpr_as_fun"), "from jax.extend.core import "),
    (("ad", "batching", "mlir"), "from jax.interpreters import "),
    (("NamedSharding",), "from jax.sharding import NamedSharding"),
    (("P",), "from jax.sharding import PartitionSpec as P"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A statement of the fixed part, with what stands before it. `brings`: names; none: it is there for its effect.

    uses: names of any kind; globals: those that are not its own.
    """

    text: str
    brings: frozenset[str]
    uses: frozenset[str]
    globals: frozenset[str]


_Section = tuple[str, tuple[_Piece, ...]]  # a title, and what comes under it


def header(name: str, heading: str, facts: list[tuple[str, str]], operands: str) -> list[str]:
    """The docstring of a module, of which `facts` are a table: text from outside, names of files among it."""
    lines: list[str] = ['"""' + heading, ""]
    width = max(len(key) for key, _ in facts)
    for key, fact in facts:
        value = quoted(fact)
        first, *rest = paragraph(value) if len(value) > 60 else [value]
        lines.append(f"{key:<{width}}  {first}")
        lines.extend(f"{'':<{width}}  {line}" for line in rest)
    return [*lines, "", f'Inside jax.shard_map: y = {name}({operands}, axis_name="i")', '"""', ""]


def module_of(docstring: Sequence[str], own: str, fixed: Iterable[tuple[str, str]]) -> str:
    """fixed: packages and names of files, in their order in the module. Names from outside are settled here."""
    tree = ast.parse(own)
    text, pieces = _reachable(tree, [section for file in fixed for section in _sections(*file)])
    used = _used(tree).union(*(piece.uses for piece in pieces))
    theirs = frozenset[str]().union(*(piece.globals | piece.brings for piece in pieces))
    return settled("\n".join([*docstring, *_imports(used), "", f"{own}\n\n{text}"]), tree, theirs)


def _imports(used: frozenset[str]) -> Iterator[str]:
    for names, line in _IMPORTS:
        some = [name for name in names if name in used]
        if not names:
            yield ""
        elif some:
            yield line + ", ".join(some) if line.endswith("import ") else line


def _reachable(own: ast.Module, sections: Sequence[_Section]) -> tuple[str, list[_Piece]]:
    """Of the sections, what the own part uses, and what that uses."""
    pieces = [piece for _, some in sections for piece in some]
    known = frozenset().union(*(piece.brings for piece in pieces))
    wanted = set(_used(own) & known)
    kept: set[int] = set()
    while True:
        more = [
            number
            for number, piece in enumerate(pieces)
            if number not in kept and (piece.brings & wanted or (not piece.brings and piece.uses & wanted))
        ]
        if not more:
            break
        kept.update(more)
        for number in more:
            wanted |= (pieces[number].uses & known) | pieces[number].brings
    numbers = itertools.count()
    lines: list[str] = []
    for title, some in sections:
        texts, apart = list[str](), 0  # how many lines apart, if what is left out stood there
        for piece in some:
            blank = len(piece.text) - len(piece.text.lstrip("\n"))
            apart = max(apart, blank)
            if next(numbers) in kept:
                texts.append("\n" * (apart - blank) + piece.text)
                apart = 0
        if texts:
            lines.append(title + "".join(texts))
    return _apart("".join(lines)), [pieces[number] for number in sorted(kept)]


def _apart(text: str) -> str:
    """At most two blank lines in a row, and none at either end."""
    while "\n\n\n\n" in text:
        text = text.replace("\n\n\n\n", "\n\n\n")
    return text.strip("\n") + "\n"


@functools.cache
def _sections(package: str, name: str) -> tuple[_Section, ...]:
    """Comments of a file that stand alone, with the statements up to the next one."""
    text = importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return tuple((title, tuple(pieces)) for title, pieces in _cut(text.split(MARKER, 1)[1]))


def _cut(part: str) -> Iterator[tuple[str, list[_Piece]]]:
    lines = part.splitlines(keepends=True)
    title, pieces, end = "", list[_Piece](), 0
    for node in ast.parse(part).body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        before = "".join(lines[end:start])
        comment = before.strip("\n")
        alone = bool(comment) and before.endswith("\n\n")
        if alone:
            if pieces:
                yield title, pieces
            title, pieces, before = f"\n\n\n{comment}\n\n\n", [], ""
        end = node.end_lineno or node.lineno
        text = "".join(lines[start:end])
        theirs = frozenset(global_names(text))
        pieces.append(_Piece(text=before + text, brings=_brought(node), uses=_used(node), globals=theirs))
    yield title, pieces


def _brought(node: ast.stmt) -> frozenset[str]:
    match node:
        case ast.FunctionDef(name=name, decorator_list=decorators):
            # A decorator that is an attribute of something here registers the function there.
            here = [d for d in decorators if isinstance(d, ast.Attribute) and _is_private(d.value)]
            return frozenset() if here else frozenset({name})
        case ast.ClassDef(name=name):
            return frozenset({name})
        case ast.Assign(targets=targets):
            return frozenset(t.id for t in targets if isinstance(t, ast.Name))
        case _:
            return frozenset()


def _is_private(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith("_")


def _used(node: ast.AST) -> frozenset[str]:
    return frozenset(inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))
