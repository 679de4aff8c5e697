"""Schedule → Program: the passes in order.

lanes      each transfer statement seen from both ends
places     where each chunk lies on each rank, when each arrival is needed
plan       slots, semaphores, credits
emit       the code of each step; of a schedule that multiplies: interleave, sequential
roll       equal steps as loops
tabled     in place of plan and emit: irregular ones, and those with more transfers than semaphores
barrier    in front: each rank tells exactly the ranks that write to it that it is there
"""

from __future__ import annotations

from dataclasses import dataclass

from ringsched.expr import Expr, Int
from ringsched.lower.emit import Emitter
from ringsched.lower.holes import StepCode, roll
from ringsched.lower.interleave import MultiplyingEmitter
from ringsched.lower.lanes import Lane, Lanes, Use, find_lanes
from ringsched.lower.meeting import Notes, meeting, strangers
from ringsched.lower.multiply import Multiplier, check_sums
from ringsched.lower.naming import INPUT, OUTPUT
from ringsched.lower.pinned import irregular, looked_up
from ringsched.lower.places import Places, find_places
from ringsched.lower.plan import DEDICATED_SEMAPHORES, DONE, Decision, Plan, make_plan, tabled
from ringsched.lower.sequential import Terms, TermsEmitter, decision, products_apart
from ringsched.lower.tabled import TabledEmitter
from ringsched.lower.where import where
from ringsched.program.program import (
    BARRIER,
    RANK,
    Buffer,
    Copy,
    Instruction,
    Loop,
    Program,
    Semaphore,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    When,
)
from ringsched.program.simplify import known
from ringsched.schedule.flat import FlatSchedule
from ringsched.schedule.schedule import Lowering

UNROLLED_STEPS = 8
ENTRY_NOTES = Notes(
    signal="tell the ranks that write here that this one has started",
    wait="wait until the ranks that this one writes to have started",
)
BARRIER_DECISION = Decision(
    subject="barrier",
    choice="signal each rank that writes here, wait for each rank written to",
    reason="a remote write must not come before its target has entered the kernel; both neighbours would not do: "
    "one that is a call ahead can stand in for one that is late",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    program: Program
    decisions: tuple[Decision, ...]


def lower(flat: FlatSchedule, *, symmetric: bool) -> Lowered:
    """The Program of a schedule whose data flow is right; raises RS607 where it cannot be lowered."""
    wishes = flat.schedule.lowering
    if flat.schedule.compute is None and wishes == Lowering() and not symmetric and irregular(flat):
        return _tabled_of_pinned(flat)
    lanes = find_lanes(flat, symmetric=symmetric)
    places = find_places(lanes)
    if flat.schedule.compute is None and wishes == Lowering() and symmetric and _crowded(lanes):
        return _tabled(lanes, places)
    plan = make_plan(lanes, places, wishes)
    compute = flat.schedule.compute
    looking = compute is not None and any(tabled(lane.statement) for lane in lanes.lanes)
    unroll = wishes.unroll if wishes.unroll is not None else len(flat.steps) <= UNROLLED_STEPS
    unroll |= looking  # kernels that multiply take no tables
    multiplier: Multiplier | Terms | None = None
    sequential = compute is not None and compute.overlap == "none"
    if compute is not None:
        check_sums(places, compute)
    if compute is None:
        steps = Emitter(lanes, places, plan, unroll).run()
    elif sequential and compute.moment == "before sending":
        multiplier = Terms(lanes, compute, unroll)
        steps = TermsEmitter(lanes, places, plan, unroll).run()
    else:
        multiplier = Multiplier(lanes, compute)
        steps = MultiplyingEmitter(lanes, places, plan, unroll, multiplier=multiplier).run()
    body = roll(steps, loops=not unroll, below=dict(zip(flat.topology.coordinates, flat.topology.sides, strict=True)))
    if sequential and isinstance(multiplier, Multiplier):
        body = multiplier.finished_last(*products_apart(body))
    elif multiplier is not None:
        body = multiplier.finished(body)
    decisions = [*plan.decisions, _unrolled(unroll, len(flat.steps), wishes.unroll is not None)]
    if compute is not None and sequential and flat.promise.kind != "none":
        decisions.append(decision(compute, flat.promise.kind))
    elif isinstance(multiplier, Multiplier):
        decisions.append(multiplier.decision())
    if lanes.lanes and wishes.barrier != "none":
        barrier, reason = _barrier(lanes)
        body = _entered(barrier, body)
        decisions.append(reason)
    program = Program(
        name=flat.schedule.name,
        coordinates=flat.topology.coordinates,
        sides=flat.topology.sides,
        buffers=_buffers(lanes, plan, multiplier),
        semaphores=_semaphores(plan, body),
        body=body,
    )
    return Lowered(program=program, decisions=tuple(decisions))


def _tabled_of_pinned(flat: FlatSchedule) -> Lowered:
    """What each rank does is looked up; transfers of several chunks stay whole where all of them lie together."""
    for single in (False, True):
        changed, ends = looked_up(flat, single=single)
        lanes = find_lanes(changed, symmetric=False, ends=ends)
        places = find_places(lanes)
        if single or not any(s.extra for sent in places.sent.values() for group in sent.values() for s in group):
            break
    return _tabled(lanes, places)


def _crowded(lanes: Lanes) -> bool:
    """Whether tables say what travels, and there are not semaphores enough for each transfer to have its own."""
    uses = sum(len(lane.steps) for lane in lanes.lanes)
    return uses > DEDICATED_SEMAPHORES and any(tabled(lane.statement) for lane in lanes.lanes)


def _tabled(lanes: Lanes, places: Places) -> Lowered:
    topology, promise = lanes.flat.topology, lanes.flat.promise
    emitter = TabledEmitter(lanes, places)
    below = {"r": topology.ranks, **dict(zip(topology.coordinates, topology.sides, strict=True))}
    body = roll(emitter.run(), loops=True, below=below, rank=RANK)
    uses = [use for uses in lanes.uses for use in uses]
    barrier = meeting(lanes, uses, SemaphoreRef(semaphore=BARRIER), ENTRY_NOTES, strangers(lanes, emitter.by_phase()))
    program = Program(
        name=lanes.flat.schedule.name,
        coordinates=topology.coordinates,
        sides=topology.sides,
        buffers=(
            Buffer(name=INPUT, space="input", shape=promise.input_shape()),
            Buffer(name=OUTPUT, space="output", shape=promise.output_shape()),
            *emitter.buffers(),
        ),
        semaphores=(*emitter.semaphores(), Semaphore(name=BARRIER, kind="barrier")),
        body=_entered(barrier, body),
    )
    return Lowered(program=program, decisions=(*emitter.decisions(), BARRIER_DECISION))


def _entered(barrier: tuple[Instruction, ...], body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """Signals at the very start; waits where the first remote write is about to begin."""
    waits = [i for i in barrier if _awaits(i)]
    first = next((k for k, i in enumerate(body) if _sends(i)), 0)
    return (*(i for i in barrier if not _awaits(i)), *body[:first], *waits, *body[first:])


def _awaits(instruction: Instruction) -> bool:
    return isinstance(instruction, Wait) or (isinstance(instruction, When) and any(map(_awaits, instruction.body)))


def _sends(instruction: Instruction) -> bool:
    return isinstance(instruction, Send) or (
        isinstance(instruction, When | Loop) and any(map(_sends, instruction.body))
    )


def _unrolled(unroll: bool, steps: int, wished: bool) -> Decision:
    choice = f"{steps} steps {'unrolled' if unroll else 'in rolled loops'}"
    if wished:
        reason = "asked for by the schedule's `lowering:`"
    elif unroll:
        reason = f"at most {UNROLLED_STEPS} steps: straight-line code is small and its indices are constants"
    else:
        reason = "code size and compile time do not grow with the number of ranks"
    return Decision(subject="loops", choice=choice, reason=reason)


def _buffers(lanes: Lanes, plan: Plan, multiplier: Multiplier | Terms | None) -> tuple[Buffer, ...]:
    promise = lanes.flat.promise
    buffers = [
        Buffer(name=INPUT, space="input", shape=promise.input_shape()),
        Buffer(name=OUTPUT, space="output", shape=promise.output_shape()),
    ]
    if multiplier is not None:
        buffers = list(multiplier.buffers())
    for lane in plan.lanes:
        if lane.grid is not None:
            buffers.append(Buffer(name=lane.slots, space="scratch", shape=(lane.rows, *lane.grid)))
    return tuple(buffers)


def _semaphores(plan: Plan, body: tuple[Instruction, ...]) -> tuple[Semaphore, ...]:
    used = _used(body)
    found = [Semaphore(name=DONE, kind="dma")]
    for lane in plan.lanes:
        found.append(Semaphore(name=lane.received, kind="dma", count=lane.keep))
        if lane.drained:
            found.append(Semaphore(name=lane.sent, kind="dma"))
        if lane.credits:
            found.append(Semaphore(name=lane.credit, kind="regular"))
    found.append(Semaphore(name=BARRIER, kind="barrier"))
    unique = {s.name: s for s in found}
    return tuple(s for s in unique.values() if s.name in used)


def _used(body: tuple[Instruction, ...]) -> set[str]:
    found: set[str] = set()
    for i in body:
        match i:
            case Loop() | When():
                found |= _used(i.body)
            case Send():
                found |= {i.sent.semaphore, i.received.semaphore}
            case Copy():
                found.add(i.done.semaphore)
            case Signal() | Wait():
                found.add(i.semaphore.semaphore)
    return found


def _barrier(lanes: Lanes) -> tuple[tuple[Instruction, ...], Decision]:
    """Signal every rank that writes into this one's memory, once; wait for as many as this one writes to."""
    topology = lanes.flat.topology
    code = StepCode()
    ref = SemaphoreRef(semaphore=BARRIER)
    seen: set[tuple[int, int]] = set()
    for lane in lanes.lanes:
        by_source: dict[tuple[Expr, ...], set[int]] = {}
        for step in lane.steps:
            use = next(u for u in lanes.uses[step] if u.lane == lane.number)
            if lanes.symmetric:
                pairs = {(0, lanes.sender(use, 0))}
            else:
                pairs = {(lanes.receiver(use, sender), sender) for sender in use.senders}
            if not pairs <= seen:
                by_source.setdefault(_writer(lane, use), set()).update(reader for reader, _ in pairs - seen)
                seen |= pairs
        for source, readers in by_source.items():
            signal = Signal(semaphore=ref, peer=source, note=ENTRY_NOTES.signal)
            conditions = () if lanes.symmetric else where(topology, frozenset(readers), lambda v: Int(value=v))
            code.instructions.append(When(conditions=conditions, body=(signal,)) if conditions else signal)
    counts: dict[int, set[int]] = {}
    if lanes.symmetric:
        counts[len(seen)] = {0}
    else:
        for rank in lanes.ranks:
            counts.setdefault(len({reader for reader, writer in seen if writer == rank}), set()).add(rank)
    for count, ranks in sorted(counts.items()):
        if count:
            wait = Wait(semaphore=ref, amount=count, note=ENTRY_NOTES.wait)
            conditions = () if lanes.symmetric else where(topology, frozenset(ranks), lambda v: Int(value=v))
            code.instructions.append(When(conditions=conditions, body=(wait,)) if conditions else wait)
    return tuple(code.instructions), BARRIER_DECISION


def _writer(lane: Lane, use: Use) -> tuple[Expr, ...]:
    """Who writes here in this use, as expressions of this rank's coordinates only."""
    return tuple(known(e, use.env) for e in lane.source)
