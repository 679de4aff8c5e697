"""The whole message of every mistake in a schedule file: NAME.yaml must give exactly NAME.txt.

After a wanted change: `pytest tests/ui --accept`, then read the difference.
"""

from pathlib import Path

import pytest

from ringsched.diagnostics import DiagnosticError, render
from ringsched.pipeline import open_schedule, prove
from ringsched.schedule.loader import sources

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in HERE.glob("*.yaml"))


def message(path: str) -> str:
    """What the user sees for `path`, or nothing where it is right."""
    try:
        prove(open_schedule(path))
    except DiagnosticError as error:
        texts = sources(error.diagnostics)
        return "\n\n".join(render(diagnostic, texts) for diagnostic in error.diagnostics) + "\n"
    return ""


@pytest.mark.parametrize("name", CASES)
def test_message(name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(HERE)
    found = message(f"{name}.yaml")
    expected = HERE / f"{name}.txt"
    if request.config.getoption("--accept"):
        expected.write_text(found, encoding="utf-8")
    assert found, "this file must be refused"
    assert found == expected.read_text(encoding="utf-8")


def test_no_message_without_a_case() -> None:
    assert sorted(path.stem for path in HERE.glob("*.txt")) == CASES
