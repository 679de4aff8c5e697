"""FlatSchedule → messages: for each rank the operations that its transfers need, and which have to come before which.

Transfers of one step read what was there before it, so a rank's sends of a step come before its receives. An operation
waits for the last write of what it reads; a write also for the reads, and the write, of what it replaces.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.schedule.flat import FlatSchedule
from ringsched.schedule.schedule import Op
from ringsched.verify.resolve import Resolver


class Message(NamedTuple):
    """Chunks, by their numbers, that a rank sends to another in a step."""

    step: int
    sender: int
    receiver: int
    op: Op
    chunks: tuple[int, ...]


def messages(flat: FlatSchedule) -> Iterator[tuple[Message, ...]]:
    """Those of each step. The schedule has to be right."""
    resolver = Resolver(flat)
    for number in range(len(flat.steps)):
        yield tuple(
            Message(number, move.sender, move.receiver, move.transfer.statement.op, tuple(move.chunks))
            for move in resolver.step(number)
        )


def exportable(flat: FlatSchedule, *, permutations: bool) -> None:
    """RS831 for what the other tool has no words for."""
    schedule = flat.schedule
    reason, span = None, None
    if schedule.compute is not None:
        reason, span = "it multiplies", schedule.compute.span
    elif flat.promise.kind == "none" or (flat.promise.kind == "permute" and not permutations):
        reason, span = f"there is no {flat.promise.kind!r} there", schedule.collective.span
    if reason is not None:
        raise DiagnosticError(
            [
                Diagnostic(
                    code="RS831",
                    message=f"{schedule.name} cannot be exported: {reason}",
                    primary=Label(span=span) if span else None,
                    help="export a schedule of one collective that does not multiply",
                )
            ]
        )


@dataclass(slots=True)
class _Place:
    written: int | None = None
    read: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Accesses:
    """What was done to each place of a rank's memory, by the numbers of operations."""

    places: dict[Hashable, _Place] = field(default_factory=dict)

    def read(self, number: int, places: Sequence[Hashable]) -> set[int]:
        """The operations that have to be over before this one reads."""
        found = set()
        for key in places:
            place = self.places.setdefault(key, _Place())
            if place.written is not None:
                found.add(place.written)
            place.read.append(number)
        return found

    def write(self, number: int, places: Sequence[Hashable]) -> set[int]:
        found = set()
        for key in places:
            place = self.places.setdefault(key, _Place())
            found |= {*place.read, *([] if place.written is None else [place.written])}
            place.written, place.read = number, []
        return found - {number}
