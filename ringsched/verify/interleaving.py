"""Interleavings of an execution, event by event, and the faults that one of them can show.

A DMA has up to two streams of units, one to the semaphore that it counts reading on and one to that for writing; the
last unit of a stream is its end. Positions count instructions through all calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ringsched.program.trace import Block, Dma, SemaphoreKey

End = Literal["read", "written"]
Kind = Literal["read", "write", "entry", "exit", "signal"]
Space = Literal["memory", "semaphore"]


@dataclass(frozen=True, slots=True)
class Do:
    """`rank` executes its next instruction."""

    rank: int


@dataclass(frozen=True, slots=True)
class Units:
    """`count` more units of the DMA at `position` of `rank` arrive where it counts its `end`."""

    rank: int
    position: int
    end: End
    count: int


Event = Do | Units
Interleaving = tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """An access by the instruction at `position` of `rank`."""

    rank: int
    position: int
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """At event `at`, `later` begins though `earlier` is still under way on the same units of `owner`.

    In the space of semaphores, `overlap` names the array.
    """

    at: int
    earlier: Touch
    later: Touch
    owner: int
    space: Space
    overlap: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """At event `at`, `touch` reaches memory or a semaphore of `owner` while it is not in the kernel.

    It has not come back since it left at position `left` (None: never was there); `entry` would be the next entry.
    """

    at: int
    touch: Touch
    owner: int
    space: Space
    block: Block
    left: int | None
    entry: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckRank:
    """The rank waits at `position`, its semaphore holds `has` units, and nothing can change that."""

    rank: int
    position: int
    has: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Nothing can happen any more, and these ranks have not finished."""

    at: int
    ranks: tuple[StuckRank, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """All ranks have finished `calls` calls, all DMAs have ended, and a semaphore of `owner` holds `units`."""

    at: int
    owner: int
    semaphore: SemaphoreKey
    units: int
    calls: int


Fault = Conflict | Outside | Stuck | Left


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the run shows, in its order, and how many instructions each rank has executed in the end."""

    faults: tuple[Fault, ...]
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The units that a DMA counts for one of its ends, on `semaphore` of `owner` (None: its end is seen by no one)."""

    rank: int
    position: int
    end: End
    owner: int
    semaphore: SemaphoreKey | None
    units: int


def streams(rank: int, position: int, op: Dma) -> tuple[Stream, ...]:
    """A local copy with a single semaphore ends as a whole."""
    ends: list[tuple[End, int, SemaphoreKey | None]] = [("written", op.rank, op.received)]
    if read_end(rank, op) == "read":
        ends.insert(0, ("read", rank, op.sent))
    return tuple(
        Stream(
            rank=rank,
            position=position,
            end=end,
            owner=owner,
            semaphore=semaphore if op.amount else None,
            units=op.amount if semaphore is not None and op.amount else 1,
        )
        for end, owner, semaphore in ends
    )


def read_end(rank: int, op: Dma) -> End:
    """The end by which the DMA's source has been read."""
    return "written" if op.rank == rank and op.sent is None else "read"
