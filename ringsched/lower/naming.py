"""How a rank names what it works on: chunks, regions, peers and semaphores as expressions of its own coordinates.

Numbers that change from step to step are holes of the step's code.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from ringsched.expr import Expr, Int, Var, binary, names, show, substitute
from ringsched.lower.holes import StepCode
from ringsched.lower.lanes import Lanes, Piece, Use, flat_rank, lengths, pieces
from ringsched.lower.places import Operand, Place, Result, Slot
from ringsched.lower.plan import LanePlan, Plan
from ringsched.program.program import Region
from ringsched.program.simplify import simplify
from ringsched.schedule.schedule import Slice

INPUT, OUTPUT = "x", "o"


@dataclass(slots=True)
class Naming:
    lanes: Lanes
    plan: Plan
    result: str = OUTPUT  # the buffer that chunks end in
    operand: str = INPUT  # that in which they begin
    known: dict[object, tuple[Expr, ...]] = field(default_factory=dict)  # expressions that came up before
    loop_names: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def number(self, use: Use) -> int:
        """Which use of its lane it is."""
        return bisect_left(self.lanes.lanes[use.lane].steps, use.step)

    def resource(self, code: StepCode, plan: LanePlan, number: int) -> Expr:
        """The index of a use's receive semaphore, and of its slot."""
        if plan.keep == 1:
            return Int(value=0)
        hole = code.hole(number)
        return hole if plan.keep == len(plan.lane.steps) else binary("%", hole, plan.keep)

    def chunk(
        self, code: StepCode, use: Use, value: Expr | None, piece: int, extra: Piece, *, received: bool
    ) -> tuple[Expr, ...]:
        """The leading chunk indices of a block, as this rank names it; `received`: as its sender sent it."""
        lane = self.lanes.lanes[use.lane]
        env = self._bindings(code, use, value)
        sample = self.lanes.bind(use, use.senders[0], use.values[0])
        counts = lengths(self.lanes.flat, lane.statement.chunk, sample)  # which block a number is depends on them
        key = (use.lane, piece, received, counts, tuple(env.items()))
        if key not in self.known:
            exprs = pieces(self.lanes.flat, lane.statement.chunk, sample, self.lanes.rotation)[piece][1]
            at: dict[str, Expr] = {}
            if received and lane.statement in self.lanes.arriving:
                exprs = self.lanes.arriving[lane.statement]
            elif received or lane.sender is not None:  # the sender's coordinates in terms of this rank's
                source = [substitute(e, dict(env)) for e in lane.source]
                topology = self.lanes.flat.topology
                at = {"r": flat_rank(source, topology.sides), **dict(zip(topology.coordinates, source, strict=True))}
            self.known[key] = tuple(simplify(substitute(substitute(e, dict(env)), dict(at))) for e in exprs)
        return self.known[key] + tuple(self._inner(len(self.known[key]) + d, i) for d, i in enumerate(extra))

    def _inner(self, dimension: int, index: int) -> Expr:
        """An index within a block that a schedule takes whole: a number, or one that turns with the rank."""
        axis = self.lanes.rotation[dimension]
        if axis is None:
            return Int(value=index)
        own = Var(name=self.lanes.flat.topology.coordinates[axis])
        return simplify(self.lanes.flat.further(own, index, self.lanes.flat.promise.dims[dimension]))

    def peer(self, code: StepCode, use: Use, *, source: bool) -> tuple[Expr, ...]:
        """Whom this rank sends to, or who sends to it."""
        lane = self.lanes.lanes[use.lane]
        env = self._bindings(code, use, None)
        key = (use.lane, "source" if source else "peer", tuple(env.items()))
        if key not in self.known:
            exprs = lane.source if source else lane.peer
            self.known[key] = tuple(simplify(substitute(e, dict(env))) for e in exprs)
        return self.known[key]

    def region(self, code: StepCode, place: Place, chunk: tuple[Expr, ...], value: Expr | None) -> Region:
        """The units of a block. A slot's `each` value is relative to `value`."""
        promise = self.lanes.flat.promise
        match place:
            case Operand():
                index = [chunk[i] for i in promise.input_positions() if i < len(chunk)]
                return Region(buffer=self.operand, index=tuple(index))
            case Result():
                return Region(
                    buffer=self.result, index=tuple(chunk[i] for i in promise.output_positions() if i < len(chunk))
                )
            case Slot():
                plan = self.plan.lanes[place.lane]
                index = [self.resource(code, plan, place.use)]
                if plan.lane.width is not None:
                    here: Expr | int = value if value is not None else 0
                    index.append(simplify(binary("+", here, place.value - plan.base)))
                if plan.pieces > 1:
                    index.append(Int(value=place.piece))
                return Region(buffer=plan.slots, index=(*index, *chunk[place.depth :]))
            case _:
                assert_never(place)

    def source_text(self, use: Use) -> str:
        """Who sent it, for comments and messages."""
        lane = self.lanes.lanes[use.lane]
        if lane.sender is not None:
            return f"rank {lane.sender}"
        return "rank " + ", ".join(show(e) for e in lane.source)

    def _bindings(self, code: StepCode, use: Use, value: Expr | None) -> dict[str, Expr]:
        """What the names of a statement stand for: parameters, holes for loop variables, the coordinates."""
        lane = self.lanes.lanes[use.lane]
        flat = self.lanes.flat
        if use.lane not in self.loop_names:
            used = _names_of(lane.statement.chunk.index) | {n for e in lane.peer for n in names(e)}
            self.loop_names[use.lane] = tuple(sorted((set(use.env) - set(flat.env)) & used))
        env: dict[str, Expr] = {name: Int(value=number) for name, number in flat.env.items()}
        for name in self.loop_names[use.lane]:
            env[name] = code.hole(use.env[name], name)
        if lane.statement.each is not None and value is not None:
            env[lane.statement.each.var] = value
        return env


def _names_of(index: Iterable[Expr | Slice]) -> set[str]:
    found: set[str] = set()
    for part in index:
        if isinstance(part, Slice):
            found |= names(part.start) if part.start is not None else frozenset()
        else:
            found |= names(part)
    return found
