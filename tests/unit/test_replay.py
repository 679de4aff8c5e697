"""The symbolic machine along one interleaving: what can happen, and the faults that a run shows. Traces by hand."""

from collections.abc import Sequence

import pytest

from ringsched.diagnostics import Span
from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, Signal, Wait
from ringsched.verify.hazards import check_hazards
from ringsched.verify.interleaving import Conflict, Do, Interleaving, Left, Outside, Stuck, StuckRank, Touch, Units
from ringsched.verify.replay import ImpossibleError, replay
from ringsched.verify.retelling import describe
from ringsched.verify.witness import shown, witness

X, SLOT = Block("x", 0, 1), Block("slot", 0, 1)
ENTER = Enter(blocks=(SLOT,), semaphores=("sent", "received", "credit"))
EXIT = Exit(blocks=(SLOT, X), semaphores=("sent", "received", "credit"))
SEND = Dma(rank=1, source=X, target=SLOT, sent=("sent", 0), received=("received", 0), amount=4, note="send x")
SENT, RECEIVED = Wait(semaphore=("sent", 0), amount=4), Wait(semaphore=("received", 0), amount=4)
READ = Compute(op="copy", target=None, sources=(SLOT,), note="read slot")
CREDIT = Signal(rank=1, semaphore=("credit", 0), amount=1)


def execution(*traces: Sequence[Op]) -> Execution:
    return Execution(sides=(len(traces),), symmetric=False, traces=tuple(map(tuple, traces)))


TRANSFER = execution((SEND, SENT), (RECEIVED, READ))


def test_a_whole_run() -> None:
    run = (Do(0), Units(0, 0, "read", 4), Do(0), Units(0, 0, "written", 1), Units(0, 0, "written", 3), Do(1), Do(1))
    found = replay(TRANSFER, run, 1)
    assert found.faults == ()
    assert found.positions == (2, 2)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ((Do(2),), "event 0: there is no rank 2"),
        ((Do(1),), "event 0: rank 1 waits for 4 units of received[0], it holds 0"),
        (
            (Do(0), Units(0, 0, "written", 3), Do(1)),
            "event 2: rank 1 waits for 4 units of received[0], it holds 3",
        ),
        (
            (Units(0, 0, "written", 1),),
            "event 0: the DMA at position 0 of rank 0 has not started, is over, or does not end as 'written'",
        ),
        (
            (Do(0), Units(0, 0, "written", 5)),
            "event 1: 5 units of the DMA at position 0 of rank 0 cannot arrive, 4 are to come",
        ),
        (
            (Do(0), Units(0, 0, "read", 4), Units(0, 0, "read", 1)),
            "event 2: the DMA at position 0 of rank 0 has not started, is over, or does not end as 'read'",
        ),
        (
            (Do(0), Units(0, 0, "read", 0)),
            "event 1: 0 units of the DMA at position 0 of rank 0 cannot arrive, 4 are to come",
        ),
        ((Do(0), Units(0, 0, "read", 4), Do(0), Do(0)), "event 3: rank 0 has finished"),
    ],
)
def test_what_cannot_happen_is_refused(run: Interleaving, why: str) -> None:
    with pytest.raises(ImpossibleError) as error:
        replay(TRANSFER, run, 1)
    assert str(error.value) == why


def test_a_symmetric_execution_is_refused() -> None:
    with pytest.raises(ValueError, match="every rank's trace"):
        replay(Execution(sides=(2,), symmetric=True, traces=((SEND,),)), (), 1)


def test_a_local_copy_with_one_semaphore_ends_as_a_whole() -> None:
    copy = Dma(rank=0, source=X, target=SLOT, sent=None, received=("received", 0), amount=4)
    overwrite = Compute(op="zero", target=X)
    program = execution((copy, overwrite))
    with pytest.raises(ImpossibleError):
        replay(program, (Do(0), Units(0, 0, "read", 1)), 1)
    (fault,) = replay(program, (Do(0), Units(0, 0, "written", 3), Do(0)), 1).faults
    assert isinstance(fault, Conflict)
    # All is well but for the semaphore, which nobody takes from.
    (left,) = replay(program, (Do(0), Units(0, 0, "written", 4), Do(0)), 1).faults
    assert isinstance(left, Left)


def test_accesses_that_overlap() -> None:
    program = execution((SEND,), (READ,))
    conflict = Conflict(
        at=1,
        earlier=Touch(rank=0, position=0, kind="write"),
        later=Touch(rank=1, position=0, kind="read"),
        owner=1,
        space="memory",
        overlap=SLOT,
    )
    assert replay(program, (Do(0), Do(1)), 1).faults == (conflict,)
    assert replay(program, (Do(1), Do(0)), 1).faults == ()
    assert replay(program, (Do(0), Units(0, 0, "written", 4), Do(1)), 1).faults == ()


def test_reads_do_not_conflict() -> None:
    read_x = Compute(op="copy", target=None, sources=(X,))
    assert replay(execution((SEND, read_x), ()), (Do(0), Do(0)), 1).faults == ()


def test_a_dma_onto_its_own_source() -> None:
    copy = Dma(rank=0, source=X, target=X, sent=None, received=None, amount=0)
    (fault,) = replay(execution((copy,)), (Do(0),), 1).faults
    assert isinstance(fault, Conflict)
    assert (fault.earlier.position, fault.later.position) == (0, 0)


def test_a_signal_outside_the_kernel() -> None:
    take = Wait(semaphore=("credit", 0), amount=1)
    program = execution((ENTER, CREDIT, EXIT), (ENTER, take, EXIT))
    (early,) = replay(program, (Do(0), Do(0)), 2).faults
    assert isinstance(early, Outside)
    assert (early.left, early.entry, early.block.buffer) == (None, 0, "credit")
    one_call = (Do(0), Do(1), Do(0), Do(1), Do(1), Do(0))
    (between,) = replay(program, (*one_call, Do(0), Do(0)), 2).faults
    assert isinstance(between, Outside)
    assert (between.at, between.left, between.entry) == (7, 2, 3)
    (late,) = replay(program, (Do(0), Do(1), Do(0), Do(1), Do(1), Do(0), Do(0), Do(0)), 2).faults
    assert late == between


def test_the_barrier_semaphore_outlives_the_call() -> None:
    signal = Signal(rank=1, semaphore=("barrier", 0), amount=1)
    frame = Enter(blocks=(), semaphores=("barrier",))
    assert replay(execution((signal,), (frame,)), (Do(0),), 1).faults == ()


def test_nothing_can_happen_any_more() -> None:
    program = execution((SEND,), (RECEIVED, RECEIVED))
    run = (Do(0), Units(0, 0, "read", 4), Units(0, 0, "written", 4), Do(1))
    assert replay(program, run, 1).faults == (Stuck(at=4, ranks=(StuckRank(rank=1, position=1, has=0),)),)
    assert replay(program, run[:-1], 1).faults == ()
    assert replay(program, (Do(0), Units(0, 0, "written", 4), Do(1)), 1).faults == ()  # the source is still being read


def test_a_semaphore_left_over() -> None:
    program = execution((CREDIT,), ())
    left = Left(at=1, owner=1, semaphore=("credit", 0), units=1, calls=1)
    assert replay(program, (Do(0),), 2).faults == (left,)
    assert replay(program, (), 2).faults == ()


def span(line: int) -> Span:
    return Span(path="src/kernels.py", line=line, column=1, end_line=line, end_column=2)


def test_two_copies_on_one_semaphore_in_words() -> None:
    """The second copy arrives first, and the receiver takes it for the first."""
    first = Dma(
        rank=1, source=X, target=SLOT, sent=None, received=("received", 0), amount=4, note="send a", origin=span(7)
    )
    second = Dma(
        rank=1,
        source=X,
        target=Block("slot", 1, 2),
        sent=None,
        received=("received", 0),
        amount=3,
        note="send b",
        origin=span(8),
    )
    wait = Wait(semaphore=("received", 0), amount=4, note="wait a", origin=span(9))
    program = execution((first, second), (wait, READ, Wait(semaphore=("received", 0), amount=3)))
    (race, *_) = check_hazards(program, 1).races
    run = witness(program, race, 1)
    assert run == (Do(0), Do(0), Units(0, 1, "written", 3), Units(0, 0, "written", 1), Do(1), Do(1))
    assert isinstance(shown(program, race, replay(program, run, 1)), Conflict)
    assert describe(program, run, 1) == (
        "rank 0 starts `send a` (kernels.py:7) and starts `send b` (kernels.py:8)",
        "`send b` (kernels.py:8) of rank 0 is over: 3 units on received[0] of rank 1",
        "1 of 4 units of `send a` (kernels.py:7) of rank 0 arrive on received[0] of rank 1",
        "rank 1 passes `wait a` (kernels.py:9)",
        "rank 1 executes `read slot`: it reads slot[0] of rank 1 "
        "while `send a` (kernels.py:7) of rank 0 still writes it",
    )


def test_a_deadlock_in_words() -> None:
    program = execution((Wait(semaphore=("credit", 0), amount=1), CREDIT), (RECEIVED,), (RECEIVED,))
    deadlock = check_hazards(program, 1).deadlock
    assert deadlock is not None
    assert describe(program, witness(program, deadlock, 1), 1) == (
        "rank 0 stays in `wait for 1 on credit[0]` for ever: its semaphore holds 0",
        "ranks 1 and 2 stay in `wait for 4 on received[0]` for ever: its semaphore holds 0",
    )


def test_a_semaphore_left_over_in_words() -> None:
    program = execution((CREDIT,), (ENTER,))
    (left,) = check_hazards(program, 2).leftovers
    run = witness(program, left, 2)
    assert run == (Do(0), Do(1))  # one call shows it
    assert describe(program, run, 2)[-1] == "after a call, credit[0] of rank 1 holds 1"
