"""YAML text → a tree of mappings, sequences and scalars that know their places.

The tree is built from the parser's events rather than from a YAML document: anchors, aliases, tags and further
documents are refused where they stand, nothing recurses, and a scalar's type is decided here in one line for each type
(`yes`, `on`, `1:30` and `0x10` are text).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label, Span

MAX_BYTES = 1 << 20
MAX_NESTING = 50
MAX_KEYS = 200
MAX_NODES = 200_000

Plain = None | bool | int | str | list["Plain"] | dict[str, "Plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A scalar's characters and their place; `column` is that of the first one, None where they do not map 1:1."""

    value: str
    span: Span
    column: int | None

    def at(self, start: int, stop: int) -> Span:
        """The span of `value[start:stop]`; the whole scalar's where it was folded or escaped."""
        if self.column is None:
            return self.span
        column, end = self.column + start, self.column + max(stop, start + 1)
        return replace(self.span, column=column, end_line=self.span.line, end_column=end)

    def part(self, start: int, stop: int) -> Text:
        """`value[start:stop]` without the blanks around it."""
        piece = self.value[start:stop]
        start += len(piece) - len(piece.lstrip())
        piece = piece.strip()
        stop = start + len(piece)
        return Text(value=piece, span=self.at(start, stop), column=None if self.column is None else self.column + start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    text: Text
    quoted: bool

    @property
    def span(self) -> Span:
        return self.text.span


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    items: tuple[Tree, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    key: Scalar
    value: Tree

    @property
    def span(self) -> Span:
        """`key: value`, or the key alone where the value goes on over several lines."""
        start, end = self.key.span, self.value.span
        if not start.line == end.line == end.end_line:
            return start
        return replace(start, end_column=end.end_column)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    entries: tuple[Entry, ...]
    span: Span

    def entry(self, name: str) -> Entry | None:
        return next((e for e in self.entries if e.key.text.value == name), None)

    def __contains__(self, name: str) -> bool:
        return self.entry(name) is not None

    def __getitem__(self, name: str) -> Tree:
        entry = self.entry(name)
        if entry is None:
            raise KeyError(name)
        return entry.value


Tree = Scalar | Sequence | Mapping


def plain(tree: Tree) -> Plain:
    """The data without its places."""
    match tree:
        case Mapping():
            return {e.key.text.value: plain(e.value) for e in tree.entries}
        case Sequence():
            return [plain(item) for item in tree.items]
        case Scalar():
            return tree.text.value if tree.quoted else resolve(tree.text.value)


def resolve(text: str) -> bool | int | str | None:
    """The type of a scalar without quotes: null, true, false, a decimal integer, else text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text in ("true", "True", "TRUE")
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return int(text[:40])  # longer ones are far out of range anyway; Python refuses to convert huge ones
    return text


def fail(code: str, message: str, span: Span | None, label: str = "", help: str | None = None) -> DiagnosticError:
    """One finding as an exception."""
    primary = Label(span=span, text=label) if span else None
    return DiagnosticError([Diagnostic(code=code, message=message, primary=primary, help=help)])


def too_large(path: str, size: int) -> DiagnosticError:
    return fail(
        "RS104",
        f"{path} is too large for a schedule: {size:,} bytes; the limit is 1 MiB",
        None,
        help="write repeated steps with `for:`, or split the file and join the parts with `use:`",
    )


def decode(data: bytes, path: str) -> str:
    """The file's text, or RS103, RS104, RS105, RS106."""
    if len(data) > MAX_BYTES:
        raise too_large(path, len(data))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", errors="replace")
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise fail(
            "RS103",
            f"not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}",
            Span(path=path, line=line, column=column, end_line=line, end_column=column + 1),
            help="save the file as UTF-8",
        ) from None
    return check_text(text, path)


def check_text(text: str, path: str) -> str:
    """`text` without a byte order mark; RS105 where it is empty, RS106 and RS108 for characters."""
    text = text.removeprefix("\ufeff")
    bad = re.search(
        r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[\u2028\u2029]",
        text.replace("\r\n", " \n"),
    )
    if bad:
        name = {"\r": "a carriage return without a line feed"}.get(bad[0], f"character U+{ord(bad[0]):04X}")
        raise fail(
            "RS106",
            f"{name} does not belong in a schedule",
            _point(text, bad.start(), path),
            help="remove it; a schedule is printable text",
        )
    if not re.search(r"^[ \t]*[^\s#]", text, re.MULTILINE):
        raise fail(
            "RS105",
            f"{path} is empty",
            None,
            help="`ringsched init all_gather` starts a schedule; its first line is `schedule: NAME`",
        )
    tab = re.search(r"^[^#\n]*?(\t)", text, re.MULTILINE)
    if tab:
        where = "indentation" if not tab[0].strip() else "this line"
        raise fail(
            "RS108",
            "a tab, which YAML does not allow for indentation" if where == "indentation" else "a tab in a schedule",
            _point(text, tab.start(1), path),
            f"tab in the {where}" if where == "indentation" else "tab here",
            "use spaces",
        )
    return text


def _point(text: str, offset: int, path: str) -> Span:
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return Span(path=path, line=line, column=column, end_line=line, end_column=column + 1)


def parse_tree(text: str, path: str) -> Mapping:
    """The file's only document, which must be a mapping; raises `DiagnosticError` (RS105 … RS109, RS112, RS116 …)."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    text = check_text(text, path)
    try:
        tree = _Builder(path, text.split("\n")).build(YAML(typ="safe", pure=True).parse(text))
    except MarkedYAMLError as error:
        raise _yaml_error(error, text, path) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise fail("RS107", f"{path} is not YAML: {error}", None) from None
    if not isinstance(tree, Mapping):
        kind = "a list" if isinstance(tree, Sequence) else "a single value"
        first = replace(tree.span, end_line=tree.span.line, end_column=tree.span.column + 1)
        raise fail(
            "RS112",
            f"a schedule file is a mapping of keys to values, found {kind}",
            tree.span if isinstance(tree, Scalar) else first,
            help="start with `schedule: NAME`; `ringsched init all_gather` writes an example",
        )
    return tree


def _yaml_error(error: Any, text: str, path: str) -> DiagnosticError:
    mark = error.problem_mark or error.context_mark
    problem = str(error.problem or error.context or "cannot be read").split("\n")[0]
    lines = text.split("\n")
    line, column = (mark.line, mark.column) if mark else (0, 0)
    while line > 0 and (line >= len(lines) or (not lines[line].strip() and column == 0)):  # the end of the file
        line -= 1
        column = len(lines[line].rstrip())
    span = Span(path=path, line=line + 1, column=column + 1, end_line=line + 1, end_column=column + 2)
    context, start = str(error.context or ""), error.context_mark
    opened: Span | None = None
    if start is not None and start.line < len(lines):
        row, point = start.line + 1, start.column + 1
        opened = Span(path=path, line=row, column=point, end_line=row, end_column=point + 1)
    label, help = problem, None
    secondary: tuple[Label, ...] = ()
    at = lines[line][column : column + 1]
    if "mapping values are not allowed" in problem:
        label = "a second `:` in this entry, or a line that is indented too far"
        help = "put text that contains `: ` in quotes, or check the indentation"
    elif re.match(r"found character|found undefined", problem):
        label = f"a value cannot start with `{at}`" if at else problem
        help = "put the value in quotes"
    elif "a flow" in context and opened is not None:
        label = f"`{at}` cannot stand here" if at else "missing here"
        help = "an expression with brackets, commas or `: ` inside [ ] or { } needs quotes"
        if opened.line != span.line or not at:
            bracket = lines[opened.line - 1][opened.column - 1 : opened.column]
            secondary = (Label(span=span, text="noticed here"),) if opened.line != span.line else ()
            span, label, help = opened, f"`{bracket}` is never closed", f"add `{']' if bracket == '[' else '}'}`"
    elif "quoted scalar" in context and opened is not None:
        span, label, help = opened, "this quote is never closed", "add the closing quote"
    elif "expected <block end>" in problem and at in tuple("'\",[]{}"):
        label, help = f"`{at}` cannot stand here", "nothing may follow a closing quote or bracket"
    elif "expected <block end>" in problem and opened is not None:
        label, help = "does not line up", "entries of one mapping or list start in the same column"
        secondary = (Label(span=opened, text="the entries start here"),)
    elif "could not find expected ':'" in problem and opened is not None:
        words = lines[opened.line - 1].rstrip()
        span = replace(opened, end_column=max(len(words) + 1, opened.end_column))
        label, help = "no `:` here", "an entry is written `key: value`"
    diagnostic = Diagnostic(
        code="RS107",
        message="the file is not YAML",
        primary=Label(span=span, text=label),
        secondary=secondary,
        help=help,
    )
    return DiagnosticError([diagnostic])


class _Builder:
    """Builds the tree from events with a stack of its own."""

    def __init__(self, path: str, lines: list[str]) -> None:
        self.path = path
        self.lines = lines

    def build(self, events: Iterable[Any]) -> Tree:
        from ruamel.yaml import events as ev

        stack: list[tuple[Any, list[Tree]]] = []
        root: Tree | None = None
        for count, event in enumerate(events):
            if count > MAX_NODES:
                raise fail(
                    "RS104",
                    f"{self.path} holds more than {MAX_NODES:,} values",
                    None,
                    help="write repeated steps with `for:`",
                )
            span = self._span(event.start_mark, event.end_mark)
            node: Tree
            match event:
                case ev.DocumentStartEvent():
                    if root is not None:
                        raise fail(
                            "RS117",
                            "a second document in one file",
                            span,
                            "starts here",
                            "one file holds one schedule; put the other one in a file of its own",
                        )
                    if event.tags or event.version not in (None, (1, 2)):
                        raise fail("RS116", "YAML directives are not used in schedules", span, help="remove the line")
                    continue
                case ev.AliasEvent():
                    raise fail(
                        "RS116",
                        "a YAML alias",
                        span,
                        "refers to another node",
                        "write the value out; repeated steps are written with `for:` or `use:`",
                    )
                case ev.MappingStartEvent() | ev.SequenceStartEvent():
                    self._check_plain(event, span)
                    if len(stack) >= MAX_NESTING:
                        raise fail(
                            "RS118",
                            f"nested more than {MAX_NESTING} deep",
                            span,
                            help="move inner steps to a file of their own and `use:` it",
                        )
                    stack.append((event, []))
                    continue
                case ev.ScalarEvent():
                    self._check_plain(event, span)
                    node = self._scalar(event, span)
                case ev.MappingEndEvent() | ev.SequenceEndEvent():
                    start, children = stack.pop()
                    node = self._collection(start, event, children)
                case _:
                    continue
            if not stack:
                root = node
                continue
            parent, children = stack[-1]
            if isinstance(parent, ev.MappingStartEvent):
                node = self._in_mapping(node, children)
            children.append(node)
        if root is None:
            raise fail("RS105", f"{self.path} is empty", None, help="`ringsched init all_gather` starts a schedule")
        return root

    def _span(self, start: Any, end: Any) -> Span:
        return Span(
            path=self.path,
            line=start.line + 1,
            column=start.column + 1,
            end_line=end.line + 1,
            end_column=end.column + 1,
        )

    def _check_plain(self, event: Any, span: Span) -> None:
        if event.anchor is None and event.tag is None:
            return
        what, width = ("a YAML tag", 1) if event.tag else ("a YAML anchor", len(event.anchor or "") + 1)
        row = self.lines[span.line - 1]
        if event.tag:
            found = re.match(r"\S+", row[span.column - 1 :])
            width = len(found[0]) if found else 1
        point = replace(span, end_line=span.line, end_column=span.column + width)
        raise fail("RS116", f"{what} is not used in schedules", point, help="write the plain value")

    def _scalar(self, event: Any, span: Span) -> Scalar:
        value: str = event.value
        column: int | None = None
        if event.style in (None, "") and value == "":
            span = replace(span, end_line=span.line, end_column=span.column)
        if span.line == span.end_line:
            raw = self.lines[span.line - 1][span.column - 1 : span.end_column - 1]
            if raw == value:
                column = span.column
            elif event.style in ("'", '"') and raw[1:-1] == value:
                column = span.column + 1
        return Scalar(text=Text(value=value, span=span, column=column), quoted=event.style not in (None, ""))

    def _in_mapping(self, node: Tree, before: list[Tree]) -> Tree:
        """Keys must be single values that are not there yet; an empty value gets the place behind its key."""
        if len(before) % 2:
            key = before[-1]
            if isinstance(node, Scalar) and not node.quoted and node.text.value == "":
                end = replace(key.span, column=key.span.end_column + 1, end_column=key.span.end_column + 2)
                return Scalar(text=Text(value="", span=end, column=end.column), quoted=False)
            return node
        if not isinstance(node, Scalar):
            raise fail("RS112", "a key must be a single word", node.span, help="put quotes around a value in brackets")
        if len(before) >= 2 * MAX_KEYS:
            raise fail("RS118", f"a mapping of more than {MAX_KEYS} keys", node.span, help="split it up")
        for other in before[::2]:
            if isinstance(other, Scalar) and other.text.value == node.text.value:
                diagnostic = Diagnostic(
                    code="RS109",
                    message=f"the key `{_short(node.text.value)}` is given twice",
                    primary=Label(span=node.span, text="given again"),
                    secondary=(Label(span=other.span, text="first given here"),),
                    help="keep one of the two"
                    if node.text.value != "send"
                    else "start every transfer with a dash of its own: `- send: …`",
                )
                raise DiagnosticError([diagnostic])
        return node

    def _collection(self, start: Any, end: Any, children: list[Tree]) -> Tree:
        from ruamel.yaml import events as ev

        span = self._span(start.start_mark, end.end_mark)
        if start.flow_style:
            _check_commas(children)
        elif children:
            first, last = children[0].span, children[-1].span
            column = first.column if isinstance(start, ev.MappingStartEvent) else start.start_mark.column + 1
            span = replace(span, line=first.line, column=column, end_line=last.end_line, end_column=last.end_column)
        if isinstance(start, ev.SequenceStartEvent):
            return Sequence(items=tuple(children), span=span)
        pairs: Iterator[Tree] = iter(children)
        entries = [Entry(key=key, value=next(pairs)) for key in pairs if isinstance(key, Scalar)]
        return Mapping(entries=tuple(entries), span=span)


def _check_commas(children: list[Tree]) -> None:
    """In `[ ]` and `{ }` YAML splits `min(a, b)` at its comma; better said here than as two strange expressions."""
    texts = [c.text.value if isinstance(c, Scalar) and not c.quoted else "" for c in children]
    for number, text in enumerate(texts):
        if text.count("(") <= text.count(")"):
            continue
        for stop in range(number + 1, len(texts)):
            if texts[stop].count(")") > texts[stop].count("("):
                whole = ", ".join(part for part in texts[number : stop + 1] if part)
                first, last = children[number].span, children[stop].span
                span = replace(first, end_line=last.end_line, end_column=last.end_column)
                raise fail(
                    "RS107",
                    "a comma splits the expression",
                    span,
                    "inside [ ] and { } a comma ends the value",
                    f'put the expression in quotes: "{_short(whole)}"',
                )


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
