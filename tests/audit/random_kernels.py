"""Random programs that compute something, as Pallas kernels: for comparing an audit with what the kernels really do.

A program is a seed's: traces of 2 to 4 ranks over a buffer "x" and some "slots", which begin with the operand's values
(or, the slots, with nothing) and are the result in the end. Many are right, and barely so: what can be left out has
been left out. Many others are a right one with a mistake or two; all must give what the program without mistakes gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dynamic import Subject
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import ringsched
from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, SemaphoreKey, Signal, Wait
from ringsched.verify.hazards import check_hazards

BUFFERS = {"x": 2, "slots": 4}
UNITS = sum(BUFFERS.values())  # rows of an operand, and of a result
SEMAPHORES = {"recv": 3, "send": 2, "credit": 2}
BARRIER: SemaphoreKey = ("barrier", 0)
COLS = 128
MOST = 16  # units that one wait takes
TRIES = 30
AIMED, TIGHTENED, MISTAKEN = 0.85, 0.7, 0.4  # how many are drawn until right, tightened, given a mistake
Traces = list[list[Op]]


@dataclass(frozen=True, kw_only=True)
class Program:
    """`intended`: without the mistakes. `loaded`: the buffers that begin with values of the operand."""

    seed: int
    execution: Execution
    intended: Execution
    loaded: tuple[str, ...]

    @property
    def ranks(self) -> int:
        return len(self.execution.traces)


@dataclass
class Draft:
    """Traces along one imagined run, in which everything is started or signalled before it is waited for."""

    rng: random.Random
    traces: Traces
    held: list[tuple[int, Wait]] = field(default_factory=list)

    def block(self, units: int, name: str | None = None) -> Block:
        name = name or self.rng.choice(("x", "slots", "slots"))
        start = self.rng.randrange(BUFFERS[name] - units + 1)
        return Block(name, start, start + units)

    def key(self, name: str) -> SemaphoreKey:
        return name, self.rng.randrange(SEMAPHORES[name])

    def wait(self, rank: int, key: SemaphoreKey, amount: int, at_once: float) -> None:
        self.held.append((rank, Wait(semaphore=key, amount=amount)))
        if self.rng.random() < at_once:
            self.settle(len(self.held) - 1)

    def settle(self, index: int) -> None:
        rank, wait = self.held.pop(index)
        self.traces[rank].append(wait)

    def tell(self, source: int, target: int) -> None:
        key = self.key("credit")
        self.traces[source].append(Signal(rank=target, semaphore=key, amount=1))
        self.wait(target, key, 1, 0.8)

    def message(self) -> None:
        """`a` sends, `b` uses what came; now and then one says that it is ready before, or done afterwards."""
        a, b = self.rng.sample(range(len(self.traces)), 2)
        units = self.rng.choice((1, 1, 2))
        target = self.block(units, "slots" if self.rng.random() < 0.8 else "x")
        if self.rng.random() < 0.3:
            self.tell(b, a)
        sent, received = self.key("send"), self.key("recv")
        source = self.block(units)
        self.traces[a].append(Dma(rank=b, source=source, target=target, sent=sent, received=received, amount=units))
        self.wait(a, sent, units, 0.5)
        self.wait(b, received, units, 0.75)
        if self.rng.random() < 0.7:
            op = self.rng.choice(("copy", "add"))
            self.traces[b].append(Compute(op=op, target=self.block(units), sources=(target,)))
        if self.rng.random() < 0.3:
            self.tell(b, a)

    def local_copy(self) -> None:
        rank, units, key = self.rng.randrange(len(self.traces)), self.rng.choice((1, 2)), self.key("recv")
        ends = {"source": self.block(units), "target": self.block(units)}
        self.traces[rank].append(Dma(rank=rank, **ends, sent=None, received=key, amount=units))
        self.wait(rank, key, units, 0.6)

    def compute(self) -> None:
        units = self.rng.choice((1, 2))
        op = self.rng.choice(("copy", "add", "add", "zero"))
        sources = () if op == "zero" else (self.block(units),)
        self.rng.choice(self.traces).append(Compute(op=op, target=self.block(units), sources=sources))


def random_program(seed: int) -> Program:
    rng = random.Random(seed)
    loaded = ("x", "slots") if rng.random() < 0.6 else ("x",)
    aimed = rng.random() < AIMED
    for _ in range(TRIES):
        traces = _drafted(rng)
        if not aimed or is_right(_execution(traces, loaded)):
            break
    if aimed and rng.random() < TIGHTENED:
        traces = _tightened(rng, traces, loaded)
    intended = _execution(traces, loaded)
    if rng.random() < MISTAKEN:
        for _ in range(rng.choice((1, 1, 2))):
            _mistake(rng, traces)
    return Program(seed=seed, execution=_execution(traces, loaded), intended=intended, loaded=loaded)


def is_right(execution: Execution) -> bool:
    """By the hazard check, and by the values: nothing unwritten comes out."""
    report = check_hazards(execution, calls=2)
    if report.races or report.deadlock is not None or report.leftovers:
        return False
    results = lockstep(execution, np.zeros((len(execution.traces), UNITS)), np.nan)
    return results is not None and not np.isnan(np.array(results, dtype=float)).any()


def _drafted(rng: random.Random) -> Traces:
    draft = Draft(rng, [[] for _ in range(rng.choice((2, 2, 3, 3, 4)))])
    kinds = ["message"] * rng.choice((1, 2, 2, 3, 3, 4)) + ["local_copy"] * rng.randint(0, 1)
    kinds += ["compute"] * rng.randint(0, 3)
    rng.shuffle(kinds)
    for kind in kinds:
        getattr(draft, kind)()
        while draft.held and rng.random() < 0.3:
            draft.settle(rng.randrange(len(draft.held)))
    while draft.held and rng.random() < 0.99:
        draft.settle(rng.randrange(len(draft.held)))
    _barrier(rng, draft.traces)
    return draft.traces


def _barrier(rng: random.Random, traces: Traces) -> None:
    """In front: everyone tells everyone, or those who will write to it, or just some; or there is none."""
    ranks = range(len(traces))
    pairs = [(a, b) for a in ranks for b in ranks if a != b]
    reached = {(op.rank, rank) for rank, trace in enumerate(traces) for op in trace if isinstance(op, Dma | Signal)}
    match rng.choice(("all",) * 6 + ("reached",) * 3 + ("some", "none")):
        case "all":
            tells = pairs
        case "reached":
            tells = [pair for pair in pairs if pair in reached]
        case "some":
            tells = [pair for pair in pairs if rng.random() < 0.7]
        case _:
            tells = []
    for rank in ranks:
        signals: list[Op] = [Signal(rank=b, semaphore=BARRIER, amount=1) for a, b in tells if a == rank]
        waited = sum(b == rank for _, b in tells)
        traces[rank][:0] = signals + ([Wait(semaphore=BARRIER, amount=waited)] if waited else [])


def _tightened(rng: random.Random, traces: Traces, loaded: tuple[str, ...]) -> Traces:
    """With what it can do without left out, or moved: as long as it stays right."""
    for _ in range(8):
        other = [list(trace) for trace in traces]
        _mistake(rng, other)
        if is_right(_execution(other, loaded)) and any(isinstance(op, Dma) for trace in other for op in trace):
            traces = other
    return traces


def _mistake(rng: random.Random, traces: Traces) -> None:
    trace = rng.choice([trace for trace in traces if trace] or traces)
    if not trace:
        return
    index = rng.randrange(len(trace))
    op = trace[index]
    match rng.choice(("drop", "move", "move", "near", "amount", "semaphore", "block")):
        case "drop":
            del trace[index]
        case "move":
            trace.insert(rng.randrange(len(trace)), trace.pop(index))
        case "near":
            trace.insert(min(index + 1, len(trace) - 1), trace.pop(index))
        case "amount" if isinstance(op, Signal | Wait):
            trace[index] = replace(op, amount=max(1, op.amount + rng.choice((-1, 1))))
        case "semaphore" if isinstance(op, Signal | Wait) and op.semaphore != BARRIER:
            name = op.semaphore[0]
            trace[index] = replace(op, semaphore=(name, rng.randrange(SEMAPHORES[name])))
        case "semaphore" if isinstance(op, Dma):
            trace[index] = replace(op, received=("recv", rng.randrange(SEMAPHORES["recv"])))
        case "block" if isinstance(op, Dma | Compute) and op.target is not None:
            units = op.target.units
            start = rng.randrange(BUFFERS[op.target.buffer] - units + 1)
            trace[index] = replace(op, target=Block(op.target.buffer, start, start + units))
        case _:
            pass


def _execution(traces: Traces, loaded: tuple[str, ...]) -> Execution:
    """With the kernel's beginning and end around each trace."""
    blocks = tuple(Block(name, 0, units) for name, units in BUFFERS.items())
    frame = {"blocks": blocks, "semaphores": tuple(SEMAPHORES)}
    load = [Compute(op="copy", target=block) for block in blocks if block.buffer in loaded]
    store = Compute(op="copy", target=None, sources=blocks)
    framed = tuple((Enter(**frame), *load, *trace, store, Exit(**frame)) for trace in traces)
    return Execution(sides=(len(traces),), symmetric=False, traces=framed)


def lockstep(execution: Execution, operands: Sequence[Sequence[Any]], unwritten: Any) -> list[list[Any]] | None:
    """Each rank's result, a row a unit, with everyone one instruction on in turn and DMAs done at once; None: stuck.

    operands: each rank's rows. unwritten: what is in memory that nothing has written.
    """
    ranks = range(len(execution.traces))
    memory = [{name: [unwritten] * units for name, units in BUFFERS.items()} for _ in ranks]
    semaphores: dict[tuple[int, SemaphoreKey], int] = {}
    results: list[list[Any]] = [[] for _ in ranks]
    positions = [0 for _ in ranks]

    def read(rank: int, block: Block) -> list[Any]:
        return memory[rank][block.buffer][block.start : block.stop]

    def write(rank: int, block: Block, rows: list[Any]) -> None:
        memory[rank][block.buffer][block.start : block.stop] = rows

    def add(rank: int, key: SemaphoreKey | None, amount: int) -> None:
        if key is not None:
            semaphores[rank, key] = semaphores.get((rank, key), 0) + amount

    def step(rank: int, op: Op) -> bool:
        match op:
            case Dma():
                write(op.rank, op.target, read(rank, op.source))
                add(rank, op.sent, op.amount)
                add(op.rank, op.received, op.amount)
            case Signal():
                add(op.rank, op.semaphore, op.amount)
            case Wait():
                if semaphores.get((rank, op.semaphore), 0) < op.amount:
                    return False
                add(rank, op.semaphore, -op.amount)
            case Compute(target=None):
                results[rank] = [row for block in op.sources for row in read(rank, block)]
            case Compute(op="zero"):
                write(rank, op.target, [0 * row for row in operands[rank][: op.target.units]])
            case Compute(op="add"):
                mine, other = read(rank, op.target), read(rank, op.sources[0])
                write(rank, op.target, [a + b for a, b in zip(mine, other, strict=True)])
            case Compute(sources=()):
                write(rank, op.target, list(operands[rank][_rows(op.target)]))
            case Compute():
                write(rank, op.target, read(rank, op.sources[0]))
        return True

    moved = True
    while moved:
        moved = False
        for rank in ranks:
            trace = execution.traces[rank]
            if positions[rank] < len(trace) and step(rank, trace[positions[rank]]):
                positions[rank] += 1
                moved = True
    return results if all(positions[rank] == len(execution.traces[rank]) for rank in ranks) else None


def _rows(block: Block) -> slice:
    """Where the block's values are in the operand, and in the result."""
    first = 0 if block.buffer == "x" else BUFFERS["x"]
    return slice(first + block.start, first + block.stop)


def subject(name: str) -> Subject:
    """By seed, for `dynamic.py`."""
    return subject_of(random_program(int(name)))


def subject_of(program: Program) -> Subject:
    return Subject(
        function=function_of(program.execution),
        mesh={"i": program.ranks},
        args=(f"f32[{program.ranks * UNITS},{COLS}]",),
        in_specs="i",
        out_specs="i",
        expect=expected(program.intended),
        reference=reference(program.intended),
    )


def audited(program: Program) -> tuple[str, frozenset[str]]:
    """The verdict of `ringsched.audit`, and the codes of what it found."""
    it = subject_of(program)
    report = ringsched.audit(
        it.function,
        mesh_axes=it.mesh,
        args=it.args,
        in_specs=it.in_specs,
        out_specs=it.out_specs,
        expect=it.expect,
    )
    return report.verdict, frozenset(diagnostic.code for diagnostic in report.diagnostics)


def expected(execution: Execution) -> Callable[[Any], Any] | None:
    """The result as a function for inside shard_map; None where the program gets stuck."""
    ranks = len(execution.traces)
    if lockstep(execution, np.zeros((ranks, UNITS)), np.nan) is None:
        return None

    def expect(x: Any) -> Any:
        whole = lax.all_gather(x, "i")
        operands = [[whole[rank, row] for row in range(UNITS)] for rank in range(ranks)]
        results = lockstep(execution, operands, jnp.full((COLS,), jnp.nan, x.dtype))
        assert results is not None
        return jnp.stack([jnp.stack(rows) for rows in results])[lax.axis_index("i")]

    return expect


def reference(execution: Execution) -> Callable[[np.ndarray], np.ndarray] | None:
    """The same with numpy: global operand → global result."""
    ranks = len(execution.traces)
    if lockstep(execution, np.zeros((ranks, UNITS)), np.nan) is None:
        return None

    def compute(x: np.ndarray) -> np.ndarray:
        operands = [list(rows) for rows in x.reshape(ranks, UNITS, COLS)]
        results = lockstep(execution, operands, np.full((COLS,), np.nan, x.dtype))
        return np.array(results).reshape(x.shape)

    return compute


def function_of(execution: Execution) -> Callable[[Any], Any]:
    """The kernel, for shard_map over axis "i"."""
    barrier = any(
        isinstance(op, Wait | Signal) and op.semaphore == BARRIER for trace in execution.traces for op in trace
    )

    def kernel(x_ref, o_ref, junk, x, slots, recv, send, credit):
        memory = {"x": x, "slots": slots, "operand": x_ref, "result": o_ref}
        semaphores = {"recv": recv, "send": send, "credit": credit}
        for rank, trace in enumerate(execution.traces):

            @pl.when(lax.axis_index("i") == rank)
            def _(trace=trace):
                for op in trace:
                    _write(op, memory, semaphores, junk)

    def function(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[
                pltpu.VMEM((MOST, COLS), jnp.float32),
                *(pltpu.VMEM((units, COLS), jnp.float32) for units in BUFFERS.values()),
                pltpu.SemaphoreType.DMA((SEMAPHORES["recv"],)),
                pltpu.SemaphoreType.DMA((SEMAPHORES["send"],)),
                pltpu.SemaphoreType.REGULAR((SEMAPHORES["credit"],)),
            ],
            compiler_params=pltpu.CompilerParams(collective_id=0 if barrier else None, skip_device_barrier=not barrier),
        )(x)

    return function


def _write(op: Op, memory: dict[str, Any], semaphores: dict[str, Any], junk: Any) -> None:
    def at(block: Block) -> Any:
        return memory[block.buffer].at[pl.ds(block.start, block.units)]

    def semaphore(key: SemaphoreKey) -> Any:
        return pltpu.get_barrier_semaphore() if key == BARRIER else semaphores[key[0]].at[key[1]]

    def place(rank: int) -> dict[str, Any]:
        return {"device_id": {"i": jnp.int32(rank)}, "device_id_type": pl.DeviceIdType.MESH}

    match op:
        case Dma(sent=None):
            pltpu.make_async_copy(at(op.source), at(op.target), semaphore(op.received)).start()
        case Dma():
            ends = at(op.source), at(op.target), semaphore(op.sent), semaphore(op.received)
            pltpu.make_async_remote_copy(*ends, **place(op.rank)).start()
        case Wait() if op.semaphore[0] in ("recv", "send"):
            size = junk.at[pl.ds(0, op.amount)]
            pltpu.make_async_copy(size, size, semaphore(op.semaphore)).wait()
        case Wait():
            pl.semaphore_wait(semaphore(op.semaphore), op.amount)
        case Signal():
            pl.semaphore_signal(semaphore(op.semaphore), op.amount, **place(op.rank))
        case Compute(target=None):
            for block in op.sources:
                memory["result"][_rows(block)] = at(block)[...]
        case Compute(op="zero"):
            at(op.target)[...] = jnp.zeros((op.target.units, COLS), jnp.float32)
        case Compute(op="add"):
            at(op.target)[...] = at(op.target)[...] + at(op.sources[0])[...]
        case Compute(sources=()):
            at(op.target)[...] = memory["operand"][_rows(op.target)]
        case Compute():
            at(op.target)[...] = at(op.sources[0])[...]
