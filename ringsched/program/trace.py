"""Traces: the instructions that each rank really executes, with every index a number.

This is what the verifier works on, whether they come from a Program (`expand.py`) or were read out of a kernel. A
trace holds one call of the kernel: Enter, the body, Exit.

`Execution.symmetric` means that all ranks run the same trace up to translation: then only rank 0's trace is kept, and
ranks in it are displacements and unit numbers are relative to the rank whose memory is meant (see `expand.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ringsched.diagnostics import Span

SemaphoreKey = tuple[str, int]  # name, index within the array


@dataclass(frozen=True, slots=True)
class Block:
    """Units start … stop − 1 of a buffer."""

    buffer: str
    start: int
    stop: int

    @property
    def units(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Dma:
    """A DMA to `rank` (a local copy where that is this rank, or displacement 0): starts here, ends later.

    `amount` units are counted on `sent` here once the source has been read (None: nothing is counted), and on
    `received` at `rank` once the target has been written.
    """

    rank: int
    source: Block
    target: Block
    sent: SemaphoreKey | None
    received: SemaphoreKey | None
    amount: int
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    semaphore: SemaphoreKey
    amount: int
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    rank: int
    semaphore: SemaphoreKey
    amount: int
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The core reads `sources` and writes `target`, all within this instruction."""

    op: Literal["add", "copy", "multiply", "zero"]
    target: Block | None
    sources: tuple[Block, ...] = ()
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enter:
    """The kernel begins: `blocks` (scratch and output) are written with meaningless values, `semaphores` are zero."""

    blocks: tuple[Block, ...]
    semaphores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The kernel ends: `blocks` (scratch, output, input) belong to others from here on, `semaphores` must be zero."""

    blocks: tuple[Block, ...]
    semaphores: tuple[str, ...] = ()


Op = Dma | Wait | Signal | Compute | Enter | Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One call. `traces[r]` is what rank r executes, or `traces[0]` stands for all (`symmetric`)."""

    sides: tuple[int, ...]
    symmetric: bool
    traces: tuple[tuple[Op, ...], ...]
    capacity: tuple[tuple[str, int], ...] = ()  # units of each buffer
    coordinates: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        total = 1
        for side in self.sides:
            total *= side
        return total
