"""A module of this package in a process of its own, with a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LOG = "log.txt"


def run_module(module: str, directory: Path, environment: Mapping[str, str], timeout: float) -> int | None:
    """Runs `python -m MODULE DIRECTORY` there, its output in log.txt; the exit code, None where the deadline passed.

    Nothing that it started outlives the call; `timeout` is in seconds.
    """
    child = start_module(module, directory, environment)
    try:
        return child.finish("", timeout)
    finally:
        child.end()


@dataclass(frozen=True, slots=True)
class Child:
    """A process that has been started, and all that it starts."""

    process: subprocess.Popen[str]

    def finish(self, text: str, timeout: float) -> int | None:
        """Gives it `text` on stdin and waits; the exit code, None where the deadline of so many seconds passed."""
        try:
            self.process.communicate(text, timeout)
        except subprocess.TimeoutExpired:
            return None
        return self.process.returncode

    def end(self) -> None:
        """Ends it, if it has not ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()


def start_module(module: str, directory: Path, environment: Mapping[str, str]) -> Child:
    """Starts `python -m MODULE DIRECTORY` there, its output in log.txt."""
    # The package may be on this process's path only.
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
    given = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    with (directory / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(directory)],
            cwd=directory,
            env=os.environ | given | dict(environment),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a process group of its own, so that nothing it started outlives it
        )
    return Child(process)


def read_log(directory: Path) -> str:
    """What the process said."""
    return (directory / LOG).read_text(encoding="utf-8", errors="replace")


def end_after(seconds: float) -> None:
    """For the process itself: ends it after this time, should the one that waits for it be gone by then."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
