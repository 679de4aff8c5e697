"""Schedules of every shape are lowered to Programs that pass the hazard and value checks, on every rank."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from shipped import CHAINS, DOUBLING, RINGS, SINGLE, sized

from ringsched.lower.lower import Lowered, lower
from ringsched.pipeline import Proven, open_schedule, prove, prove_transpose
from ringsched.program.expand import expand
from ringsched.program.printer import print_program
from ringsched.program.program import Instruction, Loop, Program, Send, Signal, Wait, WaitDma, When
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load
from ringsched.schedule.schedule import Lowering, Schedule
from ringsched.verify.dataflow import is_symmetric
from ringsched.verify.hazards import check_hazards
from ringsched.verify.values import check_values


def schedule(steps: str, collective: str, topology: str, chunks: str, params: str = "{}") -> str:
    head = f"schedule: t\ncollective: {collective}\ntopology: {{{topology}}}\nparams: {params}\nchunks: {chunks}\n"
    return f"{head}steps:\n{steps}"


LINE = "links: [[0, 1], [1, 2], [2, 3]]"
STAR = "links: [[0, 1], [0, 2], [0, 3]]"
IRREGULAR = {
    "pinned, broadcast down a line of links": schedule(
        """
  - {send: chunk, from: 0, to: 1}
  - {send: chunk, from: 1, to: 2}
  - {send: chunk, from: 2, to: 3}
""",
        "{broadcast: 0}",
        LINE,
        "[2]",
    ),
    "pinned, a tree over a star": schedule(
        """
  - step:
      - {send: chunk, from: 1, to: 0, op: reduce}
      - {send: chunk, from: 2, to: 0, op: reduce}
      - {send: chunk, from: 3, to: 0, op: reduce}
  - step:
      - {send: chunk, from: 0, to: 1}
      - {send: chunk, from: 0, to: 2}
      - {send: chunk, from: 0, to: 3}
""",
        "all_reduce",
        STAR,
        "[2]",
    ),
    "pinned, all-gather with chunks in parts": schedule(
        """
  - step:
      - {send: "chunk[0]", from: 0, to: 1}
      - {send: "chunk[1]", from: 1, to: 0}
      - {send: "chunk[2, 0]", from: 2, to: 1}
      - {send: "chunk[2, 1]", from: 2, to: 1}
  - step:
      - {send: "chunk[0:2]", from: 1, to: 2}
      - {send: "chunk[2]", from: 1, to: 0}
""",
        "all_gather",
        "links: [[0, 1], [1, 2]]",
        "[3, 2]",
    ),
    "pinned, in a loop": schedule(
        "  - {for: s in 0 .. 3, do: [{send: 'chunk[s]', from: s % 2, to: 1 - s % 2}]}\n",
        "all_gather",
        "links: [[0, 1]]",
        "[2, 2]",
    ).replace("chunk[s]", "chunk[s % 2, s // 2]"),
    "mesh, rows then columns": schedule(
        """
  - step:
      - {send: "chunk[x, y]", to: [x, y + 1], when: y < 2}
      - {send: "chunk[x, y]", to: [x, y - 1], when: y > 0}
  - step:
      - {send: "chunk[x, 0]", to: [x, y + 1], when: y == 1}
      - {send: "chunk[x, 2]", to: [x, y - 1], when: y == 1}
  - {send: "chunk[x, 0:3]", to: [1 - x, y]}
""",
        "all_gather",
        "mesh: [X, Y]",
        "[X, Y]",
        "{X: 2, Y: 3}",
    ),
    "torus 2 × 2, one coordinate after the other": schedule(
        """
  - {send: "chunk[x, y]", to: [x + 1, y]}
  - {send: "chunk[0:2, y]", to: [x, y + 1]}
""",
        "all_gather",
        "torus: [2, 2]",
        "[2, 2]",
    ),
    "torus 3 × 3, one coordinate after the other": schedule(
        """
  - {for: s in 0 .. 1, do: [{send: "chunk[(x - s) % 3, y]", to: [x + 1, y]}]}
  - {for: t in 0 .. 1, do: [{send: "chunk[0:3, (y - t) % 3]", to: [x, y + 1]}]}
""",
        "all_gather",
        "torus: [3, 3]",
        "[3, 3]",
    ),
    "torus 3 × 3, reduced": schedule(
        """
  - {for: t in 0 .. 1, do: [{send: "chunk[0:3, (y - t - 1) % 3]", to: [x, y + 1], op: reduce}]}
  - {for: s in 0 .. 1, do: [{send: "chunk[(x - s - 1) % 3, y]", to: [x + 1, y], op: reduce}]}
""",
        "reduce_scatter",
        "torus: [3, 3]",
        "[3, 3]",
    ),
    "mesh 2 × 3, reduced to a corner": schedule(
        """
  - {send: chunk, to: [x - 1, y], op: reduce, when: x == 1}
  - {send: chunk, to: [x, y - 1], op: reduce, when: [x == 0, y == 2]}
  - {send: chunk, to: [x, y - 1], op: reduce, when: [x == 0, y == 1]}
""",
        "{reduce: 0}",
        "mesh: [2, 3]",
        "[2]",
    ),
    "recursive doubling: the peer depends on the loop variable": schedule(
        "  - {for: s in 0 .. 1, do: [{send: chunk, to: r ^ (1 << s), op: reduce}]}\n",
        "all_reduce",
        "links: [[0, 1], [2, 3], [0, 2], [1, 3]]",
        "[1]",
    ),
    "there and back: the direction depends on the loop variable": schedule(
        "  - {for: s in 0 .. 1, do: [{send: 'chunk[r]', to: r + 1 - 2 * s}]}\n",
        "all_gather",
        "ring: N",
        "[N]",
        "{N: 3}",
    ),
    "each, with a guard on its value": schedule(
        """
  - step:
      - {send: "chunk[r, d]", each: d in 0 .. 4, to: r + 1, when: d != 2}
      - {send: "chunk[r, d]", each: d in 0 .. 4, to: r - 1, when: d == 2}
  - step:
      - {send: "chunk[r, d]", each: d in 0 .. 4, to: r - 1, when: d != 2}
      - {send: "chunk[r, d]", each: d in 0 .. 4, to: r + 1, when: d == 2}
""",
        "all_gather",
        "ring: 3",
        "[3, 5]",
    ),
    "each, not the same at all ranks": schedule(
        """
  - step: [{send: "chunk[0, d]", each: d in 0 .. 3, to: r + 1, when: [r == 0, d != 2]}]
  - step: [{send: "chunk[0, d]", each: d in 0 .. 3, to: r + 1, when: [r == 0, d == 2]}]
  - step: [{send: "chunk[1, d]", each: d in 0 .. 3, to: r - 1, when: r == 1}]
""",
        "all_gather",
        "line: 2",
        "[2, 4]",
    ),
    "each, guarded by value and rank together": schedule(
        """
  - step: [{send: "chunk[r, d]", each: d in 0 .. 2, to: 1 - r, when: d >= r}]
  - step: [{send: "chunk[r, d]", each: d in 0 .. 2, to: 1 - r, when: d < r}]
""",
        "all_gather",
        "line: 2",
        "[2, 3]",
    ),
    "slices that are not whole": schedule(
        """
  - {send: "chunk[r, 0:2]", to: 1 - r}
  - {send: "chunk[r, 2:5]", to: 1 - r}
""",
        "all_gather",
        "line: 2",
        "[2, 5]",
    ),
    "slices of an inner dimension": schedule(
        """
  - {send: "chunk[r, 0:2, 1:3]", to: 1 - r}
  - {send: "chunk[r, 0:2, 0]", to: 1 - r}
""",
        "all_gather",
        "line: 2",
        "[2, 2, 3]",
    ),
    "two reductions into one chunk in one step": schedule(
        """
  - step:
      - {send: chunk, to: r + 1, op: reduce, when: r == 0}
      - {send: chunk, to: r - 1, op: reduce, when: r == 2}
""",
        "{reduce: 1}",
        "line: 3",
        "[2]",
    ),
    "three reductions into one chunk in one step, then on": schedule(
        """
  - step:
      - {send: chunk, from: 1, to: 0, op: reduce}
      - {send: chunk, from: 2, to: 0, op: reduce}
      - {send: chunk, from: 3, to: 0, op: reduce}
  - {send: chunk, from: 0, to: 4, op: reduce}
""",
        "{reduce: 4}",
        "links: [[0, 1], [0, 2], [0, 3], [0, 4]]",
        "[1]",
    ),
    "broadcast from rank 2": schedule(
        """
  - step:
      - {send: chunk, to: r + 1, when: r == 2}
      - {send: chunk, to: r - 1, when: r == 2}
  - {send: chunk, to: r - 1, when: r == 1}
""",
        "{broadcast: 2}",
        "line: 4",
        "[2]",
    ),
    "gather along a line": schedule(
        """
  - {for: s in 0 .. 2, do: [{send: "chunk[r + s]", to: r - 1, when: [r > 0, r + s < 4]}]}
""",
        "{gather: 0}",
        "line: 4",
        "[4]",
    ),
    "scatter along a line": schedule(
        """
  - {for: s in 0 .. 2, do: [{send: "chunk[3 - s + r]", to: r + 1, when: [3 - s + r < 4, r < 3]}]}
""",
        "{scatter: 0}",
        "line: 4",
        "[4]",
    ),
    "a permutation over several hops": schedule(
        """
  - {send: "chunk[r]", to: r + 1}
  - {send: "chunk[(r - 1) % 5]", to: r + 1}
""",
        "{permute: (r + 2) % 5}",
        "ring: 5",
        "[5]",
    ),
    "a permutation in two halves": schedule(
        """
  - {send: "chunk[r]", to: r + 1, when: r % 2 == 0}
  - {send: "chunk[r]", to: r - 1, when: r % 2 == 1}
""",
        "{permute: r ^ 1}",
        "line: 4",
        "[4]",
    ),
    "nothing to do": schedule("  []\n", "all_gather", "ring: 1", "[1, 3]").replace("steps:\n  []", "steps: []"),
}


def full_check(lowered: Lowered, proven: Proven, calls: int = 3) -> None:
    """Every rank with a trace of its own."""
    expansion = expand(lowered.program, symmetric=False)
    report = check_hazards(expansion.execution, calls)
    assert report.ok, report
    assert not check_values(expansion, proven.flat.promise, proven.flat.schedule.compute)


def with_wishes(proven: Proven, **wishes: object) -> Lowered:
    lowering = replace(Lowering(), **wishes)  # type: ignore[arg-type]
    flat = replace(proven.flat, schedule=replace(proven.flat.schedule, lowering=lowering))
    return lower(flat, symmetric=proven.symmetric)


def instructions(body: tuple[Instruction, ...]) -> Iterator[Instruction]:
    for instruction in body:
        yield instruction
        if isinstance(instruction, Loop | When):
            yield from instructions(instruction.body)


def count(program: Program) -> Counter[str]:
    return Counter(type(i).__name__ for i in instructions(program.body))


@pytest.mark.parametrize("name", IRREGULAR)
def test_irregular(name: str) -> None:
    proven = prove(load("t.yaml", IRREGULAR[name]))
    full_check(proven.lowered, proven)
    full_check(with_wishes(proven, unroll=False), proven)
    full_check(with_wishes(proven, unroll=True), proven)
    backward = prove_transpose(proven)
    if backward is not None:
        full_check(backward.lowered, backward)


@pytest.mark.parametrize(("name", "parameters"), sized(SINGLE, (1, 2, 3, 6, 8, 11)))
def test_shipped(name: str, parameters: dict[str, int]) -> None:
    """Proven for one rank that stands for all, they pass with a trace of every rank, too."""
    proven = prove(open_schedule(name, parameters))
    full_check(proven.lowered, proven, calls=2)


NOT_ROLLED = ("exchange", "shift", *CHAINS, *DOUBLING, "all_gather_bruck", "all_to_all_bruck")
ROLLED = [name for name in RINGS if name not in NOT_ROLLED]


@pytest.mark.parametrize("size", [9, 10, 11, 12])
@pytest.mark.parametrize("name", ROLLED)
def test_rolled_is_unrolled(name: str, size: int) -> None:
    """Loops change how long the text is, not what is executed."""
    proven = prove(open_schedule(name, {"N": size}))
    for one in filter(None, (proven, prove_transpose(proven))):
        rolled, flat = with_wishes(one, unroll=False).program, with_wishes(one, unroll=True).program
        assert expand(rolled).execution == expand(flat).execution
        assert expand(rolled, symmetric=False).execution == expand(flat, symmetric=False).execution
        assert any(isinstance(i, Loop) for i in instructions(rolled.body)) or len(one.flat.steps) < 7
        assert not any(isinstance(i, Loop) for i in instructions(flat.body))


# An all-to-all is given less: it has as many transfers as the square of the ranks.
LARGE = [(name, 48 if name == "all_to_all" else 256) for name in ROLLED]


@pytest.mark.parametrize(("name", "size"), LARGE)
def test_size_does_not_grow(name: str, size: int) -> None:
    """From 9 steps on there are loops; short schedules are unrolled and may be longer."""
    small, medium, large = (
        sum(count(lowered_only(open_schedule(name, {"N": n}))).values()) for n in (16, size // 2, size)
    )
    assert small >= medium == large


def lowered_only(schedule: Schedule) -> Program:
    flat = flatten(schedule)
    return lower(flat, symmetric=is_symmetric(flat)).program


def test_slots_with_credits() -> None:
    """On a long one-way ring four slots are used round robin; each credit given is waited for."""
    proven = prove(open_schedule("reduce_scatter", {"N": 16}))
    program = proven.lowered.program
    assert program.buffer("slots").shape == (4,)
    assert program.semaphore("received").count == 4
    assert program.semaphore("credit").kind == "regular"
    trace = expand(program).execution.traces[0]
    given = [op for op in trace if getattr(op, "semaphore", ("",))[0] == "credit"]
    assert len(given) == 2 * (15 - 4)


def test_no_credits_on_a_two_way_ring() -> None:
    """What comes back from a receiver says that it has freed a slot; so the slots are few, and credits none."""
    proven = prove(open_schedule("reduce_scatter_bidirectional", {"N": 32}))
    program = proven.lowered.program
    assert {b.shape[0] for b in program.buffers if b.space == "scratch" and len(b.shape) == 2} == {4}
    assert all(s.kind != "regular" for s in program.semaphores)
    assert any("no credits" in d.reason and "4 receive slots" in d.choice for d in proven.lowered.decisions)


def test_no_credit_for_what_lands_in_its_final_place() -> None:
    proven = prove(open_schedule("all_to_all", {"N": 12}))
    trace = expand(proven.lowered.program).execution.traces[0]
    given = [op for op in trace if getattr(op, "semaphore", ("",))[0] == "credit"]
    assert len(given) == 2 * (10 - 4)  # of 11 steps the last needs no slot


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_a_pipeline_needs_as_many_resources_as_chunks(name: str) -> None:
    """Each rank receives in C steps in a row, however many ranks there are."""
    program = prove(open_schedule(name, {"N": 12, "C": 3})).lowered.program
    assert program.semaphore("received").count == 3
    assert all(b.shape == (3,) for b in program.buffers if b.space == "scratch")
    assert all(s.kind != "regular" for s in program.semaphores)


def test_wish_for_one_slot_is_kept() -> None:
    """The hazard check, not the lowering, says what is wrong with it."""
    proven = prove(open_schedule("reduce_scatter", {"N": 4}))
    program = with_wishes(proven, slots=1).program
    assert program.buffer("slots").shape == (1,)
    assert check_hazards(expand(program).execution, 2).races


@pytest.mark.parametrize("slots", [3, 4, 5, 8])
@pytest.mark.parametrize(
    ("name", "size"), [("reduce_scatter", 12), ("reduce_scatter_bidirectional", 16), ("all_to_all", 8)]
)
def test_wishes_that_work(name: str, size: int, slots: int) -> None:
    proven = prove(open_schedule(name, {"N": size}))
    lowered = with_wishes(proven, slots=slots)
    assert {b.shape[0] for b in lowered.program.buffers if b.space == "scratch"} <= {1, slots, 6, 7}
    full_check(lowered, proven, calls=2)


def test_barrier_signals_exactly_the_writers() -> None:
    shift = prove(open_schedule("shift", {"N": 5})).lowered.program
    assert "signal   barrier at (r - 1) % 5 by 1\n  wait     barrier for 1\n" in print_program(shift)
    both = prove(open_schedule("all_gather_bidirectional", {"N": 5})).lowered.program
    found = count(both)
    assert (found["Signal"], found["Wait"]) == (2, 1)
    assert "wait     barrier for 2\n" in print_program(both)


def test_wish_for_no_barrier_is_kept() -> None:
    proven = prove(open_schedule("shift", {"N": 4}))
    program = with_wishes(proven, barrier="none").program
    assert not any(isinstance(i, Signal | Wait) for i in instructions(program.body))
    assert check_hazards(expand(program).execution, 2).races


def test_one_rank_has_nothing_to_wait_for() -> None:
    program = prove(open_schedule("all_reduce", {"N": 1})).lowered.program
    assert print_program(program).endswith(
        "  semaphore  done  dma      1\n\n"
        "  copy     x → o                                        done: done\n"
        "  wait     done for o\n"
    )


def test_every_instruction_knows_its_line() -> None:
    program = prove(open_schedule("all_reduce", {"N": 4})).lowered.program
    sends = [i for i in instructions(program.body) if isinstance(i, Send)]
    assert {(i.origin.path.rsplit("/", 1)[-1], i.origin.line) for i in sends if i.origin is not None} == {
        ("reduce_scatter.yaml", 10),
        ("all_gather.yaml", 10),
    }
    waits = [i for i in instructions(program.body) if isinstance(i, WaitDma)]
    assert all(i.origin is not None for i in waits)
