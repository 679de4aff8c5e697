"""Accesses to the same chunk of a rank's memory, at least one a write, that nothing puts in order.

What puts events in order: their place in a block, dependences, and messages: what comes before a send comes before what
follows its receive. That a send waits for room puts events in order as well, but only at the depth of one protocol, so
it is not relied on.

The order is one and the same in every run, so one run finds a race if there is any. Each event's past is a set of
events as the bits of an integer; an access is checked against the last write of its chunk, a write against the reads
since, too. Where those are in order, so is all that was before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ringsched.diagnostics import Diagnostic, Label
from ringsched.importers.algorithm import Slot, Step
from ringsched.importers.layout import Cell, Layout
from ringsched.importers.network import Event, Network

MAX_SHOWN = 10


@dataclass(slots=True)
class _Chunk:
    """Who accessed a chunk: the bit of the last write, and of the reads since."""

    written: int = -1
    read: list[int] = field(default_factory=list)


def races(network: Network, layout: Layout, order: tuple[Event, ...]) -> tuple[Diagnostic, ...]:
    """RS817: each pair of steps once, up to a number of them."""
    pairs: dict[tuple[int, int], tuple[Slot, int]] = {}
    chunks: dict[tuple[int, Cell], _Chunk] = {}
    for bit, past in enumerate(_pasts(network, order)):
        event = order[bit]
        rank = network.blocks[event[0]].rank
        step = network.at(event).step

        def meet(other: int, slot: Slot, ahead: int, bit: int = bit, past: int = past) -> None:
            if other >= 0 and other != bit and not past >> other & 1:
                pairs.setdefault((other, bit), (slot, ahead))

        for slot in step.read():
            for ahead in range(step.count):
                chunk = _chunk(chunks, layout, rank, slot, ahead)
                meet(chunk.written, slot, ahead)
                chunk.read.append(bit)
        target = step.written()
        for ahead in range(step.count if target else 0):
            assert target is not None
            if step.type == "cpy" and layout.cell(rank, target, ahead) == layout.cell(rank, step.source, ahead):
                continue  # onto itself, as copies to the output are in place: it is there all the time
            chunk = _chunk(chunks, layout, rank, target, ahead)
            meet(chunk.written, target, ahead)
            for other in chunk.read:
                meet(other, target, ahead)
            chunk.written, chunk.read = bit, []
        if _meets_itself(layout, rank, step):
            pairs.setdefault((bit, bit), (step.target, 0))
    found = [_race(network, layout, order[a], order[b], slot, ahead) for (a, b), (slot, ahead) in pairs.items()]
    if len(found) > MAX_SHOWN:
        more = f"and {len(found) - MAX_SHOWN} more pairs of steps"
        last = found[MAX_SHOWN - 1]
        found[MAX_SHOWN - 1 :] = [replace(last, notes=(*last.notes, more))]
    return tuple(found)


def _pasts(network: Network, order: tuple[Event, ...]) -> Iterator[int]:
    """The events before each event of the order, as bits, its own among them."""
    current = [0] * len(network.blocks)
    flying: list[deque[int]] = [deque() for _ in network.connections]
    waited = {event for block in network.blocks for step in block.steps for event in step.after}
    kept: dict[Event, int] = {}
    for bit, event in enumerate(order):
        step = network.at(event)
        past = current[event[0]] | 1 << bit
        for before in step.after:
            past |= kept[before]
        if step.receives >= 0:
            past |= flying[step.receives].popleft()
        if step.sends >= 0:
            flying[step.sends].append(past)
        current[event[0]] = past
        if event in waited:
            kept[event] = past
        yield past


def _chunk(chunks: dict[tuple[int, Cell], _Chunk], layout: Layout, rank: int, slot: Slot, ahead: int) -> _Chunk:
    cell = layout.cell(rank, slot, ahead)
    assert cell is not None  # bounds are checked before
    return chunks.setdefault((rank, cell), _Chunk())


def _meets_itself(layout: Layout, rank: int, step: Step) -> bool:
    """Whether a step copies a range onto another one that overlaps it: its threads go in no order."""
    target = step.written()
    if target is None or step.count < 2:
        return False
    written = {layout.cell(rank, target, ahead): ahead for ahead in range(step.count)}
    for slot in step.read():
        if any(written.get(layout.cell(rank, slot, ahead), ahead) != ahead for ahead in range(step.count)):
            return True
    return False


def _race(network: Network, layout: Layout, first: Event, second: Event, slot: Slot, ahead: int) -> Diagnostic:
    rank = network.blocks[first[0]].rank
    place = Slot(buffer=slot.buffer, offset=slot.offset + ahead)
    if first == second:
        step = network.at(first).step
        return Diagnostic(
            code="RS817",
            message=f"a race at rank {rank}: one step reads and writes overlapping ranges",
            primary=Label(
                span=step.span, text=f"{step.count} chunks from {step.read()[0]} onto those from {step.target}"
            ),
            help="copy through scratch memory, or chunk by chunk in the order that keeps what is still to be read",
        )
    a, b = (network.at(event).step for event in (first, second))
    cell = layout.cell(rank, slot, ahead)
    writes = [_covers(layout, rank, step, cell) for step in (a, b)]
    verbs = [
        f"{'writes' if write else 'reads'} {place}, in block {network.blocks[event[0]].block.id}"
        for write, event in zip(writes, (first, second), strict=True)
    ]
    waiting, other = (second, first) if writes[0] else (first, second)
    block, number = network.blocks[other[0]].block.id, network.at(other).step.number
    return Diagnostic(
        code="RS817",
        message=f"a race for {place} of rank {rank}: nothing puts these two steps in order",
        primary=Label(span=b.span, text=verbs[1]),
        secondary=(Label(span=a.span, text=verbs[0]),),
        notes=(f"{network.name(first)} and {network.name(second)}",),
        help=f'if {network.name(waiting)} is to come later, it has to wait: depid="{block}" deps="{number}", '
        'and hasdep="1" at that step',
    )


def _covers(layout: Layout, rank: int, step: Step, cell: Cell | None) -> bool:
    """Whether the step writes this cell."""
    target = step.written()
    return target is not None and any(layout.cell(rank, target, ahead) == cell for ahead in range(step.count))
