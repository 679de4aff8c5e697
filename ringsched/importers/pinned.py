"""A list of transfers, each with its ranks, its chunk and its step → Schedule, as short as it can be written.

Chunks that go the same way in the same step become slices. The topology is a ring or a line where these are just the
links in use, else the list of links.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ringsched.expr import Expr, Int
from ringsched.schedule.schedule import (
    ChunkRef,
    Collective,
    Op,
    Rank,
    Schedule,
    Slice,
    Step,
    TopologySpec,
    Transfer,
)

Box = tuple[tuple[int, int], ...]  # half-open intervals


class Pinned(NamedTuple):
    step: int
    sender: int
    receiver: int
    chunk: tuple[int, ...]
    op: Op


def schedule_of(
    pinned: Iterable[Pinned], *, name: str, description: str, collective: Collective, ranks: int, dims: tuple[int, ...]
) -> Schedule:
    """`dims`: the chunk space."""
    ways: dict[tuple[int, int, int, Op], set[tuple[int, ...]]] = {}
    for one in sorted(pinned):
        ways.setdefault((one.step, one.sender, one.receiver, one.op), set()).add(one.chunk)
    steps: dict[int, list[Transfer]] = {}
    for (step, sender, receiver, op), chunks in ways.items():
        for box in boxes(chunks):
            transfer = Transfer(chunk=_reference(box, dims), to=_rank(receiver), op=op, sender=_rank(sender))
            steps.setdefault(step, []).append(transfer)
    return Schedule(
        name=name,
        description=description,
        collective=collective,
        topology=_topology({(min(s, r), max(s, r)) for _, s, r, _ in ways}, ranks),
        parameters=(),
        chunks=tuple(Int(value=size) for size in dims),
        items=tuple(Step(transfers=tuple(steps[step])) for step in sorted(steps)),
    )


def boxes(chunks: Iterable[tuple[int, ...]]) -> list[Box]:
    """Boxes that hold these chunks and no others: joined along the last dimension first."""
    found: list[Box] = sorted(tuple((i, i + 1) for i in chunk) for chunk in chunks)
    for dimension in reversed(range(len(found[0]) if found else 0)):
        rows: dict[Box, list[tuple[int, int]]] = {}
        for box in found:
            intervals = rows.setdefault((*box[:dimension], *box[dimension + 1 :]), [])
            if intervals and intervals[-1][1] == box[dimension][0]:
                intervals[-1] = (intervals[-1][0], box[dimension][1])
            else:
                intervals.append(box[dimension])
        found = sorted((*rest[:dimension], i, *rest[dimension:]) for rest, intervals in rows.items() for i in intervals)
    return found


def _reference(box: Box, dims: tuple[int, ...]) -> ChunkRef:
    index: list[Expr | Slice] = []
    for (start, stop), size in zip(box, dims, strict=True):
        if stop - start == 1:
            index.append(Int(value=start))
        elif stop - start == size:
            index.append(Slice())
        else:
            index.append(Slice(start=Int(value=start), stop=Int(value=stop)))
    while len(index) > 1 and index[-1] == Slice():
        index.pop()
    return ChunkRef(index=tuple(index))


def _rank(rank: int) -> Rank:
    return Rank(coordinates=(Int(value=rank),))


def _topology(links: set[tuple[int, int]], ranks: int) -> TopologySpec:
    line = {(rank, rank + 1) for rank in range(ranks - 1)}
    if links == line | ({(0, ranks - 1)} if ranks > 1 else set()):
        return TopologySpec(kind="ring", sides=(Int(value=ranks),))
    if links == line:
        return TopologySpec(kind="line", sides=(Int(value=ranks),))
    return TopologySpec(kind="links", links=tuple(sorted(links)))
