"""A barrier of those who write to each other: each rank tells its writers, and waits for those that it writes to.

With both neighbours signalled and both waited for, a neighbour that is already in its next call could be taken for one
that has not arrived in this one; the hazard rule shows it for two calls of a shift on five ranks or more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringsched.expr import Compare, Expr, Int, Lookup
from ringsched.lower.lanes import Lanes, Use, unflattened
from ringsched.program.program import RANK, Instruction, SemaphoreRef, Signal, Wait, When
from ringsched.program.simplify import known

NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    signal: str
    wait: str


def meeting(lanes: Lanes, uses: Iterable[Use], ref: SemaphoreRef, notes: Notes) -> tuple[Instruction, ...]:
    """The signals, then the waits, for these uses; which ranks take part is looked up."""
    if lanes.symmetric:
        return _symmetric(lanes, uses, ref, notes)
    ranks, topology = lanes.ranks, lanes.flat.topology
    pairs = sorted({(lanes.receiver(use, sender), sender) for use in uses for sender in use.senders})
    writers = {rank: sorted(writer for reader, writer in pairs if reader == rank) for rank in ranks}
    readers = {rank: sum(writer == rank for _, writer in pairs) for rank in ranks}
    body: list[Instruction] = []
    for k in range(max(map(len, writers.values()), default=0)):
        table = tuple(writers[rank][k] if k < len(writers[rank]) else NOBODY for rank in ranks)
        writer = _entry(f"writer{k}", table, RANK)
        signal = Signal(semaphore=ref, peer=unflattened(writer, topology.sides), note=notes.signal)
        absent = NOBODY in table
        guard = Compare(first=writer, rest=((">=", Int(value=0)),))
        body.append(When(conditions=(guard,), body=(signal,)) if absent else signal)
    awaited = _entry("awaited", tuple(readers[rank] for rank in ranks), RANK)
    amounts = sorted(set(readers.values()))
    for amount in amounts:
        wait = Wait(semaphore=ref, amount=amount, note=notes.wait)
        guard = Compare(first=awaited, rest=(("==", Int(value=amount)),))
        if amount:
            body.append(When(conditions=(guard,), body=(wait,)) if len(amounts) > 1 else wait)
    return tuple(body)


def _entry(name: str, table: tuple[int, ...], index: Expr) -> Expr:
    return Int(value=table[0]) if len(set(table)) == 1 else Lookup(name=name, table=table, index=index)


def _symmetric(lanes: Lanes, uses: Iterable[Use], ref: SemaphoreRef, notes: Notes) -> tuple[Instruction, ...]:
    writers = {lanes.sender(use, 0): use for use in reversed(list(uses))}
    body: list[Instruction] = []
    for use in reversed(writers.values()):
        source = tuple(known(e, use.env) for e in lanes.lanes[use.lane].source)
        body.append(Signal(semaphore=ref, peer=source, note=notes.signal))
    return (*body, Wait(semaphore=ref, amount=len(writers), note=notes.wait))
