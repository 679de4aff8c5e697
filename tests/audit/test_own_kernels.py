"""The audit that `compile` has made of its kernels: what it refuses, and what it leaves open."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ringsched.auditing.generated import SECONDS, Audited, Auditor, Request
from ringsched.commands.audited import MOST_ALONE, audit_small, smaller_kernel
from ringsched.diagnostics import InternalError
from ringsched.pipeline import AnyCompiled, Compiled, compile_schedule, open_schedule


def request(source: str, kind: str = "all_gather") -> Request:
    return Request(
        source=source,
        function="all_gather",
        kind=kind,
        root=0,
        permutation=(),
        sides=(3,),
        shapes=((8, 128),),
        dtype="float32",
        compute=None,
        gradient=True,
    )


SOURCE = compile_schedule(open_schedule("all_gather", {"N": 3})).source


def test_right() -> None:
    with Auditor() as auditor:
        assert not auditor.audit([request(SOURCE)]).undecided


def test_a_kernel_with_a_wait_less() -> None:
    wait = next(line for line in SOURCE.split("\n") if line.strip().startswith("pl.semaphore_wait(pltpu.get_barrier"))
    tampered = SOURCE.replace(wait, wait[: len(wait) - len(wait.lstrip())] + "pass", 1)
    with Auditor() as auditor, pytest.raises(InternalError, match="the generated kernel is wrong"):
        auditor.audit([request(tampered)])


def test_a_kernel_that_computes_something_else() -> None:
    with Auditor() as auditor, pytest.raises(InternalError, match="RS801"):
        auditor.audit([request(SOURCE.replace("def all_gather(", "def _other(") + WRONG)])


WRONG = """

def all_gather(x, *, axis_name):
    return -_other(x, axis_name=axis_name)
"""


def test_a_smaller_kernel() -> None:
    ring = smaller_kernel(compile_schedule(open_schedule("reduce_scatter", {"N": 16})))
    assert ring is not None and ring.proven.flat.topology.sides == (4,)


class Notes(Auditor):
    """Notes what it is asked for, and finds nothing wrong."""

    def __init__(self) -> None:
        self.sides: list[tuple[int, ...]] = []
        self.deadline = 0.0

    def audit(self, requests: Sequence[Request], deadline: float = SECONDS) -> Audited:
        self.sides, self.deadline = [request.sides for request in requests], deadline
        return Audited(seconds=0.0, undecided="")


def pinned(path: Path, ranks: int) -> AnyCompiled:
    """An all-gather round a ring, each transfer between two ranks that it names: nothing says what fewer would do."""
    lines = [
        "schedule: round",
        "collective: all_gather",
        f"topology: {{ring: {ranks}}}",
        f"chunks: [{ranks}]",
        "steps:",
    ]
    for step in range(ranks - 1):
        lines.append("  - step:")
        for rank in range(ranks):
            lines.append(f"      - {{send: 'chunk[{(rank - step) % ranks}]', from: {rank}, to: {(rank + 1) % ranks}}}")
    path.write_text("\n".join(lines))
    return compile_schedule(open_schedule(path))


def test_a_schedule_without_a_smaller_size(tmp_path: Path) -> None:
    """Such a one is audited as it is, for as long as one may wait."""
    kernel, notes = pinned(tmp_path / "round.yaml", 9), Notes()
    outcome = audit_small(notes, [kernel], 7.0)
    assert not outcome.undecided and outcome.words() == "kernel audited"
    assert (notes.sides, notes.deadline) == ([(9,)], 7.0)


def test_patience_is_for_these_only() -> None:
    notes = Notes()
    for ranks, side in ((4, 4), (9, 4)):
        audit_small(notes, [compile_schedule(open_schedule("all_gather", {"N": ranks}))], 7.0)
        assert (notes.sides, notes.deadline) == ([(side,)], SECONDS)


def test_a_schedule_that_is_too_large(tmp_path: Path) -> None:
    notes = Notes()
    outcome = audit_small(notes, [pinned(tmp_path / "round.yaml", MOST_ALONE + 1)])
    assert outcome.undecided == "it has 17 ranks, and no smaller size that is right"
    assert not notes.sides


def test_a_large_kernel_that_is_wrong(tmp_path: Path) -> None:
    """Rank 2 passes on a chunk that it does not have yet."""
    kernel = pinned(tmp_path / "round.yaml", 9)
    assert isinstance(kernel, Compiled)
    sent = "0 1 2 3 4 5 6 7 8 8 0 1 2"
    assert kernel.source.count(sent) == 1
    with Auditor() as auditor:
        assert not audit_small(auditor, [kernel]).undecided
    with Auditor() as auditor, pytest.raises(InternalError, match="the generated kernel is wrong"):
        audit_small(auditor, [replace(kernel, source=kernel.source.replace(sent, "0 1 2 3 4 5 6 7 8 8 0 3 2"))])


def test_an_audit_that_takes_too_long() -> None:
    with Auditor() as auditor:
        outcome = auditor.audit([request(SOURCE)], 0.01)
    assert outcome.undecided == "the audit did not end within 0 s; `ringsched verify --audit` gives it 120 s"
