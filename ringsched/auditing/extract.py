"""The kernels that each device calls  →  what it does in them: recorded operations, the kernels' memory, findings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ringsched.auditing import faults
from ringsched.auditing.barrier import adds_barrier
from ringsched.auditing.blocks import GridBlock, KernelMemory, box_of, content_of, memory_of
from ringsched.auditing.chips import Chip
from ringsched.auditing.grids import is_shared_out, steps_of
from ringsched.auditing.kernel import Kernel, KernelWalker
from ringsched.auditing.layout import Result, Stay
from ringsched.auditing.manners import manners
from ringsched.auditing.memory import OutOfBounds
from ringsched.auditing.names import Names
from ringsched.auditing.places import Places, place_of, sub_jaxprs
from ringsched.auditing.recorded import Access, Copy, Fault
from ringsched.auditing.scalars import Unknown
from ringsched.auditing.tracing import Call, Device
from ringsched.auditing.walk import MAKE_CONSTANT, Undecided
from ringsched.diagnostics import Diagnostic
from ringsched.program.trace import SemaphoreKey, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """`devices[rank]`: its kernels in order. With a finding that ends the walk there are none (`complete` is false)."""

    devices: tuple[tuple[Stay, ...], ...]
    kernels: tuple[Kernel, ...]
    findings: tuple[Diagnostic, ...]
    complete: bool


def extract(
    devices: Sequence[Device],
    mesh_axes: Mapping[str, int],
    chip: Chip | None = None,
    *,
    cores: int = 1,
    core: int | None = None,
) -> Extracted:
    """Walks all kernels on every device; never raises for what the user wrote. chip: whose limits are looked at.

    cores: of a device; where it has one, nobody says how steps of a grid that talk to each other share it. core: the
    one that is walked, with its steps of each grid; None: one core that runs them all.
    """
    names = Names()
    kernels: dict[int, Kernel] = {}
    stays: list[tuple[Stay, ...]] = []
    found: list[Diagnostic] = []
    for rank, place in enumerate(itertools.product(*(range(size) for size in mesh_axes.values()))):
        coordinates, path = dict(zip(mesh_axes, place, strict=True)), []
        for call in devices[rank].calls:
            try:
                if id(call.eqn) not in kernels:
                    kernels[id(call.eqn)] = _kernel(call, names)
                kernel = kernels[id(call.eqn)]
                walker = KernelWalker(rank, coordinates, dict(mesh_axes), call.form, kernel.places, names)
                kernel.walkers.append(walker)
                _walk(walker, call, kernel.memory, core)
                if cores == 1:
                    _check_cores(walker, call)
                path.append(_stay(walker, call, kernel.memory, list(kernels).index(id(call.eqn))))
            except Undecided as error:
                found.append(faults.undecided(error, {"rank": rank}))
            except Fault as fault:
                found.append(fault.diagnostic)
        stays.append(tuple(path))
    found += _order_unknown(devices)
    if not found:
        found += [each for kernel in kernels.values() for each in _across_devices(kernel.walkers)]
    if found:
        return Extracted(devices=(), kernels=(), findings=_first_of_each(found), complete=False)
    # What a kernel never does is seen where it does everything.
    found = [each for kernel in kernels.values() for each in manners(kernel, chip)] if core is None else []
    findings = _first_of_each(found)
    whole = tuple(kernels.values())
    return Extracted(devices=_with_flags(stays, whole), kernels=whole, findings=findings, complete=True)


def _kernel(call: Call, names: Names) -> Kernel:
    places = Places(call.eqn, call.form.jaxpr)
    names.note_uses(call.form.jaxpr, sub_jaxprs)
    return Kernel(call, places, names, memory_of(call, names, places), [])


def _order_unknown(devices: Sequence[Device]) -> list[Diagnostic]:
    """A kernel in a long loop is taken for two rounds of it, which is enough only if there is no other kernel."""
    distinct = {id(call.eqn) for device in devices for call in device.calls}
    repeated = [call for device in devices for call in device.calls if call.repeated]
    if not repeated or len(distinct) == 1:
        return []
    reason = "a kernel is called in a long loop, and there are others"
    way_on = "audit the loop alone, and the function with fewer rounds of it"
    return [faults.undecided(Undecided(reason, place_of(repeated[0].eqn), way_on), {})]


def _first_of_each(found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The same fault on several devices is told once, of the first."""
    first: dict[tuple[object, ...], Diagnostic] = {}
    for diagnostic in found:
        first.setdefault((diagnostic.code, diagnostic.primary or diagnostic.message), diagnostic)
    return tuple(first.values())


def _with_flags(devices: Sequence[tuple[Stay, ...]], kernels: Sequence[Kernel]) -> tuple[tuple[Stay, ...], ...]:
    """The semaphores of all scopes of a kernel are there as long as it runs, on every device."""
    flags = [tuple(dict.fromkeys(each for walker in k.walkers for each in walker.scoped)) for k in kernels]
    return tuple(
        tuple(replace(stay, memory=(*stay.memory, *flags[stay.kernel])) for stay in stays) for stays in devices
    )


def _stay(walker: KernelWalker, call: Call, memory: KernelMemory, number: int) -> Stay:
    operands = zip(memory.refs[: memory.inputs], call.operands, strict=True)
    return Stay(
        kernel=number,
        ops=tuple(walker.ops),
        memory=memory.distinct,
        operands=tuple((ref, value) for ref, value in operands if ref.role != "window"),
        results=tuple(
            Result(ref.name, tuple(out.shape), out.dtype, None if ref.role == "window" else ref)
            for ref, out in zip(memory.outputs, call.form.results, strict=True)
        ),
    )


def _walk(walker: KernelWalker, call: Call, memory: KernelMemory, core: int | None) -> None:
    for number, table in memory.tables:
        walker.fill(table, call.operands[number])
    if adds_barrier(call.form):
        walker.meet(memory)
    steps = steps_of(call, core)
    indices = [[_block_index(block, step, walker, memory) for block in memory.blocks] for step in steps]
    windows = [(k, block) for k, block in enumerate(memory.blocks) if not block.is_whole]
    jaxpr, constants = call.form.jaxpr, len(call.form.jaxpr.constvars)
    for number, step in enumerate(steps):
        walker.program = step
        for k, block in windows:
            if number == 0 or indices[number][k] != indices[number - 1][k]:
                walker.refresh(block.window, content_of(block, indices[number][k], call))
        walker.run(jaxpr, memory.refs[:constants], memory.refs[constants:])
        for k, block in windows:
            if block.is_output and (number + 1 == len(steps) or indices[number + 1][k] != indices[number][k]):
                starts, sizes = box_of(block, indices[number][k])
                walker.store(block.window, block.number, starts, sizes)


def _check_cores(walker: KernelWalker, call: Call) -> None:
    """Steps of a parallel dimension may run on two cores at once."""
    if is_shared_out(call) and any(not isinstance(op, Access) for op in walker.ops):
        reason = "a parallel dimension of the grid and semaphores, and nobody says that devices have two cores"
        raise Undecided(reason, walker.places.call, "--cores 2 (cores=2), or dimensions that are not parallel")


def _block_index(
    block: GridBlock, step: tuple[int, ...], walker: KernelWalker, memory: KernelMemory
) -> tuple[int, ...]:
    """Which block it is at a grid step. Raises Undecided, Fault for one outside of the array."""
    closed = block.mapping.index_map_jaxpr
    scalars = len(closed.jaxpr.invars) - len(step)
    results = walker.enter(closed, [*step, *memory.refs[:scalars]])
    place = walker.places.call
    if any(isinstance(result, Unknown) for result in results):
        raise Undecided(f"which block {block.window.name} is depends on data", place, MAKE_CONSTANT)
    index = tuple(int(result) for result in results)
    try:
        box_of(block, index)
    except OutOfBounds as error:
        raise Fault(faults.block_outside(error, index, step, place, walker.at)) from None
    return index


def _across_devices(walkers: Sequence[KernelWalker]) -> list[Diagnostic]:
    """What can only be told once all devices have been walked."""
    flooded = {name for walker in walkers for name in walker.flooded}
    found = []
    for walker in walkers:
        for name, span in walker.peeked.items():
            if name in flooded:
                reason = f"it depends on {name}, which another device writes"
                found.append(faults.undecided(Undecided(reason, span, MAKE_CONSTANT), walker.at))
    return found + [each for walker in walkers for each in _counted_elsewhere(walker, walkers)]


def _counted_elsewhere(walker: KernelWalker, walkers: Sequence[KernelWalker]) -> Iterator[Diagnostic]:
    """Semaphores that a device reads, and that change while it does."""
    if not walker.counted:
        return
    for other in walkers:
        for op in other.ops:
            keys: set[SemaphoreKey | None] = set()
            match op:
                case Signal() if other is not walker and op.rank == walker.rank:
                    keys = {op.semaphore}
                case Copy():
                    keys = {op.received if op.rank == walker.rank else None, op.sent if other is walker else None}
                case _:
                    pass
            for key in walker.counted.keys() & keys:
                reason = f"how much has come on {key[0]}[{key[1]}] when it is read"
                way_on = "wait for what has to have come: a wait may leave the semaphore as it is (decrement=False)"
                yield faults.undecided(Undecided(reason, walker.counted[key], way_on), walker.at)
                return
