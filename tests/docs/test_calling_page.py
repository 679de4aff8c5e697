"""The example of the page about calling runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "calling.md").read_text(encoding="utf-8")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")} | {"JAX_PLATFORMS": "cpu"}


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    command = [sys.executable, "-c", example]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False)
    assert (result.returncode, result.stdout) == (0, "(32, 16)\n"), result.stderr
