"""FlatSchedule → lanes: each transfer statement seen from both of its ends.

A lane is one statement of the schedule together with its peer (whom I send to) and its source (who sends to me), both
as expressions of my own coordinates. Where the statement moves by a constant displacement the source is the opposite
one; where it swaps pairs the source is the peer; any other statement is taken apart into one lane for each sending
rank.

Which ranks are active when is kept as numbers: `Use.active` lists (sender, each value) for every step. A schedule
that is the same at every rank is looked at from rank 0 only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ringsched.closures import compiled
from ringsched.expr import Binary, Expr, Int, Var, binary, integer, names, substitute
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.schedule import ChunkRef, Rank, Slice, Transfer
from ringsched.topology import Topology, shifting_order

Place = tuple[Expr, ...]
Piece = tuple[int, ...]  # the leading indices of a chunk block, the rest whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    number: int
    statement: Transfer
    peer: tuple[Expr, ...]
    source: tuple[Expr, ...]
    sender: int | None = None  # a lane of one sending rank
    steps: tuple[int, ...] = ()  # the steps in which some rank is active; a use of the lane is a position in this list
    width: tuple[int, int] | None = None  # least and greatest value of `each`


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A lane in one step: the loop variables, and who sends how much. `values` are those of `each`, or (0,)."""

    lane: int
    step: int
    env: dict[str, int]
    values: tuple[int, ...]
    senders: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """`uses[k]` are the uses in step k, in the order of the file; `ranks` the ranks that are looked at."""

    flat: FlatSchedule
    symmetric: bool
    ranks: tuple[int, ...]
    lanes: tuple[Lane, ...]
    uses: tuple[tuple[Use, ...], ...]
    rotation: tuple[
        int | None, ...
    ] = ()  # of a symmetric schedule: the coordinate that each chunk dimension turns with
    arriving: Mapping[Transfer, tuple[Expr, ...]] = field(default_factory=dict)  # see `Ends.chunk`

    def bind(self, use: Use, rank: int, value: int) -> dict[str, int]:
        """All names of the statement of `use`, on `rank`."""
        env = {**use.env, **self.flat.topology.environment(rank)}
        each = self.lanes[use.lane].statement.each
        if each is not None:
            env[each.var] = value
        return env

    def use(self, lane: int, number: int) -> Use:
        """The `number`-th use of a lane."""
        return next(u for u in self.uses[self.lanes[lane].steps[number]] if u.lane == lane)

    def receiver(self, use: Use, sender: int) -> int:
        """Where `sender` sends in this use."""
        return destination(self.flat.topology, self.lanes[use.lane].statement, self.bind(use, sender, use.values[0]))

    def sender(self, use: Use, receiver: int) -> int:
        """Who sends to `receiver`, by the lane's source expression."""
        lane = self.lanes[use.lane]
        if lane.sender is not None:
            return lane.sender
        env = {**use.env, **self.flat.topology.environment(receiver)}
        rank = self.flat.topology.rank(tuple(integer(e, env) for e in lane.source))
        assert rank is not None
        return rank


def destination(topology: Topology, statement: Transfer, env: dict[str, int]) -> int:
    """The rank that `to` names; the data-flow check has shown that it exists."""
    place = tuple(integer(e, env) for e in statement.to.coordinates)
    rank = topology.rank(place) if len(place) == len(topology.sides) else place[0]
    assert rank is not None
    return rank


def pieces(
    flat: FlatSchedule, chunk: ChunkRef, env: dict[str, int], rotation: tuple[int | None, ...]
) -> list[tuple[Piece, tuple[Expr, ...]]]:
    """The contiguous blocks that a chunk reference names: their leading indices as numbers and as expressions.

    Trailing dimensions that are taken whole stay whole; a slice elsewhere is one block for each index. Where the
    dimension turns with the rank they are counted from the rank on, so that it is the same block for every rank.
    """
    if not any(isinstance(part, Slice) for part in chunk.index):
        exprs: tuple[Expr, ...] = chunk.index  # type: ignore[assignment]
        return [(tuple(integer(e, env) for e in exprs), exprs)]
    found: list[tuple[Piece, tuple[Expr, ...]]] = [((), ())]
    dims = flat.promise.dims
    index = list(chunk.index)
    while index and _whole(index[-1], dims[len(index) - 1], env):
        index.pop()
    for d, part in enumerate(index):
        if not isinstance(part, Slice):
            value = integer(part, env)
            found = [((*p, value), (*e, part)) for p, e in found]
            continue
        start = part.start if part.start is not None else Int(value=0)
        axis = rotation[d]
        if axis is not None and _whole(part, dims[d], env):
            own = Var(name=flat.topology.coordinates[axis])
            turned = [flat.further(own, v, dims[d]) for v in range(dims[d])]
            found = [((*p, integer(t, env)), (*e, t)) for p, e in found for t in turned]
            continue
        first = integer(start, env)
        last = integer(part.stop, env) if part.stop is not None else dims[d]
        found = [((*p, v), (*e, binary("+", start, v - first))) for p, e in found for v in range(first, last)]
    return found


def _whole(part: Expr | Slice, size: int, env: dict[str, int]) -> bool:
    if not isinstance(part, Slice):
        return False
    first = integer(part.start, env) if part.start is not None else 0
    last = integer(part.stop, env) if part.stop is not None else size
    return (first, last) == (0, size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """A statement as its receiver sees it: the number of the sender, and the leading chunk indices."""

    source: Expr
    chunk: tuple[Expr, ...]


def find_lanes(flat: FlatSchedule, *, symmetric: bool, ends: Mapping[Transfer, Ends] | None = None) -> Lanes:
    """The lanes of a schedule whose data flow is right. `ends`: of statements of which they are known."""
    ends = ends or {}
    ranks = (0,) if symmetric else tuple(range(flat.topology.ranks))
    table: dict[_Key, Lane] = {}
    uses: list[list[Use]] = []
    groups = [[groups_of(flat, transfer, ranks) for transfer in transfers] for transfers in flat.steps]
    plain = _unwrapped(flat, groups, ranks)
    plain |= {statement: unflattened(end.source, flat.topology.sides) for statement, end in ends.items()}
    for step, transfers in enumerate(flat.steps):
        uses.append([])
        seen = Counter[Transfer]()  # a statement may come twice in one step, with other `each` values
        for transfer, its_groups in zip(transfers, groups[step], strict=True):
            before = seen[transfer.statement]
            seen[transfer.statement] += len(its_groups)
            for group, (values, active) in enumerate(its_groups, before):
                source = plain.get(transfer.statement) or _source(flat, transfer, active)
                for sender, members in [(None, active)] if source else [(q, (q,)) for q in active]:
                    key = (transfer.statement, source, sender, group)
                    lane = _lane(table, key, flat.topology)
                    uses[-1].append(Use(lane=lane.number, step=step, env=transfer.env, values=values, senders=members))
    lanes = _with_uses(tuple(table.values()), uses)
    rotation = _rotation(flat) if symmetric else (None,) * len(flat.promise.dims)
    frozen = tuple(tuple(group) for group in uses)
    return Lanes(
        flat=flat,
        symmetric=symmetric,
        ranks=ranks,
        lanes=lanes,
        uses=frozen,
        rotation=rotation,
        arriving={statement: end.chunk for statement, end in ends.items()},
    )


def _rotation(flat: FlatSchedule) -> tuple[int | None, ...]:
    """Which coordinate the indices of each chunk dimension depend on; a symmetric schedule has one at most."""
    coordinates = flat.topology.coordinates
    found: list[int | None] = [None] * len(flat.promise.dims)
    for statement in {transfer.statement for transfers in flat.steps for transfer in transfers}:
        for d, part in enumerate(statement.chunk.index):
            if not isinstance(part, Slice):
                found[d] = next((i for i, c in enumerate(coordinates) if c in names(part)), found[d])
    return tuple(found)


_Groups = list[tuple[tuple[int, ...], tuple[int, ...]]]  # `each` values, and the ranks that send them


def groups_of(flat: FlatSchedule, transfer: FlatTransfer, ranks: tuple[int, ...]) -> _Groups:
    """More than one group where the guard looks at the `each` value, or not all send as many blocks."""
    statement = transfer.statement
    uneven = _uneven(flat, statement)
    if transfer.each is None or statement.each is None:
        senders = _senders(flat, transfer, ranks, None)
        parts = _alike(flat, transfer, senders, None) if uneven else [senders]
        return [((0,), part) for part in parts if part]
    values = range(transfer.each[0], transfer.each[1] + 1)
    if not uneven and not any(statement.each.var in names(c) for c in statement.when):
        senders = _senders(flat, transfer, ranks, values[0]) if values else ()
        return [(tuple(values), senders)] if senders else []
    groups: list[tuple[list[int], tuple[int, ...]]] = []
    for value in values:
        senders = _senders(flat, transfer, ranks, value)
        for part in _alike(flat, transfer, senders, value) if uneven else [senders]:
            if part and not uneven and groups and groups[-1][1] == part and groups[-1][0][-1] == value - 1:
                groups[-1][0].append(value)
            elif part:
                groups.append(([value], part))
    return [(tuple(v), senders) for v, senders in groups]


def _uneven(flat: FlatSchedule, statement: Transfer) -> bool:
    """Whether how much is sent depends on who sends it, or on the `each` value."""
    own = {"r", *flat.topology.coordinates} | ({statement.each.var} if statement.each is not None else set())
    bounds = [bound for part in statement.chunk.index if isinstance(part, Slice) for bound in (part.start, part.stop)]
    return any(bound is not None and names(bound) & own for bound in bounds)


def _alike(
    flat: FlatSchedule, transfer: FlatTransfer, senders: tuple[int, ...], value: int | None
) -> list[tuple[int, ...]]:
    """The senders by what they send: as many blocks, equally deep. Those that send nothing are left out."""
    parts: dict[tuple[int, ...], list[int]] = {}
    for sender in senders:
        env = {**transfer.env, **flat.topology.environment(sender)}
        if transfer.statement.each is not None and value is not None:
            env[transfer.statement.each.var] = value
        counts = lengths(flat, transfer.statement.chunk, env)
        if 0 not in counts:
            parts.setdefault(counts, []).append(sender)
    return [tuple(part) for part in parts.values()]


def lengths(flat: FlatSchedule, chunk: ChunkRef, env: dict[str, int]) -> tuple[int, ...]:
    """In each dimension that `pieces` counts."""
    dims, index = flat.promise.dims, list(chunk.index)
    while index and _whole(index[-1], dims[len(index) - 1], env):
        index.pop()
    return tuple(_length(part, dims[d], env) for d, part in enumerate(index))


def _length(part: Expr | Slice, size: int, env: dict[str, int]) -> int:
    if not isinstance(part, Slice):
        return 1
    first = integer(part.start, env) if part.start is not None else 0
    return max(0, (integer(part.stop, env) if part.stop is not None else size) - first)


def _senders(flat: FlatSchedule, transfer: FlatTransfer, ranks: tuple[int, ...], value: int | None) -> tuple[int, ...]:
    statement = transfer.statement
    if not statement.when and statement.sender is None:
        return ranks
    env = dict(transfer.env)
    if statement.each is not None and value is not None:
        env[statement.each.var] = value
    guards = [compiled(condition) for condition in statement.when]
    pinned = None if statement.sender is None else _pinned(flat, statement.sender, env)
    found = []
    for rank in ranks if pinned is None else [pinned]:
        env.update(flat.topology.environment(rank))
        if all(guard(env) for guard in guards):
            found.append(rank)
    return tuple(found)


def _pinned(flat: FlatSchedule, rank: Rank, env: dict[str, int]) -> int | None:
    place = tuple(integer(e, env) for e in rank.coordinates)
    return flat.topology.rank(place) if len(place) == len(flat.topology.sides) else place[0]


def _unwrapped(flat: FlatSchedule, groups: list[list[_Groups]], ranks: tuple[int, ...]) -> dict[Transfer, Place]:
    """Statements that always move by the same displacement and never across the seam of a ring: no remainder needed."""
    topology = flat.topology
    if not topology.wraps or len(ranks) == 1:
        return {}
    hops: dict[Transfer, set[tuple[int, ...]]] = {}
    for transfers, their_groups in zip(flat.steps, groups, strict=True):
        for transfer, its_groups in zip(transfers, their_groups, strict=True):
            found = hops.setdefault(transfer.statement, set())
            if transfer.statement.sender is None and len(found) < 2:
                for _, active in its_groups:
                    found |= {_hop(topology, a, b) for a, b in _moves(flat, transfer, active)}
    return {
        statement: tuple(
            binary("+", Var(name=c), -by) for c, by in zip(topology.coordinates, next(iter(found)), strict=True)
        )
        for statement, found in hops.items()
        if len(found) == 1
    }


def _hop(topology: Topology, a: int, b: int) -> tuple[int, ...]:
    return tuple(j - i for i, j in zip(topology.at(a), topology.at(b), strict=True))


def _moves(flat: FlatSchedule, transfer: FlatTransfer, active: tuple[int, ...]) -> list[tuple[int, int]]:
    """(sender, receiver) of every active rank."""
    moves = []
    for rank in active:
        env = {**transfer.env, **flat.topology.environment(rank)}
        if transfer.statement.each is not None and transfer.each is not None:
            env[transfer.statement.each.var] = transfer.each[0]
        moves.append((rank, destination(flat.topology, transfer.statement, env)))
    return moves


def _source(flat: FlatSchedule, transfer: FlatTransfer, active: tuple[int, ...]) -> Place | None:
    """Who sends to me, as expressions; None where no single expression says so."""
    topology, statement = flat.topology, transfer.statement
    if statement.sender is not None:
        return None
    targets = dict(_moves(flat, transfer, active))
    if flat.flips and _moves(flat, transfer, tuple(targets.values())) == [(b, a) for a, b in targets.items()]:
        return _peer(topology, statement)  # bits flip back
    hops = {
        tuple(
            by % side if topology.wraps else by for by, side in zip(_hop(topology, a, b), topology.sides, strict=True)
        )
        for a, b in targets.items()
    }
    if topology.twist:
        back = _step_back(topology, targets)
        if back is not None:
            return untwisted(topology, back)
    elif len(hops) == 1:
        return tuple(_shifted(topology, axis, -amount) for axis, amount in enumerate(hops.pop()))
    if all(targets.get(target) == rank for rank, target in targets.items()):
        return _peer(topology, statement)
    return None


def _shifted(topology: Topology, axis: int, amount: int) -> Expr:
    side = topology.sides[axis]
    if topology.wraps and amount < -(side // 2):  # one hop the other way round reads better
        amount += side
    shifted = binary("+", Var(name=topology.coordinates[axis]), amount)
    return binary("%", shifted, Int(value=side)) if topology.wraps and amount else shifted


def _peer(topology: Topology, statement: Transfer) -> tuple[Expr, ...]:
    """`to` as one expression for each coordinate of the Program, wrapped into range."""
    coordinates = statement.to.coordinates
    if len(coordinates) != len(topology.sides):
        return unflattened(coordinates[0], topology.sides)
    if not topology.wraps:
        return coordinates
    return untwisted(topology, coordinates)


def _step_back(topology: Topology, targets: dict[int, int]) -> Place | None:
    """The place from which one hop, the same for all, leads here; None where there is no such hop."""
    for axis, name in enumerate(topology.coordinates):
        for hop in (1, -1):
            places = ((topology.at(a), b) for a, b in targets.items())
            if all(topology.rank((*at[:axis], at[axis] + hop, *at[axis + 1 :])) == b for at, b in places):
                own: list[Expr] = [Var(name=c) for c in topology.coordinates]
                own[axis] = binary("+", Var(name=name), -hop)
                return tuple(own)
    return None


def untwisted(topology: Topology, coordinates: Place) -> Place:
    """Wrapped into range; on a twisted torus, what wraps around one axis shifts along others."""
    found = list(coordinates)
    for axis in shifting_order(topology.twist):
        expr, side = found[axis], topology.sides[axis]
        if _within(expr, side):
            continue
        for other, shift in enumerate(topology.twist[axis]):
            if shift:
                found[other] = binary("+", found[other], binary("*", binary("//", expr, side), shift))
    return tuple(_wrapped(e, side) for e, side in zip(found, topology.sides, strict=True))


def _within(expr: Expr, side: int) -> bool:
    """Whether an expression is a coordinate, or was wrapped already."""
    if isinstance(expr, Int):
        return 0 <= expr.value < side
    return isinstance(expr, Var) or (isinstance(expr, Binary) and expr.op == "%" and expr.right == Int(value=side))


def _wrapped(expr: Expr, side: int) -> Expr:
    return expr if _within(expr, side) else binary("%", expr, side)


def unflattened(rank: Expr, sides: tuple[int, ...]) -> tuple[Expr, ...]:
    """The coordinates of a flat rank, row-major."""
    place: list[Expr] = []
    for side in reversed(sides[1:]):
        place.insert(0, binary("%", rank, side))
        rank = binary("//", rank, side)
    return (rank, *place)


def flat_rank(place: Sequence[Expr], sides: Sequence[int]) -> Expr:
    """The number of the rank at `place`, row-major."""
    number = place[0]
    for coordinate, side in zip(place[1:], sides[1:], strict=True):
        number = binary("+", binary("*", number, side), coordinate)
    return number


_Key = tuple[Transfer, Place | None, int | None, int]  # statement, source, only sender, group of `each` values


def _lane(table: dict[_Key, Lane], key: _Key, topology: Topology) -> Lane:
    if key not in table:
        statement, source, sender, _ = key
        peer = _peer(topology, statement)
        if sender is not None:  # everything about one sender is a number, but for loop variables
            own = {name: Int(value=v) for name, v in topology.environment(sender).items()}
            peer = _peer(topology, _placed(statement, own))
            source = tuple(Int(value=v) for v in topology.at(sender))
        assert source is not None
        table[key] = Lane(number=len(table), statement=statement, peer=peer, source=source, sender=sender)
    return table[key]


def _placed(statement: Transfer, env: dict[str, Int]) -> Transfer:
    to = Rank(coordinates=tuple(substitute(e, dict(env)) for e in statement.to.coordinates), span=statement.to.span)
    return replace(statement, to=to)


def _with_uses(lanes: tuple[Lane, ...], uses: list[list[Use]]) -> tuple[Lane, ...]:
    steps: list[list[int]] = [[] for _ in lanes]
    widths: list[tuple[int, int] | None] = [None] * len(lanes)
    for group in uses:
        for use in group:
            steps[use.lane].append(use.step)
            if lanes[use.lane].statement.each is not None and use.values:
                low, high = widths[use.lane] or (use.values[0], use.values[-1])
                widths[use.lane] = (min(low, use.values[0]), max(high, use.values[-1]))
    return tuple(replace(x, steps=tuple(steps[x.number]), width=widths[x.number]) for x in lanes)


def sent_pieces(lanes: Lanes, use: Use, sender: int, value: int) -> list[Piece]:
    """The blocks that `sender` sends in this use, for one `each` value."""
    env = lanes.bind(use, sender, value)
    return [p for p, _ in pieces(lanes.flat, lanes.lanes[use.lane].statement.chunk, env, lanes.rotation)]
