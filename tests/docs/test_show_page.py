"""The page on `ringsched show` says what the command prints, and its picture is the one that is drawn."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_and_its_picture(tmp_path: Path) -> None:
    page = (DOCS / "show.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)
    command, _, expected = block.partition("\n")
    assert command == "$ ringsched show all_gather_torus"
    arguments = [sys.executable, "-m", "ringsched", "show", "all_gather_torus", "-o", str(tmp_path / "drawn.svg")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert [line.rstrip() for line in done.stdout.splitlines()] == expected.splitlines()
    drawn = (tmp_path / "drawn.svg").read_bytes()
    assert drawn == (DOCS / "pictures" / "all_gather_torus.svg").read_bytes()
