"""Construction → the items of a schedule: loops whose indices are looked up in tables, single steps where parts travel.

The tables of direction k are named after the coordinates: `x0[s]` is how far the chunk that goes in direction 0 in step
s has come along x. Where the entries are the same or count on, a number or `s + constant` takes their place.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ringsched.diagnostics import InternalError
from ringsched.expr import Expr, Int, Lookup, Var, binary, lookups
from ringsched.plans.construct import Construction, Move, Place, backwards, exchange, spread
from ringsched.schedule.schedule import ChunkRef, Constructed, Item, Loop, Op, Range, Rank, Slice, Step, Transfer
from ringsched.topology import Topology

SHORTEST = 3  # steps that make a loop worth its while


def construction(kind: Constructed, sides: tuple[int, ...], parts: int) -> Construction:
    """See plans/construct.py; of an all-gather, a reduce-scatter or an all-to-all."""
    match kind:
        case "all_gather":
            return spread(sides, parts)
        case "reduce_scatter":
            return backwards(spread(sides, parts))
        case "all_to_all":
            return exchange(sides, parts)
        case _:
            raise InternalError(f"{kind} is not constructed")


def statements(
    kind: Constructed, topology: Topology, parts: int, *, split: bool, var: str = "s", tag: str = ""
) -> tuple[Item, ...]:
    """The steps on a ring or torus. `split`: the chunk space has a last dimension of `parts` parts of a shard.

    var: the loop variable. tag: ends the names of all tables.
    """
    made = construction(kind, topology.sides, parts)
    write = _Writer(kind, topology, made, split, var, tag)
    items: list[Item] = []
    for uniform, group in itertools.groupby(enumerate(made.steps), key=lambda pair: write.uniform(pair[1], parts)):
        steps = list(group)
        if uniform and len(steps) >= SHORTEST:
            items.append(write.loop(steps[0][0], [step for _, step in steps]))
        else:
            items.extend(write.step(step, parts) for _, step in steps)
    return tuple(items)


class _Writer:
    def __init__(
        self, kind: Constructed, topology: Topology, made: Construction, split: bool, var: str, tag: str
    ) -> None:
        self.kind = kind
        self.names = topology.coordinates
        self.sides = topology.sides
        self.made = made
        self.split = split
        self.var = var
        self.tag = tag
        self.op: Op = "reduce" if kind == "reduce_scatter" else "copy"

    def uniform(self, step: Sequence[Move], parts: int) -> bool:
        """Every direction moves one chunk, which is whole (or, of an exchange, some part)."""
        whole = self.kind == "all_to_all" or all(move.parts == (0, parts) for move in step)
        return whole and [move.direction for move in step] == list(range(len(self.made.directions)))

    def loop(self, first: int, steps: list[tuple[Move, ...]]) -> Item:
        transfers = []
        axes = list(enumerate(self.names))
        for k in range(len(self.made.directions)):
            moves = [step[k] for step in steps]
            here = [self._entries(f"{n}{k}", [m.start[a] for m in moves], first) for a, n in axes]
            index = self._ranks(here)
            if self.kind == "all_to_all":
                rest = [self._rest(move) for move in moves]
                index += self._ranks([self._entries(f"to_{n}{k}", [r[a] for r in rest], first) for a, n in axes], "+")
                if self.split:
                    index.append(self._entries(f"part{k}", [m.parts[0] for m in moves], first))
            transfers.append(self._transfer(k, index))
        range_ = Range(var=self.var, first=Int(value=first), last=Int(value=first + len(steps) - 1))
        return Loop(range=range_, body=(Step(transfers=tuple(transfers)),))

    def step(self, step: Sequence[Move], parts: int) -> Step:
        transfers = []
        for move in step:
            index = self._ranks([Int(value=a) for a in move.start])
            if self.kind == "all_to_all":
                index += self._ranks([Int(value=a) for a in self._rest(move)], "+")
            first, last = move.parts
            if self.split and last - first == 1:
                index.append(Int(value=first))
            elif self.split and (first, last) != (0, parts):
                index.append(Slice(start=Int(value=first), stop=Int(value=last)))
            transfers.append(self._transfer(move.direction, index))
        return Step(transfers=tuple(transfers))

    def _rest(self, move: Move) -> Place:
        return tuple((b - a) % side for a, b, side in zip(move.start, move.target, self.sides, strict=True))

    def _ranks(self, distance: Sequence[Expr], op: str = "-") -> list[Expr | Slice]:
        """The rank that is so far behind this one (op `+`: ahead of it), as one index for each coordinate."""
        index: list[Expr | Slice] = []
        for name, by, side in zip(self.names, distance, self.sides, strict=True):
            near = Int(value=_nearest(by.value, side)) if isinstance(by, Int) else by
            place = binary(op, Var(name=name), near)
            index.append(place if isinstance(place, Var) else binary("%", place, side))
        return index

    def _transfer(self, direction: int, index: list[Expr | Slice]) -> Transfer:
        hops = self.made.directions[direction]
        to = Rank(coordinates=tuple(binary("+", Var(name=n), by) for n, by in zip(self.names, hops, strict=True)))
        return Transfer(chunk=ChunkRef(index=tuple(index)), to=to, op=self.op)

    def _entries(self, name: str, values: list[int], first: int) -> Expr:
        """The value in step `first`, `first` + 1, …"""
        if len(set(values)) == 1:
            return Int(value=values[0])
        if all(b - a == 1 for a, b in itertools.pairwise(values)):
            return binary("+", Var(name=self.var), values[0] - first)
        return Lookup(name=name + self.tag, table=tuple(values), index=binary("-", Var(name=self.var), first))


def _nearest(distance: int, side: int) -> int:
    """The same distance modulo the side, the shorter way round."""
    return distance - side if 2 * distance > side else distance


def tables(items: Sequence[Item]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The tables that the chunk indices of the items look up, by name."""
    found: dict[str, tuple[int, ...]] = {}
    for item in items:
        if isinstance(item, Loop):
            found.update(tables(item.body))
        elif isinstance(item, Step):
            parts = (part for transfer in item.transfers for part in transfer.chunk.index)
            found.update((x.name, x.table) for part in parts if not isinstance(part, Slice) for x in lookups(part))
    return tuple(found.items())
