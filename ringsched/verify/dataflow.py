"""Does every rank end up holding what the collective promises?

The state of rank d is a map chunk → contributing ranks. All transfers of a step read the state before it; `copy`
replaces, `reduce` adds. Sending what is not held, counting a contribution twice, losing one, writing a chunk twice in a
step and ending without the promised state are findings, each with a counterexample. Where the schedule is the same at
every rank up to rotation, rank 0 stands for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from ringsched.diagnostics import Diagnostic, DiagnosticError
from ringsched.expr import NotAffine
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.schedule import Schedule
from ringsched.topology import topology_of
from ringsched.verify.dataflow_full import Full
from ringsched.verify.dataflow_symmetric import Symmetric
from ringsched.verify.end_findings import end_finding
from ringsched.verify.flow import Mode, advance
from ringsched.verify.flow_findings import step_finding
from ringsched.verify.repair import with_repairs

MAX_CELLS = 1 << 23  # chunks times ranks followed
MAX_WORK = 60_000_000  # chunk moves
TRIED_SIZES = 200  # smaller parameter values that are tried for the smallest counterexample
LARGEST_TRIED = 24
MAX_SHOWN = 10
MAX_AFTER = 50_000  # moves that are looked at after the first problem


def verify_dataflow(flat: FlatSchedule) -> tuple[Diagnostic, ...]:
    """What is wrong at these parameters; empty where the schedule is right.

    RS202, RS204 … RS209: statements that make no transfer; RS301 … RS306: data flow; RS701: too large to decide.
    """
    return with_repairs(flat.schedule, findings_of(flat), _right)


def is_symmetric(flat: FlatSchedule) -> bool:
    """Whether every statement, and the promise, is the same at every rank up to rotation."""
    try:
        mode = Symmetric(flat)
        for number in range(len(flat.steps)):
            mode.step(number)
    except NotAffine:
        return False
    return True


def smallest_failing(schedule: Schedule) -> tuple[Diagnostic, ...]:
    """As `verify_dataflow` of the schedule, shown at the smallest parameters at which the same finding occurs.

    Findings of `flatten` are returned as well. Empty where the given parameters are right.
    """
    given = _attempt(schedule)
    if not given:
        return ()
    several = _ranks(schedule) > 1
    for values in _smaller(schedule) if not given[0].code.startswith("RS7") else ():
        candidate = _at(schedule, values)
        if several and _ranks(candidate) == 1:
            continue  # with one rank every transfer goes nowhere, which says little about several
        found = _attempt(candidate)
        if found and found[0].code == given[0].code:
            return with_repairs(candidate, found, _right)
    return with_repairs(schedule, given, _right)


def findings_of(flat: FlatSchedule) -> tuple[Diagnostic, ...]:
    """`verify_dataflow` without the search for a cure."""
    try:
        return follow(Symmetric(flat))
    except NotAffine:
        return follow(Full(flat))


def follow(mode: Mode) -> tuple[Diagnostic, ...]:
    """The findings in one mode; the first problem of a step ends the data flow, so that it does not cascade."""
    flat = mode.flat
    chunks = math.prod(flat.promise.dims)
    if len(mode.ranks) * chunks > MAX_CELLS:
        return (_undecided(flat, f"{len(mode.ranks)} ranks with {chunks:,} chunks each"),)
    state = mode.initial()
    found: list[Diagnostic] = []
    work = after = 0
    for number in range(len(flat.steps)):
        moves = mode.step(number)
        work += sum(len(carried.sources) for carried in moves)
        if work > MAX_WORK:
            return (_undecided(flat, f"over {MAX_WORK:,} chunk moves"),)
        # After a first problem the state means nothing: only statements are looked at further, and not for long.
        after += len(moves) if found or mode.diagnostics else 0
        if after > MAX_AFTER:
            break
        if not found and not mode.diagnostics:
            problems = advance(state, moves, chunks)
            found = [step_finding(mode, state, number, moves, problem) for problem in problems]
    if not found and not mode.diagnostics:
        found = _end(mode, state)
    return _cut((*mode.diagnostics, *found))


def _cut(found: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """A machine-made schedule can be wrong in thousands of statements; the first few say it."""
    if len(found) <= MAX_SHOWN:
        return found
    last = found[MAX_SHOWN - 1]
    more = f"and {len(found) - MAX_SHOWN} more statements at fault"
    return (*found[: MAX_SHOWN - 1], replace(last, notes=(*last.notes, more)))


def _end(mode: Mode, state: list[int]) -> list[Diagnostic]:
    promise = mode.flat.promise
    chunks = list(promise.chunks())
    wrong: list[tuple[int, int]] = []
    for rank in mode.ranks:
        for number, chunk in enumerate(chunks):
            want = promise.promised(rank, chunk)
            if want and state[mode.cell(rank, number)] != want:
                wrong.append((rank, number))
    if not wrong:
        return []
    cells = ((rank, chunk, promise.promised(rank, chunk)) for rank in mode.ranks for chunk in chunks)
    promised = sum(bool(want) and promise.initial(rank, chunk) != want for rank, chunk, want in cells)
    return [end_finding(mode, state, wrong, promised)]


def _undecided(flat: FlatSchedule, reason: str) -> Diagnostic:
    return Diagnostic(
        code="RS701",
        message=f"the schedule is too large for the data-flow check: {reason}",
        counterexample=flat.env or None,
        help="verify it at smaller parameters; a schedule that is the same at every rank is checked by rank 0 alone",
    )


def _right(schedule: Schedule) -> bool:
    return not _attempt(schedule)


def _attempt(schedule: Schedule) -> tuple[Diagnostic, ...]:
    try:
        return findings_of(flatten(schedule))
    except DiagnosticError as error:
        return error.diagnostics


def _ranks(schedule: Schedule) -> int:
    """How many ranks there are; 0 where the topology has no meaning."""
    try:
        return topology_of(schedule, {p.name: p.value for p in schedule.parameters}).ranks
    except DiagnosticError:
        return 0


def _at(schedule: Schedule, values: tuple[int, ...]) -> Schedule:
    parameters = tuple(replace(p, value=v) for p, v in zip(schedule.parameters, values, strict=True))
    return replace(schedule, parameters=parameters)


def _smaller(schedule: Schedule) -> Iterator[tuple[int, ...]]:
    """Parameter values from 1 up to those in the file, small sums first; a bounded number of them."""
    given = tuple(p.value for p in schedule.parameters)
    free = sum(not p.asked for p in schedule.parameters)
    most = LARGEST_TRIED if free == 1 else max(2, int(TRIED_SIZES ** (1 / max(free, 1))))
    ranges = (
        range(1, min(p.value, most) + 1) if p.value > 0 and not p.asked else (p.value,) for p in schedule.parameters
    )
    choices = itertools.islice(itertools.product(*ranges), 4 * TRIED_SIZES)
    smaller = sorted((c for c in choices if c != given), key=lambda c: (sum(c), c))
    return iter(smaller[:TRIED_SIZES])
