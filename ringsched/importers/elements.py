"""XML text → elements with their places. No document types, no entities of a file's own, sensible sizes.

RS131 not XML, RS132 a document type, RS135 too large; RS101, RS102 no file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label, Span
from ringsched.schedule.tree import fail

MAX_BYTES = 1 << 26
MAX_ELEMENTS = 2_000_000
MAX_NESTING = 16
MAX_HEAD = 60  # columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A start tag and what is inside. `text`: the tag itself, from `<` to `>`."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    span: Span
    text: str

    def head(self, name: str) -> Span:
        """From `<` to the end of an attribute, where that is short; else the tag."""
        start = self.text.find(f' {name}="', 0, MAX_HEAD)
        end = self.text.find('"', start + len(name) + 3, MAX_HEAD) if start >= 0 else -1
        if end < 0 or "\n" in self.text[:end]:
            return self.span
        column, line = self.span.column, self.span.line
        return Span(path=self.span.path, line=line, column=column, end_line=line, end_column=column + end + 1)

    def place(self, name: str) -> Span:
        """Of an attribute, with its value; of the tag where it is not there, or is spread over lines."""
        found = re.search(rf"""\b{re.escape(name)}\s*=\s*("[^"]*"|'[^']*')""", self.text)
        before = self.text[: found.start()] if found else "\n"
        if found is None or "\n" in before + found[0]:
            return self.span
        column = self.span.column + len(before)
        line = self.span.line
        return Span(
            path=self.span.path,
            line=line,
            column=column,
            end_line=line,
            end_column=column + found.end() - found.start(),
        )


def read(path: str) -> bytes:
    """The bytes of a file, at most MAX_BYTES of them. Raises RS101, RS102, RS135."""
    file = Path(path)
    if file.is_dir():
        raise fail("RS102", f"{path} is a directory", None, help="name a file: algorithm.xml")
    try:
        if file.exists() and not file.is_file():
            raise fail("RS101", f"{path} is not a regular file", None, help="name a file: algorithm.xml")
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise fail("RS101", f"there is no file {path}", None, help="check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise fail("RS101", f"{path} cannot be read: {reason}", None, help="check its permissions") from None
    if len(data) > MAX_BYTES:
        raise _too_large(path, f"more than {MAX_BYTES >> 20} MiB")
    return data


def parse(data: bytes, path: str) -> Element:
    """The root element. Raises RS131, RS132, RS135."""
    builder = _Builder(data, path)
    return builder.run()


class _Builder:
    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path = data, path
        self.open: list[Element] = []
        self.root: Element | None = None
        self.count = 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.StartDoctypeDeclHandler = self._doctype

    def run(self) -> Element:
        try:
            self.parser.Parse(self.data, True)
        except expat.ExpatError as error:
            line, column = error.lineno, error.offset + 1
            raise fail(
                "RS131",
                f"{self.path} is not well-formed XML: {expat.ErrorString(error.code)}",
                Span(path=self.path, line=line, column=column, end_line=line, end_column=column + 1),
                "here",
                help="an algorithm is one element: <algo …><gpu …><tb …><step …/></tb></gpu></algo>",
            ) from None
        except (ValueError, LookupError):  # of an encoding that expat asks for, before it finds anything
            if self.root is not None:
                raise
            line = self.parser.CurrentLineNumber
            raise fail(
                "RS131",
                f"{self.path} is in an encoding that is not known",
                Span(path=self.path, line=line, column=1, end_line=line, end_column=2),
                help="write it in UTF-8",
            ) from None
        assert self.root is not None  # or expat would have found no element
        return self.root

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.open) >= MAX_NESTING:
            limit = f"more than {MAX_ELEMENTS:,} elements" if self.count > MAX_ELEMENTS else "elements nested too deep"
            raise _too_large(self.path, limit, self._span(0))
        start = self.parser.CurrentByteIndex
        end = self.data.find(b">", start) + 1 or len(self.data)
        text = self.data[start:end].decode("utf-8", errors="replace")
        element = Element(tag=tag, attributes=attributes, span=self._span(len(text.split("\n")[0])), text=text)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def _end(self, _: str) -> None:
        self.open.pop()

    def _doctype(self, *_: object) -> None:
        raise DiagnosticError(
            [
                Diagnostic(
                    code="RS132",
                    message=f"{self.path} declares a document type",
                    primary=Label(span=self._span(9), text="nothing is declared here"),
                    help="remove the <!DOCTYPE …> with all that it declares",
                )
            ]
        )

    def _span(self, length: int) -> Span:
        index, line = self.parser.CurrentByteIndex, self.parser.CurrentLineNumber
        before = self.data[self.data.rfind(b"\n", 0, index) + 1 : index].decode("utf-8", errors="replace")
        column = len(before.removeprefix("\ufeff")) + 1
        return Span(path=self.path, line=line, column=column, end_line=line, end_column=column + max(length, 1))


def _too_large(path: str, limit: str, span: Span | None = None) -> DiagnosticError:
    return fail(
        "RS135",
        f"{path} is too large: {limit}",
        span,
        help="write the algorithm for fewer ranks, or with fewer instances",
    )
