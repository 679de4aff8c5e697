"""Link graphs at concrete parameters: ring, line, mesh, torus, or explicit links.

Ranks are numbered row-major over the coordinates. Links carry data both ways. On a ring or torus coordinates wrap; past
the end of a line or mesh there is no rank. On a twisted torus, going once around along one axis also shifts others
(Cámara et al., Twisted torus topologies for enhanced interconnection networks, IEEE TPDS 21, 2010; k × 2k × 2k is
that of TPU v4: Jouppi et al., ISCA 2023, section 2.9).

Two ranks are joined by one link or by none. So a side of 2 has one link, x + 1 and x − 1 being the same rank: TPU
slices have no second one, since an axis wraps around only where it is as long as a cube (4) or a pod's side (16). With
a twist along it, x + 1 and x − 1 are two ranks, and there are two links. The graph itself is a networkx one, built only
when it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label, Span
from ringsched.expr import EvaluationError, Int, integer
from ringsched.schedule.schedule import Chain, Schedule, Speed, TopologyKind, TopologySpec

if TYPE_CHECKING:
    import networkx

MAX_RANKS = 1 << 16
COORDINATES = ("x", "y", "z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """`coordinates` are the names that a schedule uses, `sides` their extents.

    twist: for each axis, what once around along it adds to the coordinates; none where nothing is added.
    speeds: of the links along each axis, or of `links` in their order; none where all are plain.
    routed: transfers may go over several links.
    """

    kind: TopologyKind
    sides: tuple[int, ...]
    links: frozenset[tuple[int, int]] = frozenset()
    twist: tuple[tuple[int, ...], ...] = ()
    speeds: tuple[Speed, ...] = ()
    routed: bool = False

    @property
    def coordinates(self) -> tuple[str, ...]:
        return COORDINATES[: len(self.sides)] if self.kind in ("mesh", "torus") else ("r",)

    @property
    def ranks(self) -> int:
        return math.prod(self.sides)

    @property
    def wraps(self) -> bool:
        return self.kind in ("ring", "torus")

    @property
    def alike(self) -> bool:
        """Whether it looks the same from every rank along the coordinates: a plain ring or torus of equal links."""
        return self.wraps and not self.twist and len(set(self.speeds)) < 2

    def at(self, rank: int) -> tuple[int, ...]:
        """The coordinates of `rank`."""
        place = []
        for side in reversed(self.sides):
            rank, coordinate = divmod(rank, side)
            place.append(coordinate)
        return tuple(reversed(place))

    def rank(self, place: tuple[int, ...]) -> int | None:
        """The rank at `place`, wrapped where the topology wraps; None where there is none."""
        if self.twist:
            place = _untwisted(place, self.sides, self.twist)
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
        if self.twist:
            return b in self.neighbours(a)
        distance = 0
        for i, j, side in zip(self.at(a), self.at(b), self.sides, strict=True):
            gap = abs(i - j)
            distance += min(gap, side - gap) if self.wraps else gap
        return distance == 1

    def reaches(self, a: int, b: int) -> bool:
        """Whether a transfer may go from `a` to `b`: over one link or, where transfers are routed, over several."""
        return a != b if self.routed else self.linked(a, b)

    def route(self, a: int, b: int) -> tuple[tuple[int, int], ...]:
        """The links that a transfer from `a` to `b` goes over, along the first axis first, the shorter way round.

        On explicit links it is the shortest way over ranks of small numbers.
        """
        if self.kind == "links" or self.twist:
            return _shortest(self, a, b)
        place, target, hops = list(self.at(a)), self.at(b), []
        for axis, side in enumerate(self.sides):
            ahead = target[axis] - place[axis]
            if self.wraps and 2 * abs(ahead) > side:
                ahead -= side if ahead > 0 else -side
            for _ in range(abs(ahead)):
                before = self.rank(tuple(place))
                place[axis] += 1 if ahead > 0 else -1
                after = self.rank(tuple(place))
                assert before is not None and after is not None
                hops.append((before, after))
        return tuple(hops)

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

    def axis(self, a: int, b: int) -> int | None:
        """The axis along which the link between two ranks runs; None where they are not linked, or links have none."""
        if self.kind == "links":
            return None
        place = self.at(a)
        for axis in range(len(self.sides)):
            for hop in (1, -1):
                if a != b and self.rank((*place[:axis], place[axis] + hop, *place[axis + 1 :])) == b:
                    return axis
        return None

    def speed(self, a: int, b: int) -> Speed:
        """Of the link between two linked ranks."""
        if not self.speeds:
            return Speed()
        axis = self.axis(a, b)
        return self.speeds[_positions(self.links)[min(a, b), max(a, b)] if axis is None else axis]

    def graph(self) -> networkx.Graph:
        """The link graph.

        Nodes are ranks, with their coordinates as `place`; edges have `axis` (None on explicit links), `bandwidth` and
        `latency`.
        """
        import networkx  # late: it costs 0.16 s

        graph = networkx.Graph()
        for rank in range(self.ranks):
            graph.add_node(rank, place=self.at(rank))
        for rank in range(self.ranks):
            for other in self.neighbours(rank):
                if rank < other:
                    speed = self.speed(rank, other)
                    axis = self.axis(rank, other)
                    graph.add_edge(rank, other, axis=axis, bandwidth=speed.bandwidth, latency=speed.latency)
        return graph


def _untwisted(
    place: tuple[int, ...], sides: tuple[int, ...], twist: tuple[tuple[int, ...], ...], among: int | None = None
) -> tuple[int, ...]:
    """The place within the sides that `place` stands for. `among`: wraps only so many axes, the last that shift."""
    found = list(place)
    order = shifting_order(twist)
    for axis in order if among is None else order[len(order) - among :]:
        turns, found[axis] = divmod(found[axis], sides[axis])
        if turns:
            found = [c + turns * shift for c, shift in zip(found, twist[axis], strict=True)]
    return tuple(found)


@lru_cache(maxsize=64)
def shifting_order(twist: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """The axes, each before those that going around it shifts; fewer of them where two shift each other."""
    order: list[int] = []
    left = list(range(len(twist)))
    while free := [axis for axis in left if not any(twist[other][axis] for other in left)]:
        order.append(free[0])
        left.remove(free[0])
    return tuple(order)


@lru_cache(maxsize=8)
def _positions(links: frozenset[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Where each link stands in their order."""
    return {link: position for position, link in enumerate(sorted(links))}


def _shortest(topology: Topology, a: int, b: int) -> tuple[tuple[int, int], ...]:
    parent, waiting = {a: a}, [a]
    for rank in waiting:
        for other in topology.neighbours(rank):
            if other not in parent:
                parent[other] = rank
                waiting.append(other)
    hops = []
    while b != a:
        hops.append((parent[b], b))
        b = parent[b]
    return tuple(reversed(hops))


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
    return _topology(schedule.topology, env)


def _topology(spec: TopologySpec, env: dict[str, int]) -> Topology:
    if spec.kind == "links":
        speeds = dict(zip(spec.links, spec.speeds, strict=True)) if spec.speeds else {}
        joined = {(min(link), max(link)): speeds.get(link, Speed()) for link in spec.links}
        return replace(_linked(joined, spec.span), routed=spec.routed)
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
        if side == 1 and spec.kind in ("mesh", "torus"):
            problem = f"a {spec.kind} cannot have 1 rank along a side: no link would run along it"
            others = (
                f"leave the axis out: a {spec.kind} of fewer sides, or a {'ring' if spec.kind == 'torus' else 'line'}"
            )
            raise DiagnosticError([replace(_bad_size(problem, expr.span, env), help=others)])
        sides.append(side)
    total = math.prod(sides)
    if total > MAX_RANKS:
        problem = f"a {spec.kind} of {total} ranks is over the limit of {MAX_RANKS}"
        raise DiagnosticError([_bad_size(problem, spec.span, env)])
    twist = _twist(spec, tuple(sides), env)
    return Topology(kind=spec.kind, sides=tuple(sides), twist=twist, speeds=spec.speeds, routed=spec.routed)


def named_topology(text: str) -> Topology:
    """The topology that a text such as `torus:4x8`, `ring:8` or `mesh:2x4` names. Raises RS210."""
    kind, colon, sides = text.partition(":")
    numbers = sides.split("x")
    several = kind in ("mesh", "torus")
    if kind not in ("ring", "line", "mesh", "torus") or not colon or not all(map(str.isdecimal, numbers)):
        problem = f"`{text}` names no topology"
    elif not several and len(numbers) > 1:
        problem = f"a {kind} has one side, not {len(numbers)}"
    else:
        spec = TopologySpec(kind=kind, sides=tuple(Int(value=int(number[:10])) for number in numbers))  # type: ignore[arg-type]
        return _topology(spec, {})
    help = "for example ring:8, line:4, mesh:2x4, torus:4x4, torus:4x4x8"
    raise DiagnosticError([Diagnostic(code="RS210", message=problem, help=help)])


def _twist(spec: TopologySpec, sides: tuple[int, ...], env: dict[str, int]) -> tuple[tuple[int, ...], ...]:
    """What once around along each axis adds, reduced; none where it is nothing. Raises RS210 where it fits no torus."""
    rows = [[0] * len(sides) for _ in sides]
    for axis, shifts in spec.twist:
        for other, expr in enumerate(shifts):
            try:
                rows[axis][other] = integer(expr, env)
            except EvaluationError as error:
                raise DiagnosticError([evaluation_diagnostic(error, env)]) from None
        if rows[axis][axis]:
            name = COORDINATES[axis]
            problem = f"once around along {name} cannot end at another {name}"
            help = f"the side of {name} says how long that way is: let the twist of {name} add 0 to {name}"
            raise DiagnosticError([replace(_bad_size(problem, shifts[axis].span, env), help=help)])
    order = shifting_order(tuple(map(tuple, rows)))
    if len(order) < len(sides):
        circle = [COORDINATES[axis] for axis in range(len(sides)) if axis not in order]
        problem = f"the twists of {' and '.join(circle)} shift each other"
        help = "let an axis shift only those that do not shift it, so that the sides say how many ranks there are"
        raise DiagnosticError([replace(_bad_size(problem, spec.span, env), help=help)])
    for count, axis in enumerate(reversed(order)):  # a shift by a whole side is none, but for the twist of that side
        rows[axis] = list(_untwisted(tuple(rows[axis]), sides, tuple(map(tuple, rows)), among=count))
    return tuple(map(tuple, rows)) if any(map(any, rows)) else ()


def _linked(joined: dict[tuple[int, int], Speed], span: Span | None) -> Topology:
    pairs = frozenset(joined)
    total = max((b for _, b in pairs), default=0) + 1
    if min((a for a, _ in pairs), default=0) < 0 or total > MAX_RANKS:
        raise DiagnosticError([_bad_size(f"link ends must be ranks 0 … {MAX_RANKS - 1}", span, {})])
    if any(a == b for a, b in pairs):
        raise DiagnosticError([_bad_size("a link joins a rank with itself", span, {})])
    speeds = tuple(joined[pair] for pair in sorted(pairs))
    if set(speeds) == {Speed()}:
        speeds = ()
    topology = Topology(kind="links", sides=(total,), links=pairs, speeds=speeds)
    alone = sorted(set(range(total)) - _reached(topology))
    if alone:
        help = f"join rank 0 and those linked to it with the others: rank {alone[0]} is not reached"
        raise DiagnosticError([replace(_bad_size("the links do not join all ranks", span, {}), help=help)])
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
        "RS206": "give the table an entry for each value that its index takes",
    }
    span = error.expr.span
    return Diagnostic(
        code=error.code,
        message=error.message,
        primary=Label(span=span, text="here") if span else None,
        counterexample=env or None,
        help=helps.get(error.code),
    )
