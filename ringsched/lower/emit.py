"""Lanes, places and plan → the code of each step, with holes for the numbers that change from step to step.

In a step, for each lane: wait for what it sends on or adds to, give back what is free again, wait for a free slot,
send. So the DMA that somebody waits for starts as early as its data allows, and every wait comes as late as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeVar

from ringsched.expr import Expr, Int, Var
from ringsched.lower.holes import StepCode
from ringsched.lower.lanes import Lanes, Use
from ringsched.lower.local import absolute, blanks, copies, guarded
from ringsched.lower.naming import INPUT, OUTPUT, Naming
from ringsched.lower.places import END, Arrived, Operand, Place, Places, Result, Sent, Slot
from ringsched.lower.plan import DONE, LanePlan, Plan
from ringsched.lower.where import where
from ringsched.program.program import (
    Add,
    Copy,
    Instruction,
    Loop,
    Region,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
)
from ringsched.schedule.notation import show_chunk, show_rank

Fact = TypeVar("Fact", Sent, Arrived)
Ranges = tuple[tuple[int, int, Fact], ...]  # `each` values first … last, and what is the same for them


@dataclass(slots=True)
class Emitter:
    lanes: Lanes
    places: Places
    plan: Plan
    unroll: bool
    naming: Naming = field(init=False)
    codes: list[StepCode] = field(default_factory=list)
    code: StepCode = field(default_factory=StepCode)
    last_reads: dict[tuple[int, int], list[tuple[LanePlan, Use]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.naming = Naming(self.lanes, self.plan, self.result(), self.operand())
        for owner in self.plan.lanes:  # which send is the last to read a slot that has to be given back
            if owner.credits and owner.grid is not None:
                for number in range(owner.credited - owner.keep):
                    reads = self.places.read.get((owner.lane.number, number), set())
                    if reads:
                        last = max(reads, key=lambda read: read[1])
                        use = self.lanes.use(owner.lane.number, number)
                        self.last_reads.setdefault(last, []).append((owner, use))

    def run(self) -> list[StepCode]:
        """The code of all steps, then that of the end."""
        pending = self._pending()
        for step, uses in enumerate(self.lanes.uses):
            arrivals = [pending.get((step, position), []) for position in range(len(uses))]
            together = [arrival for group in arrivals for arrival in group]
            self.before(together, uses)
            for use, group in zip(uses, arrivals, strict=True):
                for arrival in group:
                    self._process(arrival)
                self._release(use)
                self._credit(use)
                self._sends(use)
            # What somebody waits for is on its way; now there is time to compute.
            for arrival in together:
                self.after(arrival)
            self._close(self._label(uses))
            if step == 0:
                self._local()
        if not self.lanes.uses:
            self._local()
        for _, last in groupby(pending.get((END, 0), ()), key=lambda use: use.step):
            together = list(last)
            self.before(together, ())
            for arrival in together:
                self._process(arrival)
            for arrival in together:
                self.after(arrival)
            self._close()
        self._copies(early=False)
        self._drain()
        return self.codes

    def _pending(self) -> dict[tuple[int, int], list[Use]]:
        """What is processed at each moment, in the order of arrival."""
        found: dict[tuple[int, int], list[Use]] = {}
        for group in self.lanes.uses:
            for use in group:
                found.setdefault(self.places.processed[use.lane, use.step], []).append(use)
        return found

    def _label(self, uses: tuple[Use, ...]) -> str:
        """The loop variables of a step, for the comments of an unrolled one."""
        env = {name: value for use in uses for name, value in use.env.items() if name not in self.lanes.flat.env}
        return ", ".join(f"{name} = {value}" for name, value in env.items())

    def _close(self, label: str = "") -> None:
        self.code.label = label
        if self.code.instructions:
            self.codes.append(self.code)
        self.code = StepCode()

    # ---- grouping -----------------------------------------------------------------------------------------------

    def _variants(self, table: dict[int, list[Fact]], emit: Callable[[Ranges[Fact]], Iterable[Instruction]]) -> None:
        """One copy of the code for each set of ranks that do the same."""
        groups: dict[Ranges[Fact], list[int]] = {}
        for rank, facts in table.items():
            if facts:
                groups.setdefault(_ranges(facts), []).append(rank)
        for fact, ranks in groups.items():
            if self.lanes.symmetric:
                self.code.instructions.extend(emit(fact))
            elif found := tuple(emit(fact)):
                conditions = where(self.lanes.flat.topology, frozenset(ranks), self.code.hole)
                self.code.instructions.extend(guarded(conditions, found))

    def _each(
        self, use: Use, ranges: Ranges[Fact], emit: Callable[[Expr | None, Fact], Instruction | None]
    ) -> Iterable[Instruction]:
        """`emit` for the values of `each`, unrolled or as a loop; without `each`, once for each block."""
        each = self.lanes.lanes[use.lane].statement.each
        for low, high, fact in ranges:
            if each is None:
                found = [emit(None, fact)]
            elif low == high or self.unroll:
                found = [emit(self.code.hole(value), fact) for value in range(low, high + 1)]
            else:
                first, last = self.code.hole(low), self.code.hole(high)
                inner = emit(Var(name=each.var), fact)
                found = [Loop(var=each.var, first=first, last=last, body=(inner,))] if inner is not None else []
            yield from (instruction for instruction in found if instruction is not None)

    # ---- the instructions of a step -----------------------------------------------------------------------------

    def _sends(self, use: Use) -> None:
        lane, plan = self.lanes.lanes[use.lane], self.plan.lanes[use.lane]
        how = ", to be added" if lane.statement.op == "reduce" else ""
        note = f"send {show_chunk(lane.statement.chunk)} to {show_rank(lane.statement.to)}{how}"

        def send(value: Expr | None, fact: Sent) -> Instruction:
            chunk = self.naming.chunk(self.code, use, value, fact.piece, fact.extra, received=False)
            return Send(
                source=self.source(use, value, fact, chunk),
                target=self.naming.region(self.code, fact.target, chunk, value),
                peer=self.naming.peer(self.code, use, source=False),
                sent=SemaphoreRef(semaphore=plan.sent),
                received=self._received(use),
                chunk=chunk,
                note=note,
                origin=lane.statement.span,
            )

        self._variants(self.places.sent[use.lane, use.step], lambda ranges: self._each(use, ranges, send))

    def _received(self, use: Use) -> SemaphoreRef:
        plan = self.plan.lanes[use.lane]
        index = self.naming.resource(self.code, plan, self.naming.number(use))
        return SemaphoreRef(semaphore=plan.received, index=index)

    def _process(self, use: Use) -> None:
        """Wait for an arrival; then add what is held already. All of it is waited for before any of it is touched."""
        lane, plan = self.lanes.lanes[use.lane], self.plan.lanes[use.lane]
        note = f"wait for {show_chunk(lane.statement.chunk)} of {self.naming.source_text(use)}"

        def wait(value: Expr | None, fact: Arrived) -> Instruction:
            chunk = self.naming.chunk(self.code, use, value, fact.piece, fact.extra, received=True)
            region = self.naming.region(self.code, fact.target, chunk, value)
            return WaitDma(semaphore=self._received(use), region=region, note=note, origin=lane.statement.span)

        def add(value: Expr | None, fact: Arrived) -> Instruction | None:
            if fact.term is None:
                return None
            chunk = self.naming.chunk(self.code, use, value, fact.piece, fact.extra, received=True)
            return Add(
                target=self.naming.region(self.code, fact.total, chunk, value),
                left=self.naming.region(self.code, fact.target, chunk, value),
                right=self.term(use, value, fact, chunk),
                note="add what this rank holds of it",
                origin=lane.statement.span,
            )

        def both(ranges: Ranges[Arrived]) -> Iterable[Instruction]:
            yield from self._each(use, ranges, wait)
            yield from self._each(use, ranges, add)

        self._variants(self.places.arrived[use.lane, use.step], both)
        number = self.naming.number(use)
        wanted = plan.credits and number + plan.keep < plan.credited
        if wanted and self.plan.freed[use.lane, number] == self.places.processed[use.lane, use.step][0]:
            self.code.instructions.append(self._returned(use, plan))

    def _credit(self, use: Use) -> None:
        """Before a receive resource is written again, the receiver must have given it back."""
        plan = self.plan.lanes[use.lane]
        if plan.credits and plan.keep <= self.naming.number(use) < plan.credited:
            note = "wait until the receiver has a free slot" if plan.grid is not None else "wait for a free semaphore"
            self.code.instructions.append(Wait(semaphore=SemaphoreRef(semaphore=plan.credit), note=note))

    def _release(self, use: Use) -> None:
        """What this lane sent in its last use has been read now; slots that it was sent from are free."""
        plan = self.plan.lanes[use.lane]
        number = self.naming.number(use)
        if not plan.drained or number == 0:
            return
        previous = self.lanes.use(use.lane, number - 1)
        self._wait_sent(previous)
        for owner, its_use in self.last_reads.get((use.lane, previous.step), ()):
            self.code.instructions.append(self._returned(its_use, owner))

    def _returned(self, use: Use, plan: LanePlan) -> Instruction:
        what = "slot" if plan.grid is not None else "semaphore"
        return Signal(
            semaphore=SemaphoreRef(semaphore=plan.credit),
            peer=self.naming.peer(self.code, use, source=True),
            note=f"tell the sender that its {what} is free again",
            origin=plan.lane.statement.span,
        )

    def _wait_sent(self, use: Use) -> None:
        plan = self.plan.lanes[use.lane]

        def wait(value: Expr | None, fact: Sent) -> Instruction:
            chunk = self.naming.chunk(self.code, use, value, fact.piece, fact.extra, received=False)
            return WaitDma(
                semaphore=SemaphoreRef(semaphore=plan.sent),
                region=self.source(use, value, fact, chunk),
                note="wait until the chunk has left",
                origin=plan.lane.statement.span,
            )

        self._variants(self.places.sent[use.lane, use.step], lambda ranges: self._each(use, ranges, wait))

    # ---- the end ------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """All sends have been read, and all copies made, before the kernel ends."""
        for group in self.lanes.uses:
            for use in group:
                plan = self.plan.lanes[use.lane]
                if not plan.drained or use.step == plan.lane.steps[-1]:
                    self._wait_sent(use)
            self._close()
        self.end_copies()

    # ---- what a schedule that multiplies does in another way (see interleave.py, sequential.py) ------------------

    def result(self) -> str:
        """The buffer that chunks end in."""
        return OUTPUT

    def operand(self) -> str:
        """The buffer that they begin in."""
        return INPUT

    def before(self, arrivals: Sequence[Use], uses: Sequence[Use]) -> None:
        """Before these arrivals are waited for, and these uses are sent."""

    def after(self, arrival: Use) -> None:
        """Once an arrival is there, and all has been sent that somebody waits for."""

    def source(self, use: Use, value: Expr | None, fact: Sent, chunk: tuple[Expr, ...]) -> Region:
        """Where a chunk is sent from."""
        return self.naming.region(self.code, fact.source, chunk, value)

    def term(self, use: Use, value: Expr | None, fact: Arrived, chunk: tuple[Expr, ...]) -> Region:
        """What is added to an arrival."""
        assert fact.term is not None
        return self.naming.region(self.code, fact.term, chunk, value)

    def kept(self, place: Place, chunk: tuple[Expr, ...], *, early: bool) -> Instruction:
        """How a promised chunk that does not arrive in its place gets there."""
        return Copy(
            source=self.naming.region(self.code, _relative(place, 0), chunk, Int(value=0)),
            target=self.naming.region(self.code, Result(), chunk, None),
            done=SemaphoreRef(semaphore=DONE),
            note="this rank's own chunk" if early else "to its final place",
        )

    def end_copies(self) -> None:
        """Copies within this rank have been made."""
        for conditions, (piece, _) in copies(self.lanes, self.places):
            chunk = absolute(self.lanes, piece)
            region = self.naming.region(self.code, Result(), chunk, None)
            wait = WaitDma(semaphore=SemaphoreRef(semaphore=DONE), region=region, note="wait until it is copied")
            self.code.instructions.extend(guarded(conditions, (wait,)))
            self._close()

    def _local(self) -> None:
        """Promised chunks that never travel: started early, so that they move while the links are busy."""
        self._copies(early=True)
        self.code.instructions.extend(blanks(self.lanes, self.places))
        self._close()

    def _copies(self, *, early: bool) -> None:
        for conditions, (piece, place) in copies(self.lanes, self.places):
            if isinstance(place, Operand) != early:
                continue
            chunk = absolute(self.lanes, piece)
            kept = self.kept(place, chunk, early=early)
            self.code.instructions.extend(guarded(conditions, (kept,)))
            self._close()


def _relative(place: Place, value: int) -> Place:
    """A slot's `each` value relative to that of the transfer that names it."""
    return replace(place, value=place.value - value) if isinstance(place, Slot) else place


def _ranges(facts: Sequence[Fact]) -> Ranges[Fact]:
    """Runs of `each` values for which everything else is the same, with numbers relative to the value."""
    runs: dict[Fact, list[tuple[int, int]]] = {}
    for fact in facts:
        value = fact.value
        if isinstance(fact, Sent):
            same = replace(fact, value=0, source=_relative(fact.source, value), target=_relative(fact.target, value))
        else:
            term = None if fact.term is None else _relative(fact.term, value)
            target, total = _relative(fact.target, value), _relative(fact.total, value)
            same = replace(fact, value=0, target=target, term=term, total=total)
        spans = runs.setdefault(same, [])
        if spans and spans[-1][1] == value - 1:
            spans[-1] = (spans[-1][0], value)
        else:
            spans.append((value, value))
    ordered = [(low, high, fact) for fact, spans in runs.items() for low, high in spans]
    return tuple(sorted(ordered, key=lambda run: run[0]))
