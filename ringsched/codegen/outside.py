"""Names that the writer of a schedule has chosen, in the text of a module: they never meet the module's own.

`spelt` writes such a name in letters that no text of ours has, as many as before; Python takes them for identifiers.
So the text is put together, and the own part parsed, as if the names were others than any. `settled` then gives each
the name that its writer gave it, or, where the module itself uses that for something, the same with `_` behind it.
"""

from __future__ import annotations

import ast
import itertools
import re
import symtable
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from ringsched.expr import Lookup, Var
from ringsched.program.program import Loop, Program
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.schedule import Parameter, Range

_FIRST = 0x12000  # cuneiform, one sign for each letter of ASCII
_SPELT = re.compile(f"[{chr(_FIRST)}-{chr(_FIRST + 127)}]+")
Node = TypeVar("Node")


def spelt(name: str) -> str:
    """A name from outside, as it stands in text until that is settled."""
    return name if _SPELT.search(name) else "".join(chr(_FIRST + ord(letter)) for letter in name)


def plain(text: str) -> str:
    """Text with the names from outside as they were given."""
    return _SPELT.sub(lambda found: "".join(chr(ord(sign) - _FIRST) for sign in found[0]), text)


def quoted(text: str) -> str:
    """A text from outside as a part of one line of a docstring."""
    kept = (letter if letter.isprintable() and not _SPELT.match(letter) else ascii(letter)[1:-1] for letter in text)
    return "".join("\\\\" if letter == "\\" else '\\"' if letter == '"' else letter for letter in kept)


def settled(text: str, tree: ast.Module, others: frozenset[str] = frozenset()) -> str:
    """The text, all names from outside being what they will be.

    tree: of that part of the text which has such names; others: what the rest names and uses in the whole module.
    """
    parts = [_identifiers(statement) for statement in tree.body]
    bound = frozenset[str]().union(*map(_bound, tree.body))
    everywhere = others | {n for n in {*global_names(ast.unparse(tree)), *bound} if not _SPELT.search(n)}
    final: dict[str, str] = {}
    for name in sorted({found for part in parts for each in part for found in _SPELT.findall(each)}):
        near = [part for part in parts if any(name in _SPELT.findall(each) for each in part)]
        within = {each for part in near for each in part if name in _SPELT.findall(each)}
        taken = {_settled(each, final) for part in near for each in part - within}
        if within & bound:
            taken |= everywhere | {_settled(each, final) for each in bound - within}
        for count in itertools.count():
            candidate = plain(name) + "_" * count
            if not taken & {each.replace(name, candidate) for each in within}:
                break
        final[name] = candidate
    return _SPELT.sub(lambda found: final.get(found[0]) or plain(found[0]), text)


def _settled(name: str, final: Mapping[str, str]) -> str:
    return _SPELT.sub(lambda found: final.get(found[0], found[0]), name)


def function_name(source: str, name: str) -> str:
    """What the public function of a module is called, whose schedule is called `name`."""
    found = re.search(rf"^def ({re.escape(name)}_*)\(", source, re.MULTILINE)
    return name if found is None else found[1]


def _identifiers(tree: ast.AST) -> frozenset[str]:
    """All names that mean something in it: attributes and keywords of calls are names of something else."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.split(".")[0])
            case _:
                pass
    return frozenset(found)


def _bound(statement: ast.stmt) -> frozenset[str]:
    """What a statement of a module gives a name to in the module."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return frozenset({statement.name})
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return _identifiers(statement)
    stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return frozenset(node.id for node in stored)


def global_names(text: str) -> Iterator[str]:
    """What functions use that is not theirs: of the module, or of Python itself; and what stands at the top."""
    tables = [symtable.symtable(text, "module", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        yield from (s.get_name() for s in table.get_symbols() if s.is_global() or table.get_type() == "module")


# -- the same schedule and Program, names spelt


def names_of(flat: FlatSchedule) -> frozenset[str]:
    """Parameters and variables of loops, those of `each` among them."""
    transfers = [transfer for step in flat.steps for transfer in step]
    each = {t.statement.each.var for t in transfers if t.statement.each is not None}
    return frozenset(each.union(flat.env, *(t.env for t in transfers)))


def with_names_spelt(node: Node, names: Collection[str]) -> Node:
    """A FlatSchedule, a Program or a part of one, with these names spelt, and those of tables."""
    changed: Node = _Speller(frozenset(names)).of(node)
    return changed


class _Speller:
    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.known: dict[int, tuple[Any, Any]] = {}  # one statement stays one

    def name(self, name: str) -> str:
        return spelt(name) if name in self.names else name

    def of(self, node: Any) -> Any:
        if isinstance(node, tuple):
            return node if not node or isinstance(node[0], int) else tuple(map(self.of, node))
        if not is_dataclass(node) or isinstance(node, type):
            return node
        if id(node) not in self.known:
            self.known[id(node)] = (node, self._changed(node))
        return self.known[id(node)][1]

    def _changed(self, node: Any) -> Any:
        match node:
            case Var(name=name):
                return replace(node, name=self.name(name))
            case Lookup(name=name, index=index):
                return replace(node, name=spelt(name), index=self.of(index))
            case FlatSchedule():
                schedule = node.schedule
                schedule = replace(
                    schedule,
                    parameters=self.of(schedule.parameters),
                    chunks=self.of(schedule.chunks),
                    collective=self.of(schedule.collective),
                )
                return replace(node, schedule=schedule, env=self._env(node.env), steps=self.of(node.steps))
            case FlatTransfer():
                return replace(node, statement=self.of(node.statement), env=self._env(node.env))
            case Program():
                return replace(node, body=self.of(node.body))
        changes = {each.name: self.of(getattr(node, each.name)) for each in fields(node) if each.init}
        if isinstance(node, Range | Loop):
            changes["var"] = self.name(node.var)
        if isinstance(node, Parameter):
            changes["name"] = self.name(node.name)
        return replace(node, **changes)

    def _env(self, env: Mapping[str, int]) -> dict[str, int]:
        return {self.name(name): value for name, value in env.items()}
