"""Lanes, places and plan → the code of each step, with holes for the numbers that change from step to step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from ringsched.collectives import OWNED
from ringsched.expr import Expr, Int, Var, binary, names, show, substitute
from ringsched.lower.holes import StepCode
from ringsched.lower.lanes import Lanes, Piece, Use, flat_rank, pieces
from ringsched.lower.places import END, Arrived, Operand, Place, Places, Result, Sent, Slot, coalesce
from ringsched.lower.plan import LanePlan, Plan
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
    When,
    Zero,
)
from ringsched.program.simplify import simplify
from ringsched.schedule.schedule import ChunkRef, Rank, Slice

INPUT, OUTPUT, COPIED, SENT = "x", "o", "copied", "sent"

# What all `each` values of a range have in common; numbers in it are relative to the value.
Signature = tuple[object, ...]
Ranges = tuple[tuple[int, int, Signature], ...]


@dataclass(slots=True)
class Emitter:
    lanes: Lanes
    places: Places
    plan: Plan
    unroll: bool
    codes: list[StepCode] = field(default_factory=list)
    code: StepCode = field(default_factory=StepCode)
    last_reads: dict[tuple[int, int], list[tuple[LanePlan, Use]]] = field(default_factory=dict)
    known: dict[object, tuple[Expr, ...]] = field(default_factory=dict)  # expressions that came up before
    loop_names: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Which send is the last to read a slot that has to be given back."""
        for owner in self.plan.lanes:
            if owner.credits and owner.grid is not None:
                for number in range(len(owner.lane.steps) - owner.keep):
                    reads = self.places.read.get((owner.lane.number, number), set())
                    if reads:
                        last = max(reads, key=lambda read: read[1])
                        use = self.lanes.use(owner.lane.number, number)
                        self.last_reads.setdefault(last, []).append((owner, use))

    def run(self) -> list[StepCode]:
        """The code of all steps, then that of the end."""
        steps = self.lanes.uses
        pending = self._pending()
        for step, uses in enumerate(steps):
            self.code = StepCode()
            for position, use in enumerate(uses):
                for arrival in pending.get((step, position), ()):
                    self._process(arrival)
                self._release(use, step)
                self._credit(use)
                self._sends(use)
            self._close(self._label(uses))
            if step == 0:
                self._local(early=True)
        if not steps:
            self._local(early=True)
        for arrival in pending.get((END, 0), ()):
            self._process(arrival)
            self._close()
        self._local(early=False)
        self._drain()
        return self.codes

    def _label(self, uses: tuple[Use, ...]) -> str:
        """The loop variables of a step, for the comments of an unrolled one."""
        env = {name: value for use in uses for name, value in use.env.items() if name not in self.lanes.flat.env}
        return ", ".join(f"{name} = {value}" for name, value in env.items())

    def _close(self, label: str = "") -> None:
        self.code.label = label
        if self.code.instructions:
            self.codes.append(self.code)
        self.code = StepCode()

    def _pending(self) -> dict[tuple[int, int], list[Use]]:
        """What is processed at each moment, in the order of arrival."""
        found: dict[tuple[int, int], list[Use]] = {}
        for group in self.lanes.uses:
            for use in group:
                found.setdefault(self.places.processed[use.lane, use.step], []).append(use)
        return found

    # ---- names of things at a rank ------------------------------------------------------------------------------

    def _number(self, use: Use) -> int:
        return bisect_left(self.lanes.lanes[use.lane].steps, use.step)

    def _resource(self, plan: LanePlan, number: int) -> Expr:
        """The index of a use's receive semaphore, and of its slot."""
        if plan.keep == 1:
            return Int(value=0)
        hole = self.code.hole(number)
        return hole if plan.keep == len(plan.lane.steps) else binary("%", hole, plan.keep)

    def _bindings(self, use: Use, value: Expr | None) -> dict[str, Expr]:
        """What the names of a statement stand for: parameters, holes for loop variables, the coordinates."""
        lane = self.lanes.lanes[use.lane]
        flat = self.lanes.flat
        if use.lane not in self.loop_names:
            used = _names_of(lane.statement.chunk.index) | {n for e in lane.peer for n in names(e)}
            self.loop_names[use.lane] = tuple(sorted((set(use.env) - set(flat.env)) & used))
        env: dict[str, Expr] = {name: Int(value=number) for name, number in flat.env.items()}
        for name in self.loop_names[use.lane]:
            env[name] = self.code.hole(use.env[name], name)
        if "r" not in flat.topology.coordinates:
            env["r"] = flat_rank(flat.topology)
        if lane.statement.each is not None and value is not None:
            env[lane.statement.each.var] = value
        return env

    def _chunk(self, use: Use, value: Expr | None, piece: int, extra: Piece, *, received: bool) -> tuple[Expr, ...]:
        """The leading chunk indices of a block, as this rank names it; `received`: as its sender sent it."""
        lane = self.lanes.lanes[use.lane]
        env = self._bindings(use, value)
        key = (use.lane, piece, received, tuple(env.items()))
        if key not in self.known:
            sample = self.lanes.bind(use, use.senders[0], use.values[0])
            exprs = pieces(self.lanes.flat, lane.statement.chunk, sample)[piece][1]
            at: dict[str, Expr] = {}
            if received or lane.sender is not None:  # the sender's coordinates in terms of this rank's
                source = [substitute(e, dict(env)) for e in lane.source]
                at = dict(zip(self.lanes.flat.topology.coordinates, source, strict=True))
            self.known[key] = tuple(simplify(substitute(substitute(e, dict(env)), dict(at))) for e in exprs)
        return self.known[key] + tuple(Int(value=i) for i in extra)

    def _peer(self, use: Use, *, source: bool) -> tuple[Expr, ...]:
        lane = self.lanes.lanes[use.lane]
        env = self._bindings(use, None)
        key = (use.lane, "source" if source else "peer", tuple(env.items()))
        if key not in self.known:
            exprs = lane.source if source else lane.peer
            self.known[key] = tuple(simplify(substitute(e, dict(env))) for e in exprs)
        return self.known[key]

    def _region(self, place: Signature, chunk: tuple[Expr, ...], value: Expr | None, base: int) -> Region:
        """The units of a block; `place` is a place with its numbers relative to the `each` value."""
        promise = self.lanes.flat.promise
        match place[0]:
            case "operand":
                return Region(buffer=INPUT, index=tuple(chunk[i] for i in promise.input_positions() if i < len(chunk)))
            case "result":
                return Region(
                    buffer=OUTPUT, index=tuple(chunk[i] for i in promise.output_positions() if i < len(chunk))
                )
        _, lane, number, shift, piece, depth = place
        assert isinstance(lane, int) and isinstance(number, int) and isinstance(shift, int)
        assert isinstance(piece, int) and isinstance(depth, int)
        plan = self.plan.lanes[lane]
        index = [self._resource(plan, number)]
        if plan.lane.width is not None:
            here = value if value is not None else Int(value=base)
            index.append(simplify(binary("+", here, shift - plan.base)))
        if plan.pieces > 1:
            index.append(Int(value=piece))
        return Region(buffer=plan.slots, index=(*index, *chunk[depth:]))

    # ---- grouping -----------------------------------------------------------------------------------------------

    def _variants(self, facts: dict[int, Ranges], emit: Callable[[Ranges], Iterable[Instruction]]) -> None:
        """One copy of the code for each set of ranks that do the same."""
        groups: dict[Ranges, list[int]] = {}
        for rank, fact in facts.items():
            if fact:
                groups.setdefault(fact, []).append(rank)
        for fact, ranks in groups.items():
            if self.lanes.symmetric:
                self.code.instructions.extend(emit(fact))
                continue
            conditions = where(self.lanes.flat.topology, frozenset(ranks), self.code.hole)
            body = tuple(emit(fact))
            self.code.instructions.extend([When(conditions=conditions, body=body)] if conditions else body)

    def _each(
        self, use: Use, low: int, high: int, emit: Callable[[Expr | None, int], Iterable[Instruction]]
    ) -> Iterable[Instruction]:
        """`emit` for the values low … high of `each`: unrolled, or as a loop."""
        each = self.lanes.lanes[use.lane].statement.each
        if each is None:
            yield from emit(None, 0)
        elif low == high or self.unroll:
            for value in range(low, high + 1):
                yield from emit(self.code.hole(value), value)
        else:
            first, last = self.code.hole(low), self.code.hole(high)
            yield Loop(var=each.var, first=first, last=last, body=tuple(emit(Var(name=each.var), low)))

    # ---- the instructions of a step -----------------------------------------------------------------------------

    def _sends(self, use: Use) -> None:
        table = self.places.sent[use.lane, use.step]
        facts = {rank: _ranges(sent, _sent_signature) for rank, sent in table.items()}
        self._variants(facts, lambda fact: self._start(use, fact))

    def _start(self, use: Use, fact: Ranges) -> Iterable[Instruction]:
        lane = self.lanes.lanes[use.lane]
        plan = self.plan.lanes[use.lane]
        how = ", to be added" if lane.statement.op == "reduce" else ""
        note = f"send {show_chunk(lane.statement.chunk)} to {show_rank(lane.statement.to)}{how}"
        for low, high, (piece, extra, source, target) in fact:

            def emit(
                value: Expr | None, base: int, piece=piece, extra=extra, source=source, target=target
            ) -> Iterable[Instruction]:  # type: ignore[no-untyped-def]
                chunk = self._chunk(use, value, piece, extra, received=False)
                yield Send(
                    source=self._region(source, chunk, value, base),
                    target=self._region(target, chunk, value, base),
                    peer=self._peer(use, source=False),
                    sent=SemaphoreRef(semaphore=plan.sent),
                    received=SemaphoreRef(semaphore=plan.received, index=self._resource(plan, self._number(use))),
                    note=note,
                    origin=lane.statement.span,
                )

            yield from self._each(use, low, high, emit)

    def _process(self, use: Use) -> None:
        """Wait for an arrival; add what is held already."""
        table = self.places.arrived[use.lane, use.step]
        facts = {rank: _ranges(arrived, _arrived_signature) for rank, arrived in table.items()}
        self._variants(facts, lambda fact: self._arrive(use, fact))
        plan = self.plan.lanes[use.lane]
        number = self._number(use)
        moment = self.places.processed[use.lane, use.step][0]
        if plan.credits and self.plan.freed[use.lane, number] == moment and number + plan.keep < len(plan.lane.steps):
            self.code.instructions.append(self._returned(use, plan))

    def _arrive(self, use: Use, fact: Ranges) -> Iterable[Instruction]:
        lane = self.lanes.lanes[use.lane]
        plan = self.plan.lanes[use.lane]
        source = f"{show_chunk(lane.statement.chunk)} of {self._source_text(use)}"
        for low, high, (piece, extra, target, _, _) in fact:

            def wait(value: Expr | None, base: int, piece=piece, extra=extra, target=target) -> Iterable[Instruction]:  # type: ignore[no-untyped-def]
                chunk = self._chunk(use, value, piece, extra, received=True)
                yield WaitDma(
                    semaphore=SemaphoreRef(semaphore=plan.received, index=self._resource(plan, self._number(use))),
                    region=self._region(target, chunk, value, base),
                    note=f"wait for {source}",
                    origin=lane.statement.span,
                )

            yield from self._each(use, low, high, wait)
        for low, high, (piece, extra, target, term, total) in fact:
            if term is None:
                continue

            def add(
                value: Expr | None, base: int, piece=piece, extra=extra, target=target, term=term, total=total
            ) -> Iterable[Instruction]:  # type: ignore[no-untyped-def]
                chunk = self._chunk(use, value, piece, extra, received=True)
                yield Add(
                    target=self._region(total, chunk, value, base),
                    left=self._region(target, chunk, value, base),
                    right=self._region(term, chunk, value, base),
                    note="add what this rank holds of it",
                    origin=lane.statement.span,
                )

            yield from self._each(use, low, high, add)

    def _source_text(self, use: Use) -> str:
        lane = self.lanes.lanes[use.lane]
        if lane.sender is not None:
            return f"rank {lane.sender}"
        return "rank " + ", ".join(show(e) for e in lane.source)

    def _credit(self, use: Use) -> None:
        """Before a receive resource is written again, the receiver must have given it back."""
        plan = self.plan.lanes[use.lane]
        if plan.credits and self._number(use) >= plan.keep:
            note = "wait until the receiver has a free slot" if plan.grid is not None else "wait for a free semaphore"
            self.code.instructions.append(Wait(semaphore=SemaphoreRef(semaphore=plan.credit), note=note))

    def _release(self, use: Use, step: int) -> None:
        """What this lane sent in its last use has been read now; slots that it was sent from are free."""
        plan = self.plan.lanes[use.lane]
        number = self._number(use)
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
            peer=self._peer(use, source=True),
            note=f"tell the sender that its {what} is free again",
            origin=plan.lane.statement.span,
        )

    def _wait_sent(self, use: Use) -> None:
        table = self.places.sent[use.lane, use.step]
        facts = {rank: _ranges(sent, _sent_signature) for rank, sent in table.items()}
        self._variants(facts, lambda fact: self._sent(use, fact))

    def _sent(self, use: Use, fact: Ranges) -> Iterable[Instruction]:
        plan = self.plan.lanes[use.lane]
        for low, high, (piece, extra, source, _) in fact:

            def emit(value: Expr | None, base: int, piece=piece, extra=extra, source=source) -> Iterable[Instruction]:  # type: ignore[no-untyped-def]
                chunk = self._chunk(use, value, piece, extra, received=False)
                yield WaitDma(
                    semaphore=SemaphoreRef(semaphore=plan.sent),
                    region=self._region(source, chunk, value, base),
                    note="wait until the chunk has left",
                    origin=plan.lane.statement.span,
                )

            yield from self._each(use, low, high, emit)

    # ---- the end ------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """All sends have been read before the kernel ends."""
        for group in self.lanes.uses:
            for use in group:
                plan = self.plan.lanes[use.lane]
                if not plan.drained or use.step == plan.lane.steps[-1]:
                    self._wait_sent(use)
                    self._close()
        self._copy_waits()

    def _local(self, *, early: bool) -> None:
        """Promised chunks that never travel: started early, so that they move while the links are busy."""
        for start in self._copies(early):
            self.code.instructions.append(start)
            self._close()
        if early:
            self._blanks()

    def _copies(self, early: bool) -> list[Instruction]:
        starts: list[Instruction] = []
        by_fact: dict[tuple[tuple[Piece, Place], ...], list[int]] = {}
        for rank, copied in self.places.copied.items():
            chosen = [(c, p) for c, p in copied if isinstance(p, Operand) == early]
            if chosen:
                by_fact.setdefault(tuple(self._blocks(rank, chosen)), []).append(rank)
        for fact, ranks in by_fact.items():
            for chunk, place in fact:
                exprs = self._absolute(chunk)
                copy = Copy(
                    source=self._region(_place_signature(place, 0), exprs, None, 0),
                    target=self._region(("result",), exprs, None, 0),
                    done=SemaphoreRef(semaphore=COPIED),
                    note="this rank's own chunk" if early else "to its final place",
                )
                conditions = self._on(ranks)
                starts.append(When(conditions=conditions, body=(copy,)) if conditions else copy)
        return starts

    def _on(self, ranks: list[int]) -> tuple[Expr, ...]:
        if self.lanes.symmetric:
            return ()
        return where(self.lanes.flat.topology, frozenset(ranks), lambda value: Int(value=value))

    def _blocks(self, rank: int, chosen: list[tuple[Piece, Place]]) -> list[tuple[Piece, Place]]:
        """Chunks as blocks; owner dimensions relative to the rank, so that all ranks may turn out the same."""
        promise = self.lanes.flat.promise
        table = dict(chosen)
        chunks = list(promise.chunks())
        blocks = coalesce((), chunks, [table.get(c) for c in chunks])
        return [(self._relative(piece, rank), place) for piece, place in blocks if place is not None]

    def _rotating(self, dimension: int) -> int | None:
        """The coordinate that an owner dimension counts along."""
        promise = self.lanes.flat.promise
        if promise.group == 0 or dimension >= OWNED[promise.kind] * promise.group:
            return None
        return dimension % promise.group if promise.group == len(promise.topology.sides) else None

    def _relative(self, piece: Piece, rank: int) -> Piece:
        place = self.lanes.flat.topology.at(rank)
        index = []
        for d, value in enumerate(piece):
            axis = self._rotating(d)
            side = self.lanes.flat.promise.dims[d]
            index.append(value if axis is None else (value - place[axis]) % side)
        return tuple(index)

    def _absolute(self, piece: Piece) -> tuple[Expr, ...]:
        topology = self.lanes.flat.topology
        exprs: list[Expr] = []
        for d, value in enumerate(piece):
            axis = self._rotating(d)
            if axis is None:
                exprs.append(Int(value=value))
                continue
            own = Var(name=topology.coordinates[axis])
            exprs.append(simplify(binary("%", binary("+", own, value), topology.sides[axis])) if value else own)
        return tuple(exprs)

    def _copy_waits(self) -> None:
        for early in (True, False):
            for start in self._copies(early):
                copy = start.body[0] if isinstance(start, When) else start
                assert isinstance(copy, Copy)
                wait = WaitDma(semaphore=copy.done, region=copy.target, note="wait until it is there")
                waits: Instruction = wait
                if isinstance(start, When):
                    waits = When(conditions=start.conditions, body=(wait,))
                self.code.instructions.append(waits)
                self._close()

    def _blanks(self) -> None:
        groups: dict[tuple[Piece, ...], list[int]] = {}
        for rank, blank in self.places.blank.items():
            groups.setdefault(tuple(blank), []).append(rank)
        for blank, ranks in groups.items():
            zeros: tuple[Instruction, ...] = tuple(
                Zero(target=Region(buffer=OUTPUT, index=tuple(Int(value=i) for i in unit)), note="nothing comes here")
                for unit in blank
            )
            conditions = self._on(ranks)
            self.code.instructions.extend([When(conditions=conditions, body=zeros)] if conditions else zeros)
        self._close()


def show_chunk(chunk: ChunkRef) -> str:
    """`chunk[…]` as the schedule has it."""
    parts = []
    for part in chunk.index:
        if isinstance(part, Slice):
            start = show(part.start) if part.start is not None else ""
            parts.append(f"{start}:{show(part.stop) if part.stop is not None else ''}")
        else:
            parts.append(show(part))
    return f"chunk[{', '.join(parts)}]" if parts else "chunk"


def show_rank(rank: Rank) -> str:
    """`r + 1`, or `[x + 1, y]`."""
    texts = [show(e) for e in rank.coordinates]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _names_of(index: Iterable[object]) -> set[str]:
    found: set[str] = set()
    for part in index:
        if isinstance(part, Slice):
            found |= names(part.start) if part.start is not None else frozenset()
        else:
            found |= names(part)  # type: ignore[arg-type]
    return found


def _place_signature(place: Place, value: int) -> Signature:
    match place:
        case Operand():
            return ("operand",)
        case Result():
            return ("result",)
        case Slot():
            return ("slot", place.lane, place.use, place.value - value, place.piece, place.depth)
        case _:
            assert_never(place)


def _sent_signature(s: Sent) -> Signature:
    return (s.piece, s.extra, _place_signature(s.source, s.value), _place_signature(s.target, s.value))


def _arrived_signature(a: Arrived) -> Signature:
    term = _place_signature(a.term, a.value) if a.term is not None else None
    return (a.piece, a.extra, _place_signature(a.target, a.value), term, _place_signature(a.total, a.value))


def _ranges(items: list[Sent] | list[Arrived], signature: Callable[..., Signature]) -> Ranges:
    """Runs of `each` values with the same signature."""
    return _merged([(item.value, item.value, signature(item)) for item in items])


def _merged(found: list[tuple[int, int, Signature]]) -> Ranges:
    runs: dict[Signature, list[tuple[int, int]]] = {}
    for low, high, entry in found:
        spans = runs.setdefault(entry, [])
        if spans and spans[-1][1] == low - 1:
            spans[-1] = (spans[-1][0], high)
        else:
            spans.append((low, high))
    ordered = [(low, high, entry) for entry, spans in runs.items() for low, high in spans]
    return tuple(sorted(ordered, key=lambda r: r[0]))
