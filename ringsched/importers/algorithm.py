"""An MSCCL algorithm as its file says it.

    algorithm ::= collective ranks protocol gpu …
    gpu       ::= rank, chunks of its input, output and scratch buffer, block …
    block     ::= one peer to send to, one to receive from, a channel, step …     steps run in order, blocks all at once
    step      ::= type source target count needs …                               needs: steps of other blocks of the gpu

A message is what one step sends: `count` chunks. Messages match first-in-first-out for each sender, receiver, channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ringsched.diagnostics import Diagnostic, Span
from ringsched.schedule.schedule import CollectiveKind

Buffer = Literal["i", "o", "s"]
StepType = Literal["s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop"]

SENDS: frozenset[StepType] = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVES: frozenset[StepType] = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
READS_SOURCE: frozenset[StepType] = frozenset({"s", "rrc", "rrs", "rrcs", "cpy", "re"})
READS_TARGET: frozenset[StepType] = frozenset({"re"})
WRITES_TARGET: frozenset[StepType] = frozenset({"r", "rcs", "rrc", "rrcs", "cpy", "re"})

# By their names in files, less signs and capitals. One that promises more comes before those that promise a part of it.
COLLECTIVES: dict[str, CollectiveKind] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
DEPTHS = {"Simple": 2, "LL": 8, "LL128": 8}  # messages in flight at once on a connection
ROOTED: frozenset[CollectiveKind] = frozenset({"broadcast", "reduce", "gather", "scatter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place in a buffer, counted in chunks; `offset` is negative where the file names none."""

    buffer: Buffer
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer}[{self.offset}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`needs`: (block, step) of the same gpu that have to be finished. `flagged`: hasdep, None where it is not said."""

    number: int
    type: StepType
    source: Slot
    target: Slot
    count: int
    needs: tuple[tuple[int, int], ...]
    flagged: bool | None
    span: Span

    @property
    def sends(self) -> bool:
        """A step of no chunks moves nothing."""
        return self.type in SENDS and self.count > 0

    @property
    def receives(self) -> bool:
        return self.type in RECEIVES and self.count > 0

    def read(self) -> tuple[Slot, ...]:
        """The ranges of `count` chunks that it reads, by their first slot."""
        if self.count == 0:
            return ()
        source = (self.source,) if self.type in READS_SOURCE else ()
        return (*source, self.target) if self.type in READS_TARGET else source

    def written(self) -> Slot | None:
        """The range that it writes."""
        return self.target if self.type in WRITES_TARGET and self.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """`send`, `receive`: the peers, None where there is none."""

    id: int
    send: int | None
    receive: int | None
    channel: int
    steps: tuple[Step, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`sizes`: chunks of the buffers, as far as the file says them."""

    rank: int
    sizes: dict[Buffer, int]
    blocks: tuple[Block, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """`kind`: None where `collective` is none of which it is known what it promises. `chunks`: a loop's, all in all.

    `collective`: empty where the file does not say it, as `in_place` is None. Those of older writers do not.
    `advice`: what the reader had to fill in or leave out.
    """

    name: str
    collective: str
    kind: CollectiveKind | None
    ranks: int
    chunks: int | None
    channels: int | None
    protocol: str
    in_place: bool | None
    root: int | None
    gpus: tuple[Gpu, ...]  # one for each rank, in order
    span: Span  # where the collective is named
    chunks_span: Span
    path: str
    advice: tuple[Diagnostic, ...] = ()

    @property
    def depth(self) -> int:
        """Messages that its protocol lets be in flight on a connection."""
        return DEPTHS[self.protocol]
