"""Dump text of the TPU compiler → TargetReport. Pure functions on text, so small texts test them.

The compiler writes two files that matter here for each kernel, both taken after register allocation:

*packed bundles*    one line an issue cycle, empty cycles included: the address, then the instructions of the bundle
*region dump*       the nesting of regions, the trip counts of loops, and the allocations with their offsets

The bundles of the last pass are no use: it drops empty ones, and a matmul then seems to exceed the peak.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass

# (issue cycles of one vmatmul on its unit, units in a core): four 128 × 128 units, or two of 256 × 256.
MATMUL_UNITS: Mapping[str, tuple[int, int]] = {
    "v4": (16, 4),
    "v5e": (16, 4),
    "v5p": (16, 4),
    "v6e": (8, 2),
    "tpu7x": (8, 2),
}

_TWO_CORES_A_DEVICE = ("v5p",)  # v4 can have them, too, but its topologies here have each core as a device
_BUNDLE = re.compile(r"^ *(?:0x)?([0-9a-f]+) +(?:[A-Z]{2})?: [> ]*\{")
_MATMUL = re.compile(r"= vmatmul\.")
_TRIPS = re.compile(r"^ *loop: start=(-?\d+), step=(-?\d+), limit=(-?\d+)$")
# What the compiler makes of a copy within VMEM: %next = %counter + 1 until it is at least a constant, from 0 on.
_START = re.compile(r"^ *(%\w+) = smov (-?\d+)\b")
_COUNTER = re.compile(r"^ *(%\w+) = sphi (%\w+), (%\w+)")
_STEP = re.compile(r"^ *(%\w+) = sadd\.s32 (-?\d+), (%\w+)")
_UNTIL = re.compile(r"^ *(%\w+) = scmp\.ge\.s32\.totalorder (%\w+), (-?\d+)$")
_REGION = re.compile(r"^ *\$region(\d+)\b.*?(// loop_body)?$")
_RANGE = re.compile(r"^ *// region range: \[(\d+), (\d+)\)$")
_BRANCH = re.compile(r"= sbr\.rel (?:\(!(%\w+)\))?.*?target bundleno = (\d+) .*?region = (\d+)")
_ALLOCATION = re.compile(r"^ *#allocation\d+\w* \[shape = '[^']*', space=(\w+), size = (\w+), offset = (\w+), (\w+)")
_OPERAND = re.compile(r"= inlined_call_operand\.vmem \[shape: ([a-z]+)(\d*)\w*\[([\d,]*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetReport:
    """What the TPU compiler made of a kernel; a figure that does not apply, or that the text does not give, is None."""

    target: str
    kernel: str
    compile_seconds: float
    vmem_bytes: int | None  # highest address in use, operands that live in VMEM included
    semaphores: int | None  # scratch and pipeline semaphores; the barrier semaphore is not the kernel's own
    cycles: int | None  # issue cycles of one core; time spent waiting is not in them
    ideal_cycles: int | None  # the kernel's matmuls alone, at the peak of the matrix units
    utilization: float | None  # ideal_cycles / cycles
    cores: int | None = (
        None  # of each device, that the kernel runs on; each has the cycles above, on its share of the work
    )
    notes: tuple[str, ...] = ()  # of how operands are placed, and ranks (`RS906: …`)

    def to_json(self) -> dict[str, str | int | float | tuple[str, ...] | None]:
        """Returns the fields under their names."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Bundles [start, end) run `trips` times; None where only the running kernel knows how often."""

    start: int
    end: int
    trips: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDump:
    """The texts of one kernel; empty where the compiler wrote none."""

    name: str
    bundles: str
    regions: str


def read_bundles(bundles: str) -> tuple[int, ...]:
    """Returns, for each bundle address, how many matmul instructions the bundle issues."""
    matmuls: list[int] = []
    for line in bundles.splitlines():
        match = _BUNDLE.match(line)
        if match and int(match[1], 16) == len(matmuls):  # anything else continues the bundle before
            matmuls.append(0)
        if matmuls:
            matmuls[-1] += len(_MATMUL.findall(line))
    return tuple(matmuls)


def read_loops(regions: str) -> tuple[Loop, ...]:
    """Returns the loops of a kernel, in the order in which they end."""
    announced: int | None = None
    trips: dict[int, int | None] = {}
    loops: list[Loop] = []
    counts = _Counts()
    end = 0
    for line in regions.splitlines():
        if match := _TRIPS.match(line):
            start, step, limit = (int(number) for number in match.groups())
            announced = max(1, math.ceil((limit - start) / step)) if step else None
        elif match := _REGION.match(line):
            if match[2]:
                trips[int(match[1])], announced = announced, None
        elif match := _RANGE.match(line):
            end = int(match[2])
        elif match := _BRANCH.search(line):
            until, target, region = match[1], int(match[2]), int(match[3])
            # A branch to the start of a loop body closes the loop. The region that holds the branch ends after
            # its delay slots, which run on every trip, too (1 on v4, 4 on v5 and v6e, 6 on v7x).
            if region in trips:
                counted = trips[region]
                loops.append(Loop(start=target, end=end, trips=counts.trips(until) if counted is None else counted))
        else:
            counts.read(line)
    return tuple(loops)


class _Counts:
    """The counters of loops that are not announced: %c = sphi %start, %next; %next = sadd 1, %c; scmp.ge %next, 9."""

    def __init__(self) -> None:
        self._starts: dict[str, int] = {}
        self._counters: dict[str, tuple[str, str]] = {}
        self._steps: dict[str, tuple[int, str]] = {}
        self._untils: dict[str, tuple[str, int]] = {}

    def read(self, line: str) -> None:
        if match := _START.match(line):
            self._starts[match[1]] = int(match[2])
        elif match := _COUNTER.match(line):
            self._counters[match[1]] = match[2], match[3]
        elif match := _STEP.match(line):
            self._steps[match[1]] = int(match[2]), match[3]
        elif match := _UNTIL.match(line):
            self._untils[match[1]] = match[2], int(match[3])

    def trips(self, until: str | None) -> int | None:
        """Of the loop that goes on while `until` does not hold; None where the counter is not of this form."""
        following, limit = self._untils.get(until or "", ("", 0))
        step, counter = self._steps.get(following, (0, ""))
        start, again = self._counters.get(counter, ("", ""))
        if step < 1 or again != following or start not in self._starts:
            return None
        return max(1, math.ceil((limit - self._starts[start]) / step))


def count_cycles(matmuls: tuple[int, ...], loops: tuple[Loop, ...]) -> tuple[int, int] | None:
    """Returns (issue cycles, matmul instructions) with every loop run in full, or None if a trip count is unknown.

    A predicated region counts as executed, since its predicate is not known: where a kernel guards work with
    `pl.when`, both figures are upper bounds.
    """
    runs = [1] * len(matmuls)
    for loop in loops:
        if loop.trips is None:
            return None
        for address in range(loop.start, min(loop.end, len(runs))):
            runs[address] *= loop.trips
    return sum(runs), sum(count * run for count, run in zip(matmuls, runs, strict=True))


def read_memory(regions: str) -> tuple[int, int]:
    """Returns (bytes of VMEM, semaphores) that a kernel needs at its peak.

    The compiler gives regions that are never live together the same offsets, so the highest end is the peak.
    Operands that XLA itself placed in VMEM have no offset here and come on top.
    """
    peak = {"vmem": 0, "sflag": 0}
    operands: dict[str, int] = {}
    for line in regions.splitlines():
        if match := _ALLOCATION.match(line):
            space, size, offset, kind = match.groups()
            if space in peak and kind == "scoped":
                peak[space] = max(peak[space], int(offset, 0) + int(size, 0))
        elif match := _OPERAND.search(line):
            bits = int(match[2] or 8)  # pred has no width in its name and takes a byte
            elements = math.prod(int(extent) for extent in match[3].split(",") if extent)
            operands[line.split("=", 1)[0].strip()] = elements * bits // 8
    return peak["vmem"] + sum(operands.values()), peak["sflag"] // 4


def read_cores(regions: str, target: str) -> int | None:
    """Returns on how many cores of a device a kernel runs, None where the text does not tell.

    Where a device has two, each executes the kernel's text. One that is for a single core sends the other one past all
    of it; one for both begins with a check that they have met, and reads the core's number where it takes its steps.
    """
    if target.split(":", 1)[0] not in _TWO_CORES_A_DEVICE or "(PrimaryCoreRegion)" in regions:
        return 1
    return 2 if "BarrierMegacore" in regions else None


def build_report(
    *, target: str, function: str, compile_seconds: float, dumps: tuple[KernelDump, ...], notes: tuple[str, ...] = ()
) -> TargetReport:
    """Returns the report on a function from the dumps of its kernels, which run one after another.

    Where a dump or a text in it is missing (empty), the figures that it would give are None, not zero.
    """
    memory = [read_memory(dump.regions) for dump in dumps if dump.regions]
    counts = [count_cycles(read_bundles(dump.bundles), read_loops(dump.regions)) for dump in dumps if dump.bundles]
    known = [count for count in counts if count is not None]
    complete = bool(dumps) and len(known) == len(memory) == len(dumps)
    cycles = sum(count[0] for count in known) if complete else None
    matmuls = sum(count[1] for count in known) if complete else 0
    cores = {read_cores(dump.regions, target) for dump in dumps if dump.regions}
    cycles_each, units = MATMUL_UNITS[target.split(":", 1)[0]]
    ideal = math.ceil(matmuls * cycles_each / units) if matmuls else None
    return TargetReport(
        target=target,
        kernel=" + ".join(dump.name for dump in dumps) or function,
        compile_seconds=compile_seconds,
        vmem_bytes=max((vmem for vmem, _ in memory), default=None),
        semaphores=max((semaphores for _, semaphores in memory), default=None),
        cores=cores.pop() if len(cores) == 1 else None,
        cycles=cycles,
        ideal_cycles=ideal,
        utilization=round(ideal / cycles, 4) if ideal and cycles else None,
        notes=notes,
    )


def kernel_name(analysis: str) -> str | None:
    """Returns the name of the Pallas kernel that a schedule analysis is about, None for XLA's own operations."""
    match = re.search(r"%([\w.-]+?)(?:\.\d+)? = [^\n]*? custom-call\([^\n]*tpu_custom_call", analysis)
    return match[1] if match else None
