"""A barrier of those who write to each other: each rank tells its writers, and waits for those that it writes to.

With both neighbours signalled and both waited for, a neighbour that is already in its next call could be taken for one
that has not arrived in this one; the hazard rule shows it for two calls of a shift on five ranks or more.

Between phases, too, a rank tells its writers; so it has to know that they have entered. From those that have written to
it before it does. A stranger, whose first message comes in a later phase, tells it at entry. There it cannot be taken
for one in its next call: it does not get through this one before it has been told that the phase may begin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringsched.expr import Compare, Expr, Int, Lookup
from ringsched.lower.lanes import Lanes, Use, unflattened
from ringsched.program.program import RANK, Instruction, SemaphoreRef, Signal, Wait, When
from ringsched.program.simplify import known

NOBODY = -1
Pair = tuple[int, int]  # receiver, sender; of a symmetric schedule the receiver is rank 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    signal: str
    wait: str


def strangers(lanes: Lanes, phases: Sequence[Iterable[Use]]) -> dict[Pair, Use]:
    """Who writes to whom in a later phase and in none before, and the first use of it."""
    met: set[Pair] = set()
    found: dict[Pair, Use] = {}
    for number, uses in enumerate(phases):
        pairs = {pair: use for use in reversed(list(uses)) for pair in _pairs(lanes, use) if pair not in met}
        found |= pairs if number else {}
        met |= pairs.keys()
    return found


def _pairs(lanes: Lanes, use: Use) -> list[Pair]:
    if lanes.symmetric:
        return [(0, lanes.sender(use, 0))]
    return [(lanes.receiver(use, sender), sender) for sender in use.senders]


def meeting(
    lanes: Lanes, uses: Iterable[Use], ref: SemaphoreRef, notes: Notes, introduced: Mapping[Pair, Use] | None = None
) -> tuple[Instruction, ...]:
    """The signals, then the waits, for these uses; which ranks take part is looked up.

    introduced: strangers, of whom the sender tells the receiver as well.
    """
    back = introduced or {}
    if lanes.symmetric:
        return _symmetric(lanes, uses, ref, notes, back)
    ranks, topology = lanes.ranks, lanes.flat.topology
    told = {pair for use in uses for pair in _pairs(lanes, use)} | {(sender, receiver) for receiver, sender in back}
    pairs = sorted(told)  # who tells whom
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


def _symmetric(
    lanes: Lanes, uses: Iterable[Use], ref: SemaphoreRef, notes: Notes, back: Mapping[Pair, Use]
) -> tuple[Instruction, ...]:
    writers = {lanes.sender(use, 0): use for use in reversed(list(uses))}
    told = {writer: (lanes.lanes[use.lane].source, use) for writer, use in reversed(writers.items())}
    for use in back.values():
        told.setdefault(lanes.receiver(use, 0), (lanes.lanes[use.lane].peer, use))
    signals = [
        Signal(semaphore=ref, peer=tuple(known(e, use.env) for e in peer), note=notes.signal)
        for peer, use in told.values()
    ]
    return (*signals, Wait(semaphore=ref, amount=len(told), note=notes.wait))
