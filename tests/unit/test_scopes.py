"""Memory that comes and goes within a kernel: outside its scope, it is a fault to reach it, however well ordered."""

import pytest

from ringsched.program.trace import Block, Dma, Enter, Execution, Exit, Op, Signal, Wait
from ringsched.verify.hazards import check_hazards
from ringsched.verify.interleaving import Outside
from ringsched.verify.replay import replay
from ringsched.verify.witness import shown, witness

SCOPED, X = Block("scoped", 0, 1), Block("x", 0, 1)
KERNEL = {"blocks": (), "semaphores": ("dma", "go")}
SCOPE = {"blocks": (SCOPED,), "semaphores": ()}


def meet(other: int) -> tuple[Op, Op]:
    return Signal(rank=other, semaphore=("barrier", 0), amount=1), Wait(semaphore=("barrier", 0), amount=1)


def execution(sender: tuple[Op, ...], owner: tuple[Op, ...]) -> Execution:
    traces = (
        (Enter(**KERNEL), *meet(1), *sender, Exit(**KERNEL)),
        (Enter(**KERNEL), *meet(0), *owner, Exit(**KERNEL)),
    )
    return Execution(sides=(2,), symmetric=False, traces=traces)


SEND = Dma(rank=1, source=X, target=SCOPED, sent=("dma", 0), received=("dma", 1), amount=1)
SENT, RECEIVED = Wait(semaphore=("dma", 0), amount=1), Wait(semaphore=("dma", 1), amount=1)
GO, WAIT_GO = Signal(rank=0, semaphore=("go", 0), amount=1), Wait(semaphore=("go", 0), amount=1)

LATE = execution((WAIT_GO, SEND, SENT), (Enter(**SCOPE), Exit(**SCOPE), GO, RECEIVED))
EARLY = execution((SEND, SENT), (RECEIVED, Enter(**SCOPE), Exit(**SCOPE)))
IN_TIME = execution((WAIT_GO, SEND, SENT), (Enter(**SCOPE), GO, RECEIVED, Exit(**SCOPE)))


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("program", [LATE, EARLY], ids=["after the exit", "before the entry"])
def test_outside_the_scope(program: Execution, calls: int) -> None:
    report = check_hazards(program, calls)
    assert report.races and {report.races[0].first.kind, report.races[0].second.kind} & {"entry", "exit"}
    for race in report.races:
        fault = shown(program, race, replay(program, witness(program, race, calls), calls))
        assert isinstance(fault, Outside) and fault.owner == 1


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_within_the_scope(calls: int) -> None:
    assert check_hazards(IN_TIME, calls).ok
