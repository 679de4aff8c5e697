"""Words for what the walk itself finds.

RS407 two cores race
RS431 out of bounds · RS432 a DMA of unequal ends · RS433 an operand is written · RS434 a result is never written
RS435 … or in part · RS521 collective_id and barrier · RS522 LOGICAL on several axes · RS523 no such device
RS525 a shared collective_id · RS621 semaphores · RS622 VMEM · RS702 undecided · RS703 values undecided
RS801 a wrong value · RS802 it depends on unwritten memory · RS902 unused · RS903 a hop · RS904 a tile
RS905 a shared collective_id, in order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def block_outside(
    error: OutOfBounds, index: tuple[int, ...], step: tuple[int, ...], span: Span | None, at: Mapping[str, int]
) -> Diagnostic:
    """index: of the block at this step of the grid."""
    name, dimension = error.buffer.name, error.dimension
    return Diagnostic(
        code="RS431",
        message=f"block {index} of {name} is outside of its array: dimension {dimension} has {error.side} elements, "
        f"and the block begins at {error.first}",
        primary=label(span, f"at step {step} of the grid"),
        counterexample=at,
        help="the index map of a BlockSpec counts blocks, from 0 to the last one that begins in the array",
    )


def unequal(source: Region, target: Region, span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    def size(region: Region) -> str:
        return f"{region.shape} {region.dtype}"

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


def logical_id(axes: Mapping[str, int], span: Span | None, consequence: Diagnostic) -> Diagnostic:
    """consequence: what goes wrong with it."""
    mesh = " × ".join(f"{name}={size}" for name, size in axes.items())
    first = next(iter(axes))
    return Diagnostic(
        code="RS522",
        message=f"a LOGICAL device id on a mesh of several axes ({mesh})",
        primary=label(span, "this number counts all devices of the mesh"),
        counterexample=consequence.counterexample,
        notes=(f"with it, {consequence.code}: {consequence.message}",),
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
        help=error.way_on,
    )


def outside_scope(note: str, rank: int, span: Span | None, ranks: int) -> Diagnostic:
    """note: the DMA, in words."""
    return Diagnostic(
        code="RS402",
        message=f"`{note}` reaches memory of a run_scoped that rank {rank} is not in",
        primary=label(span, "writes there"),
        counterexample={"ranks": ranks, "rank": rank},
        help="memory of a run_scoped is there between its beginning and its end only: send where both ranks are in it",
    )


def shared_flags(names: tuple[str, str], spans: tuple[Span | None, Span | None]) -> Diagnostic:
    """names, spans: of semaphores of two scopes, and of the scopes."""
    second = label(spans[1], f"{names[1]} is a semaphore of this one")
    return Diagnostic(
        code="RS702",
        message=f"{names[0]} and {names[1]} may be one flag: they are semaphores of scopes that are not in each other, "
        "and a signal for one may come while the other is in use",
        primary=label(spans[0], f"{names[0]} is a semaphore of this run_scoped"),
        secondary=() if second is None else (second,),
        help="put one of them into scratch_shapes of the kernel: it has a flag of its own there",
    )


def more_calls(calls: int, units: int) -> Diagnostic:
    """units: that one wait takes, from devices of which one may be as many calls ahead."""
    return Diagnostic(
        code="RS702",
        message=f"nothing is wrong in {calls} calls in a row, and {units} may be needed to show what is: a wait takes "
        f"{units} units, and no device has to be near another one",
        help="let all devices meet in each call, or say with --calls (calls=) how many in a row there are at most",
    )


def unused(kind: str, name: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        code="RS902",
        message=f"{kind} {name} is never used",
        primary=label(span, "the kernel"),
        help="drop it, or use it",
    )


def partly_written(
    name: str,
    where: tuple[int, ...],
    missing: int,
    total: int,
    rank: int,
    span: Span | None,
    at: Mapping[str, int],
) -> Diagnostic:
    return Diagnostic(
        code="RS435",
        message=f"nothing writes {name}[{_index(where)}] on rank {rank}, nor {missing - 1} other elements of {total}",
        primary=label(span, "the kernel"),
        counterexample=at,
        help="let the grid, and the DMAs, cover all of it: round the number of tiles up, not down",
    )


def meaningless(
    name: str, where: tuple[int, ...], rank: int, culprit: str | None, span: Span | None, at: Mapping[str, int]
) -> Diagnostic:
    source = f"what {culprit} holds before anything writes it" if culprit else "memory that nothing has written"
    return Diagnostic(
        code="RS802",
        message=f"{name}[{_index(where)}] of rank {rank} depends on {source}",
        primary=label(span, f"reads {culprit} before it is written" if culprit else "the kernel"),
        counterexample=at,
        help=f"write {culprit or 'the memory'} before it is read; scratch memory and results are not zero at the start",
    )


def wrong_value(
    name: str,
    where: tuple[int, ...],
    rank: int,
    values: tuple[object, object],
    notes: tuple[str, ...],
    span: Span | None,
    at: Mapping[str, int],
) -> Diagnostic:
    got, want = values
    return Diagnostic(
        code="RS801",
        message=f"{name}[{_index(where)}] of rank {rank} is {_number(got)}, expected {_number(want)}",
        primary=label(span, "writes it last"),
        counterexample=at,
        notes=notes,
        help="no order of events makes it right: look at which chunk is sent, added or stored here",
    )


def endless(span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    return Diagnostic(
        code="RS506",
        message="a loop never ends: a round leaves everything as it was, and the next one comes",
        primary=label(span, "the loop"),
        counterexample=at,
        help="let every round come nearer to the end, or count the rounds",
    )


def values_open(reason: str) -> Diagnostic:
    return Diagnostic(
        code="RS703",
        message=f"values are not known: {reason}",
        help="races, deadlock and leftovers are decided; what the kernels compute is not",
    )


def _index(where: tuple[int, ...]) -> str:
    return ", ".join(map(str, where))


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def uneven_tile(name: str, dimension: int, tile: int, side: int, span: Span | None) -> Diagnostic:
    return Diagnostic(
        code="RS904",
        message=f"the tile {tile} of {name} does not divide dimension {dimension}, which has {side}",
        primary=label(span, f"the last tile has {side % tile} of its own, and what follows is meaningless"),
        help="mask what is read from it where it is summed, or pad the array",
    )


def too_many_semaphores(count: int, limit: int, chip: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        code="RS621",
        message=f"the kernel has {count} semaphores, and {chip} has room for {limit}",
        primary=label(span, "the kernel"),
        help="use semaphores again once all that counts on them has been waited for: one for each slot, not each step",
    )


def too_much_vmem(count: int, limit: int, chip: str, parts: Sequence[tuple[str, int]], span: Span | None) -> Diagnostic:
    return Diagnostic(
        code="RS622",
        message=f"the kernel takes {_size(count)} of VMEM, and a core of {chip} has {_size(limit)}",
        primary=label(span, "the kernel"),
        notes=(f"most of it: {', '.join(f'{name} {_size(size)}' for name, size in parts)}",) if parts else (),
        help="leave large operands in HBM (memory_space=pltpu.HBM) and bring tiles in by DMA, or make blocks smaller",
    )


def odd_hop(axis: str, hop: int, chip: str, span: Span | None, at: Mapping[str, int]) -> Diagnostic:
    return Diagnostic(
        code="RS903",
        message=f"a DMA over {hop} hops along {axis}; {chip} is only promised to route powers of two",
        primary=label(span, "goes there"),
        counterexample=at,
        help="send to a neighbour, or over 2, 4, 8 … hops",
    )


def shared_id(
    number: int, names: tuple[str, str], early: Diagnostic | None, spans: tuple[Span | None, Span | None]
) -> Diagnostic:
    """early: what goes wrong for that reason; None where nothing does."""
    message = f"{names[0]} and {names[1]} share collective_id={number} and signal different devices"
    here, there = (label(span, "a kernel with this collective_id") for span in spans)
    return Diagnostic(
        code="RS905" if early is None else "RS525",
        message=message if early is None else f"{message}: {early.message}",
        primary=here if early is None or early.primary is None else early.primary,
        secondary=tuple(each for each in (here, there) if each is not None),
        counterexample=None if early is None else early.counterexample,
        notes=("nothing goes wrong here, in this order",) if early is None else early.notes,
        help="give kernels whose devices signal other devices a collective_id of their own",
    )


def cores_race(notes: tuple[str, str], spans: tuple[Span | None, Span | None], at: Mapping[str, int]) -> Diagnostic:
    """notes, spans: of an access of the first core and of one of the second."""
    second = label(spans[1], notes[1])
    return Diagnostic(
        code="RS407",
        message=f"`{notes[0]}` (core 0) and `{notes[1]}` (core 1) meet in one memory, and one of them writes",
        primary=label(spans[0], notes[0]),
        secondary=() if second is None else (second,),
        counterexample=at,
        notes=("the cores of a device share HBM, and nothing orders what they do within a kernel",),
        help="give each step of a parallel dimension a part of the memory of its own, or make the dimension arbitrary",
    )


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
