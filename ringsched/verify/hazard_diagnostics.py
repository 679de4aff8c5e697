"""Words for what the hazard check finds.

HazardReport, Execution  →  Diagnostics

RS401  two accesses to the same memory       RS402  … of a device that may not have entered the kernel
RS403  an access under way when a device leaves the kernel
RS404  used before its DMA is waited for     RS405  two DMAs on one semaphore     RS406  lost under a local write
RS501  deadlock      RS502  semaphore left over      RS503  signal to a device outside the kernel
RS504  left over on some ranks only          RS505  start and wait of different sizes
RS524  access to a device that the barrier does not cover
"""

from __future__ import annotations

from dataclasses import replace

from ringsched.diagnostics import Diagnostic, Label, Span
from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, SemaphoreKey, Signal, Wait
from ringsched.verify.hazards import Access, Deadlock, HazardReport, Leftover, Race, StuckWait
from ringsched.verify.reasons import barrier_misses, only_some_drain, race_code, sizes_differ

SHOWN_WAITS = 8

ENTRY_CURE = (
    "let each rank signal, once it has entered, the ranks that write into its memory, and wait for the signals of the "
    "ranks that it writes to"
)


def diagnose(report: HazardReport, execution: Execution) -> tuple[Diagnostic, ...]:
    """One diagnostic for each pair of places that race, one for a deadlock, one for each semaphore left over."""
    return tuple(diagnostic for _, diagnostic in diagnosed(report, execution))


def diagnosed(report: HazardReport, execution: Execution) -> tuple[tuple[Race | Deadlock | Leftover, Diagnostic], ...]:
    """The same, each with the first of the findings that it tells of."""
    alike: dict[tuple[object, ...], list[Race]] = {}
    # A DMA that comes too early touches both memory and semaphore; the memory says more.
    for race in sorted(report.races, key=lambda race: race.space == "semaphore"):
        alike.setdefault(_places(race), []).append(race)
    found: list[tuple[Race | Deadlock | Leftover, Diagnostic]] = []
    found.extend((races[0], _race(races, execution)) for races in alike.values())
    if report.deadlock is not None:
        found.append((report.deadlock, _deadlock(report.deadlock, report.leftovers, execution)))
    # What starves shows as a deadlock, and is told there.
    surplus: dict[tuple[object, ...], list[Leftover]] = {}
    for left in report.leftovers:
        if left.added > left.taken:
            surplus.setdefault((left.semaphore, left.added, left.taken), []).append(left)
    for lefts in surplus.values():
        cause = _cause(lefts, found)
        found.append((lefts[0], replace(_leftover(lefts, report.leftovers, execution), follows=cause)))
    return tuple(found)


def _cause(lefts: list[Leftover], found: list[tuple[Race | Deadlock | Leftover, Diagnostic]]) -> str | None:
    """The code of a finding that semaphores are left over for: nobody gets to the wait, or nobody waits for a DMA."""
    keys = {left.semaphore for left in lefts}
    for finding, diagnostic in found:
        match finding:
            case Deadlock():
                return diagnostic.code
            case Race() if diagnostic.code == "RS403":
                dmas = [access.op for access in (finding.first, finding.second) if isinstance(access.op, Dma)]
                if any(dma.received in keys for dma in dmas):
                    return diagnostic.code
            case _:
                pass
    return None


def _places(race: Race) -> tuple[object, ...]:
    """Races between the same two lines of the source are told once, and where it has no lines, between positions."""
    accesses = (race.first, race.second)
    lines = [_origin(access.op) for access in accesses]
    if any(lines):
        return tuple((line, type(access.op)) for line, access in zip(lines, accesses, strict=True))
    return tuple((access.position, type(access.op)) for access in accesses)


def _race(alike: list[Race], execution: Execution) -> Diagnostic:
    race = alike[0]
    frames = [access for access in (race.first, race.second) if access.kind in ("entry", "exit")]
    positions = {(other.first.position, other.second.position) for other in alike}
    if not frames:
        diagnostic = _memory_race(race, execution)
    else:
        frame = frames[0]
        other = race.second if frame is race.first else race.first
        # Something of a later call that meets the exit of an earlier one has come before the entry in between.
        early = frame.kind == "entry" or other.call > frame.call
        if race.space == "semaphore" and isinstance(other.op, Signal):
            diagnostic = _stray_signal(race, other, early, execution)
        else:
            diagnostic = _early(race, other, execution) if early else _late(race, other, execution)
    if len(positions) == 1:
        return diagnostic
    more = f"the same lines race in {len(positions) - 1} other places of the program, or more"
    return replace(diagnostic, notes=(*diagnostic.notes, more))


def _memory_race(race: Race, execution: Execution) -> Diagnostic:
    first, second = race.first, race.second
    names = [_name(access, race) for access in (first, second)]
    code = race_code(race, execution)
    return Diagnostic(
        code=code,
        message=_race_message(code, race, names),
        primary=_label(second.op, f"{_doing(second)} {_units(race.overlap)}"),
        secondary=_labels(
            first.op, f"{_doing(first)} {_units(race.overlap)}, and nothing makes one wait for the other"
        ),
        counterexample=_counterexample(race, execution),
        notes=(f"missing order: {names[0]} ends before {names[1]} begins", *_end_note(first)),
        help=_RACE_CURES.get(code) or _memory_cure(race),
    )


def _race_message(code: str, race: Race, names: list[str]) -> str:
    first, second = race.first, race.second
    match code:
        case "RS404":
            return f"{names[1]} uses {_where(race)} before {names[0]} is waited for"
        case "RS405":
            key = first.op.sent if isinstance(first.op, Dma) and first.kind == "read" else None
            key = key or (first.op.received if isinstance(first.op, Dma) else None)
            does = "writes" if second.kind == "write" else "uses"
            other = f"other DMAs count on {_semaphore(key)}"
            return f"{names[1]} {does} {_where(race)} while {names[0]} may be under way: {other}"
        case "RS406":
            incoming, local = reversed(names) if isinstance(second.op, Dma) else names
            return f"{incoming} can be lost under {local}, on {_where(race)}"
        case _:
            return f"{names[0]} and {names[1]} race on {_where(race)}"


_RACE_CURES = {
    "RS405": "units of another DMA can satisfy the wait: use one semaphore for each step or slot",
    "RS406": "write the memory before the barrier, or where the sender waits for a signal that comes after it",
}


def _early(race: Race, other: Access, execution: Execution) -> Diagnostic:
    name, owner = _name(other, race), f"rank {race.memory_rank}"
    misses = barrier_misses(other, race.memory_rank, execution)
    told = (
        "which never signals it on the barrier"
        if execution.symmetric
        else f"and {owner} never signals rank {other.rank} on the barrier"
    )
    return Diagnostic(
        code="RS524" if misses else "RS402",
        message=f"{name} reaches {_where(race)} though {owner} may not have entered the kernel{_again(other)}",
        primary=_label(other.op, f"may come before {owner} has entered"),
        counterexample=_counterexample(race, execution),
        notes=(
            f"missing order: {owner} enters before {name} begins",
            *((f"it goes to {owner}, {told}",) if misses else ()),
        ),
        help=ENTRY_CURE,
    )


def _late(race: Race, other: Access, execution: Execution) -> Diagnostic:
    name, owner = _name(other, race), f"rank {race.memory_rank}"
    key = None
    if isinstance(other.op, Dma):
        key = (other.op.sent or other.op.received) if _is_source(other) else other.op.received
    after = other is race.second and other.call == race.first.call
    when = (
        "reaches {} after {} has left the kernel" if after else "may still be under way on {} when {} leaves the kernel"
    )
    return Diagnostic(
        code="RS403",
        message=f"{name} {when.format(_where(race), owner)}",
        primary=_label(other.op, f"may end after {owner} has left"),
        counterexample=_counterexample(race, execution),
        notes=(f"missing order: {name} ends before {owner} leaves", *_end_note(other)),
        help=f"let {owner} wait on {_semaphore(key)}, before the end of the kernel, until it has counted all DMAs",
    )


def _stray_signal(race: Race, signal: Access, early: bool, execution: Execution) -> Diagnostic:
    name, owner = _name(signal, race), f"rank {race.memory_rank}"
    when = f"before {owner} has entered the kernel" if early else f"after {owner} has left the kernel"
    return Diagnostic(
        code="RS503",
        message=f"{name} may reach semaphore {_units(race.overlap)} {when}{_again(signal) if early else ''}",
        primary=_label(signal.op, f"may arrive {when}"),
        counterexample=_counterexample(race, execution),
        notes=(
            f"missing order: {owner} enters before {name}" if early else f"missing order: {name} before {owner} leaves",
        ),
        help=ENTRY_CURE
        if early
        else "give a credit only where one more is waited for, and take all credits before the end",
    )


def _deadlock(deadlock: Deadlock, leftovers: tuple[Leftover, ...], execution: Execution) -> Diagnostic:
    stuck = deadlock.stuck
    first = stuck[0]
    waits = tuple(_stuck(wait, execution) for wait in stuck[:SHOWN_WAITS])
    more = (f"… and {len(stuck) - SHOWN_WAITS} more ranks",) if len(stuck) > SHOWN_WAITS else ()
    waited_for = {(wait.rank, wait.op.semaphore) for wait in stuck}
    starved = tuple(
        f"{_semaphore(left.semaphore)}{_of(left.rank, execution)}: {left.added} added and {left.taken} taken a call"
        for left in leftovers
        if left.added < left.taken and (left.rank, left.semaphore) in waited_for
    )
    who = "every rank waits" if execution.symmetric else f"{_count(len(stuck), 'rank')} {_verb(len(stuck), 'wait')}"
    in_calls = sorted({wait.call + 1 for wait in stuck})
    again = "" if in_calls == [1] else f" in {'call' if len(in_calls) == 1 else 'calls'} {_listed(in_calls)}"
    unequal = sizes_differ(first.rank, first.op.semaphore, execution)
    return Diagnostic(
        code="RS505" if unequal else "RS501",
        message=f"deadlock: {who} for ever{again}",
        primary=_label(first.op, f"holds {first.has}, needs {first.needs}"),
        secondary=_stuck_labels(stuck[1:SHOWN_WAITS], first.op.origin),
        counterexample={**_size(execution), "rank": first.rank, "call": first.call + 1},
        notes=(*waits, *more, *starved[:SHOWN_WAITS]),
        help="wait for as many bytes as the DMA counts: a descriptor of the same shape and dtype"
        if unequal
        else "signal as much as is waited for"
        if starved
        else "start what another rank waits for before you wait for that rank",
    )


def _leftover(alike: list[Leftover], leftovers: tuple[Leftover, ...], execution: Execution) -> Diagnostic:
    """`alike` are the same semaphore of several ranks, off by the same amount."""
    left = alike[0]
    owner, name, symmetric = left.rank, _semaphore(left.semaphore), execution.symmetric
    surplus = left.added - left.taken
    adding = [op for rank, ops in enumerate(execution.traces) for op in ops if _adds_to(op, rank, left, symmetric)]
    others = f"so it is on {_count(len(alike) - 1, 'more rank')}"
    unequal = sizes_differ(owner, left.semaphore, execution)
    some = only_some_drain(leftovers, left, execution)
    drained = ("other ranks take from it as much as they are given",)
    return Diagnostic(
        code="RS505" if unequal else "RS504" if some else "RS502",
        message=f"{name}{_of(owner, execution)} is not zero when the kernel ends: "
        f"{left.added} added, {left.taken} taken",
        primary=_label(adding[-1], f"the last to count on {name}"),
        counterexample={**_size(execution), "rank": owner, "left": surplus},
        notes=((others,) if len(alike) > 1 else ()) + (drained if some else ()),
        help="wait for as many bytes as the DMA counts: a descriptor of the same shape and dtype"
        if unequal
        else f"wait for the {surplus} more, or do not add them",
    )


def _adds_to(op: Op, rank: int, left: Leftover, symmetric: bool) -> bool:
    match op:
        case Dma():
            own, there = symmetric or rank == left.rank, symmetric or op.rank == left.rank
            return (own and op.sent == left.semaphore) or (there and op.received == left.semaphore)
        case Signal():
            return op.semaphore == left.semaphore and (symmetric or op.rank == left.rank)
        case _:
            return False


def _memory_cure(race: Race) -> str:
    first, second = race.first, race.second
    another_slot = (
        "receive into another slot, or let the receiver send a credit when the slot is free and wait for it here"
    )
    if isinstance(second.op, Dma) and second.kind == "write" and second.rank != race.memory_rank:
        return another_slot
    if isinstance(first.op, Dma) and _is_source(first):
        return f"wait on {_semaphore(first.op.sent or first.op.received)} before the source is written again"
    if isinstance(first.op, Dma) and isinstance(second.op, Dma) and second.kind == "write":
        return another_slot
    if isinstance(first.op, Dma):
        if first.op.received is None or first.finish is None:
            return "wait for the DMA's receive semaphore before the memory is used"
        return (
            f"wait on {_semaphore(first.op.received)} before the memory is used; where other DMAs count on it too, "
            "they can satisfy the wait instead: use one receive semaphore for each step or slot"
        )
    if isinstance(second.op, Dma) and second.kind == "write":
        return another_slot
    return "let the later one wait for a signal of the earlier one"


def _is_source(access: Access) -> bool:
    """Whether a DMA is meant as the one that reads its source (or counts on `sent`)."""
    if not isinstance(access.op, Dma):
        return False
    if access.kind == "signal":
        return access.op.sent is not None and access.op.sent[0] == access.block.buffer
    return access.kind == "read"


def _end_note(access: Access) -> tuple[str, ...]:
    if access.finish is None:
        return ("no wait makes sure that the DMA has ended",)
    if isinstance(access.op, Dma):
        return (f"it has surely ended only after the wait at position {access.finish} of the trace",)
    return ()


def _doing(access: Access) -> str:
    return {"read": "reads", "write": "writes", "entry": "gives", "exit": "frees", "signal": "signals"}[access.kind]


def _name(access: Access, race: Race) -> str:
    """An access by its note: `send chunk 3 (rank 2)`. Of a symmetric execution, the memory of rank 0 is shown."""
    call = f", call {access.call + 1}" if race.first.call != race.second.call else ""
    return f"{_title(access.op, access.position)} (rank {access.rank}{call})"


def _title(op: Op, position: int) -> str:
    match op:
        case Enter():
            return "entry into the kernel"
        case Exit():
            return "exit from the kernel"
        case Dma() | Wait() | Signal() | Compute() if op.note:
            return f"`{op.note}`"
        case Dma():
            return f"the DMA at position {position}"
        case Wait():
            return f"the wait on {_semaphore(op.semaphore)} at position {position}"
        case Signal():
            return f"the signal to {_semaphore(op.semaphore)} at position {position}"
        case Compute():
            return f"the {op.op} at position {position}"


def _where(race: Race) -> str:
    what = "semaphore " if race.space == "semaphore" else ""
    return f"{what}{_units(race.overlap)} of rank {race.memory_rank}"


def _units(block: Block) -> str:
    if block.units <= 0:
        return block.buffer
    return f"{block.buffer}[{block.start}]" if block.units == 1 else f"{block.buffer}[{block.start}:{block.stop}]"


def _semaphore(key: SemaphoreKey | None) -> str:
    return "a semaphore" if key is None else f"{key[0]}[{key[1]}]"


def _of(rank: int, execution: Execution) -> str:
    return " of every rank" if execution.symmetric else f" of rank {rank}"


def _again(access: Access) -> str:
    return f" for call {access.call + 1}" if access.call else ""


def _listed(numbers: list[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def _stuck(wait: StuckWait, execution: Execution) -> str:
    who = "every rank" if execution.symmetric else f"rank {wait.rank}"
    title = f" ({wait.op.note})" if wait.op.note else ""
    holds = f"it holds {wait.has} and needs {wait.needs}"
    return f"{who} waits in call {wait.call + 1} on {_semaphore(wait.op.semaphore)}{title}: {holds}"


def _size(execution: Execution) -> dict[str, int]:
    return {"ranks": execution.ranks}


def _counterexample(race: Race, execution: Execution) -> dict[str, int]:
    place = {**_size(execution), "rank": race.memory_rank, "call": race.first.call + 1}
    return {**place, "later call": race.second.call + 1} if race.second.call != race.first.call else place


def _label(op: Op, text: str) -> Label | None:
    origin = _origin(op)
    return None if origin is None else Label(span=origin, text=text)


def _labels(op: Op, text: str) -> tuple[Label, ...]:
    label = _label(op, text)
    return () if label is None else (label,)


def _stuck_labels(stuck: tuple[StuckWait, ...], shown: Span | None) -> tuple[Label, ...]:
    """One label for each further place; ranks often wait at the same one."""
    labels: dict[Span, Label] = {}
    for wait in stuck:
        origin = wait.op.origin
        if origin is not None and origin != shown:
            labels.setdefault(origin, Label(span=origin, text=f"rank {wait.rank} holds {wait.has}, needs {wait.needs}"))
    return tuple(labels.values())


def _origin(op: Op) -> Span | None:
    return None if isinstance(op, Enter | Exit) else op.origin


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _verb(number: int, verb: str) -> str:
    return f"{verb}s" if number == 1 else verb
