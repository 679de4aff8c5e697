"""What every chunk of memory holds, followed symbolically through one run. Where there is no race that is every run's.

A value is a multiset of pieces of input, so that a term counted twice is seen: a frozen set of (piece, which copy).
More than two copies are as wrong as two, so they need not be counted. Nodes say where a value comes from.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from ringsched.importers.algorithm import Slot
from ringsched.importers.layout import Atom, Cell, Layout
from ringsched.importers.network import Event, Network

COPIES = 3  # from here on copies are no longer counted
UNWRITTEN = -1  # the rank of an atom that is no input: what memory held before anyone wrote it

Value = frozenset[tuple[Atom, int]]


class Start(NamedTuple):
    """What a chunk held at the start; `atom` of rank UNWRITTEN where that means nothing."""

    rank: int
    value: Value


class Arrival(NamedTuple):
    """A chunk of a message at the receiver; `source` is a node of the sender, `message` a connection and a number."""

    rank: int
    value: Value
    source: int
    message: tuple[int, int]


class Sum(NamedTuple):
    rank: int
    value: Value
    left: int
    right: int


Node = Start | Arrival | Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """`nodes` in the order in which they come to be; `cells`: what memory holds at the end, by (rank, cell).

    `writer`: the last event that wrote a cell. `first_read`: of memory that nothing had written, by its node.
    `unread`: input that was replaced before anything read it, with the event that did.
    """

    nodes: tuple[Node, ...]
    cells: dict[tuple[int, Cell], int]
    writer: dict[tuple[int, Cell], Event]
    first_read: dict[int, Event]
    unread: dict[tuple[int, Cell], Event]


def plain(atoms: frozenset[Atom]) -> Value:
    """Each of them once."""
    return frozenset((atom, 0) for atom in atoms)


def counted(value: Value) -> Counter[Atom]:
    return Counter(atom for atom, _ in value)


def _added(a: Value, b: Value) -> Value:
    if a.isdisjoint(b):
        return a | b
    have = counted(a)
    more = ((atom, min(copy + have[atom], COPIES - 1)) for atom, copy in b)
    return a.union(more)


class _Memory:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.nodes: list[Node] = []
        self.cells: dict[tuple[int, Cell], int] = {}
        self.writer: dict[tuple[int, Cell], Event] = {}
        self.first_read: dict[int, Event] = {}
        self.fresh: set[tuple[int, Cell]] = set()  # input that nothing has read yet
        self.unread: dict[tuple[int, Cell], Event] = {}
        for gpu in layout.algorithm.gpus:
            for index in range(layout.inputs(gpu.rank)):
                key = (gpu.rank, layout.place(gpu.rank, "i", index))
                self.cells[key] = self.new(Start(gpu.rank, plain(frozenset([Atom(gpu.rank, index)]))))
                self.fresh.add(key)

    def new(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def read(self, rank: int, slot: Slot, ahead: int, event: Event) -> int:
        key = self.key(rank, slot, ahead)
        self.fresh.discard(key)
        node = self.cells.get(key)
        if node is None:
            node = self.new(Start(rank, frozenset([(Atom(UNWRITTEN, len(self.nodes)), 0)])))
            self.first_read[node] = event
            self.cells[key] = node
        return node

    def write(self, rank: int, slot: Slot, ahead: int, node: int, event: Event) -> None:
        key = self.key(rank, slot, ahead)
        if key in self.fresh:
            self.fresh.discard(key)
            self.unread[key] = event
        self.cells[key] = node
        self.writer[key] = event

    def key(self, rank: int, slot: Slot, ahead: int) -> tuple[int, Cell]:
        cell = self.layout.cell(rank, slot, ahead)
        assert cell is not None  # bounds are checked before
        return rank, cell

    def sum(self, rank: int, left: int, right: int) -> int:
        return self.new(Sum(rank, _added(self.nodes[left].value, self.nodes[right].value), left, right))


def follow(network: Network, layout: Layout, order: tuple[Event, ...]) -> Held:
    """The values after the events in this order, which has to be one in which they can run."""
    memory = _Memory(layout)
    flying: list[deque[list[int]]] = [deque() for _ in network.connections]
    numbers = [itertools.count() for _ in network.connections]
    for event in order:
        joined = network.at(event)
        rank, step = network.blocks[event[0]].rank, joined.step
        arrived: list[int] = []
        if joined.receives >= 0:
            message = (joined.receives, next(numbers[joined.receives]))
            for node in flying[joined.receives].popleft():
                arrived.append(memory.new(Arrival(rank, memory.nodes[node].value, node, message)))
        result: list[int] = []
        for ahead in range(step.count):
            match step.type:
                case "r" | "rcs":
                    result.append(arrived[ahead])
                case "rrc" | "rrs" | "rrcs":
                    local = memory.read(rank, step.source, ahead, event)
                    result.append(memory.sum(rank, local, arrived[ahead]))
                case "s" | "cpy":
                    result.append(memory.read(rank, step.source, ahead, event))
                case "re":
                    source = memory.read(rank, step.source, ahead, event)
                    result.append(memory.sum(rank, memory.read(rank, step.target, ahead, event), source))
                case "nop":
                    pass
        if step.written() is not None:
            for ahead, node in enumerate(result):
                memory.write(rank, step.target, ahead, node, event)
        if joined.sends >= 0:
            flying[joined.sends].append(result)
    return Held(
        nodes=tuple(memory.nodes),
        cells=memory.cells,
        writer=memory.writer,
        first_read=memory.first_read,
        unread=memory.unread,
    )
