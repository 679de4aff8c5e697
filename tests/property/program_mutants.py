"""Mutants of a lowered Program, each with one thing wrong: the checks must reject every one.

    remove, double      any one instruction
    without             all signals and waits of a credit or barrier semaphore; of a barrier, those of one rank
    merge               two semaphores of a kind, or two units of scratch memory, become one
    late wait           a wait comes after the first access that it guards
    early signal        a credit comes before the last access to what it gives back
    late result         a sum or a product comes after the first instruction that reads it
    late read           a send, sum or product comes after the next that overwrites what it reads
    index, peer, bound  an index or a loop's bound is off by one; what is meant for one neighbour goes to the other

A mutant that is as good as the original proves nothing, so none is made; where that is so, the reason stands in the
code. It is read off the traces of the original, and knows nothing of the rule that has to notice the mutant.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeGuard
from unittest.mock import patch

from shipped import settings

from ringsched.expr import EvaluationError, Expr, Var, binary
from ringsched.lower import lower, tabled
from ringsched.lower.chain import finishing
from ringsched.pipeline import Proven, ProvenChain, open_schedule, prove, prove_transpose
from ringsched.program import trace
from ringsched.program.expand import Expansion, IndexOutOfRange, expand
from ringsched.program.program import (
    Add,
    Copy,
    Instruction,
    Loop,
    Multiply,
    Program,
    Region,
    Round,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
    When,
    Zero,
)
from ringsched.program.simplify import simplify
from ringsched.verify.chain_values import wrong_ranks
from ringsched.verify.hazards import check_hazards
from ringsched.verify.values import NotComparable, check_values

SCHEDULES = (
    "all_gather",
    "all_gather_bidirectional",
    "all_reduce",
    "all_reduce_bidirectional",
    "all_to_all",
    "broadcast",
    "exchange",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_bidirectional",
    "shift",
)
PRODUCTS = (
    "all_gather_matmul",
    "all_gather_matmul_bidirectional",
    "all_gather_matmul_features",
    "all_gather_matmul_features_bidirectional",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "matmul_reduce_scatter_bidirectional",
    "matmul_reduce_scatter_features",
    "matmul_reduce_scatter_features_bidirectional",
)
CHAINS = ("tp_mlp", "tp_mlp_whole")

LAYERS = 2  # of a chain: one that fetches weights for the next, and the last
SIZES = (2, 3, 4, 5)
ROLLED = {  # long enough for loops; and, where there are slots to be given back, for credits
    "all_gather": 12,
    "all_gather_bidirectional": 20,
    "all_reduce": 12,
    "all_reduce_bidirectional": 20,
    "all_to_all": 12,
    "broadcast": 8,
    "reduce": 8,
    "reduce_scatter": 12,
    "reduce_scatter_bidirectional": 20,
    **{name: 20 if name.endswith("bidirectional") else 12 for name in PRODUCTS},
}

Leaf = Send | Copy | WaitDma | Signal | Wait | Add | Multiply | Round | Zero
Body = tuple[Instruction, ...]
Path = tuple[int, ...]  # indices into the body, and into the bodies of the loops on the way
Edit = Callable[[list[Instruction], int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`build` makes its traces: one for all ranks where it can, or one for each (`full`)."""

    kind: str
    what: str
    build: Callable[[bool], Expansion]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A Program that is right. `wrong`: whether a mutant of it computes something else.

    links: of a chain. What one link passes on to the next orders the two anyhow: one place, or one semaphore, may well
    serve both, and such pairs are not merged.
    """

    label: str
    program: Program
    wrong: Callable[[Mutant], bool]
    links: bool = False


def verdict(mutant: Mutant, subject: Subject) -> str | None:
    """What notices the mutant; None where nothing does."""
    try:
        expansion = mutant.build(False)
        report = check_hazards(expansion.execution, 2)
        found = [
            word
            for word, seen in (("race", report.races), ("deadlock", report.deadlock), ("left over", report.leftovers))
            if seen
        ]
        if found:
            return " + ".join(found)
        return "values" if subject.wrong(mutant) else None
    except (IndexOutOfRange, EvaluationError):
        return "index out of range"


def subjects(name: str, size: int, overlap: str | None = None, semaphores: int | None = None) -> list[Subject]:
    """A shipped schedule for so many ranks and its transpose, where it has one; of a chain, that of `LAYERS` layers.

    semaphores: what is looked up in tables gets no more than these to receive on, so that there are phases; and what
    could do without tables is looked up as well. Nothing is made where the schedule is not for that many ranks.
    """
    parameters = settings(name, size)
    if parameters is None:
        return []
    with ExitStack() as stack:
        if semaphores is not None:
            stack.enter_context(patch.object(tabled, "SEMAPHORE_BUDGET", tabled.RESERVED + semaphores))
            stack.enter_context(patch.object(lower, "DEDICATED_SEMAPHORES", 0))
        proven = prove(open_schedule(name, parameters, overlap))
        if isinstance(proven, ProvenChain):
            return [_chain(f"{name}, {LAYERS} layers, N={size}", proven)]
        backward = prove_transpose(proven)
    few = "" if semaphores is None else f", {semaphores} semaphores"
    found = [_subject(f"{name} N={size}{few}", proven)]
    return [*found, _subject(f"{name}, transpose, N={size}{few}", backward)] if backward is not None else found


def _subject(label: str, proven: Proven) -> Subject:
    promise, compute = proven.flat.promise, proven.flat.schedule.compute

    def wrong(mutant: Mutant) -> bool:
        try:
            return bool(check_values(mutant.build(False), promise, compute))
        except NotComparable:
            return bool(check_values(mutant.build(True), promise, compute))

    return Subject(label=label, program=proven.lowered.program, wrong=wrong)


def _chain(label: str, proven: ProvenChain) -> Subject:
    program, promise = proven.program(LAYERS), proven.links[0].flat.promise
    finishes = finishing(len(proven.links), whole=proven.layers.whole)

    def wrong(mutant: Mutant) -> bool:
        return bool(wrong_ranks(program, mutant.build(True).execution, promise, proven.layers, finishes))

    return Subject(label=label, program=program, wrong=wrong, links=True)


def mutants(subject: Subject) -> Iterator[Mutant]:
    """All mutants of a Program that is right."""
    program = subject.program
    original = Original(replace(program, body=split(program.body, ())))
    for path, leaf in original.leaves.items():
        name = f"{kind_of(leaf)} {path}"
        yield original.mutant(f"remove {kind_of(leaf)}", name, path, _remove)
        if not _idempotent(leaf):
            yield original.mutant(f"double {kind_of(leaf)}", name, path, _double)
        yield from _indices(original, path, leaf)
        yield from _peers(original, path, leaf)
    yield from _without(original)
    yield from _one_rank_less(original)
    yield from _bounds(original)
    yield from _late_waits(original)
    yield from _early_signals(original)
    yield from _late_results(original)
    yield from _late_reads(original)
    yield from _merged_semaphores(original, _link if subject.links else _anywhere)
    if not subject.links:
        yield from _merged_memory(original)


# ---- the original -------------------------------------------------------------------------------------------------


def split(body: Body, conditions: tuple[Expr, ...]) -> Body:
    """Every instruction under a guard of its own, so that it can be moved alone."""
    found: list[Instruction] = []
    for i in body:
        match i:
            case When():
                found.extend(split(i.body, (*conditions, *i.conditions)))
            case Loop():
                loop = replace(i, body=split(i.body, ()))
                found.append(When(conditions=conditions, body=(loop,)) if conditions else loop)
            case _:
                found.append(When(conditions=conditions, body=(i,)) if conditions else i)
    return tuple(found)


def _inner(instruction: Instruction) -> Instruction:
    return instruction.body[0] if isinstance(instruction, When) else instruction


def _outer(instruction: Instruction, new: Instruction) -> Instruction:
    return replace(instruction, body=(new,)) if isinstance(instruction, When) else new


def _leaves(body: Body, before: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    for number, instruction in enumerate(body):
        inner = _inner(instruction)
        if isinstance(inner, Loop):
            yield from _leaves(inner.body, (*before, number))
        else:
            assert not isinstance(inner, When)
            yield (*before, number), inner


def edited(body: Body, path: Path, edit: Edit) -> Body:
    """`edit` gets the instructions among which that at `path` stands, and its place there."""
    siblings = list(body)
    if len(path) == 1:
        edit(siblings, path[0])
    else:
        loop = _inner(siblings[path[0]])
        assert isinstance(loop, Loop)
        new = replace(loop, body=edited(loop.body, path[1:], edit))
        siblings[path[0]] = _outer(siblings[path[0]], new)
    return tuple(siblings)


class Original:
    """The Program, one instruction a guard, and its traces: `paths[rank][position]` is where an operation stands."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.leaves = dict(_leaves(program.body))
        self._unnoticed: dict[Path, dict[tuple[int, int], list[int]]] = {}

    def mutant(self, kind: str, what: str, path: Path, edit: Edit) -> Mutant:
        def build(full: bool) -> Expansion:
            program = replace(self.program, body=edited(self.program.body, path, edit))
            return expand(program, symmetric=False if full else None)

        return Mutant(kind=kind, what=what, build=build)

    @cached_property
    def execution(self) -> trace.Execution:
        """A trace for each rank, the path of each operation in its note."""
        program = self.program
        for path in self.leaves:
            program = replace(program, body=edited(program.body, path, partial(_noted, path=path)))
        return expand(program, symmetric=False).execution

    @cached_property
    def paths(self) -> list[list[Path | None]]:
        return [[_path(op) for op in ops] for ops in self.execution.traces]

    @cached_property
    def feeds(self) -> dict[tuple[int, trace.SemaphoreKey], list[tuple[int, int]]]:
        """For each rank and semaphore, who adds to it, in the order of a run: once for each unit."""
        found: dict[tuple[int, trace.SemaphoreKey], list[tuple[int, int]]] = {}
        for rank, position in self.run:
            match op := self.execution.traces[rank][position]:
                case trace.Dma():
                    if op.sent is not None:
                        found.setdefault((rank, op.sent), []).extend([(rank, position)] * op.amount)
                    if op.received is not None:
                        found.setdefault((op.rank, op.received), []).extend([(rank, position)] * op.amount)
                case trace.Signal():
                    found.setdefault((op.rank, op.semaphore), []).extend([(rank, position)] * op.amount)
        return found

    @cached_property
    def run(self) -> list[tuple[int, int]]:
        """One interleaving: every rank as far as it gets, in turn."""
        traces = self.execution.traces
        place, held, order = [0] * len(traces), Counter[tuple[int, trace.SemaphoreKey]](), []
        moved = True
        while moved:
            moved = False
            for rank, ops in enumerate(traces):
                while place[rank] < len(ops):
                    match op := ops[place[rank]]:
                        case trace.Wait():
                            if held[rank, op.semaphore] < op.amount:
                                break
                            held[rank, op.semaphore] -= op.amount
                        case trace.Dma():
                            if op.sent is not None:
                                held[rank, op.sent] += op.amount
                            if op.received is not None:
                                held[op.rank, op.received] += op.amount
                        case trace.Signal():
                            held[op.rank, op.semaphore] += op.amount
                    order.append((rank, place[rank]))
                    place[rank] += 1
                    moved = True
        return order

    @cached_property
    def takes(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """For each wait (rank, position) the operations whose units it takes where all arrive in order."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        taken = Counter[tuple[int, trace.SemaphoreKey]]()
        for rank, ops in enumerate(self.execution.traces):
            for position, op in enumerate(ops):
                if isinstance(op, trace.Wait):
                    slot = rank, op.semaphore
                    units = self.feeds[slot][taken[slot] : taken[slot] + op.amount]
                    found[rank, position] = list(dict.fromkeys(units))
                    taken[slot] += op.amount
        return found

    @cached_property
    def known(self) -> dict[tuple[int, int], list[int]]:
        """For each operation and rank, up to which position of that rank's trace everything has surely come before."""
        return self.known_without(frozenset())

    def known_without(self, ignored: frozenset[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
        """`known`, if nobody took notice of these signals."""
        found: dict[tuple[int, int], list[int]] = {}
        for rank, position in self.run:
            clock = list(found[rank, position - 1]) if position else [-1] * len(self.execution.traces)
            for cause in self.takes.get((rank, position), ()):
                clock = list(map(max, clock, found[cause])) if cause not in ignored else clock
            clock[rank] = position
            found[rank, position] = clock
        return found

    @cached_property
    def waits(self) -> dict[tuple[int, trace.SemaphoreKey], list[int]]:
        """The positions of all waits on a rank's semaphore."""
        found: dict[tuple[int, trace.SemaphoreKey], list[int]] = {}
        for rank, position in self.takes:
            op = self.op(rank, position)
            assert isinstance(op, trace.Wait)
            found.setdefault((rank, op.semaphore), []).append(position)
        return found

    @cached_property
    def given(self) -> dict[tuple[int, int], trace.Dma]:
        """For each credit (rank, position) the DMA that must not start before it: the next that writes a slot again."""
        found: dict[tuple[int, int], trace.Dma] = {}
        for (rank, position), units in self.takes.items():
            for source, signal in units:
                cause = self.op(source, signal)
                if isinstance(cause, trace.Signal) and not self.meets(cause.semaphore):
                    ops = self.execution.traces[rank]
                    before = [op.target for op in ops[:position] if _sends_to(op, source)]
                    after = [op for op in ops[position:] if _sends_to(op, source)]
                    found[source, signal] = next(op for op in after if overlap(op.target, before))
        return found

    @cached_property
    def before(self) -> dict[tuple[int, int], int]:
        """For each DMA (rank, position) the receiver's last wait on its semaphore before the one that waits for it.

        Left out where nothing between these two needs the first.
        """
        found: dict[tuple[int, int], int] = {}
        for (rank, key), waits in self.waits.items():
            for earlier, wait in itertools.pairwise(waits):
                for unit in self.takes[rank, wait]:
                    op = self.op(*unit)
                    landed = isinstance(op, trace.Dma) and (op.rank, op.received) == (rank, key)
                    if landed and self.needs(rank, earlier, wait):
                        found[unit] = earlier
        return found

    def needs(self, rank: int, first: int, second: int) -> bool:
        """Whether something between two waits is guarded by the first, or tells others what it has told."""
        between = range(first + 1, second)
        if self.meets_between(rank, first):
            known = self.known_without(frozenset(self.takes[rank, first]))
            return any((rank, later) in self.exposed(known) for later in between)
        return any(self.tells(rank, later) or _guards(self, rank, first, later) for later in between)

    def tells(self, rank: int, position: int) -> bool:
        """Whether that is a signal; but one that a phase may begin matters to no other semaphore."""
        return isinstance(self.op(rank, position), trace.Signal) and not self.meets_between(rank, position)

    def unnoticed(self, path: Path) -> dict[tuple[int, int], list[int]]:
        """`known`, if nobody noticed this signal, or waited here: some of it is known all the same, from messages."""
        if path not in self._unnoticed:
            places = [(rank, position) for rank, paths in enumerate(self.paths) for position in range(len(paths))]
            executed = [(rank, position) for rank, position in places if self.paths[rank][position] == path]
            signals = [unit for place in executed for unit in self.takes.get(place, [place])]
            self._unnoticed[path] = self.known_without(frozenset(signals))
        return self._unnoticed[path]

    def opened(self, path: Path) -> set[tuple[int, int]]:
        """The DMAs (rank, position) that might count too early on a semaphore if nobody noticed this signal, or waited.

        `path` is that of a signal or a wait between phases. Of places there is one for each arrival.
        """
        return self.exposed(self.unnoticed(path))

    def between_phases(self) -> frozenset[tuple[int, int]]:
        return frozenset(
            (rank, position)
            for rank, ops in enumerate(self.execution.traces)
            for position in range(len(ops))
            if self.meets_between(rank, position)
        )

    def exposed(self, known: dict[tuple[int, int], list[int]]) -> set[tuple[int, int]]:
        """The DMAs that might count too early on a semaphore if this was all that is known."""
        return {unit for unit, wait in self.before.items() if known[unit][self.receiver(*unit)] < wait}

    def everyone_met(self) -> bool:
        """Whether all ranks come to an end, and all that reaches another one is known to find it there, and ready."""
        if len(self.run) < sum(map(len, self.execution.traces)):
            return False
        ranks = range(len(self.execution.traces))
        places = [(place, to) for rank in ranks for to in ranks if to != rank for place in self.reaching(rank, to)]
        return all(self.known[place][to] >= 0 for place, to in places) and not self.exposed(self.known)

    def touching(self, owner: int, block: trace.Block) -> list[tuple[tuple[int, int], list[tuple[int, int]]]]:
        """What reads or writes a block of a rank's memory: where it begins, and where it is known to be over.

        A DMA to it is over where a unit of it is taken; one from it only in the end: many sends share a semaphore.
        """
        found = []
        for rank, ops in enumerate(self.execution.traces):
            for position, op in enumerate(ops):
                own = [*reads(op), *writes(op, rank)] if rank == owner else []
                begun = rank, position
                if isinstance(op, trace.Dma) and rank == owner and overlap(block, [op.source]):
                    found.append((begun, []))
                elif _sends_to(op, owner) and overlap(block, [op.target]):
                    found.append((begun, self.ends[begun]))
                elif overlap(block, own):
                    found.append((begun, [begun]))
        return found

    @cached_property
    def ends(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """For each DMA, the receiver's wait for it."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for (rank, position), units in self.takes.items():
            wait = self.op(rank, position)
            assert isinstance(wait, trace.Wait)
            for unit in units:
                op = self.op(*unit)
                if isinstance(op, trace.Dma) and (op.rank, op.received) == (rank, wait.semaphore):
                    found.setdefault(unit, []).append((rank, position))
        return found

    def reaching(self, rank: int, to: int) -> list[tuple[int, int]]:
        """Where a rank starts DMAs to another one, or tells it that a phase may begin."""
        return [(rank, position) for position, op in enumerate(self.execution.traces[rank]) if _reaches(op, to)]

    def at_once(self, rank: int, position: int, later: int) -> bool:
        """Whether no loop that both operations stand in goes on to its next round between them."""
        paths = self.paths[rank][position : later + 1]
        first, last = paths[0], paths[-1]
        assert first is not None and last is not None
        level = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        passed = [path[: level + 1] for path in paths if path is not None]
        return passed == sorted(passed)

    def receiver(self, rank: int, position: int) -> int:
        op = self.op(rank, position)
        assert isinstance(op, trace.Dma)
        return op.rank

    def op(self, rank: int, position: int) -> trace.Op:
        return self.execution.traces[rank][position]

    def is_barrier(self, key: trace.SemaphoreKey) -> bool:
        return self.program.semaphore(key[0]).kind == "barrier"

    def meets_between(self, rank: int, position: int) -> bool:
        """Whether that is a signal or a wait between two phases."""
        op = self.op(rank, position)
        return isinstance(op, trace.Wait | trace.Signal) and op.semaphore[0] == tabled.PHASE

    def meets(self, key: trace.SemaphoreKey) -> bool:
        """At entry or between two phases."""
        return self.is_barrier(key) or key[0] == tabled.PHASE


def _sends_to(op: trace.Op, rank: int) -> TypeGuard[trace.Dma]:
    return isinstance(op, trace.Dma) and op.rank == rank


def _noted(siblings: list[Instruction], index: int, path: Path) -> None:
    inner = _inner(siblings[index])
    siblings[index] = _outer(siblings[index], replace(inner, note=".".join(map(str, path))))


def _path(op: trace.Op) -> Path | None:
    if isinstance(op, trace.Enter | trace.Exit):
        return None
    return tuple(map(int, op.note.split(".")))


def kind_of(leaf: Leaf) -> str:
    match leaf:
        case WaitDma():
            return "wait"
        case Wait() | Signal():
            verb = "wait" if isinstance(leaf, Wait) else "signal"
            name = leaf.semaphore.semaphore
            return f"{name if name in ('barrier', tabled.PHASE) else 'credit'} {verb}"
        case _:
            return type(leaf).__name__.lower()


# ---- remove, double -----------------------------------------------------------------------------------------------


def _remove(siblings: list[Instruction], index: int) -> None:
    del siblings[index]


def _double(siblings: list[Instruction], index: int) -> None:
    siblings.insert(index, siblings[index])


def _idempotent(leaf: Leaf) -> bool:
    """Done twice at once it does the same: what it writes is none of its operands."""
    match leaf:
        case Zero() | Round():
            return True
        case Add():
            return leaf.target not in (leaf.left, leaf.right)
        case Multiply():
            return leaf.target != leaf.plus
        case _:
            return False


def _without(original: Original) -> Iterator[Mutant]:
    """All signals and waits of one semaphore left out at once: nothing is left over, and nothing starves.

    Phases may begin unannounced where no DMA might count too early.
    """
    for semaphore in original.program.semaphores:
        if semaphore.name == tabled.PHASE and not original.exposed(original.known_without(original.between_phases())):
            continue
        if semaphore.kind != "dma":
            body = _stripped(original.program.body, semaphore.name)
            program = replace(original.program, body=body)
            yield Mutant(
                kind=f"without {semaphore.kind} semaphore",
                what=semaphore.name,
                build=lambda full, program=program: expand(program, symmetric=False if full else None),
            )


def _one_rank_less(original: Original) -> Iterator[Mutant]:
    """A barrier that leaves one of several ranks out: its signal removed, and one less waited for."""
    waits = [(path, leaf) for path, leaf in original.leaves.items() if isinstance(leaf, Wait) and leaf.amount > 1]
    for path, leaf in original.leaves.items():
        if isinstance(leaf, Signal) and len(waits) == 1 and waits[0][1].semaphore == leaf.semaphore:
            place, wait = waits[0]
            body = edited(original.program.body, place, replaced(replace(wait, amount=wait.amount - 1)))
            program = replace(original.program, body=edited(body, path, _remove))
            yield Mutant(
                kind="barrier with one rank less",
                what=f"{kind_of(leaf)} {path}",
                build=lambda full, program=program: expand(program, symmetric=False if full else None),
            )


def _stripped(body: Body, name: str) -> Body:
    found: list[Instruction] = []
    for i in body:
        match inner := _inner(i):
            case Loop():
                found.append(_outer(i, replace(inner, body=_stripped(inner.body, name))))
            case Signal() | Wait() if inner.semaphore.semaphore == name:
                pass
            case _:
                found.append(i)
    return tuple(found)


# ---- index, peer, bound -------------------------------------------------------------------------------------------


def _indices(original: Original, path: Path, leaf: Leaf) -> Iterator[Mutant]:
    """Each index one more and one less, wrapped into range, where a semaphore or memory is named.

    The region of a wait is left alone: it only says how much is waited for.
    """
    program = original.program
    for name in ("source", "target", "left", "right", "weight", "plus"):
        region = getattr(leaf, name, None)
        if not isinstance(region, Region):
            continue
        shape = program.buffer(region.buffer).shape
        for d, (expr, size) in enumerate(zip(region.index, shape, strict=False)):
            for by, new in _shifted(expr, size):
                index = (*region.index[:d], new, *region.index[d + 1 :])
                changed = replace(leaf, **{name: replace(region, index=index)})
                yield original.mutant("index", f"{kind_of(leaf)} {path} {name}[{d}] {by:+}", path, replaced(changed))
    for name in ("semaphore", "sent", "received", "done"):
        ref = getattr(leaf, name, None)
        if isinstance(ref, SemaphoreRef):
            for by, new in _shifted(ref.index, program.semaphore(ref.semaphore).count):
                changed = replace(leaf, **{name: replace(ref, index=new)})
                what = f"{kind_of(leaf)} {path} {ref.semaphore} {by:+}"
                yield original.mutant("semaphore index", what, path, replaced(changed))


def _shifted(expr: Expr, size: int) -> Iterator[tuple[int, Expr]]:
    for by in (1, -1) if size > 2 else (1,) if size == 2 else ():
        yield by, simplify(binary("%", binary("+", expr, by), size))


def replaced(new: Leaf) -> Edit:
    def edit(siblings: list[Instruction], index: int) -> None:
        siblings[index] = _outer(siblings[index], new)

    return edit


def _peers(original: Original, path: Path, leaf: Leaf, *, harmless: bool = False) -> Iterator[Mutant]:
    """r + 1 becomes r − 1 and the other way round; with two ranks, or half-way round a ring, that is the same rank.

    Who is told of an entry by somebody else may learn the same in time: from a third one, with its first message.
    """
    if not isinstance(leaf, Send | Signal):
        return
    program = original.program
    for d, (name, side) in enumerate(zip(program.coordinates, program.sides, strict=True)):
        twice = binary("+", Var(name=name), Var(name=name))
        opposite = simplify(binary("%", binary("-", twice, leaf.peer[d]), side))
        changed = replace(leaf, peer=(*leaf.peer[:d], opposite, *leaf.peer[d + 1 :]))
        if not any(2 * hop % side for hop in _hops(original, path, d)):
            continue
        meets = isinstance(leaf, Signal) and leaf.semaphore.semaphore in ("barrier", tabled.PHASE)
        body = edited(program.body, path, replaced(changed))
        if (meets and Original(replace(program, body=body)).everyone_met()) == harmless:
            yield original.mutant("peer", f"{kind_of(leaf)} {path}", path, replaced(changed))


def _hops(original: Original, path: Path, axis: int) -> Iterator[int]:
    """How far along a coordinate the peer is, at each execution of the instruction."""
    places = list(itertools.product(*map(range, original.program.sides)))
    for rank, paths in enumerate(original.paths):
        for position, where in enumerate(paths):
            if where == path:
                op = original.op(rank, position)
                assert isinstance(op, trace.Dma | trace.Signal)
                yield places[op.rank][axis] - places[rank][axis]


def _bounds(original: Original) -> Iterator[Mutant]:
    """Each loop one longer or shorter at either end."""
    for path, loop in _loops(original.program.body):
        for end, by in itertools.product(("first", "last"), (1, -1)):
            changed = replace(loop, **{end: binary("+", getattr(loop, end), by)})
            yield original.mutant("bound", f"loop {path} {end} {by:+}", path, replaced(changed))  # type: ignore[arg-type]


def _loops(body: Body, before: Path = ()) -> Iterator[tuple[Path, Loop]]:
    for number, instruction in enumerate(body):
        inner = _inner(instruction)
        if isinstance(inner, Loop):
            yield (*before, number), inner
            yield from _loops(inner.body, (*before, number))


# ---- late wait, early signal --------------------------------------------------------------------------------------


def _late_waits(original: Original) -> Iterator[Mutant]:
    """Behind the first instruction that touches what the wait guards, where one follows within the same body.

    A wait that guards nothing there guards what comes after the loop, or the end of the kernel.
    """
    for path, leaf in original.leaves.items():
        if isinstance(leaf, Wait | WaitDma):
            pairs = [_side_by_side(original, path, later) for later in _first_guarded(original, path)]
            behind = [(own, later) for own, later in filter(None, pairs) if own < later]
            if behind:
                own, target = min(behind)
                what = f"{kind_of(leaf)} {path} behind {target}"
                yield original.mutant(f"late {kind_of(leaf)}", what, own, _moved_to(target[-1]))


def _side_by_side(original: Original, path: Path, other: Path) -> tuple[Path, Path] | None:
    """The instructions of one body in which the two are: themselves, or loops; a loop moves if it holds `path` only."""
    level = next(i for i, (a, b) in enumerate(zip(path, other, strict=False)) if a != b)
    own = path[: level + 1]
    if sum(leaf[: level + 1] == own for leaf in original.leaves) > 1:
        return None
    return own, other[: level + 1]


def _moved_to(place: int) -> Edit:
    def edit(siblings: list[Instruction], index: int) -> None:
        siblings.insert(place, siblings.pop(index))

    return edit


def _first_guarded(original: Original, path: Path) -> Iterator[Path]:
    """For each execution of the wait at `path`, the first guarded instruction before it is executed again."""
    for rank, paths in enumerate(original.paths):
        for position, where in enumerate(paths):
            if where != path:
                continue
            for later in range(position + 1, len(paths)):
                other = paths[later]
                if other is None or other == path:
                    break
                if _guards(original, rank, position, later):
                    if original.at_once(rank, position, later):
                        yield other
                    break


def _guards(original: Original, rank: int, wait: int, later: int) -> bool:
    """Whether the operation at `later` may not come before the units that the wait takes.

    What arrives is not read or written before it is there; what is sent is not written, and not given back, before it
    has left; nothing is sent to a rank that has not given a credit, or has not entered.
    """
    op, path = original.op(rank, later), original.paths[rank][wait]
    assert path is not None
    if original.meets_between(rank, wait):
        return (rank, later) in original.opened(path)
    for source, position in original.takes[rank, wait]:
        cause = original.op(source, position)
        match cause:
            case trace.Signal():
                if op is original.given.get((source, position)):
                    return True
                reached = original.is_barrier(cause.semaphore) and _reaches(op, source)
                if reached and original.unnoticed(path)[rank, later][source] < 0:
                    return True
            case trace.Dma():
                wait_op = original.op(rank, wait)
                assert isinstance(wait_op, trace.Wait)
                arrived = cause.received == wait_op.semaphore and cause.rank == rank
                block = cause.target if arrived else cause.source
                if overlap(block, writes(op, rank)) or (arrived and overlap(block, reads(op))):
                    return True
                gift = original.given.get((rank, later))
                if gift is not None and (overlap(block, [gift.target]) or gift.received == wait_op.semaphore):
                    return True
    return False


def _reaches(op: trace.Op, rank: int) -> bool:
    """Whether it changes memory or a semaphore of that rank, as only one that has entered lets others do."""
    return _sends_to(op, rank) or (isinstance(op, trace.Signal) and op.rank == rank and op.semaphore[0] == tabled.PHASE)


def reads(op: trace.Op) -> list[trace.Block]:
    match op:
        case trace.Dma():
            return [op.source]
        case trace.Compute():
            return list(op.sources)
        case _:
            return []


def writes(op: trace.Op, rank: int) -> list[trace.Block]:
    """In this rank's own memory."""
    match op:
        case trace.Dma():
            return [op.target] if op.rank == rank else []
        case trace.Compute():
            return [op.target] if op.target is not None else []
        case _:
            return []


def overlap(block: trace.Block, others: list[trace.Block]) -> bool:
    return any(block.buffer == o.buffer and block.start < o.stop and o.start < block.stop for o in others)


def _early_signals(original: Original) -> Iterator[Mutant]:
    """A credit in front of the last instruction that touches, or waits for, what it gives back.

    In front of a barrier signal there is nothing: it tells that this rank has entered.
    """
    for path, leaf in original.leaves.items():
        if isinstance(leaf, Signal):
            pairs = [_side_by_side(original, path, earlier) for earlier in _last_touch(original, path)]
            before = [(target, own) for own, target in filter(None, pairs) if target < own]
            if before:
                target, own = max(before)
                what = f"{kind_of(leaf)} {path} before {target}"
                yield original.mutant(f"early {kind_of(leaf)}", what, own, _moved_to(target[-1]))


def _last_touch(original: Original, path: Path) -> Iterator[Path]:
    for rank, paths in enumerate(original.paths):
        for position, where in enumerate(paths):
            if where != path:
                continue
            gift = original.given.get((rank, position))
            opened = original.opened(path) if original.meets_between(rank, position) else set()
            waits = {original.before[unit] for unit in opened if original.receiver(*unit) == rank}
            for earlier in range(position - 1, -1, -1):
                other = paths[earlier]
                if other is None or other == path:
                    break
                if earlier in waits or (gift is not None and _touches(original, rank, earlier, gift)):
                    if original.at_once(rank, earlier, position):
                        yield other
                    break


def _touches(original: Original, rank: int, position: int, gift: trace.Dma) -> bool:
    op = original.op(rank, position)
    if not isinstance(op, trace.Wait):
        return overlap(gift.target, [*reads(op), *writes(op, rank)])
    if op.semaphore == gift.received:
        return True
    causes = [original.op(*unit) for unit in original.takes[rank, position]]
    return any(isinstance(c, trace.Dma) and overlap(gift.target, [c.source]) for c in causes)


# ---- late result, late read -----------------------------------------------------------------------------------------


def _late_results(original: Original) -> Iterator[Mutant]:
    """What the core computes, behind the first instruction that reads it."""
    yield from _late(original, "late result", (Add, Multiply, Round, Zero), writes, lambda op, _: reads(op))


def _late_reads(original: Original) -> Iterator[Mutant]:
    """What reads memory, behind the first instruction of this rank that overwrites it."""
    kinds = (Send, Add, Multiply, Round)
    yield from _late(original, "late read", kinds, lambda op, _: reads(op), writes)


Touched = Callable[[trace.Op, int], list[trace.Block]]


def _late(
    original: Original, kind: str, kinds: tuple[type[Leaf], ...], mine: Touched, theirs: Touched
) -> Iterator[Mutant]:
    """Instructions of these kinds behind the first later one that touches the same memory in the other way."""
    for path, leaf in original.leaves.items():
        if isinstance(leaf, kinds):
            found = _first_touch(original, path, mine, theirs)
            pairs = [_side_by_side(original, path, later) for later in found]
            behind = [(own, later) for own, later in filter(None, pairs) if own < later]
            if behind:
                own, target = min(behind)
                what = f"{kind_of(leaf)} {path} behind {target}"
                yield original.mutant(f"{kind} of {kind_of(leaf)}", what, own, _moved_to(target[-1]))


def _first_touch(original: Original, path: Path, mine: Touched, theirs: Touched) -> Iterator[Path]:
    """For each execution of the instruction at `path`, the first of the others before it is executed again."""
    for rank, paths in enumerate(original.paths):
        for position, where in enumerate(paths):
            if where != path:
                continue
            blocks = mine(original.op(rank, position), rank)
            for later in range(position + 1, len(paths)):
                other = paths[later]
                if other is None or other == path:
                    break
                if _interchangeable(original.op(rank, position), original.op(rank, later)):
                    continue
                if any(overlap(block, theirs(original.op(rank, later), rank)) for block in blocks):
                    if original.at_once(rank, position, later):
                        yield other
                    break


def _interchangeable(a: trace.Op, b: trace.Op) -> bool:
    """Both add a product to one sum: in either order it is the same."""
    return _adds_to(a) is not None and _adds_to(a) == _adds_to(b)


def _adds_to(op: trace.Op) -> trace.Block | None:
    match op:
        case trace.Compute(op="multiply", sources=(_, _, plus), target=target) if plus == target:
            return target
        case _:
            return None


# ---- merge --------------------------------------------------------------------------------------------------------


def _anywhere(_: str) -> str:
    return ""


def _link(semaphore: str) -> str:
    """Which link of a chain it belongs to; that of the weights is one of its own."""
    name, _, number = semaphore.rpartition("_")
    return name if name == "loaded" else number


def _merged_semaphores(original: Original, part: Callable[[str], str]) -> Iterator[Mutant]:
    """Of two phases it is not decided which would be as good as one: messages tell later what a signal told."""
    for a, b in _pairs(original.program):
        if a[0] == b[0] == tabled.PHASE:
            continue
        if part(a[0]) == part(b[0]) and not _as_good_as_one(original, a, b):
            yield _merged(original, a, b)


def harmless_mutants(program: Program) -> Iterator[Mutant]:
    """The merges of semaphores and of slots that are left out above, and the peers: they must pass every check."""
    original = Original(replace(program, body=split(program.body, ())))
    for a, b in _pairs(original.program):
        if _as_good_as_one(original, a, b):
            yield _merged(original, a, b)
    yield from _merged_memory(original, harmless=True)
    for path, leaf in original.leaves.items():
        yield from _peers(original, path, leaf, harmless=True)


def _pairs(program: Program) -> Iterator[tuple[trace.SemaphoreKey, trace.SemaphoreKey]]:
    """All pairs of one kind, elements of arrays included."""
    keys = [(s.kind, (s.name, i)) for s in program.semaphores for i in range(s.count)]
    for (kind, a), (other, b) in itertools.combinations(keys, 2):
        if kind == other:
            yield a, b


def _merged(original: Original, a: trace.SemaphoreKey, b: trace.SemaphoreKey) -> Mutant:
    what = f"{a[0]}[{a[1]}] and {b[0]}[{b[1]}]"
    return Mutant(kind="merge semaphores", what=what, build=_renamed(original, {b: a}))


def _as_good_as_one(original: Original, a: trace.SemaphoreKey, b: trace.SemaphoreKey) -> bool:
    """Whether no rank can confuse the two: no unit for the later of two waits can be there at the earlier one.

    It need not be so where nothing lies between that the earlier guards: they are like one wait for everything. Two
    elements of an array that no rank needs both are made into a mutant all the same: the array is too long. But where
    transfers are looked up, a class of them has its own elements, and no rank need have a transfer of each class.
    """
    ranks = range(len(original.execution.traces))
    both = [rank for rank in ranks if (rank, a) in original.feeds and (rank, b) in original.feeds]
    if not both and a[0] == b[0] != tabled.RECEIVED:
        return False
    return all(
        _surely_later(original, rank, min(i, j), max(i, j))
        for rank in both
        for i in original.waits[rank, a]
        for j in original.waits[rank, b]
    )


def _surely_later(original: Original, rank: int, first: int, second: int) -> bool:
    """Nothing between two waits needs the first, or the units that the second takes surely start after it."""
    if not original.needs(rank, first, second):
        return True
    return all(original.known[cause][rank] >= first for cause in original.takes[rank, second])


def _renamed(original: Original, names: dict[trace.SemaphoreKey, trace.SemaphoreKey]) -> Callable[[bool], Expansion]:
    def key(old: trace.SemaphoreKey | None) -> trace.SemaphoreKey | None:
        return old if old is None else names.get(old, old)

    def change(op: trace.Op) -> trace.Op:
        match op:
            case trace.Dma():
                return replace(op, sent=key(op.sent), received=key(op.received))
            case trace.Wait() | trace.Signal():
                return replace(op, semaphore=key(op.semaphore))
            case _:
                return op

    return lambda full: _changed(expand(original.program, symmetric=False if full else None), change)


def _changed(expansion: Expansion, change: Callable[[trace.Op], trace.Op]) -> Expansion:
    traces = tuple(tuple(map(change, ops)) for ops in expansion.execution.traces)
    return replace(expansion, execution=replace(expansion.execution, traces=traces))


Unit = tuple[str, int, int]  # a block of scratch memory that is used as a whole


def _merged_memory(original: Original, *, harmless: bool = False) -> Iterator[Mutant]:
    """Any two slots, whether of one buffer or of two, where they are of one size.

    Where chunks land by their number, no rank need have a place for all of them: two that no rank uses both are one.
    """
    used = [_used(original, rank) for rank in range(len(original.execution.traces))]
    for a, b in itertools.combinations(_slots(original), 2):
        both = any(all(overlap(trace.Block(*unit), blocks) for unit in (a, b)) for blocks in used)
        if a[2] - a[1] == b[2] - b[1] and both and _one_after_the_other(original, a, b) == harmless:
            what = f"{a[0]}[{a[1]}:{a[2]}] and {b[0]}[{b[1]}:{b[2]}]"
            yield Mutant(kind="merge slots", what=what, build=_laid_over(original, a, b))


def _one_after_the_other(original: Original, a: Unit, b: Unit) -> bool:
    """Whether each rank is done with one of two slots before anyone begins with the other, as messages tell.

    Only where every arrival has a slot of its own; elsewhere slots are used again, and no two are to be spared.
    """
    if not any(s.name == tabled.RECEIVED and s.count > 1 for s in original.program.semaphores):
        return False
    return all(
        _done_before(original, rank, first, second) or _done_before(original, rank, second, first)
        for rank in range(len(original.execution.traces))
        for first, second in [(trace.Block(*a), trace.Block(*b))]
    )


def _done_before(original: Original, rank: int, first: trace.Block, second: trace.Block) -> bool:
    begun = [place for place, _ in original.touching(rank, second)]
    return all(
        any(original.known[place][who] >= position for who, position in ends)
        for place in begun
        for _, ends in original.touching(rank, first)
    )


def _used(original: Original, rank: int) -> list[trace.Block]:
    """What is read or written of a rank's memory."""
    own = [block for op in original.execution.traces[rank] for block in (*reads(op), *writes(op, rank))]
    return own + [op.target for ops in original.execution.traces for op in ops if _sends_to(op, rank)]


def _slots(original: Original) -> list[Unit]:
    """The blocks of scratch memory that are written; those within another one left out."""
    scratch = {b.name for b in original.program.buffers if b.space == "scratch"}
    found = {
        (op.target.buffer, op.target.start, op.target.stop)
        for ops in original.execution.traces
        for op in ops
        if isinstance(op, trace.Dma | trace.Compute) and op.target is not None and op.target.buffer in scratch
    }
    inside = {a for a in found for b in found if a != b and a[0] == b[0] and b[1] <= a[1] and a[2] <= b[2]}
    return sorted(found - inside)


def _laid_over(original: Original, a: Unit, b: Unit) -> Callable[[bool], Expansion]:
    def block(old: trace.Block) -> trace.Block:
        if old.buffer == b[0] and b[1] <= old.start and old.stop <= b[2]:
            return trace.Block(a[0], old.start - b[1] + a[1], old.stop - b[1] + a[1])
        return old

    def change(op: trace.Op) -> trace.Op:
        match op:
            case trace.Dma():
                return replace(op, source=block(op.source), target=block(op.target))
            case trace.Compute():
                target = block(op.target) if op.target is not None else None
                return replace(op, target=target, sources=tuple(map(block, op.sources)))
            case _:
                return op

    def build(full: bool) -> Expansion:
        expansion = expand(original.program, symmetric=False if full else None)
        if expansion.execution.symmetric and any(
            axis is not None for name in (a[0], b[0]) for axis in expansion.axes[name]
        ):
            expansion = expand(
                original.program, symmetric=False
            )  # units are counted from another rank's here and there
        return _changed(expansion, change)

    return build
