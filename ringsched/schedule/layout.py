"""Tree → YAML text in the one layout that the printer and the formatter share.

Steps are block style, everything small is flow style on one line (`topology: {ring: N}`), and a scalar has quotes only
where YAML needs them. Comments of a source file keep their order: a full-line comment goes above the entry that
followed it, one behind an entry stays behind it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ringsched.schedule.tree import Mapping, Scalar, Sequence, Tree, resolve

WIDTH = 100
_BLOCK_KEYS = frozenset({"steps", "do", "step", "beside"})
# a plain scalar: starts with a letter, digit, dot, slash, underscore, parenthesis or a minus sign that is no dash
_PLAIN = re.compile(r"(?:[\w./(]|-(?=[^\s,\[\]{}]))[^\n]*")
_NOT_PLAIN = re.compile(r":(?:\s|$)|\s#|\s$|^---|^\.\.\.")
_NOT_IN_FLOW = re.compile(r"[,\[\]{}]|:(?=\W|$)|-$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment (or, with no text, a blank line) and where it stood."""

    line: int
    text: str
    alone: bool  # nothing else is on its line


def scalar(node: Scalar, *, flow: bool) -> str:
    """The scalar as YAML text on one line."""
    text = node.text.value
    if text == "" and not node.quoted:
        return ""
    typed = resolve(text)
    if not node.quoted and not isinstance(typed, str):
        return text
    safe = isinstance(typed, str) and _PLAIN.fullmatch(text) and not _NOT_PLAIN.search(text)
    if safe and not (flow and _NOT_IN_FLOW.search(text)):
        return text
    return json.dumps(text, ensure_ascii=False)


def emit(tree: Mapping, comments: tuple[Comment, ...] = ()) -> str:
    """The text of a file. Laying out its own output again gives the same bytes."""
    layout = _Layout(list(comments))
    layout.mapping(tree, 0, "")
    layout.rest()
    return layout.text()


class _Layout:
    def __init__(self, comments: list[Comment]) -> None:
        self.comments = comments
        self.rows: list[tuple[str, str]] = []  # a line and the comment behind it

    def text(self) -> str:
        while self.rows and not any(self.rows[-1]):
            self.rows.pop()
        return "\n".join(_aligned(self.rows)) + "\n"

    def rest(self) -> None:
        self._above(1 << 60, 0)

    def mapping(self, node: Mapping, indent: int, lead: str) -> None:
        """The entries, the first of them behind `lead` (`- ` for an item of a list)."""
        for number, entry in enumerate(node.entries):
            head = lead if number == 0 else " " * len(lead)
            column = indent + len(lead)
            key = scalar(entry.key, flow=False)
            first = entry.key.span.line
            self._above(first, indent if number == 0 else column)
            flow = self._one_line(entry.value, key, column)
            if flow is not None:
                self._row(" " * indent + head + f"{key}: {flow}".rstrip(), first, entry.value.span.end_line)
                continue
            if isinstance(entry.value, Scalar):
                self._literal(entry.value, " " * indent + head + key, column, first)
                continue
            flat = isinstance(entry.value, Sequence) and all(isinstance(i, Scalar) for i in entry.value.items)
            if (key == "links" or flat) and isinstance(entry.value, Sequence) and key not in _BLOCK_KEYS:
                self._wrapped(entry.value, f"{' ' * indent}{head}{key}: [", first)
                continue
            self._row(" " * indent + head + f"{key}:", first, first)
            if isinstance(entry.value, Mapping):
                self.mapping(entry.value, column + 2, "")
            else:
                self._items(entry.value, column + 2)

    def _items(self, node: Sequence, indent: int) -> None:
        for item in node.items:
            if isinstance(item, Mapping) and item.entries:
                self.mapping(item, indent, "- ")
                continue
            self._above(item.span.line, indent)
            self._row(" " * indent + "- " + _flow(item), item.span.line, item.span.end_line)

    def _one_line(self, node: Tree, key: str, column: int) -> str | None:
        """The value in flow style, or None where it needs lines of its own."""
        if isinstance(node, Scalar):
            return scalar(node, flow=False) if "\n" not in node.text.value else None
        if key in _BLOCK_KEYS and (isinstance(node, Mapping) or node.items):
            return None
        text = _flow(node)
        if isinstance(node, Mapping) and any(_quoted_by_flow(e.value) for e in node.entries):
            return None  # on a line of its own it needs no quotes
        short = column + len(key) + 2 + len(text) <= WIDTH
        return text if short or not (node.entries if isinstance(node, Mapping) else node.items) else None

    def _literal(self, node: Scalar, head: str, column: int, line: int) -> None:
        """Text of several lines."""
        text = node.text.value
        body = text.removesuffix("\n")
        if text[:1].isspace() or body.endswith("\n") or not body:
            self._row(f"{head}: {json.dumps(text, ensure_ascii=False)}", line, node.span.end_line)
            return
        inner = [c for c in self.comments if line <= c.line <= node.span.end_line and not c.alone]
        self.comments = [c for c in self.comments if c not in inner]
        for comment in inner:
            self.rows.append((" " * column + comment.text, ""))
        self.rows.append((f"{head}: |{'' if text.endswith(chr(10)) else '-'}", ""))
        self.rows.extend((" " * (column + 2) + row if row else "", "") for row in body.split("\n"))

    def _wrapped(self, node: Sequence, head: str, line: int) -> None:
        """A long list of links or numbers, as many on each line as fit."""
        room = [head]
        for number, item in enumerate(node.items):
            piece = _flow(item) + ("," if number + 1 < len(node.items) else "]")
            gap = "" if room[-1] == head or not room[-1].strip() else " "
            if len(room[-1]) + len(gap) + len(piece) > WIDTH:
                room.append(" " * len(head) + piece)
            else:
                room[-1] += gap + piece
        self._row(room[0], line, node.span.end_line)
        self.rows[-1:] = [(self.rows[-1][0], "")] + [(row, "") for row in room[1:-1]] + [(room[-1], self.rows[-1][1])]

    # -- comments ---------------------------------------------------------------------------------------------------

    def _above(self, line: int, indent: int) -> None:
        """The comments before `line` that are not printed yet; several blank lines become one."""
        while self.comments and self.comments[0].line < line:
            self._comment(self.comments.pop(0), indent)

    def _comment(self, comment: Comment, indent: int) -> None:
        if comment.text:
            self.rows.append((" " * indent + comment.text, ""))
        elif self.rows and any(self.rows[-1]):
            self.rows.append(("", ""))

    def _row(self, text: str, line: int, end: int) -> None:
        """One line of output, made from the lines `line … end` of the source."""
        inside = []
        while self.comments and self.comments[0].line <= end:
            inside.append(self.comments.pop(0))
        inside = [c for c in inside if c.text]
        behind = inside.pop().text if inside and (inside[-1].line == end or not inside[-1].alone) else ""
        for comment in inside:
            self._comment(comment, len(text) - len(text.lstrip()))
        self.rows.append((text, behind))


def _quoted_by_flow(node: Tree) -> bool:
    return isinstance(node, Scalar) and scalar(node, flow=True) != scalar(node, flow=False)


def _flow(node: Tree) -> str:
    match node:
        case Scalar():
            return scalar(node, flow=True) or "null"
        case Sequence():
            return f"[{', '.join(_flow(item) for item in node.items)}]"
        case Mapping():
            entries = (f"{scalar(e.key, flow=True)}: {_flow(e.value)}" for e in node.entries)
            return f"{{{', '.join(entries)}}}"


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    """Comments behind neighbouring lines start in one column."""
    lines: list[str] = []
    number = 0
    while number < len(rows):
        stop = number
        while stop < len(rows) and rows[stop][1]:
            stop += 1
        if stop == number:
            lines.append(rows[number][0])
            number += 1
            continue
        column = max(len(text) for text, _ in rows[number:stop]) + 2
        lines.extend(text.ljust(column) + comment for text, comment in rows[number:stop])
        number = stop
    return lines
