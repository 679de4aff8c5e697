"""The whole message of every mistake that loading can find: NAME.yaml must give exactly NAME.txt.

After a wanted change: `RINGSCHED_ACCEPT=1 pytest tests/ui`, then read the difference.
"""

import os
from pathlib import Path

import pytest

from ringsched.diagnostics import DiagnosticError, render
from ringsched.schedule.loader import load, sources

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in HERE.glob("*.yaml"))


def message(path: str) -> str:
    """What the user sees for `path`, or nothing where it loads."""
    try:
        load(path)
    except DiagnosticError as error:
        texts = sources(error.diagnostics)
        return "\n\n".join(render(diagnostic, texts) for diagnostic in error.diagnostics) + "\n"
    return ""


@pytest.mark.parametrize("name", CASES)
def test_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    found = message(f"{name}.yaml")
    expected = HERE / f"{name}.txt"
    if os.environ.get("RINGSCHED_ACCEPT"):
        expected.write_text(found, encoding="utf-8")
    assert found, "this file must be refused"
    assert found == expected.read_text(encoding="utf-8")


def test_no_message_without_a_case() -> None:
    assert sorted(path.stem for path in HERE.glob("*.txt")) == CASES
