"""Checks of the lowering that small shipped sizes would not miss."""

from __future__ import annotations

import pytest

from ringsched.codegen.module import barrier_pattern
from ringsched.diagnostics import DiagnosticError
from ringsched.pipeline import open_schedule, prove
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load


def test_a_peer_that_changes_gives_no_credits() -> None:
    """Nine steps are more than there are slots; one used again would be given back to the sender of another step."""
    proven = prove(open_schedule("all_reduce_doubling", {"N": 512}))
    assert not any(semaphore.name.startswith("credit") for semaphore in proven.lowered.program.semaphores)


def test_tables_are_part_of_the_pattern_of_a_barrier() -> None:
    """Two kernels whose tables have the same names and say other things do not share a barrier semaphore."""
    patterns = []
    for second in ("[[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]", "[[0, 2], [2, 1], [1, 3], [3, 5], [5, 4]]"):
        text = f"schedule: t\ncollective: all_gather\ntopology: {{links: {second}}}\nchunks: [6]\nsteps:\n"
        program = prove(load("t.yaml", f"{text}  - synth: all_gather\n")).lowered.program  # type: ignore[type-var]
        patterns.append(barrier_pattern(program))
    assert "writer0" in patterns[0] and "writer0" in patterns[1]
    assert patterns[0] != patterns[1]


def test_searches_have_a_limit() -> None:
    head = "schedule: t\ncollective: all_gather\ntopology: {mesh: [12, 12]}\nchunks: [12, 12]\n"
    text = f"{head}steps:\n  - synth: all_gather\n"
    with pytest.raises(DiagnosticError) as error:
        flatten(load("t.yaml", text))  # type: ignore[arg-type]
    assert error.value.diagnostics[0].code == "RS220"
    assert "up to 128 ranks" in error.value.diagnostics[0].message


def test_a_routed_transfer_goes_somewhere() -> None:
    text = (
        "schedule: t\ncollective: all_gather\ntopology: {ring: N, routed: true}\nparams: {N: 4}\nchunks: [N]\nsteps:\n"
    )
    with pytest.raises(DiagnosticError) as error:
        prove(load("t.yaml", text + "  - {send: 'chunk[r]', to: '(r + N) % N'}\n"))  # type: ignore[type-var]
    assert error.value.diagnostics[0].code == "RS209"
