"""How many calls in a row show what can happen in any number of them.

Two are enough where no device is ever more than one call ahead of another: where each leaves a call only after all have
entered it, whatever is held up in a call lets the others get into the next one and no further. Elsewhere a device that
waits for nothing may be many calls ahead, and its units stand in for those of others: for a wait that takes n units,
those of n calls. So that many are looked at. (With several such waits in a chain even more could be needed; that no
such run exists is not proven here.)
"""

from __future__ import annotations

from collections.abc import Sequence

from ringsched.auditing.layout import Stay
from ringsched.auditing.recorded import Copy
from ringsched.program.trace import Execution, SemaphoreKey, Signal, Wait
from ringsched.verify.clocks import Clocks
from ringsched.verify.hazards import HazardReport, check_hazards
from ringsched.verify.machine import Machine

FEWEST = 2
MOST = 64
MOST_OPERATIONS = 300_000  # of all devices in all calls


def check_calls(
    execution: Execution, devices: Sequence[Sequence[Stay]], asked: int | None
) -> tuple[HazardReport, int, bool]:
    """The hazards in `asked` calls in a row, or in as many as it takes; how many; whether these were enough.

    devices: what `execution` was made of.
    """
    if asked is not None:
        return check_hazards(execution, asked), asked, True
    report = check_hazards(execution, FEWEST)
    wanted = largest_wait(devices)
    if not report.ok or wanted <= FEWEST or _stay_together(execution):
        return report, FEWEST, True
    operations = sum(map(len, execution.traces))
    calls = min(wanted, MOST, max(MOST_OPERATIONS // max(operations, 1), FEWEST))
    return check_hazards(execution, calls), calls, calls == wanted


def largest_wait(devices: Sequence[Sequence[Stay]]) -> int:
    """How many units a wait takes at most, a unit being the smallest amount that comes on its semaphore at once."""
    smallest: dict[tuple[int, SemaphoreKey], int] = {}
    ops = [(rank, op) for rank, stays in enumerate(devices) for stay in stays for op in stay.ops]

    def note(owner: int, key: SemaphoreKey | None, amount: int) -> None:
        if key is not None and amount > 0:
            smallest[owner, key] = min(amount, smallest.get((owner, key), amount))

    for rank, op in ops:
        match op:
            case Copy():
                note(rank, op.sent, op.amount)
                note(op.rank, op.received, op.amount)
            case Signal():
                note(op.rank, op.semaphore, op.amount)
            case _:
                pass
    waits = [(op.amount, (rank, op.semaphore)) for rank, op in ops if isinstance(op, Wait) and op.amount]
    return max([FEWEST, *(-(-amount // smallest.get(slot, amount)) for amount, slot in waits)])


def _stay_together(execution: Execution) -> bool:
    """Whether each device leaves a call only when all have entered it."""
    machine = Machine(execution, FEWEST)
    clocks = Clocks(machine)
    ranks = [rank for rank, trace in enumerate(execution.traces) if trace]
    return all(
        clocks.precedes(of, 0, rank, len(execution.traces[rank]) - 1) for of in ranks for rank in ranks if of != rank
    )
