"""Parts of a schedule as they are written in a file, for messages, comments and the printer."""

from __future__ import annotations

from ringsched.expr import Expr, show
from ringsched.schedule.schedule import ChunkRef, Range, Rank, Slice


def show_chunk(chunk: ChunkRef) -> str:
    """`chunk[(r - s) % N, 0:2]`."""
    if not chunk.index:
        return "chunk"
    return f"chunk[{', '.join(show_index(part) for part in chunk.index)}]"


def show_index(part: Expr | Slice) -> str:
    if not isinstance(part, Slice):
        return show(part)
    return f"{show(part.start) if part.start else ''}:{show(part.stop) if part.stop else ''}"


def show_range(range: Range) -> str:
    """`s in 0 .. N - 2`."""
    return f"{range.var} in {show(range.first)} .. {show(range.last)}"


def show_rank(rank: Rank) -> str:
    """`r + 1`, or `[x + 1, y]`."""
    if len(rank.coordinates) == 1:
        return show(rank.coordinates[0])
    return f"[{', '.join(show(c) for c in rank.coordinates)}]"
