"""The commands of the page about imports do what it shows."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "import.md").read_text(encoding="utf-8")
(XML,) = re.findall(r"```xml\n(.*?)```", PAGE, flags=re.DOTALL)
SESSIONS = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)
CURED = XML.replace('depid="-1" deps="-1" hasdep="0"', 'depid="0" deps="0" hasdep="0"', 1)


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = command.split()
    assert words[0] == "ringsched"
    return subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60, cwd=folder, check=False
    )


def commands(session: str) -> list[tuple[str, str]]:
    """Each with what the page shows of its output."""
    return re.findall(r"\$ (.*)\n((?:(?!\$ ).*\n)*)", session)


def timeless(text: str) -> str:
    return re.sub(r"in \d+\.\d\d s", "in … s", text)


def test_the_race_is_found(tmp_path: Path) -> None:
    (tmp_path / "gather.xml").write_text(XML, encoding="utf-8")
    ((command, shown),) = commands(SESSIONS[0])
    result = run(command, tmp_path)
    assert result.returncode == 1
    assert shown.strip() == result.stderr.strip()
    assert result.stdout.startswith("gather.xml: wrong (1 error, allgather of 2 ranks; runs with any number of mess")


def test_the_cure_cures(tmp_path: Path) -> None:
    assert CURED != XML
    (tmp_path / "gather.xml").write_text(CURED, encoding="utf-8")
    for command, shown in commands(SESSIONS[1]):
        result = run(command, tmp_path)
        assert result.returncode == 0, result.stderr
        assert timeless(shown) in timeless(result.stdout)


def test_exports(tmp_path: Path) -> None:
    done = commands(SESSIONS[2])
    assert len(done) == 4
    for command, _ in done:
        result = run(command, tmp_path)
        assert result.returncode == 0, result.stderr
    assert len(list(tmp_path.glob("trace.*.et"))) == 8
