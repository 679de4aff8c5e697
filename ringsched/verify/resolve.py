"""Statements → moves: every transfer of a step with its sender, receiver and chunks as numbers.

A statement is compiled once into closures and then asked for every rank; what cannot be resolved is a finding (RS202 …
RS209). Chunks are numbered row-major over the chunk space, ranks row-major over the coordinates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ringsched.closures import Environment, Getter, compiled
from ringsched.collectives import Chunk
from ringsched.diagnostics import Diagnostic, InternalError
from ringsched.expr import EvaluationError, Expr, holds, integer, names
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.schedule import Slice, Transfer
from ringsched.verify import findings


class Move(NamedTuple):
    """One transfer by one rank: `value` is that of `each`, `chunks` are chunk numbers."""

    transfer: FlatTransfer
    value: int | None
    sender: int
    receiver: int
    chunks: Sequence[int]


class Fault(Exception):
    """A transfer that makes no move, with the finding that says so."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


def strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    """How far apart in number two chunks are that differ by one in a dimension."""
    found = [1]
    for size in reversed(dims[1:]):
        found.append(found[-1] * size)
    return tuple(reversed(found)) if dims else ()


def chunk_at(dims: tuple[int, ...], number: int) -> Chunk:
    """The indices of the chunk with this number."""
    index = []
    for size in reversed(dims):
        number, i = divmod(number, size)
        index.append(i)
    return tuple(reversed(index))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """A transfer's expressions as closures; an entry of `index` is a getter, or the two ends of a slice."""

    when: tuple[Getter, ...]
    index: tuple[Getter | tuple[Getter | None, Getter | None], ...]
    single: tuple[Getter, ...]  # `index` where there are no slices in it, else empty
    to: tuple[Getter, ...]
    counted: tuple[bool, ...]  # of each coordinate of `to`: from one's own on, so that it goes around where links do


def _cause(statement: Transfer, env: Environment) -> EvaluationError:
    """Why a statement has no value under `env`: its expressions once more, in the same order, with `evaluate`."""
    indices: list[Expr | None] = []
    for part in statement.chunk.index:
        indices.extend((part.start, part.stop) if isinstance(part, Slice) else (part,))
    try:
        if holds(statement.when, env):
            for expr in (*indices, *statement.to.coordinates):
                if expr is not None:
                    integer(expr, env)
    except EvaluationError as error:
        return error
    raise InternalError("an expression has a value for `evaluate` and none for its closure")


class Resolver:
    """Resolves the statements of one flat schedule and gathers what it finds wrong, once a statement."""

    def __init__(self, flat: FlatSchedule) -> None:
        self.flat = flat
        self.dims = flat.promise.dims
        self.strides = strides(self.dims)
        self.chunks = math.prod(self.dims)
        self.diagnostics: list[Diagnostic] = []
        self._faulty: set[int] = set()
        self._compiled: dict[int, _Statement] = {}
        self._environments = [flat.topology.environment(rank) for rank in range(flat.topology.ranks)]
        self._neighbours = [frozenset(flat.topology.neighbours(rank)) for rank in range(flat.topology.ranks)]
        self._ring = flat.topology.ranks if flat.topology.kind == "ring" else 0

    def step(self, number: int) -> Iterator[Move]:
        """The moves of a step: statements in order, then the values of `each`, then ranks."""
        for transfer in self.flat.steps[number]:
            key = id(transfer.statement)
            if key in self._faulty:
                continue
            try:
                yield from self._moves(transfer)
            except Fault as fault:
                self._faulty.add(key)
                self.diagnostics.append(fault.diagnostic)

    def _moves(self, transfer: FlatTransfer) -> Iterator[Move]:
        statement = transfer.statement
        code = self._compiled.get(id(statement)) or self._compile(statement)
        env = dict(transfer.env)
        values: Sequence[int | None] = (None,)
        if statement.each is not None and transfer.each is not None:
            values = range(transfer.each[0], transfer.each[1] + 1)
            if self._nobody(statement, code, env):
                return
        for value in values:
            if statement.each is not None and value is not None:
                env[statement.each.var] = value
            for rank in self._senders(transfer, code, env, value):
                env.update(self._environments[rank])
                try:
                    move = self._move(transfer, code, env, value, rank)
                except (KeyError, ArithmeticError, ValueError):
                    error = _cause(statement, env)
                    raise Fault(findings.no_value(self.flat, transfer, value, rank, error)) from None
                if move is not None:
                    yield move

    def _nobody(self, statement: Transfer, code: _Statement, env: Environment) -> bool:
        """Whether its guards, which do not look at `each`, hold nowhere; a guard without a value is for later."""
        each = statement.each
        if not statement.when or each is None or any(each.var in names(condition) for condition in statement.when):
            return False
        try:
            return not any(all(condition({**env, **mine}) for condition in code.when) for mine in self._environments)
        except (KeyError, ArithmeticError, ValueError):
            return False

    def _compile(self, statement: Transfer) -> _Statement:
        index: list[Getter | tuple[Getter | None, Getter | None]] = []
        for part in statement.chunk.index:
            if isinstance(part, Slice):
                ends = (part.start, part.stop)
                start, stop = (compiled(e) if e is not None else None for e in ends)
                index.append((start, stop))
            else:
                index.append(compiled(part))
        made = _Statement(
            when=tuple(compiled(e) for e in statement.when),
            index=tuple(index),
            single=() if any(isinstance(part, tuple) for part in index) else tuple(i for i in index if callable(i)),
            to=tuple(compiled(e) for e in statement.to.coordinates),
            counted=tuple(bool(names(e) & self._environments[0].keys()) for e in statement.to.coordinates),
        )
        self._compiled[id(statement)] = made
        return made

    def _senders(self, transfer: FlatTransfer, code: _Statement, env: Environment, value: int | None) -> Sequence[int]:
        pinned = transfer.statement.sender
        if pinned is None:
            return range(self.flat.topology.ranks)
        for name in self._environments[0]:
            env.pop(name, None)
        try:
            place = tuple(integer(e, env) for e in pinned.coordinates)
            rank = self._rank(place, (False,) * len(place))
            if rank is None:
                raise Fault(findings.no_such_rank(self.flat, transfer, value, None, pinned, place))
            return (rank,)
        except (EvaluationError, Fault) as problem:
            if self._idle(code, env):
                return ()
            if isinstance(problem, Fault):
                raise
            raise Fault(findings.no_value(self.flat, transfer, value, None, problem)) from None

    def _idle(self, code: _Statement, env: Environment) -> bool:
        """Whether the guards are false whatever the rank."""
        try:
            return not all(condition(env) for condition in code.when)
        except (KeyError, ArithmeticError, ValueError):
            return False

    def _move(
        self, transfer: FlatTransfer, code: _Statement, env: Environment, value: int | None, rank: int
    ) -> Move | None:
        for condition in code.when:
            if not condition(env):
                return None
        chunks = self._chunks(transfer, code, env, value, rank)
        place = tuple([get(env) for get in code.to])
        around = self._ring and code.counted == (True,)
        receiver = place[0] % self._ring if around else self._rank(place, code.counted)
        if receiver is None:
            to = transfer.statement.to
            raise Fault(findings.no_such_rank(self.flat, transfer, value, rank, to, place))
        if receiver == rank:
            raise Fault(findings.to_itself(self.flat, transfer, value, rank))
        if receiver not in self._neighbours[rank] and not self.flat.topology.routed:
            raise Fault(findings.no_neighbour(self.flat, transfer, value, rank, receiver))
        return Move(transfer, value, rank, receiver, chunks)

    def _rank(self, place: tuple[int, ...], counted: tuple[bool, ...]) -> int | None:
        """Wrapped where the topology wraps, and the coordinate is counted from one's own; a rank's number does not."""
        topology = self.flat.topology
        if len(place) == len(topology.sides):
            for coordinate, side, around in zip(place, topology.sides, counted, strict=True):
                if not around and not 0 <= coordinate < side:
                    return None
            return topology.rank(place)
        return place[0] if len(place) == 1 and 0 <= place[0] < topology.ranks else None

    def _chunks(
        self, transfer: FlatTransfer, code: _Statement, env: Environment, value: int | None, rank: int
    ) -> Sequence[int]:
        dims = self.dims
        if code.single and len(code.index) == len(dims):
            base = 0
            for d, get in enumerate(code.single):
                i = get(env)
                if not 0 <= i < dims[d]:
                    raise Fault(findings.bad_index(self.flat, transfer, value, rank, d, i))
                base += i * self.strides[d]
            return (base,)
        if len(code.index) > len(dims):
            raise Fault(findings.too_many_indices(self.flat, transfer, value, rank))
        base = 0
        ranges: list[range] = []
        for d, part in enumerate(code.index):
            if isinstance(part, tuple):
                start = part[0](env) if part[0] is not None else 0
                stop = part[1](env) if part[1] is not None else dims[d]
                if not 0 <= start < stop <= dims[d]:
                    raise Fault(findings.bad_slice(self.flat, transfer, value, rank, d, start, stop))
                step = self.strides[d]
                ranges.append(range(start * step, stop * step, step))
                continue
            i = part(env)
            if not 0 <= i < dims[d]:
                raise Fault(findings.bad_index(self.flat, transfer, value, rank, d, i))
            base += i * self.strides[d]
        rest = self.strides[len(code.index) - 1] if code.index else self.chunks
        if not ranges:
            return range(base, base + rest)
        if rest > 1:
            ranges.append(range(rest))
        return [base + sum(offsets) for offsets in itertools.product(*ranges)]
