"""Which kind of mistake is behind a race or a semaphore that does not come out even.

    Race | Leftover | StuckWait, Execution  →  code

The hazard check has decided already; this only looks for the best words. So it takes the units on a semaphore in the
order in which the program means them, one DMA after the other, which is just what no machine promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ringsched.program.program import BARRIER
from ringsched.program.trace import Block, Compute, Dma, Execution, Op, SemaphoreKey, Signal, Wait
from ringsched.verify.hazards import Access, Leftover, Race


def race_code(race: Race, execution: Execution) -> str:
    """RS404, RS405 or RS406 where one of them tells more than RS401."""
    first, second = race.first, race.second
    if race.space == "semaphore" or first.call != second.call:
        return "RS401"
    own = second.rank == race.memory_rank
    match first.op:
        case Dma(received=key) if first.kind == "write" and own:
            if _meant_to_have_ended(first.op, first.rank, first.position, key, second, execution):
                return "RS405"
            if _after_another(first.op, race, execution):  # it is meant for what came before, and this runs ahead
                return "RS401"
            if _reads(second):
                return "RS404"
            return "RS406" if isinstance(second.op, Compute) and first.rank != race.memory_rank else "RS401"
        case Dma(sent=sent, received=received) if first.kind == "read" and own and second.kind == "write":
            key = sent or received  # a local copy counts once, on `received`
            ended = _meant_to_have_ended(first.op, first.rank, first.position, key, second, execution)
            return "RS405" if ended else "RS401"
        case Compute() if first.kind == "write" and isinstance(second.op, Dma) and not own:
            initial = _is_first_touch(first, race.overlap, _trace(execution, first.rank)) and not _reads(first)
            return "RS406" if initial else "RS401"
        case _:
            return "RS401"


def _meant_to_have_ended(
    dma: Dma, rank: int, position: int, key: SemaphoreKey | None, later: Access, execution: Execution
) -> bool:
    """Whether the waits before `later` take as many units as there are on the semaphore with this DMA's own.

    rank, position: of the DMA. key: the semaphore that tells what is asked for, of the rank that does `later`.
    """
    if key is None:
        return False
    units = sum(
        op.amount
        for op in _trace(execution, rank)[: position + 1]
        if isinstance(op, Dma) and ((op.received == key and op.rank == dma.rank) or op.sent == key)
    )
    waits = [op for op in _trace(execution, later.rank)[: later.position] if isinstance(op, Wait)]
    return sum(op.amount for op in waits if op.semaphore == key) >= units


def _after_another(dma: Dma, race: Race, execution: Execution) -> bool:
    """Whether another DMA into the same memory is meant to have ended before the second access."""
    later, overlap = race.second, race.overlap
    for sender, trace in enumerate(execution.traces):
        for position, op in enumerate(trace):
            if not isinstance(op, Dma) or op is dma or op.target.buffer != overlap.buffer:
                continue
            if op.target.start >= overlap.stop or overlap.start >= op.target.stop:
                continue
            if execution.symmetric and op.rank != dma.rank:
                continue
            if not execution.symmetric and op.rank != race.memory_rank:
                continue
            if _meant_to_have_ended(op, sender, position, op.received, later, execution):
                return True
    return False


def _reads(access: Access) -> bool:
    """Whether it takes what is there into account, be it to add to it."""
    if access.kind == "read":
        return True
    block = access.block
    sources = access.op.sources if isinstance(access.op, Compute) else ()
    return any(s.buffer == block.buffer and s.start < block.stop and block.start < s.stop for s in sources)


def _is_first_touch(access: Access, block: Block, trace: Sequence[Op]) -> bool:
    """Whether the rank has not looked at this memory before in the call."""

    def touches(op: Op) -> bool:
        blocks = (*op.sources, op.target) if isinstance(op, Compute) else (op.source,) if isinstance(op, Dma) else ()
        return any(
            each is not None and each.buffer == block.buffer and each.start < block.stop and block.start < each.stop
            for each in blocks
        )

    return not any(touches(op) for op in trace[: access.position])


def barrier_misses(access: Access, memory_rank: int, execution: Execution) -> bool:
    """Whether the rank has waited on the barrier, which the owner of the memory never signals it on."""
    waited = any(
        isinstance(op, Wait) and op.semaphore[0] == BARRIER for op in _trace(execution, access.rank)[: access.position]
    )
    told = any(
        isinstance(op, Signal) and op.semaphore[0] == BARRIER and op.rank == access.rank
        for op in _trace(execution, memory_rank)
    )
    return waited and not told


def only_some_drain(leftovers: Sequence[Leftover], left: Leftover, execution: Execution) -> bool:
    """Whether there are ranks on which the semaphore comes out even though units arrive there, too."""
    if execution.symmetric:
        return False
    uneven = {each.rank for each in leftovers if each.semaphore == left.semaphore}
    others = [
        rank
        for rank, trace in enumerate(execution.traces)
        if rank not in uneven and any(isinstance(op, Wait) and op.semaphore == left.semaphore for op in trace)
    ]
    return bool(others)


def sizes_differ(rank: int, key: SemaphoreKey, execution: Execution) -> bool:
    """Whether a semaphore is fed by DMAs alone and waited for as often as they count on it, but for other amounts."""
    ranks = range(1) if execution.symmetric else range(len(execution.traces))
    if any(
        isinstance(op, Signal) and op.semaphore == key and (execution.symmetric or op.rank == rank)
        for each in ranks
        for op in execution.traces[each]
    ):
        return False
    added = [amount for each in ranks for amount in _counted(execution, each, rank, key)]
    taken = [op.amount for op in _trace(execution, rank) if isinstance(op, Wait) and op.semaphore == key]
    return len(added) == len(taken) and sum(added) != sum(taken)


def _counted(execution: Execution, source: int, owner: int, key: SemaphoreKey) -> list[int]:
    """What each DMA of rank `source` counts on a semaphore of `owner`; the pieces of one DMA are taken together."""
    amounts = []
    for _, pieces in groupby(execution.traces[source], lambda op: (op.note, op.origin) if isinstance(op, Dma) else op):
        dmas = [op for op in pieces if isinstance(op, Dma)]
        for end in ("sent", "received"):
            there = execution.symmetric or (owner == source if end == "sent" else any(op.rank == owner for op in dmas))
            counting = [op.amount for op in dmas if getattr(op, end) == key and there]
            if counting:
                amounts.append(sum(counting))
    return amounts


def _trace(execution: Execution, rank: int) -> Sequence[Op]:
    return execution.traces[0 if execution.symmetric else rank]
