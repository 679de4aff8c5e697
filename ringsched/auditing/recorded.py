"""What the walk of one device records; regions are still boxes, not units (see layout.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ringsched.auditing.memory import Buffer, Region
from ringsched.diagnostics import Diagnostic, Span
from ringsched.program.trace import SemaphoreKey, Signal, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The core reads or writes a region.

    `value`: what it writes, or the Reading that it makes. `repeated`: the core has done the same since it last
    started, signalled or waited for something, so that for races it is nothing new.
    """

    kind: Literal["read", "write"]
    region: Region
    value: Any
    repeated: bool
    note: str
    origin: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A DMA to `rank`; `amount` bytes are counted at each end."""

    rank: int
    source: Region
    target: Region
    sent: SemaphoreKey | None
    received: SemaphoreKey
    amount: int
    note: str
    origin: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Scoped memory begins (`enters`) or ends."""

    enters: bool
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An operand comes into its memory, later than at the entry to the kernel; it holds its value from there on."""

    region: Region
    note: str
    origin: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The grid has copied a block out: `region` is now a part of the kernel's result `number`, from `starts` on."""

    region: Region
    number: int
    starts: tuple[int, ...] | None
    sizes: tuple[int, ...]


Recorded = Access | Loaded | Stored | Copy | Frame | Wait | Signal


class Fault(Exception):
    """A finding after which the device's trace has no meaning; the walk ends."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        self.diagnostic = diagnostic
        super().__init__(diagnostic.message)
