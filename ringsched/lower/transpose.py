"""FlatSchedule → its transpose: the same transfers backwards in time.

A schedule is a linear map of the chunks. Its transpose sends every chunk back the way it came: where a copy handed a
chunk on, the contributions are summed on the way back, and where a sum was formed the result is handed back. So the
transpose of an all-gather is a reduce-scatter, that of a broadcast a reduction; the kernel for the gradient follows
from the schedule.
"""

from __future__ import annotations

from dataclasses import replace

from ringsched.collectives import Promise
from ringsched.expr import Compare, Expr, Int, Var, substitute
from ringsched.lower.lanes import Lane, Lanes, flat_rank
from ringsched.program.simplify import simplify
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.schedule import ChunkRef, CollectiveKind, Op, Range, Rank, Slice, Transfer

TWIN: dict[CollectiveKind, CollectiveKind] = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "permute": "permute",
    "broadcast": "reduce",
    "reduce": "broadcast",
    "gather": "scatter",
    "scatter": "gather",
    "none": "none",
}


def transpose(lanes: Lanes) -> FlatSchedule | None:
    """The transpose, its data flow still to be checked; None where it cannot be written down."""
    flat = lanes.flat
    promise = _promise(flat.promise)
    if promise is None:
        return None
    backward: dict[int, Transfer] = {}
    for lane in lanes.lanes:
        statement = _backward(lanes, lane)
        if statement is None:
            return None
        backward[lane.number] = statement
    steps = []
    for uses in reversed(lanes.uses):
        transfers = []
        for use in uses:
            each = (use.values[0], use.values[-1]) if backward[use.lane].each is not None else None
            if each is not None and len(use.values) != each[1] - each[0] + 1:
                return None
            transfers.append(FlatTransfer(statement=backward[use.lane], env=use.env, each=each))
        steps.append(tuple(transfers))
    name = f"{flat.schedule.name}_transpose"
    collective = replace(flat.schedule.collective, kind=promise.kind)
    schedule = replace(flat.schedule, name=name, collective=collective)
    return replace(flat, schedule=schedule, promise=promise, steps=tuple(steps))


def _promise(promise: Promise) -> Promise | None:
    inverse = [0] * len(promise.permutation)
    for source, target in enumerate(promise.permutation):
        inverse[target] = source
    return replace(promise, kind=TWIN[promise.kind], permutation=tuple(inverse))


def _backward(lanes: Lanes, lane: Lane) -> Transfer | None:
    """The statement of a lane as its receiver would send the chunk back."""
    flat = lanes.flat
    statement = lane.statement
    sender = None
    conditions = statement.when
    at: dict[str, Expr | int]
    if lane.sender is not None:
        own = {name: Int(value=v) for name, v in flat.topology.environment(lane.sender).items()}
        at = dict(own)
        sender = Rank(coordinates=lane.peer)
        conditions = ()
    else:
        at = dict(zip(flat.topology.coordinates, lane.source, strict=True))
        if "r" not in at:
            at["r"] = flat_rank(lane.source, flat.topology.sides)
        if lane.source != lane.peer:
            conditions = (*_exists(lanes, lane), *(simplify(substitute(c, at)) for c in statement.when))
    chunk = _chunk(flat, statement, at, lane)
    if chunk is None:
        return None
    each = statement.each
    if each is not None:
        each = Range(var=each.var, first=each.first, last=each.last, span=each.span)
    return Transfer(
        chunk=chunk,
        to=Rank(coordinates=lane.source),
        op=_op(flat, statement.op),
        when=conditions,
        each=each,
        sender=sender,
        span=statement.span,
    )


def _op(flat: FlatSchedule, op: Op) -> Op:
    if flat.promise.kind in ("all_to_all", "permute", "gather", "scatter", "none"):
        return op
    return "copy" if op == "reduce" else "reduce"


def _exists(lanes: Lanes, lane: Lane) -> list[Expr]:
    """The source must be a rank; needed where its expression does not wrap."""
    topology = lanes.flat.topology
    found: list[Expr] = []
    for name, side, expr in zip(topology.coordinates, topology.sides, lane.source, strict=True):
        wrapped = not isinstance(expr, Var) and getattr(expr, "op", "") == "%"
        if expr != Var(name=name) and not wrapped:
            found.append(Compare(first=Int(value=0), rest=(("<=", expr), ("<", Int(value=side)))))
    return found


def _chunk(flat: FlatSchedule, statement: Transfer, at: dict[str, Expr | int], lane: Lane) -> ChunkRef | None:
    """The chunk as the receiver names it; for collectives that name the destination, with its names exchanged."""
    index: list[Expr | Slice] = []
    for part in statement.chunk.index:
        if isinstance(part, Slice):
            start = simplify(substitute(part.start, at)) if part.start is not None else None
            stop = simplify(substitute(part.stop, at)) if part.stop is not None else None
            index.append(Slice(start=start, stop=stop))
        else:
            index.append(simplify(substitute(substitute(part, at), dict(flat.env))))
    group = flat.promise.group
    if flat.promise.kind == "all_to_all":
        if len(index) < 2 * group:
            return None
        index = [*index[group : 2 * group], *index[:group], *index[2 * group :]]
    if flat.promise.kind == "permute":
        own = tuple(Var(name=c) for c in flat.topology.coordinates)
        if lane.sender is not None or statement.chunk.index[:group] != own:
            return None  # a chunk that takes several hops would have to be renamed
        index = [*own, *index[group:]]
    return ChunkRef(index=tuple(index), span=statement.chunk.span)
