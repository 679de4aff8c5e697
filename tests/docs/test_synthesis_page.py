"""What the page about synthesis shows is what the command prints."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "synthesis.md").read_text(encoding="utf-8")


def test_the_sentence_is_the_real_one(tmp_path: Path) -> None:
    (session,) = re.findall(r"```console\n\$ ringsched (.*?)```", PAGE, flags=re.DOTALL)
    command, _, shown = session.partition("\n")
    result = subprocess.run(
        [sys.executable, "-m", "ringsched", *command.split()],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0
    words, real = (re.sub(r"[\d.]+ s$", "", " ".join(text.split())) for text in (shown, result.stderr))
    assert words == real
    assert (tmp_path / "my.yaml").exists()
