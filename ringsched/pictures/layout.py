"""Topology → where each rank and each link lies on the page.

A ring is a circle, a line a row, a mesh or torus a grid with x to the right and y downwards, a third axis layers side
by side; explicit links are laid out by springs, the same each time. Links that wrap around are stubs at both ends, and
those between layers are short strokes towards the upper right (z + 1) and the lower left (z - 1).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ringsched.model.loads import Hop
from ringsched.topology import Topology

Point = tuple[float, float]

MOST_SPREAD = 420  # pixels, of explicit links


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """A straight piece of a hop, from the edge of a rank or to it; `alone`: the way back is drawn elsewhere."""

    start: Point
    end: Point
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`places`: the centres of the ranks, of `radius`, in a panel of `width` by `height` pixels.

    names: what to write on each rank, empty where there is no room. captions: texts with their places.
    stub: how long a link is that wraps around. roomy: whether chunks can be written next to arrows.
    """

    topology: Topology
    width: float
    height: float
    radius: float
    stub: float
    roomy: bool
    places: tuple[Point, ...]
    names: tuple[str, ...]
    captions: tuple[tuple[Point, str], ...] = ()

    def strokes(self, hop: Hop) -> tuple[Stroke, ...]:
        """The pieces that a hop is drawn as."""
        (ax, ay), (bx, by) = self.places[hop[0]], self.places[hop[1]]
        axis = self._stubs(hop)
        if axis is None:
            return (self._between((ax, ay), (bx, by)),)
        ux, uy = ((1.0, 0.0), (0.0, 1.0), (math.sqrt(0.5), -math.sqrt(0.5)))[axis]
        if not self._onward(hop, axis):
            ux, uy = -ux, -uy
        far = self.radius + self.stub
        out = Stroke(start=(ax + ux * self.radius, ay + uy * self.radius), end=(ax + ux * far, ay + uy * far))
        if axis == 2:
            return (replace(out, alone=True),)
        into = Stroke(start=(bx - ux * far, by - uy * far), end=(bx - ux * self.radius, by - uy * self.radius))
        return (out, into)

    def _stubs(self, hop: Hop) -> int | None:
        """The axis along which a hop is drawn as stubs; None where it is drawn from rank to rank."""
        topology = self.topology
        if topology.kind not in ("mesh", "torus") or len(topology.sides) == 1:
            return None
        axis = topology.axis(*hop)
        a, b = topology.at(hop[0]), topology.at(hop[1])
        beside = sum(abs(i - j) for i, j in zip(a, b, strict=True)) == 1
        return None if beside and axis != 2 else axis

    def _onward(self, hop: Hop, axis: int) -> bool:
        place = self.topology.at(hop[0])
        beside = self.topology.at(hop[1])[axis] - place[axis]
        if self.topology.sides[axis] == 2 and not self.topology.twist:
            return beside > 0
        return self.topology.rank((*place[:axis], place[axis] + 1, *place[axis + 1 :])) == hop[1]

    def _between(self, a: Point, b: Point) -> Stroke:
        length = math.hypot(b[0] - a[0], b[1] - a[1]) or 1.0
        ux, uy = (b[0] - a[0]) / length, (b[1] - a[1]) / length
        start = (a[0] + ux * self.radius, a[1] + uy * self.radius)
        return Stroke(start=start, end=(b[0] - ux * self.radius, b[1] - uy * self.radius))


def layout_of(topology: Topology) -> Layout:
    """The layout of a topology."""
    flat = len(topology.sides) == 1
    if topology.kind == "links":
        return _springs(topology)
    if flat and topology.wraps:
        return _circle(topology)
    return _row(topology) if flat else _grid(topology)


def _circle(topology: Topology) -> Layout:
    count = topology.ranks
    gap = 62 if count <= 8 else 40 if count <= 32 else 14
    radius = 13 if count <= 32 else 4
    around = max(58.0, count * gap / (2 * math.pi))
    middle = around + radius + 20
    turns = [2 * math.pi * rank / count for rank in range(count)]
    return Layout(
        topology=topology,
        width=2 * middle,
        height=2 * middle,
        radius=radius,
        stub=0,
        roomy=count <= 8,
        places=tuple((middle + around * math.sin(turn), middle - around * math.cos(turn)) for turn in turns),
        names=tuple(str(rank) if count <= 32 else "" for rank in range(count)),
    )


def _row(topology: Topology) -> Layout:
    count = topology.ranks
    gap = 64 if count <= 12 else 40 if count <= 24 else 16
    radius = 13 if count <= 24 else 4
    return Layout(
        topology=topology,
        width=(count - 1) * gap + 2 * (radius + 14),
        height=2 * radius + 56,
        radius=radius,
        stub=0,
        roomy=count <= 12,
        places=tuple((radius + 14 + rank * gap, radius + 28) for rank in range(count)),
        names=tuple(str(rank) if count <= 24 else "" for rank in range(count)),
    )


def _grid(topology: Topology) -> Layout:
    columns, rows, layers = (*topology.sides, 1)[:3]
    longest = max(columns, rows)
    gap, radius = (56, 13) if longest <= 6 else (40, 11) if longest <= 8 else (20, 4)
    stub = (gap - 2 * radius) * 0.62
    edge = radius + (stub if topology.wraps else 0) + 12
    wide, high = (columns - 1) * gap + 2 * edge, (rows - 1) * gap + 2 * edge
    caption = 18 if layers > 1 else 0
    across = min(layers, 4 if longest <= 4 else 2)
    places, names, captions = [], [], []
    for rank in range(topology.ranks):
        x, y, z = (*topology.at(rank), 0)[:3]
        left, top = z % across * wide, z // across * (high + caption) + caption
        places.append((left + edge + x * gap, top + edge + y * gap))
        names.append(f"{x},{y}" if longest <= 8 else "")
    for z in range(layers if layers > 1 else 0):
        captions.append(((z % across * wide + wide / 2, z // across * (high + caption) + 14), f"z = {z}"))
    return Layout(
        topology=topology,
        width=wide * across,
        height=(high + caption) * -(-layers // across),
        radius=radius,
        stub=stub,
        roomy=topology.ranks <= 9 and layers == 1,
        places=tuple(places),
        names=tuple(names),
        captions=tuple(captions),
    )


def _springs(topology: Topology) -> Layout:
    import networkx  # late: it costs 0.16 s

    count = topology.ranks
    graph = topology.graph()
    start = networkx.circular_layout(graph)
    found = networkx.spring_layout(graph, pos=start, seed=0, iterations=200, k=1.6 / math.sqrt(count))
    radius = 13 if count <= 32 else 5
    edge = radius + 18
    lows, spans = [], []
    for axis in (0, 1):
        column = [float(place[axis]) for place in found.values()]
        lows.append(min(column))
        spans.append(max(column) - min(column) or 1.0)
    near = min(math.dist(found[a], found[b]) for a, b in itertools.combinations(range(count), 2))
    scale = min(max(150 / max(spans), 3.9 * radius / max(near, 1e-6)), MOST_SPREAD / max(spans))
    extent = [span * scale + 2 * edge for span in spans]
    places = [[round(edge + (found[rank][axis] - lows[axis]) * scale) for axis in (0, 1)] for rank in range(count)]
    return Layout(
        topology=topology,
        width=round(extent[0]),
        height=round(extent[1]),
        radius=radius,
        stub=0,
        roomy=count <= 12,
        places=tuple((x, y) for x, y in places),
        names=tuple(str(rank) if count <= 32 else "" for rank in range(count)),
    )
