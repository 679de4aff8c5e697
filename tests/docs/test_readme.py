"""The README's Python example and its error message are what really happens."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_example_gives_the_answer() -> None:
    (example,) = blocks("python")
    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=180, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("right")


def test_the_error_message_is_the_real_one(tmp_path: Path) -> None:
    (session,) = blocks("console")
    command, _, message = session.partition("\n")
    assert command.startswith("$ ringsched verify ")
    name = command.removeprefix("$ ringsched verify ").strip()
    right = (ROOT / "schedules" / "all_gather.yaml").read_text(encoding="utf-8")
    wrong = right.replace("(r - s) % N", "(r - s - 1) % N")
    assert wrong != right
    (tmp_path / name).write_text(wrong, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "ringsched", "verify", name],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 1
    assert message.strip() in (result.stderr + result.stdout), result.stderr


def test_the_two_commands_are_the_first_ones() -> None:
    (commands,) = blocks("sh")
    assert commands.splitlines() == [
        "pip install . && ringsched compile schedules/reduce_scatter.yaml",
        "pip install -e '.[test]' && pytest",
    ]
