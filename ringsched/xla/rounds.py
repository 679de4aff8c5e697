"""Routes → rounds: as few partial permutations as can be."""

from __future__ import annotations

from collections.abc import Sequence

from ringsched.schedule.schedule import Transfer
from ringsched.verify.resolve import Move
from ringsched.xla.exchange import Round, Route


def rounds(moves: Sequence[Move]) -> list[Round]:
    """The moves of a step, those with the same two ends as one route."""
    found = []
    for op in ("copy", "reduce"):
        joined: dict[tuple[int, int], list[Move]] = {}
        for move in moves:
            if move.transfer.statement.op == op:
                joined.setdefault((move.sender, move.receiver), []).append(move)
        colours = colouring(list(joined))
        for colour in range(max(colours.values(), default=-1) + 1):
            routes = [_route(*ends, joined[ends]) for ends in sorted(joined) if colours[ends] == colour]
            found.append(Round(routes=tuple(routes), adds=op == "reduce"))
    return found


def _route(sender: int, receiver: int, moves: list[Move]) -> Route:
    chunks = [chunk for move in moves for chunk in move.chunks]
    statements: dict[Transfer, None] = dict.fromkeys(move.transfer.statement for move in moves)
    return Route(sender=sender, receiver=receiver, chunks=chunks, statements=tuple(statements))


def colouring(edges: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Colours for different edges (sender, receiver): none comes twice at a sender, none at a receiver.

    They are as many as the busiest rank has edges at one of the two ends (Kőnig 1916): where an edge finds no colour
    that is free at both of its ends, the colours of a path of two alternating ones are swapped.
    """
    sends: dict[int, dict[int, int]] = {}  # sender → colour → receiver
    receives: dict[int, dict[int, int]] = {}
    for sender, receiver in edges:
        out, into = sends.setdefault(sender, {}), receives.setdefault(receiver, {})
        here, there = _free(out), _free(into)
        if here != there:
            _swap(sends, receives, receiver, here, there)
        out[here] = receiver
        into[here] = sender
    return {(sender, receiver): colour for sender, out in sends.items() for colour, receiver in out.items()}


def _free(used: dict[int, int]) -> int:
    return next(colour for colour in range(len(used) + 1) if colour not in used)


def _swap(
    sends: dict[int, dict[int, int]], receives: dict[int, dict[int, int]], receiver: int, one: int, other: int
) -> None:
    """Makes colour `one` free at `receiver`, where `other` is: along the path that begins there with `one`.

    The path never ends at a sender that `one` is to be used at: it comes to senders by `one` alone.
    """
    path = []
    sides, node, colour = (receives, sends), receiver, one
    while colour in sides[0].get(node, {}):
        following = sides[0][node][colour]
        path.append((following, node, colour) if sides[0] is receives else (node, following, colour))
        sides, node, colour = (sides[1], sides[0]), following, one + other - colour
    for sender, end, colour in path:
        del sends[sender][colour], receives[end][colour]
    for sender, end, colour in path:
        sends[sender][one + other - colour] = end
        receives[end][one + other - colour] = sender
