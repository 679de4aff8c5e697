"""Whole messages: both places, the memory in the user's indices, the missing order, the cure."""

from pathlib import Path

import pytest
from corpus import CASES

import ringsched as rs
from ringsched.auditing.audit import AuditReport

ROOT = Path(__file__).parents[2]


def audited(name: str, monkeypatch: pytest.MonkeyPatch) -> AuditReport:
    monkeypatch.chdir(ROOT)
    case = next(case for case in CASES if case.name == name)
    return rs.audit(
        case.function, mesh_axes=case.mesh, args=case.args, in_specs=case.in_specs, out_specs=case.out_specs
    )


def line_of(path: str, text: str, *, after: str) -> int:
    lines = (ROOT / path).read_text().split("\n")
    start = next(number for number, line in enumerate(lines) if after in line)
    return next(number for number, line in enumerate(lines[start:], start + 1) if text in line)


def test_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    path, kernel = "tests/corpus/exchanges.py", "def read_too_soon_kernel"
    start = line_of(path, "copy.start()", after=kernel)
    read, wait = start + 1, start + 2
    (race, *_) = audited("read_before_wait", monkeypatch).diagnostics
    width = max(len(str(read)), len(str(start)))
    gap = " " * width
    assert str(AuditReport(kernel="f", kernels=(), devices=4, calls=2, diagnostics=(race,), seconds=0)) == (
        "error[RS401]: `copy x_ref → buffer of rank 0` (rank 3) and `read buffer` (rank 0) race on buffer of rank 0\n"
        f"{gap} --> {path}:{read}:18\n"
        f"{gap} |\n"
        f"{read:>{width}} |     o_ref[...] = buffer[...]\n"
        f"{gap} |                  ^^^^^^^^^^^ reads buffer\n"
        f"{gap} ::: {path}:{start}:5\n"
        f"{gap} |\n"
        f"{start:>{width}} |     copy.start()\n"
        f"{gap} |     ------------ writes buffer, and nothing makes one wait for the other\n"
        f"{gap} |\n"
        f"{gap} = counterexample: ranks = 4, rank = 0, call = 1\n"
        f"{gap} = missing order: `copy x_ref → buffer of rank 0` (rank 3) ends before `read buffer` (rank 0) begins\n"
        f"{gap} = it has surely ended only after the wait in {path}:{wait}\n"
        f"{gap} = help: wait on received[0] before the memory is used; where other DMAs count on it too, they can "
        "satisfy\n"
        f"{gap}     the wait instead: use one receive semaphore for each step or slot\n"
        f"{gap} = more: ringsched explain RS401\n"
        "\n"
        "f: wrong on 4 devices (1 finding; 2 calls in a row; values not checked) in 0.00 s"
    )


def test_regions_are_told_in_the_users_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    report = audited("overlapping_columns", monkeypatch)
    assert any("race on o_ref[:, 32:96] of rank" in diagnostic.message for diagnostic in report.diagnostics), report


def test_scoped_memory_is_told_of_its_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    (late, _) = audited("scope_left_early", monkeypatch).diagnostics
    assert late.message.endswith("may still be under way on buffer of rank 0 when rank 0 leaves the run_scoped")


def test_a_deadlock_names_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    (deadlock,) = audited("circular_wait", monkeypatch).diagnostics
    assert deadlock.message == "deadlock: 4 ranks wait for ever"
    assert deadlock.notes[2].startswith("rank 2 waits on received[0]")
