"""Walks the kernel of one device and records what it does to memory and semaphores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringsched.auditing import faults
from ringsched.auditing.barrier import added_barrier
from ringsched.auditing.blocks import KernelMemory
from ringsched.auditing.data import Added, Reading
from ringsched.auditing.devices import rank_of
from ringsched.auditing.form import Form
from ringsched.auditing.memory import Buffer, OutOfBounds, Region, whole
from ringsched.auditing.names import BARRIER_BUFFER, Names
from ringsched.auditing.places import Places
from ringsched.auditing.recorded import Access, Copy, Fault, Frame, Loaded, Recorded, Stored
from ringsched.auditing.scalars import UNKNOWN, Unknown, known
from ringsched.auditing.tracing import Call
from ringsched.auditing.views import resolve, view
from ringsched.auditing.walk import MAKE_CONSTANT, Undecided, Walker
from ringsched.diagnostics import Span
from ringsched.program.trace import SemaphoreKey, Signal, Wait


class KernelWalker(Walker):
    """`ops` is what the device executes, once `run` has walked the kernel.

    `content`: of scalar memory, the values and which of them are known. `scoped`: the semaphores of all scopes that
    were entered. `peeked`: the scalar memory whose content decided something, `flooded` that which a DMA from elsewhere
    writes. `counts`: what the device itself has left on each semaphore; `counted`: those that it has read.
    """

    def __init__(
        self, rank: int, coordinates: dict[str, int], sizes: dict[str, int], form: Form, places: Places, names: Names
    ) -> None:
        super().__init__(coordinates, sizes)
        self.rank = rank
        self.form = form
        self.places = places
        self.names = names
        self.ops: list[Recorded] = []
        self.program: tuple[int, ...] = ()
        self.content: dict[str, tuple[Any, Any]] = {}
        self.scoped: dict[Buffer, Span | None] = {}
        self.peeked: dict[str, Span | None] = {}
        self.flooded: set[str] = set()
        self.counts: Counter[SemaphoreKey] = Counter()
        self.counted: dict[SemaphoreKey, Span | None] = {}
        self.flat_ids: list[Span | None] = []
        self._since: set[tuple[str, Buffer, tuple[Any, ...]]] = set()
        self._flags = 0  # semaphores of the scopes that it is in

    @property
    def at(self) -> Mapping[str, int]:
        """The counterexample of a finding on this device."""
        place = self.coordinates.items() if len(self.sizes) > 1 else ()
        return {"ranks": int(np.prod(list(self.sizes.values()))), "rank": self.rank, **dict(place)}

    def place(self, eqn: Any) -> Span | None:
        return self.places.of(eqn)

    def effect(self, eqn: Any, values: list[Any]) -> list[Any] | None:
        try:
            return self._effect(eqn, values)
        except OutOfBounds as error:
            raise Fault(faults.out_of_bounds(error, self.place(eqn), self.at)) from None

    def _effect(self, eqn: Any, values: list[Any]) -> list[Any] | None:
        params = eqn.params
        match eqn.primitive.name:
            case "program_id":
                return [self._of_grid(self.program, eqn)]
            case "num_programs":
                return [self._of_grid(self.form.grid, eqn)]
            case "get":
                return [self._read(view(values[0], params["tree"].unflatten(values[1:]), self.place(eqn)), eqn)]
            case "swap" | "addupdate":
                region = view(values[0], params["tree"].unflatten(values[2:]), self.place(eqn))
                return self._swap(region, values[1], eqn)
            case "masked_load":
                ref, transforms, mask, _ = params["args_tree"].unflatten(values)
                self._no_mask(mask, eqn)
                return [self._read(view(ref, transforms, self.place(eqn)), eqn)]
            case "masked_swap":
                ref, transforms, value, mask = params["args_tree"].unflatten(values)
                self._no_mask(mask, eqn)
                return self._swap(view(ref, transforms, self.place(eqn)), value, eqn)
            case "dma_start":
                self._start(eqn, values)
                return []
            case "dma_wait":
                _, ref, semaphore, _, _ = params["tree"].unflatten(values)
                region = resolve(ref, self.place(eqn))
                self._wait(self._key(resolve(semaphore, self.place(eqn)), eqn), region.bytes, eqn)
                return []
            case "semaphore_signal":
                self._signal(eqn, values)
                return []
            case "semaphore_wait":
                ref, transforms, amount, decrement = params["args_tree"].unflatten(values)
                key = self._key(view(ref, transforms, self.place(eqn)), eqn)
                self._wait(key, self._number(amount, "the amount of a wait", eqn), eqn, self._flag(decrement, eqn))
                return []
            case "semaphore_read":
                ref, transforms = params["args_tree"].unflatten(values)
                return [self._count(view(ref, transforms, self.place(eqn)), eqn)]
            case "get_barrier_semaphore":
                return [BARRIER_BUFFER]
            case "run_scoped":
                return self._scoped(eqn, values)
            case _:
                return None

    def done(self) -> int:
        return len(self.ops)

    def _of_grid(self, numbers: tuple[int, ...], eqn: Any) -> int:
        axis: int = eqn.params["axis"]
        if axis >= len(numbers):
            raise Undecided(
                f"it asks for axis {axis} of the grid, which has {len(numbers)}",
                self.place(eqn),
                "ask for an axis that the grid has",
            )
        return numbers[axis]

    def _no_mask(self, mask: Any, eqn: Any) -> None:
        if mask is not None:
            raise Undecided("a load or store with a mask", self.place(eqn), "load all of it and select with jnp.where")

    def _flag(self, value: Any, eqn: Any) -> bool:
        if isinstance(value, Unknown):
            raise Undecided(
                "whether a wait takes anything off its semaphore depends on data", self.place(eqn), MAKE_CONSTANT
            )
        return bool(value)

    def _number(self, value: Any, what: str, eqn: Any) -> int:
        if isinstance(value, Unknown) or np.ndim(value):
            reason = f"{what} depends on data that the audit does not know"
            raise Undecided(reason, self.place(eqn), MAKE_CONSTANT)
        number = int(value)
        if number < 0:
            raise Undecided(f"{what} is {number}", self.place(eqn), "a number that is not negative")
        return number

    # -- the core's own accesses

    def access(self, kind: Any, region: Region, value: Any, origin: Span | None, note: str = "") -> None:
        """Records one; `value` as in Access."""
        if not region.elements:
            return
        key = (kind, region.buffer, region.ranges)
        repeated = key in self._since
        self._since.add(key)
        note = note or (f"read {region}" if kind == "read" else f"write {region}")
        self.ops.append(Access(kind=kind, region=region, value=value, repeated=repeated, note=note, origin=origin))

    def record(self, op: Recorded) -> None:
        self._since.clear()
        self.ops.append(op)

    def _read(self, region: Region, eqn: Any) -> Any:
        reading = Reading(region)
        self.access("read", region, reading, self.place(eqn))
        if region.buffer.space != "smem" or region.buffer.name not in self.content:
            return reading
        values, is_known = self.content[region.buffer.name]
        if not np.all(is_known[region.pieces()]) or region.dtype != region.buffer.dtype:
            return reading
        self.peeked.setdefault(region.buffer.name, self.place(eqn))
        return known(np.array(values[region.pieces()]).reshape(region.shape))

    def _swap(self, region: Region, value: Any, eqn: Any) -> list[Any]:
        """A write; also a read where somebody uses the old value."""
        adds = eqn.primitive.name == "addupdate"
        old = self._read(region, eqn) if adds or self.names.is_used(eqn) else UNKNOWN
        new = Added(old, value) if adds else value
        self.access("write", region, new, self.place(eqn))
        self._set(region, new)
        return [] if adds else [old]

    def _set(self, region: Region, value: Any) -> None:
        if region.buffer.space != "smem":
            return
        buffer = region.buffer
        if buffer.name not in self.content:
            self.content[buffer.name] = np.zeros(buffer.shape, buffer.dtype), np.zeros(buffer.shape, bool)
        values, is_known = self.content[buffer.name]
        pieces = region.pieces()
        is_known[pieces] = has_value = not isinstance(value, Unknown) and region.dtype == buffer.dtype
        if has_value:
            values[pieces] = np.asarray(value).reshape(values[pieces].shape)

    def fill(self, table: Buffer, value: Any) -> None:
        """A scalar operand, where its values are known outside the kernel."""
        self._set(whole(table), value)

    def meet(self, memory: KernelMemory) -> None:
        """The barrier that the compiler adds, and the loading of operands behind it."""
        for op in added_barrier(self.rank, math.prod(self.sizes.values()), self.places.call):
            self.record(op)
        for ref in memory.refs[: memory.inputs]:
            if ref.role == "operand" and ref.space in ("vmem", "smem"):
                self.record(Loaded(region=whole(ref), note=f"load {ref.name}", origin=self.places.call))

    def refresh(self, window: Buffer, block: Any) -> None:
        """The grid puts another block there."""
        self.access("write", whole(window), block, self.places.call, f"the grid gives {window.name} another block")
        self._set(whole(window), UNKNOWN)

    def store(self, window: Buffer, number: int, starts: tuple[int, ...] | None, sizes: tuple[int, ...]) -> None:
        """The grid copies a block out, into the kernel's result `number`."""
        region = whole(window)
        self.access("read", region, Reading(region), self.places.call, f"the grid stores block {window.name}")
        self.ops.append(Stored(region=region, number=number, starts=starts, sizes=sizes))

    # -- DMAs and semaphores

    def _start(self, eqn: Any, values: list[Any]) -> None:
        span = self.place(eqn)
        source_ref, target_ref, received, sent, device = eqn.params["tree"].unflatten(values)
        if eqn.params.get("add"):
            raise Undecided("a DMA that adds to its target", span, "copy into a buffer of its own and add there")
        source, target = resolve(source_ref, span), resolve(target_ref, span)
        if source.dtype != target.dtype or source.shape != target.shape:
            raise Fault(faults.unequal(source, target, span, self.at))
        rank = self.rank if sent is None else rank_of(device, eqn.params["device_id_type"], self, self.place(eqn))
        receive_region = resolve(received, span)
        if sent is not None:
            for region in (target, receive_region):
                self._reaches(region.buffer, eqn)
        self._moves_scalars(source, target, remote=sent is not None)
        there = f" of rank {rank}" if sent is not None else ""
        self.record(
            Copy(
                rank=rank,
                source=source,
                target=target,
                sent=None if sent is None else self._key(resolve(sent, span), eqn),
                received=self._key(receive_region, eqn),
                amount=source.bytes,
                note=f"copy {source} → {target}{there}",
                origin=span,
            )
        )

    def _moves_scalars(self, source: Region, target: Region, *, remote: bool) -> None:
        if target.buffer.space != "smem":
            return
        if remote:
            self.flooded.add(target.buffer.name)
        value: Any = UNKNOWN
        if source.buffer.name in self.content and not remote:
            values, is_known = self.content[source.buffer.name]
            value = np.array(values[source.pieces()]) if np.all(is_known[source.pieces()]) else UNKNOWN
        self._set(target, value)

    def _wait(self, key: SemaphoreKey, amount: int, eqn: Any, takes: bool = True) -> None:
        """takes false: it only looks, which is the same as taking and giving back, for nobody else takes from it."""
        name, place = f"{key[0]}[{key[1]}]", self.place(eqn)
        note = f"wait {'for' if takes else 'until there are'} {amount} on {name}"
        self.record(Wait(semaphore=key, amount=amount, note=note, origin=place))
        self.counts[key] -= amount
        if not takes:
            note = f"leave {amount} on {name}"
            self.record(Signal(rank=self.rank, semaphore=key, amount=amount, note=note, origin=place))
            self.counts[key] += amount

    def _count(self, region: Region, eqn: Any) -> int:
        """What a semaphore holds, if nobody else and no DMA counts on it (`_across_devices` looks at that)."""
        if region.buffer.role == "barrier":
            raise Undecided(
                "how far a barrier semaphore has come when it is read",
                self.place(eqn),
                "wait for it instead of reading it",
            )
        key = self._key(region, eqn)
        self.counted.setdefault(key, self.place(eqn))
        return self.counts[key]

    def _signal(self, eqn: Any, values: list[Any]) -> None:
        ref, transforms, amount, device, core_index = eqn.params["args_tree"].unflatten(values)
        if core_index is not None:
            raise Undecided("a signal to one core of several", self.place(eqn), "signal the device: without core_index")
        region = view(ref, transforms, self.place(eqn))
        rank = self.rank if device is None else rank_of(device, eqn.params["device_id_type"], self, self.place(eqn))
        if device is not None:
            self._reaches(region.buffer, eqn)
        key = self._key(region, eqn)
        units = self._number(amount, "the amount of a signal", eqn)
        self.counts[key] += units if rank == self.rank else 0
        note = f"signal {key[0]}[{key[1]}] of rank {rank}"
        self.record(Signal(rank=rank, semaphore=key, amount=units, note=note, origin=self.place(eqn)))

    def _reaches(self, buffer: Buffer, eqn: Any) -> None:
        """Memory of another device: scoped memory must be at one place there, a block of the grid is at none."""
        if buffer.role == "window":
            raise Undecided(
                f"a DMA to another device's block {buffer.name} of a grid",
                self.place(eqn),
                "send to the whole operand or result, in HBM (memory_space=pl.ANY), or to scratch",
            )

    def _key(self, region: Region, eqn: Any) -> SemaphoreKey:
        if not region.buffer.is_semaphore or region.elements != 1:
            raise Undecided(
                "a semaphore operation on several semaphores at once, or on none",
                self.place(eqn),
                "one semaphore at a time: index it, semaphores.at[k]",
            )
        index = (self.form.collective_id or 0) if region.buffer.role == "barrier" else 0
        for each, side in zip(region.ranges, region.buffer.shape, strict=True):
            index = index * side + each.start
        return region.buffer.name, index

    # -- scoped memory

    def _scoped(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Memory that exists only here: its beginning and end are recorded like those of the kernel.

        Not so its semaphores: they are there as long as the kernel (see `scopes.py`).
        """
        if eqn.params["collective_axes"] or any(eqn.params.get("ref_transforms", ())):
            raise Undecided(
                "a run_scoped that is shared between cores or transforms its refs",
                self.place(eqn),
                "pl.run_scoped of its own on each core, without transforms",
            )
        site, place = (id(self.form), *self.path), self.place(eqn)
        buffers = self.names.scoped(eqn, site, self._flags)
        semaphores = [buffer for buffer in buffers if buffer.is_semaphore]
        memory = tuple(buffer for buffer in buffers if not buffer.is_semaphore)
        self.scoped.update(dict.fromkeys(semaphores, place))
        for buffer in memory:
            self.content.pop(buffer.name, None)
        outer, self._flags = self._flags, self._flags + sum(math.prod(each.shape) for each in semaphores)
        self.record(Frame(enters=True, buffers=memory))
        results = self.run(eqn.params["jaxpr"], values, buffers)
        self.record(Frame(enters=False, buffers=memory))
        self._flags = outer
        return results

    def _axis_index(self, eqn: Any) -> int:
        name = eqn.params["axis_name"]
        return self.form.cores[name] if name in self.form.cores else super()._axis_index(eqn)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel of the function, what is the same for all devices that call it, and their walkers."""

    call: Call
    places: Places
    names: Names
    memory: KernelMemory
    walkers: list[KernelWalker]
