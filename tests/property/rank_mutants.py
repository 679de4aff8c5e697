"""Mutants of what differs from rank to rank: what is looked up, who is let in, who meets whom.

    guard dropped, guard negated   a condition of one instruction
    entry                          an entry of a table is off by one, that of the next rank, nobody's or somebody's
    entry for one                  the same, as one instruction alone sees it
    pair                           two ranks that do not meet: a signal removed, and one less waited for

Where a mutant does what the original does, operation for operation, nothing is wrong with it and it does not count: an
entry that no rank looks up, or that only says where something lies whose size is waited for (a region that is waited
for gives a number of units), or a loop's round in which no guard holds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from program_mutants import (
    PRODUCTS,
    SCHEDULES,
    Edit,
    Mutant,
    Original,
    Path,
    Subject,
    edited,
    kind_of,
    mutants,
    overlap,
    reads,
    split,
    writes,
)
from shipped import SINGLE

from ringsched.expr import Binary, Compare, EvaluationError, Expr, Extremum, Int, Lookup, Neg, Var, lookups, negated
from ringsched.lower.meeting import NOBODY
from ringsched.program import trace
from ringsched.program.expand import Expansion, IndexOutOfRange, expand
from ringsched.program.program import Add, Instruction, Program, When, Zero
from ringsched.program.rewrite import Change, rewrite

OTHERS = tuple(name for name in SINGLE if name not in SCHEDULES + PRODUCTS and name != "matmul")  # it sends nothing
FEW = (  # ranks, and receive semaphores: several phases
    ("broadcast_mesh", 4, 6),
    ("broadcast_mesh", 6, 5),
    ("broadcast_torus", 6, 6),
    ("all_to_all_mesh", 6, 5),
    ("all_gather_mesh", 6, 4),
    ("reduce_scatter_mesh", 6, 4),
    ("all_reduce_mesh", 4, 8),
    ("all_to_all_torus", 9, 8),
)
MAY_BE_THE_SAME = ("entry", "entry for one", "bound")


def rank_mutants(subject: Subject) -> Iterator[Mutant]:
    """All of them; those of tables may do what the original does."""
    program = subject.program
    original = Original(replace(program, body=split(program.body, ())))
    yield from _guards(original)
    yield from _pairs(original)
    yield from _entries(original)


def sample(subject: Subject, most: int) -> list[Mutant]:
    """Of all kinds of mutants at most so many each, always the same ones; none that does what the original does."""
    executed = expand(subject.program, symmetric=False).execution.traces
    found = [*mutants(subject), *rank_mutants(subject)]
    chosen: dict[str, list[Mutant]] = {}
    for mutant in random.Random(subject.label).sample(found, len(found)):
        group = chosen.setdefault(mutant.kind, [])
        if len(group) < most and not (mutant.kind in MAY_BE_THE_SAME and _same(mutant, executed)):
            group.append(mutant)
    return [mutant for group in chosen.values() for mutant in group]


def _same(mutant: Mutant, executed: tuple[tuple[trace.Op, ...], ...]) -> bool:
    try:
        return mutant.build(True).execution.traces == executed
    except (IndexOutOfRange, EvaluationError):
        return False


def harmless_pairs(subject: Subject) -> Iterator[Mutant]:
    """The pairs that are left out: without them, nothing is wrong."""
    yield from _pairs(Original(replace(subject.program, body=split(subject.program.body, ()))), harmless=True)


# ---- guards -------------------------------------------------------------------------------------------------------


def _guards(original: Original) -> Iterator[Mutant]:
    """Each condition left out, or the contrary. None is left out where nobody would see it."""
    for path, when in _guarded(original.program.body):
        for number, condition in enumerate(when.conditions):
            rest = (*when.conditions[:number], *when.conditions[number + 1 :])
            what = f"condition {number} of {path}"
            if not (isinstance(when.body[0], Add | Zero) and _unseen(original, path, rest)):
                yield original.mutant("guard dropped", what, path, _conditions(rest))
            opposite = Compare(first=condition, rest=(("==", Int(value=0)),))
            yield original.mutant("guard negated", what, path, _conditions((*rest, opposite)))


def _unseen(original: Original, path: Path, conditions: tuple[Expr, ...]) -> bool:
    """Whether the instruction, under these conditions, does no harm on the ranks that did not execute it.

    It computes where the rank does nothing else: in a slot that it never uses. Or it zeroes what the rank stores later.
    """
    changed = Original(replace(original.program, body=edited(original.program.body, path, _conditions(conditions))))
    traces = changed.execution.traces
    for rank, (new, old) in enumerate(zip(changed.paths, original.paths, strict=True)):
        if new.count(path) == old.count(path):
            continue
        positions = [position for position, where in enumerate(new) if where == path]
        if path in old or not all(_idle(changed, rank, p, path) or _first_stored(traces, rank, p) for p in positions):
            return False
    return True


def _idle(changed: Original, rank: int, position: int, path: Path) -> bool:
    op = changed.op(rank, position)
    if not isinstance(op, trace.Compute) or op.target is None:
        return False
    if changed.program.buffer(op.target.buffer).space != "scratch":
        return False
    own = [o for o, where in zip(changed.execution.traces[rank], changed.paths[rank], strict=True) if where != path]
    sent = [o.target for ops in changed.execution.traces for o in ops if isinstance(o, trace.Dma) and o.rank == rank]
    return not overlap(op.target, [*sent, *(block for o in own for block in (*reads(o), *writes(o, rank)))])


def _first_stored(traces: tuple[tuple[trace.Op, ...], ...], rank: int, position: int) -> bool:
    """Whether what a rank computes is new, comes from nobody else, and is stored over before it is read."""
    done = traces[rank][position]
    if not isinstance(done, trace.Compute) or done.target is None:
        return False
    sent = [op.target for ops in traces for op in ops if isinstance(op, trace.Dma) and op.rank == rank]
    if overlap(done.target, sent):
        return False
    if any(overlap(done.target, [*reads(op), *writes(op, rank)]) for op in traces[rank][:position]):
        return False
    missing = set(range(done.target.start, done.target.stop))
    for op in traces[rank][position + 1 :]:
        if any(overlap(trace.Block(done.target.buffer, unit, unit + 1), reads(op)) for unit in missing):
            return False
        missing -= {u for b in writes(op, rank) if b.buffer == done.target.buffer for u in range(b.start, b.stop)}
    return not missing


def _conditions(conditions: tuple[Expr, ...]) -> Edit:
    def edit(siblings: list[Instruction], index: int) -> None:
        when = siblings[index]
        assert isinstance(when, When)
        siblings[index] = replace(when, conditions=conditions)

    return edit


def _guarded(body: tuple[Instruction, ...], before: Path = ()) -> Iterator[tuple[Path, When]]:
    for number, instruction in enumerate(body):
        inner = instruction.body[0] if isinstance(instruction, When) else instruction
        if isinstance(instruction, When):
            yield (*before, number), instruction
        if hasattr(inner, "body"):
            yield from _guarded(inner.body, (*before, number))


# ---- tables -------------------------------------------------------------------------------------------------------


def _entries(original: Original) -> Iterator[Mutant]:
    program = original.program
    tables: dict[tuple[int, ...], str] = {}
    for instruction in program.body:
        for lookup in _lookups(instruction):
            tables.setdefault(lookup.table, lookup.name)
    for table, name in tables.items():
        for what, new in _altered(table):
            change = partial(_looked_up, old=table, new=new)
            yield Mutant(kind="entry", what=f"{name}{what}", build=partial(_everywhere, program, change))
    for path, leaf in original.leaves.items():
        for lookup in dict.fromkeys(_lookups(leaf)):
            for what, new in _altered(lookup.table):
                change = partial(_looked_up, old=lookup.table, new=new)
                name = f"{kind_of(leaf)} {path} {lookup.name}{what}"
                yield original.mutant("entry for one", name, path, _rewritten(change))


def _everywhere(program: Program, change: Change, full: bool) -> Expansion:
    changed = replace(program, body=tuple(rewrite(i, change) for i in program.body))
    return expand(changed, symmetric=False if full else None)


def _rewritten(change: Change) -> Edit:
    """The instruction itself; who executes it stays as it was."""

    def edit(siblings: list[Instruction], index: int) -> None:
        match siblings[index]:
            case When() as when:
                siblings[index] = replace(when, body=tuple(rewrite(i, change) for i in when.body))
            case instruction:
                siblings[index] = rewrite(instruction, change)

    return edit


def _altered(table: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for place, value in enumerate(table):
        others = (0, max(table)) if value == NOBODY else (value + 1, value - 1, NOBODY)
        for other in dict.fromkeys((*others, table[(place + 1) % len(table)])):
            if other != value:
                yield f"[{place}]: {value} → {other}", (*table[:place], other, *table[place + 1 :])


def _lookups(instruction: Instruction) -> list[Lookup]:
    found: list[Lookup] = []

    def look(expr: Expr) -> Expr:
        found.extend(lookups(expr))
        return expr

    rewrite(instruction, look)
    return found


def _looked_up(expr: Expr, old: tuple[int, ...], new: tuple[int, ...]) -> Expr:
    """With `new` in place of a table."""
    change = partial(_looked_up, old=old, new=new)
    match expr:
        case Int() | Var():
            return expr
        case Neg():
            return negated(change(expr.operand))
        case Binary():
            return replace(expr, left=change(expr.left), right=change(expr.right))
        case Compare():
            return replace(expr, first=change(expr.first), rest=tuple((op, change(e)) for op, e in expr.rest))
        case Extremum():
            return replace(expr, operands=tuple(map(change, expr.operands)))
        case Lookup():
            return replace(expr, table=new if expr.table == old else expr.table, index=change(expr.index))


# ---- meetings -----------------------------------------------------------------------------------------------------


def _pairs(original: Original, *, harmless: bool = False) -> Iterator[Mutant]:
    """A rank that is not told, by one that it writes to, that this has entered or is through with a phase.

    None is made where it knows all the same, before it writes there, from what others have sent since.
    """
    for (writer, wait), units in original.takes.items():
        for reader, signal in units:
            op = original.op(reader, signal)
            if not isinstance(op, trace.Signal) or not original.meets(op.semaphore):
                continue
            if _needed(original, writer, reader, signal) != harmless:
                what = f"{op.semaphore[0]}[{op.semaphore[1]}]: {reader} does not tell {writer}"
                yield Mutant(kind="pair", what=what, build=partial(_apart, original, (reader, signal), (writer, wait)))


def _needed(original: Original, writer: int, reader: int, signal: int) -> bool:
    known = original.known_without(frozenset({(reader, signal)}))
    op = original.op(reader, signal)
    assert isinstance(op, trace.Signal)
    if not original.is_barrier(op.semaphore):
        return bool(original.exposed(known))
    return any(known[place][reader] < 0 for place in original.reaching(writer, reader))


def _apart(original: Original, told: tuple[int, int], waits: tuple[int, int], full: bool) -> Expansion:
    del full  # ranks differ
    expansion = expand(original.program, symmetric=False)
    traces = list(expansion.execution.traces)
    writer, place = waits
    wait = traces[writer][place]
    assert isinstance(wait, trace.Wait)
    less = (replace(wait, amount=wait.amount - 1),) if wait.amount > 1 else ()
    traces[writer] = (*traces[writer][:place], *less, *traces[writer][place + 1 :])
    reader, place = told
    traces[reader] = (*traces[reader][:place], *traces[reader][place + 1 :])
    return replace(expansion, execution=replace(expansion.execution, traces=tuple(traces)))
