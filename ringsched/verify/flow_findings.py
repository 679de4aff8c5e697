"""Findings about data flow: what a step cannot do (RS301, RS303, RS305)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ringsched.diagnostics import Diagnostic, Span
from ringsched.schedule.flat import FlatSchedule
from ringsched.verify.flow import Carried, Mode, Problem
from ringsched.verify.resolve import Move, chunk_at
from ringsched.verify.words import (
    chunk_name,
    chunks_list,
    label,
    moment,
    place_name,
    rank_name,
    ranks_of,
    site,
)


def step_finding(mode: Mode, state: list[int], step: int, moves: Sequence[Carried], problem: Problem) -> Diagnostic:
    """The finding for a problem in step `step`; `state` is that before it."""
    match problem.kind:
        case "absent":
            return _absent(mode, state, step, problem)
        case "no base":
            return _no_base(mode, step, problem)
        case "twice":
            return _twice(mode, step, problem)
        case "collision":
            return _collision(mode, step, moves, problem)
        case _:
            assert_never(problem.kind)


def _absent(mode: Mode, state: list[int], step: int, problem: Problem) -> Diagnostic:
    flat, move = mode.flat, problem.carried.move
    who, what = rank_name(flat.topology, move.sender), chunk_name(chunk_at(flat.promise.dims, problem.chunk))
    held = held_by(mode, state, move.sender)
    return Diagnostic(
        code="RS301",
        message="chunk is sent before it is held",
        primary=label(
            f"{who} does not hold {what}{moment(flat, move.transfer, move.value, step)}", *_chunk_spans(flat, move)
        ),
        counterexample=site(flat, move.transfer, move.value, move.sender),
        notes=(f"held by {who} at that point: {chunks_list(held)}",),
        help="send a chunk that the rank holds from the start, or one that an earlier step has brought",
    )


def _no_base(mode: Mode, step: int, problem: Problem) -> Diagnostic:
    flat, move = mode.flat, problem.carried.move
    who, what = rank_name(flat.topology, move.receiver), chunk_name(chunk_at(flat.promise.dims, problem.chunk))
    at = moment(flat, move.transfer, move.value, step)
    return Diagnostic(
        code="RS301",
        message="chunk is added to before it is held",
        primary=label(f"{who} holds nothing of {what} to add to{at}", *_chunk_spans(flat, move)),
        counterexample=site(flat, move.transfer, move.value, move.sender),
        notes=(f"sent by {rank_name(flat.topology, move.sender)} with `op: reduce`",),
        help="write op: copy, which puts the chunk in place",
    )


def _twice(mode: Mode, step: int, problem: Problem) -> Diagnostic:
    flat, move = mode.flat, problem.carried.move
    topology = flat.topology
    before, mask = (mode.absolute(problem.carried, m) for m in (problem.before, problem.mask))
    doubled = ranks_of(topology, before & mask)
    who, what = rank_name(topology, move.receiver), chunk_name(chunk_at(flat.promise.dims, problem.chunk))
    at = moment(flat, move.transfer, move.value, step)
    return Diagnostic(
        code="RS303",
        message="contribution is counted twice",
        primary=label(f"adds the term of {doubled} a second time to {what}{at}", *_chunk_spans(flat, move)),
        counterexample=site(flat, move.transfer, move.value, move.sender),
        notes=(
            f"{who} has in {what} already: {ranks_of(topology, before)}",
            f"{rank_name(topology, move.sender)} adds: {ranks_of(topology, mask)}",
        ),
        help="write op: copy where complete sums are passed on, or add to a sum that does not hold these terms yet",
    )


def _collision(mode: Mode, step: int, moves: Sequence[Carried], problem: Problem) -> Diagnostic:
    flat, move = mode.flat, problem.carried.move
    topology = flat.topology
    first = next(carried.move for carried in moves if problem.target in carried.targets)
    who, what = rank_name(topology, move.receiver), chunk_name(chunk_at(flat.promise.dims, problem.chunk))
    secondary = label("the other write", *_chunk_spans(flat, first))
    same = first.transfer.statement is move.transfer.statement
    return Diagnostic(
        code="RS305",
        message="chunk is written twice in one step",
        primary=label(
            f"writes {what} at {who}{moment(flat, move.transfer, move.value, step)}, and so does another transfer",
            *_chunk_spans(flat, move),
        ),
        secondary=() if same or secondary is None else (secondary,),
        counterexample=site(flat, move.transfer, move.value, move.sender),
        notes=(f"the step writes {what} at {who} from {_senders(mode, moves, problem)}",),
        help="the order of transfers in one step is open: put them into two steps, or send different chunks",
    )


def _senders(mode: Mode, moves: Sequence[Carried], problem: Problem) -> str:
    """The ranks that write the cell in this step."""
    topology = mode.flat.topology
    found = []
    for carried in moves:
        if problem.target not in carried.targets:
            continue
        # In the symmetric mode all moves start at rank 0: shift the receiver to the one that is spoken of.
        receiver, sender = topology.at(carried.move.receiver), topology.at(carried.move.sender)
        spoken = topology.at(problem.carried.move.receiver)
        place = tuple(s + at - got for s, at, got in zip(sender, spoken, receiver, strict=True))
        rank = topology.rank(place)
        name = place_name(topology.at(rank if rank is not None else carried.move.sender))
        if name not in found:
            found.append(name)
    return f"ranks {' and '.join(found)}" if len(found) > 1 else f"rank {found[0]}, twice"


def held_by(mode: Mode, state: list[int], rank: int) -> list[tuple[int, ...]]:
    """The chunks that a followed rank holds."""
    promise = mode.flat.promise
    return [chunk for number, chunk in enumerate(promise.chunks()) if state[mode.cell(rank, number)]]


def _chunk_spans(flat: FlatSchedule, move: Move) -> tuple[Span | None, ...]:
    statement = move.transfer.statement
    return (statement.chunk.span, statement.span, flat.schedule.steps_span, flat.schedule.span)
