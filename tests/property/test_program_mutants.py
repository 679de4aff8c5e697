"""Every mutant of every shipped Program is rejected. All of them: `benchmarks/program_mutants.py`."""

import random
import re
from collections import Counter

import pytest
from program_mutants import (
    CHAINS,
    PRODUCTS,
    ROLLED,
    SCHEDULES,
    SIZES,
    Mutant,
    Subject,
    harmless_mutants,
    mutants,
    subjects,
    verdict,
)

OF_EACH_KIND, OF_EACH_KIND_ROLLED = 3, 1


def some(found: list[Mutant], label: str, most: int) -> list[Mutant]:
    """At most so many of each kind, always the same ones."""
    chosen: dict[str, list[Mutant]] = {}
    for mutant in random.Random(label).sample(found, len(found)):
        group = chosen.setdefault(mutant.kind, [])
        if len(group) < most:
            group.append(mutant)
    return [mutant for group in chosen.values() for mutant in group]


def test_products_are_computed_at_the_wrong_moment() -> None:
    """A product behind its reader; a sum behind the product that overwrites its term."""
    kinds = Counter(mutant.kind for mutant in mutants(subjects("matmul_reduce_scatter", 4)[0]))
    for kind in ("late result of multiply", "late result of add", "late read of add", "remove multiply", "merge slots"):
        assert kinds[kind], kinds
    kinds = Counter(mutant.kind for mutant in mutants(subjects("all_gather_matmul_features", 4)[0]))
    for kind in ("late result of multiply", "double multiply", "late wait"):
        assert kinds[kind], kinds


def survivors(subject: Subject, most: int | None) -> tuple[list[str], Counter[str]]:
    found = list(mutants(subject))
    tried = found if most is None else some(found, subject.label, most)
    kinds = Counter(mutant.kind for mutant in tried)
    alive = [f"{subject.label}: {m.kind}: {m.what}" for m in tried if verdict(m, subject) is None]
    return alive, kinds


def sized(name: str, size: int) -> object:
    """A case; of what multiplies, odd sizes are slow ones."""
    marks = [pytest.mark.slow] if size % 2 and name not in SCHEDULES else []
    return pytest.param(name, size, marks=marks)


@pytest.mark.parametrize(
    ("name", "size"), [sized(name, size) for name in SCHEDULES + PRODUCTS + CHAINS for size in SIZES]
)
def test_no_mutant_survives(name: str, size: int) -> None:
    for subject in subjects(name, size):
        alive, kinds = survivors(subject, None if size == 2 and name not in CHAINS else OF_EACH_KIND)
        assert not alive
        for kind in ("remove", "double"):
            for what in ("send", "wait", "barrier signal", "barrier wait"):
                assert kinds[f"{kind} {what}"], kinds
        assert kinds["without barrier semaphore"] == 1
        assert kinds["late barrier wait"]


@pytest.mark.parametrize(("name", "size"), [sized(name, size) for name in PRODUCTS for size in (2, 3, 4, 12)])
def test_no_mutant_without_overlap_survives(name: str, size: int) -> None:
    for subject in subjects(name, size, "none"):
        alive, kinds = survivors(subject, OF_EACH_KIND_ROLLED)
        # A loop over all terms that goes round once more computes the first of them again, from the same.
        assert [line for line in alive if size < 12 or not re.search(r": bound: loop \(\d,\) last \+1$", line)] == []
        assert kinds["remove send"] and kinds["remove multiply"] and kinds["late barrier wait"]
        assert kinds["late result of multiply"] or name.startswith("all_gather") != ("transpose" in subject.label)


@pytest.mark.parametrize("name", CHAINS)
def test_a_send_behind_what_overwrites_its_source(name: str) -> None:
    """In a chain, a send that is late, a wait less, and a weight of another layer are among the mutants."""
    kinds = Counter(mutant.kind for mutant in mutants(subjects(name, 4)[0]))
    for kind in ("late read of send", "remove wait", "late wait", "index", "bound", "late result of add"):
        assert kinds[kind], kinds


@pytest.mark.parametrize("name", ROLLED)
def test_no_mutant_of_a_loop_survives(name: str) -> None:
    for subject in subjects(name, ROLLED[name]):
        alive, kinds = survivors(subject, OF_EACH_KIND_ROLLED)
        assert not alive
        assert kinds["bound"]


@pytest.mark.parametrize("name", ["reduce_scatter", "all_to_all"])
def test_credits_are_among_them(name: str) -> None:
    """Where slots are used again, each credit is removed, doubled, given too early and waited for too late."""
    subject = subjects(name, ROLLED[name])[0]
    kinds = Counter(mutant.kind for mutant in mutants(subject))
    for kind in ("remove credit signal", "double credit wait", "early credit signal", "late credit wait"):
        assert kinds[kind], subject.label
    assert kinds["without regular semaphore"] == 1
    assert kinds["late wait"] and kinds["merge slots"] and kinds["merge semaphores"]


@pytest.mark.parametrize("name", SCHEDULES + PRODUCTS)
def test_what_is_left_out_is_as_good_as_the_original(name: str) -> None:
    """The mutants of semaphores that are not made would survive rightly: the checks find nothing wrong with them."""
    tried = 0
    for size in (2, 4):
        for subject in subjects(name, size):
            for mutant in some(list(harmless_mutants(subject.program)), subject.label, 8):
                assert verdict(mutant, subject) is None, f"{subject.label}: {mutant.what}"
                tried += 1
    assert tried or name in PRODUCTS  # a product stands between most waits
