"""pallas_call  →  the memory behind the kernel's refs, and the blocks that its grid copies in and out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax._src.pallas import core as pallas

from ringsched.auditing.data import Box, Lost
from ringsched.auditing.memory import Buffer
from ringsched.auditing.names import Names, argument_names, buffer
from ringsched.auditing.places import Places
from ringsched.auditing.tracing import Call
from ringsched.auditing.walk import Undecided


@dataclass(frozen=True, slots=True)
class GridBlock:
    """A block of the grid: the window that the kernel sees, and which part of the array it is at a grid step.

    `number`: of the operand, or with `is_output` of the result.
    """

    window: Buffer
    mapping: Any
    is_output: bool
    number: int


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """What the kernel's refs are, in order: `inputs` operands, `outputs` results, scratch.

    `tables`: the scalar operands, with their positions among all operands.
    """

    refs: tuple[Buffer, ...]
    blocks: tuple[GridBlock, ...]
    tables: tuple[tuple[int, Buffer], ...]
    inputs: int
    outputs: int

    @property
    def distinct(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(self.refs))


def memory_of(call: Call, names: Names, places: Places) -> KernelMemory:
    """What the refs of a kernel are. Raises Undecided."""
    params = call.eqn.params
    grid, jaxpr = params["grid_mapping"], params["jaxpr"]
    given = argument_names(jaxpr, len(jaxpr.invars))
    tables = grid.num_index_operands
    arrays = len(grid.block_mappings)
    aliases = {output: source - tables for source, output in params["input_output_aliases"]}
    refs: list[Buffer] = []
    blocks: list[GridBlock] = []
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
            blocks.append(GridBlock(refs[-1], mapping, output >= 0, output if output >= 0 else number))
    scalars = ((k, ref) for k, ref in enumerate(refs) if ref.role == "operand" and ref.space == "smem")
    inputs = tables + grid.num_inputs
    return KernelMemory(tuple(refs), tuple(blocks), tuple(scalars), inputs, tables + arrays - inputs)


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


def content_of(block: GridBlock, index: tuple[int, ...], call: Call) -> Any:
    """What the grid puts into a window; the window of a result holds nothing in particular."""
    starts, sizes = box_of(block, index)
    if block.is_output:
        return Box(None, (), (), block.window.shape)
    if starts is None:
        return Lost(f"which block {block.window.name} is")
    return Box(call.operands[block.number], starts, sizes, block.window.shape)


def box_of(block: GridBlock, index: tuple[int, ...]) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Where a block begins in its array, None where that is not known, and its size there."""
    starts, sizes = [], []
    for number, dimension in zip(index, block.mapping.block_shape, strict=False):
        match dimension:
            case pallas.Blocked(block_size=size):
                starts.append(number * size)
                sizes.append(size)
            case pallas.Element(block_size=size, padding=(0, 0)):
                starts.append(number)
                sizes.append(size)
            case pallas.Squeezed():
                starts.append(number)
                sizes.append(1)
            case _:
                return None, ()
    known = -1 not in index and len(starts) == len(block.mapping.array_aval.shape) and not block.mapping.transforms
    return (tuple(starts) if known else None), tuple(sizes)
