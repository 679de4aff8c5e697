"""The lines with which the child tells its parent how far it is, and how the parent reads them.

They go to stdout, where the interpreter prints races and semaphores left over, so that one log holds all in order.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Any

MARK = "##ringsched "
RACE = "RACE DETECTED"
LEFTOVER = re.compile(r"Semaphore .* has non-zero count .*")
_EVENT = re.compile(rf"^{MARK}(\{{.*\}})$", re.MULTILINE)

Event = dict[str, Any]


def say(**event: object) -> None:
    """Prints an event; in one piece, since other threads print, too."""
    sys.stdout.write(f"\n{MARK}{json.dumps(event)}\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An event, the DMA mode that it belongs to, and what the interpreter printed between it and the next one."""

    mode: str | None
    event: Event
    text: str

    @property
    def races(self) -> list[str]:
        """The interpreter's account of each race."""
        return [text.strip() for text in self.text.split(RACE)[1:]]

    @property
    def leftovers(self) -> list[str]:
        """The interpreter's account of each semaphore left over: the first one of a device in a call."""
        return LEFTOVER.findall(self.text)


def read(log: str) -> list[Part]:
    """The events of a log, in order."""
    pieces = _EVENT.split(log)
    parts: list[Part] = []
    mode = None
    for event, text in zip(pieces[1::2], pieces[2::2], strict=True):
        fields = json.loads(event)
        mode = fields.get("mode", mode)
        parts.append(Part(mode=mode, event=fields, text=text))
    return parts
