"""Runs each test that takes `devices` in a process that has them.

`devices` is a process with virtual devices that outlives the test: jax starts once, in the first test. A test that
passes its deadline fails with the stack of every thread, and the next one gets a new process: a hang is one failure.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

START = 60.0  # seconds, for importing jax
DEADLINE = 90.0  # seconds a test


class Failed(Exception):
    """The test failed in its process; the message is the traceback there."""


class Devices:
    """A process that runs test functions, one after another."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, path: Path, name: str, arguments: dict[str, Any], deadline: float) -> None:
        """Calls the function of that name. Raises Failed, also where it takes longer than `deadline` seconds."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        assert self.process and self.process.stdin and self.process.stdout
        pickle.dump((str(path), name, arguments, deadline), self.process.stdin)
        self.process.stdin.flush()
        if not _ready(self.process.stdout.fileno(), deadline + 2):
            log = self.stop()
            raise Failed(f"no end within {deadline:g} s\n{log}")
        try:
            failure = pickle.load(self.process.stdout)
        except EOFError:
            raise Failed(f"the process ended\n{self.stop()}") from None
        if failure is not None:
            raise Failed(failure)

    def _start(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  closed by stop
        environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "NPROC")}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("device_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment | {"JAX_PLATFORMS": "cpu"},
            start_new_session=True,
        )
        assert self.process.stdout
        if not _ready(self.process.stdout.fileno(), START) or not self.process.stdout.read(1):
            raise Failed(f"the process did not start\n{self.stop()}")

    def stop(self) -> str:
        """Ends the process, if there is one; returns the end of what it wrote to standard error."""
        if self.process is None:
            return ""
        assert self.process.stdin and self.process.stdout
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.process = None
        self.log.seek(0)
        text = self.log.read().decode(errors="replace")
        self.log.close()
        return text[-6000:]


def _ready(descriptor: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    return bool(select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "deadline(seconds): of a test that runs in the process with virtual devices")


@pytest.fixture(scope="session")
def devices() -> Iterator[Devices]:
    """Tests that take this run in a process with 16 virtual devices."""
    found = Devices()
    yield found
    found.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if "devices" not in pyfuncitem.fixturenames:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names if name != "devices"}
    marker = pyfuncitem.get_closest_marker("deadline")
    deadline = marker.args[0] if marker else DEADLINE
    try:
        pyfuncitem.funcargs["devices"].run(pyfuncitem.path, pyfuncitem.originalname, arguments, deadline)
    except Failed as failure:
        pytest.fail(str(failure), pytrace=False)
    return True
