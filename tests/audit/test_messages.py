"""Whole messages: both places, the memory in the user's indices, the missing order, the cure."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from corpus import CASES

import ringsched as rs
from ringsched.auditing.audit import AuditReport
from ringsched.diagnostics import InternalError

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
    told = replace(race, interleaving=())
    assert str(AuditReport(kernel="f", kernels=(), devices=4, calls=2, diagnostics=(told,), seconds=0)) == (
        "error[RS404]: `read buffer` (rank 0) uses buffer of rank 0 before `copy x_ref → buffer of rank 0` (rank 3) "
        "is waited for\n"
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
        f"{gap} = more: ringsched explain RS404\n"
        "\n"
        "f: wrong on 4 devices (1 finding; 2 calls in a row; values not checked) in 0.00 s"
    )


def test_the_run_of_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    (race, *_) = audited("read_before_wait", monkeypatch).diagnostics
    assert [re.sub(r"py:\d+", "py:N", step) for step in race.interleaving] == [
        "rank 0 enters the kernel and runs up to `wait for 2 on barrier[0]` (case.py:N)",
        "rank 1 enters the kernel and gives `signal barrier[0] of rank 0` (case.py:N)",
        "rank 2 enters the kernel and runs up to `wait for 2 on barrier[0]` (case.py:N)",
        "rank 3 enters the kernel and starts `copy x_ref → buffer of rank 0` (exchanges.py:N)",
        "rank 0 passes `wait for 2 on barrier[0]` (case.py:N) on units of ranks 1 and 3 and starts `copy x_ref → "
        "buffer of rank 1` (exchanges.py:N)",
        "rank 0 executes `read buffer` (exchanges.py:N): it reads buffer of rank 0 while `copy x_ref → buffer of rank "
        "0` (exchanges.py:N) of rank 3 still writes it",
    ]


def test_a_long_run_is_cut_in_the_middle_and_told_in_full_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    (stray, _) = audited("doubled_signal", monkeypatch).diagnostics
    report = AuditReport(kernel="f", kernels=(), devices=4, calls=2, diagnostics=(stray,), seconds=0)
    assert "more steps, which --json shows" in str(report)
    (told,) = report.to_json()["diagnostics"]
    assert len(told["interleaving"]) == len(stray.interleaving) > 16


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gather_one_receive_semaphore", "while `copy refs_1[3] → refs_1[3] of rank 0` (rank 3) may be under way"),
        ("overlapping_columns", "race on o_ref[:, 32:96] of rank"),
    ],
)
def test_what_races(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = audited(name, monkeypatch)
    assert any(text in diagnostic.message for diagnostic in report.diagnostics), report


def test_scoped_memory_is_told_of_its_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    (late, _) = audited("scope_left_early", monkeypatch).diagnostics
    assert late.message.endswith("may still be under way on buffer of rank 0 when rank 0 leaves the run_scoped")


def test_a_deadlock_names_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    (deadlock,) = audited("circular_wait", monkeypatch).diagnostics
    assert deadlock.message == "deadlock: 4 ranks wait for ever"
    assert deadlock.notes[2].startswith("rank 2 waits in call 1 on received[0]")


def test_a_run_that_does_not_show_its_finding_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringsched.auditing.words.witness", lambda *_: ())
    with pytest.raises(InternalError, match="does not show it"):
        audited("read_before_wait", monkeypatch)
