"""The joined Program of a chain → does it compute the layers? By one execution with numbers in place of matrices.

A unit is a number modulo a prime, an epilogue a square and more. Where the two sides differ as polynomials, they agree
on numbers that have nothing to do with each other with a chance of about 2^-45. A Program without races computes the
same on every interleaving, so one execution decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ringsched.collectives import Promise
from ringsched.program.program import Buffer, Program
from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Op, Signal, Wait
from ringsched.schedule.schedule import Layers, Moment, Shard

PRIME = (1 << 61) - 1
Memory = dict[str, list[int]]


def wrong_ranks(
    program: Program,
    execution: Execution,
    promise: Promise,
    layers: Layers,
    finishes: Mapping[str, int],
) -> tuple[int, ...]:
    """The ranks whose result is not that of the layers. The execution has a trace for each rank, and no hazard.

    promise: of the first link. finishes: the link whose epilogue is applied to what is computed into a buffer.
    """
    memories = [_operands(program, rank) for rank in range(promise.topology.ranks)]
    owners = [promise.owner(chunk) for chunk in promise.chunks()]
    if layers.whole:
        for memory in memories:
            memory["x"] = list(memories[0]["x"])
    wanted = [list(memory["x"]) for memory in memories]
    if layers.whole:
        wanted = [_owned(values, owners, rank) for rank, values in enumerate(wanted)]
    count = program.buffer("w1").shape[0]
    for layer in range(count):
        for number, moment in enumerate(layers.moments, 1):
            weights = [_layer(memory[f"w{number}"], layer, count) for memory in memories]
            wanted = _link(wanted, weights, moment, layers.shard, owners)
            wanted = [[_epilogue(value, number) for value in values] for values in wanted]
    if layers.whole:
        shards = [iter(values) for values in wanted]
        wanted = [[next(shards[owner]) for owner in owners]] * len(memories)
    _run(execution, memories, finishes)
    return tuple(rank for rank, memory in enumerate(memories) if memory["o"] != wanted[rank])


def _operands(program: Program, rank: int) -> Memory:
    inputs = [buffer for buffer in program.buffers if buffer.space == "input"]
    return {buffer.name: _numbers(buffer, rank) for buffer in inputs}


def _numbers(buffer: Buffer, rank: int) -> list[int]:
    count = 1
    for extent in buffer.shape:
        count *= extent
    texts = (f"{buffer.name} {rank} {unit}".encode() for unit in range(count))
    return [int.from_bytes(hashlib.sha256(text).digest()[:16], "big") % PRIME for text in texts]


def _layer(units: list[int], layer: int, layers: int) -> list[int]:
    each = len(units) // layers
    return units[layer * each : (layer + 1) * each]


def _epilogue(value: int, link: int) -> int:
    return (value * value + 3 * value + link) % PRIME


def _link(
    values: list[list[int]], weights: list[list[int]], moment: Moment, shard: Shard, owners: list[int]
) -> list[list[int]]:
    """What the link must give at each rank; `owners`: of all chunks, in their order."""
    if moment == "on arrival":
        whole = [value for each in values for value in each]
        if shard == "rows":
            return [[value * w[0] for value in whole] for w in weights]
        return [[sum(value * factor for value, factor in zip(whole, w, strict=True))] for w in weights]
    terms = [
        [value * w[0] for value in each] if shard == "rows" else [each[0] * factor for factor in w]
        for each, w in zip(values, weights, strict=True)
    ]
    sums = [sum(column) for column in zip(*terms, strict=True)]
    return [_owned(sums, owners, rank) for rank in range(len(values))]


def _owned(values: list[int], owners: list[int], rank: int) -> list[int]:
    """Those of the chunks that a rank owns."""
    return [value for value, owner in zip(values, owners, strict=True) if owner == rank]


def _run(execution: Execution, memories: list[Memory], finishes: Mapping[str, int]) -> None:
    for memory in memories:
        memory.update({name: [0] * units for name, units in execution.capacity if name not in memory})
    counts: list[dict[tuple[str, int], int]] = [{} for _ in memories]
    place = [0] * len(memories)
    moved = True
    while moved:
        moved = False
        for rank, trace in enumerate(execution.traces):
            while place[rank] < len(trace) and _step(rank, trace[place[rank]], memories, counts, finishes):
                place[rank] += 1
                moved = True


def _step(
    rank: int,
    op: Op,
    memories: list[Memory],
    counts: list[dict[tuple[str, int], int]],
    finishes: Mapping[str, int],
) -> bool:
    """Executes one instruction; False where it has to wait. A DMA moves its data when it starts."""
    match op:
        case Wait():
            if counts[rank].get(op.semaphore, 0) < op.amount:
                return False
            counts[rank][op.semaphore] -= op.amount
        case Signal():
            counts[op.rank][op.semaphore] = counts[op.rank].get(op.semaphore, 0) + op.amount
        case Dma():
            _write(memories[op.rank], op.target, _read(memories[rank], op.source))
            for at, key in ((rank, op.sent), (op.rank, op.received)):
                if key is not None:
                    counts[at][key] = counts[at].get(key, 0) + op.amount
        case Compute():
            _compute(memories[rank], op, finishes)
        case Enter():
            for block in op.blocks:
                _write(memories[rank], block, [rank + 1] * block.units)
        case _:
            pass
    return True


def _read(memory: Memory, block: Block) -> list[int]:
    return memory[block.buffer][block.start : block.stop]


def _write(memory: Memory, block: Block, values: list[int]) -> None:
    memory[block.buffer][block.start : block.stop] = values


def _compute(memory: Memory, op: Compute, finishes: Mapping[str, int]) -> None:
    if op.target is None:
        return
    sources = [_read(memory, block) for block in op.sources]
    match op.op:
        case "add":
            values = [a + b for a, b in zip(*sources, strict=True)]
        case "multiply":
            left, right, *plus = sources
            count = max(len(left), len(right))
            left, right = (each * count if len(each) == 1 else each for each in (left, right))
            values = [a * b for a, b in zip(left, right, strict=True)]
            values = [sum(values)] if op.target.units == 1 else values
            values = [a + b for a, b in zip(values, plus[0], strict=True)] if plus else values
        case "copy":
            values = sources[0]
        case "zero":
            values = [0] * op.target.units
    link = finishes.get(op.target.buffer)
    if link is not None and not (op.op == "copy" and op.sources[0].buffer == "x"):
        values = [_epilogue(value, link) for value in values]
    _write(memory, op.target, [value % PRIME for value in values])
