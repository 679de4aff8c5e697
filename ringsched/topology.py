"""Link graphs at concrete parameters: ring, line, mesh, torus, or explicit links.

Ranks are numbered row-major over the coordinates. Links carry data both ways. On a ring or torus coordinates wrap; past
the end of a line or mesh there is no rank. The graph itself is a networkx one, built only when it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label, Span
from ringsched.expr import EvaluationError, integer
from ringsched.schedule.schedule import Chain, Schedule, TopologyKind

if TYPE_CHECKING:
    import networkx

MAX_RANKS = 1 << 16
COORDINATES = ("x", "y", "z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`coordinates` are the names that a schedule uses, `sides` their extents."""

    kind: TopologyKind
    sides: tuple[int, ...]
    links: frozenset[tuple[int, int]] = frozenset()

    @property
    def coordinates(self) -> tuple[str, ...]:
        return COORDINATES[: len(self.sides)] if self.kind in ("mesh", "torus") else ("r",)

    @property
    def ranks(self) -> int:
        return math.prod(self.sides)

    @property
    def wraps(self) -> bool:
        return self.kind in ("ring", "torus")

    def at(self, rank: int) -> tuple[int, ...]:
        """The coordinates of `rank`."""
        place = []
        for side in reversed(self.sides):
            rank, coordinate = divmod(rank, side)
            place.append(coordinate)
        return tuple(reversed(place))

    def rank(self, place: tuple[int, ...]) -> int | None:
        """The rank at `place`, wrapped where the topology wraps; None where there is none."""
        number = 0
        for coordinate, side in zip(place, self.sides, strict=True):
            if self.wraps:
                coordinate %= side
            elif not 0 <= coordinate < side:
                return None
            number = number * side + coordinate
        return number

    def environment(self, rank: int) -> dict[str, int]:
        """The names that stand for `rank` in a schedule: `r`, and the coordinates on a mesh or torus."""
        return {"r": rank, **dict(zip(self.coordinates, self.at(rank), strict=True))}

    def linked(self, a: int, b: int) -> bool:
        """Whether one link joins the two ranks."""
        if self.kind == "links":
            return (min(a, b), max(a, b)) in self.links
        distance = 0
        for i, j, side in zip(self.at(a), self.at(b), self.sides, strict=True):
            gap = abs(i - j)
            distance += min(gap, side - gap) if self.wraps else gap
        return distance == 1

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """The ranks one link away, in order."""
        if self.kind == "links":
            return _adjacency(self.links).get(rank, ())
        place = self.at(rank)
        found = set()
        for axis in range(len(self.sides)):
            for hop in (-1, 1):
                other = self.rank((*place[:axis], place[axis] + hop, *place[axis + 1 :]))
                if other is not None and other != rank:
                    found.add(other)
        return tuple(sorted(found))

    def graph(self) -> networkx.Graph:
        """The link graph; nodes are ranks with their coordinates as attribute `place`."""
        import networkx  # late: it costs 0.16 s

        graph = networkx.Graph()
        for rank in range(self.ranks):
            graph.add_node(rank, place=self.at(rank))
        graph.add_edges_from((rank, other) for rank in range(self.ranks) for other in self.neighbours(rank))
        return graph


@lru_cache(maxsize=8)
def _adjacency(links: frozenset[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """The neighbours of every rank that has any, in order."""
    found: dict[int, list[int]] = {}
    for a, b in sorted(links):
        found.setdefault(a, []).append(b)
        found.setdefault(b, []).append(a)
    return {rank: tuple(sorted(others)) for rank, others in found.items()}


def topology_of(schedule: Schedule | Chain, env: dict[str, int]) -> Topology:
    """The schedule's topology under these parameters; raises RS210 for a size that makes none."""
    spec = schedule.topology
    if spec.kind == "links":
        pairs = frozenset((min(a, b), max(a, b)) for a, b in spec.links)
        return _linked(pairs, spec.span)
    if not 1 <= len(spec.sides) <= len(COORDINATES):
        problem = f"a {spec.kind} has 1 to {len(COORDINATES)} sides, not {len(spec.sides)}"
        raise DiagnosticError([_bad_size(problem, spec.span, env)])
    sides = []
    for expr in spec.sides:
        try:
            side = integer(expr, env)
        except EvaluationError as error:
            raise DiagnosticError([evaluation_diagnostic(error, env)]) from None
        if side < 1:
            raise DiagnosticError([_bad_size(f"a {spec.kind} cannot have {side} ranks along a side", expr.span, env)])
        sides.append(side)
    total = math.prod(sides)
    if total > MAX_RANKS:
        problem = f"a {spec.kind} of {total} ranks is over the limit of {MAX_RANKS}"
        raise DiagnosticError([_bad_size(problem, spec.span, env)])
    return Topology(kind=spec.kind, sides=tuple(sides))


def _linked(pairs: frozenset[tuple[int, int]], span: Span | None) -> Topology:
    total = max((b for _, b in pairs), default=0) + 1
    if min((a for a, _ in pairs), default=0) < 0 or total > MAX_RANKS:
        raise DiagnosticError([_bad_size(f"link ends must be ranks 0 … {MAX_RANKS - 1}", span, {})])
    if any(a == b for a, b in pairs):
        raise DiagnosticError([_bad_size("a link joins a rank with itself", span, {})])
    topology = Topology(kind="links", sides=(total,), links=pairs)
    if len(_reached(topology)) < total:
        raise DiagnosticError([_bad_size("the links do not join all ranks", span, {})])
    return topology


def _reached(topology: Topology) -> set[int]:
    """The ranks that links join to rank 0. (Six lines spare every run the import of networkx.)"""
    reached, waiting = {0}, [0]
    while waiting:
        new = set(topology.neighbours(waiting.pop())) - reached
        reached |= new
        waiting.extend(sorted(new))
    return reached


def _bad_size(message: str, span: Span | None, env: dict[str, int]) -> Diagnostic:
    return Diagnostic(
        code="RS210",
        message=message,
        primary=Label(span=span) if span else None,
        counterexample=env or None,
        help="give each side 1 or more ranks, for example --set N=4",
    )


def evaluation_diagnostic(error: EvaluationError, env: dict[str, int]) -> Diagnostic:
    """An expression without a value, as a finding at the part at fault."""
    helps = {
        "RS204": "guard the transfer with `when:`, or choose parameters for which the divisor is not 0",
        "RS205": "indices are small numbers; check the shift or the product",
    }
    span = error.expr.span
    return Diagnostic(
        code=error.code,
        message=error.message,
        primary=Label(span=span, text="here") if span else None,
        counterexample=env or None,
        help=helps.get(error.code),
    )
