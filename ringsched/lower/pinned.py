"""Irregular schedules: transfers of single ranks → a few statements for all ranks, which look up what each one does.

    step 3: chunk[5] from 2 to 6, chunk[1] from 6 to 5      chunk[sent0[s * N + r]] to to0[s * N + r] when … >= 0

The transfers of a step are split into classes in which every rank sends once at most and receives once at most (an edge
colouring of the multigraph of senders and receivers); the n-th classes of all steps make up one statement. Code size
then depends on how many transfers a rank has in a step, not on how many there are in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ringsched.expr import Compare, Expr, Int, Lookup, Var, binary, lookups
from ringsched.lower.lanes import Ends, Piece, destination, groups_of, pieces
from ringsched.lower.meeting import NOBODY
from ringsched.program.program import RANK
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.schedule import ChunkRef, Op, Rank, Slice, Transfer

MANY_PINNED = 24  # statements about one rank each; fewer are code of their own
STEP = "s"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    sender: int
    receiver: int
    piece: Piece
    op: Op
    origin: Transfer


def irregular(flat: FlatSchedule) -> bool:
    """Whether many statements are about one rank alone, or some look up what a rank does."""
    statements = {transfer.statement for step in flat.steps for transfer in step}
    pinned = sum(statement.sender is not None for statement in statements)
    return pinned >= MANY_PINNED or any(map(_looks_up, statements))


def _looks_up(statement: Transfer) -> bool:
    index = [part for part in statement.chunk.index if not isinstance(part, Slice)]
    return any(lookups(expr) for expr in (*index, *statement.when, *statement.to.coordinates))


def looked_up(flat: FlatSchedule, *, single: bool) -> tuple[FlatSchedule, dict[Transfer, Ends]]:
    """The same transfers as statements that look up chunk, peer and source. `single`: one chunk a transfer.

    Else what a transfer sends in one block stays one.
    """
    classes: dict[tuple[Op, int, int], dict[int, list[_Move]]] = {}  # of operation, depth, colour: moves by step
    for step, transfers in enumerate(flat.steps):
        moves = [move for transfer in transfers for move in _moves(flat, transfer, single)]
        for colour, move in _coloured(moves):
            key = (move.op, len(move.piece), colour)
            classes.setdefault(key, {}).setdefault(step, []).append(move)
    steps: list[list[FlatTransfer]] = [[] for _ in flat.steps]
    ends: dict[Transfer, Ends] = {}
    for number, ((op, depth, _), by_step) in enumerate(sorted(classes.items(), key=lambda item: item[0])):
        statement, end = _statement(flat, number, op, depth, by_step)
        ends[statement] = end
        for step in by_step:
            steps[step].append(FlatTransfer(statement=statement, env={**flat.env, STEP: step}))
    changed = FlatSchedule(
        schedule=flat.schedule,
        env=flat.env,
        topology=flat.topology,
        promise=flat.promise,
        steps=tuple(map(tuple, steps)),
    )
    return changed, ends


def _moves(flat: FlatSchedule, transfer: FlatTransfer, single: bool) -> Iterator[_Move]:
    statement, dims = transfer.statement, flat.promise.dims
    for values, senders in groups_of(flat, transfer, tuple(range(flat.topology.ranks))):
        for value in values:
            for sender in senders:
                env = {**transfer.env, **flat.topology.environment(sender)}
                if statement.each is not None:
                    env[statement.each.var] = value
                receiver = destination(flat.topology, statement, env)
                for piece, _ in pieces(flat, statement.chunk, env, (None,) * len(dims)):
                    blocks = [piece]
                    for size in dims[len(piece) :] if single else ():
                        blocks = [(*block, i) for block in blocks for i in range(size)]
                    for block in blocks:
                        yield _Move(sender=sender, receiver=receiver, piece=block, op=statement.op, origin=statement)


def _coloured(moves: list[_Move]) -> Iterator[tuple[int, _Move]]:
    """A class for each move: the first in which neither its sender sends nor its receiver receives yet.

    Busy ranks come first. At most one class less than twice the transfers of the busiest rank are needed; on meshes and
    tori it is as many as that rank has, as a rule.
    """
    degree = Counter(side for m in moves for side in ((0, m.sender), (1, m.receiver)))
    kinds: dict[tuple[Op, int], list[_Move]] = {}
    for move in moves:
        kinds.setdefault((move.op, len(move.piece)), []).append(move)
    for group in kinds.values():
        taken: set[tuple[int, int, int]] = set()
        busy = sorted(group, key=lambda m: -max(degree[0, m.sender], degree[1, m.receiver]))
        for move in busy:
            colour = 0
            while (colour, 0, move.sender) in taken or (colour, 1, move.receiver) in taken:
                colour += 1
            taken |= {(colour, 0, move.sender), (colour, 1, move.receiver)}
            yield colour, move


def _statement(
    flat: FlatSchedule, number: int, op: Op, depth: int, by_step: dict[int, list[_Move]]
) -> tuple[Transfer, Ends]:
    """One class of all steps, as those who send in it and those who receive see it."""
    ranks = flat.topology.ranks
    length = ranks * (max(by_step) + 1)
    to, source = [NOBODY] * length, [NOBODY] * length
    sent = [[0] * length for _ in range(depth)]
    received = [[0] * length for _ in range(depth)]
    for step, moves in by_step.items():
        for move in moves:
            here, there = step * ranks + move.sender, step * ranks + move.receiver
            to[here], source[there] = move.receiver, move.sender
            for d, index in enumerate(move.piece):
                sent[d][here] = received[d][there] = index
    place = binary("+", binary("*", Var(name=STEP), ranks), RANK)

    def entry(name: str, table: list[int]) -> Expr:
        return Int(value=table[0]) if len(set(table)) == 1 else Lookup(name=name, table=tuple(table), index=place)

    def chunk(name: str, tables: list[list[int]]) -> tuple[Expr, ...]:
        return tuple(entry(name + (f"_{d}" if depth > 1 else ""), table) for d, table in enumerate(tables))

    origins = [move.origin for moves in by_step.values() for move in moves]
    target = entry(f"to{number}", to)
    statement = Transfer(
        chunk=ChunkRef(index=chunk(f"sent{number}", sent), span=origins[0].chunk.span),
        to=Rank(coordinates=(target,), span=origins[0].to.span),
        op=op,
        when=(Compare(first=target, rest=((">=", Int(value=0)),)),),
        span=origins[0].span,
    )
    return statement, Ends(source=entry(f"from{number}", source), chunk=chunk(f"got{number}", received))
