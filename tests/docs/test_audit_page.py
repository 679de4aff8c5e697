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


def test_the_finding_is_the_real_one(tmp_path: Path) -> None:
    (kernel,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (session,) = re.findall(r"```console\n.*?\n(.*?)```", PAGE, flags=re.DOTALL)
    result = audit(tmp_path, kernel)
    assert result.returncode == 1
    assert session.strip() in result.stderr, result.stderr


def test_the_cure_cures(tmp_path: Path) -> None:
    (kernel,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    cured = kernel.replace(
        "[pltpu.SemaphoreType.DMA] * 3", "[pltpu.SemaphoreType.DMA] * 2 + [pltpu.SemaphoreType.DMA((n - 1,))]"
    )
    cured = cured.replace("sent, received, device_id", "sent, received.at[step], device_id")
    assert "DMA((n - 1,))" in cured and "received.at[step]" in cured
    result = audit(tmp_path, cured)
    assert result.returncode == 0, result.stderr
