"""The finding that the page about audits shows is the one that the command gives."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")


def audit(folder: Path, kernel: str) -> subprocess.CompletedProcess[str]:
    (folder / "mykernels.py").write_text(kernel, encoding="utf-8")
    (command,) = re.findall(r"\$ ringsched audit (.*)\n", PAGE)
    arguments = [word.strip("'") for word in command.split()]
    return subprocess.run(
        [sys.executable, "-m", "ringsched", "audit", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        check=False,
    )


def cured() -> str:
    """The kernel of the page with a receive semaphore for each step."""
    (kernel,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    text = kernel.replace(
        "[pltpu.SemaphoreType.DMA] * 3", "[pltpu.SemaphoreType.DMA] * 2 + [pltpu.SemaphoreType.DMA((n - 1,))]"
    )
    text = text.replace("sent, received, device_id", "sent, received.at[step], device_id")
    assert "DMA((n - 1,))" in text and "received.at[step]" in text
    return text


def shown(number: int) -> str:
    """What the page's console blocks show."""
    block = re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL)[number]
    return re.sub(r"\$ .*\n", "", block).strip()


def test_the_finding_is_the_real_one(tmp_path: Path) -> None:
    (kernel,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    result = audit(tmp_path, kernel)
    assert result.returncode == 1
    assert shown(0) in result.stderr, result.stderr


def test_the_cure_cures(tmp_path: Path) -> None:
    result = audit(tmp_path, cured())
    assert result.returncode == 0, result.stderr
    assert "values right" in result.stdout


def test_the_wrong_value_is_the_real_one(tmp_path: Path) -> None:
    kernel = (
        cured().replace("o_ref.at[me]", "o_ref.at[right]").replace("lax.rem(me + n - step", "lax.rem(right + n - step")
    )
    result = audit(tmp_path, kernel)
    assert result.returncode == 1
    assert shown(1) in result.stderr, result.stderr


def test_the_test_of_the_page_passes(tmp_path: Path) -> None:
    (test,) = re.findall(r"```py\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "mykernels.py").write_text(cured(), encoding="utf-8")
    (tmp_path / "test_mine.py").write_text(test, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stdout
