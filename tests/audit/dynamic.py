"""What JAX's own dynamic detector says about a kernel: TPU interpret mode with race detection, in both DMA modes.

The kernels run in a child process (`dynamic_child.py`), many one after the other; a child that hangs, or raises, is
replaced by another. This process imports no jax.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import ringsched
from ringsched.run.events import MARK, read

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE, HERE.parent, HERE.parents[1] / "benchmarks")  # where the modules with subjects are
MODES = ("eager", "on_wait")
START_SECONDS = 60.0
DEADLINE = 120.0  # for one DMA mode of one kernel; one that does nothing any more is ended sooner
TASKS = 60  # of one child: compiled programs are never freed


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A function for shard_map. `expect`: what it must give, as in `ringsched.audit`; None: nobody says.

    `reference`: the same with numpy, on global arrays, if that is faster.
    """

    function: Callable[..., Any]
    mesh: Mapping[str, int]
    args: Sequence[str]
    in_specs: Any
    out_specs: Any
    expect: Any = None
    reference: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ModeOutcome:
    """One DMA mode. `digests`: of the result of each call. `wrong`: what is wrong with the values.

    `hang`: it did nothing any more. `late`: it was busy still when its time was over, and nobody knows.
    """

    mode: str
    races: int
    leftovers: int
    hang: bool
    error: str | None
    wrong: str | None
    digests: tuple[str, ...]
    seconds: float
    late: bool = False

    @property
    def found(self) -> tuple[str, ...]:
        """What the detector noticed, in words."""
        told = {
            "race": bool(self.races),
            "leftover": bool(self.leftovers),
            "hang": self.hang,
            "not over in time": self.late,
            f"exception ({self.error})": self.error is not None,
            f"values ({self.wrong})": self.wrong is not None,
            "the calls differ": len(set(self.digests)) > 1,
        }
        return tuple(what for what, so in told.items() if so)


def found(outcomes: Sequence[ModeOutcome]) -> tuple[str, ...]:
    """What was noticed in any mode, or in comparing them."""
    told = [f"{outcome.mode}: {what}" for outcome in outcomes for what in outcome.found]
    if not told and len({digest for outcome in outcomes for digest in outcome.digests}) > 1:
        told.append("the modes differ")
    return tuple(told)


class SubjectError(RuntimeError):
    """The child could not even load the subject, or ended without a word."""


class Detector:
    """Children with so many virtual devices, one at a time. deadline: seconds for one DMA mode of one kernel."""

    def __init__(self, *, devices: int, deadline: float = DEADLINE) -> None:
        self.devices, self.deadline = devices, deadline
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Detector:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, module: str, name: str, modes: Sequence[str] = MODES) -> tuple[ModeOutcome, ...]:
        """Runs `subject(name)` of the module in these modes, each even if another one hangs.

        Raises SubjectError where there is no such subject: nothing is then known of the kernel.
        """
        outcomes: list[ModeOutcome] = []
        while len(outcomes) < len(modes):
            left = list(modes[len(outcomes) :])
            self._send({"module": module, "name": name, "modes": left})
            for mode in left:
                outcomes.append(self._outcome(mode))
                if self._child is None:
                    break
        return tuple(outcomes)

    def _outcome(self, mode: str) -> ModeOutcome:
        """Of the mode that is running; the child is ended where it is of no more use."""
        start = time.monotonic()
        end, text = self._until_over(start)
        if end != "done":
            self._end()
        parts = read(text)
        events = [part.event for part in parts]
        if end == "gone" and not any(event.get("phase") == "start" for event in events):
            raise SubjectError(text[-1500:])
        error = next((event["error"] for event in events if "error" in event), None)
        return ModeOutcome(
            mode=mode,
            races=sum(len(part.races) for part in parts),
            leftovers=sum(len(part.leftovers) for part in parts),
            hang=end == "hang",
            late=end == "late",
            error=f"the process ended with exit code {self._code}" if end == "gone" else error,
            wrong=next((event["wrong"] for event in events if event.get("wrong")), None),
            digests=tuple(event["digest"] for event in events if "digest" in event),
            seconds=time.monotonic() - start,
        )

    def _until_over(self, start: float) -> tuple[str, str]:
        """How it ended ("done", "error", "hang", "late", or "gone", with the process), and all that was printed."""
        until, self._patience = start + self._patience, self.deadline
        lines: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return "late", "".join(lines)
            if line is None:
                return "gone", "".join(lines)
            lines.append(line)
            event = json.loads(line.removeprefix(MARK)) if line.startswith(MARK) else {}
            if event.get("phase") == "end":
                return "error" if "error" in event else "done", "".join(lines)
            if event.get("hang"):
                return "hang", "".join(lines)

    def _send(self, task: Mapping[str, object]) -> None:
        if self._child is not None and self._tasks >= TASKS:
            self._end()
        if self._child is None:
            self._start()
        assert self._child is not None and self._child.stdin is not None
        self._tasks += 1
        self._child.stdin.write(json.dumps(task) + "\n")
        self._child.stdin.flush()

    def _start(self) -> None:
        """A child has as many devices as any subject needs, and threads enough; see `ringsched.threads`."""
        root = Path(ringsched.__file__).parents[1]
        environment = {
            "NPROC": "64",
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "-1",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={self.devices}",
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "PYTHONUNBUFFERED": "1",
        }
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "dynamic_child.py"), *map(str, FOLDERS)],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(self._child.stdout, self._lines), daemon=True).start()
        self._tasks, self._patience = 0, START_SECONDS + self.deadline

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        self._code = child.wait()
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()


def run_many(
    module: str, names: Iterable[str], *, devices: int, jobs: int = 1, deadline: float = DEADLINE
) -> Iterator[tuple[str, tuple[ModeOutcome, ...]]]:
    """Each subject in both modes, so many at a time, in the order in which they are done. Raises SubjectError."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    count = 0
    for name in names:
        waiting.put(name)
        count += 1

    def work() -> None:
        with Detector(devices=devices, deadline=deadline) as detector, contextlib.suppress(queue.Empty):
            while True:
                name = waiting.get_nowait()
                try:
                    done.put((name, detector.run(module, name)))
                except SubjectError as error:
                    done.put((name, error))

    for _ in range(jobs):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(count):
        name, outcomes = done.get()
        if isinstance(outcomes, SubjectError):
            raise SubjectError(f"{module} {name}: {outcomes}")
        yield name, outcomes


def unsound(
    module: str, verdicts: Mapping[str, str], **options: Any
) -> Iterator[tuple[str, tuple[ModeOutcome, ...], tuple[str, ...]]]:
    """Runs those that are said to be right, as `run_many`, and tells what was noticed in each; nothing should be."""
    names = [name for name, verdict in verdicts.items() if verdict == "right"]
    for name, outcomes in run_many(module, names, **options):
        yield name, outcomes, found(outcomes)


def _pump(stream: TextIO, lines: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)
