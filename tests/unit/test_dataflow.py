"""Every finding of the data-flow check: code, place, counterexample, help."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ringsched.diagnostics import Diagnostic, render
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load, set_parameters
from ringsched.schedule.schedule import Schedule
from ringsched.verify.dataflow import is_symmetric, smallest_failing, verify_dataflow

GATHER = "  - {for: s in 0 .. N - 2, do: [{send: 'chunk[(r - s) % N]', to: r + 1}]}\n"
SCATTER = "  - {for: s in 0 .. N - 2, do: [{send: 'chunk[(r - s - 1) % N]', to: r + 1, op: reduce}]}\n"
MESH = {"topology": "mesh: [X, Y]", "params": "{X: 2, Y: 3}", "chunks": "[X, Y]"}
LINKS = {"topology": "links: [[0, 1], [1, 2], [2, 3]]", "params": "{}", "chunks": "[2]"}


def text(
    steps: str, collective: str = "all_gather", topology: str = "ring: N", params: str = "{N: 4}", chunks: str = "[N]"
) -> str:
    head = f"schedule: t\ncollective: {collective}\ntopology: {{{topology}}}\nparams: {params}\nchunks: {chunks}\n"
    return f"{head}steps:\n{steps}"


def schedule(steps: str, collective: str = "all_gather", **head: str) -> Schedule:
    return load("t.yaml", text(steps, collective, **head))


def only(found: tuple[Diagnostic, ...]) -> Diagnostic:
    assert len(found) == 1, found
    return found[0]


def pointed_at(source: str, found: Diagnostic) -> str:
    assert found.primary is not None
    span = found.primary.span
    return source.split("\n")[span.line - 1][span.column - 1 : span.end_column - 1]


def ordered(counterexample: Mapping[str, int] | None) -> str:
    assert counterexample is not None
    return ", ".join(f"{k} = {v}" for k, v in counterexample.items())


def test_the_example_of_the_manual() -> None:
    source = """\
schedule: all_gather
collective: all_gather
topology: {ring: N}
params: {N: 4}
chunks: [N]
steps:
  - for: s in 0 .. N - 2
    do:
      # each rank sends on
      - send: chunk[(r - s - 1) % N]
        to: r + 1
"""
    path = "schedules/all_gather.yaml"
    found = only(smallest_failing(load(path, source)))
    assert (
        render(found, {path: source})
        == """\
error[RS301]: chunk is sent before it is held
  --> schedules/all_gather.yaml:10:15
   |
10 |       - send: chunk[(r - s - 1) % N]
   |               ^^^^^^^^^^^^^^^^^^^^^^ rank 0 does not hold chunk 1 at s = 0
   |
   = counterexample: N = 2, s = 0, r = 0
   = held by rank 0 at that point: chunk 0
   = help: a ring all-gather forwards the chunk that arrived last: chunk[(r - s) % N]
   = more: ringsched explain RS301""".replace("  -->", "   -->", 1)
    )


# steps, collective and the like; code, counterexample, what the carets are under, their label, help
CASES: dict[str, tuple[str, dict[str, str], str, str, str, str, str]] = {
    "division": (
        "  - {send: 'chunk[r // (N - 4)]', to: r + 1}\n", {},
        "RS204", "N = 4, r = 0", "N - 4", "at N = 4, r = 0",
        "guard the transfer with `when:`, or choose parameters for which the divisor is not 0",
    ),
    "division behind a loop": (
        GATHER + "  - {for: t in 2 .. 3, do: [{send: 'chunk[N % (t - 3)]', to: r + 1, when: r > 0}]}\n", {},
        "RS204", "N = 2, t = 3, r = 1", "t - 3", "at N = 2, t = 3, r = 1",
        "guard the transfer with `when:`, or choose parameters for which the divisor is not 0",
    ),
    "shift": (
        "  - {send: 'chunk[1 << (r - 1)]', to: r + 1}\n", {},
        "RS205", "N = 2, r = 0", "r - 1", "at N = 2, r = 0",
        "indices are small numbers; check the shift or the product",
    ),
    "index below": (
        "  - {send: 'chunk[r]', to: r + 1}\n  - {send: 'chunk[r - 1]', to: r + 1}\n", {},
        "RS206", "N = 2, r = 0", "r - 1", "is -1 for rank 0; the indices are 0 … 1",
        "wrap it around: chunk[(r - 1) % N]",
    ),
    "index above": (
        "  - {send: 'chunk[r, 2]', to: r + 1}\n", {"chunks": "[N, 2]"},
        "RS206", "N = 2, r = 0", "2", "is 2 for rank 0; the indices are 0 … 1", "name one of 0 … 1",
    ),
    "slice": (
        "  - {send: 'chunk[r, 0:3]', to: r + 1}\n", {"chunks": "[N, 2]"},
        "RS206", "N = 2, r = 0", "0:3", "is 0:3 for rank 0; the dimension has 2",
        "a slice START:STOP holds START … STOP - 1, within 0 … 1",
    ),
    "empty slice": (
        "  - {send: 'chunk[r, 1:1]', to: r + 1}\n", {"chunks": "[N, 2]"},
        "RS206", "N = 2, r = 0", "1:1", "is 1:1 for rank 0; the dimension has 2",
        "guard the transfer with `when:` where there is nothing to send",
    ),
    "no neighbour": (
        "  - {send: 'chunk[r]', to: r + 2}\n", {},
        "RS207", "N = 4, r = 0", "r + 2", "rank 0 sends to rank 2: no link joins them",
        "send to a neighbour, r + 1 or r - 1, and go further in several steps; "
            "or say `routed: true` in `topology:` where the platform takes data further",
    ),
    "no link": (
        "  - {send: chunk, from: 0, to: 3}\n", {"collective": "broadcast", **LINKS},
        "RS207", "r = 0", "3", "rank 0 sends to rank 3: no link joins them",
        "send to a neighbour, from rank 0 1, and go further in several steps; "
            "or say `routed: true` in `topology:` where the platform takes data further",
    ),
    "end of a line": (
        "  - {send: 'chunk[r]', to: r + 1}\n", {"topology": "line: N"},
        "RS208", "N = 2, r = 1", "r + 1", "rank 1 sends to 2; there are ranks 0 … 1",
        "guard the transfer: when: r + 1 < N",
    ),
    "edge of a mesh": (
        "  - {send: 'chunk[x, y]', to: [x, y - 1]}\n", MESH,
        "RS208", "X = 2, Y = 2, x = 0, y = 0", "[x, y - 1]", "rank (0, 0) sends to (0, -1); the mesh is 2 by 2",
        "guard the transfer: when: y - 1 >= 0",
    ),
    "flat number on a torus": (
        "  - {send: 'chunk[x, y]', to: r + 3}\n", {**MESH, "topology": "torus: [X, Y]"},
        "RS208", "X = 2, Y = 3, x = 1, y = 0", "r + 3", "rank (1, 0) sends to 6; there are ranks 0 … 5",
        "name one of the ranks 0 … 5",
    ),
    "pinned outside": (
        "  - {send: 'chunk[0]', from: N, to: 0}\n", {"topology": "line: N"},
        "RS208", "N = 2", "N", "this is to be sent by 2; there are ranks 0 … 1", "name one of the ranks 0 … 1",
    ),
    "to itself": (
        "  - {send: 'chunk[r]', to: r}\n", {},
        "RS209", "N = 2, r = 0", "r", "rank 0 sends to itself", "send to a neighbour: r + 1 or r - 1",
    ),
    "one rank": (
        "  - {send: 'chunk[r]', to: r + 1}\n", {"collective": "{permute: (r + 1) % N}", "params": "{N: 1}"},
        "RS209", "N = 1, r = 0", "r + 1", "rank 0 sends to itself",
        "with one rank there is nothing to send; guard the transfer: when: N > 1",
    ),
    "not held": (
        "  - {send: chunk, from: 0, to: 1}\n  - {send: chunk, from: 2, to: 3}\n", {"collective": "broadcast", **LINKS},
        "RS301", "r = 2", "chunk", "rank 2 does not hold chunk 0 in step 2",
        "send a chunk that the rank holds from the start, or one that an earlier step has brought",
    ),
    "nothing to add to": (
        GATHER.replace("r + 1", "r + 1, op: reduce"), {},
        "RS301", "N = 2, s = 0, r = 0", "chunk[(r - s) % N]", "rank 1 holds nothing of chunk 0 to add to at s = 0",
        "write op: copy; so changed, it is right for N = 2, 3, 4",
    ),
    "loop too short": (
        GATHER.replace("N - 2", "N - 3"), {},
        "RS302", "N = 2, r = 0", "steps", "chunk 1 never arrives at rank 0",
        "write for: s in 0 .. N - 2; so changed, it is right for N = 2, 3, 4",
    ),
    "terms missing": (
        SCATTER.replace("N - 2", "N - 3"), {"collective": "reduce_scatter", "params": "{N: 3}"},
        "RS302", "N = 2, r = 0", "steps", "rank 0 ends with chunk 0 without the term of rank 1",
        "write for: s in 0 .. N - 2; so changed, it is right for N = 2, 3, 4",
    ),
    "counted twice": (
        SCATTER + GATHER.replace("r + 1", "r + 1, op: reduce"), {"collective": "all_reduce"},
        "RS303", "N = 2, s = 0, r = 0", "chunk[(r - s) % N]",
        "adds the term of rank 1 a second time to chunk 0 at s = 0",
        "write op: copy; so changed, it is right for N = 2, 3, 4",
    ),
    "lost": (
        SCATTER.replace("reduce", "copy"), {"collective": "reduce_scatter"},
        "RS304", "N = 2, s = 0, r = 1", "chunk[(r - s - 1) % N]",
        "overwrites chunk 0 at rank 0 at s = 0, with the term of rank 0",
        "write op: reduce; so changed, it is right for N = 2, 3, 4",
    ),
    "written twice": (
        "  - {step: [{send: 'chunk[0]', to: r + 1}, {send: 'chunk[0]', to: r - 1}]}\n", {"collective": "all_reduce"},
        "RS305", "N = 2, r = 0", "chunk[0]", "writes chunk 0 at rank 1, and so does another transfer",
        "the order of transfers in one step is open: put them into two steps, or send different chunks",
    ),
    "wrong owner": (
        SCATTER.replace("r - s - 1", "r - s"), {"collective": "reduce_scatter"},
        "RS306", "N = 2, s = 0, r = 0", "chunk[(r - s) % N]",
        "the complete chunk 0 ends at rank 1; its owner is rank 0",
        "write chunk[(r - s - 1) % N]; so changed, it is right for N = 2, 3, 4",
    ),
    "wrong direction": (
        "  - {send: 'chunk[r]', to: r - 1}\n", {"collective": "{permute: (r + 1) % N}"},
        "RS306", "N = 3, r = 2", "chunk[r]", "the complete chunk 2 ends at rank 1; its owner is rank 0",
        "write to: r + 1; so changed, it is right for N = 3, 4, 5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_finding(name: str) -> None:
    steps, head, code, counterexample, carets, label, help = CASES[name]
    found = only(smallest_failing(schedule(steps, **head)))
    assert (found.code, ordered(found.counterexample)) == (code, counterexample)
    assert found.primary is not None
    assert (pointed_at(text(steps, **head), found), found.primary.text) == (carets, label)
    assert found.help == help


def test_notes_say_what_is_where() -> None:
    found = only(smallest_failing(schedule(SCATTER + GATHER.replace("r + 1", "r + 1, op: reduce"), "all_reduce")))
    assert found.notes == ("rank 1 has in chunk 0 already: rank 1", "rank 0 adds: ranks 0, 1")
    found = only(smallest_failing(schedule("  - {send: 'chunk[r]', to: r + 2}\n")))
    assert found.notes == ("neighbours of rank 0: 1, 3",)
    both = "  - {step: [{send: 'chunk[0]', to: r + 1}, {send: 'chunk[0]', to: r - 1}]}\n"
    found = only(verify_dataflow(flatten(schedule(both, "all_reduce"))))
    assert found.notes == ("the step writes chunk 0 at rank 3 from ranks 2 and 0",)
    assert [label.text for label in found.secondary] == ["the other write"]


def test_a_copy_of_what_is_there_twice_is_a_write_too_many_as_well() -> None:
    twice = "  - {step: [{send: 'chunk[r]', to: r + 1}, {send: 'chunk[r]', to: r + 1}]}\n"
    found = only(smallest_failing(schedule(twice)))
    assert (found.code, found.notes) == ("RS305", ("the step writes chunk 0 at rank 1 from rank 0, twice",))


def test_a_copy_beside_a_reduce_is_written_twice() -> None:
    both = "  - {step: [{send: 'chunk[0]', to: r + 1, op: reduce}, {send: 'chunk[0]', to: r - 1}]}\n"
    assert only(smallest_failing(schedule(both, "all_reduce"))).code == "RS305"
    assert (
        only(smallest_failing(schedule(both.replace(", op: reduce}, {", "}, {op: reduce, "), "all_reduce"))).code
        == "RS305"
    )


def test_two_reduces_into_one_chunk_are_fine_unless_they_bring_the_same() -> None:
    both = "  - {step: [{send: chunk, to: r + 1, op: reduce}, {send: chunk, to: r - 1, op: reduce}]}\n"
    assert verify_dataflow(flatten(set_parameters(schedule(both, "all_reduce", chunks="[1]"), {"N": 3}))) == ()
    found = only(verify_dataflow(flatten(set_parameters(schedule(both, "all_reduce", chunks="[1]"), {"N": 2}))))
    assert (found.code, ordered(found.counterexample)) == ("RS303", "N = 2, r = 0")


def test_an_exchange_reads_before_it_writes() -> None:
    swap = "  - {step: [{send: 'chunk[r]', to: 'r ^ 1'}]}\n"
    assert verify_dataflow(flatten(schedule(swap, "{permute: r ^ 1}"))) == ()


def test_one_rank_with_empty_loops_is_the_identity() -> None:
    for steps, collective in ((GATHER, "all_gather"), (SCATTER, "reduce_scatter"), (SCATTER + GATHER, "all_reduce")):
        assert verify_dataflow(flatten(schedule(steps, collective, params="{N: 1}"))) == ()


def test_guards_are_read_before_indices_and_stop_at_the_first_that_is_false() -> None:
    guarded = GATHER + "  - {send: 'chunk[r // (N - N)]', to: r + 7, when: [N < 0, 1 // (N - N) > 0]}\n"
    assert verify_dataflow(flatten(schedule(guarded))) == ()
    pinned = GATHER + "  - {send: 'chunk[0]', from: N // (N - N), to: 1, when: N < 0}\n"
    assert verify_dataflow(flatten(schedule(pinned))) == ()


def test_several_wrong_statements_are_several_findings_and_no_more() -> None:
    wrong = (
        "  - {send: 'chunk[r]', to: r + 2}\n  - {send: 'chunk[r - 1]', to: r + 1}\n  - {send: 'chunk[r]', to: r + 1}\n"
    )
    assert [d.code for d in verify_dataflow(flatten(schedule(wrong)))] == ["RS207", "RS206"]
    late = "  - {send: 'chunk[(r + 1) % N]', to: r + 1}\n  - {send: 'chunk[(r + 2) % N]', to: r + 1}\n"
    assert [d.code for d in verify_dataflow(flatten(schedule(late)))] == ["RS301"]
    many = "".join(f"  - {{send: 'chunk[0]', from: 0, to: {n}}}\n" for n in range(2, 20))
    found = verify_dataflow(flatten(schedule(many, params="{N: 30}")))
    assert len(found) == 10
    assert found[-1].notes[-1] == "and 8 more statements at fault"


def test_the_size_given_is_shown_where_smaller_ones_are_right() -> None:
    steps = GATHER + "  - {send: 'chunk[r]', to: r + 2, when: N == 7}\n"
    found = only(smallest_failing(set_parameters(schedule(steps), {"N": 7})))
    assert ordered(found.counterexample) == "N = 7, r = 0"
    assert smallest_failing(schedule(steps)) == ()


def test_findings_of_flatten_come_out_as_well() -> None:
    assert only(smallest_failing(schedule(GATHER, params="{N: 0}"))).code == "RS210"
    assert only(smallest_failing(schedule(GATHER, params="{N: 1000000000}"))).code == "RS210"


def test_what_is_too_large_is_undecided() -> None:
    steps = "  - {send: 'chunk[0]', from: 0, to: 1}\n"
    found = only(
        smallest_failing(schedule(steps, "broadcast", topology="line: N", params="{N: 60000}", chunks="[1000]"))
    )
    assert found.code == "RS701"


@pytest.mark.parametrize(
    ("steps", "collective", "chunks", "expected"),
    [
        (GATHER, "all_gather", "[N]", True),
        (SCATTER + GATHER, "all_reduce", "[N]", True),
        ("  - {send: 'chunk[r]', to: r + 1}\n", "{permute: (r + 1) % N}", "[N]", True),
        ("  - {send: 'chunk[r]', to: (r - 1) % N}\n", "all_gather", "[N]", True),
        ("  - {send: 'chunk[r, 0:1]', to: r + 1}\n", "all_gather", "[N, 2]", True),
        ("  - {send: 'chunk[0]', to: r + 1, op: reduce}\n", "all_reduce", "[2]", True),
        ("  - {send: 'chunk[r]', to: r + 1}\n", "{permute: r ^ 1}", "[N]", False),  # no translation
        ("  - {send: 'chunk[r]', to: 'r ^ 1'}\n", "all_gather", "[N]", True),  # up to an exclusive or
        ("  - {send: 'chunk[(r + 1) % N]', to: 'r ^ 1'}\n", "all_gather", "[N]", False),
        ("  - {send: 'chunk[r]', to: r + 1, when: r > 0}\n", "all_gather", "[N]", False),
        ("  - {send: 'chunk[0]', to: r + 1}\n", "all_gather", "[N]", False),  # chunk 0 is another one for each rank
        ("  - {send: 'chunk[(N - r) % N]', to: r + 1}\n", "all_reduce", "[N]", False),
        ("  - {send: 'chunk[(2 * r) % N]', to: r + 1}\n", "all_reduce", "[N]", False),
        ("  - {send: 'chunk[r + 1]', to: r + 1}\n", "all_reduce", "[N]", False),  # out of range for the last rank
        ("  - {send: 'chunk[r % 2]', to: r + 1}\n", "all_reduce", "[2]", False),
        ("  - {step: [{send: 'chunk[r]', to: r + 1}, {send: 'chunk[0]', to: r + 1}]}\n", "all_reduce", "[N]", False),
        ("  - {send: 'chunk[0:r + 1]', to: r + 1}\n", "all_reduce", "[N]", False),
        ("  - {send: chunk, to: r + 1, from: 0}\n", "all_reduce", "[N]", False),
        ("  - {send: chunk, to: r + 1}\n", "broadcast", "[N]", False),
    ],
)
def test_symmetry_is_read_off_the_expressions(steps: str, collective: str, chunks: str, expected: bool) -> None:
    assert is_symmetric(flatten(schedule(steps, collective, chunks=chunks))) is expected


def test_a_mesh_and_flat_numbers_are_not_symmetric() -> None:
    steps = "  - {send: 'chunk[x, y]', to: [x + 1, y]}\n"
    torus = {**MESH, "topology": "torus: [X, Y]"}
    assert is_symmetric(flatten(schedule(steps, **torus)))
    assert is_symmetric(flatten(schedule(steps.replace("x + 1, y", "x, (y - 1) % Y"), **torus)))
    assert not is_symmetric(flatten(schedule(steps, **MESH)))
    assert not is_symmetric(flatten(schedule(steps.replace("[x + 1, y]", "r + 1"), **torus)))
    assert not is_symmetric(flatten(schedule(steps.replace("[x + 1, y]", "[y + 1, x]"), **torus)))
    flat_chunks = {**torus, "chunks": "[X * Y]"}
    assert not is_symmetric(flatten(schedule("  - {send: 'chunk[r]', to: [x + 1, y]}\n", **flat_chunks)))
