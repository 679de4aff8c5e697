"""What the audit calls right is right when it runs in TPU interpret mode. More of the same in benchmarks/."""

from dynamic import Detector, found, unsound
from random_kernels import audited, random_program

PROGRAMS = range(16)
LEFT_OVER, UNWRITTEN, STUCK = "12", "2", "3"  # seeds of programs that are so on any interleaving


def test_right_programs_run_right() -> None:
    verdicts = {str(seed): audited(random_program(seed))[0] for seed in PROGRAMS}
    right = [seed for seed, verdict in verdicts.items() if verdict == "right"]
    assert len(right) >= 5
    told = {seed: noticed for seed, _, noticed in unsound("random_kernels", verdicts, devices=4)}
    assert told == dict.fromkeys(right, ())


def test_wrong_programs_called_right_are_noticed() -> None:
    for seed in (LEFT_OVER, UNWRITTEN, STUCK):
        assert audited(random_program(int(seed)))[0] == "wrong"
    called = {LEFT_OVER: "right", UNWRITTEN: "right"}
    told = {seed: noticed for seed, _, noticed in unsound("random_kernels", called, devices=4)}
    assert "eager: leftover" in told[LEFT_OVER]
    assert any("values" in noticed for noticed in told[UNWRITTEN])


def test_a_hang_is_noticed() -> None:
    with Detector(devices=4) as detector:
        assert found(detector.run("random_kernels", STUCK, ["eager"])) == ("eager: hang",)
