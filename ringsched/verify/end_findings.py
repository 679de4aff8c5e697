"""Findings about the end of a schedule: what is not as the collective promises, and why (RS302, RS304, RS306).

A chunk's data never leaves its index, so the history of the one chunk that is wrong tells the whole story.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ringsched.collectives import REDUCING
from ringsched.diagnostics import Diagnostic, Span
from ringsched.schedule.flat import FlatSchedule
from ringsched.verify.flow import Mode
from ringsched.verify.flow_findings import held_by
from ringsched.verify.resolve import Move, chunk_at
from ringsched.verify.words import chunk_name, chunks_list, label, moment, rank_name, ranks_of, site

# One rank gets the chunk.
SINGLE = frozenset({"reduce_scatter", "reduce", "all_to_all", "permute", "gather", "scatter"})


class Event(NamedTuple):
    """A write of the chunk at the receiver of a move, with the contributions before and after."""

    step: int
    move: Move
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What happened to one chunk: every write, and what each rank holds at the end."""

    chunk: int
    events: tuple[Event, ...]
    final: tuple[int, ...]
    lasting: tuple[int, ...]  # for each step the contributions that some rank holds after it


def story_of(mode: Mode, chunk: int) -> Story:
    """Follows one chunk through all ranks; every step of it has been found possible."""
    flat = mode.flat
    name = chunk_at(flat.promise.dims, chunk)
    state = [flat.promise.initial(rank, name) for rank in range(flat.topology.ranks)]
    events: list[Event] = []
    lasting = []
    for step, moves in enumerate(mode.history(chunk)):
        after = list(state)
        for move in moves:
            incoming, before = state[move.sender], after[move.receiver]
            after[move.receiver] = incoming if move.transfer.statement.op == "copy" else before | incoming
            events.append(Event(step, move, before, after[move.receiver]))
        state = after
        everywhere = 0
        for mask in state:
            everywhere |= mask
        lasting.append(everywhere)
    return Story(chunk=chunk, events=tuple(events), final=tuple(state), lasting=tuple(lasting))


def end_finding(mode: Mode, state: list[int], wrong: Sequence[tuple[int, int]], promised: int) -> Diagnostic:
    """The finding for the first of the (rank, chunk) that are `wrong`; `promised` cells had to be brought about."""
    rank, chunk = wrong[0]
    flat = mode.flat
    story = story_of(mode, chunk)
    want = flat.promise.promised(rank, chunk_at(flat.promise.dims, chunk))
    lost = _overwriting(story, rank, want & ~story.final[rank])
    if lost is not None:
        return _lost(flat, story, rank, want, lost)
    # Where chunks are copied, ranks on the way hold them too: the owners are wrong only if no chunk at all gets home.
    if flat.promise.kind in SINGLE and (flat.promise.kind in REDUCING or len(wrong) == promised):
        for other, mask in enumerate(story.final):
            if other != rank and mask == want and any(e.move.receiver == other for e in story.events):
                return _wrong_owner(flat, story, rank, other)
    return _missing(mode, state, story, rank, want)


def _overwriting(story: Story, rank: int, missing: int) -> Event | None:
    """The copy that did away with something that is missing: at that rank, or its last holder's."""
    copies = [e for e in story.events if e.move.transfer.statement.op == "copy" and e.before & ~e.after & missing]
    own = [e for e in copies if e.move.receiver == rank]
    if own:
        return own[-1]
    return next((e for e in copies if e.before & ~e.after & missing & ~story.lasting[e.step]), None)


def _lost(flat: FlatSchedule, story: Story, rank: int, want: int, event: Event) -> Diagnostic:
    topology, move = flat.topology, event.move
    what = chunk_name(chunk_at(flat.promise.dims, story.chunk))
    missing = want & ~story.final[rank]
    gone = ranks_of(topology, event.before & ~event.after & missing)
    statement = move.transfer.statement
    where = rank_name(topology, move.receiver)
    text = f"overwrites {what} at {where}{moment(flat, move.transfer, move.value, event.step)}, with the term of {gone}"
    return Diagnostic(
        code="RS304",
        message="contribution is lost",
        primary=label(text, statement.chunk.span, statement.span, flat.schedule.steps_span, flat.schedule.span),
        counterexample=site(flat, move.transfer, move.value, move.sender),
        notes=(f"missing in {what} of {rank_name(topology, rank)} at the end: {ranks_of(topology, missing)}",),
        help="write op: reduce to add to what is there, or pass the sum on before it is overwritten",
    )


def _wrong_owner(flat: FlatSchedule, story: Story, rank: int, other: int) -> Diagnostic:
    topology = flat.topology
    what = chunk_name(chunk_at(flat.promise.dims, story.chunk))
    event = next(e for e in reversed(story.events) if e.move.receiver == other)
    move = event.move
    statement = move.transfer.statement
    text = f"the complete {what} ends at {rank_name(topology, other)}; its owner is {rank_name(topology, rank)}"
    return Diagnostic(
        code="RS306",
        message="chunk ends at the wrong rank",
        primary=label(text, statement.chunk.span, statement.span, flat.schedule.steps_span, flat.schedule.span),
        counterexample=site(flat, move.transfer, move.value, move.sender),
        notes=(f"{flat.promise.kind} promises {what} to {rank_name(topology, rank)}",),
        help="shift the chunk index so that the last transfer of each chunk ends at its owner",
    )


def _missing(mode: Mode, state: list[int], story: Story, rank: int, want: int) -> Diagnostic:
    flat = mode.flat
    topology = flat.topology
    who, what = rank_name(topology, rank), chunk_name(chunk_at(flat.promise.dims, story.chunk))
    last = next((e for e in reversed(story.events) if e.move.receiver == rank), None)
    spans: tuple[Span | None, ...] = (flat.schedule.steps_span, flat.schedule.span)
    if last is not None:
        statement = last.move.transfer.statement
        spans = (statement.chunk.span or statement.span, *spans)
    have = story.final[rank]
    if have:
        message = "contributions are missing at the end"
        text = f"{who} ends with {what} without the term of {ranks_of(topology, want & ~have)}"
        notes = (f"in {what} of {who} at the end: {ranks_of(topology, have)}",)
    else:
        message = "chunk is missing at the end"
        text = f"{what} never arrives at {who}"
        notes = (f"held by {who} at the end: {chunks_list(held_by(mode, state, rank))}",)
    return Diagnostic(
        code="RS302",
        message=message,
        primary=label(text, *spans),
        counterexample=site(flat, None, None, rank),
        notes=notes,
        help="add the transfers that bring it, or make the loop that does longer",
    )
