"""The classic mistakes of hand-written collective kernels, as Programs: rejected for the right reason, and cured."""

from collections import Counter
from collections.abc import Callable

import pytest

from ringsched.diagnostics import Diagnostic
from ringsched.expr import Expr, Int, Var, binary
from ringsched.program import trace
from ringsched.program.expand import expand
from ringsched.program.program import (
    Add,
    Buffer,
    Copy,
    Instruction,
    Program,
    Region,
    Semaphore,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
)
from ringsched.verify.hazard_diagnostics import diagnose
from ringsched.verify.hazards import check_hazards

SIZES = (3, 4, 8)
BARRIER = SemaphoreRef(semaphore="barrier")
SENT = SemaphoreRef(semaphore="sent")
CREDIT = SemaphoreRef(semaphore="credit")
COPIED = SemaphoreRef(semaphore="copied")
INPUT, RESULT = Region(buffer="x"), Region(buffer="o")

Body = tuple[Instruction, ...]
Barrier = Callable[[int], Body]


def rank(by: int, size: int) -> Expr:
    """r + by, around the ring."""
    return binary("%", binary("+", Var(name="r"), by), size)


def at(buffer: str, index: Expr | int) -> Region:
    return Region(buffer=buffer, index=(Int(value=index) if isinstance(index, int) else index,))


def received(number: int) -> SemaphoreRef:
    return SemaphoreRef(semaphore="received", index=Int(value=number))


def no_barrier(size: int) -> Body:
    return ()


def writers_only(size: int) -> Body:
    """To the right: signal the left neighbour, who writes here; wait for the right one, who is written to."""
    return Signal(semaphore=BARRIER, peer=(rank(-1, size),), note="barrier"), Wait(semaphore=BARRIER, note="barrier")


def both_neighbours(size: int) -> Body:
    signals = [Signal(semaphore=BARRIER, peer=(rank(by, size),), note="barrier") for by in (-1, 1)]
    return *signals, Wait(semaphore=BARRIER, amount=2, note="barrier")


def both_neighbours_twice(size: int) -> Body:
    return *both_neighbours(size), *both_neighbours(size)


def program(size: int, body: Body, *, x: tuple[int, ...] = (), o: tuple[int, ...] = (), slots: int = 0) -> Program:
    scratch = (Buffer(name="slots", space="scratch", shape=(slots,)),) if slots else ()
    return Program(
        name="case",
        coordinates=("r",),
        sides=(size,),
        buffers=(Buffer(name="x", space="input", shape=x), Buffer(name="o", space="output", shape=o), *scratch),
        semaphores=(
            Semaphore(name="sent", kind="dma"),
            Semaphore(name="copied", kind="dma"),
            Semaphore(name="received", kind="dma", count=size),
            Semaphore(name="credit", kind="regular"),
            Semaphore(name="barrier", kind="barrier"),
        ),
        body=body,
    )


def shift(size: int, barrier: Barrier) -> Program:
    send = Send(source=INPUT, target=RESULT, peer=(rank(1, size),), sent=SENT, received=received(0), note="send x")
    ends = WaitDma(semaphore=SENT, region=INPUT), WaitDma(semaphore=received(0), region=RESULT)
    return program(size, (*barrier(size), send, *ends))


def all_gather(size: int, semaphores: int) -> Program:
    """The chunk that arrived last goes on to the right, straight into its place."""
    own = Copy(source=INPUT, target=at("o", Var(name="r")), done=COPIED, note="own chunk")
    body: list[Instruction] = [*writers_only(size), own, WaitDma(semaphore=COPIED, region=INPUT)]
    for step in range(size - 1):
        chunk, next_chunk, key = at("o", rank(-step, size)), at("o", rank(-step - 1, size)), received(step % semaphores)
        send = Send(
            source=chunk, target=chunk, peer=(rank(1, size),), sent=SENT, received=key, note=f"send at step {step}"
        )
        body += [send, WaitDma(semaphore=SENT, region=chunk), WaitDma(semaphore=key, region=next_chunk)]
    return program(size, tuple(body), o=(size,))


def reduce_scatter(size: int, slots: int, *, credit: bool = False) -> Program:
    """The partial sum goes right into a slot; there the next rank adds its own term and sends the sum on.

    A slot is free when its sum has left it; with credits, the sender waits until it is told so.
    """
    body: list[Instruction] = list(writers_only(size))
    for step in range(size - 1):
        slot, before = at("slots", step % slots), at("slots", (step - 1) % slots)
        if credit and step >= slots:
            body.append(Wait(semaphore=CREDIT, note=f"credit at step {step}"))
        source = before if step else at("x", rank(-1, size))
        key = received(step % slots)
        send = Send(
            source=source, target=slot, peer=(rank(1, size),), sent=SENT, received=key, note=f"send at step {step}"
        )
        body += [send, WaitDma(semaphore=SENT, region=source)]
        if credit and step >= 1 and step - 1 + slots < size - 1:
            body.append(Signal(semaphore=CREDIT, peer=(rank(-1, size),), note=f"free at step {step}"))
        body.append(WaitDma(semaphore=key, region=slot))
        total = RESULT if step == size - 2 else slot
        body.append(Add(target=total, left=slot, right=at("x", rank(-step - 2, size)), note=f"add at step {step}"))
    return program(size, tuple(body), x=(size,), slots=slots)


def findings(case: Program, calls: int, *, symmetric: bool) -> tuple[Diagnostic, ...]:
    execution = expand(case, symmetric=symmetric).execution
    assert execution.symmetric is symmetric
    return diagnose(check_hazards(execution, calls), execution)


def codes(found: tuple[Diagnostic, ...]) -> set[str]:
    return {diagnostic.code for diagnostic in found}


WAYS = pytest.mark.parametrize("symmetric", [True, False], ids=["one rank for all", "every rank"])
RANKS = pytest.mark.parametrize("size", SIZES)
CALLS = pytest.mark.parametrize("calls", [2, 3])


@WAYS
@RANKS
def test_reduce_scatter_with_one_slot(size: int, symmetric: bool) -> None:
    """The left neighbour's next sum may land while the one before is still there."""
    found = findings(reduce_scatter(size, slots=1), 1, symmetric=symmetric)
    assert codes(found) == {"RS401", "RS405"}
    assert all("slots[0] of rank" in d.message and d.counterexample["ranks"] == size for d in found)
    overwritten = next(d for d in found if "`add at step 0`" in d.message and "`send at step 1`" in d.message)
    assert "receive into another slot, or let the receiver send a credit" in (overwritten.help or "")


@WAYS
@pytest.mark.parametrize("size", [4, 8])
def test_two_slots_do_not_mend_it_alone(size: int, symmetric: bool) -> None:
    found = findings(reduce_scatter(size, slots=2), 1, symmetric=symmetric)
    assert codes(found) == {"RS401", "RS405"}
    overwritten = next(d for d in found if "`add at step 0`" in d.message and "`send at step 2`" in d.message)
    assert "race on slots[0] of rank" in overwritten.message


@CALLS
@WAYS
@RANKS
def test_two_slots_and_a_credit_mend_it(size: int, symmetric: bool, calls: int) -> None:
    assert not findings(reduce_scatter(size, slots=2, credit=True), calls, symmetric=symmetric)


@CALLS
@WAYS
@RANKS
def test_a_slot_for_each_step_mends_it(size: int, symmetric: bool, calls: int) -> None:
    assert not findings(reduce_scatter(size, slots=size - 1), calls, symmetric=symmetric)


@WAYS
@RANKS
def test_all_gather_with_one_receive_semaphore(size: int, symmetric: bool) -> None:
    """What arrives for a later step can satisfy the wait of an earlier one."""
    found = findings(all_gather(size, semaphores=1), 1, symmetric=symmetric)
    assert codes(found) == {"RS405"}
    race = next(d for d in found if "`send at step 0`" in d.message)
    assert "other DMAs count on received[0]" in race.message
    assert "units of another DMA can satisfy the wait: use one semaphore for each step or slot" in (race.help or "")


@CALLS
@WAYS
@RANKS
def test_a_receive_semaphore_for_each_step_mends_it(size: int, symmetric: bool, calls: int) -> None:
    assert not findings(all_gather(size, semaphores=size - 1), calls, symmetric=symmetric)


def written_before_entry(case: Program, late: int) -> bool:
    """Whether the others can write to a rank that has not entered the call that they are in."""
    traces = expand(case, symmetric=False).execution.traces
    return any(written_while_it_stands(traces, late, stop) for stop in range(len(traces[late]) + 1))


def written_while_it_stands(traces: tuple[tuple[trace.Op, ...], ...], late: int, stop: int) -> bool:
    """The same where the late rank executes its first `stop` instructions only, and the others all they can.

    Only one rank ever takes from a semaphore, so that this is the furthest that any interleaving gets.
    """
    place, held, moved = [0] * len(traces), Counter[tuple[int, trace.SemaphoreKey]](), True
    while moved:
        moved = False
        for number, ops in enumerate(traces):
            while place[number] < (stop if number == late else 2 * len(ops)):
                match op := ops[place[number] % len(ops)]:
                    case trace.Wait():
                        if held[number, op.semaphore] < op.amount:
                            break
                        held[number, op.semaphore] -= op.amount
                    case trace.Signal():
                        held[op.rank, op.semaphore] += op.amount
                    case trace.Dma():
                        if op.rank == late and place[number] // len(ops) * len(ops) >= stop:
                            return True
                        for owner, key in ((number, op.sent), (op.rank, op.received)):
                            if key is not None:
                                held[owner, key] += op.amount
                place[number] += 1
                moved = True
    return False


@WAYS
@pytest.mark.parametrize("size", [5, 8])
def test_shift_with_a_barrier_of_both_neighbours(size: int, symmetric: bool) -> None:
    """A signal of the left neighbour, who is in its second call, is taken for that of the right one, who is late."""
    case = shift(size, both_neighbours)
    assert not findings(case, 1, symmetric=symmetric)
    found = findings(case, 2, symmetric=symmetric)
    assert codes(found) == {"RS402"}
    assert "`send x`" in found[0].message
    assert "may not have entered the kernel" in found[0].message
    assert "signal, once it has entered, the ranks that write into its memory" in (found[0].help or "")
    assert written_before_entry(case, late=1)


# A rank can be that many ranks away from a late one and still get a call ahead of it: each barrier more adds to it.
ENOUGH_FOR = [(both_neighbours, 4), (both_neighbours_twice, 6)]


@WAYS
@pytest.mark.parametrize(("barrier", "most"), ENOUGH_FOR, ids=["once", "twice"])
def test_a_barrier_of_both_neighbours_is_enough_on_short_rings_only(
    barrier: Barrier, most: int, symmetric: bool
) -> None:
    for size in range(3, most + 4):
        case = shift(size, barrier)
        for calls in (2, 3):
            found = findings(case, calls, symmetric=symmetric)
            assert bool(found) == (size > most), (size, calls)
        assert written_before_entry(case, late=1) == (size > most), size


@CALLS
@WAYS
@pytest.mark.parametrize("size", [*SIZES, 5])
def test_writers_only_mends_it(size: int, symmetric: bool, calls: int) -> None:
    case = shift(size, writers_only)
    assert not findings(case, calls, symmetric=symmetric)
    assert not written_before_entry(case, late=1)


@WAYS
@RANKS
def test_no_barrier(size: int, symmetric: bool) -> None:
    found = findings(shift(size, no_barrier), 1, symmetric=symmetric)
    assert codes(found) == {"RS402"}
    assert "`send x`" in found[0].message
    assert "reaches o[0] of rank" in found[0].message
    assert "may not have entered the kernel" in found[0].message
    assert found[0].counterexample["ranks"] == size
