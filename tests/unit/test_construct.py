"""Schedules made for rings and tori: at the bound, and right."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from ringsched.model.loads import loads_of
from ringsched.pipeline import open_schedule
from ringsched.plans.construct import Construction, backwards, directions, exchange, moved, spread
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load
from ringsched.schedule.printer import print_schedule
from ringsched.schedule.schedule import Constructed, Schedule
from ringsched.schedule.statements import statements, tables
from ringsched.topology import topology_of
from ringsched.verify.dataflow import findings_of, is_symmetric

SIDES = [(2,), (3,), (5,), (8,), (2, 2), (2, 4), (3, 3), (3, 5), (4, 4), (4, 8), (5, 7), (8, 8), (2, 2, 2), (2, 3, 4)]
LARGE = [(16, 16), (32, 32), (4, 4, 4), (8, 8, 8)]


def fair(sides: tuple[int, ...]) -> int:
    """The fewest parts that even out the last step."""
    return Fraction(math.prod(sides) - 1, len(directions(sides))).denominator


def units(made: Construction, parts: int) -> Fraction:
    """The busiest direction of each step, added up."""
    total = Fraction(0)
    for step in made.steps:
        loads = Counter[int]()
        for move in step:
            loads[move.direction] += move.parts[1] - move.parts[0]
        total += Fraction(max(loads.values()), parts)
    return total


@pytest.mark.parametrize("sides", SIDES + LARGE)
def test_spread_is_at_both_bounds(sides: tuple[int, ...]) -> None:
    parts = fair(sides)
    made = spread(sides, parts)
    bound = Fraction(math.prod(sides) - 1, len(directions(sides)))
    assert units(made, parts) == bound
    assert len(made.steps) == math.ceil(bound)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("sides", SIDES)
def test_each_part_of_each_displacement_comes_once(sides: tuple[int, ...], parts: int) -> None:
    root = (0,) * len(sides)
    held = {(root, part) for part in range(parts)}
    for step in spread(sides, parts).steps:
        new = set()
        for move in step:
            assert moved(move.start, directions(sides)[move.direction], sides) == move.target
            for part in range(*move.parts):
                assert (move.start, part) in held
                assert (move.target, part) not in held | new
                new.add((move.target, part))
        held |= new
    assert held == set(itertools.product(itertools.product(*map(range, sides)), range(parts)))


def test_backwards_there_and_back() -> None:
    made = spread((4, 4), 4)
    twice = backwards(backwards(made))
    assert [set(step) for step in twice.steps] == [set(step) for step in made.steps]
    assert [len(step) for step in backwards(made).steps] == [len(step) for step in reversed(made.steps)]
    assert backwards(made) != made


@pytest.mark.parametrize("sides", SIDES)
def test_exchange_takes_shortest_ways(sides: tuple[int, ...]) -> None:
    at: dict[tuple[int, ...], tuple[int, ...]] = {}
    hops = Counter[tuple[int, ...]]()
    for step in exchange(sides, 1).steps:
        used = [move.direction for move in step]
        assert len(used) == len(set(used))
        for move in step:
            assert at.get(move.target, (0,) * len(sides)) == move.start
            at[move.target] = moved(move.start, directions(sides)[move.direction], sides)
            hops[move.target] += 1
    for target in itertools.product(*map(range, sides)):
        assert at.get(target, (0,) * len(sides)) == target
        assert hops[target] == sum(min(a, side - a) for a, side in zip(target, sides, strict=True))


@pytest.mark.parametrize("sides", [(4, 4), (8, 8), (4, 8), (4, 4, 4), (16, 16)])
def test_exchange_is_at_the_bound(sides: tuple[int, ...]) -> None:
    assert len(exchange(sides, 1).steps) == math.prod(sides) * max(sides) // 8


def made(kind: Constructed, sides: tuple[int, ...], parts: int) -> Schedule:
    owners = list(sides) * (2 if kind == "all_to_all" else 1)
    chunks = owners if parts == 1 else [*owners, parts]
    where = f"{{torus: {list(sides)}}}" if len(sides) > 1 else f"{{ring: {sides[0]}}}"
    head = f"schedule: t\ncollective: {kind}\ntopology: {where}\nchunks: {chunks}\n"
    schedule = load("t.yaml", f"{head}steps:\n  - synth: {kind}\n")
    assert isinstance(schedule, Schedule)
    return schedule


def written(schedule: Schedule, kind: Constructed, parts: int) -> Schedule:
    """The same schedule with its steps written out."""
    topology = topology_of(schedule, {})
    items = statements(kind, topology, parts, split=parts > 1)
    return replace(schedule, items=items, tables=tables(items))


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("sides", [(2,), (5,), (8,), (2, 2), (2, 4), (4, 4), (3, 5), (8, 8), (2, 3, 4)])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all"])
def test_statements_are_right(kind: Constructed, sides: tuple[int, ...], parts: int) -> None:
    if kind == "all_to_all" and math.prod(sides) * parts > 40:
        return
    schedule = made(kind, sides, parts)
    flat = flatten(schedule)
    assert findings_of(flat) == ()
    assert is_symmetric(flat)
    explicit = written(schedule, kind, parts)
    again = load("t.yaml", print_schedule(explicit))
    assert again == explicit
    assert flatten(again).steps == flat.steps  # type: ignore[arg-type]


def test_a_table_that_is_wrong_is_noticed() -> None:
    explicit = written(made("all_gather", (8, 8), 4), "all_gather", 4)
    text = print_schedule(explicit)
    name, table = explicit.tables[0]
    row = ", ".join(map(str, table))
    assert f"{name}: [{row}]" in text
    for place in range(len(table)):
        other = [entry + (k == place) for k, entry in enumerate(table)]
        wrong = load("t.yaml", text.replace(f"{name}: [{row}]", f"{name}: {other}"))
        assert findings_of(flatten(wrong)), place  # type: ignore[arg-type]


def test_units_of_what_ships() -> None:
    assert loads_of(flatten(open_schedule("all_gather_torus", {"X": 8, "Y": 8}))).units == Fraction(63, 4)  # type: ignore[arg-type]
    assert loads_of(flatten(open_schedule("all_reduce_torus", {"X": 4, "Y": 4}))).units == Fraction(15, 2)  # type: ignore[arg-type]
    assert loads_of(flatten(open_schedule("all_gather_torus_by_axes", {"X": 8, "Y": 8}))).units == Fraction(63, 4)  # type: ignore[arg-type]
