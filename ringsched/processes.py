"""A module of this package in a process of its own, with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LOG = "log.txt"


def run_module(module: str, directory: Path, environment: Mapping[str, str], timeout: float) -> int | None:
    """Runs `python -m MODULE DIRECTORY` there, its output in log.txt; the exit code, None where the deadline passed.

    Nothing that it started outlives the call; `timeout` is in seconds.
    """
    # The package may be on this process's path only.
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    given = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    with (directory / LOG).open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", module, str(directory)],
            cwd=directory,
            env=os.environ | given | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group of its own, so that nothing it started outlives it
        )
        try:
            return child.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def read_log(directory: Path) -> str:
    """What the process said."""
    return (directory / LOG).read_text(encoding="utf-8", errors="replace")


def end_after(seconds: float) -> None:
    """For the process itself: ends it after this time, should the one that waits for it be gone by then."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
