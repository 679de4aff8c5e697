"""Execution → a Pallas kernel that does just that: for comparing what an audit reads out of it with the original."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, Signal, Wait

BUFFERS = {"x": 2, "slots": 2}
SEMAPHORES = ("recv", "send", "credit")
COLS = 128
UNIT = COLS * 4  # bytes
MOST = 16  # units that one wait takes


def writable(execution: Execution) -> Execution:
    """The same with what a kernel has: DMAs of one size that count at both ends, all memory from entry to exit."""
    traces = []
    for rank, trace in enumerate(execution.traces):
        body = [_writable(op, rank) for op in trace if not isinstance(op, Enter | Exit)]
        blocks = tuple(Block(name, 0, units) for name, units in BUFFERS.items())
        frame = {"blocks": blocks, "semaphores": SEMAPHORES}
        traces.append((Enter(**frame), *body, Exit(**frame)))
    return replace(execution, traces=tuple(traces))


def _writable(op: Op, rank: int) -> Op:
    if isinstance(op, Signal) and op.semaphore[0] == "recv":
        return replace(op, semaphore=("credit", 0))  # what DMAs count on cannot be signalled
    if not isinstance(op, Dma):
        return op
    units = min(op.source.units, op.target.units)
    source = Block(op.source.buffer, op.source.start, op.source.start + units)
    target = Block(op.target.buffer, op.target.start, op.target.start + units)
    sent = None if op.rank == rank else op.sent or ("send", 1)
    return replace(op, source=source, target=target, sent=sent, received=op.received or ("recv", 2), amount=units)


def function_of(execution: Execution) -> Callable[[Any], Any]:
    """For shard_map over axis "i"."""
    barrier = any(isinstance(op, Wait | Signal) and op.semaphore[0] == "barrier" for t in execution.traces for op in t)

    def kernel(o_ref, junk, x, slots, recv, send, credit):
        memory = {"x": x, "slots": slots}
        semaphores = {"recv": recv, "send": send, "credit": credit}
        o_ref[...] = jnp.zeros(o_ref.shape, o_ref.dtype)
        for rank, trace in enumerate(execution.traces):

            @pl.when(lax.axis_index("i") == rank)
            def _(trace=trace):
                for op in trace:
                    _write(op, memory, semaphores, junk)

    def function(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[
                pltpu.VMEM((MOST, COLS), jnp.float32),
                *(pltpu.VMEM((units, COLS), jnp.float32) for units in BUFFERS.values()),
                pltpu.SemaphoreType.DMA((3,)),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.SemaphoreType.REGULAR((1,)),
            ],
            compiler_params=pltpu.CompilerParams(collective_id=0 if barrier else None, skip_device_barrier=not barrier),
        )()

    return function


def _write(op: Op, memory: dict[str, Any], semaphores: dict[str, Any], junk: Any) -> None:
    def at(block: Block) -> Any:
        return memory[block.buffer].at[pl.ds(block.start, block.units)]

    def semaphore(key: tuple[str, int]) -> Any:
        return pltpu.get_barrier_semaphore() if key[0] == "barrier" else semaphores[key[0]].at[key[1]]

    def on_dma(key: tuple[str, int]) -> bool:
        return key[0] in ("recv", "send")

    match op:
        case Dma(sent=None):
            pltpu.make_async_copy(at(op.source), at(op.target), semaphore(op.received)).start()
        case Dma():
            ends = at(op.source), at(op.target), semaphore(op.sent), semaphore(op.received)
            pltpu.make_async_remote_copy(
                *ends, device_id={"i": jnp.int32(op.rank)}, device_id_type=pl.DeviceIdType.MESH
            ).start()
        case Wait() if on_dma(op.semaphore):
            size = junk.at[pl.ds(0, op.amount)]
            pltpu.make_async_copy(size, size, semaphore(op.semaphore)).wait()
        case Wait():
            pl.semaphore_wait(semaphore(op.semaphore), op.amount)
        case Signal():
            pl.semaphore_signal(
                semaphore(op.semaphore),
                op.amount,
                device_id={"i": jnp.int32(op.rank)},
                device_id_type=pl.DeviceIdType.MESH,
            )
        case Compute():
            for source in op.sources:
                junk[pl.ds(0, source.units)] = at(source)[...]
            if op.target is not None:
                at(op.target)[...] = jnp.zeros((op.target.units, COLS), jnp.float32)
