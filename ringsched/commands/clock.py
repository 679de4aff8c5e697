"""How long the user has waited: since the command was typed, or since the last result that was shown."""

from __future__ import annotations

import os
import time
from pathlib import Path

_since = time.perf_counter()


def begin(*, with_start: bool) -> None:
    """The command begins; with_start: a process of its own, whose start the user waited for, too."""
    global _since
    _since = time.perf_counter() - (_age() if with_start else 0.0)


def lap() -> float:
    """Seconds since the command began, or since the last lap."""
    global _since
    now = time.perf_counter()
    seconds, _since = now - _since, now
    return seconds


def _age() -> float:
    """Seconds since this process was started; 0 where the system does not tell."""
    try:
        started = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
