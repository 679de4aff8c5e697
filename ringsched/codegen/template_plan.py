"""The further part of modules of single collective matmuls: how their operands are streamed; see template.py.

Everything after the marker is copied into the module, in front of what template_multiply.py has.
"""

import dataclasses
import itertools
import logging
import math

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from ringsched.codegen.template_multiply import _ROWS

# ==== marker ====
# Which operands are streamed, and how: what there is to choose from, and a model of the
# chip that chooses. What follows is the same in every module of a collective matmul.


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How operands are streamed.

    tile: columns at a time; `count` tiles make up what a product multiplies by.
    ahead: how many tiles are on their way while one is multiplied by.
    block: rows of x at a time, None where x is in VMEM.
    upto: how many tiles of the weight have come, and stay until they are no longer
    needed, by the end of each group of products; None: all come anew for each group.
    Products by a tile that comes later than their group are computed as it comes.
    passes: how often all tiles come, where that is known; rolled: it is not.
    shared: all products are by the same weight.
    """

    tile: int
    count: int
    ahead: int
    block: int | None
    upto: tuple[int, ...] | None
    passes: int
    rolled: bool
    shared: bool

    @property
    def kept(self):
        """How many tiles stay."""
        if self.upto is None:
            return 0
        if self.block is not None:
            return self.count
        return self.upto[-2] if len(self.upto) > 1 else 0

    @property
    def slots(self):
        return min(self.kept + self.ahead + 1, self.count if self.upto else math.inf)

    def slot(self, j):
        """Where the j-th tile is."""
        kept, others = self.kept, self.slots - self.kept
        if others == 0:
            return j
        later = kept + (j - kept) % others
        return jnp.where(j < kept, j, later) if kept else later

    @property
    def loads(self):
        """How many tiles of a weight that all products share come in all; 0: unknown."""
        if not self.shared or (self.upto is None and self.rolled):
            return 0
        return self.count if self.upto else self.count * self.passes


@dataclasses.dataclass(frozen=True)
class _Work:
    """What a kernel does: products of units of x and of the weight.

    rows, depth, cols: of one unit. groups: how many units each product has, for each
    call. rolled: the first call that is in a loop, None: there is none. directions: in
    which units travel at a time. sides: 2 where there is a gate. x_bytes, o_bytes,
    residual_bytes: of an element, 0 for none. held: bytes that are in VMEM however the
    rest is streamed. x, gathered: bytes of these.
    """

    rows: int
    depth: int
    cols: int
    groups: tuple[tuple[int, ...], ...]
    gathers: bool
    by_rows: bool
    rolled: int | None
    directions: int
    sides: int
    x_bytes: int
    o_bytes: int
    residual_bytes: int
    held: int
    x: int
    gathered: int

    @property
    def stack(self):
        """How many units of depth one product multiplies: the terms of a sum."""
        return max(map(sum, self.groups)) if self.gathers and not self.by_rows else 1

    def passes(self, plan):
        """For each group: rows, tiles, whether these are loaded, how often one runs."""
        known = seen = 0
        for number, group in enumerate(self.groups):
            rows, passes = self.rows * sum(group), [1]
            if not self.by_rows:
                rows, passes = self.rows, [1] * (1 if self.gathers else sum(group))
            if plan.block is not None and plan.block > self.rows:
                together = plan.block // self.rows if self.by_rows else 1
                times = -(-sum(group) // together)
                rows, passes = min(rows, plan.block), [1] * times
            elif plan.block is not None:
                rows, passes = plan.block, [k * self.rows // plan.block for k in group]
            if plan.upto is None:
                yield [(rows, plan.count, True, times) for times in passes]
                continue
            seen = rows if plan.block is not None else seen + rows
            upto = plan.upto[number]
            found = [(rows, known, False, 1), (seen, upto - known, True, 1)]
            later = [passes[0] - 1, *passes[1:]]
            found += [(rows, upto, False, times) for times in later if times]
            yield [each for each in found if each[1]]
            known = upto

    def sizes(self, plan):
        """Bytes of VMEM, by what takes them."""
        tile = plan.tile * self.sides
        rows = max(row for group in self.passes(plan) for row, *_ in group)
        sizes = {"buffers": self.held}
        if plan.block is None:
            sizes["x"] = self.x + self.gathered
        else:
            sizes["x"] = 2 * plan.block * self.depth * self.x_bytes
        sizes["weight"] = plan.slots * self.stack * self.depth * tile * self.x_bytes
        if self.gathers:
            each = self.o_bytes + self.residual_bytes
            sizes["result"] = 2 * rows * plan.tile * each
        sizes["sums"] = min(rows, _ROWS) * tile * 4
        return sizes

    def plans(self, tiles):
        """Ways to stream the operands."""
        count = len(self.groups)
        many = max(map(sum, self.groups)) if self.by_rows else 1
        fine = [self.rows * k for k in range(1, many + 1)]
        fine += [self.rows // k for k in range(2, 65) if self.rows % (k * 32) == 0]
        blocks = [None]
        if self.by_rows or not self.gathers:
            fine = {rows for rows in fine if 128 <= rows <= _ROWS}
            blocks += sorted(fine or {self.rows})
        for tile, ahead, block in itertools.product(tiles, (1, 2, 4), blocks):
            parts = self.cols // tile
            ways = [None]
            if self.by_rows and self.rolled != 0:
                ways.append((parts,) * count)
            if self.by_rows and self.gathers and self.rolled is None and block is None:
                some = {parts * k // 4 for k in (1, 2, 3)}
                for first, kept in itertools.product(range(count - 1), some - {0}):
                    ways.append((0,) * first + (kept,) * (count - 1 - first) + (parts,))
                ways.append((0,) * (count - 1) + (parts,))
            for upto in dict.fromkeys(ways):
                rolled = self.rolled is not None
                plan = _Plan(tile, parts, ahead, block, upto, 0, rolled, self.by_rows)
                passes = [times for group in self.passes(plan) for *_, times in group]
                yield dataclasses.replace(plan, passes=sum(passes))


# The model of a chip: what it can do at best, and what a tile costs beside its product.
_LINKS = {  # bytes a second of a link, one way, by generation and whether it is lite
    (4, True): 45e9,
    (4, False): 45e9,
    (5, True): 45e9,
    (5, False): 90e9,
    (6, True): 90e9,
    (7, False): 100e9,
}
_TILE_SECONDS = 0.2e-6
_HOP_SECONDS = 1e-6
_CYCLES = 1.75e9  # a second
_LONGEST = 36_000  # cycles of code; the compiler takes about a millisecond for each


@dataclasses.dataclass(frozen=True)
class _Chip:
    """Operations, bytes from HBM and bytes over a link, a second; the VMEM of a core."""

    operations: float
    hbm: float
    link: float
    vmem: int
    least: int  # rows of a product that keep a matrix unit busy
    side: int  # columns that a matrix unit multiplies by at once

    @classmethod
    def of(cls, call, dtype):
        info = call.tpu
        if info is None:  # interpreted
            return cls(230e12, 2.8e12, 90e9, call.vmem_bytes, 64, 128)
        speed = info.bf16_ops_per_second
        if dtype.itemsize == 1:
            integers = jnp.issubdtype(dtype, jnp.integer)
            speed = info.int8_ops_per_second if integers else info.fp8_ops_per_second
        if dtype.itemsize == 4:
            speed = speed / 6
        speed = speed or info.bf16_ops_per_second
        link = _LINKS[info.generation, info.is_lite]
        side = info.mxu_column_size
        least = 64 if side == 128 else 128
        hbm = info.mem_bw_bytes_per_second
        return cls(speed, hbm, link, call.vmem_bytes, least, side)

    def product(self, work, plan, rows):
        """Seconds for so many rows and one tile."""
        wide = -(-plan.tile * work.sides // self.side) * self.side
        operations = 2 * max(rows, self.least) * work.stack * work.depth * wide
        return operations / self.operations

    def code(self, work, plan):
        """Cycles of the code of all tiles, each pass having its own."""
        passes = [row for group in work.passes(plan) for row, *_ in group]
        return sum(self.product(work, plan, rows) for rows in passes) * _CYCLES

    def seconds(self, work, plan):
        """How long the kernel takes, as loads, links and products hold each other up."""
        wide = plan.tile * work.sides
        load = work.stack * work.depth * wide * work.x_bytes / self.hbm
        here = now = ready = 0.0
        begun = []
        for number, group in enumerate(work.passes(plan)):
            now = max(now, here)
            if number + 1 < len(work.groups) and work.gathers:
                units = sum(work.groups[number + 1]) * work.rows * work.depth
                bytes = units * work.x_bytes / work.directions
                here = now + bytes / self.link + _HOP_SECONDS
            if plan.block is not None:
                now += plan.block * work.depth * work.x_bytes / self.hbm
            for rows, count, loads, times in group:
                store = rows * plan.tile * (work.o_bytes + work.residual_bytes)
                entered = now
                for _ in range(count * times):
                    if loads:
                        early = len(begun) - plan.ahead
                        issued = begun[early] if early >= 0 else 0.0
                        if not work.by_rows or plan.rolled:
                            issued = max(issued, entered)
                        ready = max(ready, issued) + load
                        now = max(now, ready)
                        begun.append(now)
                    if work.gathers:
                        ready += store / self.hbm
                    now += self.product(work, plan, rows) + _TILE_SECONDS
        return now


def _plan(name, work, chip, sizes, options):
    """How the operands of a kernel are streamed; None: all are in VMEM.

    sizes: bytes of each, if all were. Raises ValueError where nothing fits.
    """
    memory, wanted, most = options["memory"], options["tile"], chip.vmem
    whole = sum(sizes.values())
    small = whole <= most // 2 and wanted is None
    told = f"operands in VMEM, {whole / 2**20:.1f} MiB"
    if memory == "vmem" or (memory is None and small):
        _check_fits(name, sizes, most)
        _log.info("%s: %s", name, told)
        return None
    tiles = [128 * k for k in range(1, 17) if work.cols % (128 * k) == 0]
    if wanted is not None and (wanted < 1 or wanted % 128 or work.cols % wanted):
        rule = f"a multiple of 128 that divides the {work.cols} columns"
        raise ValueError(f"{name} takes tiles of {rule}, not {wanted}")
    plans = list(work.plans(tiles if wanted is None else [wanted]))
    if work.rolled is not None and work.gathers and not work.by_rows:
        plans = []  # what is summed up in a loop is stored behind it, from VMEM
    fitting = [p for p in plans if sum(work.sizes(p).values()) <= most * 15 // 16]
    if not fitting:
        if whole <= most and (memory is None or not plans):
            _log.info("%s: %s", name, told)
            return None
        smallest = min(map(work.sizes, plans), key=_total, default=sizes)
        _check_fits(name, smallest, most * 15 // 16 if plans else most)
    timed = [(chip.seconds(work, p), chip.code(work, p), p) for p in fitting]
    plan = _fastest(timed)
    _log.info("%s: %s", name, _told(plan, work, chip))
    return plan


def _fastest(timed):
    """Of seconds, cycles of code and plans; twice as much code only for a twentieth less."""
    shortest = min(code for _, code, _ in timed)
    short = [it for it in timed if it[1] <= max(_LONGEST, shortest)]
    long = [it for it in timed if it[1] <= max(2 * _LONGEST, shortest)]
    best, faster = (min(seconds for seconds, *_ in them) for them in (short, long))
    if faster < 0.95 * best:
        short, best = long, faster
    good = [(code, k) for k, (t, code, _) in enumerate(short) if t <= 1.01 * best]
    return short[min(good)[1]][2]


# Tells how operands are placed, of each kernel that is traced.
_log = logging.getLogger("ringsched.kernels")


def _told(plan, work, chip):
    """A plan in words."""
    size = plan.count * plan.tile * work.depth * work.sides * work.x_bytes
    per_unit = "" if plan.shared else " of each chunk"
    read = plan.passes if plan.shared and plan.upto is None else 1
    times = {1: "once", 2: "twice"}.get(read, f"{read} times")
    if plan.rolled and plan.shared and plan.upto is None:
        times = "anew for each chunk"
    tiles = f"{plan.count} tiles of {plan.tile} columns, {plan.ahead} ahead"
    how = f"in {tiles}, and read {times} ({size / 2**20:.1f} MiB)"
    parts = [f"the weight{per_unit} is streamed from HBM {how}"]
    if plan.kept:
        since = next(k for k, upto in enumerate(plan.upto, 1) if upto)
        first = "" if since == 1 else f" from chunks {since} on"
        parts.append(f"{plan.kept} of the tiles stay in VMEM{first}")
    if plan.block is not None:
        parts.append(f"x is streamed {plan.block} rows at a time")
    sizes = work.sizes(plan)
    each = " + ".join(f"{key} {size / 2**20:.1f}" for key, size in sizes.items())
    parts.append(f"VMEM {_total(sizes) / 2**20:.1f} MiB: {each}")
    parts.append(f"modelled {chip.seconds(work, plan) * 1e6:.0f} µs")
    return "; ".join(parts)


def _total(sizes):
    return sum(sizes.values())


def _check_fits(name, sizes, most):
    if _total(sizes) > most:
        parts = " + ".join(f"{key} {size / 2**20:.1f}" for key, size in sizes.items())
        have = f"{most / 2**20:.0f} MiB of VMEM"
        raise ValueError(f"{name} does not fit {have}: {parts} MiB")


def _stream_buffers(plan, work, dtypes, transposed):
    """Further scratch of a kernel that streams its weights. dtypes: of x, o, residual."""
    two = pltpu.SemaphoreType.DMA((2,))
    tile = (work.stack * work.depth, work.sides * plan.tile)
    tile = tile[::-1] if transposed else tile
    own = {
        "tiles": pltpu.VMEM((plan.slots, *tile), dtypes[0]),
        "loaded": pltpu.SemaphoreType.DMA((plan.slots,)),
    }
    if work.gathers:
        rows = max(row for group in work.passes(plan) for row, *_ in group)
        own |= {"out": pltpu.VMEM((2, rows, plan.tile), dtypes[1]), "stored": two}
        if dtypes[2] is not None:
            own |= {"residual": pltpu.VMEM((2, rows, plan.tile), dtypes[2])}
            own |= {"fetched": two}
    if plan.block is not None:
        own["x"] = pltpu.VMEM((2, plan.block, work.depth), dtypes[0])
        own["arrived"] = two
    return own
