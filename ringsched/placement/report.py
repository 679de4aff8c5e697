"""What a placement costs: how many links each hop of a topology takes, and which hops meet on a link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ringsched.diagnostics import Diagnostic
from ringsched.placement.chips import Chip, Chips
from ringsched.topology import Topology

Ranks = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshReport:
    """Of ranks laid on chips; without any where the devices have no coordinates (`known` is False).

    hops: for each pair of linked ranks, both ways round, how many links lie between them.
    links: for each link between chips, in one direction, the pairs whose data goes over it.
    axes: the names of the mesh axes, as messages say them; `name`: the topology, as `rs.make_mesh` takes it.
    """

    topology: Topology
    name: str
    axes: tuple[str, ...]
    known: bool
    hops: dict[Ranks, int]
    links: dict[tuple[Chip, Chip], tuple[Ranks, ...]]

    @property
    def longest(self) -> int:
        """The links of the longest hop: 1 where neighbours are neighbours; 0 where nothing is known."""
        return max(self.hops.values(), default=0)

    @property
    def busiest(self) -> int:
        """How many hops meet on one link, at most."""
        return max(map(len, self.links.values()), default=0)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """RS906 for each mesh axis with hops of more than one link, RS907 where hops meet on a link."""
        found = []
        for axis, name in enumerate(self.axes):
            counts = Counter(hops for pair, hops in self.hops.items() if self._axis(pair) == axis)
            if max(counts, default=1) > 1:
                listed = ", ".join(f"{many} of {hops} link{'s' * (hops > 1)}" for hops, many in sorted(counts.items()))
                what = "ring" if self.topology.wraps else "line"
                message = f"mesh axis {name!r} is no {what} of links: it has hops of up to {max(counts)}"
                found.append(
                    Diagnostic(code="RS906", message=message, notes=(f"its hops: {listed}",), help=self._help())
                )
        if self.busiest > 1:
            many = sum(len(pairs) > 1 for pairs in self.links.values())
            message = (
                f"up to {self.busiest} hops meet on a link, on {many} of the {len(self.links)} links that are used"
            )
            note = "a step that uses them all takes so many times as long"
            found.append(Diagnostic(code="RS907", message=message, notes=(note,), help=self._help()))
        return tuple(found)

    def _axis(self, pair: Ranks) -> int | None:
        return self.topology.axis(*pair) if len(self.axes) > 1 else 0

    def _help(self) -> str:
        return f'rs.make_mesh(devices, "{self.name}") gives the order that suits the chips best'

    def __str__(self) -> str:
        if not self.known:
            return f"{self.name}: the devices have no coordinates"
        lines = [f"{self.name}: hops of up to {self.longest}, {self.busiest} on a link at most"]
        for finding in self.diagnostics:
            lines += [f"{finding.code}: {finding.message}", *(f"  {note}" for note in finding.notes)]
        return "\n".join(lines)


def report_of(
    chips: Chips | None, topology: Topology, orders: Sequence[Sequence[int]], axes: tuple[str, ...]
) -> MeshReport:
    """The report of ranks at `chips.positions[order[rank]]`; several orders for several copies, all at work at once."""
    hops: dict[Ranks, int] = {}
    links: dict[tuple[Chip, Chip], list[Ranks]] = {}
    for order in orders if chips is not None else ():
        assert chips is not None
        for rank in range(topology.ranks):
            for other in topology.neighbours(rank):
                a, b = chips.positions[order[rank]], chips.positions[order[other]]
                hops[rank, other] = max(hops.get((rank, other), 0), chips.distance(a, b))
                for link in chips.route(a, b):
                    links.setdefault(link, []).append((rank, other))
    return MeshReport(
        topology=topology,
        name=f"{topology.kind}:{'x'.join(map(str, topology.sides))}",
        axes=axes,
        known=chips is not None,
        hops=hops,
        links={link: tuple(links[link]) for link in sorted(links)},
    )
