"""Flattening: loops in order, `use:` inlined in outer terms, and refusing what is too large."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ringsched.diagnostics import Diagnostic, DiagnosticError
from ringsched.expr import integer, show
from ringsched.schedule.flat import MAX_TRANSFERS, FlatSchedule, flatten
from ringsched.schedule.loader import load, set_parameters
from ringsched.schedule.notation import show_chunk
from ringsched.schedule.schedule import Slice
from ringsched.verify.dataflow import verify_dataflow

HEAD = "schedule: t\ncollective: all_reduce\ntopology: {ring: N}\nparams: {N: 4}\nchunks: [N]\nsteps:\n"
SCATTER = "  - {for: s in 0 .. N - 2, do: [{send: 'chunk[(r - s - 1) % N]', to: r + 1, op: reduce}]}\n"
GATHER = "  - {for: s in 0 .. N - 2, do: [{send: 'chunk[(r - s) % N]', to: r + 1}]}\n"


def flat(steps: str, head: str = HEAD, **values: int) -> FlatSchedule:
    return flatten(set_parameters(load("t.yaml", head + steps), values))


def refused(steps: str, head: str = HEAD, **values: int) -> Diagnostic:
    with pytest.raises(DiagnosticError) as caught:
        flat(steps, head, **values)
    (found,) = caught.value.diagnostics
    return found


def lines(made: FlatSchedule) -> list[str]:
    """Each step as `statement {loop variables}`."""
    found = []
    for step in made.steps:
        parts = []
        for transfer in step:
            t = transfer.statement
            env = {name: value for name, value in transfer.env.items() if name not in made.env}
            parts.append(f"{show_chunk(t.chunk)} -> {', '.join(map(show, t.to.coordinates))} {env}")
        found.append("; ".join(parts))
    return found


def test_loops_run_in_order_and_share_their_statements() -> None:
    made = flat(
        "  - {for: a in 1 .. 2, do: [{for: b in a .. 2, do: [{send: 'chunk[a]', to: r + b}]}]}\n" + SCATTER, N=3
    )
    assert lines(made) == [
        "chunk[a] -> r + b {'a': 1, 'b': 1}",
        "chunk[a] -> r + b {'a': 1, 'b': 2}",
        "chunk[a] -> r + b {'a': 2, 'b': 2}",
        "chunk[(r - s - 1) % N] -> r + 1 {'s': 0}",
        "chunk[(r - s - 1) % N] -> r + 1 {'s': 1}",
    ]
    assert made.steps[0][0].statement is made.steps[2][0].statement
    assert made.env == {"N": 3}


def test_bounds_of_each_are_numbers() -> None:
    made = flat("  - {for: s in 0 .. 1, do: [{send: 'chunk[d]', each: d in s .. N - 1, to: r + 1}]}\n")
    assert [step[0].each for step in made.steps] == [(0, 3), (1, 3)]


def test_empty_loops_make_no_steps() -> None:
    assert flat(SCATTER, N=1).steps == ()
    assert flat("  - {for: s in 3 .. 0, do: [{send: 'chunk[0]', to: r + 1}]}\n").steps == ()


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("schedule: t", f"schedule: {name}"))
    return path


def test_use_runs_another_schedule_in_outer_terms(tmp_path: Path) -> None:
    write(
        tmp_path, "scatter", HEAD.replace("all_reduce", "reduce_scatter").replace("N", "M") + SCATTER.replace("N", "M")
    )
    write(tmp_path, "gather", HEAD.replace("all_reduce", "all_gather") + GATHER)
    steps = "  - {use: ./scatter.yaml, with: {M: N}}\n  - {use: ./gather.yaml}\n"
    outer = load(write(tmp_path, "both", HEAD + steps))
    made = flatten(set_parameters(outer, {"N": 3}))
    assert lines(made) == [
        "chunk[(r - s - 1) % N] -> r + 1 {'s': 0}",
        "chunk[(r - s - 1) % N] -> r + 1 {'s': 1}",
        "chunk[(r - s) % N] -> r + 1 {'s': 0}",
        "chunk[(r - s) % N] -> r + 1 {'s': 1}",
    ]
    assert made.steps[0][0].statement is made.steps[1][0].statement
    span = made.steps[0][0].statement.chunk.span
    assert span is not None
    assert Path(span.path).name == "scatter.yaml"
    assert verify_dataflow(made) == ()


def test_loop_variables_of_a_used_schedule_that_clash_are_renamed(tmp_path: Path) -> None:
    inner = "  - {for: s in 0 .. 1, do: [{for: s_ in s .. 1, do: [{send: 'chunk[s + s_]', to: r + 1}]}]}\n"
    write(tmp_path, "inner", HEAD + inner)
    outer = load(write(tmp_path, "outer", HEAD + "  - {for: s in 5 .. 6, do: [{use: ./inner.yaml}]}\n"))
    made = flatten(outer)
    values = [
        tuple(integer(i, t.env) for i in t.statement.chunk.index if not isinstance(i, Slice)) for (t,) in made.steps
    ]
    assert values == [(0,), (1,), (2,)] * 2
    assert {t.env["s"] for (t,) in made.steps} == {5, 6}
    assert len({id(t.statement) for (t,) in made.steps}) == 1


def test_on_gives_a_part_of_the_chunks(tmp_path: Path) -> None:
    write(tmp_path, "gather", HEAD.replace("all_reduce", "all_gather") + GATHER)
    left = HEAD.replace("all_reduce", "all_gather") + GATHER.replace("- s", "+ s").replace("r + 1", "r - 1")
    write(tmp_path, "left", left)
    head = HEAD.replace("all_reduce", "all_gather").replace("[N]", "[N, 2]")
    steps = (
        "  - beside:\n      - {use: ./gather.yaml, on: 'chunk[:, 0]'}\n      - {use: ./left.yaml, on: 'chunk[:, 1]'}\n"
    )
    made = flatten(load(write(tmp_path, "both", head + steps)))
    assert lines(made)[0] == "chunk[(r - s) % N, 0] -> r + 1 {'s': 0}; chunk[(r + s) % N, 1] -> r - 1 {'s': 0}"
    assert len(made.steps) == 3
    assert verify_dataflow(made) == ()


def test_on_within_on_and_slices(tmp_path: Path) -> None:
    inner = (
        HEAD.replace("[N]", "[2]").replace("N: 4", "N: 4")
        + "  - {send: 'chunk[1]', to: r + 1}\n  - {send: 'chunk[0:1]', to: r + 1}\n"
    )
    write(tmp_path, "inner", inner)
    write(tmp_path, "middle", HEAD.replace("[N]", "[4]") + "  - {use: ./inner.yaml, on: 'chunk[1:3]'}\n")
    steps = "  - {for: k in 0 .. 1, do: [{use: ./middle.yaml, on: 'chunk[k, 2:6]'}]}\n"
    made = flatten(load(write(tmp_path, "outer", HEAD.replace("[N]", "[2, 8]") + steps)))
    assert lines(made)[:2] == ["chunk[k, 4] -> r + 1 {'k': 0}", "chunk[k, 3:4] -> r + 1 {'k': 0}"]


def test_beside_pads_the_shorter_run(tmp_path: Path) -> None:
    write(tmp_path, "long", HEAD + SCATTER)
    write(tmp_path, "short", HEAD + "  - {send: 'chunk[0]', to: r - 1}\n")
    steps = "  - beside:\n      - {use: ./long.yaml}\n      - {use: ./short.yaml}\n"
    made = flatten(load(write(tmp_path, "outer", HEAD + steps)))
    assert [len(step) for step in made.steps] == [2, 1, 1]


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ("{use: ./gather.yaml, with: {N: N + 1}}", "it is for a ring of 5; this schedule is for a ring of 4"),
        ("{use: ./gather.yaml, on: 'chunk[0:2]'}", "it has 4 chunks [4]; it is given [2]"),
    ],
)
def test_a_use_that_does_not_fit(tmp_path: Path, use: str, reason: str) -> None:
    write(tmp_path, "gather", HEAD + GATHER)
    outer = load(write(tmp_path, "outer", HEAD + f"  - {use}\n"))
    with pytest.raises(DiagnosticError) as caught:
        flatten(outer)
    (found,) = caught.value.diagnostics
    assert (found.code, found.counterexample) == ("RS216", {"N": 4})
    assert reason in found.message
    assert found.primary is not None
    assert Path(found.primary.span.path).name == "outer.yaml"


SEND = "[{send: chunk, to: r + 1}]"
TOO_MANY = {
    "loop": (f"  - {{for: a in 0 .. 999999999, do: {SEND}}}\n", "1,000,000,000"),
    "nest": (f"  - {{for: a in 1 .. 2000, do: [{{for: b in 1 .. 3000, do: {SEND}}}]}}\n", "6,000,000"),
    "triangle": (f"  - {{for: a in 0 .. 3000, do: [{{for: b in 0 .. a, do: {SEND}}}]}}\n", "1,000,"),
    "empty": (
        f"  - {{for: a in 1 .. 90000, do: [{{for: b in 1 .. 90000, do: [{{for: c in 1 .. 0, do: {SEND}}}]}}]}}\n",
        "8,1",
    ),
    "each": ("  - {send: 'chunk[d]', each: d in 1 .. 5000000, to: r + 1}\n", "5,000,000"),
    "sum": (f"  - {{for: a in 1 .. 600000, do: {SEND}}}\n" * 2, "1,200,000"),
    "late": (f"  - {{for: a in 0 .. 9, do: [{{for: b in 0 .. a * 1000000000, do: {SEND}}}]}}\n", "1,000,000,"),
}


@pytest.mark.parametrize("name", list(TOO_MANY))
def test_too_many_transfers_are_refused_at_once(name: str) -> None:
    steps, count = TOO_MANY[name]
    start = time.process_time()
    found = refused(steps)
    assert time.process_time() - start < 2  # it takes milliseconds; running the loops would take minutes
    assert found.code == "RS211"
    assert f"at least {count}" in found.message
    assert f"{MAX_TRANSFERS:,}" in found.message
    assert found.primary is not None


def test_bounds_without_a_value() -> None:
    found = refused("  - {for: s in 0 .. N // (N - 4), do: [{send: 'chunk[0]', to: r + 1}]}\n")
    assert (found.code, found.counterexample) == ("RS204", {"N": 4})
    found = refused("  - {for: s in 0 .. 2, do: [{send: 'chunk[d]', each: d in 0 .. 4 // (s - 1), to: r + 1}]}\n")
    assert (found.code, found.counterexample) == ("RS204", {"N": 4, "s": 1})
