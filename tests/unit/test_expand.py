"""Programs written out: loops, guards, indices; one trace for all ranks where they all do the same."""

import itertools
from dataclasses import replace

import pytest
from shipped import SINGLE, sized

from ringsched.expr import Compare, Expr, Int, NotAffine, Var, binary
from ringsched.pipeline import open_schedule, prove
from ringsched.program.expand import IndexOutOfRange, expand
from ringsched.program.program import (
    Add,
    Buffer,
    Copy,
    Instruction,
    Loop,
    Program,
    Region,
    Semaphore,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
    When,
    Zero,
)
from ringsched.program.trace import Block, Compute, Dma, Enter, Exit
from ringsched.program.trace import Signal as Signalled
from ringsched.program.trace import Wait as Waited

R, S = Var(name="r"), Var(name="s")


def number(value: int) -> Int:
    return Int(value=value)


def around(by: Expr | int, size: int = 4) -> Expr:
    return binary("%", binary("+", R, by), size)


def program(*body: Instruction, sides: tuple[int, ...] = (4,), coordinates: tuple[str, ...] = ("r",)) -> Program:
    return Program(
        name="t",
        coordinates=coordinates,
        sides=sides,
        buffers=(
            Buffer(name="x", space="input", shape=(4, 2)),
            Buffer(name="o", space="output", shape=()),
            Buffer(name="slots", space="scratch", shape=(3,)),
        ),
        semaphores=(
            Semaphore(name="dma", kind="dma", count=3),
            Semaphore(name="credit", kind="regular"),
            Semaphore(name="barrier", kind="barrier"),
        ),
        body=body,
    )


def send(source: Region, target: Region, peer: Expr, index: Expr | None = None) -> Send:
    received = SemaphoreRef(semaphore="dma", index=index if index is not None else number(1))
    return Send(
        source=source, target=target, peer=(peer,), sent=SemaphoreRef(semaphore="dma"), received=received, note="n"
    )


def at(buffer: str, *index: Expr | int) -> Region:
    return Region(buffer=buffer, index=tuple(number(i) if isinstance(i, int) else i for i in index))


def test_frame_and_blocks() -> None:
    """Scratch and output are the kernel's own from entry on; all memory is others' again from exit on."""
    expansion = expand(program())
    (enter, leave) = expansion.execution.traces[0]
    own = (Block("o", 0, 1), Block("slots", 0, 3))
    assert enter == Enter(blocks=own, semaphores=("dma", "credit"))
    assert leave == Exit(blocks=(Block("x", 0, 8), *own), semaphores=("dma", "credit"))
    assert expansion.execution.capacity == (("x", 8), ("o", 1), ("slots", 3))


def test_each_instruction() -> None:
    dma = SemaphoreRef(semaphore="dma", index=number(2))
    body = (
        send(at("x", 1), at("x", 2), around(1)),
        Copy(source=at("x", 1, 0), target=at("o"), done=dma),
        WaitDma(semaphore=dma, region=at("x", 1)),
        Signal(semaphore=SemaphoreRef(semaphore="credit"), peer=(around(-1),), amount=2),
        Wait(semaphore=SemaphoreRef(semaphore="barrier"), amount=3),
        Add(target=at("o"), left=at("slots", 0), right=at("slots", 2)),
        Zero(target=at("slots", 1)),
    )
    execution = expand(program(*body), symmetric=False).execution
    assert not execution.symmetric
    assert execution.traces[1][1:-1] == (
        Dma(
            rank=2,
            source=Block("x", 2, 4),
            target=Block("x", 4, 6),
            sent=("dma", 0),
            received=("dma", 1),
            amount=2,
        ),
        Dma(rank=1, source=Block("x", 2, 3), target=Block("o", 0, 1), sent=None, received=("dma", 2), amount=1),
        Waited(semaphore=("dma", 2), amount=2),
        Signalled(rank=0, semaphore=("credit", 0), amount=2),
        Waited(semaphore=("barrier", 0), amount=3),
        Compute(op="add", target=Block("o", 0, 1), sources=(Block("slots", 0, 1), Block("slots", 2, 3))),
        Compute(op="zero", target=Block("slots", 1, 2)),
    )


def test_loops_and_guards() -> None:
    """Bounds are both included; an empty range runs nothing; guards see rank and loop variable."""
    guarded = When(
        conditions=(Compare(first=S, rest=(("<=", R),)),),
        body=(Zero(target=at("slots", S)),),
    )
    loop = Loop(var="s", first=number(0), last=number(2), body=(guarded,))
    empty = Loop(var="s", first=number(2), last=number(1), body=(Zero(target=at("o")),))
    traces = expand(program(loop, empty)).execution.traces
    assert [len(trace) - 2 for trace in traces] == [1, 2, 3, 3]
    assert traces[1][2] == Compute(op="zero", target=Block("slots", 1, 2))


def test_relative_numbers() -> None:
    """Seen from rank 0: peers are displacements, a rotating index counts from the rank whose memory it is."""
    expansion = expand(program(send(at("x", around(2)), at("x", R), around(1))), symmetric=True)
    (dma,) = expansion.execution.traces[0][1:-1]
    assert isinstance(dma, Dma)
    assert (dma.rank, dma.source, dma.target) == (1, Block("x", 4, 6), Block("x", 6, 8))
    assert expansion.axes["x"] == (0, None)
    assert not expansion.fixed


@pytest.mark.parametrize(("name", "parameters"), sized(SINGLE, (2, 4, 5, 6, 10)))
def test_one_trace_is_that_of_every_rank(name: str, parameters: dict[str, int]) -> None:
    """The trace that stands for all, moved to a rank, is what that rank executes."""
    proven = prove(open_schedule(name, parameters))
    one = expand(proven.lowered.program)
    full = expand(proven.lowered.program, symmetric=False)
    assert one.execution.symmetric or not proven.symmetric
    if not one.execution.symmetric:
        assert one == full
        return
    shapes = {b.name: b.shape for b in proven.lowered.program.buffers}
    at, number = proven.topology.at, proven.topology.rank

    flips = one.execution.sides != proven.lowered.program.sides

    def onward(rank: int, hop: int) -> int:
        if flips:
            return rank ^ hop
        there = number(tuple(a + b for a, b in zip(at(rank), at(hop), strict=True)))
        assert there is not None
        return there

    def moved(block: Block, owner: int) -> Block:
        units = set()
        for unit in itertools.product(*(range(n) for n in shapes[block.buffer])):
            place = 0
            for n, axis, index in zip(shapes[block.buffer], one.axes[block.buffer], unit, strict=True):
                relative = index
                if axis is not None:
                    relative = index ^ owner if flips else (index - at(owner)[axis]) % n
                place = place * n + relative
            if block.start <= place < block.stop:
                absolute = 0
                for n, index in zip(shapes[block.buffer], unit, strict=True):
                    absolute = absolute * n + index
                units.add(absolute)
        assert units == set(range(min(units), max(units) + 1))
        return Block(block.buffer, min(units), max(units) + 1)

    for rank, trace in enumerate(full.execution.traces):
        expected = []
        for op in one.execution.traces[0]:
            if isinstance(op, Dma):
                peer = onward(rank, op.rank)
                op = replace(op, rank=peer, source=moved(op.source, rank), target=moved(op.target, peer))
            elif isinstance(op, Signalled):
                op = replace(op, rank=onward(rank, op.rank))
            elif isinstance(op, Compute) and op.target is not None:
                op = replace(
                    op, target=moved(op.target, rank), sources=tuple(moved(block, rank) for block in op.sources)
                )
            expected.append(op)
        assert trace == tuple(expected)


def test_two_coordinates() -> None:
    """Ranks are row-major; each index rotates with the coordinate that occurs in it."""
    x, y = Var(name="x"), Var(name="y")
    body = Signal(semaphore=SemaphoreRef(semaphore="credit"), peer=(binary("%", binary("+", x, 1), 2), y))
    grid = program(body, sides=(2, 3), coordinates=("x", "y"))
    assert [trace[1].rank for trace in expand(grid, symmetric=False).execution.traces] == [3, 4, 5, 0, 1, 2]  # type: ignore[union-attr]
    assert expand(grid).execution.traces[0][1] == Signalled(rank=3, semaphore=("credit", 0), amount=1)


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (Zero(target=at("slots", 3)), "slots: index 3 of 3 in dimension 0"),
        (Zero(target=at("slots", -1)), "slots: index -1 of 3 in dimension 0"),
        (Zero(target=at("x", 0, 2)), "x: index 2 of 2 in dimension 1"),
        (WaitDma(semaphore=SemaphoreRef(semaphore="dma", index=number(3)), region=at("o")), "dma[3] of 3"),
        (Signal(semaphore=SemaphoreRef(semaphore="credit"), peer=(binary("+", R, 1),)), "peer 4 of 4"),
    ],
)
def test_past_the_end(instruction: Instruction, message: str) -> None:
    with pytest.raises(IndexOutOfRange) as error:
        expand(program(instruction))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        (Signal(semaphore=SemaphoreRef(semaphore="credit"), peer=(number(0),)), "a peer at a fixed place"),
        (Signal(semaphore=SemaphoreRef(semaphore="credit"), peer=(binary("-", 3, R),)), "not one coordinate"),
        (Loop(var="s", first=number(0), last=R, body=(Zero(target=at("o")),)), "a bound that depends on the rank"),
        (
            When(conditions=(Compare(first=R, rest=(("==", number(0)),)),), body=(Zero(target=at("o")),)),
            "a comparison that depends on the rank",
        ),
        (Zero(target=at("slots", binary("%", R, 3))), "not as long as the side"),
        (Add(target=at("x", R, 0), left=at("x", 0, 0), right=at("o")), "rotating here and fixed there"),
    ],
)
def test_not_the_same_for_all_ranks(instruction: Instruction, reason: str) -> None:
    """Refused where one trace is asked for; else every rank gets its own."""
    with pytest.raises(NotAffine, match=reason):
        expand(program(instruction), symmetric=True)
    expansion = expand(program(instruction))
    assert not expansion.execution.symmetric
    assert len(expansion.execution.traces) == 4
