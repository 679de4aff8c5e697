"""Random runs of an execution, tampered ones, and a second look at what a replay claims of them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from ringsched.program.trace import Dma, Execution, Op, Signal, Wait
from ringsched.verify.interleaving import Conflict, Do, Event, Fault, Interleaving, Left, Outside, Stuck, Units
from ringsched.verify.replay import ImpossibleError, replay


def op_at(execution: Execution, rank: int, position: int) -> Op:
    return execution.traces[rank][position % len(execution.traces[rank])]


def ends(rank: int, op: Dma) -> dict[str, tuple[int, object, int]]:
    """The ends that a DMA has: on whose semaphore it is counted, on which, in how many units."""
    found = {"written": (op.rank, op.received, 1 if op.received is None else op.amount)}
    if op.rank != rank or op.sent is not None:
        found["read"] = (rank, op.sent, 1 if op.sent is None else op.amount)
    return found


def random_interleaving(rng: random.Random, execution: Execution, calls: int) -> Interleaving:
    """Any event that can happen, until none can."""
    ranks = range(len(execution.traces))
    totals = [len(trace) * calls for trace in execution.traces]
    positions, held, to_come = [0 for _ in ranks], Counter[object](), dict[tuple[int, int, str], int]()
    eager = rng.choice((0.2, 0.5, 0.9))
    events: list[Event] = []
    while True:
        able = []
        for rank in ranks:
            if positions[rank] < totals[rank]:
                op = op_at(execution, rank, positions[rank])
                if not isinstance(op, Wait) or held[rank, op.semaphore] >= op.amount:
                    able.append(rank)
        if not able and not to_come:
            return tuple(events)
        if able and (not to_come or rng.random() < eager):
            rank = rng.choice(able)
            op = op_at(execution, rank, positions[rank])
            if isinstance(op, Wait):
                held[rank, op.semaphore] -= op.amount
            elif isinstance(op, Signal):
                held[op.rank, op.semaphore] += op.amount
            elif isinstance(op, Dma):
                to_come |= {(rank, positions[rank], end): units for end, (_, _, units) in ends(rank, op).items()}
            positions[rank] += 1
            events.append(Do(rank))
        else:
            key = rng.choice(sorted(to_come))
            count = rng.randint(1, to_come[key])
            owner, semaphore, _ = ends(key[0], op_at(execution, *key[:2]))[key[2]]
            held[owner, semaphore] += count if semaphore is not None else 0
            to_come[key] -= count
            if not to_come[key]:
                del to_come[key]
            events.append(Units(*key, count))


def tampered(rng: random.Random, interleaving: Interleaving) -> Interleaving:
    events = list(interleaving)
    at = rng.randrange(len(events))
    match rng.choice(("drop", "move", "double", "count")):
        case "drop":
            del events[at]
        case "move":
            events.insert(rng.randrange(len(events)), events.pop(at))
        case "double":
            events.insert(rng.randrange(len(events)), events[at])
        case "count":
            event = events[at]
            events[at] = replace(event, count=event.count + rng.choice((-1, 1))) if isinstance(event, Units) else event
    return tuple(events)


def is_true(execution: Execution, interleaving: Interleaving, calls: int, fault: Fault) -> bool:
    """Whether an interleaving that can happen shows `fault`, by looking at its events only."""
    done, units, given = Counter[int](), Counter[tuple[int, int, str]](), Counter[object]()
    for event in interleaving[: fault.at]:
        if isinstance(event, Do):
            op = op_at(execution, event.rank, done[event.rank])
            if isinstance(op, Wait):
                given[event.rank, op.semaphore] -= op.amount
            if isinstance(op, Signal):
                given[op.rank, op.semaphore] += op.amount
            done[event.rank] += 1
        else:
            units[event.rank, event.position, event.end] += event.count
            owner, semaphore, _ = ends(event.rank, op_at(execution, event.rank, event.position))[event.end]
            given[owner, semaphore] += event.count
    match fault:
        case Conflict(earlier=earlier, later=later):
            begun = done[earlier.rank] > earlier.position or earlier.rank == later.rank
            dma = op_at(execution, earlier.rank, earlier.position)
            over = [units[earlier.rank, earlier.position, end] == n for end, (*_, n) in ends(earlier.rank, dma).items()]
            now = interleaving[fault.at] == Do(later.rank) and done[later.rank] == later.position
            return begun and now and not all(over)
        case Outside(owner=owner, left=left, entry=entry):
            here = done[owner]
            return (left is None or left < here) and (entry is None or here <= entry) and (left, entry) != (None, None)
        case Stuck(ranks=ranks):
            unfinished = {r for r, trace in enumerate(execution.traces) if done[r] < len(trace) * calls}
            return unfinished == {rank.rank for rank in ranks} and not possible_events(execution, interleaving, calls)
        case Left(owner=owner, semaphore=semaphore):
            return given[owner, semaphore] == fault.units != 0


def possible_events(execution: Execution, interleaving: Interleaving, calls: int) -> list[Event]:
    """Every single event that a replay would take next."""
    tries: list[Event] = [Do(rank) for rank in range(len(execution.traces))]
    for rank, trace in enumerate(execution.traces):
        for position, op in enumerate(trace * calls):
            if isinstance(op, Dma):
                tries += [Units(rank, position, end, 1) for end in ends(rank, op)]
    found = []
    for event in tries:
        try:
            replay(execution, (*interleaving, event), calls)
        except ImpossibleError:
            continue
        found.append(event)
    return found
