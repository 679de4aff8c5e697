"""What a kernel's refs refer to: buffers, and boxes cut out of them.

ref, transforms  →  Region
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jax._src.state import indexing, types

from ringsched.auditing.scalars import Unknown
from ringsched.auditing.walk import Reference, Undecided
from ringsched.diagnostics import Span

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
    instance: int = 0  # of scoped memory: how often the scope was entered before

    @property
    def is_semaphore(self) -> bool:
        return self.role in ("semaphore", "barrier") or self.bits == 0


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

    `shape` is that of the view, `axes` the dimension of the buffer behind each of its dimensions (None: of size 1).
    """

    buffer: Buffer
    ranges: tuple[Range, ...]
    shape: tuple[int, ...]
    axes: tuple[int | None, ...]

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
        shown = [d for d in self.axes if d is not None]
        return (*shown, *(d for d in range(len(self.ranges)) if d not in shown))


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
    return Region(buffer, tuple(Range(0, side) for side in buffer.shape), buffer.shape, tuple(range(len(buffer.shape))))


def resolve(ref: Any, span: Span | None) -> Region:
    """The region of a ref or a transformed one, indices known. Raises OutOfBounds, Undecided."""
    if isinstance(ref, types.TransformedRef):
        if ref.multiref or not isinstance(ref.ref, Buffer):
            raise Undecided("it selects one of several refs", span)
        return view(ref.ref, ref.transforms, span)
    if not isinstance(ref, Buffer):
        raise Undecided("it uses a ref that the audit does not know", span)
    return whole(ref)


def view(buffer: Any, transforms: Any, span: Span | None) -> Region:
    """The region that is left of a buffer after these transforms, in order."""
    if not isinstance(buffer, Buffer):
        raise Undecided("it uses a ref that the audit does not know", span)
    ranges = [Range(0, side) for side in buffer.shape]
    shown: list[int | None] = list(range(len(ranges)))  # the dimension behind each one of the view; None: of size 1
    for transform in transforms:
        match transform:
            case indexing.NDIndexer():
                shown = _index(buffer, ranges, shown, transform, span)
            case types.TransposeTransform():
                shown = [shown[d] for d in transform.permutation]
            case types.ReshapeTransform():
                shown = _reshape(ranges, shown, tuple(transform.shape), span)
            case _:
                raise Undecided(f"the view `{type(transform).__name__}` of a ref is not known to the audit", span)
    shape = tuple(1 if d is None else ranges[d].count for d in shown)
    return Region(buffer, tuple(ranges), shape, tuple(shown))


def _index(
    buffer: Buffer, ranges: list[Range], shown: list[int | None], indexer: Any, span: Span | None
) -> list[int | None]:
    if tuple(indexer.int_indexer_shape):
        raise Undecided("a ref is indexed by an array", span)
    left: list[int | None] = []
    for d, index in zip(shown, indexer.indices, strict=True):
        old = Range(0, 1) if d is None else ranges[d]
        if isinstance(index, indexing.Slice):
            start, count, stride = _number(index.start, span), _number(index.size, span), max(int(index.stride), 1)
            left.append(d)
        else:
            start, count, stride = _number(index, span), 1, 1
        last = start + (count - 1) * stride
        if start < 0 or (count > 0 and last >= old.count) or (count == 0 and start > old.count) or count < 0:
            raise OutOfBounds(buffer, d or 0, start, last, old.count)
        if d is not None:
            ranges[d] = Range(old.start + start * old.stride, count, old.stride * stride)
    return left


def _reshape(
    ranges: list[Range], shown: list[int | None], shape: tuple[int, ...], span: Span | None
) -> list[int | None]:
    """Only dimensions of size 1 may come and go."""
    kept = [d for d in shown if d is not None and ranges[d].count != 1]
    if [ranges[d].count for d in kept] != [side for side in shape if side != 1]:
        raise Undecided("a ref is reshaped in a way that the audit does not follow", span)
    rest = iter(kept)
    return [None if side == 1 else next(rest) for side in shape]


def _number(value: Any, span: Span | None) -> int:
    if type(value) is int:
        return value
    if isinstance(value, Unknown | Reference):
        raise Undecided("an index depends on data that the audit does not know", span)
    if np.ndim(value):
        raise Undecided("a ref is indexed by an array", span)
    return int(value)
