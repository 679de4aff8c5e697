"""The Schedule: which chunk moves to which neighbour at which step, copied or reduced.

    schedule   ::= name collective topology params tables chunks [compute] steps lowering
    collective ::= kind [root | permutation]
    item       ::= step | loop | use | beside | made    items run one after the other
    step       ::= transfer …                          transfers of one step are concurrent
    loop       ::= for VAR in FIRST .. LAST: item …    both ends included
    use        ::= another Schedule, on a part of the chunks
    beside     ::= use …                               the n-th steps of all of them form one step
    made       ::= synth: KIND                         steps that the compiler makes for these links
    transfer   ::= send chunk[index, …] [each VAR in FIRST .. LAST] [from rank] to rank op [when condition …]
    chain      ::= name topology params activation link …    schedules that multiply, one after the other in each layer
    link       ::= another Schedule [epilogue]

No buffers and no semaphores. Nodes are immutable, carry their place in the file and compare without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ringsched.diagnostics import Span
from ringsched.expr import Expr

Epilogue = Literal["gelu", "gelu_exact", "silu", "relu"]
CollectiveKind = Literal[
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "permute",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "none",
]
TopologyKind = Literal["ring", "line", "mesh", "torus", "links"]
Op = Literal["copy", "reduce"]
Moment = Literal["on arrival", "before sending"]
Shard = Literal["rows", "features"]
Overlap = Literal["full", "none"]
Activation = Literal["sharded", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A range of one chunk dimension, half open as in Python; None stands for the dimension's end."""

    start: Expr | None = None
    stop: Expr | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRef:
    """`chunk[i, j, a:b]`; dimensions that are left out are taken whole."""

    index: tuple[Expr | Slice, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """`VAR in FIRST .. LAST`, both included; empty when LAST < FIRST."""

    var: str
    first: Expr
    last: Expr
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank: one expression (ring, line, links: the rank itself), or one for each coordinate."""

    coordinates: tuple[Expr, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One rank sends a chunk (or, with `each`, several at once) to another."""

    chunk: ChunkRef
    to: Rank
    op: Op = "copy"
    when: tuple[Expr, ...] = ()
    each: Range | None = None
    sender: Rank | None = None  # `from:`; None: every rank sends
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    transfers: tuple[Transfer, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    range: Range
    body: tuple[Item, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """`use: FILE`, with parameters set by `with:` (evaluated outside) and chunks mapped by `on:`.

    `on` is a chunk reference of the outer schedule: the dimensions that it takes whole or as a slice are those of the
    inner schedule, in order. None: the chunk spaces are the same.
    """

    path: str  # as written
    schedule: Schedule
    arguments: tuple[tuple[str, Expr], ...] = ()
    on: ChunkRef | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    uses: tuple[Use, ...]
    span: Span | None = field(default=None, compare=False)


Constructed = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synth:
    """The steps that the compiler makes for these links; see made.py."""

    kind: Constructed
    span: Span | None = field(default=None, compare=False)


Item = Step | Loop | Use | Beside | Synth


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """`root` for broadcast, reduce, gather, scatter (default 0); `permutation` of `r` for permute."""

    kind: CollectiveKind
    root: Expr | None = None
    permutation: Expr | None = None
    span: Span | None = field(default=None, compare=False)


class Speed(NamedTuple):
    """Of a link, in each of its two directions: as multiples of those of a plain link."""

    bandwidth: int = 1
    latency: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySpec:
    """`{ring: N}`, `{line: N}`, `{mesh: [X, Y]}`, `{torus: [X, Y, Z]}`, `{links: [[0, 1], …]}` (both ways).

    twist: of a torus: an axis, and what once around along it adds to each coordinate.
    speeds: of each axis, or of each of `links`; none: all links are plain.
    routed: transfers may go to ranks that are not neighbours, over links in between.
    """

    kind: TopologyKind
    sides: tuple[Expr, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    twist: tuple[tuple[int, tuple[Expr, ...]], ...] = ()
    speeds: tuple[Speed, ...] = ()
    routed: bool = False
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """What an expert asks for; None leaves the decision to the compiler."""

    slots: int | None = None  # receive slots of each transfer that needs slots
    semaphores: int | None = None  # receive semaphores of each transfer
    memory: Literal["vmem", "hbm"] | None = None
    unroll: bool | None = None
    barrier: Literal["writers", "none"] | None = None
    spans: tuple[tuple[str, Span], ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiply:
    """Each chunk is multiplied by a weight: as it lands (`on arrival`), or its partial sum is, just before it is sent.

    shard: the activation that is sharded over the ranks (the operand of an all-gather, the result of a reduce-scatter)
    is split along its rows, or along its features.
    overlap: `none` puts all products behind an all-gather, or before a reduction, in place of in between.
    """

    moment: Moment
    shard: Shard = "rows"
    overlap: Overlap = "full"
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """`asked`: the value is not the file's default, so nobody looks for a smaller one that shows the same."""

    name: str
    value: int
    asked: bool = field(default=False, compare=False)
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    name: str
    collective: Collective
    topology: TopologySpec
    parameters: tuple[Parameter, ...]
    chunks: tuple[Expr, ...]
    items: tuple[Item, ...]
    tables: tuple[tuple[str, tuple[int, ...]], ...] = ()  # constants that expressions look up
    compute: Multiply | None = None
    lowering: Lowering = Lowering()
    description: str = field(default="", compare=False)
    path: str = field(default="", compare=False)
    span: Span | None = field(default=None, compare=False)
    steps_span: Span | None = field(default=None, compare=False)
    chunks_span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A schedule that multiplies, as a part of a chain; its parameters are the chain's of the same names.

    epilogue: is applied to its result, None: nothing is.
    """

    path: str  # as written
    schedule: Schedule
    epilogue: Epilogue | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Links that run one after the other in each layer; what one gives, the next takes, the first in the next layer.

    Each link multiplies by a weight of its own, which has as many layers as the call gives it.
    activation: whether a rank starts and ends with its shard, or with all of it; the first link's transfers gather it.
    """

    name: str
    topology: TopologySpec
    parameters: tuple[Parameter, ...]
    links: tuple[Link, ...]
    activation: Activation = "sharded"
    description: str = field(default="", compare=False)
    path: str = field(default="", compare=False)
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """What a layer of a chain computes: for each link when it multiplies, and its epilogue.

    whole: every rank has the whole operand and gets the whole result; else its shard.
    """

    shard: Shard
    moments: tuple[Moment, ...]
    epilogues: tuple[Epilogue | None, ...]
    whole: bool
