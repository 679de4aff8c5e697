"""Kernels whose grid two cores of a device share out.

    devices  →  findings of the two cores together

Each core has its own VMEM, SMEM and semaphores, the barrier among them; a DMA or a signal that names a device and no
core goes to the same core there. So the first cores of all devices are one machine, and the second cores another one:
each is checked as devices of one core are. Nothing orders the two but the ends of kernels, where the cores of a device
wait for each other, and they meet in HBM alone: there, any two accesses that overlap, one of them a write, race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from ringsched.auditing import faults
from ringsched.auditing.expectation import Expect
from ringsched.auditing.extract import Extracted, extract
from ringsched.auditing.grids import CORES, is_shared_out
from ringsched.auditing.kernel import Kernel
from ringsched.auditing.layout import Stay, lay_out
from ringsched.auditing.memory import Buffer, Range, Region
from ringsched.auditing.recorded import Access, Copy, Frame, Loaded, Recorded, Stored
from ringsched.auditing.rounds import check_calls, largest_wait
from ringsched.auditing.tracing import Device
from ringsched.auditing.values import Checked, check_values
from ringsched.auditing.walk import MAKE_CONSTANT, Undecided
from ringsched.auditing.words import findings
from ringsched.diagnostics import Diagnostic, Span
from ringsched.program.trace import SemaphoreKey, Signal, Wait
from ringsched.verify.machine import Machine

OF_A_CORE = ("vmem", "smem")  # memory that each core has for itself; all other is the device's


def check_cores(
    found: Sequence[Device], mesh_axes: Mapping[str, int], calls: int | None, expect: Expect | None
) -> Checked:
    """What is wrong, or not known, where both cores run. On one core in sequence, everything is right."""
    if not any(is_shared_out(call) for device in found for call in device.calls):
        return Checked(values="not checked")
    cores = [extract(found, mesh_axes, cores=CORES, core=core) for core in range(CORES)]
    told = [_of_core(each, core) for core, one in enumerate(cores) for each in one.findings]
    if told:
        return Checked(values="not checked", findings=tuple(told))
    try:
        told = [*_hazards(cores, mesh_axes, calls), *_races(cores)]
    except Undecided as error:
        told = [faults.undecided(error, {})]
    if told:
        return Checked(values="not checked", findings=tuple(told))
    joined = [[_joined(*stays) for stays in zip(*both, strict=True)] for both in zip(*_stays(cores), strict=True)]
    return check_values(joined, found, mesh_axes, expect)


def _stays(cores: Sequence[Extracted]) -> list[tuple[tuple[Stay, ...], ...]]:
    return [core.devices for core in cores]


def _of_core(finding: Diagnostic, core: int) -> Diagnostic:
    at = {**(finding.counterexample or {}), "core": core}
    return replace(finding, counterexample=at, notes=(*finding.notes, f"with two cores in a device, on core {core}"))


# -- each core for itself


def _hazards(cores: Sequence[Extracted], mesh_axes: Mapping[str, int], asked: int | None) -> list[Diagnostic]:
    """Raises Undecided where a kernel could only end because a core is already in the next one."""
    sides = tuple(mesh_axes.values())
    told = []
    for core, one in enumerate(cores):
        execution, layout = lay_out(one.devices, sides)
        report, calls, enough = check_calls(execution, one.devices, asked)
        told += [_of_core(each, core) for each in findings(report, execution, layout, mesh_axes, calls)]
        if not enough:
            told.append(_of_core(faults.more_calls(calls, largest_wait(one.devices)), core))
        if not told:
            _check_ends(one, sides)
    return told


def _check_ends(one: Extracted, sides: tuple[int, ...]) -> None:
    """Each kernel ends without the next one: else a core might wait for one that waits for the first's neighbour."""
    if len({tuple(stay.kernel for stay in stays) for stays in one.devices}) > 1:
        raise Undecided(
            "devices call different kernels, and two cores of each wait for each other",
            None,
            "let all devices call the same kernels",
        )
    for stays in zip(*one.devices, strict=True):
        machine = Machine(lay_out([[stay] for stay in stays], sides)[0], 1)
        if any(done < len(trace) for done, trace in zip(machine.executed, machine.traces, strict=True)):
            place = one.kernels[stays[0].kernel].places.call
            raise Undecided(
                "a kernel ends only when the next one has begun on another device",
                place,
                "let all devices meet at the end of each kernel",
            )


# -- both, in the memory of a device


@dataclass(frozen=True, slots=True, kw_only=True)
class _Touch:
    """An access to memory of device `owner`, in its `stay`-th kernel. `memory`: the number of a ref or of a result."""

    owner: int
    stay: int
    memory: tuple[str, int]
    ranges: tuple[Range, ...]
    writes: bool
    note: str
    origin: Span | None

    def meets(self, other: _Touch) -> bool:
        return (self.writes or other.writes) and all(
            _overlap(a, b) for a, b in zip(self.ranges, other.ranges, strict=True)
        )


def _races(cores: Sequence[Extracted]) -> list[Diagnostic]:
    """The first of each pair of lines. Raises Undecided where it is not known which block is stored."""
    first, second = ([*_touches(one)] for one in cores)
    places: dict[tuple[int, int, tuple[str, int]], list[_Touch]] = {}
    for touch in second:
        places.setdefault((touch.owner, touch.stay, touch.memory), []).append(touch)
    told: dict[tuple[Span | None, Span | None, tuple[str, int]], Diagnostic] = {}
    for touch in first:
        for other in places.get((touch.owner, touch.stay, touch.memory), ()):
            key = touch.origin, other.origin, touch.memory
            if key not in told and touch.meets(other):
                told[key] = faults.cores_race(
                    (touch.note, other.note),
                    (touch.origin, other.origin),
                    {"ranks": len(cores[0].devices), "rank": touch.owner},
                )
    return list(told.values())


def _touches(one: Extracted) -> Iterator[_Touch]:
    """Those of memory that is not a core's own; each once."""
    seen: set[tuple[object, ...]] = set()
    for rank, stays in enumerate(one.devices):
        for number, stay in enumerate(stays):
            kernel = one.kernels[stay.kernel]
            for touch in _of_stay(rank, number, stay, kernel):
                key = touch.owner, touch.stay, touch.memory, touch.ranges, touch.writes, touch.origin
                if key not in seen:
                    seen.add(key)
                    yield touch


def _of_stay(rank: int, number: int, stay: Stay, kernel: Kernel) -> Iterator[_Touch]:
    refs = {buffer.name: position for position, buffer in enumerate(kernel.memory.distinct)}

    def of(owner: int, region: Region, writes: bool, note: str, origin: Span | None) -> Iterator[_Touch]:
        if region.buffer.name not in refs and not _own(region.buffer):
            raise Undecided(
                f"{region.buffer.name} is memory of a run_scoped that is no core's own",
                origin,
                "put it into scratch_shapes of the kernel, or into VMEM",
            )
        if not _own(region.buffer) and region.elements:
            memory = "ref", refs[region.buffer.name]
            yield _Touch(
                owner=owner, stay=number, memory=memory, ranges=region.ranges, writes=writes, note=note, origin=origin
            )

    def stored(result: int, ranges: tuple[Range, ...], note: str) -> _Touch:
        memory, place = ("result", result), kernel.places.call
        return _Touch(owner=rank, stay=number, memory=memory, ranges=ranges, writes=True, note=note, origin=place)

    for op in stay.ops:
        match op:
            case Access():
                yield from of(rank, op.region, op.kind == "write", op.note, op.origin)
            case Copy():
                yield from of(rank, op.source, False, op.note, op.origin)
                yield from of(op.rank, op.target, True, op.note, op.origin)
            case Stored():
                if op.starts is None:
                    raise Undecided(f"which block {op.region.buffer.name} is", kernel.places.call, MAKE_CONSTANT)
                box = tuple(Range(start, size) for start, size in zip(op.starts, op.sizes, strict=True))
                yield stored(op.number, box, f"the grid stores block {op.region.buffer.name}")
            case Frame() | Loaded() | Wait() | Signal():
                pass
            case _:
                assert_never(op)
    if stay.ops:  # a result that a core has for itself is copied out when it has run its part of the grid
        for result, each in enumerate(stay.results):
            if each.memory is not None and _own(each.memory):
                yield stored(result, tuple(Range(0, side) for side in each.shape), f"all of {each.name} is stored")


def _own(buffer: Buffer) -> bool:
    return buffer.is_semaphore or buffer.space in OF_A_CORE


def _overlap(a: Range, b: Range) -> bool:
    if a.stride == b.stride == 1:
        return max(a.start, b.start) < min(a.stop, b.stop)
    indices = range(b.start, b.stop, b.stride)
    return any(index in indices for index in range(a.start, a.stop, a.stride))


# -- values: one core after the other, for they do not race


def _joined(first: Stay, second: Stay) -> Stay:
    """What a device does when its second core begins as the first has ended, as one core with the memory of both."""
    shared = {mine.name: other for mine, other in zip(second.memory, first.memory, strict=True) if not _own(mine)}

    def of(buffer: Buffer) -> Buffer:
        return shared.get(buffer.name) or replace(buffer, name=f"{buffer.name} on core 1")

    own = tuple(of(buffer) for buffer in second.memory if _own(buffer))
    operands = tuple((of(buffer), value) for buffer, value in second.operands if _own(buffer))
    return replace(
        first,
        ops=(*first.ops, *(_moved(op, of) for op in second.ops)),
        memory=(*first.memory, *own),
        operands=(*first.operands, *operands),
    )


def _moved(op: Recorded, of: Callable[[Buffer], Buffer]) -> Recorded:
    """The same in other memory, on other semaphores."""

    def region(old: Region) -> Region:
        return replace(old, buffer=of(old.buffer))

    def key(old: SemaphoreKey) -> SemaphoreKey:
        return f"{old[0]} on core 1", old[1]

    match op:
        case Access() | Loaded() | Stored():
            return replace(op, region=region(op.region))
        case Copy():
            sent = None if op.sent is None else key(op.sent)
            return replace(op, source=region(op.source), target=region(op.target), sent=sent, received=key(op.received))
        case Frame():
            return replace(op, buffers=tuple(map(of, op.buffers)))
        case Wait() | Signal():
            return replace(op, semaphore=key(op.semaphore))
        case _:
            assert_never(op)
