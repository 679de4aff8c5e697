"""Python text that a formatter would leave alone, at 88 columns and at wider ones.

A call that does not fit its line has one argument a line and a trailing comma: that form is stable at any width.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

WIDTH = 88


def call(head: str, arguments: Iterable[str], indent: int, tail: str = ")") -> Iterator[str]:
    """`head(argument, …)` on one line where it fits; `head` ends in the opening bracket."""
    arguments = list(arguments)
    pad = " " * indent
    line = f"{pad}{head}{', '.join(arguments)}{tail}"
    if len(line) <= WIDTH:
        yield line
        return
    yield pad + head
    for argument in arguments:
        line = f"{pad}    {argument},"
        if len(line) > WIDTH and argument.endswith("]") and ".at[" in argument:
            name, index = argument[:-1].split(".at[", 1)
            yield f"{pad}    {name}.at["
            yield from (f"{pad}        {part}," for part in _parts(index))
            yield f"{pad}    ],"
        else:
            yield line
    yield pad + tail


def _parts(text: str) -> Iterator[str]:
    """What commas outside of all brackets keep apart."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def comment(text: str, indent: int) -> Iterator[str]:
    """A comment, wrapped."""
    pad = " " * indent + "# "
    yield from textwrap.wrap(text, WIDTH, initial_indent=pad, subsequent_indent=pad, break_long_words=False)


def paragraph(text: str, indent: int = 0, glue: str = "\0") -> Iterator[str]:
    """Prose of a docstring, wrapped; blank lines and indented lines stay. `glue` is a space at which no line ends."""
    for line in text.split("\n"):
        pad = " " * indent
        if not line or line.startswith(" "):
            yield (pad + line).rstrip()
        else:
            wrapped = textwrap.wrap(line, WIDTH, initial_indent=pad, subsequent_indent=pad, break_long_words=False)
            yield from (part.replace(glue, " ") for part in wrapped)


def listed(key: str, rows: list[str]) -> Iterator[str]:
    """An entry of a dictionary that is a list, a row a line."""
    if not rows:
        yield f'    "{key}": [],'
        return
    yield f'    "{key}": ['
    yield from (f"        {row}" for row in rows)
    yield "    ],"


def spaced(lines: list[str]) -> str:
    """Blank lines as a formatter has them: none at a block's start, one around nested functions, two between others."""
    kept: list[str] = []
    for number, line in enumerate(lines):
        if line:
            kept.append(line)
            continue
        following = next((later for later in lines[number + 1 :] if later), "")
        previous = kept[-1] if kept else ""
        indent = len(following) - len(following.lstrip())
        opens = previous.endswith(":") and previous.lstrip().startswith("def ")
        blanks = 0
        while kept[-1 - blanks] == "":
            blanks += 1
        if opens or (indent and blanks) or blanks == 2 or not following:
            continue
        kept.append("")
    return "\n".join(kept) + "\n"
