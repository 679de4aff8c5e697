"""The Program: what one device executes. SPMD: one text, read by every rank with its own coordinates.

    program     ::= buffer … semaphore … instruction …
    instruction ::= send | copy | wait_dma | signal | wait | add | multiply | round | zero | loop | when

Memory is counted in units; one unit is one chunk. A buffer is a grid of units, a region a sub-grid of it whose
leading dimensions are indexed. With a matrix multiply, a unit of the weight is the part that belongs to a chunk, and
buffers differ in the size of their units. Semaphores are arrays; DMA semaphores count units (the platform counts
bytes, a constant multiple).

    buffers: input    the operand (and a weight)     output   the result, written in full by the kernel
             scratch  slots and the like, meaningless outside the kernel
    semaphores: dma, regular (scratch, zero at entry and exit), barrier (shared by all calls with one collective_id)

Expressions may use the program's coordinates (`r`, or `x`, `y`, `z`), the number `r` of the rank, row-major over them,
and the variables of enclosing loops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ringsched.diagnostics import Span
from ringsched.expr import Expr, Int, Var

BARRIER = "barrier"
ZERO = Int(value=0)
RANK = Var(name="r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    name: str
    space: Literal["input", "output", "scratch"]
    shape: tuple[int, ...]  # the grid of units; () is a single unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Semaphore:
    name: str
    kind: Literal["dma", "regular", "barrier"]
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """`buffer[index…]`: the first dimensions at a point each, the others whole; contiguous by construction."""

    buffer: str
    index: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SemaphoreRef:
    semaphore: str
    index: Expr = ZERO


Peer = tuple[Expr, ...]  # one expression a coordinate, already wrapped into range


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Start a remote DMA: `source` here to `target` at `peer`; counts on `sent` here and on `received` there."""

    source: Region
    target: Region
    peer: Peer
    sent: SemaphoreRef
    received: SemaphoreRef
    chunk: tuple[Expr, ...] = field(default=(), compare=False)  # the leading indices of what is sent, for messages
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Start a local DMA from `source` to `target`; counts on `done`."""

    source: Region
    target: Region
    done: SemaphoreRef
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitDma:
    """Wait until `semaphore` has counted the units of `region`, `times` over, and take them off."""

    semaphore: SemaphoreRef
    region: Region
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Add `amount` to a regular or barrier semaphore of `peer`."""

    semaphore: SemaphoreRef
    peer: Peer
    amount: int = 1
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Wait until an own regular or barrier semaphore holds `amount`, and take it off."""

    semaphore: SemaphoreRef
    amount: int = 1
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """`target = left + right`, by the core itself; `target` may be one of the operands."""

    target: Region
    left: Region
    right: Region
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply:
    """`target = source @ weight`, plus `plus` where there is one, by the core itself."""

    target: Region
    source: Region
    weight: Region
    plus: Region | None = None
    note: str = field(default="", compare=False)
    origin: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """`target = source` in the dtype of the target, by the core itself."""

    target: Region
    source: Region
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """`target = 0`, by the core itself."""

    target: Region
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`body` for each value of `var` in first … last (both included)."""

    var: str
    first: Expr
    last: Expr
    body: tuple[Instruction, ...]
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """`body` where all conditions hold on this rank."""

    conditions: tuple[Expr, ...]
    body: tuple[Instruction, ...]
    note: str = field(default="", compare=False)


Instruction = Send | Copy | WaitDma | Signal | Wait | Add | Multiply | Round | Zero | Loop | When


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`sides` are the extents of the coordinates; ranks are numbered row-major over them."""

    name: str
    coordinates: tuple[str, ...]
    sides: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    semaphores: tuple[Semaphore, ...]
    body: tuple[Instruction, ...]

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def semaphore(self, name: str) -> Semaphore:
        return next(s for s in self.semaphores if s.name == name)
