"""Lanes and places → step code of one form for all steps, so that it rolls up into loops that look things up.

For irregular schedules, and for schedules with more transfers than there are semaphores. In a step, a rank waits for
all that the step before brought it, adds, and sends. What differs from rank to rank (which kind of place a chunk comes
from and goes to, which slot) is looked up; guards choose between kinds of places.

Every arrival that is not in its final place has a slot of its own. Receive semaphores are as many as the budget allows;
then a new phase begins: whoever will be written to says so once it has received all of the phase before, and senders
wait for that. So a semaphore is never risen by two messages at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.expr import Compare, Expr, Int
from ringsched.lower.holes import StepCode
from ringsched.lower.lanes import Lanes, Use
from ringsched.lower.local import absolute, blanks, copies, guarded
from ringsched.lower.meeting import Notes, meeting
from ringsched.lower.naming import INPUT, OUTPUT, Naming
from ringsched.lower.places import Arrived, Operand, Place, Places, Result, Sent, Slot
from ringsched.lower.plan import DONE, SEMAPHORE_BUDGET, Decision, Plan
from ringsched.program.program import (
    Add,
    Buffer,
    Copy,
    Instruction,
    Region,
    Semaphore,
    SemaphoreRef,
    Send,
    WaitDma,
    When,
)
from ringsched.schedule.notation import show_chunk, show_rank

RECEIVED, PHASE, SLOTS = "received", "phase", "slots"
PHASE_NOTES = Notes(
    signal="tell the ranks that write here next that all of this phase has come",
    wait="wait until the ranks that this one writes to next have received all",
)
Fact = TypeVar("Fact", Sent, Arrived)

RESERVED = 8  # DMA semaphores that are left for other uses
Key = tuple[int, int, int]  # lane, use, piece
Kind = tuple[str, int]  # of a place, and the depth of a slot
Variant = tuple[tuple[int, tuple[int, ...], tuple[Kind, ...]], ...]  # piece, extra indices, kinds of places
Kinds = dict[Variant, Sequence[Sent | Arrived]]
Table = dict[tuple[int, int], dict[int, list[Fact]]]  # of lane and step, and rank


@dataclass(slots=True)
class TabledEmitter:
    """`run` gives the code of all steps; then `buffers`, `semaphores` and `decisions` say what it takes."""

    lanes: Lanes
    places: Places
    naming: Naming = field(init=False)
    slots: dict[int, dict[Key, int]] = field(init=False)  # of each rank: which slot an arrival has
    depths: dict[int, int] = field(init=False)  # how many slots there are for blocks of that depth
    phases: tuple[range, ...] = field(init=False)  # of steps
    bases: list[int] = field(init=False)  # where the semaphores of each lane begin
    received: int = field(init=False)  # semaphores
    code: StepCode = field(default_factory=StepCode)
    codes: list[StepCode] = field(default_factory=list)
    kinds: dict[tuple[str, int], Kinds] = field(default_factory=dict)  # of sends or arrivals, of each lane

    def __post_init__(self) -> None:
        self.naming = Naming(self.lanes, Plan(lanes=(), decisions=(), freed={}), OUTPUT, INPUT)
        self.slots, self.depths = _slots(self.lanes, self.places)
        self.phases, self.bases, self.received = _phases(self.lanes)

    def run(self) -> list[StepCode]:
        for step, uses in enumerate(self.lanes.uses):
            arrivals = self.lanes.uses[step - 1] if step else ()
            self._arrive(arrivals)
            phase = next((p for p, steps in enumerate(self.phases) if p and steps.start == step), None)
            if phase is not None:
                self._close()
                ref = SemaphoreRef(semaphore=PHASE, index=Int(value=phase - 1))
                self.code.instructions += meeting(self.lanes, self.by_phase()[phase], ref, PHASE_NOTES)
                self._close()
            for use in uses:
                self._send(use)
            self._close()
            if step == 0:
                self._local()
        if not self.lanes.uses:
            self._local()
        else:
            self._arrive(self.lanes.uses[-1])
            self._close()
        for uses in self.lanes.uses:
            for use in uses:
                self._drain(use)
            self._close()
        self._end_copies()
        return self.codes

    def _close(self) -> None:
        if self.code.instructions:
            self.codes.append(self.code)
        self.code = StepCode()

    # ---- what differs from rank to rank ---------------------------------------------------------------------------

    def _variants(
        self, use: Use, table: Table[Fact], what: str, emit: Callable[[int, dict[int, Fact]], Iterable[Instruction]]
    ) -> None:
        """`emit` once for each kind of what ranks do in some use of a lane, with a guard for those that do it in this.

        table: of the sends, or of the arrivals, which `what` says. `emit` gets the number of the fact among those of a
        rank, and the fact of each rank of this kind.
        """
        if (what, use.lane) not in self.kinds:
            self.kinds[what, use.lane] = _kinds([table[use.lane, step] for step in self.lanes.lanes[use.lane].steps])
        kinds, ranks, here = self.kinds[what, use.lane], self.lanes.ranks, table[use.lane, use.step]
        number = {kind: k for k, kind in enumerate(kinds, 1)}
        codes = tuple(number[_variant(here[rank])] if here.get(rank) else 0 for rank in ranks)
        which = self.code.by_rank(codes, f"{what}{use.lane}")
        for kind, sample in kinds.items():
            mine = {rank: here[rank] for rank, code in zip(ranks, codes, strict=True) if code == number[kind]}
            body: list[Instruction] = []
            for index in range(len(kind)):
                one: dict[int, Fact] = {rank: facts[index] for rank, facts in mine.items()}
                body += emit(index, one or {-1: sample[index]})  # type: ignore[dict-item]
            if body:
                guard = Compare(first=which, rest=(("==", Int(value=number[kind])),))
                self.code.instructions.append(When(conditions=(guard,), body=tuple(body)))

    def _region(self, place: Place, numbers: dict[int, int], name: str, chunk: tuple[Expr, ...]) -> Region:
        """The units of a block; `numbers`: the slot of each rank, where it is in one."""
        if not isinstance(place, Slot):
            return self.naming.region(self.code, place, chunk, None)
        values = tuple(numbers.get(rank, 0) for rank in self.lanes.ranks)
        index = (self.code.by_rank(values, name), *chunk[place.depth :])
        return Region(buffer=self._buffer(place.depth), index=index)

    def _buffer(self, depth: int) -> str:
        return SLOTS if len(self.depths) == 1 else f"{SLOTS}_{depth}"

    def _slot(self, rank: int, place: Place) -> int:
        if not isinstance(place, Slot) or rank < 0:
            return 0
        return self.slots[rank][place.lane, place.use, place.piece]

    # ---- the instructions of a step ------------------------------------------------------------------------------

    def _send(self, use: Use) -> None:
        lane = self.lanes.lanes[use.lane]
        how = ", to be added" if lane.statement.op == "reduce" else ""
        note = f"send {show_chunk(lane.statement.chunk)} to {show_rank(lane.statement.to)}{how}"
        received = self._received(use)

        def send(_: int, facts: dict[int, Sent]) -> Iterable[Instruction]:
            fact = next(iter(facts.values()))
            chunk = self.naming.chunk(self.code, use, None, fact.piece, fact.extra, received=False)
            there = {r: self._slot(self._receiver(use, r), f.target) for r, f in facts.items()}
            yield Send(
                source=self._source(use, facts, chunk),
                target=self._region(fact.target, there, f"there{use.lane}", chunk),
                peer=self.naming.peer(self.code, use, source=False),
                sent=SemaphoreRef(semaphore=DONE),
                received=received,
                chunk=chunk,
                note=note,
                origin=lane.statement.span,
            )

        self._variants(use, self.places.sent, "sends", send)

    def _source(self, use: Use, facts: dict[int, Sent], chunk: tuple[Expr, ...]) -> Region:
        here = {r: self._slot(r, f.source) for r, f in facts.items()}
        return self._region(next(iter(facts.values())).source, here, f"here{use.lane}", chunk)

    def _receiver(self, use: Use, sender: int) -> int:
        """Whose slot it is; a symmetric schedule has those of one rank."""
        if sender < 0 or self.lanes.symmetric:
            return sender
        return self.lanes.receiver(use, sender)

    def _received(self, use: Use) -> SemaphoreRef:
        lane = self.lanes.lanes[use.lane]
        phase = next(steps for steps in self.phases if use.step in steps)
        position = sum(step in phase and step < use.step for step in lane.steps)
        return SemaphoreRef(semaphore=RECEIVED, index=self.code.hole(self.bases[use.lane] + position))

    def _arrive(self, uses: Sequence[Use]) -> None:
        """Wait for what a step brought, all of it before any is added."""
        for use in uses:
            self._wait(use)
        for use in uses:
            if self.lanes.lanes[use.lane].statement.op == "reduce":
                self._add(use)

    def _wait(self, use: Use) -> None:
        lane = self.lanes.lanes[use.lane]
        note = f"wait for {show_chunk(lane.statement.chunk)} of {self.naming.source_text(use)}"
        received = self._received(use)

        def wait(_: int, facts: dict[int, Arrived]) -> Iterable[Instruction]:
            fact = next(iter(facts.values()))
            chunk = self.naming.chunk(self.code, use, None, fact.piece, fact.extra, received=True)
            region = self._region(
                fact.target, {r: self._slot(r, f.target) for r, f in facts.items()}, f"landed{use.lane}", chunk
            )
            yield WaitDma(semaphore=received, region=region, note=note, origin=lane.statement.span)

        self._variants(use, self.places.arrived, "arrives", wait)

    def _add(self, use: Use) -> None:
        lane = self.lanes.lanes[use.lane]

        def add(_: int, facts: dict[int, Arrived]) -> Iterable[Instruction]:
            fact = next(iter(facts.values()))
            if fact.term is None:
                return
            chunk = self.naming.chunk(self.code, use, None, fact.piece, fact.extra, received=True)
            landed = {r: self._slot(r, f.target) for r, f in facts.items()}
            terms = {r: self._slot(r, f.term) for r, f in facts.items() if f.term is not None}
            yield Add(
                target=self._region(fact.total, landed, f"landed{use.lane}", chunk),
                left=self._region(fact.target, landed, f"landed{use.lane}", chunk),
                right=self._region(fact.term, terms, f"term{use.lane}", chunk),
                note="add what this rank holds of it",
                origin=lane.statement.span,
            )

        self._variants(use, self.places.arrived, "arrives", add)

    # ---- the end --------------------------------------------------------------------------------------------------

    def _drain(self, use: Use) -> None:
        """All sends have been read before the kernel ends."""
        lane = self.lanes.lanes[use.lane]

        def wait(_: int, facts: dict[int, Sent]) -> Iterable[Instruction]:
            fact = next(iter(facts.values()))
            chunk = self.naming.chunk(self.code, use, None, fact.piece, fact.extra, received=False)
            region = self._source(use, facts, chunk)
            note = "wait until the chunk has left"
            yield WaitDma(semaphore=SemaphoreRef(semaphore=DONE), region=region, note=note, origin=lane.statement.span)

        self._variants(use, self.places.sent, "sends", wait)

    def _local(self) -> None:
        """Promised chunks that never travel: started early, so that they move while the links are busy."""
        for conditions, (piece, place) in copies(self.lanes, self.places):
            assert isinstance(place, Operand)  # a promised chunk that arrives ends in its place in the result
            chunk = absolute(self.lanes, piece)
            copy = Copy(
                source=self.naming.region(self.code, place, chunk, None),
                target=self.naming.region(self.code, Result(), chunk, None),
                done=SemaphoreRef(semaphore=DONE),
                note="this rank's own chunk",
            )
            self.code.instructions += guarded(conditions, (copy,))
        self.code.instructions += blanks(self.lanes, self.places)
        self._close()

    def _end_copies(self) -> None:
        for conditions, (piece, _) in copies(self.lanes, self.places):
            region = self.naming.region(self.code, Result(), absolute(self.lanes, piece), None)
            wait = WaitDma(semaphore=SemaphoreRef(semaphore=DONE), region=region, note="wait until it is copied")
            self.code.instructions += guarded(conditions, (wait,))
        self._close()

    # ---- what it takes ---------------------------------------------------------------------------------------------

    def by_phase(self) -> list[list[Use]]:
        return [[use for step in steps for use in self.lanes.uses[step]] for steps in self.phases]

    def buffers(self) -> tuple[Buffer, ...]:
        dims = self.lanes.flat.promise.dims
        return tuple(
            Buffer(name=self._buffer(depth), space="scratch", shape=(count, *dims[depth:]))
            for depth, count in sorted(self.depths.items())
        )

    def semaphores(self) -> tuple[Semaphore, ...]:
        found = [Semaphore(name=DONE, kind="dma"), Semaphore(name=RECEIVED, kind="dma", count=self.received)]
        if len(self.phases) > 1:
            found.append(Semaphore(name=PHASE, kind="regular", count=len(self.phases) - 1))
        return tuple(found)

    def decisions(self) -> tuple[Decision, ...]:
        uses = sum(len(lane.steps) for lane in self.lanes.lanes)
        phases = len(self.phases)
        again = "" if phases == 1 else f", in {phases} phases that each begin with a barrier of neighbours"
        reason = "what each rank does differs" if not self.lanes.symmetric else "there are more than semaphores"
        slots = sum(self.depths.values())
        return (
            Decision(
                subject="transfers",
                choice=f"{uses} of them in {len(self.lanes.lanes)} classes, looked up in tables; "
                "a step waits for all of the step before",
                reason=f"{reason}, and code size does not grow with the number of transfers",
            ),
            Decision(
                subject="arrivals",
                choice=f"{self.received} receive semaphores{again}; {slots} slots",
                reason="a slot and, within a phase, a semaphore for each arrival needs no credits",
            ),
        )


def _kind(place: Place | None) -> Kind:
    return type(place).__name__, place.depth if isinstance(place, Slot) else 0


def _variant(facts: Sequence[Sent | Arrived]) -> Variant:
    def places(fact: Sent | Arrived) -> tuple[Place | None, ...]:
        return (fact.source, fact.target) if isinstance(fact, Sent) else (fact.target, fact.term, fact.total)

    return tuple((fact.piece, fact.extra, tuple(map(_kind, places(fact)))) for fact in facts)


def _kinds(tables: Iterable[dict[int, list[Fact]]]) -> Kinds:
    """The kinds of what some rank does in some use, and an example of each."""
    found: Kinds = {}
    for table in tables:
        for facts in table.values():
            if facts:
                found.setdefault(_variant(facts), facts)
    return found


def _slots(lanes: Lanes, places: Places) -> tuple[dict[int, dict[Key, int]], dict[int, int]]:
    """Each rank's slots, numbered in the order of arrival for each depth; how many there are of each depth."""
    found: dict[int, dict[Key, int]] = {rank: {} for rank in lanes.ranks}
    counts: dict[int, dict[int, int]] = {rank: {} for rank in lanes.ranks}
    for uses in lanes.uses:
        for use in uses:
            for rank, group in places.arrived[use.lane, use.step].items():
                for item in group:
                    for place in (item.target, item.total):
                        if isinstance(place, Slot) and (place.lane, place.use, place.piece) not in found[rank]:
                            number = counts[rank].get(place.depth, 0)
                            found[rank][place.lane, place.use, place.piece] = number
                            counts[rank][place.depth] = number + 1
    depths = {depth for mine in counts.values() for depth in mine}
    return found, {depth: max(mine.get(depth, 0) for mine in counts.values()) for depth in depths}


def _phases(lanes: Lanes) -> tuple[tuple[range, ...], list[int], int]:
    """The steps of each phase, as few phases as do; where each lane's semaphores begin, and how many there are."""
    steps = len(lanes.uses)
    for count in range(1, steps + 1):
        bounds = [steps * k // count for k in range(count + 1)]
        phases = tuple(range(a, b) for a, b in itertools.pairwise(bounds))
        most = [max(sum(s in phase for s in lane.steps) for phase in phases) for lane in lanes.lanes]
        if sum(most) <= SEMAPHORE_BUDGET - RESERVED:
            return phases, [sum(most[:k]) for k in range(len(most))], sum(most)
    if not steps:
        return (), [], 0
    use = lanes.uses[0][0]
    span = lanes.lanes[use.lane].statement.span
    most_at_once = max(map(len, lanes.uses))
    message = f"a step brings {most_at_once} transfers to a rank; there are {SEMAPHORE_BUDGET - RESERVED} semaphores"
    label = Label(span=span) if span else None
    raise DiagnosticError(
        [Diagnostic(code="RS607", message=message, primary=label, help="split the step into several")]
    )
