"""The examples of the page about the xla back end run, that of several processes in two."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from ringsched.pipeline import compile_portable, open_schedule

PAGE = (Path(__file__).parents[2] / "docs" / "xla.md").read_text(encoding="utf-8")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")} | {"JAX_PLATFORMS": "cpu"}


def test_the_example_gives_the_answer() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    command = [sys.executable, "-c", example]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, check=False)
    assert (result.returncode, result.stdout) == (0, "right\n"), result.stderr


def test_two_processes_give_the_answer() -> None:
    (example,) = re.findall(r"```py\n(.*?)```", PAGE, flags=re.DOTALL)
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = str(listener.getsockname()[1])
    started = []
    try:
        for process in range(2):
            command = [sys.executable, "-c", example, port, str(process)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            started.append(subprocess.Popen(command, env=ENVIRONMENT, text=True, start_new_session=True, **pipes))
        outputs = [child.communicate(timeout=120)[0] for child in started]
    finally:
        for child in started:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    assert [output.splitlines()[-1:] for output in outputs] == [[f"process {p}: right"] for p in range(2)]


def test_the_steps_shown_are_the_real_ones() -> None:
    source = compile_portable(open_schedule("all_gather")).source
    (shown,) = re.findall(r"The steps of `all_gather`:\n\n(.*?)\n\n- ", PAGE, flags=re.DOTALL)
    assert shown in source
