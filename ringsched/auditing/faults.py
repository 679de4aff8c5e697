"""Words for what the walk itself finds.

RS431 out of bounds · RS432 a DMA of unequal ends · RS433 an operand is written · RS434 a result is never written
RS521 collective_id and barrier · RS522 LOGICAL on several axes · RS523 no such device · RS702 undecided · RS902 unused
"""

from __future__ import annotations

from collections.abc import Mapping

from ringsched.auditing.memory import Buffer, OutOfBounds, Region
from ringsched.auditing.walk import Undecided
from ringsched.diagnostics import Diagnostic, Label, Span


def label(span: Span | None, text: str) -> Label | None:
    return None if span is None else Label(span=span, text=text)


def out_of_bounds(error: OutOfBounds, span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    name, dimension, side = error.buffer.name, error.dimension, error.side
    what = f"index {error.first}" if error.first == error.last else f"the slice {error.first}:{error.last + 1}"
    kind = "semaphores" if error.buffer.is_semaphore else f"dimension {dimension}"
    return Diagnostic(
        code="RS431",
        message=f"{what} leaves {kind} of {name}, which has {side}",
        primary=label(span, f"{name} has the shape {error.buffer.shape}"),
        counterexample=at,
        help="indices do not wrap and do not count from the end: take the remainder, or shorten the slice",
    )


def unequal(source: Region, target: Region, span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    def size(region: Region) -> str:
        return f"{region.shape} {region.buffer.dtype}"

    return Diagnostic(
        code="RS432",
        message=f"a DMA from {source} ({size(source)}) to {target} ({size(target)})",
        primary=label(span, "source and target differ in shape or dtype"),
        counterexample=at,
        help="a DMA moves bytes as they are: cut source and target to the same shape, of one dtype",
    )


def operand_written(buffer: Buffer, span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    return Diagnostic(
        code="RS433",
        message=f"{buffer.name} is an operand, and the kernel writes into it",
        primary=label(span, f"writes into {buffer.name}"),
        counterexample=at,
        help="write into a result or into scratch memory, or name the operand in input_output_aliases",
    )


def never_written(buffer: Buffer, span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    return Diagnostic(
        code="RS434",
        message=f"nothing writes the result {buffer.name}",
        primary=label(span, "the kernel"),
        counterexample=at,
        help=f"write {buffer.name} on every device, or drop it",
    )


def barrier_without_id(span: Span | None) -> Diagnostic:
    return Diagnostic(
        code="RS521",
        message="the kernel uses the barrier semaphore and has no collective_id",
        primary=label(span, "takes the barrier semaphore"),
        help="pltpu.CompilerParams(collective_id=…), the same number for kernels that talk to the same devices",
    )


def id_without_barrier(number: int, span: Span | None) -> Diagnostic:
    return Diagnostic(
        code="RS521",
        message=f"the kernel has collective_id={number} and never uses the barrier semaphore",
        primary=label(span, "the kernel is called here"),
        help="signal and wait on pltpu.get_barrier_semaphore() before the first remote access, or drop collective_id",
    )


def logical_id(axes: Mapping[str, int], span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    mesh = " × ".join(f"{name}={size}" for name, size in axes.items())
    first = next(iter(axes))
    return Diagnostic(
        code="RS522",
        message=f"a LOGICAL device id on a mesh of several axes ({mesh})",
        primary=label(span, "this number counts all devices of the mesh"),
        counterexample=at,
        help=f'device_id={{"{first}": …}} with DeviceIdType.MESH names one axis and keeps the others',
    )


def no_such_device(text: str, span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    return Diagnostic(
        code="RS523",
        message=f"there is no such device: {text}",
        primary=label(span, "goes to a device outside the mesh"),
        counterexample=at,
        help="device ids do not wrap: take the remainder, jax.lax.rem(i + 1, n) or jax.lax.rem(i + n - 1, n)",
    )


def undecided(error: Undecided, at: Mapping[str, int]) -> Diagnostic:
    return Diagnostic(
        code="RS702",
        message=f"the kernel cannot be followed: {error.reason}",
        primary=label(error.span, "the audit ends here"),
        counterexample=at or None,
        help="the verdict is open: nothing was found, and nothing was proven",
    )


def unused(kind: str, name: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        code="RS902",
        message=f"{kind} {name} is never used",
        primary=label(span, "the kernel"),
        help="drop it, or use it",
    )
