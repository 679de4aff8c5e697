"""Equal steps become loops; what changes evenly becomes a function of the loop variable."""

from collections.abc import Callable

from ringsched.expr import Compare, Expr, Int, Var, show
from ringsched.lower.holes import SHORTEST, StepCode, roll
from ringsched.program.printer import print_program
from ringsched.program.program import Buffer, Instruction, Program, Region, SemaphoreRef, Send, When, Zero

BELOW = {"r": 9}


def step(*values: int, name: str = "", guard: int | None = None, label: str = "") -> StepCode:
    """Zeroes o[value] for each value, where a guard is given on that rank only."""
    code = StepCode(label=label)
    for value in values:
        zero: Instruction = Zero(target=Region(buffer="o", index=(code.hole(value, name),)))
        if guard is not None:
            condition = Compare(first=Var(name="r"), rest=(("==", code.hole(guard)),))
            zero = When(conditions=(condition,), body=(zero,))
        code.instructions.append(zero)
    return code


def text(steps: list[StepCode], *, loops: bool = True) -> str:
    body = roll(steps, loops=loops, below=BELOW)
    buffer = Buffer(name="o", space="output", shape=(99,))
    program = Program(name="t", coordinates=("r",), sides=(9,), buffers=(buffer,), semaphores=(), body=body)
    return print_program(program).split("\n\n", 1)[1]


def test_even_steps_become_a_loop() -> None:
    assert text([step(1, 7), step(3, 6), step(5, 5)]) == (
        "  for k in 0 .. 2\n    zero     o[2 * k + 1]\n    zero     o[7 - k]\n"
    )


def test_the_variable_of_the_schedule_names_the_loop() -> None:
    assert text([step(value, name="s") for value in (4, 5, 6)]) == "  for s in 4 .. 6\n    zero     o[s]\n"


def test_the_latest_moment_of_the_variable_counts() -> None:
    """A step works on what arrived in the one before, too: there it is s - 1."""
    assert text([step(value - 1, value, name="s") for value in (4, 5, 6)]) == (
        "  for s in 4 .. 6\n    zero     o[s - 1]\n    zero     o[s]\n"
    )


def test_short_runs_stay() -> None:
    steps = [step(value) for value in range(SHORTEST - 1)]
    assert "for" not in text(steps)
    assert "for" in text([*steps, step(SHORTEST - 1)])


def test_without_loops() -> None:
    assert text([step(1), step(2), step(3)], loops=False) == "  zero     o[1]\n  zero     o[2]\n  zero     o[3]\n"


def test_an_uneven_step_ends_a_loop() -> None:
    assert text([step(0), step(1), step(2), step(9)]) == "  for k in 0 .. 2\n    zero     o[k]\n  zero     o[9]\n"


def test_other_instructions_end_a_loop() -> None:
    found = text([step(0), step(1), step(2), step(3, 4), step(4, 5), step(5, 6)])
    assert found == (
        "  for k in 0 .. 2\n    zero     o[k]\n  for k in 0 .. 2\n    zero     o[k + 3]\n    zero     o[k + 4]\n"
    )


def test_other_names_end_a_loop() -> None:
    found = text([*(step(v, name="s") for v in (0, 1, 2)), *(step(v, name="t") for v in (3, 4, 5))])
    assert found == "  for s in 0 .. 2\n    zero     o[s]\n  for t in 3 .. 5\n    zero     o[t]\n"


def test_neighbouring_guards_become_one() -> None:
    assert text([step(1, 2, guard=3), step(4, guard=3)], loops=False) == (
        "  when r == 3\n    zero     o[1]\n    zero     o[2]\n    zero     o[4]\n"
    )


def test_a_guard_that_moves() -> None:
    assert text([step(7, guard=0), step(7, guard=1), step(7, guard=2)]) == (
        "  for k in 0 .. 2\n    when r == k\n      zero     o[7]\n"
    )


def sent(index: Callable[[StepCode], Expr], label: str) -> StepCode:
    code = StepCode(label=label)
    region = Region(buffer="o", index=(index(code),))
    reference = SemaphoreRef(semaphore="sent")
    code.instructions.append(
        When(
            conditions=(Compare(first=Var(name="r"), rest=(("==", Int(value=2)),)),),
            body=(
                Send(
                    source=region,
                    target=region,
                    peer=(Var(name="r"),),
                    sent=reference,
                    received=reference,
                    note="send chunk",
                ),
            ),
        )
    )
    return code


def test_a_guard_that_fixes_the_rank_is_used_inside() -> None:
    (when,) = roll([sent(lambda code: Var(name="r"), "")], loops=False, below=BELOW)
    assert isinstance(when, When)
    (send,) = when.body
    assert isinstance(send, Send)
    assert [show(e) for e in (*send.source.index, *send.peer)] == ["2", "2"]


def test_labels_tell_the_step_of_an_unrolled_send() -> None:
    (when,) = roll([sent(lambda code: code.hole(5, "s"), "s = 5")], loops=False, below=BELOW)
    assert isinstance(when, When)
    assert [i.note for i in when.body if isinstance(i, Send)] == ["send chunk; s = 5"]


def test_nothing() -> None:
    assert roll([], loops=True, below=BELOW) == ()
    assert roll([StepCode(), StepCode()], loops=True, below=BELOW) == ()
