"""What the hazard check does not say about `run_scoped`: flags that two scopes share, and memory that has no scope.

The semaphores of a scope are flags of the device that the compiler picks once for all; it neither clears nor looks at
them where a scope begins or ends. So a signal that comes before the scope is entered is counted. Two scopes of which
neither is in the other get the same flags, though, from the first one on that the scopes around them leave free (read
in what libtpu 0.0.42.1 makes for v5p): a signal for one may then be taken by the other. So such a kernel has to be
right with flags of their own and with shared ones. Copies that the compiler makes of a scope, where it unrolls a loop
or a function is called twice, are scopes of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ringsched.auditing.kernel import Kernel
from ringsched.auditing.layout import Stay
from ringsched.auditing.memory import Buffer
from ringsched.auditing.recorded import Copy, Recorded
from ringsched.diagnostics import Span
from ringsched.program.trace import Dma, Enter, Execution, Exit, SemaphoreKey, Signal, Wait
from ringsched.verify.machine import Machine

Scoped = tuple[Buffer, Span | None]


def sharing(kernels: Sequence[Kernel]) -> Iterator[tuple[Scoped, Scoped]]:
    """Semaphores of scopes that get the same flags."""
    for kernel in kernels:
        scoped = {buffer: span for walker in kernel.walkers for buffer, span in walker.scoped.items()}
        for first, second in itertools.combinations(scoped.items(), 2):
            one, other = first[0], second[0]
            if one.flag < other.flag + other.elements and other.flag < one.flag + one.elements:
                yield first, second


def on_shared_flags(devices: Sequence[Sequence[Stay]]) -> list[list[Stay]]:
    """The same, with one flag for all semaphores of scopes that share it."""
    return [[_on_flags(stay) for stay in stays] for stays in devices]


def _on_flags(stay: Stay) -> Stay:
    first = {each.name: each.flag for each in stay.memory if each.is_semaphore and each.role == "scoped"}
    if not first:
        return stay
    name = f"flag of kernel {stay.kernel}"

    def key(old: SemaphoreKey) -> SemaphoreKey:
        return (name, first[old[0]] + old[1]) if old[0] in first else old

    kept = tuple(each for each in stay.memory if each.name not in first)
    flag = replace(next(each for each in stay.memory if each.name in first), name=name)
    return replace(stay, ops=tuple(_moved(op, key) for op in stay.ops), memory=(*kept, flag))


def _moved(op: Recorded, key: Callable[[SemaphoreKey], SemaphoreKey]) -> Recorded:
    match op:
        case Copy():
            return replace(op, sent=None if op.sent is None else key(op.sent), received=key(op.received))
        case Wait() | Signal():
            return replace(op, semaphore=key(op.semaphore))
        case _:
            return op


def outside_scopes(execution: Execution) -> Iterator[Dma]:
    """DMAs into memory of a device that is not in the scope of that memory. Nothing races: one run tells for all."""
    machine = Machine(execution, 1)
    inside: list[set[str]] = [set() for _ in execution.traces]
    for thread, position in machine.order:
        match op := machine.op(thread, position):
            case Enter():
                inside[thread].update(block.buffer for block in op.blocks)
            case Exit():
                inside[thread].difference_update(block.buffer for block in op.blocks)
            case Dma() if op.target.units and op.target.buffer not in inside[op.rank]:
                yield op
            case _:
                pass
