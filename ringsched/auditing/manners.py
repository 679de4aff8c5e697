"""Findings about a kernel that leave its traces as they are: what is never used or written, ids, limits of the chip."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from jax._src.pallas import core as pallas

from ringsched.auditing import faults
from ringsched.auditing.blocks import GridBlock
from ringsched.auditing.chips import Chip, padded_bytes
from ringsched.auditing.kernel import Kernel, KernelWalker
from ringsched.auditing.memory import Buffer
from ringsched.auditing.recorded import Access, Copy, Frame
from ringsched.diagnostics import Diagnostic, Span
from ringsched.program.program import BARRIER
from ringsched.program.trace import Signal, Wait


def manners(kernel: Kernel, chip: Chip | None) -> Iterator[Diagnostic]:
    """chip None: one that is not known, whose limits are not looked at."""
    yield from _written_and_used(kernel)
    yield from _barrier_and_id(kernel)
    yield from _uneven_tiles(kernel)
    if chip is not None:
        yield from _limits(kernel, chip)
        yield from _hops(kernel, chip)


def _written_and_used(kernel: Kernel) -> Iterator[Diagnostic]:
    written: dict[str, tuple[Buffer, Span | None, KernelWalker]] = {}
    used: set[str] = set()
    for walker in kernel.walkers:
        for op in walker.ops:
            match op:
                case Access():
                    used.add(op.region.buffer.name)
                    if op.kind == "write":
                        written.setdefault(op.region.buffer.name, (op.region.buffer, op.origin, walker))
                case Copy():
                    used.update((op.source.buffer.name, op.target.buffer.name, op.received[0]))
                    used.update(() if op.sent is None else (op.sent[0],))
                    written.setdefault(op.target.buffer.name, (op.target.buffer, op.origin, walker))
                case Wait() | Signal():
                    used.add(op.semaphore[0])
    for target, origin, walker in written.values():
        if target.role == "operand" and target.space in ("hbm", "any"):
            yield faults.operand_written(target, origin, walker.at)
    place = kernel.places.call
    for each in kernel.memory.distinct:
        if each.role == "result" and each.name not in written and 0 not in each.shape:
            yield faults.never_written(each, place, kernel.walkers[0].at)
        elif each.name not in used and each.role in ("operand", "scratch", "semaphore"):
            kind = {"operand": "operand", "scratch": "scratch memory"}.get(each.role, "semaphore")
            yield faults.unused(kind, each.name, place)


def _barrier_and_id(kernel: Kernel) -> Iterator[Diagnostic]:
    params, number = kernel.call.form.compiler_params, kernel.call.form.collective_id
    ops = (op for walker in kernel.walkers for op in walker.ops)
    barrier = next((op for op in ops if isinstance(op, Wait | Signal) and op.semaphore[0] == BARRIER), None)
    if barrier is not None and number is None:
        yield faults.barrier_without_id(barrier.origin)
    lenient = getattr(params, "allow_collective_id_without_custom_barrier", False)
    if barrier is None and number is not None and not lenient:
        yield faults.id_without_barrier(int(number), kernel.places.call)


def _uneven_tiles(kernel: Kernel) -> Iterator[Diagnostic]:
    for block in kernel.memory.windows:
        for dimension, (tile, side) in enumerate(_tiles(block)):
            if tile and side % tile:
                yield faults.uneven_tile(block.window.name, dimension, tile, side, kernel.places.call)


def _tiles(block: GridBlock) -> Iterator[tuple[int, int]]:
    for dimension, side in zip(block.mapping.block_shape, block.mapping.array_aval.shape, strict=True):
        yield (dimension.block_size if isinstance(dimension, pallas.Blocked) else 0), int(side)


def _limits(kernel: Kernel, chip: Chip) -> Iterator[Diagnostic]:
    """What the kernel asks for itself; the compiler adds to it, so a little less may be too much as well."""
    windows = {block.window.name for block in kernel.memory.windows}
    fixed = kernel.memory.distinct
    vmem = sum(_bytes(each) * (2 if each.name in windows else 1) for each in fixed)
    semaphores = sum(map(_semaphores, fixed))
    most_vmem, most_semaphores = vmem, semaphores
    for op in kernel.walkers[0].ops:
        if isinstance(op, Frame):
            sign = 1 if op.enters else -1
            vmem += sign * sum(map(_bytes, op.buffers))
            semaphores += sign * sum(map(_semaphores, op.buffers))
            most_vmem, most_semaphores = max(vmem, most_vmem), max(semaphores, most_semaphores)
    if most_semaphores > chip.semaphores:
        yield faults.too_many_semaphores(most_semaphores, chip.semaphores, chip.kind, kernel.places.call)
    if most_vmem > chip.vmem:
        largest = sorted(fixed, key=_bytes, reverse=True)[:3]
        parts = [(each.name, _bytes(each) * (2 if each.name in windows else 1)) for each in largest if _bytes(each)]
        yield faults.too_much_vmem(most_vmem, chip.vmem, chip.kind, parts, kernel.places.call)


def _bytes(buffer: Buffer) -> int:
    return padded_bytes(buffer) if buffer.space == "vmem" else 0


def _semaphores(buffer: Buffer) -> int:
    total = 1 if buffer.is_semaphore and buffer.role != "barrier" else 0
    for side in buffer.shape:
        total *= side
    return total


def _hops(kernel: Kernel, chip: Chip) -> Iterator[Diagnostic]:
    if not chip.powers:
        return
    for walker in kernel.walkers:
        for op in walker.ops:
            if isinstance(op, Copy) and op.rank != walker.rank:
                for axis, hop in _distances(op.rank, walker):
                    if hop & (hop - 1):
                        yield faults.odd_hop(axis, hop, chip.kind, op.origin, walker.at)


def _distances(rank: int, walker: KernelWalker) -> Iterator[tuple[str, int]]:
    """How far away a device is along each mesh axis, the shorter way round."""
    for axis, side in reversed(list(walker.sizes.items())):
        rank, place = divmod(rank, side)
        distance = (place - walker.coordinates[axis]) % side
        yield axis, min(distance, side - distance)


def shared_ids(kernels: Sequence[Kernel]) -> tuple[tuple[Kernel, Kernel], ...]:
    """Kernels with one collective_id whose devices signal other devices on the barrier."""
    return tuple(
        (first, second)
        for first, second in itertools.combinations(kernels, 2)
        if first.call.form.collective_id is not None
        and first.call.form.collective_id == second.call.form.collective_id
        and _talk(first) != _talk(second)
    )


def _talk(kernel: Kernel) -> list[Counter[int]]:
    """How often each device signals each other one on the barrier, in a call."""
    found = []
    for walker in kernel.walkers:
        signals = [op for op in walker.ops if isinstance(op, Signal) and op.semaphore[0] == BARRIER]
        counts: Counter[int] = Counter()
        for op in signals:
            counts[op.rank] += op.amount
        found.append(counts)
    return found
