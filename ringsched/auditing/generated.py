"""Kernels that ringsched wrote  →  audited, in a process of its own. This one imports no jax."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from ringsched.diagnostics import InternalError
from ringsched.processes import Child, read_log, start_module
from ringsched.schedule.schedule import Layers

SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A kernel module and what its `function` has to compute.

    `shapes`: of the operands on one rank. `compute`: moment and shard of what it multiplies; `layers`: for a chain.
    """

    source: str
    function: str
    kind: str
    root: int
    permutation: tuple[int, ...]
    sides: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    compute: tuple[str, str] | None
    gradient: bool
    layers: Layers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """`undecided`: why, where something could not be followed or the deadline passed; empty where all is right."""

    seconds: float
    undecided: str


class Auditor:
    """The process, started early; `with` ends it whatever happens."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="ringsched-")
        self._path = Path(self._directory.name)
        self._child: Child = start_module("ringsched.auditing.child", self._path, {"JAX_PLATFORMS": "cpu"})

    def __enter__(self) -> Auditor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.end()
        self._directory.cleanup()

    def audit(self, requests: Sequence[Request], deadline: float = SECONDS) -> Audited:
        """Raises InternalError where a kernel is wrong: its Program has been proven right. deadline: in seconds."""
        start = time.perf_counter()
        asked = {"seconds": deadline, "requests": [asdict(request) for request in requests]}
        exit_code = self._child.finish(json.dumps(asked) + "\n", deadline)
        seconds = time.perf_counter() - start
        if exit_code is None:
            more = "" if deadline >= SECONDS else f"; `ringsched verify --audit` gives it {SECONDS:.0f} s"
            return Audited(seconds=seconds, undecided=f"the audit did not end within {deadline:.0f} s{more}")
        if exit_code != 0:
            raise InternalError(f"the audit of the kernel ends with an exception\n{read_log(self._path)[-2000:]}")
        answers = json.loads((self._path / "audit.json").read_text(encoding="utf-8"))
        for answer in answers:
            if answer["verdict"] == "wrong":
                raise InternalError(f"the generated kernel is wrong, though its program is right\n{answer['text']}")
        open_ = next((answer["text"] for answer in answers if answer["verdict"] != "right"), "")
        return Audited(seconds=seconds, undecided=open_)
