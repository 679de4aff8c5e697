"""The hazard check on the classic collectives, right and wrong, and what it says about them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from ringsched.diagnostics import Span
from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, Signal, Wait
from ringsched.verify.exhaustive import explore
from ringsched.verify.hazard_diagnostics import diagnose
from ringsched.verify.hazards import HazardReport, all_races, check_hazards

SIZES = (3, 4, 8)
BARRIER = ("barrier", 0)
SEMAPHORES = ("send", "recv", "credit")


def unit(buffer: str, number: int = 0) -> Block:
    return Block(buffer, number, number + 1)


def execution(ranks: int, body: Callable[[int], Iterable[Op]], **scratch: int) -> Execution:
    """Each rank enters, runs `body(rank)` and leaves; the input `x` is lent by the caller."""
    blocks = tuple(Block(name, 0, units) for name, units in scratch.items())
    enter = Enter(blocks=blocks, semaphores=SEMAPHORES)
    leave = Exit(blocks=(*blocks, unit("x")), semaphores=SEMAPHORES)
    traces = tuple((enter, *body(rank), leave) for rank in range(ranks))
    return Execution(sides=(ranks,), symmetric=False, traces=traces)


def both_neighbours(rank: int, ranks: int) -> list[Op]:
    """The usual barrier of the tutorials."""
    signals = [Signal(rank=(rank + hop) % ranks, semaphore=BARRIER, amount=1, note="barrier") for hop in (-1, 1)]
    return [*signals, Wait(semaphore=BARRIER, amount=2, note="barrier")]


def writers_only(rank: int, ranks: int) -> list[Op]:
    """A ring to the right: signal the left neighbour, who writes here; wait for the right one, written to."""
    signal = Signal(rank=(rank - 1) % ranks, semaphore=BARRIER, amount=1, note="barrier")
    return [signal, Wait(semaphore=BARRIER, amount=1, note="barrier")]


def no_barrier(rank: int, ranks: int) -> list[Op]:
    return []


Barrier = Callable[[int, int], list[Op]]


def shift(ranks: int, barrier: Barrier, *, waits: bool = True) -> Execution:
    def body(rank: int) -> list[Op]:
        dma = Dma(
            rank=(rank + 1) % ranks,
            source=unit("x"),
            target=unit("out"),
            sent=("send", 0),
            received=("recv", 0),
            amount=1,
            note="send x",
        )
        ends: list[Op] = [Wait(semaphore=("send", 0), amount=1)]
        if waits:
            ends.append(Wait(semaphore=("recv", 0), amount=1))
        return [*barrier(rank, ranks), dma, *ends]

    return execution(ranks, body, out=1)


def all_gather(ranks: int, receive_semaphores: int) -> Execution:
    """Chunk (r − s) % N goes on to the right at step s, straight into its place."""

    def body(rank: int) -> list[Op]:
        ops = writers_only(rank, ranks)
        ops.append(Compute(op="copy", target=unit("out", rank), sources=(unit("x"),), note="own chunk"))
        for step in range(ranks - 1):
            chunk, received = unit("out", (rank - step) % ranks), ("recv", step % receive_semaphores)
            right = (rank + 1) % ranks
            ops.append(
                Dma(
                    rank=right,
                    source=chunk,
                    target=chunk,
                    sent=("send", 0),
                    received=received,
                    amount=1,
                    note=f"send at step {step}",
                )
            )
            ops += [Wait(semaphore=("send", 0), amount=1), Wait(semaphore=received, amount=1)]
        return ops

    return execution(ranks, body, out=ranks)


def reduce_scatter(ranks: int, slots: int, *, credit: bool) -> Execution:
    """The partial sum in `sum` goes right into a slot; the own term is added to what has arrived."""

    def body(rank: int) -> list[Op]:
        ops = writers_only(rank, ranks)
        ops.append(Compute(op="copy", target=unit("sum"), sources=(unit("x"),)))
        for step in range(ranks - 1):
            slot = step % slots
            if credit and step >= slots:
                ops.append(Wait(semaphore=("credit", slot), amount=1))
            ops += [
                Dma(
                    rank=(rank + 1) % ranks,
                    source=unit("sum"),
                    target=unit("slots", slot),
                    sent=("send", 0),
                    received=("recv", slot),
                    amount=1,
                    note=f"send at step {step}",
                ),
                Wait(semaphore=("send", 0), amount=1),
                Wait(semaphore=("recv", slot), amount=1),
                Compute(op="add", target=unit("sum"), sources=(unit("slots", slot), unit("x")), note=f"add {step}"),
            ]
            if credit and step + slots < ranks - 1:
                ops.append(Signal(rank=(rank - 1) % ranks, semaphore=("credit", slot), amount=1))
        return ops

    return execution(ranks, body, slots=slots, sum=1)


def codes(program: Execution, calls: int = 2) -> set[str]:
    return {diagnostic.code for diagnostic in diagnose(check_hazards(program, calls), program)}


def shape(report: HazardReport) -> tuple[bool, bool, int]:
    return bool(report.races), report.deadlock is not None, len(report.leftovers)


@pytest.mark.parametrize("ranks", [5, 8])
def test_shift_behind_the_usual_barrier_races_in_the_second_call(ranks: int) -> None:
    """The left neighbour's signal for the next call is taken for that of the right one, who is late for this call."""
    program = shift(ranks, both_neighbours)
    assert check_hazards(program, 1).ok
    report = check_hazards(program, 2)
    assert shape(report) == (True, False, 0)
    assert report.races[0].first.kind in ("entry", "exit")
    assert codes(program) == {"RS402"}


@pytest.mark.parametrize("ranks", [3, 4])
def test_shift_behind_the_usual_barrier_is_safe_on_short_rings(ranks: int) -> None:
    """No device gets a call ahead there without the one that is late, which only the greatest fixpoint shows."""
    program = shift(ranks, both_neighbours)
    assert check_hazards(program, 3).ok
    assert explore(program, 2).races == frozenset()


@pytest.mark.parametrize("ranks", SIZES)
def test_shift_where_writers_are_let_in_one_by_one(ranks: int) -> None:
    assert check_hazards(shift(ranks, writers_only), 3).ok


@pytest.mark.parametrize("ranks", SIZES)
def test_shift_without_barrier_meets_the_entry(ranks: int) -> None:
    program = shift(ranks, no_barrier)
    report = check_hazards(program, 1)
    assert {race.first.kind for race in report.races} | {race.second.kind for race in report.races} >= {"entry"}
    assert codes(program, 1) == {"RS402"}


@pytest.mark.parametrize("ranks", SIZES)
def test_all_gather_needs_a_receive_semaphore_for_each_step(ranks: int) -> None:
    program = all_gather(ranks, 1)
    assert shape(check_hazards(program)) == (True, False, 0)
    assert codes(program) == {"RS405"}
    assert check_hazards(all_gather(ranks, ranks - 1), 3).ok


@pytest.mark.parametrize("ranks", [4, 8])
def test_reduce_scatter_needs_slots_and_credits(ranks: int) -> None:
    for slots in (1, 2):
        assert codes(reduce_scatter(ranks, slots, credit=False)) == {"RS401", "RS405"}
        assert check_hazards(reduce_scatter(ranks, slots, credit=True), 3).ok
    assert check_hazards(reduce_scatter(ranks, ranks - 1, credit=False), 3).ok


def test_missing_wait_at_the_end() -> None:
    program = shift(4, writers_only, waits=False)
    assert codes(program) == {"RS403", "RS502"}
    late, left = diagnose(check_hazards(program, 1), program)
    assert late.message == "`send x` (rank 3) may still be under way on out[0] of rank 0 when rank 0 leaves the kernel"
    assert late.counterexample == {"ranks": 4, "rank": 0, "call": 1}
    assert late.notes == (
        "missing order: `send x` (rank 3) ends before rank 0 leaves",
        "no wait makes sure that the DMA has ended",
    )
    assert left.message == "recv[0] of rank 0 is not zero when the kernel ends: 1 added, 0 taken"
    assert left.notes == ("so it is on 3 more ranks",)


def test_doubled_signal_is_left_over() -> None:
    program = shift(3, lambda rank, ranks: [*writers_only(rank, ranks)[:1] * 2, *writers_only(rank, ranks)[1:]])
    report = check_hazards(program)
    assert [(left.rank, left.semaphore, left.added, left.taken) for left in report.leftovers] == [
        (rank, BARRIER, 2, 1) for rank in range(3)
    ]
    assert report.deadlock is None


def test_circular_wait_is_a_deadlock() -> None:
    """Everyone waits for what it is sent before it sends."""
    span = Span(path="ring.yaml", line=3, column=5, end_line=3, end_column=9)

    def body(rank: int) -> list[Op]:
        wait = Wait(semaphore=("credit", 0), amount=1, note="credit", origin=span)
        return [wait, Signal(rank=(rank + 1) % 3, semaphore=("credit", 0), amount=1)]

    program = execution(3, body)
    report = check_hazards(program)
    assert report.deadlock is not None
    assert [(s.rank, s.position, s.call, s.has, s.needs) for s in report.deadlock.stuck] == [
        (rank, 1, 0, 0, 1) for rank in range(3)
    ]
    (found,) = diagnose(report, program)
    assert (found.code, found.message) == ("RS501", "deadlock: 3 ranks wait for ever")
    assert found.notes[0] == "rank 0 waits in call 1 on credit[0] (credit): it holds 0 and needs 1"
    assert found.primary is not None and found.primary.span == span
    assert found.secondary == ()


def test_starving_wait_is_told_once() -> None:
    program = execution(2, lambda rank: [Wait(semaphore=("credit", 0), amount=1)] if rank else [])
    (found,) = diagnose(check_hazards(program), program)
    assert found.code == "RS501"
    assert found.notes[-1] == "credit[0] of rank 1: 0 added and 1 taken a call"


@pytest.mark.parametrize(
    ("body", "when"),
    [
        ([[Signal(rank=1, semaphore=("credit", 0), amount=1)], [Wait(semaphore=("credit", 0), amount=1)]], "before"),
        ([[Wait(semaphore=BARRIER, amount=1), Signal(rank=1, semaphore=("credit", 0), amount=1)],
          [Signal(rank=0, semaphore=BARRIER, amount=1)]], "after"),
    ],
)  # fmt: skip
def test_signal_to_a_device_outside_the_kernel(body: list[list[Op]], when: str) -> None:
    program = execution(2, lambda rank: body[rank])
    stray = [found for found in diagnose(check_hazards(program, 1), program) if found.code == "RS503"]
    assert [f"{when} rank 1" in found.message for found in stray] == [True]


def test_race_names_both_places() -> None:
    """The wait for the send semaphore comes after the source is written again."""
    spans = [Span(path="a.yaml", line=line, column=1, end_line=line, end_column=5) for line in (1, 2)]
    dma = Dma(
        rank=1,
        source=Block("out", 0, 4),
        target=Block("x", 0, 4),
        sent=("send", 0),
        received=("recv", 0),
        amount=4,
        note="send it",
        origin=spans[0],
    )
    clear = Compute(op="zero", target=Block("out", 2, 6), note="clear it", origin=spans[1])
    body: list[list[Op]] = [
        [Wait(semaphore=BARRIER, amount=1), dma, clear, Wait(semaphore=("send", 0), amount=4)],
        [Signal(rank=0, semaphore=BARRIER, amount=1), Wait(semaphore=("recv", 0), amount=4)],
    ]
    program = execution(2, lambda rank: body[rank], out=6)
    report = check_hazards(program, 1)
    (race,) = report.races
    assert (race.overlap, race.memory_rank, race.first.finish) == (Block("out", 2, 4), 0, 4)
    (found,) = diagnose(report, program)
    assert found.code == "RS401"
    assert found.message == "`send it` (rank 0) and `clear it` (rank 0) race on out[2:4] of rank 0"
    assert found.primary is not None and found.primary.span == spans[1]
    assert [label.span for label in found.secondary] == [spans[0]]
    assert found.help == "wait on send[0] before the source is written again"


def test_local_copy_with_one_semaphore_has_read_its_source_when_it_is_done() -> None:
    copy = Dma(rank=0, source=unit("x"), target=unit("out"), sent=None, received=("recv", 0), amount=1)
    done = Wait(semaphore=("recv", 0), amount=1)
    reuse = Compute(op="zero", target=unit("x"))
    assert check_hazards(execution(1, lambda _: [copy, done, reuse], out=1)).ok
    assert check_hazards(execution(1, lambda _: [copy, reuse, done], out=1)).races


def test_list_of_races_is_capped_and_in_order() -> None:
    report = check_hazards(all_gather(32, 1))
    assert len(report.races) < report.distinct_races
    assert not report.ok
    assert len({(race.first.position, race.second.position, race.overlap.buffer) for race in report.races}) == len(
        report.races
    )
    calls = [race.second.call for race in report.races]
    assert all(earlier <= later for earlier, later in pairwise(calls))


def test_linear_verdict_needs_no_second_look_at_other_pairs() -> None:
    program = reduce_scatter(4, 2, credit=False)
    assert all_races(program) and not all_races(reduce_scatter(4, 2, credit=True))


@pytest.mark.parametrize("sides", [(4,), (2, 3), (4, 4)])
def test_one_rank_stands_for_all(sides: tuple[int, ...]) -> None:
    """A symmetric exchange with a rank `hop` further on; on a torus the displacement is in each coordinate."""

    def program(*, wait: bool) -> Execution:
        ranks = Execution(sides=sides, symmetric=True, traces=()).ranks
        hop = ranks - 1  # one back in every coordinate
        ahead = sum(scale for scale in _strides(sides))  # one further on in every coordinate
        body = [
            Signal(rank=hop, semaphore=BARRIER, amount=1),
            Wait(semaphore=BARRIER, amount=1),
            Dma(rank=ahead, source=unit("x"), target=unit("out"), sent=("send", 0), received=("recv", 0), amount=1),
            Wait(semaphore=("send", 0), amount=1),
            Wait(semaphore=("recv", 0), amount=1),
        ]
        if not wait:
            del body[1]
            del body[0]
        full = execution(1, lambda _: body, out=1)
        return replace(full, sides=sides, symmetric=True)

    assert check_hazards(program(wait=True), 3).ok
    assert codes(program(wait=False), 1) == {"RS402"}


def _strides(sides: tuple[int, ...]) -> list[int]:
    strides = [1]
    for side in reversed(sides[1:]):
        strides.append(strides[-1] * side)
    return strides


def test_nothing_to_do() -> None:
    assert check_hazards(execution(2, lambda _: [Wait(semaphore=("credit", 0), amount=0)])).ok
    assert check_hazards(Execution(sides=(2,), symmetric=False, traces=((), ()))).ok
