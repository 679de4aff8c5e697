"""Every finding of the hazard check has a run that shows it, and a replay shows nothing but what is there."""

import random
from collections import Counter

import pytest
from random_interleavings import is_true, random_interleaving, tampered
from random_programs import random_execution

from ringsched.program.trace import Execution
from ringsched.verify.hazards import HazardReport, check_hazards
from ringsched.verify.interleaving import Left
from ringsched.verify.replay import ImpossibleError, replay
from ringsched.verify.retelling import describe
from ringsched.verify.witness import Finding, shown, witness

BATCHES, PROGRAMS = 4, 150


def findings(report: HazardReport) -> list[Finding]:
    return [*report.races, *report.leftovers, *([] if report.deadlock is None else [report.deadlock])]


def programs(batch: int) -> list[tuple[int, Execution, int]]:
    seeds = range(batch * PROGRAMS, (batch + 1) * PROGRAMS)
    return [(seed, *random_execution(random.Random(seed))) for seed in seeds]


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_finding_is_shown(batch: int) -> None:
    seen: Counter[str] = Counter()
    for seed, execution, calls in programs(batch):
        report = check_hazards(execution, calls)
        for finding in findings(report):
            run = witness(execution, finding, calls)
            found = replay(execution, run, calls)
            fault = shown(execution, finding, found)
            assert fault is not None, f"seed {seed}: {finding}"
            assert all(is_true(execution, run, calls, claimed) for claimed in found.faults), f"seed {seed}"
            assert describe(execution, run, calls), f"seed {seed}"
            seen[type(fault).__name__] += 1
            if report.deadlock is None and type(finding).__name__ == "Leftover":
                assert isinstance(fault, Left), f"seed {seed}"
    assert min(seen[what] for what in ("Conflict", "Outside", "Stuck", "Left")) >= 3, seen


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_is_right_never_shows_a_fault(batch: int) -> None:
    right = 0
    for seed, execution, calls in programs(batch):
        if not check_hazards(execution, calls).ok:
            continue
        right += 1
        for run in range(5):
            interleaving = random_interleaving(random.Random(run), execution, calls)
            found = replay(execution, interleaving, calls)
            assert found.faults == (), f"seed {seed}, run {run}"
            assert found.positions == tuple(len(trace) * calls for trace in execution.traces), f"seed {seed}"
    assert right >= PROGRAMS // 8


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_tampered_run_is_refused_or_told_as_it_is(batch: int) -> None:
    seen: Counter[str] = Counter()
    for seed, execution, calls in programs(batch):
        for finding in findings(check_hazards(execution, calls))[:3]:
            run = witness(execution, finding, calls)
            for change in range(6 if run else 0):
                other = tampered(random.Random(change), run)
                try:
                    found = replay(execution, other, calls)
                except ImpossibleError:
                    seen["refused"] += 1
                    continue
                wrong = [fault for fault in found.faults if not is_true(execution, other, calls, fault)]
                assert not wrong, f"seed {seed}, change {change}"
                seen["another fault" if shown(execution, finding, found) is None else "the same fault"] += 1
    assert min(seen[what] for what in ("refused", "another fault", "the same fault")) >= 50, seen


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_run_of_a_race_needs_every_event(batch: int) -> None:
    """Whatever is left out, the rest is impossible or does not show the race."""
    events = 0
    for seed, execution, calls in programs(batch):
        for race in check_hazards(execution, calls).races[:2]:
            run = witness(execution, race, calls)
            for at in range(len(run)):
                events += 1
                try:
                    found = replay(execution, run[:at] + run[at + 1 :], calls)
                except ImpossibleError:
                    continue
                assert shown(execution, race, found) is None, f"seed {seed}, event {at} of {run}"
    assert events > 500
