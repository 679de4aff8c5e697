import re
from pathlib import Path

import pytest

import ringsched
from ringsched.codes import CATALOGUE, explain
from ringsched.diagnostics import DiagnosticError
from ringsched.schedule.parse import parse_range

PACKAGE = Path(ringsched.__file__).parent
SOURCE = {p: p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py") if p.name != "codes.py"}
USED = {code for text in SOURCE.values() for code in re.findall(r'["(](RS\d{3})[")]', text)}

# stages that are still being written; to be empty when they are done


def test_every_code_of_the_source_is_explained() -> None:
    assert USED - set(CATALOGUE) == set()


def test_every_explained_code_is_used() -> None:
    assert set(CATALOGUE) - USED == set()


def test_codes_are_unique_and_sorted() -> None:
    assert list(CATALOGUE) == sorted(CATALOGUE)
    assert all(re.fullmatch(r"RS[1-9]\d\d", code) for code in CATALOGUE)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_entries_are_complete(code: str) -> None:
    text = explain(code)
    assert text is not None
    assert text.startswith(f"{code}: ")
    assert all(f"\n{part}" in text for part in ("Why: ", "Wrong:\n", "Right:\n"))
    entry = CATALOGUE[code]
    assert entry.wrong != entry.right
    assert all(part.endswith((".", "`")) for part in (entry.what, entry.why))


def test_codes_are_found_in_any_spelling() -> None:
    assert explain("rs301") == explain("301") == explain("RS301")
    assert explain("RS999") is None
    assert explain("") is None


def test_the_right_examples_of_ranges_are_right() -> None:
    from ringsched.diagnostics import Span
    from ringsched.schedule.tree import Text

    def text(value: str) -> Text:
        return Text(value=value, span=Span(path="f", line=1, column=1, end_line=1, end_column=9), column=1)

    assert parse_range(text(CATALOGUE["RS201"].right.removeprefix("for: ")))
    with pytest.raises(DiagnosticError):
        parse_range(text(CATALOGUE["RS201"].wrong.removeprefix("for: ")))
