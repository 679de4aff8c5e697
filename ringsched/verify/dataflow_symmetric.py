"""Data flow of a schedule that is the same at every rank up to rotation: rank 0 stands for all.

The symmetry is read off the expressions, evaluated with the coordinates as symbols (`Affine`), never tried on samples:
guards do not depend on the rank; a transfer goes a fixed displacement; a chunk dimension either turns with one
coordinate (every index in it is `(coordinate + constant) % side`, and the dimension has `side` chunks) or does not
depend on the rank; and what the collective promises turns along. Everything else, wrong statements included, is
`NotAffine`: the full check then decides. Chunk indices and contributions are kept relative to the rank, so what arrives
from another rank is turned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from ringsched.collectives import OWNED
from ringsched.diagnostics import Diagnostic
from ringsched.expr import Affine, EvaluationError, Flipped, NotAffine, Value, evaluate, holds, names
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.schedule import Slice, Transfer
from ringsched.verify.flow import Carried
from ringsched.verify.resolve import Move, chunk_at, strides

Place = tuple[int, ...]
Axis = int | Literal["fixed"] | None  # the coordinate that a chunk dimension turns with; None: not known yet


class Symmetric:
    """Cell `chunk` holds rank 0's contributions of it. Raises `NotAffine` where rank 0 does not stand for all."""

    def __init__(self, flat: FlatSchedule) -> None:
        self.flat = flat
        self.ranks = (0,)
        self.diagnostics: list[Diagnostic] = []
        self.dims = flat.promise.dims
        self.strides = strides(self.dims)
        self.sides = flat.topology.sides
        if not flat.topology.wraps:
            raise NotAffine("only rings and tori look the same from every rank")
        if flat.topology.twist:
            raise NotAffine("on a twisted torus, coordinates do not turn one by one")
        self.axes: list[Axis] = _promised_axes(flat)
        self.symbols: dict[str, Value] = {}
        for axis, (name, side) in enumerate(zip(flat.topology.coordinates, self.sides, strict=True)):
            unit = tuple(int(axis == other) for other in range(len(self.sides)))
            self.symbols[name] = Affine(0, unit) if side > 1 else 0
        if flat.flips:
            self.symbols = {"r": Flipped(0, flat.topology.ranks)}
        self._turns: dict[Place, Callable[[int], int]] = {}
        self._hops: dict[Place, int] = {}

    def initial(self) -> list[int]:
        return [self.flat.promise.initial(0, chunk) for chunk in self.flat.promise.chunks()]

    def step(self, number: int) -> list[Carried]:
        return [carried for transfer in self.flat.steps[number] for carried in self._moves(transfer)]

    def cell(self, rank: int, chunk: int) -> int:
        return chunk

    def absolute(self, carried: Carried, mask: int) -> int:
        place = self.flat.topology.at(carried.move.receiver)
        return self._turn(tuple(self.flat.back(0, k, side) for k, side in zip(place, self.sides, strict=True)))(mask)

    def _moves(self, transfer: FlatTransfer) -> Iterator[Carried]:
        statement = transfer.statement
        if statement.sender is not None:
            raise NotAffine("a transfer of one rank only")
        env: dict[str, Value] = {**transfer.env, **self.symbols}
        each = statement.each
        if each is None or transfer.each is None:
            yield from self._bound(transfer, None, env)
            return
        if not any(each.var in names(condition) for condition in statement.when) and not self._holds(statement, env):
            return
        for value in range(transfer.each[0], transfer.each[1] + 1):
            env[each.var] = value
            yield from self._bound(transfer, value, env)

    def _holds(self, statement: Transfer, env: dict[str, Value]) -> bool:
        try:
            return holds(statement.when, env)
        except EvaluationError:
            raise NotAffine("a condition without a value") from None

    def _bound(self, transfer: FlatTransfer, value: int | None, env: dict[str, Value]) -> Iterator[Carried]:
        try:
            if not holds(transfer.statement.when, env):
                return
            hop = self._hop(transfer.statement, env)
            indices = self._indices(transfer.statement, env)
        except EvaluationError:
            raise NotAffine("an expression without a value") from None
        move = Move(transfer, value, 0, self._hops[hop], self._numbers(indices))
        turned = [
            [self.flat.back(i, hop[axis], size) for i in index] if isinstance(axis, int) else index
            for index, axis, size in zip(indices, self.axes, self.dims, strict=True)
        ]
        yield Carried(move, move.chunks, self._numbers(turned), self._turn(hop))

    def _hop(self, statement: Transfer, env: dict[str, Value]) -> Place:
        """The displacement to the receiver; it is one link long."""
        coordinates = statement.to.coordinates
        if len(coordinates) != len(self.sides):
            raise NotAffine("a rank given by number")
        hop = []
        for axis, (expr, side) in enumerate(zip(coordinates, self.sides, strict=True)):
            value = evaluate(expr, env)
            if side == 1 and isinstance(value, int):
                hop.append(0)
            elif isinstance(value, Flipped):
                hop.append(value.constant)
            elif isinstance(value, Affine) and _is_unit(value, axis) and value.modulus in (0, side):
                hop.append(value.constant % side)
            else:
                raise NotAffine("a transfer that goes differently far at different ranks")
        place = tuple(hop)
        if place not in self._hops:
            receiver = self.flat.topology.rank(place)
            if not receiver or not self.flat.topology.reaches(0, receiver):
                raise NotAffine("a transfer to no neighbour")
            self._hops[place] = receiver
        return place

    def _indices(self, statement: Transfer, env: dict[str, Value]) -> list[Sequence[int]]:
        """For each chunk dimension the indices named, relative to the rank where the dimension turns."""
        given = statement.chunk.index
        if len(given) > len(self.dims):
            raise NotAffine("too many indices")
        found: list[Sequence[int]] = []
        for d, size in enumerate(self.dims):
            part = given[d] if d < len(given) else Slice()
            if not isinstance(part, Slice):
                found.append((self._index(d, evaluate(part, env)),))
                continue
            start = evaluate(part.start, env) if part.start is not None else 0
            stop = evaluate(part.stop, env) if part.stop is not None else size
            if not isinstance(start, int) or not isinstance(stop, int) or not 0 <= start < stop <= size:
                raise NotAffine("a slice that depends on the rank, or is out of range")
            if (start, stop) != (0, size):
                self._decide(d, "fixed")
            found.append(range(start, stop))
        return found

    def _index(self, dimension: int, value: Value) -> int:
        size = self.dims[dimension]
        if isinstance(value, int):
            self._decide(dimension, "fixed")
            if not 0 <= value < size:
                raise NotAffine("an index out of range")
            return value
        if isinstance(value, Flipped):
            if size != value.ranks:
                raise NotAffine("an index that does not turn with the rank")
            self._decide(dimension, 0)
            return value.constant
        for axis, side in enumerate(self.sides):
            # Without a `%` only the coordinate itself stays within the dimension at every rank.
            wrapped = value.modulus == side or (value.modulus == 0 and value.constant == 0)
            if side == size and wrapped and _is_unit(value, axis):
                self._decide(dimension, axis)
                return value.constant % side
        raise NotAffine("an index that does not turn with one coordinate")

    def _decide(self, dimension: int, axis: Axis) -> None:
        """Every use of a dimension must agree. (So far it was taken whole, which is both.)"""
        if self.axes[dimension] is None:
            self.axes[dimension] = axis
        elif self.axes[dimension] != axis:
            raise NotAffine("a chunk dimension that turns in one place and not in another")

    def _numbers(self, indices: Sequence[Sequence[int]]) -> Sequence[int]:
        if all(len(index) == 1 for index in indices):
            return (sum(index[0] * stride for index, stride in zip(indices, self.strides, strict=True)),)
        scaled = [[i * stride for i in index] for index, stride in zip(indices, self.strides, strict=True)]
        return [sum(offsets) for offsets in itertools.product(*scaled)]

    def _turn(self, hop: Place) -> Callable[[int], int]:
        if hop not in self._turns:
            self._turns[hop] = rotation(*(bits(hop[0], self.sides[0]) if self.flat.flips else (self.sides, hop)))
        return self._turns[hop]

    def history(self, chunk: int) -> Iterator[list[Move]]:
        wanted = chunk_at(self.dims, chunk)
        topology = self.flat.topology
        for number in range(len(self.flat.steps)):
            moves = []
            for carried in self.step(number):
                move = carried.move
                hop = topology.at(move.receiver)
                for source in carried.sources:
                    for place in self._shifts(chunk_at(self.dims, source), wanted):
                        onward = zip(place, hop, self.sides, strict=True)
                        receiver = topology.rank(tuple(self.flat.onward(a, b, side) for a, b, side in onward))
                        sender = topology.rank(place)
                        if sender is not None and receiver is not None:
                            moves.append(move._replace(sender=sender, receiver=receiver, chunks=(chunk,)))
            yield moves

    def _shifts(self, source: Place, wanted: Place) -> Iterator[Place]:
        """The ranks for which rank 0's chunk `source` is the chunk `wanted`."""
        shift: dict[int, int] = {}
        for a, b, axis in zip(source, wanted, self.axes, strict=True):
            if not isinstance(axis, int):
                if a != b:
                    return
            elif shift.setdefault(axis, self.flat.back(b, a, self.sides[axis])) != self.flat.back(
                b, a, self.sides[axis]
            ):
                return
        choices = ([shift[axis]] if axis in shift else range(side) for axis, side in enumerate(self.sides))
        yield from itertools.product(*choices)


def _is_unit(value: Affine, axis: int) -> bool:
    """Whether the value is this coordinate plus a constant."""
    return all(c == (other == axis) for other, c in enumerate(value.coefficients))


def _promised_axes(flat: FlatSchedule) -> list[Axis]:
    """The dimensions that name an owner turn with the coordinates; raises `NotAffine` where the promise does not."""
    promise, sides = flat.promise, flat.topology.sides
    if promise.kind not in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "none"):
        raise NotAffine("a collective with a root")
    groups = OWNED[promise.kind]
    if groups and promise.group != len(sides):
        raise NotAffine("owners given by number")
    if promise.kind == "permute" and flat.flips:
        raise NotAffine("a permutation among ranks whose bits are flipped")
    if promise.kind == "permute":
        _check_translation(flat)
    group: list[Axis] = [axis if side > 1 else "fixed" for axis, side in enumerate(sides)]
    owners = group * groups
    return owners + [None] * (len(promise.dims) - len(owners))


def _check_translation(flat: FlatSchedule) -> None:
    topology = flat.topology
    hop = topology.at(flat.promise.permutation[0])
    for rank, image in enumerate(flat.promise.permutation):
        if topology.rank(tuple(a + b for a, b in zip(topology.at(rank), hop, strict=True))) != image:
            raise NotAffine("a permutation that is no translation")


def bits(number: int, ranks: int) -> tuple[tuple[int, ...], Place]:
    """A power of two as sides of 2, and the coordinates of a number: an exclusive or moves along each of them."""
    count = ranks.bit_length() - 1
    return (2,) * count, tuple(number >> k & 1 for k in reversed(range(count)))


def rotation(sides: tuple[int, ...], hop: Place) -> Callable[[int], int]:
    """Masks relative to a rank → the same masks relative to the rank `hop` further on.

    Bit q, at coordinates p, becomes the bit at p − hop. Along one axis that rotates every block of `side · stride` bits
    by `hop · stride`: the bits that stay in their block move down, those below wrap to its top.
    """
    total = math.prod(sides)
    shifts: list[tuple[int, int, int]] = []  # (bits that wrap, shift down, shift up)
    for side, stride, distance in zip(sides, strides(sides), hop, strict=True):
        down = distance % side * stride
        if down:
            block = side * stride
            low = (1 << down) - 1
            wraps = sum(low << start for start in range(0, total, block))
            shifts.append((wraps, down, block - down))

    def turn(mask: int) -> int:
        for wraps, down, up in shifts:
            mask = (mask & ~wraps) >> down | (mask & wraps) << up
        return mask

    return turn
