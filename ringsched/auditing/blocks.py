"""A kernel  →  the memory behind its refs, and the blocks that its grid copies in and out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jax._src.pallas import core as pallas

from ringsched.auditing.data import Box, Lost
from ringsched.auditing.form import Form
from ringsched.auditing.memory import Buffer, OutOfBounds, Role
from ringsched.auditing.names import Names, argument_names, buffer
from ringsched.auditing.places import Places
from ringsched.auditing.tracing import Call
from ringsched.auditing.walk import Undecided


@dataclass(frozen=True, slots=True)
class GridBlock:
    """A block of the grid: the window that the kernel sees, and which part of the array it is at a grid step.

    `number`: of the operand, or with `is_output` of the result. `is_whole`: it is all of the array, so that nothing is
    copied in between and the window is the operand or the result itself.
    """

    window: Buffer
    mapping: Any
    is_output: bool
    number: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """What the kernel's refs are, in order: `inputs` operands, results, scratch. `outputs`: those of the results.

    `tables`: the scalar operands, with their positions among all operands.
    """

    refs: tuple[Buffer, ...]
    blocks: tuple[GridBlock, ...]
    tables: tuple[tuple[int, Buffer], ...]
    inputs: int
    outputs: tuple[Buffer, ...]

    @property
    def windows(self) -> tuple[GridBlock, ...]:
        """The blocks that are copied in or out."""
        return tuple(block for block in self.blocks if not block.is_whole)

    @property
    def distinct(self) -> tuple[Buffer, ...]:
        return tuple(dict.fromkeys(self.refs))


def memory_of(call: Call, names: Names, places: Places) -> KernelMemory:
    """What the refs of a kernel are. Raises Undecided."""
    form = call.form
    found = _of_arrays(form, names, places) if form.mapping is None else _of_blocks(form, names, places)
    for ref in (*found.refs[: found.inputs], *found.outputs):
        if ref.is_semaphore:
            reason = f"the semaphore {ref.name} of {form.name} goes from kernel to kernel, and so may what counts on it"
            raise Undecided(reason, places.call, "start and wait for a DMA in one kernel: then the audit can follow it")
    return found


def _of_arrays(form: Form, names: Names, places: Places) -> KernelMemory:
    given = argument_names(form.jaxpr, len(form.refs))
    refs: list[Buffer] = []
    for number, variable in enumerate(form.refs):
        output = number - form.operands
        if form.in_place and number < form.operands:
            refs.append(_in_hbm(buffer(names.fresh(given[number]), variable.aval, "shared")))
        elif 0 <= output < len(form.results) and output in form.aliases:
            refs.append(_shared(refs, form.aliases[output], variable, places))
        else:
            kinds: tuple[Role, Role, Role] = ("operand", "result", "scratch")
            kind = kinds[(number >= form.operands) + (output >= len(form.results))]
            found = buffer(names.fresh(given[number]), variable.aval, kind)
            refs.append(found if kind == "scratch" else _in_hbm(found))
    outputs = range(form.operands) if form.in_place else range(form.operands, form.operands + len(form.results))
    return KernelMemory(tuple(refs), (), (), form.operands, tuple(refs[number] for number in outputs))


def _in_hbm(ref: Buffer) -> Buffer:
    """An array that nothing copies into VMEM, unless its type says where it is."""
    return replace(ref, space="hbm") if ref.space in ("any", "vmem") and not ref.is_semaphore else ref


def _of_blocks(form: Form, names: Names, places: Places) -> KernelMemory:
    grid = form.mapping
    given = argument_names(form.jaxpr, len(form.refs))
    tables = grid.num_index_operands
    arrays = len(grid.block_mappings)
    refs: list[Buffer] = []
    blocks: list[GridBlock] = []
    for number, variable in enumerate(form.refs):
        mapping = grid.block_mappings[number - tables] if tables <= number < tables + arrays else None
        output = number - form.operands
        if mapping is None:
            role: Role = "operand" if number < tables else "scratch"
            refs.append(buffer(names.fresh(given[number]), variable.aval, role))
            continue
        is_whole = tuple(mapping.transformed_block_aval.shape) == tuple(mapping.array_aval.shape)
        ref = buffer(names.fresh(given[number]), variable.aval, "result" if output >= 0 else "operand")
        if output >= 0 and output in form.aliases:
            operand = refs[form.aliases[output]]
            if not is_whole or operand.role == "window":
                raise Undecided(
                    "input_output_aliases of a block of the grid",
                    places.call,
                    "give the operand whole, in HBM (memory_space=pl.ANY)",
                )
            if ref.space not in ("vmem", "smem") or operand.space != ref.space:
                ref = _shared(refs, form.aliases[output], variable, places)
        elif not is_whole:
            ref = replace(ref, role="window")
            if ref.space not in ("vmem", "smem"):
                raise Undecided(
                    f"{ref.name} is a block of an array that is not copied into VMEM",
                    places.call,
                    "give the operand whole, in HBM (memory_space=pl.ANY), and slice its ref",
                )
        refs.append(ref)
        blocks.append(GridBlock(ref, mapping, output >= 0, output if output >= 0 else number, is_whole))
    scalars = ((k, ref) for k, ref in enumerate(refs) if ref.role == "operand" and ref.space == "smem")
    return KernelMemory(
        tuple(refs),
        tuple(blocks),
        tuple(scalars),
        form.operands,
        tuple(refs[form.operands : form.operands + len(form.results)]),
    )


def _shared(refs: list[Buffer], number: int, variable: Any, places: Places) -> Buffer:
    """A result that is the same memory as an operand; both refs are of one buffer.

    So it is in HBM. In VMEM each has memory of its own, and that of the result holds nothing at the beginning: the
    compiler loads the operand into its window only (read in what libtpu 0.0.42.1 makes for v5p).
    """
    operand = refs[number]
    result = buffer(operand.name, variable.aval, "shared")
    if operand.role != "operand" or operand.shape != result.shape:
        raise Undecided(
            "input_output_aliases of an operand that is no whole array in HBM",
            places.call,
            "give the operand whole, in HBM (memory_space=pl.ANY), and with the shape of the result",
        )
    if {operand.space, result.space} - {"hbm", "any"}:
        raise Undecided(
            "input_output_aliases of an operand in HBM and a result that is not, or the reverse",
            places.call,
            "one memory space for both",
        )
    refs[number] = result
    return result


def content_of(block: GridBlock, index: tuple[int, ...], call: Call) -> Any:
    """What the grid puts into a window; the window of a result holds nothing in particular."""
    if block.is_output:
        return Box(None, (), (), block.window.shape)
    starts, sizes = box_of(block, index)
    if starts is None:
        return Lost(f"how block {block.window.name} is cut out of its array")
    return Box(call.operands[block.number], starts, sizes, block.window.shape)


def box_of(block: GridBlock, index: tuple[int, ...]) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Where a block begins in its array, None where that cannot be told, and its size there. Raises OutOfBounds.

    A block may reach over the end of its array; it may not begin there, or before its first element.
    """
    starts, sizes = [], []
    sides = block.mapping.array_aval.shape
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
    if len(starts) != len(sides):
        return None, ()
    for dimension, (start, size, side) in enumerate(zip(starts, sizes, sides, strict=True)):
        if start < 0 or (start and start >= side):
            raise OutOfBounds(block.window, dimension, start, start + size - 1, side)
    return (None if block.mapping.transforms else tuple(starts)), tuple(sizes)
