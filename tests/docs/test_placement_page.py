"""The blocks of the page on placement run one after the other."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "placement.md").read_text(encoding="utf-8")


def test_the_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    code = "".join(blocks) + "assert y.shape == (8, 128) and float(y.sum()) == 8 * 128\n"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "NPROC": "64"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ring:8: the devices have no coordinates\n"
