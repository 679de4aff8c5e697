"""The barrier that the compiler adds to a kernel.

A kernel that communicates and has no barrier of its own gets one of all devices, at its entry and before operands are
loaded: all but device 0 signal it, it waits for them and signals each of them. Read in what libtpu 0.0.42.1 makes for
v5e, v5p, v6e and tpu7x of some thirty kernels, `pl.core_map` among them:

- *communicates*: a remote DMA is started, or a semaphore signalled with a device id, anywhere in the kernel: under a
  condition that never holds and to the device itself, too. Waits do not count;
- *of its own*: `get_barrier_semaphore()`, used anywhere, whether or not anything is signalled on it;
- none is added with `skip_device_barrier`, nor with `allow_collective_id_without_custom_barrier` and a collective_id.

The flag is one for all kernels, which is why it is in no kernel's frame. Interpret mode does the same, but adds it to
every kernel without collective_id, `skip_device_barrier` or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ringsched.auditing.form import Form
from ringsched.auditing.places import sub_jaxprs
from ringsched.diagnostics import Span
from ringsched.program.trace import SemaphoreKey, Signal, Wait

FLAG: SemaphoreKey = ("device_barrier", 0)


def adds_barrier(form: Form) -> bool:
    """Whether the compiler adds one."""
    params = form.compiler_params
    if form.collective_id is not None or getattr(params, "skip_device_barrier", False):
        return False
    return _communicates(form.jaxpr) and not _takes_barrier(form.jaxpr)


def added_barrier(rank: int, ranks: int, origin: Span | None) -> Iterator[Signal | Wait]:
    """What the compiler has a device do in it."""
    others = range(1, ranks) if rank == 0 else ()
    told = "the compiler's barrier of all devices"
    if rank:
        yield Signal(rank=0, semaphore=FLAG, amount=1, note=f"{told}: signal rank 0", origin=origin)
    if ranks > 1:
        yield Wait(semaphore=FLAG, amount=len(others) or 1, note=f"{told}: wait", origin=origin)
    for other in others:
        yield Signal(rank=other, semaphore=FLAG, amount=1, note=f"{told}: signal rank {other}", origin=origin)


def _communicates(jaxpr: Any) -> bool:
    return any(_reaches_out(eqn) or any(map(_communicates, sub_jaxprs(eqn))) for eqn in jaxpr.eqns)


def _reaches_out(eqn: Any) -> bool:
    match eqn.primitive.name:
        case "dma_start":
            sent = eqn.params["tree"].unflatten(eqn.invars)[3]
            return sent is not None
        case "semaphore_signal":
            device = eqn.params["args_tree"].unflatten(eqn.invars)[3]
            return device is not None
        case _:
            return False


def _takes_barrier(jaxpr: Any) -> bool:
    """One that nothing uses is dropped before it comes to the compiler."""
    used = {id(atom) for eqn in jaxpr.eqns for atom in eqn.invars} | {id(atom) for atom in jaxpr.outvars}
    return any(
        (eqn.primitive.name == "get_barrier_semaphore" and id(eqn.outvars[0]) in used)
        or any(map(_takes_barrier, sub_jaxprs(eqn)))
        for eqn in jaxpr.eqns
    )
