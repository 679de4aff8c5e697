"""Whole files: the verdict on each, and the schedule that it becomes."""

from pathlib import Path

import pytest
from msccl_files import OTHERS, OWN, codes, judged

from ringsched.diagnostics import DiagnosticError
from ringsched.exporters.messages import messages
from ringsched.exporters.msccl import export
from ringsched.importers.convert import convert
from ringsched.pipeline import prove
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.loader import load
from ringsched.schedule.printer import print_schedule

VERDICTS: dict[str, tuple[str, int | None, list[str]]] = {
    "BAD_deadlock_a2a_n2": ("wrong", 20, ["RS818"]),
    "BAD_race_ag_oop_n4_deps_dropped": ("wrong", 1, ["RS817"] * 4),
    "BAD_rrc_cross_index_n2": ("wrong", 1, ["RS821"]),
    "ag_ring_n4": ("right", 2, []),
    "ar_ring_n4": ("right", 2, []),
    "rs_ring_n4": ("right", 2, []),
}
UNSAYABLE = {"all_reduce_line"}


@pytest.mark.skipif(not OTHERS, reason="the files of other writers are not here")
def test_all_the_files_of_others_are_there() -> None:
    names = {path.stem for path in OTHERS}
    assert set(VERDICTS) <= names and len(names) >= 17


@pytest.mark.parametrize("path", OTHERS, ids=lambda p: p.stem)
def test_the_verdict_on_files_of_others(path: Path) -> None:
    judgement = judged(path.read_text(encoding="utf-8"))
    verdict, depth, found = VERDICTS.get(path.stem, ("right", 1, []))
    assert (judgement.verdict, judgement.least_depth, codes(judgement)) == (verdict, depth, found)
    assert judgement.advice == ()


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.stem)
def test_our_own_files_are_right(path: Path) -> None:
    judgement = judged(path.read_text(encoding="utf-8"))
    assert (judgement.verdict, codes(judgement)) == ("right", [])


def sent(flat: FlatSchedule) -> list[tuple[int, int, int, str]]:
    return sorted((m.sender, m.receiver, c, m.op) for step in messages(flat) for m in step for c in m.chunks)


@pytest.mark.parametrize("path", [*OWN, *OTHERS], ids=lambda p: p.stem)
def test_what_is_right_becomes_a_schedule_that_is_proven(path: Path, tmp_path: Path) -> None:
    """… and its file loads as the same, and its export means the same."""
    judgement = judged(path.read_text(encoding="utf-8"))
    if judgement.verdict != "right" or path.stem in UNSAYABLE:
        return
    schedule = convert(judgement, "imported", "From elsewhere.").schedule
    text = print_schedule(schedule)
    (tmp_path / "imported.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "imported.yaml") == schedule
    flat = prove(schedule).flat
    assert flat.promise.kind == judgement.algorithm.kind
    exported = export(flat, "Simple")
    assert exported.judgement.verdict == "right" and exported.judgement.advice == ()
    again = flatten(convert(exported.judgement, "again", "").schedule)
    assert sent(again) == sent(flat) and again.promise.dims == flat.promise.dims
    assert len(again.steps) <= len(flat.steps)


def test_two_values_of_a_chunk_at_once_cannot_be_said() -> None:
    (path,) = [p for p in OWN if p.stem in UNSAYABLE]
    with pytest.raises(DiagnosticError) as error:
        convert(judged(path.read_text(encoding="utf-8")), "relay", "")
    (finding,) = error.value.diagnostics
    assert finding.code == "RS705"
    assert finding.message == "no schedule can say this: rank 1 has to hold two values of chunk [0] at once"


def test_partial_sums_that_are_only_passed_on_go_straight() -> None:
    """Rank 1 relays the term of rank 0 and keeps its own: the term goes from 0 to 2."""
    (path,) = [p for p in OWN if p.stem == "all_reduce_relay"]
    schedule, advice = convert(judged(path.read_text(encoding="utf-8")), "relay", "")
    assert sent(flatten(schedule)) == [(0, 2, 0, "reduce"), (1, 0, 0, "copy"), (1, 2, 0, "copy"), (2, 1, 0, "reduce")]
    (finding,) = advice
    assert finding.code == "RS915"
    assert finding.message == "partial sums that ranks only pass on are sent straight from where they were made"
