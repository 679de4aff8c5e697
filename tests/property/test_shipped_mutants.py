"""Every damaged version of a shipped schedule is refused: an index shifted, a transfer dropped, an operation swapped, …

A mutant may be right only where it does the same as the schedule at this size, transfer by transfer.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from schedule_mutants import mutants
from shipped import MADE, SINGLE, sized

from ringsched.lower.lanes import find_lanes, sent_pieces
from ringsched.pipeline import open_schedule
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.schedule import Item, Schedule, Use
from ringsched.verify.dataflow import verify_dataflow


def damaged(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """Mutants of the schedule's own items, and of those that it uses."""
    for name, items in mutants(schedule.items):
        yield name, replace(schedule, items=items)
    for number, item in enumerate(schedule.items):
        if isinstance(item, Use):
            for name, inner in damaged(item.schedule):
                new: Item = replace(item, schedule=inner)
                items = (*schedule.items[:number], new, *schedule.items[number + 1 :])
                yield f"use {number}, {name}", replace(schedule, items=items)


def moves(flat: FlatSchedule) -> list[list[tuple[object, ...]]]:
    """What is sent in each step that does something: sender, receiver, chunk, operation."""
    lanes = find_lanes(flat, symmetric=False)
    steps = []
    for uses in lanes.uses:
        step = []
        for use in uses:
            op = lanes.lanes[use.lane].statement.op
            for sender in use.senders:
                for value in use.values:
                    for piece in sent_pieces(lanes, use, sender, value):
                        step.append((sender, lanes.receiver(use, sender), piece, op))
        if step:
            steps.append(sorted(step))
    return steps


NOT_DAMAGED = ("matmul", "all_reduce_torus_by_axes", *MADE)  # no steps, or very many
STEPS = tuple(name for name in SINGLE if name not in NOT_DAMAGED)


@pytest.mark.parametrize(("name", "parameters"), sized(STEPS, (3, 4)))
def test_mutants_are_refused(name: str, parameters: dict[str, int]) -> None:
    schedule = open_schedule(name, parameters)
    right = flatten(schedule)
    assert verify_dataflow(right) == ()
    refused = 0
    for mutant, wrong in damaged(schedule):
        flat = flatten(wrong)
        if verify_dataflow(flat):
            refused += 1
        else:
            assert moves(flat) == moves(right), mutant
    assert refused >= 3
