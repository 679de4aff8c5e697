"""How ranks, chunks, contributions and moments are called in a finding."""

from __future__ import annotations

from collections.abc import Iterable

from ringsched.collectives import Chunk
from ringsched.diagnostics import Label, Span
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.topology import Topology

SHOWN = 6  # items of a list before it is cut short


def rank_name(topology: Topology, rank: int) -> str:
    """`rank 3`, or `rank (1, 0)` where ranks have several coordinates."""
    return f"rank {place_name(topology.at(rank))}"


def chunk_name(chunk: Chunk) -> str:
    return f"chunk {place_name(chunk)}"


def place_name(place: tuple[int, ...]) -> str:
    return str(place[0]) if len(place) == 1 else f"({', '.join(map(str, place))})"


def listing(items: Iterable[str]) -> str:
    """`a, b, c`, cut short with the number of those left out."""
    names = list(items)
    if len(names) <= SHOWN + 1:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"


def ranks_of(topology: Topology, mask: int) -> str:
    """`rank 2`, or `ranks 0, 2, 3`: the ranks in a mask of contributions."""
    ranks = [q for q in range(topology.ranks) if mask >> q & 1]
    names = listing(place_name(topology.at(q)) for q in ranks)
    return f"rank{'s' if len(ranks) != 1 else ''} {names}"


def chunks_list(chunks: Iterable[Chunk]) -> str:
    """`chunk 0`, `chunks 0, 2`, or `nothing`."""
    names = [place_name(chunk) for chunk in chunks]
    if not names:
        return "nothing"
    return f"chunk{'s' if len(names) > 1 else ''} {listing(names)}"


def loops(flat: FlatSchedule, transfer: FlatTransfer, value: int | None) -> dict[str, int]:
    """The loop variables and that of `each`."""
    found = {name: v for name, v in transfer.env.items() if name not in flat.env}
    each = transfer.statement.each
    if each is not None and value is not None:
        found[each.var] = value
    return found


def moment(flat: FlatSchedule, transfer: FlatTransfer, value: int | None, step: int | None = None) -> str:
    """` at s = 0`; without loop variables the number of the step, where it is one of several."""
    at = ", ".join(f"{name} = {v}" for name, v in loops(flat, transfer, value).items())
    if at:
        return f" at {at}"
    return f" in step {step + 1}" if step is not None and len(flat.steps) > 1 else ""


def site(flat: FlatSchedule, transfer: FlatTransfer | None, value: int | None, rank: int | None) -> dict[str, int]:
    """A counterexample: parameters, loop variables, then the rank's coordinates."""
    found = dict(flat.env)
    if transfer is not None:
        found.update(loops(flat, transfer, value))
    if rank is not None:
        found.update(zip(flat.topology.coordinates, flat.topology.at(rank), strict=True))
    return found


def label(text: str, *spans: Span | None) -> Label | None:
    """At the first of the places that is known."""
    for span in spans:
        if span is not None:
            return Label(span=span, text=text)
    return None
