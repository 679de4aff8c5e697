"""A large Plan in few statements: for each direction one that looks up in a table what each rank sends in each step.

    - for: s in 0 .. 14
      do:
        - send: chunk[x_up_0[s * 64 + r] // 64, x_up_0[s * 64 + r] % 64]
          to: [x + 1, y]
          when: x_up_0[s * 64 + r] >= 0

An entry is the number of a chunk, counted through the chunk space (of a shard that goes as a whole: of the shard), or
-1 where nothing is sent. A table holds as many steps as it may have entries. Where links have no directions, the
neighbours of each rank are numbered, and tables say which they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ringsched.collectives import OWNED, Chunk
from ringsched.expr import Binary, Compare, Expr, Int, Lookup, Var
from ringsched.plans.plan import Move, Plan
from ringsched.schedule.schedule import ChunkRef, Loop, Op, Range, Rank, Step, Transfer
from ringsched.topology import Topology

MOST_ENTRIES = 1000  # of a table, as the language has it


class _Slot(NamedTuple):
    """A direction, what is done, with a whole shard or one part of it, and which of several over one link in a step."""

    way: str
    op: Op
    whole: bool
    again: int


_R, _S = Var(name="r"), Var(name="s")


class Tabled(NamedTuple):
    """`tables` and `steps:` of a schedule whose chunks are counted as the plan counts them."""

    tables: tuple[tuple[str, tuple[int, ...]], ...]
    items: tuple[Loop, ...]


def tabled(plan: Plan) -> Tabled | None:
    """The plan in this form; None for more ranks than a table has entries."""
    topology = plan.network.topology
    ranks = range(topology.ranks)
    length = MOST_ENTRIES // topology.ranks
    if not length:
        return None
    ways = {link: _way(topology, *link) for link in plan.network.links}
    rows = [_row(plan, ways, step) for step in plan.steps]
    slots = sorted({slot for row in rows for slot in row})
    peers = _peers(topology)
    tables = dict(peers)
    loops = []
    for block, first in enumerate(range(0, len(rows), length)):
        some = rows[first : first + length]
        transfers = []
        for slot in slots:
            entries = tuple(row.get(slot, {}).get(rank, -1) for row in some for rank in ranks)
            if max(entries) >= 0:
                name = f"{_name(slot)}_{block}"
                tables[name] = entries
                entry = Lookup(name=name, table=entries, index=_plus(_times(_S, topology.ranks), _R))
                transfers.append(_transfer(plan, slot, entry, _target(topology, slot.way, peers)))
        range_ = Range(var="s", first=Int(value=0), last=Int(value=len(some) - 1))
        loops.append(Loop(range=range_, body=(Step(transfers=tuple(transfers)),)))
    return Tabled(tuple(tables.items()), tuple(loops))


def _peers(topology: Topology) -> dict[str, tuple[int, ...]]:
    """For links without directions: the first neighbour of each rank, the second, …; 0 where there is none."""
    if topology.kind != "links":
        return {}
    near = [topology.neighbours(rank) for rank in range(topology.ranks)]
    most = max(map(len, near))
    return {f"near_{which}": tuple(n[which] if which < len(n) else 0 for n in near) for which in range(most)}


def _row(plan: Plan, ways: dict[tuple[int, int], str], step: Sequence[Move]) -> dict[_Slot, dict[int, int]]:
    """Slot → sender → number of the chunk, for one step."""
    owners = _owners(plan)
    parts = math.prod(plan.dims[owners:])
    shards: dict[Move, list[Chunk]] = {}  # a move of a shard, by its owners alone → what goes of it
    for move in step:
        shards.setdefault(move._replace(chunk=move.chunk[:owners]), []).append(move.chunk)
    found: dict[_Slot, dict[int, int]] = {}
    for move, chunks in shards.items():
        whole = len(chunks) == parts
        way = ways[move.sender, move.receiver]
        for chunk in [move.chunk] if whole else chunks:
            slots = (_Slot(way, move.op, whole, again) for again in range(len(step)))
            slot = next(slot for slot in slots if move.sender not in found.get(slot, {}))
            found.setdefault(slot, {})[move.sender] = _number(chunk, plan.dims)
    return found


def _owners(plan: Plan) -> int:
    """How many dimensions name a shard; all of them where nobody owns one."""
    return OWNED[plan.kind] or len(plan.dims)


def _number(chunk: Chunk, dims: Sequence[int]) -> int:
    number = 0
    for index, size in zip(chunk, dims, strict=False):  # of a whole shard: without the parts
        number = number * size + index
    return number


def _name(slot: _Slot) -> str:
    return f"{slot.way}_{'sum' if slot.op == 'reduce' else 'to'}{'' if slot.whole else '_part'}{slot.again or ''}"


def _way(topology: Topology, a: int, b: int) -> str:
    """`x_up`, `y_down`: along which axis and which way the link runs; else `near_0`, the first neighbour."""
    if topology.kind == "links":
        return f"near_{topology.neighbours(a).index(b)}"
    place, axis = topology.at(a), topology.axis(a, b)
    assert axis is not None
    onward = topology.rank((*place[:axis], place[axis] + 1, *place[axis + 1 :]))
    return f"{topology.coordinates[axis]}_{'up' if onward == b else 'down'}"


def _target(topology: Topology, way: str, peers: dict[str, tuple[int, ...]]) -> Rank:
    if way in peers:
        return Rank(coordinates=(Lookup(name=way, table=peers[way], index=_R),))
    name, _, sign = way.partition("_")
    ends = (
        _plus(Var(name=c), Int(value=1), "+" if sign == "up" else "-") if c == name else Var(name=c)
        for c in topology.coordinates
    )
    return Rank(coordinates=tuple(ends))


def _transfer(plan: Plan, slot: _Slot, entry: Lookup, to: Rank) -> Transfer:
    """Of the chunk with the number `entry`, where that is one."""
    index: list[Expr] = []
    dims = plan.dims[: _owners(plan)] if slot.whole else plan.dims
    for position, size in enumerate(dims):
        inner = math.prod(dims[position + 1 :])
        whole: Expr = entry if inner == 1 else Binary(op="//", left=entry, right=Int(value=inner))
        index.append(whole if position == 0 else Binary(op="%", left=whole, right=Int(value=size)))
    sends = Compare(first=entry, rest=((">=", Int(value=0)),))
    return Transfer(chunk=ChunkRef(index=tuple(index)), to=to, op=slot.op, when=(sends,))


def _times(left: Expr, right: int) -> Expr:
    return Binary(op="*", left=left, right=Int(value=right))


def _plus(left: Expr, right: Expr, op: str = "+") -> Expr:
    return Binary(op=op, left=left, right=right)
