"""Steering an execution: the run in which some instructions and ends of DMAs are held up and all else may happen.

Each semaphore is taken from by one rank only, so what can happen at all under a Plan does not depend on the order in
which it is tried; and what can happen while less is held up is more. Hence one run tells whether the goals can be
reached, and the fewest instructions that each rank must execute for them are found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ringsched.program.trace import Dma, Execution, Op, SemaphoreKey, Signal, Wait
from ringsched.verify.interleaving import Do, End, Event, Interleaving, Stream, Units, streams

Point = tuple[int, int]  # rank, position through all calls
Slot = tuple[int, SemaphoreKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to reach, and what must not happen.

    `limits[r]`: rank r stops before this position. `held`: ends of DMAs that never come. `goals`: the instructions to
    reach; where `in_order`, each is held up until the one before it has been executed.
    """

    limits: tuple[int, ...]
    held: frozenset[tuple[int, int, End]] = frozenset()
    goals: tuple[Point, ...] = ()
    in_order: bool = False


class Step(NamedTuple):
    """An event with its instruction. Where it gives units to `slot`, as many had been given `before`; where it is a
    wait, so many have been taken from `slot` by now."""

    event: Event
    point: Point
    slot: Slot | None
    before: int
    taken: int


@dataclass(slots=True)
class _Open:
    """A stream of a DMA that has started; `units` may still arrive (not the last one, where its end is held up)."""

    stream: Stream
    units: int
    held: bool


@dataclass(slots=True)
class Course:
    """A run under way."""

    plan: Plan
    positions: list[int]
    steps: list[Step] = field(default_factory=list)
    given: dict[Slot, int] = field(default_factory=lambda: defaultdict(int))
    taken: dict[Slot, int] = field(default_factory=lambda: defaultdict(int))
    open: dict[Slot, list[_Open]] = field(default_factory=lambda: defaultdict(list))
    unseen: list[Stream] = field(default_factory=list)  # streams that no semaphore counts

    def reached(self, points: tuple[Point, ...]) -> bool:
        return all(self.positions[rank] > position for rank, position in points)


class Steering:
    """An execution, repeated `calls` times, and the runs that it can be steered into."""

    def __init__(self, execution: Execution, calls: int) -> None:
        self.traces = execution.traces
        self.lengths = tuple(len(trace) * calls for trace in self.traces)

    def op(self, rank: int, position: int) -> Op:
        trace = self.traces[rank]
        return trace[position % len(trace)]

    def shortest(self, plan: Plan) -> Interleaving | None:
        """A run to the goals with as few instructions as any rank can do with (given the others'); None: no run."""
        course = self.run(plan, bursts=False)
        if not course.reached(plan.goals):
            return None
        limits = self._needed(course)
        for rank in sorted(range(len(limits)), key=limits.__getitem__):
            self._lower(rank, limits, plan)
        course = self.run(replace(plan, limits=tuple(limits)), bursts=True)
        return tuple(step.event for step in course.steps)

    def to_the_end(self, plan: Plan) -> Interleaving:
        """Everything that can happen, and every unit that can arrive."""
        course = self.run(plan, bursts=True)
        events = [step.event for step in course.steps]
        for streams_of_slot in course.open.values():
            events += [_units(each.stream, each.units) for each in streams_of_slot if each.units]
        events += [_units(stream, stream.units) for stream in course.unseen]
        return tuple(events)

    def run(self, plan: Plan, *, bursts: bool) -> Course:
        """Runs until the goals are reached or nothing more can happen; in bursts, a rank goes on as far as it can."""
        course = Course(plan, [0] * len(self.traces))
        moved = True
        while moved and not (plan.goals and course.reached(plan.goals)):
            moved = False
            for rank in range(len(self.traces)):
                while self._advance(course, rank):
                    moved = True
                    if not bursts or (plan.goals and course.reached(plan.goals)):
                        break
        return course

    def _advance(self, course: Course, rank: int) -> bool:
        """Executes the rank's next instruction, if it may and can."""
        position, plan = course.positions[rank], course.plan
        if position >= plan.limits[rank]:
            return False
        point = (rank, position)
        if plan.in_order and point in plan.goals and not course.reached(plan.goals[: plan.goals.index(point)]):
            return False
        op, slot, before, taken = self.op(rank, position), None, 0, 0
        if isinstance(op, Wait):
            slot = (rank, op.semaphore)
            if not self._supply(course, slot, op.amount + course.taken[slot] - course.given[slot]):
                return False
            course.taken[slot] = taken = course.taken[slot] + op.amount
        elif isinstance(op, Signal):
            slot = (op.rank, op.semaphore)
            before = course.given[slot]
            course.given[slot] = before + op.amount
        elif isinstance(op, Dma):
            self._start(course, rank, position, op)
        course.steps.append(Step(Do(rank), point, slot, before, taken))
        course.positions[rank] = position + 1
        return True

    def _start(self, course: Course, rank: int, position: int, op: Dma) -> None:
        for stream in streams(rank, position, op):
            held = (rank, position, stream.end) in course.plan.held
            if stream.semaphore is None:
                course.unseen += [] if held else [stream]
            else:
                course.open[stream.owner, stream.semaphore].append(_Open(stream, stream.units - held, held))

    def _supply(self, course: Course, slot: Slot, lacking: int) -> bool:
        """Lets units arrive until none are lacking: whole DMAs, large ones first, so that each is needed.

        Those held up come last, with no more than is needed.
        """
        if lacking <= 0:
            return True
        waiting = sorted((each for each in course.open[slot] if each.units), key=lambda each: (each.held, -each.units))
        if sum(each.units for each in waiting) < lacking:
            return False
        for each in waiting:
            if lacking > 0:
                units = min(each.units, lacking) if each.held else each.units
                point, before = (each.stream.rank, each.stream.position), course.given[slot]
                course.steps.append(Step(_units(each.stream, units), point, slot, before, 0))
                course.given[slot] = before + units
                each.units -= units
                lacking -= units
        course.open[slot] = [each for each in waiting if each.units]
        return True

    def _needed(self, course: Course) -> list[int]:
        """How far each rank must come in a course that leads to the goals, looking back from them."""
        limits = [0] * len(self.traces)
        for rank, position in course.plan.goals:
            limits[rank] = max(limits[rank], position + 1)
        demand: dict[Slot, int] = defaultdict(int)
        for step in reversed(course.steps):
            rank, position = step.point
            if step.slot is None:
                continue
            if step.taken:
                if position < limits[rank]:
                    demand[step.slot] = max(demand[step.slot], step.taken)
            elif step.before < demand[step.slot]:
                limits[rank] = max(limits[rank], position + 1)
        return limits

    def _lower(self, rank: int, limits: list[int], plan: Plan) -> None:
        """Lowers the limit of `rank` as far as the goals can still be reached."""

        def enough(limit: int) -> bool:
            tried = (*limits[:rank], limit, *limits[rank + 1 :])
            return self.run(replace(plan, limits=tried), bursts=True).reached(plan.goals)

        if limits[rank] and enough(limits[rank] - 1):
            limits[rank] = bisect_left(range(limits[rank]), True, key=enough)


def _units(stream: Stream, count: int) -> Units:
    return Units(stream.rank, stream.position, stream.end, count)
