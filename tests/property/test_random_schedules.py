"""The language's definition and every stage agree on random schedules: a sample of benchmarks/schedule_agreement.py."""

import sys
from pathlib import Path

import pytest
from definition import meaning
from random_schedules import File, schedule

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from schedule_agreement import examine, judge


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_agreement(first: int, tmp_path: Path) -> None:
    verdicts = set()
    for seed in range(first, first + 10):
        drawn = schedule(seed)
        verdict, trouble = examine(drawn, tmp_path, audit=seed % 3 == 0)
        assert not trouble, f"seed {seed}: {trouble}\n{drawn.text}"
        verdicts.add(verdict)
    assert verdicts >= {"right", "wrong"}


SHIPPED = sorted((Path(__file__).parents[2] / "schedules").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_schedules_mean_what_they_promise(path: Path) -> None:
    assert meaning(path) in ("", None)


def test_a_disagreement_would_be_told(tmp_path: Path) -> None:
    """The definition calls wrong what lacks a step, and one that says another thing than ringsched is noticed."""
    right = schedule(0).text
    steps = "steps:\n  - {send: 'chunk[r]', to: r + 1}\n"
    text = f"schedule: short\ncollective: all_gather\ntopology: {{ring: 3}}\nchunks: [3]\n{steps}"
    assert examine(File(text), tmp_path) == ("wrong", "")
    path = tmp_path / "drawn.yaml"
    assert meaning(path)
    assert judge(path)[0] == "wrong"
    assert right != text
