"""Do the links of a chain fit, each behind the one before, and the first behind the last?"""

from __future__ import annotations

from collections.abc import Sequence

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.schedule.flat import FlatSchedule
from ringsched.schedule.schedule import Chain, Link
from ringsched.topology import Topology


def check_links(chain: Chain, topology: Topology, flats: Sequence[FlatSchedule]) -> None:
    """Raises RS216 where a link is not for the chain's ranks, or does not take what the one before gives."""
    found = [
        _other_ranks(link, f.topology, topology)
        for link, f in zip(chain.links, flats, strict=True)
        if f.topology != topology
    ]
    if found:
        raise DiagnosticError(found)
    for number, (link, flat) in enumerate(zip(chain.links, flats, strict=True)):
        before, given = chain.links[number - 1], flats[number - 1]
        wanted, there = _takes(link), _gives(before)
        if wanted == there and flat.promise.dims != given.promise.dims:
            wanted, there = (f"chunks {list(f.promise.dims)}" for f in (flat, given))
        if wanted == there:
            continue
        first = "; the last gives to the first, in the next layer" if number == 0 else ""
        found.append(
            Diagnostic(
                code="RS216",
                message=f"`{link.path}` does not fit behind `{before.path}`",
                primary=Label(span=link.span, text=f"takes {wanted}") if link.span else None,
                secondary=(Label(span=before.span, text=f"gives {there}"),) if before.span else (),
                help="a link that gathers goes before one that scatters, with the same `shard:` and the same `chunks:`"
                + first,
            )
        )
    if not found and chain.links[0].schedule.collective.kind != "all_gather":
        message = "a chain begins with a link that gathers"
        span = chain.links[0].span
        label = Label(span=span, text="scatters") if span else None
        found.append(Diagnostic(code="RS607", message=message, primary=label, help="put the links in another order"))
    if found:
        raise DiagnosticError(found)


def _other_ranks(link: Link, theirs: Topology, ours: Topology) -> Diagnostic:
    there, here = (f"a {t.kind} of {' by '.join(map(str, t.sides))}" for t in (theirs, ours))
    return Diagnostic(
        code="RS216",
        message=f"the used schedule `{link.path}` does not fit: it is for {there}; this chain is for {here}",
        primary=Label(span=link.span, text="used here") if link.span else None,
        help="give the parameters of both the same names",
    )


def _takes(link: Link) -> str:
    compute = link.schedule.compute
    assert compute is not None
    return f"shards of {compute.shard}" if compute.moment == "on arrival" else "features of each rank's own"


def _gives(link: Link) -> str:
    compute = link.schedule.compute
    assert compute is not None
    if compute.moment == "on arrival":
        return "features of each rank's own"
    return f"shards of {compute.shard}" if link.schedule.collective.kind == "reduce_scatter" else "the whole sum"
