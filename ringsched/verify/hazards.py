"""The hazard check: no race, no deadlock, no semaphore left over, on every interleaving.

    Execution  →  HazardReport

The rule is told in docs/proofs.md; `clocks.py` says how it is computed, `races.py` how accesses are compared, and
`hazard_diagnostics.py` words the findings. Exact: `exhaustive.py` finds the same by trying every interleaving.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringsched.program.trace import Block, Enter, Execution, Exit, Op, SemaphoreKey, Wait
from ringsched.verify.clocks import Clocks
from ringsched.verify.machine import Machine
from ringsched.verify.races import Kind, Pair, Races, Space, Touch, block_of

MOST_RACES = 20  # reported; one faulty line easily causes thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One side of a race. In a symmetric execution `rank` is a displacement from the rank whose memory it is.

    `finish` is the position of the wait, on the rank that waits, after which the access is surely over; the access's
    own position where it is over at once, None where no wait tells.
    """

    rank: int
    position: int  # within one call's trace
    call: int
    op: Op
    kind: Kind
    block: Block
    finish: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Two accesses to `overlap` on rank `memory_rank`, in the order of one execution, that nothing orders.

    In the space of semaphores, the overlap names the semaphore and its index.
    """

    first: Access
    second: Access
    memory_rank: int
    space: Space
    overlap: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckWait:
    """A wait that never returns: its semaphore holds `has` units in the end, and it `needs` more than that."""

    rank: int
    position: int
    call: int
    op: Wait
    has: int
    needs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlock:
    stuck: tuple[StuckWait, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """In each call, a semaphore of `rank` is given `added` units and `taken` are taken off; they differ."""

    rank: int
    semaphore: SemaphoreKey
    added: int
    taken: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HazardReport:
    """What the check found. `races` holds the first few of `distinct_races`, earliest first."""

    races: tuple[Race, ...]
    distinct_races: int
    deadlock: Deadlock | None
    leftovers: tuple[Leftover, ...]

    @property
    def ok(self) -> bool:
        return not self.races and self.deadlock is None and not self.leftovers


def check_hazards(execution: Execution, calls: int = 2) -> HazardReport:
    """What can go wrong in `calls` calls in a row on the same memory and semaphores.

    Where the program deadlocks, the races are those among the instructions that it gets to.
    """
    machine = Machine(execution, calls)
    races = Races(machine, Clocks(machine))
    distinct: dict[tuple[object, ...], Pair] = {}
    for pair in races.consecutive_pairs():
        key = (pair.place[1:], *(_instruction(machine, touch) for touch in (pair.first, pair.second)))
        known = distinct.get(key)
        if known is None or _age(pair) < _age(known):
            distinct[key] = pair
    earliest = sorted(distinct.values(), key=_age)[:MOST_RACES]
    return HazardReport(
        races=tuple(_race(machine, pair) for pair in earliest),
        distinct_races=len(distinct),
        deadlock=_deadlock(machine),
        leftovers=_leftovers(machine),
    )


def all_races(execution: Execution, calls: int = 2) -> frozenset[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Every race as (owner of the memory or semaphore, access, access), an access being (rank, position in all calls).

    Quadratic; for tests of `check_hazards` and for comparison with the exhaustive search.
    """
    machine = Machine(execution, calls)
    found = set()
    for place, first, second in Races(machine, Clocks(machine)).all_pairs():
        left, right = sorted(((first.rank, first.position), (second.rank, second.position)))
        found.add((place.owner, left, right))
    return frozenset(found)


def _instruction(machine: Machine, touch: Touch) -> tuple[int, object]:
    """What all ranks that execute the same line at the same place of their traces have in common."""
    position = touch.position % _length(machine, touch)
    op = machine.op(machine.geometry.thread(touch.rank), position)
    return position, None if isinstance(op, Enter | Exit) else op.origin


def _length(machine: Machine, touch: Touch) -> int:
    return len(machine.traces[machine.geometry.thread(touch.rank)])


def _age(pair: Pair) -> tuple[int, int, int, str]:
    return pair.second.turn, pair.first.turn, pair.place.owner, pair.place.name


def _race(machine: Machine, pair: Pair) -> Race:
    first, second = _access(machine, pair, pair.first), _access(machine, pair, pair.second)
    if pair.place.space == "memory":
        start, stop = max(pair.first.start, pair.second.start), min(pair.first.stop, pair.second.stop)
        overlap = Block(pair.place.name, start, stop)
    else:
        overlap = first.block if first.block.units else second.block
    return Race(first=first, second=second, memory_rank=pair.place.owner, space=pair.place.space, overlap=overlap)


def _access(machine: Machine, pair: Pair, touch: Touch) -> Access:
    thread = machine.geometry.thread(touch.rank)
    call, position = divmod(touch.position, len(machine.traces[thread]))
    op = machine.op(thread, position)
    finish_length = len(machine.traces[machine.geometry.thread(touch.end_rank)])
    told = touch.end_position < machine.executed[machine.geometry.thread(touch.end_rank)]
    return Access(
        rank=touch.rank,
        position=position,
        call=call,
        op=op,
        kind=touch.kind,
        block=block_of(op, touch, pair.place),
        finish=touch.end_position % finish_length if told else None,
    )


def _deadlock(machine: Machine) -> Deadlock | None:
    stuck = []
    for thread, trace in enumerate(machine.traces):
        if machine.executed[thread] == len(trace) * machine.calls:
            continue
        call, position = divmod(machine.executed[thread], len(trace))
        op = machine.op(thread, position)
        assert isinstance(op, Wait)  # nothing else can stop a rank
        has = machine.held.get((thread, op.semaphore), 0)
        stuck.append(StuckWait(rank=thread, position=position, call=call, op=op, has=has, needs=op.amount))
    return Deadlock(stuck=tuple(stuck)) if stuck else None


def _leftovers(machine: Machine) -> tuple[Leftover, ...]:
    """Compared over one call's trace: what is left over there is, once more, after every call."""
    added: dict[tuple[int, SemaphoreKey], int] = {}
    taken: dict[tuple[int, SemaphoreKey], int] = {}
    for thread, trace in enumerate(machine.traces):
        for op, increments in zip(trace, machine.increments[thread], strict=True):
            for owner, key, _, units, _ in increments:
                added[owner, key] = added.get((owner, key), 0) + units
            if isinstance(op, Wait):
                taken[thread, op.semaphore] = taken.get((thread, op.semaphore), 0) + op.amount
    return tuple(
        Leftover(rank=slot[0], semaphore=slot[1], added=added.get(slot, 0), taken=taken.get(slot, 0))
        for slot in sorted(added.keys() | taken.keys())
        if added.get(slot, 0) != taken.get(slot, 0)
    )
