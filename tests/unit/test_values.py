"""What a Program computes: every way to get it wrong is noticed, and the shipped Programs are right."""

from dataclasses import replace

import pytest
from shipped import SINGLE, settings, sized

from ringsched.expr import Int, Var, binary
from ringsched.pipeline import Proven, open_schedule, prove, prove_transpose
from ringsched.program.expand import expand
from ringsched.program.program import Add, Copy, Instruction, Program, Region, Send, When, Zero
from ringsched.schedule.schedule import CollectiveKind
from ringsched.verify.values import (
    Meaningless,
    NotComparable,
    Term,
    WrongValue,
    ZeroValue,
    check_values,
)

WAYS = pytest.mark.parametrize("symmetric", [True, False], ids=["one rank for all", "every rank"])


def lowered(name: str, size: int) -> Proven:
    return prove(open_schedule(name, settings(name, size)))


def check(proven: Proven, body: tuple[Instruction, ...] | None, *, symmetric: bool) -> tuple[WrongValue, ...]:
    """The values of the proven Program, or of another body for it."""
    program = proven.lowered.program
    changed = program if body is None else replace(program, body=body)
    return check_values(expand(changed, symmetric=symmetric), proven.flat.promise, proven.flat.schedule.compute)


def positions(program: Program, kind: type[Instruction]) -> list[int]:
    return [i for i, instruction in enumerate(program.body) if isinstance(instruction, kind)]


def changed(proven: Proven, position: int, **fields: object) -> tuple[Instruction, ...]:
    body = list(proven.lowered.program.body)
    body[position] = replace(body[position], **fields)  # type: ignore[arg-type]
    return tuple(body)


def shifted(region: Region, size: int) -> Region:
    return Region(buffer=region.buffer, index=(binary("%", binary("+", region.index[0], 1), size), *region.index[1:]))


@pytest.mark.parametrize(("name", "parameters"), sized(SINGLE, (1, 2, 3, 4, 5, 12)))
def test_shipped_programs(name: str, parameters: dict[str, int]) -> None:
    proven = prove(open_schedule(name, parameters))
    for one in filter(None, (proven, prove_transpose(proven))):
        assert not check(one, None, symmetric=False)
        if one.symmetric and one.flat.promise.kind not in ("broadcast", "reduce"):
            assert not check(one, None, symmetric=True)


@WAYS
def test_wrong_chunk(symmetric: bool) -> None:
    """The last send takes another chunk: counts, sizes and places are right, what lies there is not."""
    proven = lowered("reduce_scatter", 4)
    add = positions(proven.lowered.program, Add)[-1]
    instruction = proven.lowered.program.body[add]
    assert isinstance(instruction, Add)
    wrong = check(proven, changed(proven, add, right=shifted(instruction.right, 4)), symmetric=symmetric)
    assert len(wrong) == (1 if symmetric else 4)
    assert wrong[0].rank == 0
    assert wrong[0].chunk == (0,)
    assert wrong[0].found == Meaningless("a sum of chunks (0,) and (1,)")
    assert wrong[0].wanted == 0b1111


@WAYS
def test_right_chunk_of_another_rank(symmetric: bool) -> None:
    """A shift by one more has data of everybody, but not the promised one."""
    proven = lowered("shift", 4)
    send = positions(proven.lowered.program, Send)[0]
    peer = (binary("%", binary("+", Var(name="r"), 2), 4),)
    wrong = check(proven, changed(proven, send, peer=peer), symmetric=symmetric)
    assert len(wrong) == (1 if symmetric else 4)
    assert wrong[0].chunk == (3,)
    assert wrong[0].found == Term((2,), 1 << 2)


@WAYS
def test_term_counted_twice(symmetric: bool) -> None:
    proven = lowered("reduce_scatter", 3)
    body = list(proven.lowered.program.body)
    first = positions(proven.lowered.program, Add)[0]
    wrong = check(proven, (*body[:first], body[first], *body[first:]), symmetric=symmetric)
    assert len(wrong) == (1 if symmetric else 3)
    assert isinstance(wrong[0].found, Meaningless)
    assert wrong[0].found.reason.endswith("counted twice")


@WAYS
def test_term_lost(symmetric: bool) -> None:
    proven = lowered("reduce_scatter", 3)
    body = list(proven.lowered.program.body)
    del body[positions(proven.lowered.program, Add)[0]]
    wrong = check(proven, tuple(body), symmetric=symmetric)
    assert wrong[0].found == Term((0,), 0b011)  # chunk 0 starts at rank 1 and passes rank 2, who adds nothing


@WAYS
def test_overwritten_in_place_of_added(symmetric: bool) -> None:
    """The last arrival is copied into the result; the rank's own term is missing then."""
    proven = lowered("reduce_scatter", 3)
    program = proven.lowered.program
    add = positions(program, Add)[-1]
    instruction = program.body[add]
    send = program.body[positions(program, Send)[-1]]
    assert isinstance(instruction, Add) and isinstance(send, Send)
    copy = Copy(source=instruction.left, target=instruction.target, done=send.sent)
    body = (*program.body[:add], copy, *program.body[add + 1 :])
    wrong = check(proven, body, symmetric=symmetric)
    assert wrong[0].found == Term((0,), 0b110)
    assert wrong[0].wanted == 0b111


@WAYS
def test_never_written(symmetric: bool) -> None:
    proven = lowered("all_gather", 4)
    body = list(proven.lowered.program.body)
    del body[positions(proven.lowered.program, Copy)[0]]
    wrong = check(proven, tuple(body), symmetric=symmetric)
    assert {w.found for w in wrong} == {Meaningless("memory that was never written")}
    assert (0, (0,)) in {(w.rank, w.chunk) for w in wrong}


@WAYS
def test_memory_of_the_kernel_is_delivered(symmetric: bool) -> None:
    """What a slot held before the kernel is sent on as if it were a sum."""
    proven = lowered("reduce_scatter", 4)
    program = proven.lowered.program
    send = positions(program, Send)[0]
    wrong = check(
        proven, changed(proven, send, source=Region(buffer="slots", index=(Int(value=2),))), symmetric=symmetric
    )
    assert {w.found for w in wrong} == {Meaningless("memory that was never written")}


@WAYS
def test_a_sum_with_zero(symmetric: bool) -> None:
    """Zero is no chunk: a kernel that relies on it is not one of ours."""
    proven = lowered("reduce_scatter", 2)
    program = proven.lowered.program
    add = positions(program, Add)[0]
    instruction = program.body[add]
    assert isinstance(instruction, Add)
    body = (*program.body[:add], Zero(target=instruction.left), *program.body[add:])
    assert check(proven, body, symmetric=symmetric)[0].found == Meaningless("a sum with zero")


@WAYS
def test_a_block_of_another_size(symmetric: bool) -> None:
    """A send or a sum of more than fits is not cut to size."""
    proven = lowered("reduce_scatter", 3)
    program = proven.lowered.program
    reason = {Meaningless("a block of another size")}
    send = positions(program, Send)[0]
    wrong = check(proven, changed(proven, send, source=Region(buffer="x")), symmetric=symmetric)
    assert {w.found for w in wrong} == reason
    add = positions(program, Add)[-1]
    wrong = check(proven, changed(proven, add, right=Region(buffer="x")), symmetric=symmetric)
    assert {w.found for w in wrong} == reason


def test_result_of_other_ranks_is_zero() -> None:
    """Only the root of a reduction has a sum; what the others return is written, too."""
    proven = lowered("reduce", 3)
    body = proven.lowered.program.body
    zero = next(i for i, x in enumerate(body) if isinstance(x, When) and any(isinstance(y, Zero) for y in x.body))
    wrong = check(proven, (*body[:zero], *body[zero + 1 :]), symmetric=False)
    assert {w.rank for w in wrong} == {1, 2}
    assert {w.wanted for w in wrong} == {0}
    assert len(wrong) == 2 * 4
    everywhere = check(proven, (*body, Zero(target=Region(buffer="o"))), symmetric=False)
    assert {(w.rank, w.found) for w in everywhere} == {(0, ZeroValue())}


@pytest.mark.parametrize("kind", ["reduce", "broadcast"])
def test_rooted_collectives_are_not_symmetric(kind: CollectiveKind) -> None:
    """The root is one rank: no rank stands for all, even where all do the same."""
    proven = lowered("all_reduce", 3)
    promise = replace(proven.flat.promise, kind=kind)
    with pytest.raises(NotComparable):
        check_values(expand(proven.lowered.program, symmetric=True), promise)
    wrong = check_values(expand(proven.lowered.program, symmetric=False), promise)
    assert {w.rank for w in wrong} == ({1, 2} if kind == "reduce" else {0, 1, 2})


def test_other_symmetry_than_the_promise() -> None:
    """The result is indexed from the rank on, the operand by numbers: seen from each rank it is another chunk."""
    proven = lowered("all_reduce", 4)
    fixed = Region(buffer="x", index=(Int(value=1),))
    body: list[Instruction] = []
    for instruction in proven.lowered.program.body:
        for name in ("source", "left", "right", "region"):
            region = getattr(instruction, name, None)
            if isinstance(region, Region) and region.buffer == "x":
                instruction = replace(instruction, **{name: fixed})
        body.append(instruction)
    with pytest.raises(NotComparable):
        check(proven, tuple(body), symmetric=True)
    assert check(proven, tuple(body), symmetric=False)
