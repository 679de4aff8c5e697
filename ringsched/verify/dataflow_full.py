"""Data flow rank by rank: handles every schedule, at a cost that grows with ranks times transfers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ringsched.collectives import REDUCING
from ringsched.diagnostics import Diagnostic
from ringsched.schedule.flat import FlatSchedule
from ringsched.verify.flow import Carried
from ringsched.verify.resolve import Move, Resolver


class Full:
    """Cell `rank * chunks + chunk` holds the contributions that the rank has of the chunk, bit q for rank q."""

    def __init__(self, flat: FlatSchedule) -> None:
        self.flat = flat
        self.ranks = range(flat.topology.ranks)
        self.chunks = math.prod(flat.promise.dims)
        self.resolver = Resolver(flat)

    @property
    def diagnostics(self) -> list[Diagnostic]:
        return self.resolver.diagnostics

    def initial(self) -> list[int]:
        promise = self.flat.promise
        if promise.kind in REDUCING:
            return [1 << rank for rank in self.ranks for _ in range(self.chunks)]
        chunks = list(promise.chunks())
        return [promise.initial(rank, chunk) for rank in self.ranks for chunk in chunks]

    def step(self, number: int) -> list[Carried]:
        size = self.chunks
        moves = []
        for move in self.resolver.step(number):
            base, to, chunks = move.sender * size, move.receiver * size, move.chunks
            if len(chunks) == 1:
                moves.append(Carried(move, (base + chunks[0],), (to + chunks[0],)))
            elif isinstance(chunks, range):
                first, last = chunks.start, chunks.stop
                moves.append(Carried(move, range(base + first, base + last), range(to + first, to + last)))
            else:
                moves.append(Carried(move, [base + c for c in chunks], [to + c for c in chunks]))
        return moves

    def cell(self, rank: int, chunk: int) -> int:
        return rank * self.chunks + chunk

    def absolute(self, carried: Carried, mask: int) -> int:
        return mask

    def history(self, chunk: int) -> Iterator[list[Move]]:
        resolver = Resolver(self.flat)
        for number in range(len(self.flat.steps)):
            yield [move._replace(chunks=(chunk,)) for move in resolver.step(number) if chunk in move.chunks]
