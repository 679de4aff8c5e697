"""Plan → the items of a schedule: a list of pinned transfers, in which parts of a chunk in a row are one slice.

Ranks and owners are given by coordinates on a mesh or torus. `tabled` has another form for long plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringsched.collectives import OWNED, Chunk
from ringsched.expr import Expr, Int
from ringsched.plans.plan import Move, Plan
from ringsched.schedule.schedule import ChunkRef, Rank, Slice, Step, Transfer
from ringsched.topology import Topology


def pinned_steps(plan: Plan) -> tuple[Step, ...]:
    """The steps, in a chunk space of `pinned_dims`."""
    topology = plan.network.topology
    ranks = tuple(_rank(topology, rank) for rank in range(topology.ranks))
    return tuple(Step(transfers=tuple(_transfers(plan, step, ranks))) for step in plan.steps)


def pinned_dims(plan: Plan) -> tuple[int, ...]:
    """The chunk space with the owners' coordinates in place of their numbers."""
    topology, owners = plan.network.topology, OWNED[plan.kind]
    sides = topology.sides if len(topology.coordinates) > 1 else (topology.ranks,)
    return (*sides * owners, *plan.dims[owners:])


def _transfers(plan: Plan, step: Sequence[Move], ranks: Sequence[Rank]) -> Iterable[Transfer]:
    """One for each move, or for each run of parts of one chunk that go the same way."""
    owners = OWNED[plan.kind]
    split = len(plan.dims) > owners
    runs: list[tuple[Move, int]] = []  # the first move, and how many more of them
    for move in sorted(step, key=lambda m: (m.sender, m.receiver, m.op, m.chunk)):
        if runs and split and _continues(*runs[-1], move):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((move, 0))
    for move, more in runs:
        yield Transfer(
            chunk=ChunkRef(index=_index(plan, move.chunk, more, ranks)),
            sender=ranks[move.sender],
            to=ranks[move.receiver],
            op=move.op,
        )


def _continues(first: Move, more: int, move: Move) -> bool:
    """Whether `move` takes the next part along."""
    part = first.chunk[-1] + more + 1
    return move == first._replace(chunk=(*first.chunk[:-1], part))


def _index(plan: Plan, chunk: Chunk, more: int, ranks: Sequence[Rank]) -> tuple[Expr | Slice, ...]:
    owners = OWNED[plan.kind]
    index: list[Expr | Slice] = []
    for owner in chunk[:owners]:
        index += ranks[owner].coordinates
    rest: list[Expr | Slice] = [Int(value=part) for part in chunk[owners:]]
    if more and more + 1 == plan.dims[-1]:
        rest = [*rest[:-1]] if owners or len(rest) > 1 else [Slice()]
    elif more:
        rest[-1] = Slice(start=Int(value=chunk[-1]), stop=Int(value=chunk[-1] + more + 1))
    return (*index, *rest)


def _rank(topology: Topology, rank: int) -> Rank:
    place = topology.at(rank) if len(topology.coordinates) > 1 else (rank,)
    return Rank(coordinates=tuple(Int(value=coordinate) for coordinate in place))
