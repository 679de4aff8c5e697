"""FlatSchedule → MSCCL XML.

Each rank has a block for each peer that it sends to and one for each that it receives from, so that neither waits for
the other, with steps in the order of the schedule's. Chunks have one place each at a rank: in the output where they are
promised, in the input where they start, in scratch memory where they only pass. Messages of a step that take the same
way go on channels of their own, up to a number of them, and on still more channels where else they would not run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, assert_never
from xml.sax.saxutils import quoteattr

from ringsched.diagnostics import InternalError
from ringsched.exporters.messages import Accesses, Message, exportable, messages
from ringsched.importers.algorithm import DEPTHS, Buffer, Slot
from ringsched.importers.elements import parse
from ringsched.importers.judge import Judgement, judge
from ringsched.importers.reader import algorithm_of
from ringsched.schedule.flat import FlatSchedule
from ringsched.schedule.schedule import CollectiveKind
from ringsched.verify.resolve import chunk_at

MAX_COUNT = 71  # chunks of a step, what the runtime takes
MAX_CHANNELS = 32
IN_PLACE: frozenset[CollectiveKind] = frozenset({"all_gather", "reduce_scatter", "all_reduce", "reduce", "broadcast"})
ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """`judgement`: of the text, as of any other."""

    text: str
    channels: int
    judgement: Judgement


def export(flat: FlatSchedule, protocol: str, most: int = 8) -> Exported:
    """The XML of a schedule that is right, on at most `most` channels if it runs with that. Raises RS831."""
    exportable(flat, permutations=False)
    first: Exported | None = None
    places = _Places(flat)
    steps = _steps(flat, places)
    channels = min(most, max((run.place + 1 for step in steps for run in step), default=1))
    while channels <= MAX_CHANNELS:
        text = _text(flat, places, steps, protocol, channels)
        judgement = judge(algorithm_of(parse(text.encode(), f"{flat.schedule.name}.xml")))
        exported = Exported(text=text, channels=channels, judgement=judgement)
        first = first or exported
        if judgement.verdict == "right":
            return exported
        if judgement.least_depth is None or judgement.least_depth <= DEPTHS[protocol]:
            raise InternalError(f"the exported algorithm is wrong: {judgement.findings[0].message}")
        channels *= 2
    assert first is not None
    return first


# -- places -----------------------------------------------------------------------------------------------------------


class _Places:
    """Where each rank has each chunk."""

    def __init__(self, flat: FlatSchedule) -> None:
        self.promise = flat.promise
        self.share = math.prod(flat.promise.parts)
        self.scratch: list[dict[int, int]] = [{} for _ in range(flat.topology.ranks)]

    def slot(self, rank: int, chunk: int) -> Slot:
        kind, part = self.promise.kind, chunk % self.share
        match kind:
            case "all_gather":
                return Slot(buffer="o", offset=chunk)
            case "reduce_scatter" | "all_reduce" | "reduce" | "broadcast":
                return Slot(buffer="i", offset=chunk)
            case "all_to_all" | "gather" | "scatter":
                index = chunk_at(self.promise.dims, chunk)
                source, target = self.ends(index)
                if rank == target:
                    return Slot(buffer="o", offset=self.offset(chunk, source, part, root=kind == "gather"))
                if rank == source:
                    return Slot(buffer="i", offset=self.offset(chunk, target, part, root=kind == "scatter"))
                passing = self.scratch[rank]
                return Slot(buffer="s", offset=passing.setdefault(chunk, len(passing)))
            case "permute" | "none":
                raise InternalError(f"{kind} has no places")
            case _:
                assert_never(kind)

    def ends(self, index: tuple[int, ...]) -> tuple[int, int]:
        """The ranks at which a chunk is at the start, and at the end."""
        owner = self.promise.owner(index)
        match self.promise.kind:
            case "gather":
                return owner, self.promise.root
            case "scatter":
                return self.promise.root, owner
            case _:
                return owner, self.promise.owner(index, 1)

    def offset(self, chunk: int, other: int, part: int, *, root: bool) -> int:
        """In a buffer with a share for each rank, or (all_to_all) for each other end; else in a share alone."""
        if root:
            return chunk
        return other * self.share + part if self.promise.kind == "all_to_all" else part

    def copies(self, ranks: int) -> Iterator[tuple[int, Slot, Slot]]:
        """What stays at its rank and changes its buffer: (rank, from, to)."""
        if self.promise.kind in IN_PLACE:
            return
        for chunk in range(math.prod(self.promise.dims)):
            source, target = self.ends(chunk_at(self.promise.dims, chunk))
            if source == target:
                offset = self.offset(chunk, target, chunk % self.share, root=self.promise.kind == "scatter")
                yield source, Slot(buffer="i", offset=offset), self.slot(target, chunk)

    def size(self, rank: int, buffer: Buffer) -> int:
        total = math.prod(self.promise.dims)
        root = rank == self.promise.root
        match buffer, self.promise.kind:
            case "s", _:
                return len(self.scratch[rank])
            case "i", "all_gather" | "gather":
                return self.share
            case "o", "reduce_scatter" | "scatter":
                return self.share
            case ("i", "scatter") | ("o", "gather"):
                return total if root else 0
            case _, "all_to_all":
                return total // self.promise.topology.ranks
            case _:
                return total


# -- steps ------------------------------------------------------------------------------------------------------------


class _Op(NamedTuple):
    """A step; `waits`: (block, step) of the same rank."""

    type: str
    source: Slot
    target: Slot
    chunks: int
    waits: tuple[tuple[int, int], ...]


_NOWHERE = Slot(buffer="i", offset=-1)


@dataclass(slots=True)
class _Rank:
    """`blocks`: (send, receive, channel) → its steps, in the order of their ids. `at`: where each operation is."""

    blocks: dict[tuple[int, int, int], list[_Op]] = field(default_factory=dict)
    at: list[tuple[int, int]] = field(default_factory=list)
    accesses: Accesses = field(default_factory=Accesses)

    def add(self, block: tuple[int, int, int], op: _Op, read: list[Slot], written: list[Slot]) -> None:
        """Appends a step that waits for what it has to; one `nop` for each dependence but the last."""
        steps = self.blocks.setdefault(block, [])
        id = list(self.blocks).index(block)
        number = len(self.at)
        before = self.accesses.read(number, read) | self.accesses.write(number, written)
        last: dict[int, int] = {}
        for other in before:
            where, place = self.at[other]
            if where != id:
                last[where] = max(place, last.get(where, -1))
        needs = sorted(last.items())
        for need in needs[:-1]:
            steps.append(_Op("nop", _NOWHERE, replace(_NOWHERE, buffer="o"), 0, (need,)))
        steps.append(op._replace(waits=tuple(needs[-1:])))
        self.at.append((id, len(steps) - 1))


class _Run(NamedTuple):
    """Chunks of a message that are side by side at both ends. `place`: among those of a step that go the same way."""

    sender: int
    receiver: int
    reduces: bool
    source: Slot
    target: Slot
    length: int
    place: int = 0

    def ends(self, ahead: int) -> tuple[Slot, Slot]:
        """Where a chunk of it comes from and goes to, or the one behind the last would."""
        return _behind(self.source, ahead), _behind(self.target, ahead)


def _steps(flat: FlatSchedule, places: _Places) -> list[list[_Run]]:
    steps = []
    for step in messages(flat):
        ways: dict[tuple[int, int], int] = {}
        runs = []
        for message in step:
            for run in _runs(places, message):
                place = ways.setdefault((run.sender, run.receiver), 0)
                ways[run.sender, run.receiver] += 1
                runs.append(run._replace(place=place))
        steps.append(runs)
    return steps


def _runs(places: _Places, message: Message) -> Iterator[_Run]:
    run: _Run | None = None
    for chunk in message.chunks:
        source, target = places.slot(message.sender, chunk), places.slot(message.receiver, chunk)
        if run is not None and run.length < MAX_COUNT and run.ends(run.length) == (source, target):
            run = run._replace(length=run.length + 1)
            continue
        if run is not None:
            yield run
        run = _Run(message.sender, message.receiver, message.op == "reduce", source, target, 1)
    if run is not None:
        yield run


def _ranks(flat: FlatSchedule, places: _Places, steps: list[list[_Run]], channels: int) -> list[_Rank]:
    ranks = [_Rank() for _ in range(flat.topology.ranks)]
    for rank, source, target in places.copies(len(ranks)):
        ranks[rank].add((-1, -1, 0), _Op("cpy", source, target, 1, ()), [source], [target])
    for step in steps:
        for run in step:
            read = [_behind(run.source, i) for i in range(run.length)]
            op = _Op("s", run.source, run.target, run.length, ())
            ranks[run.sender].add((run.receiver, -1, run.place % channels), op, read, [])
        for run in step:
            written = [_behind(run.target, i) for i in range(run.length)]
            op = _Op(
                "rrc" if run.reduces else "r", run.target if run.reduces else run.source, run.target, run.length, ()
            )
            block = (-1, run.sender, run.place % channels)
            ranks[run.receiver].add(block, op, written if run.reduces else [], written)
    return ranks


def _behind(slot: Slot, count: int) -> Slot:
    return replace(slot, offset=slot.offset + count)


# -- text -------------------------------------------------------------------------------------------------------------


def _text(flat: FlatSchedule, places: _Places, steps: list[list[_Run]], protocol: str, channels: int) -> str:
    ranks = _ranks(flat, places, steps, channels)
    promise = flat.promise
    in_place = promise.kind in IN_PLACE
    total = math.prod(promise.dims) // (len(ranks) if promise.kind == "all_to_all" else 1)
    used = max((channel + 1 for rank in ranks for _, _, channel in rank.blocks), default=1)
    attributes = {
        "name": flat.schedule.name,
        "proto": protocol,
        "nchannels": used,
        "nchunksperloop": total,
        "ngpus": len(ranks),
        "coll": promise.kind.replace("_", ""),
        **({"root": promise.root} if promise.kind in ROOTED else {}),
        "inplace": int(in_place),
        "outofplace": int(not in_place),
        "minBytes": 0,
        "maxBytes": 0,
    }
    lines = [f"<algo {_attributes(attributes)}>"]
    for number, rank in enumerate(ranks):
        sizes: dict[str, object] = {f"{b}_chunks": places.size(number, b) for b in ("i", "o", "s")}
        lines.append(f"  <gpu {_attributes({'id': number, **sizes})}>")
        waited = {need for block in rank.blocks.values() for op in block for need in op.waits}
        for id, ((send, receive, channel), block) in enumerate(rank.blocks.items()):
            lines.append(f"    <tb {_attributes({'id': id, 'send': send, 'recv': receive, 'chan': channel})}>")
            for place, op in enumerate(block):
                lines.append(f"      <step {_step(place, op, flagged=(id, place) in waited)}/>")
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _step(place: int, op: _Op, *, flagged: bool) -> str:
    block, step = op.waits[0] if op.waits else (-1, -1)
    return _attributes(
        {
            "s": place,
            "type": op.type,
            "srcbuf": op.source.buffer,
            "srcoff": op.source.offset,
            "dstbuf": op.target.buffer,
            "dstoff": op.target.offset,
            "cnt": op.chunks,
            "depid": block,
            "deps": step,
            "hasdep": int(flagged),
        }
    )


def _attributes(values: dict[str, object]) -> str:
    return " ".join(f"{name}={quoteattr(str(value))}" for name, value in values.items())
