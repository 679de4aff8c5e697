"""Slots, semaphores and credits of each lane, each decision with its reason.

A receive resource of a lane is one slot (where its chunks do not land in their final place) together with one receive
semaphore. As many resources as the lane has uses need no credits. Fewer are used round robin, and the receiver gives
the sender a credit for each one that is free again; the sender waits for it before it writes there the next time. On a
two-way ring what the receiver sends back anyway says the same.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.expr import lookups, names
from ringsched.lower.lanes import Lane, Lanes, Use
from ringsched.lower.places import END, Moment, Places, Slot
from ringsched.program.simplify import simplify
from ringsched.schedule.schedule import Lowering, Slice, Transfer

DONE = "done"  # counts what only the end waits for, all of it: sends, and copies within a rank
DEDICATED_SLOTS = 8  # up to so many uses, over all lanes, each has a slot of its own
RECYCLED_SLOTS = 4  # else so many: the credit of one is on its way while two are being filled and sent on
DEDICATED_SEMAPHORES = 256
SLOT_MEMORY = 2  # dedicated slots may take so many times the memory of operand and result
SEMAPHORE_BUDGET = 400  # DMA semaphores of one kernel; compilers accept 435 to 440 (v7x over 1,000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided, and why; printed by `--explain`."""

    subject: str
    choice: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """`keep` receive resources; `grid` the shape of one slot in units, None: everything lands in final places.

    `answered`: chunks that come back stand in for credits. `drained`: sends of this lane are waited for one by one, a
    step later.
    """

    lane: Lane
    keep: int
    rows: int  # slots; fewer than `keep` where the last uses land in final places
    base: int  # the least `each` value that needs a slot
    grid: tuple[int, ...] | None
    pieces: int
    credits: bool
    credited: int  # with credits, the uses from `keep` up to this one wait for one
    answered: bool
    drained: bool
    suffix: str

    @property
    def slots(self) -> str:
        return f"slots{self.suffix}"

    @property
    def received(self) -> str:
        return f"received{self.suffix}"

    @property
    def credit(self) -> str:
        return f"credit{self.suffix}"

    @property
    def sent(self) -> str:
        return f"sent{self.suffix}" if self.drained else DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    lanes: tuple[LanePlan, ...]
    decisions: tuple[Decision, ...]
    freed: dict[tuple[int, int], int]  # (lane, use) → the step in which its resource is released


def make_plan(lanes: Lanes, places: Places, wishes: Lowering) -> Plan:
    """Raises RS607 where no plan fits the machine."""
    drafts = [_draft(lanes, places, lane) for lane in lanes.lanes]
    freed = _freed(lanes, places, drafts)
    keeps: list[int] = []
    budget = SEMAPHORE_BUDGET
    slotted = sum(draft.grid is not None for draft in drafts)
    for draft in drafts:
        keep = _keep(lanes, draft, slotted, freed, wishes, budget)
        budget -= keep
        keeps.append(keep)
    recycled = [_recycled(d, k, freed) for d, k in zip(drafts, keeps, strict=True)]
    drained = _drained(places, drafts, recycled)
    plans = []
    for draft, keep, again in zip(drafts, keeps, recycled, strict=True):
        number = draft.lane.number
        answered = again and any(_answers(lanes, places, draft, keep, other, freed) for other in drafts)
        plans.append(
            LanePlan(
                lane=draft.lane,
                keep=keep,
                rows=min(keep, draft.rows),
                base=draft.base,
                grid=draft.grid,
                pieces=draft.pieces,
                credits=again and not answered,
                credited=_credited(lanes, places, draft, keep, freed),
                answered=answered,
                drained=number in drained,
                suffix=f"_{number}" if len(drafts) > 1 else "",
            )
        )
    decisions = tuple(_explained(plan, wishes) for plan in plans)
    return Plan(lanes=tuple(plans), decisions=decisions, freed=freed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    lane: Lane
    grid: tuple[int, ...] | None
    pieces: int
    uniform: bool  # all ranks send in all uses, to the same rank each time
    distinct: int  # so many resources, used round robin, and no rank ever receives in one of them twice
    rows: int = 0
    base: int = 0


def _draft(lanes: Lanes, places: Places, lane: Lane) -> _Draft:
    known = {"r", *lanes.flat.topology.coordinates, *lanes.flat.env}
    slotted, pieces, uniform = False, 1, all(names(e) <= known for e in lane.source)
    for step in lane.steps:
        use = _use(lanes, lane, step)
        uniform &= use.senders == lanes.ranks
        for sent in places.sent[lane.number, step].values():
            slotted |= any(isinstance(s.target, Slot) for s in sent)
            pieces = max(pieces, *(1 + s.piece for s in sent))
    distinct = _distinct(lane, places)
    if not slotted:
        return _Draft(lane=lane, grid=None, pieces=1, uniform=uniform, distinct=distinct)
    landed = [
        s
        for step in lane.steps
        for sent in places.sent[lane.number, step].values()
        for s in sent
        if isinstance(s.target, Slot)
    ]
    depths = {s.target.depth for s in landed if isinstance(s.target, Slot)}
    if len(depths) != 1:
        span = lane.statement.chunk.span
        raise DiagnosticError(
            [
                Diagnostic(
                    code="RS607",
                    message="the blocks that this transfer names change their shape from step to step",
                    primary=Label(span=span) if span else None,
                    help="write one transfer for each shape",
                )
            ]
        )
    grid: tuple[int, ...] = lanes.flat.promise.dims[depths.pop() :]
    if pieces > 1:
        grid = (pieces, *grid)
    base = min(s.value for s in landed)
    if lane.width is not None:
        grid = (max(s.value for s in landed) - base + 1, *grid)
    rows = 1 + max(s.target.use for s in landed if isinstance(s.target, Slot))
    return _Draft(lane=lane, grid=grid, pieces=pieces, uniform=uniform, distinct=distinct, rows=rows, base=base)


def _distinct(lane: Lane, places: Places) -> int:
    """Where each rank takes part in some steps only, as in a pipeline, few resources do for many steps."""
    numbers: dict[int, list[int]] = {}
    for number, step in enumerate(lane.steps):
        for rank in places.arrived[lane.number, step]:
            numbers.setdefault(rank, []).append(number)
    least = max(map(len, numbers.values()))
    for keep in range(least, len(lane.steps)):
        if all(len({number % keep for number in mine}) == len(mine) for mine in numbers.values()):
            return keep
    return len(lane.steps)


def _use(lanes: Lanes, lane: Lane, step: int) -> Use:
    return next(u for u in lanes.uses[step] if u.lane == lane.number)


def _freed(lanes: Lanes, places: Places, drafts: list[_Draft]) -> dict[tuple[int, int], int]:
    """The step in which each use's resource can be given back: one after the last send from it, or when processed."""
    freed: dict[tuple[int, int], int] = {}
    for draft in drafts:
        lane = draft.lane
        for number, step in enumerate(lane.steps):
            moment = places.processed[lane.number, step][0]
            reads = [k for _, k in places.read.get((lane.number, number), ())]
            freed[lane.number, number] = max([moment, *(k + 1 for k in reads)])
    for (lane_number, step), arrived in places.arrived.items():  # a slot may also be read as the term of a later sum
        moment = places.processed[lane_number, step][0]
        for group in arrived.values():
            for item in group:
                if isinstance(item.term, Slot):
                    key = item.term.lane, item.term.use
                    freed[key] = max(freed[key], moment)
    return freed


def _least(draft: _Draft, freed: dict[tuple[int, int], int]) -> int:
    """The fewest resources with which no rank waits for a credit that can only come later."""
    steps = draft.lane.steps
    for keep in range(1, len(steps)):
        if all(freed[draft.lane.number, u] <= steps[u + keep] for u in range(len(steps) - keep)):
            return keep
    return len(steps)


def _keep(
    lanes: Lanes,
    draft: _Draft,
    slotted: int,
    freed: dict[tuple[int, int], int],
    wishes: Lowering,
    budget: int,
) -> int:
    uses = draft.distinct
    wish = wishes.slots if draft.grid is not None else None
    wish = wishes.semaphores if wish is None else wish
    if wish is not None:
        return min(wish, len(draft.lane.steps))
    plenty = min(DEDICATED_SEMAPHORES, budget - 8)
    if draft.grid is not None:
        promise = lanes.flat.promise
        operands = math.prod(promise.input_shape()) + math.prod(promise.output_shape())
        most = plenty if tabled(draft.lane.statement) else DEDICATED_SLOTS // slotted
        plenty = min(most, SLOT_MEMORY * operands // math.prod(draft.grid))
    if uses <= plenty:
        return uses
    if draft.uniform:
        return min(uses, max(RECYCLED_SLOTS, _least(draft, freed)))
    if uses <= budget:
        return uses
    span = draft.lane.statement.span
    raise DiagnosticError(
        [
            Diagnostic(
                code="RS607",
                message=f"this transfer needs {uses} receive semaphores, and {budget} of {SEMAPHORE_BUDGET} are left",
                primary=Label(span=span) if span else None,
                help="only some ranks take part in each step, so semaphores cannot be recycled: use fewer steps",
            )
        ]
    )


def tabled(statement: Transfer) -> bool:
    """Whether its indices come from tables. Then nothing says that slots are free again in the order of their use."""
    return any(lookups(part) for part in statement.chunk.index if not isinstance(part, Slice))


def _recycled(draft: _Draft, keep: int, freed: dict[tuple[int, int], int]) -> bool:
    """Given back by the receiver; with fewer resources than `_least` a ring would wait for itself."""
    return keep < len(draft.lane.steps) and draft.uniform and keep >= _least(draft, freed)


def _drained(places: Places, drafts: list[_Draft], recycled: list[bool]) -> set[int]:
    """Lanes whose sends read from slots that are given back: each send is waited for on its own."""
    found: set[int] = set()
    for draft, again in zip(drafts, recycled, strict=True):
        if not again or draft.grid is None:
            continue
        for number in range(len(draft.lane.steps)):
            found.update(lane for lane, _ in places.read.get((draft.lane.number, number), ()))
    return found


def _answers(
    lanes: Lanes, places: Places, draft: _Draft, keep: int, other: _Draft, freed: dict[tuple[int, int], int]
) -> bool:
    """Whether the receiver sends a chunk back by `other` after each resource is free, and early enough.

    It has arrived before the resource is written again, so that a credit would say nothing new.
    """
    lane, back = draft.lane, other.lane
    ends = [tuple(map(simplify, place)) for place in (lane.source, lane.peer, back.peer, back.source)]
    if not other.uniform or ends[:2] != ends[2:]:
        return False
    for number in range(len(lane.steps) - keep):
        free = _free_moment(lanes, places, lane, number, freed)
        again = lane.steps[number + keep]
        deadline = (again, _position(lanes, lane.number, again))
        if not any(
            (step, _position(lanes, back.number, step)) >= free and places.processed[back.number, step] <= deadline
            for step in back.steps
        ):
            return False
    return True


def _credited(lanes: Lanes, places: Places, draft: _Draft, keep: int, freed: dict[tuple[int, int], int]) -> int:
    """Last uses that land in final places need no slot.

    No credit either, where the last one before tells that their receive semaphores have been waited for as well.
    """
    steps, lane = draft.lane.steps, draft.lane
    if not keep < draft.rows < len(steps):
        return len(steps)
    told = _free_moment(lanes, places, lane, draft.rows - 1 - keep, freed)
    rest = range(draft.rows, len(steps))
    covered = all(places.processed[lane.number, steps[number - keep]] <= told for number in rest)
    return draft.rows if covered else len(steps)


def _free_moment(lanes: Lanes, places: Places, lane: Lane, number: int, freed: dict[tuple[int, int], int]) -> Moment:
    """When its receiver has processed a use, and has waited for the sends that read it: just before their next ones."""
    moment = places.processed[lane.number, lane.steps[number]]
    for reader, step in places.read.get((lane.number, number), ()):
        steps = lanes.lanes[reader].steps
        following = bisect_right(steps, step)
        if following == len(steps):
            return END, 0
        moment = max(moment, (steps[following], _position(lanes, reader, steps[following])))
    return max(moment, (freed[lane.number, number], 0))


def _position(lanes: Lanes, lane: int, step: int) -> int:
    return next(i for i, use in enumerate(lanes.uses[step]) if use.lane == lane)


def _explained(plan: LanePlan, wishes: Lowering) -> Decision:
    uses = len(plan.lane.steps)
    what = "receive slots" if plan.grid is not None else "receive semaphores"
    choice = f"{plan.keep} {what} for {uses} uses" + (", with credits" if plan.credits else "")
    if (wishes.slots if plan.grid is not None else wishes.semaphores) is not None:
        reason = "asked for by the schedule's `lowering:`"
    elif plan.keep == uses and plan.grid is None:
        reason = "each chunk lands in its final place, which is written once; one semaphore a use needs no credits"
    elif plan.keep == uses:
        reason = "a partial sum waits there to be added to and sent on; one slot a use needs no credits"
    elif plan.answered:
        reason = "used round robin; what the receiver sends back meanwhile tells that one is free, so no credits"
    elif not plan.credits:
        reason = "used round robin; each rank receives in so few steps that it needs none of them twice"
    else:
        reason = (
            "used round robin; the receiver returns a credit when one is free, so code and memory do not grow with N"
        )
    return Decision(subject=f"transfer {plan.lane.number}", choice=choice, reason=reason)
