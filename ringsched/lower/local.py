"""What a rank does with its own memory: promised chunks that never travel, and units that nothing comes to."""

from __future__ import annotations

from ringsched.collectives import OWNED
from ringsched.expr import Expr, Int, Var
from ringsched.lower.lanes import Lanes, Piece
from ringsched.lower.naming import OUTPUT
from ringsched.lower.places import Place, Places, coalesce
from ringsched.lower.where import where
from ringsched.program.program import Instruction, Region, When, Zero
from ringsched.program.simplify import simplify

RANK = -1  # in place of a coordinate: the number of the rank
Block = tuple[Piece, Place]  # leading chunk indices, and where the chunk lies now


def copies(lanes: Lanes, places: Places) -> list[tuple[tuple[Expr, ...], Block]]:
    """Blocks to be brought to the result, each with the conditions on the ranks that do so.

    Owner dimensions are relative to the rank, so that all ranks may turn out the same.
    """
    groups: dict[tuple[Block, ...], list[int]] = {}
    for rank, copied in places.copied.items():
        table = dict(copied)
        chunks = list(lanes.flat.promise.chunks())
        blocks = coalesce((), chunks, [table.get(c) for c in chunks])
        fact = tuple((_relative(lanes, piece, rank), place) for piece, place in blocks if place is not None)
        groups.setdefault(fact, []).append(rank)
    return [(_on(lanes, ranks), block) for fact, ranks in groups.items() for block in fact]


def absolute(lanes: Lanes, piece: Piece) -> tuple[Expr, ...]:
    """The chunk indices of a relative block, in terms of the rank's coordinates."""
    topology = lanes.flat.topology
    exprs: list[Expr] = []
    for d, value in enumerate(piece):
        axis = _rotating(lanes, d)
        if axis is None:
            exprs.append(Int(value=value))
            continue
        flat = axis == RANK
        own = Var(name="r" if flat else topology.coordinates[axis])
        side = topology.ranks if flat else topology.sides[axis]
        exprs.append(simplify(lanes.flat.further(own, value, side)))
    return tuple(exprs)


def blanks(lanes: Lanes, places: Places) -> list[Instruction]:
    """Units of the result that no chunk is promised for are zero."""
    groups: dict[tuple[Piece, ...], list[int]] = {}
    for rank, blank in places.blank.items():
        groups.setdefault(tuple(blank), []).append(rank)
    found: list[Instruction] = []
    for units, ranks in groups.items():
        zeros: tuple[Instruction, ...] = tuple(
            Zero(target=Region(buffer=OUTPUT, index=tuple(Int(value=i) for i in unit)), note="nothing comes here")
            for unit in units
        )
        found.extend(guarded(_on(lanes, ranks), zeros))
    return found


def guarded(conditions: tuple[Expr, ...], body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """`body` under its conditions, if there are any."""
    return (When(conditions=conditions, body=body),) if conditions else body


def _on(lanes: Lanes, ranks: list[int]) -> tuple[Expr, ...]:
    if lanes.symmetric:
        return ()
    return where(lanes.flat.topology, frozenset(ranks), lambda value: Int(value=value))


def _rotating(lanes: Lanes, dimension: int) -> int | None:
    """The coordinate that an owner dimension counts along, or `RANK`."""
    promise = lanes.flat.promise
    if promise.group == 0 or dimension >= OWNED[promise.kind] * promise.group:
        return None
    return dimension % promise.group if promise.group == len(promise.topology.sides) else RANK


def _relative(lanes: Lanes, piece: Piece, rank: int) -> Piece:
    place = (*lanes.flat.topology.at(rank), rank)  # RANK is the last of them
    index = []
    for d, value in enumerate(piece):
        axis = _rotating(lanes, d)
        index.append(value if axis is None else lanes.flat.back(value, place[axis], lanes.flat.promise.dims[d]))
    return tuple(index)
