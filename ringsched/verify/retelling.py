"""An interleaving in words, for people to follow.

    Execution, Interleaving  →  lines

What a rank executes without stop is one line, which names the entry to the kernel, the wait that it now gets through,
the DMAs that matter later, and how far it comes. Memory is in units, as in all findings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ringsched.program.trace import Block, Compute, Dma, Enter, Execution, Exit, Op, SemaphoreKey, Signal, Wait
from ringsched.verify.interleaving import (
    Conflict,
    Do,
    Event,
    Fault,
    Interleaving,
    Kind,
    Left,
    Outside,
    Stuck,
    Units,
    streams,
)
from ringsched.verify.replay import replay

Point = tuple[int, int]  # rank, position through all calls
SHOWN = 8  # semaphores left over


def describe(execution: Execution, interleaving: Interleaving, calls: int = 2) -> tuple[str, ...]:
    """The interleaving line by line; the last ones tell the fault that it ends with, if it does."""
    faults = [f for f in replay(execution, interleaving, calls).faults if f.at >= len(interleaving) - 1]
    # What is wrong with memory says more than the semaphores of the same DMA, and what overlaps more than where.
    faults.sort(key=lambda f: (isinstance(f, Outside), isinstance(f, Conflict | Outside) and f.space == "semaphore"))
    fault = faults[0] if faults else None
    shown = faults[:1] if isinstance(fault, Conflict | Outside) else faults[:SHOWN]
    teller = _Teller(execution, interleaving, shown)
    told = _merged(teller.tell(len(interleaving) - isinstance(fault, Conflict | Outside)))
    return (*told, *_merged(teller.end()))


@dataclass(frozen=True, slots=True)
class _Line:
    """What a rank does, as verbs in the plural and what follows them (None: a line that is not about a rank)."""

    rank: int | None
    parts: tuple[tuple[str, str], ...]


def _merged(lines: Iterator[_Line]) -> Iterator[str]:
    """Ranks that do the same one after the other share a line."""
    for (parts, is_rank), alike in groupby(lines, key=lambda line: (line.parts, line.rank is not None)):
        ranks = [line.rank for line in alike if line.rank is not None]
        if not is_rank:
            yield parts[0][0]
            continue
        verbs = [verb if len(ranks) > 1 else verb + ("es" if verb.endswith("s") else "s") for verb, _ in parts]
        phrases = [f"{verb} {rest}" for verb, (_, rest) in zip(verbs, parts, strict=True)]
        yield f"{_ranks(ranks)} {_listed(phrases)}"


class _Teller:
    """Follows the events; `given` keeps whose units lie on each semaphore, first come, first taken."""

    def __init__(self, execution: Execution, interleaving: Interleaving, faults: Sequence[Fault]) -> None:
        self.traces = execution.traces
        self.interleaving = interleaving
        self.faults = faults
        self.points: list[Point | None] = []  # what each event executes
        self.times: dict[Point, int] = {}  # how often the rank has executed the same line, this time included
        self.often: Counter[tuple[int, str]] = Counter()
        positions: Counter[int] = Counter()
        for event in interleaving:
            point = (event.rank, positions[event.rank]) if isinstance(event, Do) else None
            self.points.append(point)
            if point is not None:
                positions[event.rank] += 1
                self.often[event.rank, self._title(point)] += 1
                self.times[point] = self.often[event.rank, self._title(point)]
        self.matter = {
            (event.rank, event.position)
            for at, event in enumerate(interleaving)
            if isinstance(event, Units) and not self._silent(at)
        }
        for fault in faults:
            if isinstance(fault, Conflict):
                self.matter.add((fault.earlier.rank, fault.earlier.position))
        self.to_come: dict[tuple[int, int, str], int] = {}
        self.given: dict[tuple[int, SemaphoreKey], list[int]] = defaultdict(list)  # rank of each lot
        self.lots: dict[tuple[int, SemaphoreKey], list[int]] = defaultdict(list)  # units of each lot

    def tell(self, stop: int) -> Iterator[_Line]:
        """The events before `stop`."""
        at = 0
        before: Event | None = None
        while at < stop:
            event, end = self.interleaving[at], at + 1
            if isinstance(event, Units) and not self._silent(at):
                yield _Line(None, ((self._arrival(event), ""),))
            else:
                while end < stop and self.interleaving[end].rank == event.rank:
                    if isinstance(self.interleaving[end], Units) and not self._silent(end):
                        break
                    end += 1
                yield _Line(event.rank, tuple(self._passage(range(at, end), before)))
            at, before = end, event

    def _silent(self, at: int) -> bool:
        """Whether a rank just goes on because a DMA of its own has ended, as one would expect."""
        event, after = self.interleaving[at], self.interleaving[at + 1 : at + 2]
        if not isinstance(event, Units) or after != (Do(event.rank),):
            return False
        op = self._op((event.rank, event.position))
        return isinstance(op, Dma) and op.amount == event.count and (event.end == "read" or op.rank == event.rank)

    def _passage(self, events: range, before: Event | None) -> Iterator[tuple[str, str]]:
        """What one rank does in `events`, the last event told before being `before`."""
        points = [point for point in self.points[events.start : events.stop] if point is not None]
        for at in events:
            event, point = self.interleaving[at], self.points[at]
            if isinstance(event, Units):
                self._arrival(event)
            if point is None:
                continue
            op = self._op(point)
            givers = self._execute(point, op)
            match op:
                case Enter() | Exit():
                    yield ("enter" if isinstance(op, Enter) else "leave"), self._frame(point)
                case Wait() if point == points[0]:
                    told = isinstance(before, Units) and givers == [before.rank]
                    own = givers == [point[0]]
                    yield "pass", self._name(point) + ("" if told or own else f" on units of {_ranks(givers)}")
                case Dma() if point in self.matter or point == points[-1]:
                    yield "start", self._name(point)
                case Wait() | Signal() | Compute() | Dma():
                    if point == points[-1]:
                        yield from self._halt(point, op)

    def _halt(self, point: Point, op: Op) -> Iterator[tuple[str, str]]:
        """Where a rank stops for now: before a wait that it may be stuck in, else after what it has just done."""
        after = (point[0], point[1] + 1)
        if self._call(after) == self._call(point) and isinstance(self._op(after), Wait):
            yield "run", f"up to {self._name(after)}"
        else:
            yield {Signal: "give", Wait: "pass"}.get(type(op), "execute"), self._name(point)

    def _execute(self, point: Point, op: Op) -> list[int]:
        """Keeps count of the semaphores; returns whose units a wait takes."""
        rank, position = point
        givers: list[int] = []
        if isinstance(op, Dma):
            for stream in streams(rank, position, op):
                self.to_come[rank, position, stream.end] = stream.units
        if isinstance(op, Signal):
            self.given[op.rank, op.semaphore].append(rank)
            self.lots[op.rank, op.semaphore].append(op.amount)
        if isinstance(op, Wait):
            given, lots, lacking = self.given[rank, op.semaphore], self.lots[rank, op.semaphore], op.amount
            while lacking > 0:
                givers += [given[0]] if given[0] not in givers else []
                taken = min(lacking, lots[0])
                lacking, lots[0] = lacking - taken, lots[0] - taken
                if not lots[0]:
                    del given[0], lots[0]
        return sorted(givers)

    def _arrival(self, event: Units) -> str:
        point, key = (event.rank, event.position), (event.rank, event.position, event.end)
        op = self._op(point)
        assert isinstance(op, Dma)
        stream = next(each for each in streams(*point, op) if each.end == event.end)
        left = self.to_come[key] = self.to_come[key] - event.count
        place = "no semaphore"
        if stream.semaphore is not None:
            self.given[stream.owner, stream.semaphore].append(event.rank)
            self.lots[stream.owner, stream.semaphore].append(event.count)
            place = f"{_semaphore(stream.semaphore)} of rank {stream.owner}"
        whose = f"{self._name(point)} of rank {event.rank}"
        if left:
            return f"{event.count} of {stream.units} units of {whose} arrive on {place}"
        done = "is over" if event.end == "written" else "has read its source"
        return f"{whose} {done}: {event.count} units on {place}" if stream.semaphore else f"{whose} {done}"

    def end(self) -> Iterator[_Line]:
        for fault in self.faults:
            match fault:
                case Conflict() | Outside():
                    yield _Line(None, ((self._clash(fault), ""),))
                case Stuck():
                    for stuck in fault.ranks:
                        wait = self._name((stuck.rank, stuck.position))
                        yield _Line(stuck.rank, (("stay", f"in {wait} for ever: its semaphore holds {stuck.has}"),))
                case Left():
                    calls = f"{fault.calls} calls" if fault.calls > 1 else "a call"
                    text = f"after {calls}, {_semaphore(fault.semaphore)} of rank {fault.owner} holds {fault.units}"
                    yield _Line(None, ((text, ""),))

    def _clash(self, fault: Conflict | Outside) -> str:
        later = fault.later if isinstance(fault, Conflict) else fault.touch
        point = (later.rank, later.position)
        op = self._op(point)
        if isinstance(op, Enter | Exit):
            now = f"{'enters' if isinstance(op, Enter) else 'leaves'} {self._frame(point)}"
        else:
            now = f"{'starts' if isinstance(op, Dma) else 'executes'} {self._name(point)}"
        if isinstance(fault, Outside):
            where = "has left the kernel" if fault.left is not None else "has not entered the kernel yet"
            return f"rank {later.rank} {now}: it reaches {fault.block.buffer} of rank {fault.owner}, which {where}"
        earlier = (fault.earlier.rank, fault.earlier.position)
        what = _units(fault.overlap) if fault.space == "memory" else fault.overlap.buffer
        if earlier == point:
            return f"rank {later.rank} {now}: it reads and writes {what} of rank {fault.owner} at the same time"
        other = f"while {self._name(earlier)} of rank {earlier[0]}"
        what, doing = f"{what} of rank {fault.owner}", _doing(fault.earlier.kind)
        if isinstance(op, Enter | Exit):
            return f"rank {later.rank} {now} {other} {'already' if isinstance(op, Enter) else 'still'} {doing} {what}"
        return f"rank {later.rank} {now}: it {_doing(later.kind)} {what} {other} still {doing} it"

    def _op(self, point: Point) -> Op:
        trace = self.traces[point[0]]
        return trace[point[1] % len(trace)]

    def _call(self, point: Point) -> int:
        return point[1] // len(self.traces[point[0]])

    def _frame(self, point: Point) -> str:
        """The kernel, or a scope within it."""
        trace = self.traces[point[0]]
        before = trace[: point[1] % len(trace)]
        depth = sum(isinstance(op, Enter) - isinstance(op, Exit) for op in before) - isinstance(self._op(point), Exit)
        return ("a scope" if depth > 0 else "the kernel") + (
            f" (call {self._call(point) + 1})" if self._call(point) else ""
        )

    def _name(self, point: Point) -> str:
        """`copy x → y` (kernels.py:25, 2nd time)"""
        op, title = self._op(point), self._title(point)
        details = (
            []
            if isinstance(op, Enter | Exit) or op.origin is None
            else [f"{op.origin.path.rpartition('/')[2]}:{op.origin.line}"]
        )
        if self.often[point[0], title] > 1 and point in self.times:
            details.append(f"{_ordinal(self.times[point])} time")
        text = title.partition("\n")[0]
        return f"`{text}` ({', '.join(details)})" if details else f"`{text}`"

    def _title(self, point: Point) -> str:
        """Told apart by lines: the same text on another line is something else."""
        op = self._op(point)
        match op:
            case Enter() | Exit():
                return type(op).__name__.lower()
            case Dma():
                title = op.note or f"DMA {_units(op.source)} → {_units(op.target)} of rank {op.rank}"
            case Wait():
                title = op.note or f"wait for {op.amount} on {_semaphore(op.semaphore)}"
            case Signal():
                title = op.note or f"signal {_semaphore(op.semaphore)} of rank {op.rank}"
            case Compute():
                blocks = (*op.sources, *(() if op.target is None else (op.target,)))
                title = op.note or f"{op.op} {' → '.join(map(_units, blocks))}"
        return title if op.origin is None else f"{title}\n{op.origin}"


def _doing(kind: Kind) -> str:
    return {"read": "reads", "write": "writes", "signal": "counts on"}.get(kind, "has")


def _units(block: Block) -> str:
    return f"{block.buffer}[{block.start}]" if block.units == 1 else f"{block.buffer}[{block.start}:{block.stop}]"


def _semaphore(key: SemaphoreKey) -> str:
    return f"{key[0]}[{key[1]}]"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_listed([str(rank) for rank in ranks])}"


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
