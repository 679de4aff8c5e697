"""A run that shows what the hazard check found.

    Execution, finding, calls  →  Interleaving, to be replayed by `replay.py`

The hazard rule says that neither of two racing accesses surely ends before the other begins: hold up the one's end for
ever, and the other begins all the same. So each begins in a run in which neither end has happened (it takes no end of
its own to begin, and stop the run there); and since holding up less lets only more happen, both begin in the run in
which just these two ends are held up. There the accesses overlap. So it is with every access of a DMA; where the other
is over at once, it comes second. What is left is a signal and the entry or exit of its receiver: these cannot overlap,
but the signal can come while the receiver is outside the kernel. So can a DMA into memory of a scope that is surely
left, or surely not entered yet.

Only what the end of the run needs is kept: each rank stops as early as it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ringsched.diagnostics import InternalError
from ringsched.program.trace import Dma, Enter, Execution, Exit
from ringsched.verify.hazards import Access, Deadlock, Leftover, Race
from ringsched.verify.interleaving import (
    Conflict,
    End,
    Fault,
    Interleaving,
    Left,
    Outside,
    Replay,
    Stuck,
    Touch,
    read_end,
)
from ringsched.verify.steering import Plan, Point, Steering

Finding = Race | Deadlock | Leftover


def witness(execution: Execution, finding: Finding, calls: int = 2) -> Interleaving:
    """A run of a full (not symmetric) execution that shows a finding of `check_hazards(execution, calls)`.

    A semaphore left over shows only where the program finishes; else this is the run into the deadlock.
    """
    steering = Steering(execution, calls)
    everything = Plan(limits=steering.lengths)
    match finding:
        case Race():
            for plan in _plans(execution, finding, steering.lengths):
                run = steering.shortest(plan)
                if run is not None:
                    return run
            raise InternalError(f"no run shows {finding}")
        case Deadlock():
            return steering.to_the_end(everything)
        case Leftover():
            one_call = Plan(limits=tuple(len(trace) for trace in execution.traces))
            finishes = tuple(steering.run(one_call, bursts=True).positions) == one_call.limits
            return steering.to_the_end(one_call if finishes and calls else everything)


def shown(execution: Execution, finding: Finding, replay: Replay) -> Fault | None:
    """The fault of a replay that is this finding: the same accesses, waits or semaphore.

    Of a program that deadlocks, a deadlock will do for a semaphore left over.
    """
    return next((fault for fault in replay.faults if _is(execution, finding, fault)), None)


def _is(execution: Execution, finding: Finding, fault: Fault) -> bool:
    match finding, fault:
        case Race(), Conflict():
            places = (finding.memory_rank, finding.space, finding.overlap.buffer)
            if places != (fault.owner, fault.space, fault.overlap.buffer):
                return False
            touches = [_touch(execution, access) for access in (finding.first, finding.second)]
            same_units = finding.space == "semaphore" or finding.overlap == fault.overlap
            return same_units and touches in ([fault.earlier, fault.later], [fault.later, fault.earlier])
        case Race(), Outside():
            frame, other = _frame_first(finding)
            moment = fault.entry if frame.kind == "entry" else fault.left
            same_place = (finding.memory_rank, finding.overlap.buffer) == (fault.owner, fault.block.buffer)
            same_frame = frame.kind in ("entry", "exit") and _point(execution, frame)[1] == moment
            # A DMA and the entry or exit of the whole call overlap instead.
            within = 0 < frame.position < len(execution.traces[frame.rank]) - 1
            by_itself = within or not isinstance(other.op, Dma)
            return by_itself and same_place and same_frame and _touch(execution, other) == fault.touch
        case Deadlock(), Stuck():
            lengths = [len(trace) for trace in execution.traces]
            waits = [(wait.rank, wait.call * lengths[wait.rank] + wait.position, wait.has) for wait in finding.stuck]
            return waits == [(rank.rank, rank.position, rank.has) for rank in fault.ranks]
        case Leftover(), Left():
            surplus = (finding.added - finding.taken) * fault.calls
            return (finding.rank, finding.semaphore, surplus) == (fault.owner, fault.semaphore, fault.units)
        case Leftover(), Stuck():
            return True
        case _:
            return False


def _plans(execution: Execution, race: Race, lengths: tuple[int, ...]) -> Iterator[Plan]:
    """How the race may come about; more than one only where a DMA touches the same semaphores with both ends."""
    frame, other = _frame_first(race)
    if not isinstance(frame.op, Dma) and not isinstance(other.op, Dma):
        yield _outside(execution, race, lengths)
        return
    accesses = (race.first, race.second)
    in_order = not all(isinstance(access.op, Dma) for access in accesses)
    # What is over at once comes second.
    goals = [_point(execution, a) for a in sorted(accesses, key=lambda access: not isinstance(access.op, Dma))]
    for ends in product(*(_ends(access, race.memory_rank) for access in accesses if isinstance(access.op, Dma))):
        points = [_point(execution, access) for access in accesses if isinstance(access.op, Dma)]
        held = frozenset((*point, end) for point, end in zip(points, ends, strict=True))
        yield Plan(limits=lengths, held=held, goals=tuple(goals), in_order=in_order)
    if frame.kind in ("entry", "exit"):
        yield _outside(execution, race, lengths)


def _outside(execution: Execution, race: Race, lengths: tuple[int, ...]) -> Plan:
    """The access comes after the owner has left and before it enters again."""
    frame, access = _frame_first(race)
    owner, at = _point(execution, frame)
    trace = execution.traces[owner]
    frames = [
        position
        for position in range(lengths[owner])
        if isinstance(op := trace[position % len(trace)], Enter | Exit)
        and race.overlap.buffer in (*op.semaphores, *(block.buffer for block in op.blocks))
    ]
    before = [position for position in frames if position < at + (frame.kind == "exit")]
    after = [position for position in frames if position >= at + (frame.kind == "exit")]
    limits = (*lengths[:owner], after[0] if after else lengths[owner], *lengths[owner + 1 :])
    goals = (*((owner, position) for position in before[-1:]), _point(execution, access))
    return Plan(limits=limits, goals=goals, in_order=True)


def _frame_first(race: Race) -> tuple[Access, Access]:
    """The entry or exit that takes part in a race, and the other access (any order where there is none)."""
    frame_is_second = race.second.kind in ("entry", "exit")
    return (race.second, race.first) if frame_is_second else (race.first, race.second)


def _ends(access: Access, memory_rank: int) -> list[End]:
    """The ends of a DMA with which its access may be over."""
    op = access.op
    assert isinstance(op, Dma)
    if access.kind == "read":
        return [read_end(access.rank, op)]
    if access.kind == "write":
        return ["written"]
    ends: list[End] = []
    if op.received is not None and op.received[0] == access.block.buffer and op.rank == memory_rank:
        ends.append("written")
    if op.sent is not None and op.sent[0] == access.block.buffer and access.rank == memory_rank:
        ends.append("read")
    return ends


def _point(execution: Execution, access: Access) -> Point:
    return access.rank, access.call * len(execution.traces[access.rank]) + access.position


def _touch(execution: Execution, access: Access) -> Touch:
    rank, position = _point(execution, access)
    return Touch(rank=rank, position=position, kind=access.kind)
