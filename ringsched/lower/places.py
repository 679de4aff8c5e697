"""Where each chunk lies on each rank at each moment: the operand, the result, or a receive slot.

    arrival of a copy      straight into its final place in the result where that is the chunk's last arrival, else a
    slot arrival of a reduction into a slot; the sum with what is held goes to the final place, or stays in the slot
    end                    a promised chunk that never arrived is copied from the operand

Every place is written by one arrival at most and by one addition after it, then only read; that is what makes slots
simple to reason about. An arrival is *processed* (waited for, and added) when its chunk is next needed: sent on, added
to, or at the end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from ringsched.collectives import Chunk
from ringsched.lower.lanes import Lanes, Piece, Use, sent_pieces

END = 1 << 60  # the step after the last
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operand:
    """The chunk lies in the operand."""


@dataclass(frozen=True, slots=True)
class Result:
    """The chunk lies in its place in the result."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The chunk lies where piece `piece` of value `value` of use number `use` of a lane arrived."""

    lane: int
    use: int
    value: int
    piece: int
    depth: int  # how many leading indices the piece fixes


Place = Operand | Result | Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One DMA from `source` on the sender to `target` on the receiver; `extra` indices narrow the piece down."""

    value: int
    piece: int
    extra: Piece
    source: Place
    target: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """The same at the receiver: it landed in `target`; `term` is added to it and the sum lies in `total`."""

    value: int
    piece: int
    extra: Piece
    target: Place
    term: Place | None
    total: Place


Moment = tuple[int, int]  # step, position of the lane's use within the step


@dataclass(slots=True, kw_only=True)
class Places:
    """`sent[lane, step][rank]`, `arrived[lane, step][rank]`, and when an arrival is processed (the same on all ranks).

    `copied[rank]`: promised chunks to be brought to the result at the end, and from where; `blank[rank]`: units of the
    result that no chunk comes to. `read[lane, use]`: the steps of the sends that read a slot of that use.
    """

    sent: dict[tuple[int, int], dict[int, list[Sent]]] = field(default_factory=dict)
    arrived: dict[tuple[int, int], dict[int, list[Arrived]]] = field(default_factory=dict)
    processed: dict[tuple[int, int], Moment] = field(default_factory=dict)
    copied: dict[int, list[tuple[Chunk, Place]]] = field(default_factory=dict)
    blank: dict[int, list[Piece]] = field(default_factory=dict)
    read: dict[tuple[int, int], set[tuple[int, int]]] = field(default_factory=dict)


@dataclass(slots=True)
class _Arrival:
    use: Use
    value: int
    piece: int
    chunk: Piece
    members: list[Chunk]


def find_places(lanes: Lanes) -> Places:
    """Simulates the schedule once more, this time with places instead of contributions."""
    places = Places()
    arrivals = _arrivals(lanes)
    last = _last_arrivals(arrivals)
    _process_times(lanes, arrivals, places)
    here: dict[int, dict[Chunk, Place]] = {}
    promise = lanes.flat.promise
    for rank in lanes.ranks:
        here[rank] = {c: Operand() for c in promise.chunks() if promise.initial(rank, c)}
    for step, uses in enumerate(lanes.uses):
        landed = {rank: _land(lanes, arrivals[rank][step], last[rank], here[rank], rank) for rank in lanes.ranks}
        for use in uses:
            _record_sends(lanes, use, here, landed, places)
        for rank in lanes.ranks:
            _record_arrivals(landed[rank], here[rank], rank, places)
    _finish(lanes, here, places)
    return places


def members(dims: tuple[int, ...], piece: Piece) -> list[Chunk]:
    """All chunks of a block."""
    found = [piece]
    for size in dims[len(piece) :]:
        found = [(*c, i) for c in found for i in range(size)]
    return found


def _arrivals(lanes: Lanes) -> dict[int, list[list[_Arrival]]]:
    """arrivals[rank][step], in the order of the lanes."""
    dims = lanes.flat.promise.dims
    found: dict[int, list[list[_Arrival]]] = {rank: [[] for _ in lanes.uses] for rank in lanes.ranks}
    for step, uses in enumerate(lanes.uses):
        for use in uses:
            for receiver, sender in _ends(lanes, use):
                for value in use.values:
                    for number, piece in enumerate(sent_pieces(lanes, use, sender, value)):
                        arrival = _Arrival(use, value, number, piece, members(dims, piece))
                        found[receiver][step].append(arrival)
    return found


def _ends(lanes: Lanes, use: Use) -> Iterator[tuple[int, int]]:
    """(receiver, sender) pairs of a use, for the ranks that are looked at."""
    if lanes.symmetric:
        yield 0, lanes.sender(use, 0)
        return
    for sender in use.senders:
        yield lanes.receiver(use, sender), sender


def _last_arrivals(arrivals: dict[int, list[list[_Arrival]]]) -> dict[int, dict[Chunk, tuple[int, int]]]:
    """For each rank and chunk the last arrival: its step and its place within the step."""
    return {
        rank: {
            chunk: (step, number)
            for step, group in enumerate(steps)
            for number, arrival in enumerate(group)
            for chunk in arrival.members
        }
        for rank, steps in arrivals.items()
    }


def _process_times(lanes: Lanes, arrivals: dict[int, list[list[_Arrival]]], places: Places) -> None:
    """Backwards through the schedule: when is each chunk needed next?"""
    needed: dict[int, dict[Chunk, Moment]] = {rank: {} for rank in lanes.ranks}
    dims = lanes.flat.promise.dims
    for step in reversed(range(len(lanes.uses))):
        # The last use first: what arrives in it may be added to what arrives in an earlier one, on any rank.
        for use in reversed(lanes.uses[step]):
            mine = [(rank, a.members) for rank in lanes.ranks for a in arrivals[rank][step] if a.use is use]
            moments = [needed[rank].get(c, (END, 0)) for rank, chunks in mine for c in chunks]
            places.processed[use.lane, step] = min(moments, default=(END, 0))
            for rank, chunks in mine:
                needed[rank].update(dict.fromkeys(chunks, places.processed[use.lane, step]))
        for position, use in reversed(list(enumerate(lanes.uses[step]))):
            for sender in use.senders:
                for value in use.values:
                    for piece in sent_pieces(lanes, use, sender, value):
                        for chunk in members(dims, piece):
                            needed[sender][chunk] = (step, position)


_Landing = tuple[_Arrival, Chunk, Place, Place | None, Place]  # target, term, total


def _land(
    lanes: Lanes, group: list[_Arrival], last: dict[Chunk, tuple[int, int]], here: dict[Chunk, Place], rank: int
) -> list[_Landing]:
    """Where each chunk that arrives in one step lands, chunk by chunk."""
    promise = lanes.flat.promise
    found: list[_Landing] = []
    held = dict(here)
    for number, arrival in enumerate(group):
        lane = lanes.lanes[arrival.use.lane]
        use = bisect_left(lane.steps, arrival.use.step)
        slot = Slot(lane.number, use, arrival.value, arrival.piece, len(arrival.chunk))
        for chunk in arrival.members:
            final = bool(promise.promised(rank, chunk)) and last[chunk] == (arrival.use.step, number)
            term = held.get(chunk) if lane.statement.op == "reduce" else None
            if term is not None:
                landing: _Landing = (arrival, chunk, slot, term, Result() if final else slot)
            else:
                place: Place = Result() if final else slot
                landing = (arrival, chunk, place, None, place)
            held[chunk] = landing[4]
            found.append(landing)
    return found


def _record_sends(
    lanes: Lanes, use: Use, here: dict[int, dict[Chunk, Place]], landed: dict[int, list[_Landing]], places: Places
) -> None:
    table = places.sent.setdefault((use.lane, use.step), {})
    for sender in use.senders:
        receiver = sender if lanes.symmetric else lanes.receiver(use, sender)
        targets = {(a.value, a.piece, chunk): target for a, chunk, target, _, _ in landed[receiver] if a.use is use}
        table[sender] = []
        for value in use.values:
            for number, piece in enumerate(sent_pieces(lanes, use, sender, value)):
                chunks = members(lanes.flat.promise.dims, piece)
                there = [_seen_by_receiver(lanes, use, chunk) for chunk in chunks]
                pairs = [(here[sender][c], targets[value, number, t]) for c, t in zip(chunks, there, strict=True)]
                for block, (source, target) in coalesce(piece, chunks, pairs):
                    extra = block[len(piece) :]
                    table[sender].append(Sent(value=value, piece=number, extra=extra, source=source, target=target))
                    if isinstance(source, Slot):
                        places.read.setdefault((source.lane, source.use), set()).add((use.lane, use.step))


def _seen_by_receiver(lanes: Lanes, use: Use, chunk: Chunk) -> Chunk:
    """A chunk that rank 0 sends, as rank 0 would see it if it were the receiver (symmetric schedules)."""
    if not lanes.symmetric:
        return chunk
    back = lanes.flat.topology.at(lanes.sender(use, 0))  # the opposite of the displacement
    return tuple(
        index if axis is None else lanes.flat.onward(index, back[axis], lanes.flat.promise.dims[d])
        for d, (index, axis) in enumerate(zip(chunk, lanes.rotation, strict=True))
    )


def _record_arrivals(landed: list[_Landing], here: dict[Chunk, Place], rank: int, places: Places) -> None:
    groups: dict[int, list[_Landing]] = {}
    for landing in landed:
        groups.setdefault(id(landing[0]), []).append(landing)
        here[landing[1]] = landing[4]
    for group in groups.values():
        arrival = group[0][0]
        table = places.arrived.setdefault((arrival.use.lane, arrival.use.step), {}).setdefault(rank, [])
        chunks = [landing[1] for landing in group]
        for block, (target, term, total) in coalesce(arrival.chunk, chunks, [landing[2:] for landing in group]):
            table.append(
                Arrived(
                    value=arrival.value,
                    piece=arrival.piece,
                    extra=block[len(arrival.chunk) :],
                    target=target,
                    term=term,
                    total=total,
                )
            )


def coalesce(piece: Piece, chunks: list[Chunk], facts: list[T]) -> list[tuple[Piece, T]]:
    """The fewest blocks of `piece` with one fact each: whole where all agree, else split along the next dimension."""
    if all(fact == facts[0] for fact in facts):
        return [(piece, facts[0])]
    found: list[tuple[Piece, T]] = []
    depth = len(piece)
    start = 0
    for stop in range(1, len(chunks) + 1):
        if stop == len(chunks) or chunks[stop][depth] != chunks[start][depth]:
            found.extend(coalesce((*piece, chunks[start][depth]), chunks[start:stop], facts[start:stop]))
            start = stop
    return found


def _finish(lanes: Lanes, here: dict[int, dict[Chunk, Place]], places: Places) -> None:
    """What is left to do at the end: promised chunks that are not in the result, units that nothing comes to."""
    promise = lanes.flat.promise
    positions = promise.output_positions()
    for rank in lanes.ranks:
        filled = set()
        for chunk in promise.chunks():
            if not promise.promised(rank, chunk):
                continue
            filled.add(tuple(chunk[i] for i in positions))
            if not isinstance(here[rank][chunk], Result):
                places.copied.setdefault(rank, []).append((chunk, here[rank][chunk]))
        shape = promise.output_shape()
        blank = [unit for unit in members(shape, ()) if unit not in filled]
        if blank:
            everything = len(blank) == len(members(shape, ()))
            places.blank[rank] = [()] if everything else blank
