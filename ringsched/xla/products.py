"""When chunks are multiplied: the turns of a schedule that multiplies, each with what is multiplied in it.

On arrival, a chunk is multiplied as it is stored. Before sending, a rank's own term of a chunk is computed when the
chunk is first touched there: in front of the step that sends it, or with what arrives for it. A shift does the same at
all ranks; where they would have to do different things, or a chunk comes twice, all is multiplied at one time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ringsched.expr import Int, Var
from ringsched.schedule.flat import FlatSchedule
from ringsched.verify.resolve import strides
from ringsched.xla.exchange import Own, Shift
from ringsched.xla.shifts import Turn

Steps = Sequence[tuple[Turn, ...]]


def interleaved(flat: FlatSchedule, steps: Steps) -> list[tuple[Turn, ...]] | None:
    """The same steps with products between them; None: they cannot be."""
    assert flat.schedule.compute is not None
    if flat.schedule.compute.overlap == "none":
        return None
    return _arriving(flat, steps) if flat.schedule.compute.moment == "on arrival" else _sending(flat, steps)


def own_chunks(flat: FlatSchedule) -> Own:
    """Those that a rank has before a gather."""
    names = ("r",) if flat.promise.group == 1 else flat.topology.coordinates
    return Own(index=tuple(Var(name=name) for name in names))


def _arriving(flat: FlatSchedule, steps: Steps) -> list[tuple[Turn, ...]] | None:
    dims, ranks = flat.promise.dims, flat.topology.ranks
    parts = strides(dims)[flat.promise.group - 1]  # a rank's own ones are these many in a row
    known = {(rank, rank * parts + part) for rank in range(ranks) for part in range(parts)}
    for turn in (turn for step in steps for turn in step):
        for move in turn.moves:
            for chunk in move.chunks:
                if (move.receiver, chunk) in known:
                    return None
                known.add((move.receiver, chunk))
    return [tuple(replace(turn, multiplies=True) for turn in step) for step in steps]


def _sending(flat: FlatSchedule, steps: Steps) -> list[tuple[Turn, ...]] | None:
    touched: set[tuple[int, int]] = set()
    found = []
    for step in steps:
        begun = []
        for turn in step:
            sent = {(move.sender, chunk) for move in turn.moves for chunk in move.chunks}
            parts = _untouched(flat, turn, sent, touched)
            if parts is None or (parts and len(turn.routes) < flat.topology.ranks):
                return None  # a rank that sends nothing would compute what it may have already
            touched |= sent
            begun.append(replace(turn, sends_first=parts))
        done = []
        for turn in begun:
            received = {(move.receiver, chunk) for move in turn.moves for chunk in move.chunks}
            parts = _untouched(flat, turn, received, touched)
            if parts is None:
                return None
            whole = len(parts) == _parts(flat, turn)
            if parts and not whole and len(turn.routes) < flat.topology.ranks:
                return None
            touched |= received
            done.append(replace(turn, multiplies=whole, needs_first=() if whole else parts))
        found.append(tuple(done))
    everything = flat.topology.ranks * math.prod(flat.promise.dims)
    return found if len(touched) == everything else None  # a single rank neither sends nor receives


def _untouched(
    flat: FlatSchedule, turn: Turn, chunks: set[tuple[int, int]], touched: set[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Which parts of the chunks are not touched, the same at all ranks; None where they are not the same."""
    parts = _parts(flat, turn)
    new = {chunk % parts for _, chunk in chunks - touched}
    if any(chunk % parts in new for _, chunk in chunks & touched):
        return None
    return tuple(sorted(new))


def _parts(flat: FlatSchedule, turn: Turn) -> int:
    """How many chunks a statement sends by naming fewer dimensions than they have."""
    return math.prod(flat.promise.dims[len(turn.transfer.statement.chunk.index) :])


def first_products(flat: FlatSchedule, turn: Turn, shift: Shift) -> Iterator[Own]:
    """What has to be computed before the turn."""
    index = turn.transfer.statement.chunk.index
    for place, parts in ((shift.sent, turn.sends_first), (shift.arrived, turn.needs_first)):
        if len(parts) == _parts(flat, turn):
            yield Own(index=place, each=shift.each)
            continue
        for part in parts:
            at = np.unravel_index(part, flat.promise.dims[len(index) :])
            yield Own(index=(*place, *(Int(value=int(i)) for i in at)), each=shift.each)
