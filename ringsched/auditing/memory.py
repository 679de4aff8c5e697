"""What a kernel's refs refer to: buffers, and boxes cut out of them (`views.py`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from ringsched.auditing.walk import Reference

Role = Literal["operand", "result", "shared", "window", "scratch", "scoped", "semaphore", "barrier"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Buffer(Reference):
    """A piece of memory of one device, or an array of semaphores; the same name means the same on every device.

    `shared`: an operand that is a result as well. `window`: a block that the grid's pipeline copies in or out.
    """

    name: str
    shape: tuple[int, ...]
    bits: int  # of an element; 0 for semaphores
    dtype: Any
    space: str
    role: Role
    flag: int = 0  # of the semaphores of a scope: its first one among those of all scopes that it is in

    @property
    def is_semaphore(self) -> bool:
        return self.role in ("semaphore", "barrier") or self.bits == 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Range:
    """`count` indices from `start` on, `stride` apart."""

    start: int
    count: int
    stride: int = 1

    @property
    def stop(self) -> int:
        return self.start + (self.count - 1) * self.stride + 1 if self.count else self.start


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a buffer: one range for each dimension.

    `shape` and `dtype` are those of the view; `axes`: the buffer's dimensions in the order in which the view has them,
    which may leave out those of one index.
    """

    buffer: Buffer
    ranges: tuple[Range, ...]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: Any

    @property
    def elements(self) -> int:
        total = 1
        for each in self.ranges:
            total *= each.count
        return total

    @property
    def bytes(self) -> int:
        return -(-self.elements * self.buffer.bits // 8)

    def __str__(self) -> str:
        return f"{self.buffer.name}{subscript(self.ranges, self.buffer.shape)}"

    def pieces(self) -> tuple[slice, ...]:
        """As an index of numpy."""
        return tuple(slice(r.start, r.stop, r.stride) for r in self.ranges)

    def order(self) -> tuple[int, ...]:
        """The buffer's dimensions as the view has them; those that it does not show, all of size 1, come last."""
        return (*self.axes, *(d for d in range(len(self.ranges)) if d not in self.axes))


def subscript(ranges: tuple[Range, ...], shape: tuple[int, ...]) -> str:
    """`[2, 0:8]`, with trailing whole dimensions left out; nothing for all of a buffer."""
    parts = []
    for each, side in zip(ranges, shape, strict=True):
        if (each.start, each.count, each.stride) == (0, side, 1):
            parts.append(":")
        elif each.count == 1:
            parts.append(str(each.start))
        else:
            parts.append(f"{each.start}:{each.stop}" + (f":{each.stride}" if each.stride > 1 else ""))
    while parts and parts[-1] == ":":
        parts.pop()
    return f"[{', '.join(parts)}]" if parts else ""


class OutOfBounds(Exception):
    """An index or a slice that leaves its dimension."""

    def __init__(self, buffer: Buffer, dimension: int, first: int, last: int, side: int) -> None:
        self.buffer, self.dimension, self.first, self.last, self.side = buffer, dimension, first, last, side
        super().__init__(f"{buffer.name}: {first} … {last} of {side}")


def whole(buffer: Buffer) -> Region:
    ranges = tuple(Range(0, side) for side in buffer.shape)
    return Region(buffer, ranges, buffer.shape, tuple(range(len(ranges))), buffer.dtype)
