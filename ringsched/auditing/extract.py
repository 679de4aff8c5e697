"""The pallas_calls of each device  →  what it does in them: recorded operations, the kernels' memory, findings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringsched.auditing import faults
from ringsched.auditing.kernel import KernelWalker
from ringsched.auditing.layout import Stay
from ringsched.auditing.memory import Buffer, whole
from ringsched.auditing.names import Names, argument_names, buffer
from ringsched.auditing.places import Places, place_of, sub_jaxprs
from ringsched.auditing.recorded import Access, Copy, Fault
from ringsched.auditing.scalars import Unknown
from ringsched.auditing.tracing import Call
from ringsched.auditing.walk import Undecided
from ringsched.diagnostics import Diagnostic
from ringsched.program.program import BARRIER
from ringsched.program.trace import Signal, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """`devices[rank]`: its kernels in order. With a finding that ends the walk there are none (`complete` is false)."""

    devices: tuple[tuple[Stay, ...], ...]
    findings: tuple[Diagnostic, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of the grid: the window that the kernel sees, and which part of the array it is at a grid step."""

    window: Buffer
    mapping: Any
    is_output: bool


@dataclass(frozen=True, slots=True)
class _Memory:
    """What the kernel's refs are, in order. `tables`: the scalar operands, with their positions among all operands."""

    refs: tuple[Buffer, ...]
    blocks: tuple[_Block, ...]
    tables: tuple[tuple[int, Buffer], ...]

    @property
    def distinct(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(self.refs))


@dataclass(frozen=True, slots=True, eq=False)
class _Kernel:
    """A pallas_call of the function, and what is the same for all devices that make it."""

    call: Call
    places: Places
    names: Names
    memory: _Memory
    walkers: list[KernelWalker]


def extract(devices: Sequence[Sequence[Call]], mesh_axes: Mapping[str, int]) -> Extracted:
    """Walks all kernels on every device; never raises for what the user wrote."""
    names = Names()
    kernels: dict[int, _Kernel] = {}
    stays: list[tuple[Stay, ...]] = []
    found: list[Diagnostic] = []
    for rank, place in enumerate(itertools.product(*(range(size) for size in mesh_axes.values()))):
        coordinates, path = dict(zip(mesh_axes, place, strict=True)), []
        for call in devices[rank]:
            try:
                if id(call.eqn) not in kernels:
                    kernels[id(call.eqn)] = _kernel(call, names)
                kernel = kernels[id(call.eqn)]
                walker = KernelWalker(rank, coordinates, dict(mesh_axes), kernel.places, names)
                kernel.walkers.append(walker)
                _walk(walker, call, kernel.memory)
                path.append(Stay(tuple(walker.ops), kernel.memory.distinct))
            except Undecided as error:
                found.append(faults.undecided(error, {"rank": rank}))
            except Fault as fault:
                found.append(fault.diagnostic)
        stays.append(tuple(path))
    found += _order_unknown(devices)
    if not found:
        found += [each for kernel in kernels.values() for each in _across_devices(kernel.walkers)]
    if found:
        return Extracted(devices=(), findings=_first_of_each(found), complete=False)
    found = [each for kernel in kernels.values() for each in _manners(kernel)]
    return Extracted(devices=tuple(stays), findings=_first_of_each(found), complete=True)


def _kernel(call: Call, names: Names) -> _Kernel:
    places = Places(call.eqn)
    names.note_uses(call.eqn.params["jaxpr"], sub_jaxprs)
    _check_supported(call, places)
    return _Kernel(call, places, names, _memory(call, names, places), [])


def _order_unknown(devices: Sequence[Sequence[Call]]) -> list[Diagnostic]:
    """A kernel in a long loop is taken for two rounds of it, which is enough only if there is no other kernel."""
    distinct = {id(call.eqn) for calls in devices for call in calls}
    repeated = [call for calls in devices for call in calls if call.repeated]
    if not repeated or len(distinct) == 1:
        return []
    reason = "a kernel is called in a long loop, and there are others"
    return [faults.undecided(Undecided(reason, place_of(repeated[0].eqn)), {})]


def _first_of_each(found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The same fault on several devices is told once, of the first."""
    first: dict[tuple[object, ...], Diagnostic] = {}
    for diagnostic in found:
        first.setdefault((diagnostic.code, diagnostic.primary or diagnostic.message), diagnostic)
    return tuple(first.values())


def _check_supported(call: Call, places: Places) -> None:
    grid = call.eqn.params["grid_mapping"]
    if call.eqn.params.get("mesh") is not None:
        raise Undecided("it runs on a mesh of cores", places.call)
    if grid.num_dynamic_grid_bounds or grid.vmapped_dims:
        raise Undecided("the size of its grid is not known, or vmapped", places.call)
    if math.prod(grid.grid) > 100_000:
        raise Undecided("its grid has more than 100,000 steps", places.call)


def _memory(call: Call, names: Names, places: Places) -> _Memory:
    params = call.eqn.params
    grid, jaxpr = params["grid_mapping"], params["jaxpr"]
    given = argument_names(jaxpr, len(jaxpr.invars))
    tables = grid.num_index_operands
    arrays = len(grid.block_mappings)
    aliases = {output: source - tables for source, output in params["input_output_aliases"]}
    refs: list[Buffer] = []
    blocks: list[_Block] = []
    for number, variable in enumerate(jaxpr.invars):
        mapping = grid.block_mappings[number - tables] if tables <= number < tables + arrays else None
        output = number - tables - grid.num_inputs
        if mapping is None:
            role = "operand" if number < tables else "scratch"
            refs.append(buffer(names.fresh(given[number]), variable.aval, role))
        elif output >= 0 and output in aliases:
            refs.append(_shared(refs, tables + aliases[output], variable, _is_whole(mapping, grid.grid), places))
        elif _is_whole(mapping, grid.grid):
            refs.append(buffer(names.fresh(given[number]), variable.aval, "result" if output >= 0 else "operand"))
        else:
            refs.append(buffer(names.fresh(given[number]), variable.aval, "window"))
            if refs[-1].space not in ("vmem", "smem"):
                raise Undecided(f"{refs[-1].name} is a block of an array that is not copied into VMEM", places.call)
            blocks.append(_Block(refs[-1], mapping, output >= 0))
    scalars = ((k, ref) for k, ref in enumerate(refs) if ref.role == "operand" and ref.space == "smem")
    return _Memory(tuple(refs), tuple(blocks), tuple(scalars))


def _shared(refs: list[Buffer], number: int, variable: Any, is_whole: bool, places: Places) -> Buffer:
    """A result that is the same memory as an operand; both refs are of one buffer."""
    operand = refs[number] if number >= 0 else None
    result = buffer(operand.name, variable.aval, "shared") if operand is not None else None
    if operand is None or result is None or not is_whole or operand.role != "operand":
        raise Undecided("input_output_aliases of a block of the grid or of a scalar operand", places.call)
    if operand.space not in ("hbm", "any") or result.space not in ("hbm", "any") or operand.shape != result.shape:
        raise Undecided("input_output_aliases of an operand that is not in HBM", places.call)
    refs[number] = result
    return result


def _is_whole(mapping: Any, grid: tuple[int, ...]) -> bool:
    """Whether the block is the whole array at every step, so that nothing is copied in between."""
    return tuple(mapping.transformed_block_aval.shape) == tuple(mapping.array_aval.shape)


def _walk(walker: KernelWalker, call: Call, memory: _Memory) -> None:
    grid = call.eqn.params["grid_mapping"].grid
    walker.grid = tuple(int(side) for side in grid)
    walker.barrier = int(getattr(call.eqn.params["compiler_params"], "collective_id", None) or 0)
    for number, table in memory.tables:
        walker.fill(table, call.operands[number])
    steps = list(itertools.product(*(range(side) for side in walker.grid)))
    indices = [[_block_index(block, step, walker, memory) for block in memory.blocks] for step in steps]
    for number, step in enumerate(steps):
        walker.program = step
        for k, block in enumerate(memory.blocks):
            if number == 0 or indices[number][k] != indices[number - 1][k]:
                walker.refresh(block.window)
        walker.run(call.eqn.params["jaxpr"], [], memory.refs)
        for k, block in enumerate(memory.blocks):
            if block.is_output and (number + 1 == len(steps) or indices[number + 1][k] != indices[number][k]):
                note = f"the grid stores block {block.window.name}"
                walker.access("read", whole(block.window), walker.places.call, note)
    _check_cores(walker, call)


def _check_cores(walker: KernelWalker, call: Call) -> None:
    """Steps of a parallel dimension may run on two cores at once."""
    semantics = getattr(call.eqn.params["compiler_params"], "dimension_semantics", None) or ()
    parallel = any("parallel" in str(kind).lower() for kind in semantics)
    if parallel and math.prod(walker.grid) > 1 and any(not isinstance(op, Access) for op in walker.ops):
        raise Undecided("a parallel dimension of the grid and semaphores", walker.places.call)


def _block_index(block: _Block, step: tuple[int, ...], walker: KernelWalker, memory: _Memory) -> tuple[int, ...]:
    """Which block it is at a grid step; where the index map does not tell, one that no other step has."""
    closed = block.mapping.index_map_jaxpr
    scalars = len(closed.jaxpr.invars) - len(step)
    results = walker.enter(closed, [*step, *memory.refs[:scalars]])
    if any(isinstance(result, Unknown) for result in results):
        return (-1, *step)
    return tuple(int(result) for result in results)


def _across_devices(walkers: Sequence[KernelWalker]) -> list[Diagnostic]:
    """What can only be told once all devices have been walked."""
    flooded = {name for walker in walkers for name in walker.flooded}
    found = []
    for walker in walkers:
        for name, span in walker.peeked.items():
            if name in flooded:
                reason = f"it depends on {name}, which another device writes"
                found.append(faults.undecided(Undecided(reason, span), walker.at))
        for (name, _), (site, span) in walker.far.items():
            if any(other.scopes[site] != 1 for other in walkers):
                reason = f"{name} is reached on another device, and its run_scoped is not entered once on each"
                found.append(faults.undecided(Undecided(reason, span), walker.at))
    return found


def _manners(kernel: _Kernel) -> list[Diagnostic]:
    """Findings that leave the traces as they are."""
    call, walkers, memory, places = kernel.call, kernel.walkers, kernel.memory, kernel.places
    found = []
    written: dict[str, tuple[Buffer, Any, KernelWalker]] = {}
    used: set[str] = set()
    barrier = None
    for walker in walkers:
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
                    if op.semaphore[0] == BARRIER and barrier is None:
                        barrier = op
    for target, origin, walker in written.values():
        if target.role == "operand" and target.space in ("hbm", "any"):
            found.append(faults.operand_written(target, origin, walker.at))
    for each in memory.distinct:
        if each.role == "result" and each.name not in written and 0 not in each.shape:
            found.append(faults.never_written(each, places.call, walkers[0].at))
        elif each.name not in used and each.role in ("operand", "scratch", "semaphore"):
            kind = {"operand": "operand", "scratch": "scratch memory"}.get(each.role, "semaphore")
            found.append(faults.unused(kind, each.name, places.call))
    params = call.eqn.params["compiler_params"]
    number = getattr(params, "collective_id", None)
    if barrier is not None and number is None:
        found.append(faults.barrier_without_id(barrier.origin))
    lenient = getattr(params, "allow_collective_id_without_custom_barrier", False)
    if barrier is None and number is not None and not lenient:
        found.append(faults.id_without_barrier(int(number), places.call))
    return found
