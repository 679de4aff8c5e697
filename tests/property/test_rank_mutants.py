"""What differs from rank to rank, mutated: tables, guards, phases. More: `benchmarks/program_mutants.py`."""

import itertools
from collections import Counter

import pytest
from program_mutants import harmless_mutants, subjects, verdict
from rank_mutants import FEW, OTHERS, harmless_pairs, sample

SMALL = [(name, 4) for name in OTHERS] + [("all_to_all_mesh", 6), ("broadcast_torus", 6)]
PHASES = [case for case in FEW if case[0] in ("broadcast_mesh", "all_gather_mesh")]


@pytest.mark.parametrize(("name", "size"), SMALL)
def test_no_mutant_of_other_schedules_survives(name: str, size: int) -> None:
    for subject in subjects(name, size)[:1]:
        tried = sample(subject, 1)
        assert {"remove send", "double wait", "pair", "remove barrier signal"} <= {mutant.kind for mutant in tried}
        assert [f"{subject.label}: {m.kind}: {m.what}" for m in tried if verdict(m, subject) is None] == []


@pytest.mark.parametrize(("name", "size", "semaphores"), PHASES)
def test_no_mutant_of_phases_survives(name: str, size: int, semaphores: int) -> None:
    subject = subjects(name, size, semaphores=semaphores)[0]
    kinds = Counter[str]()
    for mutant in sample(subject, 2):
        kinds[mutant.kind] += 1
        assert verdict(mutant, subject) is not None, f"{subject.label}: {mutant.kind}: {mutant.what}"
    for change, what in itertools.product(("remove", "double"), ("phase signal", "phase wait")):
        assert kinds[f"{change} {what}"], kinds
    guards = ("guard dropped", "guard negated") if name == "broadcast_mesh" else ()
    for kind in ("entry", "entry for one", "pair", *guards):
        assert kinds[kind], kinds


@pytest.mark.parametrize(("name", "size", "semaphores"), [*PHASES, ("all_gather_doubling", 4, None)])
def test_what_is_left_out_is_harmless(name: str, size: int, semaphores: int | None) -> None:
    """A pair that need not meet; two slots or semaphores that are used one after the other; somebody else told."""
    tried = 0
    for subject in subjects(name, size, semaphores=semaphores):
        for found in (harmless_mutants(subject.program), harmless_pairs(subject)):
            for mutant in itertools.islice(found, 6):
                assert verdict(mutant, subject) is None, f"{subject.label}: {mutant.kind}: {mutant.what}"
                tried += 1
    assert tried
