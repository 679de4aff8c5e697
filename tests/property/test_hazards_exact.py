"""The hazard check says exactly what trying every interleaving says; a symmetric execution is its full expansion."""

import random
from collections import Counter

import numpy as np
import pytest
from random_programs import expand, random_execution, random_symmetric

from ringsched.program.trace import Dma
from ringsched.verify import merge
from ringsched.verify.clocks import Clocks
from ringsched.verify.exhaustive import TooLargeError, explore
from ringsched.verify.hazards import all_races, check_hazards
from ringsched.verify.machine import Machine

BATCHES, PROGRAMS = 8, 250
MOST_STATES = 20_000


@pytest.mark.parametrize("batch", range(BATCHES))
def test_agrees_with_every_interleaving(batch: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(batch * PROGRAMS, (batch + 1) * PROGRAMS):
        execution, calls = random_execution(random.Random(seed))
        try:
            outcome = explore(execution, calls, MOST_STATES)
        except TooLargeError:
            seen["too large"] += 1
            continue
        report = check_hazards(execution, calls)
        assert outcome.deadlock != outcome.finishes, f"seed {seed}: not the same end on every interleaving"
        assert {race[1:] for race in all_races(execution, calls)} == outcome.races, f"seed {seed}"
        assert bool(report.races) == bool(outcome.races), f"seed {seed}"
        assert (report.deadlock is not None) == outcome.deadlock, f"seed {seed}"
        if outcome.finishes:
            leftovers = {(leftover.rank, leftover.semaphore) for leftover in report.leftovers}
            assert leftovers == outcome.leftovers, f"seed {seed}"
        seen["right"] += report.ok
        seen["deadlock"] += outcome.deadlock
        seen["race"] += bool(outcome.races)
        remote = any(isinstance(op, Dma) and op.rank != rank for rank, t in enumerate(execution.traces) for op in t)
        seen["right, with remote DMA"] += report.ok and remote
        seen["left over"] += bool(outcome.leftovers)
    assert seen["too large"] <= PROGRAMS // 50
    for what in ("right", "race", "right, with remote DMA"):
        assert seen[what] >= PROGRAMS // 8, seen
    for what in ("deadlock", "left over"):
        assert seen[what] >= PROGRAMS // 30, seen


def test_symmetric_is_its_expansion() -> None:
    """One rank's events stand for all: the same verdicts, and each race once instead of once a rank."""
    seen: Counter[str] = Counter()
    for seed in range(400):
        execution, calls = random_symmetric(random.Random(seed))
        one, full = check_hazards(execution, calls), check_hazards(expand(execution), calls)
        assert (one.deadlock is None) == (full.deadlock is None), f"seed {seed}"
        assert len(one.leftovers) * execution.ranks == len(full.leftovers), f"seed {seed}"
        assert bool(one.races) == bool(full.races), f"seed {seed}"
        races = all_races(execution, calls)
        assert bool(races) == bool(one.races), f"seed {seed}"
        assert len(races) * execution.ranks == len(all_races(expand(execution), calls)), f"seed {seed}"
        seen["right"] += one.ok
        seen["deadlock"] += one.deadlock is not None
        seen["race"] += bool(one.races)
        seen["torus"] += len(execution.sides) > 1
    assert min(seen.values()) >= 20, seen


def test_merging_finds_the_same_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Merge` is meant for long runs; made to work on short ones, it changes nothing."""
    merged = 0
    for seed in range(600):
        execution, calls = (random_symmetric if seed % 2 else random_execution)(random.Random(seed))
        machine = Machine(execution, calls)
        plain = Clocks(machine)
        with monkeypatch.context() as patch:
            patch.setattr(merge, "MANY_UNITS", 1)
            other = Clocks(machine)
        merged += bool(other.merges)
        assert not plain.merges
        assert np.array_equal(plain.rows, other.rows), f"seed {seed}"
        assert plain.first_wait == other.first_wait, f"seed {seed}"
    assert merged > 100
