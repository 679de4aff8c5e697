"""Several processes give the same answer as one (`jax.distributed`, on CPUs)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DEADLINE = 100.0  # seconds; a process that waits for one that is gone would wait for ever


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port: int = listener.getsockname()[1]
    return port


def answers(folder: Path, processes: int, devices: int) -> dict[str, Any]:
    """What the devices of all processes hold, by name and place."""
    script, port = str(Path(__file__).with_name("xla_process.py")), free_port()
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")} | {"JAX_PLATFORMS": "cpu"}
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as log:
        try:
            for process in range(processes):
                command = [sys.executable, script, str(folder), *map(str, (port, process, processes, devices))]
                started.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
            for child in started:
                child.wait(DEADLINE)
        finally:
            for child in started:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
            log.seek(0)
            text = log.read().decode(errors="replace")
    assert all(child.returncode == 0 for child in started), text[-6000:]
    found: dict[str, Any] = {}
    for process in range(processes):
        with np.load(folder / f"{process}.npz") as file:
            found |= {name: file[name] for name in file.files}
    return found


@pytest.mark.parametrize("each", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_two_processes_give_the_same_answer_as_one(tmp_path: Path, each: int) -> None:
    both, one = tmp_path / "both", tmp_path / "one"
    both.mkdir()
    one.mkdir()
    two, alone = answers(both, 2, each), answers(one, 1, 2 * each)
    assert two.keys() == alone.keys() and len(two) >= 5 * 2 * each
    for name, expected in alone.items():
        np.testing.assert_array_equal(two[name], expected, err_msg=name)


def test_a_process_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="FileNotFoundError"):
        answers(tmp_path / "missing", 1, 2)
