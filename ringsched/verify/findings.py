"""Findings about statements that make no move: expressions without a value, indices, and where transfers go (RS2xx).

Every function takes the flat schedule, the transfer, the value of its `each` and the sending rank; the counterexample
names them all.
"""

from __future__ import annotations

from dataclasses import replace

from ringsched.diagnostics import Diagnostic
from ringsched.expr import EvaluationError, Int, Var, binary, names, show
from ringsched.schedule.flat import FlatSchedule, FlatTransfer
from ringsched.schedule.notation import show_chunk
from ringsched.schedule.schedule import Rank, Slice
from ringsched.topology import Topology, evaluation_diagnostic
from ringsched.verify.words import label, moment, place_name, rank_name, site


def no_value(
    flat: FlatSchedule, transfer: FlatTransfer, value: int | None, rank: int | None, error: EvaluationError
) -> Diagnostic:
    """RS202, RS204, RS205: an expression cannot be evaluated here."""
    counterexample = site(flat, transfer, value, rank)
    found = evaluation_diagnostic(error, counterexample)
    at = ", ".join(f"{name} = {v}" for name, v in counterexample.items())
    return replace(found, primary=label(f"at {at}", error.expr.span, transfer.statement.span))


def no_such_rank(
    flat: FlatSchedule,
    transfer: FlatTransfer,
    value: int | None,
    rank: int | None,
    reference: Rank,
    place: tuple[int, ...],
) -> Diagnostic:
    """RS208: past the end of a line or mesh, or a number that is no rank."""
    topology = flat.topology
    verb = "sends to" if reference is transfer.statement.to else "is to be sent by"
    who = rank_name(topology, rank) if rank is not None else "this"
    text = f"{who} {verb} {place_name(place)}{moment(flat, transfer, value)}"
    if len(place) not in (1, len(topology.sides)):
        text += f"; a rank has {len(topology.sides)} coordinate{'s' if len(topology.sides) > 1 else ''}"
    elif len(place) == len(topology.sides) > 1:
        text += f"; the {topology.kind} is {' by '.join(map(str, topology.sides))}"
    else:
        text += f"; there are ranks 0 … {topology.ranks - 1}"
    ends = {"line": "past the end of the line", "mesh": "past the edge of the mesh"}
    return Diagnostic(
        code="RS208",
        message=f"a transfer goes {ends.get(topology.kind, 'to a rank that does not exist')}",
        primary=label(text, reference.span, transfer.statement.span),
        counterexample=site(flat, transfer, value, rank),
        help=_guard_help(flat, transfer, reference, place),
    )


def _around_help(topology: Topology, reference: Rank, place: tuple[int, ...]) -> str:
    """What is counted from one's own coordinate goes around, and so is not at fault."""
    own = {"r", *topology.coordinates}
    text = "only what is counted from a rank's own number, as r + 1, goes around: "
    if len(topology.sides) > 1:
        return f"{text}name coordinates that there are"
    (number,) = reference.coordinates[:1]
    again = f", or write ({show(number)}) % {topology.ranks}" if names(number) - own else ""
    return f"{text}name one of the ranks 0 … {topology.ranks - 1}{again}"


def _guard_help(flat: FlatSchedule, transfer: FlatTransfer, reference: Rank, place: tuple[int, ...]) -> str:
    """The guard that keeps a transfer off the end."""
    topology = flat.topology
    sides = flat.schedule.topology.sides
    if topology.wraps and len(place) == len(topology.sides):
        return _around_help(topology, reference, place)
    if len(place) == len(topology.sides) and reference is not transfer.statement.sender:
        for d, (coordinate, side) in enumerate(zip(place, topology.sides, strict=True)):
            text = show(reference.coordinates[d])
            if coordinate < 0:
                return f"guard the transfer: when: {text} >= 0"
            if coordinate >= side:
                return f"guard the transfer: when: {text} < {show(sides[d]) if d < len(sides) else side}"
    return f"name one of the ranks 0 … {topology.ranks - 1}"


def to_itself(flat: FlatSchedule, transfer: FlatTransfer, value: int | None, rank: int) -> Diagnostic:
    """RS209."""
    topology = flat.topology
    text = f"{rank_name(topology, rank)} sends to itself{moment(flat, transfer, value)}"
    help = f"send to a neighbour: {_neighbours_text(flat, rank)}"
    if topology.ranks == 1:
        size = show(flat.schedule.topology.sides[0]) if len(topology.sides) == 1 and topology.kind != "links" else None
        help = "with one rank there is nothing to send" + (f"; guard the transfer: when: {size} > 1" if size else "")
    return Diagnostic(
        code="RS209",
        message="a rank sends to itself",
        primary=label(text, transfer.statement.to.span, transfer.statement.span),
        counterexample=site(flat, transfer, value, rank),
        help=help,
    )


def no_neighbour(flat: FlatSchedule, transfer: FlatTransfer, value: int | None, rank: int, receiver: int) -> Diagnostic:
    """RS207."""
    topology = flat.topology
    text = f"{rank_name(topology, rank)} sends to {rank_name(topology, receiver)}{moment(flat, transfer, value)}"
    neighbours = ", ".join(place_name(topology.at(q)) for q in topology.neighbours(rank))
    return Diagnostic(
        code="RS207",
        message="a transfer goes to a rank that is not a neighbour",
        primary=label(f"{text}: no link joins them", transfer.statement.to.span, transfer.statement.span),
        counterexample=site(flat, transfer, value, rank),
        notes=(f"neighbours of {rank_name(topology, rank)}: {neighbours or 'none'}",),
        help=f"send to a neighbour, {_neighbours_text(flat, rank)}, and go further in several steps; "
        "or say `routed: true` in `topology:` where the platform takes data further",
    )


def _neighbours_text(flat: FlatSchedule, rank: int) -> str:
    topology = flat.topology
    match topology.kind:
        case "ring" | "line":
            return "r + 1 or r - 1"
        case "mesh" | "torus":
            return "one coordinate plus or minus 1"
        case _:
            return f"from rank {rank} {', '.join(map(str, topology.neighbours(rank)))}"


def too_many_indices(flat: FlatSchedule, transfer: FlatTransfer, value: int | None, rank: int) -> Diagnostic:
    """RS206: more indices than the chunk space has dimensions."""
    chunk, dims = transfer.statement.chunk, flat.promise.dims
    return Diagnostic(
        code="RS206",
        message="a chunk has more indices than dimensions",
        primary=label(f"{len(chunk.index)} indices; `chunks:` has {len(dims)}", chunk.span, transfer.statement.span),
        counterexample=site(flat, transfer, value, rank),
        help="remove an index, or add a dimension to `chunks:`",
    )


def bad_index(
    flat: FlatSchedule, transfer: FlatTransfer, value: int | None, rank: int, dimension: int, found: int
) -> Diagnostic:
    """RS206 of one index."""
    size = flat.promise.dims[dimension]
    who = f"rank {place_name(flat.topology.at(rank))}"
    many = f"; the indices are {_numbers(size)}" if size > 1 else "; the only index is 0"
    text = f"is {found} for {who}{moment(flat, transfer, value)}{many}"
    index = transfer.statement.chunk.index[dimension]
    extent = flat.schedule.chunks[dimension]
    help = f"name one of {_numbers(size)}"
    if not isinstance(index, Slice | Int):
        wrapped = binary("%", index, extent if isinstance(extent, Int | Var) else size)
        changed = tuple(wrapped if d == dimension else i for d, i in enumerate(transfer.statement.chunk.index))
        help = f"wrap it around: {show_chunk(replace(transfer.statement.chunk, index=changed))}"
    return Diagnostic(
        code="RS206",
        message="a chunk index is out of range",
        primary=label(text, index.span, transfer.statement.chunk.span, transfer.statement.span),
        counterexample=site(flat, transfer, value, rank),
        help=help,
    )


def _numbers(size: int) -> str:
    return f"0 … {size - 1}"


def bad_slice(
    flat: FlatSchedule, transfer: FlatTransfer, value: int | None, rank: int, dimension: int, start: int, stop: int
) -> Diagnostic:
    """RS206 of a slice; an empty one is refused too, since nothing would be sent."""
    size = flat.promise.dims[dimension]
    empty = 0 <= start == stop <= size
    who = rank_name(flat.topology, rank)
    text = f"is {start}:{stop} for {who}{moment(flat, transfer, value)}; the dimension has {size}"
    index = transfer.statement.chunk.index[dimension]
    return Diagnostic(
        code="RS206",
        message="a chunk slice is empty" if empty else "a chunk slice is out of range",
        primary=label(text, index.span, transfer.statement.chunk.span, transfer.statement.span),
        counterexample=site(flat, transfer, value, rank),
        help="guard the transfer with `when:` where there is nothing to send"
        if empty
        else f"a slice START:STOP holds START … STOP - 1, within 0 … {size - 1}",
    )
