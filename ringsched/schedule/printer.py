"""Schedule → canonical YAML (`print_schedule`), and YAML → the same YAML in canonical layout (`format_text`).

load(print_schedule(s)) == s          print_schedule(load(print_schedule(s))) == print_schedule(s)
format_text(format_text(t)) == format_text(t), and it says the same as t, every comment kept
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Mapping as Table
from dataclasses import replace
from typing import assert_never, cast

from ringsched.diagnostics import Collector, DiagnosticError, InternalError, Span
from ringsched.expr import Expr, Int, Var, show
from ringsched.schedule.layout import Comment, emit
from ringsched.schedule.notation import show_chunk, show_range
from ringsched.schedule.parse import parse_chunk, parse_expression, parse_range
from ringsched.schedule.schedule import (
    Beside,
    Chain,
    Collective,
    Item,
    Link,
    Loop,
    Lowering,
    Rank,
    Schedule,
    Speed,
    Step,
    Synth,
    TopologySpec,
    Transfer,
    Use,
)
from ringsched.schedule.shape import check_shape
from ringsched.schedule.tree import Entry, Mapping, Scalar, Sequence, Text, Tree, parse_tree, plain, resolve
from ringsched.schedule.vocabulary import COORDINATES, LOWERING_KEYS, SPEEDS, item_kind

_NOWHERE = Span(path="", line=0, column=0, end_line=0, end_column=0)


# -- Schedule → tree ------------------------------------------------------------------------------------------------


def print_schedule(schedule: Schedule | Chain) -> str:
    """The file that loads as `schedule`; the same bytes for equal schedules."""
    entries: dict[str, Tree] = {"schedule": _text(schedule.name)}
    if schedule.description:
        entries["description"] = _text(schedule.description)
    if isinstance(schedule, Chain):
        entries["topology"] = _topology(schedule.topology)
        if schedule.parameters:
            entries["params"] = _mapping({p.name: _literal(str(p.value)) for p in schedule.parameters})
        if schedule.activation != "sharded":
            entries["activation"] = _text(schedule.activation)
        entries["chain"] = _sequence(_link(link) for link in schedule.links)
        return emit(_mapping(entries))
    entries["collective"] = _collective(schedule.collective)
    entries["topology"] = _topology(schedule.topology)
    if schedule.parameters:
        entries["params"] = _mapping({p.name: _literal(str(p.value)) for p in schedule.parameters})
    if schedule.tables:
        lists = {name: _sequence(_literal(str(value)) for value in table) for name, table in schedule.tables}
        entries["tables"] = _mapping(lists)
    entries["chunks"] = _sequence(_expression(size) for size in schedule.chunks)
    if schedule.compute is not None:
        words: dict[str, str] = {"multiply": schedule.compute.moment, "shard": schedule.compute.shard}
        if schedule.compute.overlap != "full":
            words["overlap"] = schedule.compute.overlap
        entries["compute"] = _mapping({key: _text(word) for key, word in words.items()})
    entries["steps"] = _sequence(_item(item) for item in schedule.items)
    lowering = _lowering(schedule.lowering)
    if lowering:
        entries["lowering"] = _mapping(lowering)
    return emit(_mapping(entries))


def _link(link: Link) -> Tree:
    entries: dict[str, Tree] = {"use": _text(link.path)}
    if link.epilogue is not None:
        entries["epilogue"] = _text(link.epilogue)
    return _mapping(entries)


def _collective(collective: Collective) -> Tree:
    if collective.permutation is not None:
        return _mapping({collective.kind: _expression(collective.permutation)})
    if collective.root is None or collective.root == Int(value=0):
        return _text(collective.kind)
    return _mapping({collective.kind: _expression(collective.root)})


def _topology(topology: TopologySpec) -> Tree:
    if topology.kind == "links":
        speeds = topology.speeds or (Speed(),) * len(topology.links)
        links = {"links": _sequence(map(_topology_link, topology.links, speeds))}
        return _mapping({**links, **({"routed": _literal("true")} if topology.routed else {})})
    entries: dict[str, Tree] = {topology.kind: _expression(topology.sides[0])}
    if topology.kind in ("mesh", "torus"):
        entries[topology.kind] = _sequence(_expression(side) for side in topology.sides)
    if topology.twist:
        rows = {COORDINATES[axis]: _sequence(map(_expression, shifts)) for axis, shifts in topology.twist}
        entries["twist"] = _mapping(rows)
    for name in SPEEDS:
        values = [getattr(speed, name) for speed in topology.speeds]
        if set(values) - {1}:
            same = len(set(values)) == 1
            entries[name] = _literal(str(values[0])) if same else _sequence(_literal(str(v)) for v in values)
    if topology.routed:
        entries["routed"] = _literal("true")
    return _mapping(entries)


def _topology_link(link: tuple[int, int], speed: Speed) -> Tree:
    pair = _sequence(_literal(str(rank)) for rank in link)
    special = {name: _literal(str(getattr(speed, name))) for name in SPEEDS if getattr(speed, name) != 1}
    return _mapping({"between": pair, **special}) if special else pair


def _lowering(lowering: Lowering) -> dict[str, Tree]:
    wishes = {key: getattr(lowering, key) for key in LOWERING_KEYS}
    words = {True: "true", False: "false"}
    return {
        key: _literal(words[value] if isinstance(value, bool) else str(value))
        for key, value in wishes.items()
        if value is not None
    }


def _item(item: Item) -> Tree:
    match item:
        case Step():
            return _transfer(item.transfers[0]) if len(item.transfers) == 1 else _step(item)
        case Loop():
            return _mapping({"for": _text(show_range(item.range)), "do": _body(item.body)})
        case Use():
            return _use(item)
        case Beside():
            return _mapping({"beside": _sequence(_use(use) for use in item.uses)})
        case Synth():
            return _mapping({"synth": _text(item.kind)})
        case _:
            assert_never(item)


def _step(step: Step) -> Tree:
    return _mapping({"step": _sequence(_transfer(t) for t in step.transfers)})


def _body(items: tuple[Item, ...]) -> Tree:
    """A `do:` that lists transfers only is one step; a second such step therefore needs `step:`."""
    if len(items) == 1 and isinstance(items[0], Step):
        return _sequence(_transfer(t) for t in items[0].transfers)
    bare = all(isinstance(item, Step) and len(item.transfers) == 1 for item in items)
    return _sequence(_step(item) if bare and isinstance(item, Step) else _item(item) for item in items)


def _transfer(transfer: Transfer) -> Tree:
    entries: dict[str, Tree] = {"send": _text(show_chunk(transfer.chunk))}
    if transfer.each is not None:
        entries["each"] = _text(show_range(transfer.each))
    if transfer.sender is not None:
        entries["from"] = _rank(transfer.sender)
    entries["to"] = _rank(transfer.to)
    if transfer.op != "copy":
        entries["op"] = _text(transfer.op)
    if transfer.when:
        parts = [_expression(condition) for condition in transfer.when]
        entries["when"] = parts[0] if len(parts) == 1 else _sequence(parts)
    return _mapping(entries)


def _rank(rank: Rank) -> Tree:
    parts = [_expression(c) for c in rank.coordinates]
    return parts[0] if len(parts) == 1 else _sequence(parts)


def _use(use: Use) -> Tree:
    entries: dict[str, Tree] = {"use": _text(use.path)}
    given = {name: _expression(expr) for name, expr in use.arguments if expr != Var(name=name)}
    if given:
        entries["with"] = _mapping(given)
    if use.on is not None:
        entries["on"] = _text(show_chunk(use.on))
    return _mapping(entries)


def _mapping(entries: Table[str, Tree]) -> Mapping:
    return Mapping(entries=tuple(Entry(key=_text(k), value=v) for k, v in entries.items()), span=_NOWHERE)


def _sequence(items: Iterable[Tree]) -> Sequence:
    return Sequence(items=tuple(items), span=_NOWHERE)


def _text(value: str) -> Scalar:
    return Scalar(text=Text(value=value, span=_NOWHERE, column=None), quoted=True)


def _literal(value: str) -> Scalar:
    """A number or a truth value."""
    return replace(_text(value), quoted=False)


def _expression(expr: Expr) -> Scalar:
    return _written(show(expr), _NOWHERE)


def _written(text: str, span: Span) -> Scalar:
    """An expression's text; one that YAML would take for a truth value or null (names are names) keeps its quotes."""
    quoted = not isinstance(resolve(text), int) or isinstance(resolve(text), bool)
    return Scalar(text=Text(value=text, span=span, column=None), quoted=quoted)


# -- text → text ----------------------------------------------------------------------------------------------------


def format_text(text: str, path: str) -> str:
    """`text` in canonical layout, keys in their order, comments kept; raises `DiagnosticError` if it is no schedule."""
    tree = parse_tree(text, path)
    check_shape(tree)
    normal = _Formatter().file(tree)
    comments = _comments(text.removeprefix("\ufeff"), tree)
    result = emit(normal, comments)
    again = parse_tree(result, path)
    kept = [c.text for c in _comments(result, again) if c.text]
    if plain(again) != plain(normal) or sorted(kept) != sorted(c.text for c in comments if c.text):
        raise InternalError(f"formatting {path} would change what it says, or lose a comment; the file is left alone")
    return result


class _Formatter:
    """Spaces expressions as the printer does; everything else stays."""

    def __init__(self) -> None:
        self.found = Collector()
        self.tables: dict[str, tuple[int, ...]] = {}

    def file(self, tree: Mapping) -> Mapping:
        tables = plain(tree["tables"]) if "tables" in tree else {}
        assert isinstance(tables, dict)
        self.tables = {name: cast("tuple[int, ...]", tuple(cast("list[int]", t))) for name, t in tables.items()}

        def change(key: str, node: Tree) -> Tree:
            match key, node:
                case "topology" | "collective" | "chunks", Mapping() | Sequence():
                    return self._everywhere(node)
                case "steps", Sequence():
                    return replace(node, items=tuple(self._item(item) for item in node.items))
                case _:
                    return node

        result = _changed(tree, change)
        self.found.check()
        return result

    def _item(self, node: Tree) -> Tree:
        if not isinstance(node, Mapping):
            return node
        kind = item_kind(plain(node))

        def change(key: str, value: Tree) -> Tree:
            match key, value:
                case "do" | "step" | "beside", Sequence():
                    return replace(value, items=tuple(self._item(item) for item in value.items))
                case "send" | "on", Scalar():
                    return self._scalar(value, lambda text: show_chunk(parse_chunk(text, self.tables)))
                case "for" | "each", Scalar():
                    return self._scalar(value, lambda text: show_range(parse_range(text, self.tables)))
                case "to" | "from" | "when" | "with", _:
                    return self._everywhere(value)
                case _:
                    return value

        return _changed(node, change) if kind else node

    def _everywhere(self, node: Tree) -> Tree:
        match node:
            case Mapping():
                return _changed(node, lambda _, value: self._everywhere(value))
            case Sequence():
                return replace(node, items=tuple(self._everywhere(item) for item in node.items))
            case Scalar():
                return self._scalar(node, lambda text: show(parse_expression(text, self.tables)))

    def _scalar(self, node: Scalar, normalise: Callable[[Text], str]) -> Scalar:
        if plain(node) is None or isinstance(plain(node), bool):
            return node
        try:
            return _written(normalise(node.text), node.span)
        except DiagnosticError as error:
            self.found.diagnostics.extend(error.diagnostics)
            return node


def _changed(node: Mapping, change: Callable[[str, Tree], Tree]) -> Mapping:
    entries = tuple(replace(e, value=change(e.key.text.value, e.value)) for e in node.entries)
    return replace(node, entries=entries)


def _comments(text: str, tree: Tree) -> tuple[Comment, ...]:
    """Every comment and blank line of `text`, in order; a `#` inside a scalar is none."""
    lines = text.split("\n")
    covered: dict[int, list[tuple[int, int]]] = {}
    for node in _scalars(tree):
        span = node.span
        block = lines[span.line - 1][span.column - 1 : span.column] in ("|", ">") and node.quoted
        for line in range(span.line, span.end_line + 1):
            start = span.column - 1 if line == span.line else 0
            stop = span.end_column - 1 if line == span.end_line else 1 << 30
            if block and line == span.line:
                stop = start + 1  # the header of a block scalar may have a comment behind it
            covered.setdefault(line, []).append((start, stop))
    found = []
    for number, row in enumerate(lines, 1):
        spans = covered.get(number, [])
        if not row.strip() and number < len(lines) and not spans:
            found.append(Comment(line=number, text="", alone=True))
        for column, character in enumerate(row):
            if character != "#" or (column and not row[column - 1].isspace()):
                continue
            if not any(start <= column < stop for start, stop in spans):
                found.append(Comment(line=number, text=row[column:].rstrip(), alone=not row[:column].strip()))
                break
    return tuple(found)


def _scalars(tree: Tree) -> list[Scalar]:
    match tree:
        case Scalar():
            return [tree]
        case Sequence():
            return [s for item in tree.items for s in _scalars(item)]
        case Mapping():
            return [s for e in tree.entries for s in (e.key, *_scalars(e.value))]
