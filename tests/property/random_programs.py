"""Random small executions, many of them almost right: for comparing checkers, not for looking like kernels.

A program is written down along one imagined run of it: something is started or signalled now, waited for later. So it
finishes, until a few instructions are moved, dropped, doubled or changed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, SemaphoreKey, Signal, Wait

BUFFERS = {"x": 2, "slots": 2}
SEMAPHORES: tuple[SemaphoreKey, ...] = (("recv", 0), ("recv", 1), ("send", 0), ("credit", 0))
CREDIT: SemaphoreKey = ("credit", 0)
BARRIER: SemaphoreKey = ("barrier", 0)


@dataclass
class Draft:
    """The traces so far, and what lies on each semaphore in the imagined run."""

    rng: random.Random
    traces: list[list[Op]]
    held: dict[tuple[int, SemaphoreKey], int] = field(default_factory=dict)

    def add(self, rank: int, key: SemaphoreKey | None, units: int) -> None:
        if key is not None:
            self.held[rank, key] = self.held.get((rank, key), 0) + units

    def block(self) -> Block:
        name = self.rng.choice(list(BUFFERS))
        start = self.rng.randrange(BUFFERS[name])
        return Block(name, start, self.rng.randint(start + 1, BUFFERS[name]))

    def dma(self) -> None:
        rank, target = self.rng.randrange(len(self.traces)), self.rng.randrange(len(self.traces))
        if target == rank and self.rng.random() < 0.7:
            target = (rank + 1) % len(self.traces)
        amount = self.rng.choice((1, 1, 1, 2, 2, 3))
        sent = None if self.rng.random() < 0.5 else self.rng.choice(SEMAPHORES[1:3])
        received = None if self.rng.random() < 0.1 else self.rng.choice(SEMAPHORES[:2])
        source, written = self.block(), self.block()
        op = Dma(rank=target, source=source, target=written, sent=sent, received=received, amount=amount)
        self.traces[rank].append(op)
        self.add(rank, sent, amount)
        self.add(target, received, amount)

    def signal(self) -> None:
        rank, target = self.rng.sample(range(len(self.traces)), 2)
        key = self.rng.choice((CREDIT, CREDIT, BARRIER, SEMAPHORES[0]))
        amount = self.rng.choice((1, 1, 2))
        self.traces[rank].append(Signal(rank=target, semaphore=key, amount=amount))
        self.add(target, key, amount)

    def compute(self) -> None:
        target = self.block() if self.rng.random() < 0.6 else None
        sources = (self.block(),) if target is None or self.rng.random() < 0.4 else ()
        op = Compute(op="copy" if sources else "zero", target=target, sources=sources)
        self.rng.choice(self.traces).append(op)

    def wait(self, *, all_of_it: bool = False) -> bool:
        choices = [slot for slot, units in sorted(self.held.items()) if units]
        if not choices:
            return False
        rank, key = self.rng.choice(choices)
        units = self.held[rank, key]
        amount = units if all_of_it or self.rng.random() < 0.6 else self.rng.randint(1, units)
        self.held[rank, key] -= amount
        self.traces[rank].append(Wait(semaphore=key, amount=amount))
        return True

    def barrier(self) -> None:
        """Everyone signals some others, and waits for what it is sent, perhaps after only part of that."""
        ranks = range(len(self.traces))
        sends = [(a, b) for a in ranks for b in ranks if a != b and self.rng.random() < 0.8]
        self.rng.shuffle(sends)
        for source, target in sends:
            self.traces[source].append(Signal(rank=target, semaphore=BARRIER, amount=1))
        for rank in ranks:
            units = sum(target == rank for _, target in sends)
            if units:
                self.traces[rank].append(Wait(semaphore=BARRIER, amount=units))

    def protocol(self) -> None:
        """Rank `a` sends to a slot of `b`, which reads it and gives a credit back; each precaution is taken mostly."""
        a, b = self.rng.sample(range(len(self.traces)), 2)
        source, slot = self.rng.randrange(2), self.rng.randrange(2)
        received, amount = SEMAPHORES[self.rng.randrange(2)], self.rng.choice((1, 1, 1, 2))
        sent = SEMAPHORES[2] if self.rng.random() < 0.6 else None
        there, here = Block("slots", slot, slot + 1), Block("x", source, source + 1)
        self.traces[a].append(Dma(rank=b, source=here, target=there, sent=sent, received=received, amount=amount))
        use: list[Op] = [Wait(semaphore=received, amount=amount), Compute(op="copy", target=None, sources=(there,))]
        if self.rng.random() < 0.15:
            use.reverse()
        self.traces[b] += use
        if self.rng.random() < 0.6:
            self.traces[b].append(Signal(rank=a, semaphore=CREDIT, amount=1))
            self.traces[a].append(Wait(semaphore=CREDIT, amount=1))
        overwrite: list[Op] = [Compute(op="zero", target=here)] if self.rng.random() < 0.5 else []
        done: list[Op] = [Wait(semaphore=sent, amount=amount)] if sent is not None else []
        self.traces[a] += overwrite + done if self.rng.random() < 0.15 else done + overwrite


def random_execution(rng: random.Random) -> tuple[Execution, int]:
    """An execution of 2 or 3 ranks and how often to call it."""
    ranks, calls = rng.choice((2, 2, 3)), rng.choice((1, 1, 2))
    draft = Draft(rng, [[] for _ in range(ranks)])
    framed, barrier, orderly = rng.random() < 0.4, rng.random() < 0.35, rng.random() < 0.6
    if barrier:
        draft.barrier()
    transfers = rng.randint(0 if barrier else 1, 3 if calls == 1 else 1)
    if orderly:
        for _ in range(transfers):
            draft.protocol()
    else:
        kinds = ["dma"] * transfers + ["signal"] * rng.randint(0, 2) + ["compute"] * rng.randint(0, 3)
        rng.shuffle(kinds)
        for kind in kinds:
            getattr(draft, kind)()
            while rng.random() < 0.5 and draft.wait():
                pass
    while rng.random() < 0.95 and draft.wait(all_of_it=True):
        pass
    traces = draft.traces
    while rng.random() < 0.35:
        mutate(rng, traces)
    if framed:
        traces = [frame(rng, trace) for trace in traces]
    execution = Execution(sides=(ranks,), symmetric=False, traces=tuple(map(tuple, traces)))
    return execution, calls


def frame(rng: random.Random, trace: list[Op]) -> list[Op]:
    """Enter and Exit around a trace; now and then only part of the memory is theirs."""
    blocks = tuple(Block(name, 0, units) for name, units in BUFFERS.items() if rng.random() < 0.8)
    semaphores = tuple(name for name in ("recv", "send", "credit") if rng.random() < 0.6)
    return [Enter(blocks=blocks, semaphores=semaphores), *trace, Exit(blocks=blocks, semaphores=semaphores)]


def mutate(rng: random.Random, traces: list[list[Op]]) -> None:
    """One small mistake."""
    trace = rng.choice(traces)
    if not trace:
        return
    index = rng.randrange(len(trace))
    op = trace[index]
    match rng.choice(("drop", "move", "move", "double", "amount")):
        case "drop":
            del trace[index]
        case "move":
            trace.insert(rng.randrange(len(trace)), trace.pop(index))
        case "double" if isinstance(op, Signal | Wait):
            trace.insert(index, op)
        case "amount" if isinstance(op, Signal | Wait | Dma):
            trace[index] = replace(op, amount=max(1, op.amount + rng.choice((-1, 1))))
        case _:
            pass


def random_symmetric(rng: random.Random) -> tuple[Execution, int]:
    """A symmetric execution on a ring of 3 or 4, or on a 2 × 2 or 2 × 3 torus."""
    sides = rng.choice(((3,), (4,), (4,), (2, 2), (2, 3)))
    ranks = Execution(sides=sides, symmetric=True, traces=()).ranks
    draft = Draft(rng, [[]])  # one trace: what it adds "elsewhere" comes back to it from elsewhere
    trace = draft.traces[0]
    if rng.random() < 0.6:
        targets = rng.sample(range(1, ranks), rng.randint(1, ranks - 1))
        trace += [Signal(rank=target, semaphore=BARRIER, amount=1) for target in targets]
        trace.append(Wait(semaphore=BARRIER, amount=len(targets)))
    kinds = ["dma"] * rng.randint(1, 3) + ["signal"] * rng.randint(0, 2) + ["compute"] * rng.randint(0, 3)
    rng.shuffle(kinds)
    for kind in kinds:
        before = len(trace)
        if kind == "signal":
            amount = rng.choice((1, 1, 2))
            trace.append(Signal(rank=rng.randrange(1, ranks), semaphore=CREDIT, amount=amount))
            draft.add(0, CREDIT, amount)
        else:
            getattr(draft, kind)()
        op = trace[before]
        if isinstance(op, Dma):
            trace[before] = replace(op, rank=rng.choice((0, *range(1, ranks), *range(1, ranks))))
        while rng.random() < 0.5 and draft.wait():
            pass
    while rng.random() < 0.95 and draft.wait(all_of_it=True):
        pass
    traces = [trace]
    while rng.random() < 0.3:
        mutate(rng, traces)
    if rng.random() < 0.4:
        traces = [frame(rng, trace)]
    return Execution(sides=sides, symmetric=True, traces=(tuple(traces[0]),)), rng.choice((1, 2, 2, 3))


def expand(execution: Execution) -> Execution:
    """The same symmetric execution with every rank's trace written out."""
    traces = []
    for rank in range(execution.ranks):
        trace: list[Op] = []
        for op in execution.traces[0]:
            if isinstance(op, Dma | Signal):
                op = replace(op, rank=_translate(rank, op.rank, execution.sides))
            trace.append(op)
        traces.append(tuple(trace))
    return replace(execution, symmetric=False, traces=tuple(traces))


def _translate(rank: int, displacement: int, sides: tuple[int, ...]) -> int:
    if not sides:
        return 0
    *outer, side = sides
    inner = (rank % side + displacement % side) % side
    return _translate(rank // side, displacement // side, tuple(outer)) * side + inner
