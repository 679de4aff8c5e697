"""The Exchange: which `lax.ppermute` are called in which order, and what they carry.

    exchange ::= node …                                  nodes run one after the other
    node     ::= step | loop | own
    loop     ::= for VAR in FIRST … LAST: step           both ends included
    step     ::= message …                               all of them read what was held before the step
    message  ::= shift | round                           one ppermute
    own      ::= multiply [chunks]                       that have not arrived; none: all there are

A rank holds an array with a place for each chunk. A shift is one statement of the schedule: what is sent, and where it
belongs as it arrives, are expressions of a rank's own coordinates and of loop variables. A round is a list of routes,
of which each rank begins one at most and ends one at most: what is left of transfers that no such expressions describe.

To multiply chunks is to multiply them by the weight where it is done on arrival, and to compute this rank's own terms
of their sums where it is done before sending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringsched.expr import Expr
from ringsched.schedule.flat import FlatSchedule
from ringsched.schedule.schedule import Range, Slice, Transfer

Index = tuple[Expr | Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Who sends to whom: every rank for which `when` holds sends to `to`, a coordinate each, which wrap."""

    to: tuple[Expr, ...]
    when: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """`statement` at every rank. `everyone` receives, or only some ranks do.

    sent: the chunks that a sender sends; arrived: the same in terms of the receiver's coordinates. `each`: the range of
    a variable in both, of which all values are sent at once. multiplies: what arrives is multiplied as it is stored.
    """

    statement: Transfer
    pairs: Pairs
    everyone: bool
    sent: Index
    arrived: Index
    each: Range | None
    multiplies: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`chunks`: numbers, row-major over the chunk space; `statements`: those that say so."""

    sender: int
    receiver: int
    chunks: Sequence[int]
    statements: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Routes with different senders and different receivers. `adds`: to what the receiver holds, or replaces it."""

    routes: tuple[Route, ...]
    adds: bool


Message = Shift | Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`label`: the values of loop variables, for a comment."""

    messages: tuple[Message, ...]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """`var` takes the values first … last. `even`: pairs and numbers of chunks are the same in every turn."""

    var: str
    first: int
    last: int
    even: bool
    step: Step

    @property
    def multiplies(self) -> bool:
        return any(isinstance(message, Shift) and message.multiplies for message in self.step.messages)

    @property
    def turns(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """`index`: which chunks, in the rank's own terms; empty: all. `each`: as in a shift."""

    index: Index = ()
    each: Range | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """`parameters`: names of the schedule's parameters that the text may use; the others stand there as numbers."""

    flat: FlatSchedule
    nodes: tuple[Step | Loop | Own, ...]
    parameters: tuple[str, ...]
