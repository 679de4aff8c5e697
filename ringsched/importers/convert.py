"""A right algorithm → Schedule: logical chunks in place of slots, pinned transfers in steps in place of blocks.

Values are followed from where they are promised back to where they come from; what no promise needs is left out, and
so are copies on one rank. A rank of a schedule holds at most one value of a chunk, so the values that it needs of it,
to send or to keep, are put into a row that its state can go through: its own term and sums with it first, each with all
of the one before; then values without it, the first of which replaces what is there. Parked partial sums that are added
up later are added as they arrive. Then each transfer takes the first step that lets every value last as long as it is
needed; messages of a connection stay one after the other, where that can be, so that what was a pipeline is one.

Where there is no such row, or no such steps, a rank needs two values of one chunk at once. If that is because it passes
partial sums on as they are, these are sent straight from where they were made (RS915); else it is RS705.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ringsched.collectives import REDUCING
from ringsched.diagnostics import Diagnostic, DiagnosticError, InternalError, Label
from ringsched.expr import Int
from ringsched.importers.algorithm import ROOTED
from ringsched.importers.judge import Judgement
from ringsched.importers.layout import Layout
from ringsched.importers.pinned import Pinned, schedule_of
from ringsched.importers.values import Arrival, Held, Start, Sum, Value
from ringsched.schedule.flat import flatten
from ringsched.schedule.schedule import Collective, Op, Schedule
from ringsched.verify.dataflow import findings_of

Chunk = tuple[int, ...]


class Converted(NamedTuple):
    schedule: Schedule
    advice: tuple[Diagnostic, ...]


def convert(judgement: Judgement, name: str, description: str) -> Converted:
    """The schedule of an algorithm that is right. Raises RS705."""
    layout, held = judgement.layout, judgement.held
    if judgement.verdict != "right" or layout is None or held is None or layout.algorithm.kind is None:
        raise InternalError("only an algorithm that is right becomes a schedule")
    advice: tuple[Diagnostic, ...] = ()
    try:
        transfers = _Graph(layout, held, straight=False).transfers()
    except DiagnosticError as error:
        try:
            transfers = _Graph(layout, held, straight=True).transfers()
        except DiagnosticError:
            raise error from None
        advice = tuple(map(_straight, error.diagnostics))
    collective = Collective(
        kind=layout.algorithm.kind, root=Int(value=layout.root) if layout.algorithm.kind in ROOTED else None
    )
    ranks, dims = layout.algorithm.ranks, _dims(layout)
    pinned = [Pinned(t.step, t.sender, t.receiver, t.chunk[: len(dims)], t.op) for t in transfers]
    schedule = schedule_of(pinned, name=name, description=description, collective=collective, ranks=ranks, dims=dims)
    found = findings_of(flatten(schedule))
    if found:
        raise InternalError(f"the converted schedule is wrong: {found[0].message}")
    return Converted(schedule, advice)


def _straight(unsayable: Diagnostic) -> Diagnostic:
    return Diagnostic(
        code="RS915",
        message="partial sums that ranks only pass on are sent straight from where they were made",
        primary=unsayable.primary,
        notes=("else this rank would have to hold two values of a chunk at once",),
        help="links may be used that the algorithm does not use",
    )


def _dims(layout: Layout) -> tuple[int, ...]:
    """The chunk space; shards of one chunk are not split."""
    ranks = layout.algorithm.ranks
    match layout.algorithm.kind:
        case "all_gather" | "gather" | "reduce_scatter" | "scatter":
            dims: tuple[int, ...] = (ranks, layout.share)
        case "all_to_all":
            dims = (ranks, ranks, layout.share)
        case _:
            return (layout.total,)
    return dims if layout.share > 1 else dims[:-1]


@dataclass(slots=True)
class _Transfer:
    """The arrival of a value at `receiver`; `step` is its place in the schedule."""

    sender: int
    receiver: int
    chunk: Chunk
    op: Op = "copy"
    step: int = 0
    later: list[tuple[_Transfer, int]] = field(default_factory=list)  # transfers so many steps later, at least

    def before(self, other: _Transfer, steps: int) -> None:
        self.later.append((other, steps))


class _Wait(NamedTuple):
    """`later` comes at least `steps` steps after `first`."""

    first: _Transfer
    later: _Transfer
    steps: int


class _State(NamedTuple):
    """A value that a rank needs, as the set of its parts, and the transfers that send it."""

    parts: frozenset[int]
    sent: list[_Transfer]


class _Graph:
    """The values that promises need. A rank that comes by a value again uses the one that it had first."""

    def __init__(self, layout: Layout, held: Held, *, straight: bool) -> None:
        self.layout, self.nodes, self.straight = layout, held.nodes, straight
        self.reduces = layout.algorithm.kind in REDUCING
        self.first: dict[tuple[int, Value], int] = {}
        self.own: dict[tuple[int, Chunk], int] = {}  # what a rank has of a chunk at the start
        for number, node in enumerate(held.nodes):
            self.first.setdefault((node.rank, node.value), number)
            if isinstance(node, Start) and number not in held.first_read:
                self.own[node.rank, self.chunk(number)] = number
        ends = [held.cells[owed.rank, layout.place(owed.rank, "o", owed.offset)] for owed in layout.promised()]
        self.kept = {self.same(node) for node in ends}
        self.whole = {held.nodes[node].value for node in ends}
        self.live = self.reached(self.kept)

    def same(self, number: int) -> int:
        node = self.nodes[number]
        return self.first[node.rank, node.value]

    def source(self, number: int) -> int:
        """The node that a value is sent from."""
        node = self.nodes[self.same(number)]
        while self.straight and isinstance(node, Arrival) and node.value not in self.whole:
            number = node.source
            node = self.nodes[self.same(number)]
        return self.same(number)

    def reached(self, ends: Iterable[int]) -> list[int]:
        """Everything that the ends are made of, in the order in which it came to be."""
        seen = set(ends)
        waiting = list(seen)
        while waiting:
            match self.nodes[waiting.pop()]:
                case Arrival(source=source):
                    new = {self.source(source)} - seen
                case Sum(left=left, right=right):
                    new = {self.same(left), self.same(right)} - seen
                case Start():
                    continue
            seen |= new
            waiting.extend(new)
        return sorted(seen)

    def transfers(self) -> list[_Transfer]:
        made: dict[int, _Transfer] = {}
        sent: dict[int, list[_Transfer]] = {}
        for number in self.live:
            node = self.nodes[number]
            if isinstance(node, Arrival):
                source = self.source(node.source)
                made[number] = _Transfer(self.nodes[source].rank, node.rank, self.chunk(number))
                sent.setdefault(source, []).append(made[number])
        needed: dict[tuple[int, Chunk], list[int]] = {}
        for number in sorted(self.kept | set(sent)):
            needed.setdefault((self.nodes[number].rank, self.chunk(number)), []).append(number)
        for (rank, chunk), numbers in needed.items():
            states = [_State(self.parts(number), sent.get(number, [])) for number in numbers]
            own = self.own.get((rank, chunk))
            kept = next((state.parts for n, state in zip(numbers, states, strict=True) if n in self.kept), None)
            row = _row(states, own, kept)
            if row is None:
                raise DiagnosticError([self.unsayable(rank, chunk)])
            _order(row, own, made, reduces=self.reduces)
        transfers = list(made.values())
        late = _settle(transfers, self.abreast(made))
        if late is not None:
            late = _settle(transfers, [])
        if late is not None:
            raise DiagnosticError([self.unsayable(late.receiver, late.chunk)])
        return transfers

    def abreast(self, made: dict[int, _Transfer]) -> list[_Wait]:
        """Keeps the chunks of a message together, and the messages of a connection one after the other."""
        found: list[_Wait] = []
        sent: dict[int, dict[int, list[_Transfer]]] = {}
        for number, transfer in made.items():
            node = self.nodes[number]
            assert isinstance(node, Arrival)
            sent.setdefault(node.message[0], {}).setdefault(node.message[1], []).append(transfer)
        for messages in sent.values():
            row = [messages[number] for number in sorted(messages)]
            for first, *others in row:
                for other in others:
                    found += [_Wait(first, other, 0), _Wait(other, first, 0)]
            found += [_Wait(a[0], b[0], 1) for a, b in pairwise(row)]
        return found

    def chunk(self, number: int) -> Chunk:
        atom, _ = next(iter(self.nodes[number].value))
        return self.layout.chunk(atom)

    def parts(self, number: int) -> frozenset[int]:
        """A sum's terms; a value that arrived, or was there, is its own only part."""
        found: set[int] = set()
        waiting = [number]
        while waiting:
            one = waiting.pop()
            match self.nodes[one]:
                case Sum(left=left, right=right):
                    waiting += [self.same(left), self.same(right)]
                case _:
                    found.add(one)
        return frozenset(found)

    def unsayable(self, rank: int, chunk: Chunk) -> Diagnostic:
        index = ", ".join(map(str, chunk[: len(_dims(self.layout))]))
        return Diagnostic(
            code="RS705",
            message=f"no schedule can say this: rank {rank} has to hold two values of chunk [{index}] at once",
            primary=Label(span=self.layout.algorithm.gpus[rank].span, text="this rank"),
            notes=("the algorithm itself is right",),
            help="let the rank send one sum of all that it has, rather than different sums",
        )


def _row(states: list[_State], own: int | None, kept: frozenset[int] | None) -> list[list[_State]] | None:
    """Groups of states to go through in turn; in a group each has all parts of the one before. None: there is no row.

    kept: the state to end with.
    """
    groups: list[list[_State]] = []
    for state in sorted(states, key=lambda s: (own not in s.parts, min(s.parts))):
        touching = [group for group in groups if any(state.parts & other.parts for other in group)]
        if len(touching) > 1:
            return None
        if touching:
            touching[0].append(state)
        else:
            groups.append([state])
    for group in groups:
        group.sort(key=lambda s: len(s.parts))
        if any(not a.parts < b.parts for a, b in pairwise(group)):
            return None
    if kept is not None:
        last = next(group for group in groups if any(state.parts == kept for state in group))
        if last[-1].parts != kept or (own in kept and len(groups) > 1):
            return None
        groups.remove(last)
        groups.append(last)
    return groups


def _order(row: list[list[_State]], own: int | None, made: dict[int, _Transfer], *, reduces: bool) -> None:
    """What has to come before what at one rank, for one chunk; the first part of a group without `own` is copied."""
    before: list[_Transfer] = []  # sends of the state so far
    for group in row:
        fresh = own not in group[0].parts
        have: frozenset[int] = frozenset() if own is None or fresh else frozenset([own])
        for state in group:
            arriving = [made[part] for part in sorted(state.parts - have) if part in made]
            for place, arrival in enumerate(arriving):
                copied = fresh and place == 0 and state is group[0]
                arrival.op = "copy" if copied or not reduces else "reduce"
                if place and arriving[0].op == "copy":
                    arriving[0].before(arrival, 1)
                for sending in before:
                    sending.before(arrival, 0)  # transfers of one step read what was there before it
                for sending in state.sent:
                    arrival.before(sending, 1)
            have = state.parts
            before = state.sent


def _settle(transfers: list[_Transfer], waits: list[_Wait]) -> _Transfer | None:
    """Gives every transfer the first step that it can have; a transfer that has none is returned."""
    more: dict[int, list[tuple[_Transfer, int]]] = {}
    for wait in waits:
        more.setdefault(id(wait.first), []).append((wait.later, wait.steps))
    for transfer in transfers:
        transfer.step = 0
    waiting = {id(transfer): transfer for transfer in transfers}
    while waiting:
        key = next(iter(waiting))
        transfer = waiting.pop(key)
        for other, steps in [*transfer.later, *more.get(key, [])]:
            if other.step < transfer.step + steps:
                other.step = transfer.step + steps
                if other.step > len(transfers):
                    return other
                waiting[id(other)] = other
    return None
