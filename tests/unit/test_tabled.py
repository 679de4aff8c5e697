"""Irregular and crowded schedules: few statements for all ranks, which look up what each one does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from taken_out import leaves, without

from ringsched.diagnostics import InternalError
from ringsched.expr import Compare, Int, Lookup
from ringsched.lower import lower, tabled
from ringsched.lower.lanes import find_lanes
from ringsched.lower.pinned import looked_up
from ringsched.pipeline import Proven, open_schedule, prove
from ringsched.program.expand import expand
from ringsched.program.program import Instruction, Loop, Program, Send, Wait, When
from ringsched.program.tables import tables_of
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load
from ringsched.schedule.schedule import Schedule
from ringsched.synth.place import parse_topology
from ringsched.synth.search import synthesise
from ringsched.verify.dataflow import findings_of
from ringsched.verify.hazards import check_hazards
from ringsched.verify.values import check_values


def made(kind: str, where: str) -> Schedule:
    """A list of pinned transfers."""
    schedule = synthesise(parse_topology(where), kind).schedule  # type: ignore[arg-type]
    assert isinstance(schedule, Schedule)
    return schedule


def count(body: tuple[Instruction, ...]) -> int:
    return sum(1 + count(i.body) if isinstance(i, Loop | When) else 1 for i in body)


def ok(proven: Proven, program: Program) -> bool:
    """As the compiler checks it."""
    expansion = expand(program)
    if not check_hazards(expansion.execution, calls=2).ok:
        return False
    return not check_values(expansion, proven.flat.promise, None)


PINNED = [
    ("all_gather", "mesh:2x4"),
    ("reduce_scatter", "mesh:2x4"),
    ("all_reduce", "mesh:2x3"),
    ("all_gather", "mesh:3x3"),
    ("all_to_all", "mesh:2x3"),
    ("broadcast", "mesh:2x4"),
    ("all_gather", "links:0-1,1-2,2-3,3-0,0-2,3-4,4-5"),
    ("all_reduce", "line:6"),
]


@pytest.mark.parametrize(("kind", "where"), PINNED)
def test_pinned_transfers_become_tables(kind: str, where: str) -> None:
    """Code is small, whatever the number of transfers; the checks hold for every rank, with no symmetry."""
    schedule = made(kind, where)
    proven = prove(schedule)
    program = proven.lowered.program
    assert tables_of(program).by_rank
    transfers = sum(len(step) for step in proven.flat.steps)
    assert transfers >= 24
    assert sum(isinstance(i, Send) for i in flattened(program.body)) < transfers
    assert ok(proven, program)


def flattened(body: tuple[Instruction, ...]) -> list[Instruction]:
    return [j for i in body for j in (i, *(flattened(i.body) if isinstance(i, Loop | When) else ()))]


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(("kind", "where"), PINNED)
def test_the_same_transfers(kind: str, where: str, single: bool) -> None:
    """What is looked up is what was pinned: data flow, and who sends what to whom in each step."""
    flat = flatten(made(kind, where))
    changed, ends = looked_up(flat, single=single)
    assert findings_of(changed) == ()
    assert moves(find_lanes(changed, symmetric=False, ends=ends)) == moves(find_lanes(flat, symmetric=False))


def moves(lanes: object) -> list[list[tuple[int, int, tuple[int, ...], str]]]:
    """Chunk by chunk."""
    from ringsched.lower.lanes import Lanes, sent_pieces
    from ringsched.lower.places import members

    assert isinstance(lanes, Lanes)
    steps = []
    for uses in lanes.uses:
        step = []
        for use in uses:
            op = lanes.lanes[use.lane].statement.op
            for sender in use.senders:
                for value in use.values:
                    for piece in sent_pieces(lanes, use, sender, value):
                        for chunk in members(lanes.flat.promise.dims, piece):
                            step.append((sender, lanes.receiver(use, sender), chunk, op))
        steps.append(sorted(step))
    return steps


@pytest.mark.parametrize(("kind", "where"), [("all_gather", "mesh:2x4"), ("reduce_scatter", "mesh:2x3")])
def test_nothing_is_superfluous(kind: str, where: str) -> None:
    """Each wait and each send is missed."""
    proven = prove(made(kind, where))
    program = proven.lowered.program
    total = len(leaves(program.body))
    assert total > 10
    for number in range(0, total, 1 + total // 20):
        assert not ok(proven, replace(program, body=without(program.body, number))), number


def test_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few semaphores there are several phases; without the barrier between two of them it races."""
    monkeypatch.setattr(tabled, "SEMAPHORE_BUDGET", 8 + 5)
    proven = prove(made("all_gather", "mesh:2x4"))
    program = proven.lowered.program
    assert program.semaphore("received").count <= 5
    assert program.semaphore("phase").count >= 1
    assert ok(proven, program)
    waits = [n for n, i in enumerate(leaves(program.body)) if isinstance(i, Wait) and i.semaphore.semaphore == "phase"]
    assert waits
    for number in waits:
        assert not ok(proven, replace(program, body=without(program.body, number)))


def test_too_few_semaphores_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringsched.diagnostics import DiagnosticError

    monkeypatch.setattr(tabled, "SEMAPHORE_BUDGET", 8 + 1)
    with pytest.raises(DiagnosticError) as error:
        prove(made("all_gather", "mesh:2x4"))
    assert error.value.diagnostics[0].code == "RS607"


@pytest.mark.parametrize("name", ["all_gather_torus", "reduce_scatter_torus", "all_to_all_torus"])
def test_crowded_tori(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More transfers than semaphores: tables by step, proven from rank 0, and from every rank."""
    from ringsched.lower import lower

    monkeypatch.setattr(lower, "DEDICATED_SEMAPHORES", 12)
    monkeypatch.setattr(tabled, "SEMAPHORE_BUDGET", 8 + 20)
    proven = prove(open_schedule(name, {"X": 4, "Y": 4}))
    program = proven.lowered.program
    assert program.semaphore("received").count <= 20
    assert proven.symmetric and expand(program).execution.symmetric
    full = expand(program, symmetric=False)
    assert check_hazards(full.execution, calls=2).ok
    assert not check_values(full, proven.flat.promise, None)


def test_large_tori_take_few_lines() -> None:
    """The text does not grow with the square of the side."""
    sizes = []
    for side in (20, 24):
        proven = prove(open_schedule("all_gather_torus", {"X": side, "Y": side}))
        sizes.append(count(proven.lowered.program.body))
        assert max(map(len, tables_of(proven.lowered.program).whole)) >= side * side // 4 - 1
    assert sizes[1] <= sizes[0] + 8
    assert sizes[0] < 20 * 20


def test_loops_with_tables_are_what_they_roll_up() -> None:
    """Rolled, or a step at a time: the same trace."""
    text = """\
schedule: t
collective: all_gather
topology: {torus: [8, 8]}
chunks: [8, 8, 4]
steps:
  - synth: all_gather
lowering: {unroll: UNROLL}
"""
    rolled, flat = (
        prove(load("t.yaml", text.replace("UNROLL", word))).lowered.program  # type: ignore[type-var]
        for word in ("false", "true")
    )
    assert any(isinstance(i, Loop) for i in rolled.body)
    assert not any(isinstance(i, Loop) for i in flat.body)
    assert expand(rolled).execution == expand(flat).execution


def test_no_guard_is_always_false() -> None:
    """What no rank does in any turn of a loop is left out of it."""
    for kind, where in (("all_reduce", "mesh:2x3"), ("all_reduce", "line:6")):
        program = prove(made(kind, where)).lowered.program
        for i in flattened(program.body):
            for condition in i.conditions if isinstance(i, When) else ():
                assert isinstance(condition, Compare) and isinstance(condition.first, Lookup)
                op, number = condition.rest[0]
                assert op != "==" or (isinstance(number, Int) and number.value in condition.first.table)


def test_sizes_of_tables() -> None:
    """A row for each step, with a number for each rank."""
    program = prove(made("all_gather", "mesh:2x4")).lowered.program
    by_rank, whole = tables_of(program)
    assert by_rank and all(len(table) % 8 == 0 for table in by_rank)
    assert all(len(table) < 8 for table in whole)


ROWS_THEN_COLUMNS = """\
schedule: rows_then_columns
collective: all_gather
topology: {torus: [3, 3]}
tables: {back: [0, 1, 0, 1]}
chunks: [3, 3]
steps:
  - for: s in 0 .. 1
    do:
      - send: chunk[(x - back[s]) % 3, y]
        to: [x + 1, y]
  - for: s in 2 .. 3
    do:
      - send: chunk[x, (y - back[s]) % 3]
        to: [x, y + 1]
      - send: chunk[(x + 1) % 3, (y - back[s]) % 3]
        to: [x, y + 1]
      - send: chunk[(x + 2) % 3, (y - back[s]) % 3]
        to: [x, y + 1]
"""


@pytest.mark.parametrize("symmetric", [True, False])
def test_strangers_meet_at_entry(symmetric: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who first writes to a rank in a later phase is told so by a rank that has to know that it has entered."""
    monkeypatch.setattr(lower, "DEDICATED_SEMAPHORES", 0)
    monkeypatch.setattr(tabled, "SEMAPHORE_BUDGET", 8 + 5)
    if symmetric:
        path = tmp_path / "rows_then_columns.yaml"
        path.write_text(ROWS_THEN_COLUMNS)
        proven = prove(open_schedule(path))
    else:
        proven = prove(open_schedule("broadcast_mesh", {"X": 2, "Y": 3}))
    assert isinstance(proven, Proven) and proven.symmetric == symmetric
    program = proven.lowered.program
    assert program.semaphore("phase").count >= 1 and ok(proven, program)
    monkeypatch.setattr(lower, "strangers", lambda *_: {})
    with pytest.raises(InternalError, match=r"may reach semaphore phase\[.\] before rank . has entered"):
        prove(open_schedule(path) if symmetric else open_schedule("broadcast_mesh", {"X": 2, "Y": 3}))
