"""A statement in some turns → a shift, where it has names that are right in all of them.

Each guess is tried at every rank in every turn, so it need not be a clever one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringsched.closures import Environment, Getter, compiled
from ringsched.expr import Binary, EvaluationError, Expr, Int, Var, binary, names, substitute
from ringsched.lower.lanes import flat_rank, unflattened
from ringsched.program.simplify import simplify
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.schedule import Range, Slice
from ringsched.topology import Topology
from ringsched.verify.resolve import Move, strides
from ringsched.xla.exchange import Index, Pairs, Shift

Names = Mapping[str, Expr | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a statement moves in one step.

    Of a schedule that multiplies before it sends: `sends_first` are the parts of the chunks (those along the dimensions
    that the statement does not name, counted through) whose terms have to be there before, `needs_first` those to which
    something comes. multiplies: what arrives is multiplied, or its terms are computed, as it is stored.
    """

    transfer: FlatTransfer
    moves: tuple[Move, ...]
    sends_first: tuple[int, ...] = ()
    needs_first: tuple[int, ...] = ()
    multiplies: bool = False

    @property
    def routes(self) -> dict[int, int]:
        """The receiver of each sender."""
        return {move.sender: move.receiver for move in self.moves}

    @property
    def plain(self) -> bool:
        """Whether all who send send for the same `each` values, each to another rank."""
        routes = self.routes
        values = {move.value for move in self.moves}
        several = len(set(routes.values())) == len(routes)
        return self.transfer.statement.sender is None and several and len(self.moves) == len(values) * len(routes)


def shift_of(
    flat: FlatSchedule,
    parameters: tuple[str, ...],
    turns: Sequence[Turn],
    bound: Mapping[str, Expr],
    loop: tuple[str, int] | None,
) -> Shift | None:
    """The shift of one statement, or None.

    parameters: that may be named; bound: what the loop variable is called; loop: its name in `bound`, and first value.
    """
    topology, statement = flat.topology, turns[0].transfer.statement
    env: dict[str, Expr] = {n: Int(value=v) for n, v in turns[0].transfer.env.items() if n not in parameters}
    known = {**env, **bound}
    each = None
    if statement.each is not None:
        var = statement.each.var
        while var in parameters or (loop is not None and var == loop[0]):
            var += "_"
        known[statement.each.var] = Var(name=var)
    try:
        if statement.each is not None:
            first, last = substitute(statement.each.first, known), substitute(statement.each.last, known)
            each = Range(var=var, first=first, last=last)
        sent = substituted(statement.chunk.index, known)
        to = tuple(substitute(e, known) for e in statement.to.coordinates)
        when = tuple(substitute(e, known) for e in statement.when)
        own = frozenset({*topology.coordinates, "r"})
        if _ranges(sent) & (own | ({each.var} if each else set())):
            return None  # jax has no slice whose ends are not known beforehand
        trial = _Trial(flat=flat, turns=turns, loop=loop, each=each.var if each else None)
        everyone = all(len(turn.routes) == topology.ranks for turn in turns)
        if all(isinstance(part, Slice) for part in sent) and not everyone:
            return None
        place = (
            {"r": flat_rank([Var(name=c) for c in topology.coordinates], topology.sides)}
            if "r" not in topology.coordinates
            else {}
        )
        to = tuple(substitute(e, place) for e in to)
        if len(to) != len(topology.sides):
            to = unflattened(to[0], topology.sides)
        guards = tuple(substitute(c, place) for c in when if names(c) & own)
        guesses = (_simplified(substituted(sent, source)) for source in _sources(topology, to, turns))
        arrived = next((guess for guess in guesses if trial.holds(guess, received=True)), None)
        if arrived is None or not trial.holds(sent, received=False):
            return None
    except EvaluationError:  # a constant part without a value, behind a guard that is false
        return None
    pairs = Pairs(to=to, when=guards)
    return Shift(
        statement=statement,
        pairs=pairs,
        everyone=everyone,
        sent=sent,
        arrived=arrived,
        each=each,
        multiplies=turns[0].multiplies,
    )


def substituted(index: Index, known: Names) -> Index:
    """The same chunks with these names known."""

    def end(expr: Expr | None) -> Expr | None:
        return None if expr is None else substitute(expr, known)

    return tuple(
        Slice(start=end(part.start), stop=end(part.stop)) if isinstance(part, Slice) else substitute(part, known)
        for part in index
    )


def _simplified(index: Index) -> Index:
    return tuple(part if isinstance(part, Slice) else simplify(part, {}) for part in index)


def _ranges(index: Index) -> frozenset[str]:
    """The names in the ends of slices."""
    ends = [end for part in index if isinstance(part, Slice) for end in (part.start, part.stop) if end is not None]
    return frozenset().union(*(names(end) for end in ends))


def _sources(topology: Topology, to: tuple[Expr, ...], turns: Sequence[Turn]) -> Iterator[Names]:
    """What the sender's coordinates may be in terms of the receiver's: simple ones first."""
    own = [Var(name=c) for c in topology.coordinates]
    hops = {hop for turn in turns for hop in _hops(topology, turn)}
    if len(hops) == 1:
        yield from _both(topology, tuple(binary("-", c, hop) for c, hop in zip(own, hops.pop(), strict=True)))
    offsets = [_offset(expr, c.name) for expr, c in zip(to, own, strict=True)]
    shifted = tuple(binary("-", c, by) for c, by in zip(own, offsets, strict=True) if by is not None)
    if len(shifted) == len(own):
        yield from _both(topology, shifted)
    yield from _both(topology, to)  # where ranks exchange in pairs


def _hops(topology: Topology, turn: Turn) -> Iterator[tuple[int, ...]]:
    for sender, receiver in turn.routes.items():
        ends = zip(topology.at(sender), topology.at(receiver), topology.sides, strict=True)
        yield tuple(_shortest(b - a, side) if topology.wraps else b - a for a, b, side in ends)


def _shortest(hop: int, side: int) -> int:
    hop %= side
    return hop - side if hop > side // 2 else hop


def _both(topology: Topology, place: tuple[Expr, ...]) -> Iterator[Names]:
    """As it is, and wrapped."""
    for wraps in (False, True) if topology.wraps else (False,):
        sides = zip(topology.coordinates, place, topology.sides, strict=True)
        found: dict[str, Expr | int] = {
            c: binary("%", e, side) if wraps and not isinstance(e, Var) else e for c, e, side in sides
        }
        if "r" not in found:
            found["r"] = substitute(flat_rank([Var(name=c) for c in topology.coordinates], topology.sides), found)
        yield found


def _offset(expr: Expr, name: str) -> Expr | None:
    """`e` where the expression is `name + e`, perhaps modulo something, and nothing in `e` depends on the name."""
    match expr:
        case Var() if expr.name == name:
            return Int(value=0)
        case Binary(op="%") if name not in names(expr.right):
            return _offset(expr.left, name)
        case Binary(op="+" | "-") if name not in names(expr.right):
            left = _offset(expr.left, name)
            return None if left is None else binary(expr.op, left, expr.right)
        case Binary(op="+") if name not in names(expr.left):
            right = _offset(expr.right, name)
            return None if right is None else binary("+", expr.left, right)
        case _:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """All that a shift must get right."""

    flat: FlatSchedule
    turns: Sequence[Turn]
    loop: tuple[str, int] | None
    each: str | None

    def holds(self, index: Index, *, received: bool) -> bool:
        """Whether the index names the chunks that each rank receives, or sends."""
        dims, topology = self.flat.promise.dims, self.flat.topology
        whole = (Slice(),) * (len(dims) - len(index))
        parts = [_ends(part) if isinstance(part, Slice) else compiled(part) for part in (*index, *whole)]
        along = list(zip(parts, dims, strides(dims), strict=True))
        places = [topology.environment(rank) for rank in range(topology.ranks)]
        for number, turn in enumerate(self.turns):
            env: Environment = dict(self.flat.env)
            if self.loop is not None:
                env[self.loop[0]] = self.loop[1] + number
            for move in turn.moves:
                env.update(places[move.receiver if received else move.sender])
                if self.each is not None and move.value is not None:
                    env[self.each] = move.value
                try:
                    if _numbers(along, env) != list(move.chunks):
                        return False
                except (ArithmeticError, LookupError, ValueError):
                    return False
        return True


_Part = Getter | tuple[Getter | None, Getter | None]


def _ends(part: Slice) -> tuple[Getter | None, Getter | None]:
    return (
        None if part.start is None else compiled(part.start),
        None if part.stop is None else compiled(part.stop),
    )


def _numbers(along: Sequence[tuple[_Part, int, int]], env: Environment) -> list[int]:
    """The numbers of the chunks, row-major; an index that is out of range gives none.

    along: for each dimension an index or a slice, its size, and by how much the number grows in it.
    """
    base, ranges = 0, []
    for part, size, step in along:
        if isinstance(part, tuple):
            start, stop = (part[0](env) if part[0] else 0), (part[1](env) if part[1] else size)
            ranges.append(range(start * step, stop * step, step))
            continue
        value = part(env)
        if not 0 <= value < size:
            return []
        base += value * step
    return [base + sum(offsets) for offsets in itertools.product(*ranges)] if ranges else [base]
