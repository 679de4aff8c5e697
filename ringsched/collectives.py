"""What each collective holds at the start and promises at the end, and which units of operand and result that is.

The chunk space has the schedule's dimensions. Where ownership matters its leading dimensions name the owner: one
dimension of all ranks, or one for each coordinate of a mesh or torus; the rest split a shard into parts. all_to_all has
two such groups: chunk (i, j) goes from i to j. Contributions are bit masks over ranks: bit q stands for rank q's term.

| collective | at the start | at the end |
|---|---|---|
| all_gather | chunk c at its owner | every chunk at every rank |
| reduce_scatter | every rank has its own term of every chunk | owner(c) has all terms of c, each once |
| all_reduce | as reduce_scatter | every rank has all terms of every chunk |
| all_to_all | chunk (i, j) at i | chunk (i, j) at j |
| permute | chunk i at i | chunk i at permutation(i) |
| broadcast, reduce, gather, scatter | as MPI defines them | with a root |
| none | every rank has chunks of its own | the same |
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.expr import EvaluationError, integer
from ringsched.schedule.schedule import CollectiveKind, Schedule
from ringsched.topology import Topology, evaluation_diagnostic

Chunk = tuple[int, ...]

OWNED: dict[CollectiveKind, int] = {  # how many groups of leading dimensions name ranks
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_reduce": 0,
    "all_to_all": 2,
    "permute": 1,
    "broadcast": 0,
    "reduce": 0,
    "gather": 1,
    "scatter": 1,
    "none": 0,
}
REDUCING: frozenset[CollectiveKind] = frozenset({"reduce_scatter", "all_reduce", "reduce"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A collective at concrete parameters. `dims`: the chunk space; `group`: how many dimensions name a rank."""

    kind: CollectiveKind
    topology: Topology
    dims: tuple[int, ...]
    group: int
    root: int = 0
    permutation: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[int, ...]:
        """The dimensions that split a shard."""
        return self.dims[OWNED[self.kind] * self.group :]

    def chunks(self) -> Iterator[Chunk]:
        return itertools.product(*(range(n) for n in self.dims))

    def owner(self, chunk: Chunk, which: int = 0) -> int:
        """The rank that the `which`-th group of leading indices names."""
        place = chunk[which * self.group : (which + 1) * self.group]
        rank = self.topology.rank(place) if self.group == len(self.topology.sides) else place[0]
        assert rank is not None
        return rank

    def initial(self, rank: int, chunk: Chunk) -> int:
        """The contributions that `rank` holds of `chunk` before the first step (0: it does not hold it)."""
        match self.kind:
            case "all_gather" | "all_to_all" | "permute" | "gather":
                return 1 << rank if self.owner(chunk) == rank else 0
            case "reduce_scatter" | "all_reduce" | "reduce" | "none":
                return 1 << rank
            case "broadcast" | "scatter":
                return 1 << rank if rank == self.root else 0
            case _:
                assert_never(self.kind)

    def promised(self, rank: int, chunk: Chunk) -> int:
        """The contributions that `rank` must hold of `chunk` after the last step (0: anything goes)."""
        everyone = (1 << self.topology.ranks) - 1
        match self.kind:
            case "all_gather":
                return 1 << self.owner(chunk)
            case "reduce_scatter":
                return everyone if self.owner(chunk) == rank else 0
            case "all_reduce":
                return everyone
            case "all_to_all":
                return 1 << self.owner(chunk) if self.owner(chunk, 1) == rank else 0
            case "permute":
                source = self.owner(chunk)
                return 1 << source if self.permutation[source] == rank else 0
            case "broadcast":
                return 1 << self.root
            case "reduce":
                return everyone if rank == self.root else 0
            case "gather":
                return 1 << self.owner(chunk) if rank == self.root else 0
            case "scatter":
                return 1 << self.root if self.owner(chunk) == rank else 0
            case "none":
                return 1 << rank
            case _:
                assert_never(self.kind)

    @property
    def _input_dims(self) -> slice:
        """Which chunk dimensions index the operand; the others are the rank's own."""
        match self.kind:
            case "all_gather" | "all_to_all" | "permute" | "gather":
                return slice(self.group, None)
            case "reduce_scatter" | "all_reduce" | "reduce" | "broadcast" | "scatter" | "none":
                return slice(0, None)
            case _:
                assert_never(self.kind)

    def _output_dims(self) -> tuple[int, ...]:
        match self.kind:
            case "all_gather" | "all_reduce" | "reduce" | "broadcast" | "gather" | "none":
                return tuple(range(len(self.dims)))
            case "reduce_scatter" | "permute" | "scatter":
                return tuple(range(self.group, len(self.dims)))
            case "all_to_all":
                return (*range(self.group), *range(2 * self.group, len(self.dims)))
            case _:
                assert_never(self.kind)

    def input_positions(self) -> tuple[int, ...]:
        """The chunk dimensions that make up the grid of the operand's units, in order."""
        return tuple(range(len(self.dims)))[self._input_dims]

    def output_positions(self) -> tuple[int, ...]:
        """The chunk dimensions that make up the grid of the result's units, in order."""
        return self._output_dims()

    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.dims[i] for i in self.input_positions())

    def output_shape(self) -> tuple[int, ...]:
        return tuple(self.dims[i] for i in self.output_positions())


def promise_of(schedule: Schedule, topology: Topology, env: dict[str, int]) -> Promise:
    """The schedule's collective under these parameters; raises RS210, RS307, RS308."""
    dims: list[int] = []
    for expr in schedule.chunks:
        try:
            size = integer(expr, env)
        except EvaluationError as error:
            raise DiagnosticError([evaluation_diagnostic(error, env)]) from None
        if size < 1 or math.prod(dims, start=size) > 1 << 24:
            reason = "has no chunks" if size < 1 else "makes over 16,777,216 chunks"
            label = Label(span=expr.span) if expr.span else None
            raise DiagnosticError(
                [
                    Diagnostic(
                        code="RS307",
                        message=f"a chunk dimension of {size} {reason}",
                        primary=label,
                        counterexample=env,
                        help="each entry of `chunks:` is the number of chunks along that dimension, 1 or more",
                    )
                ]
            )
        dims.append(size)
    kind = schedule.collective.kind
    group = _owner_group(schedule, topology, tuple(dims), env)
    root, permutation = _root(schedule, topology, env), _permutation(schedule, topology, env)
    return Promise(kind=kind, topology=topology, dims=tuple(dims), group=group, root=root, permutation=permutation)


def _owner_group(schedule: Schedule, topology: Topology, dims: tuple[int, ...], env: dict[str, int]) -> int:
    """How many leading dimensions name a rank: all coordinates, or a single flat rank."""
    groups = OWNED[schedule.collective.kind]
    if groups == 0:
        return 0
    for size in (len(topology.sides), 1):
        wanted = topology.sides if size == len(topology.sides) else (topology.ranks,)
        if dims[: groups * size] == wanted * groups:
            return size
    shape = "[" + ", ".join(["N", "N"][:groups]) + "]"
    span = schedule.chunks_span
    raise DiagnosticError(
        [
            Diagnostic(
                code="RS307",
                message=f"the chunks of {schedule.collective.kind} must be numbered by rank: "
                f"{list(dims)} does not start with {list(topology.sides * groups)}",
                primary=Label(span=span, text=f"{topology.ranks} ranks") if span else None,
                counterexample=env,
                help=f"on a ring write chunks: {shape}; further dimensions split a shard into parts",
            )
        ]
    )


def _root(schedule: Schedule, topology: Topology, env: dict[str, int]) -> int:
    expr = schedule.collective.root
    if expr is None:
        return 0
    try:
        root = integer(expr, env)
    except EvaluationError as error:
        raise DiagnosticError([evaluation_diagnostic(error, env)]) from None
    if not 0 <= root < topology.ranks:
        raise DiagnosticError(
            [
                Diagnostic(
                    code="RS308",
                    message=f"the root {root} is not one of the {topology.ranks} ranks",
                    primary=Label(span=expr.span) if expr.span else None,
                    counterexample=env,
                    help=f"choose a root in 0 … {topology.ranks - 1}",
                )
            ]
        )
    return root


def _permutation(schedule: Schedule, topology: Topology, env: dict[str, int]) -> tuple[int, ...]:
    expr = schedule.collective.permutation
    if expr is None:
        return ()
    images: dict[int, int] = {}  # in the order of the ranks
    for rank in range(topology.ranks):
        try:
            image = integer(expr, {**env, **topology.environment(rank)})
        except EvaluationError as error:
            raise DiagnosticError([evaluation_diagnostic(error, {**env, "r": rank})]) from None
        if not 0 <= image < topology.ranks or image in images:
            reason = "is hit twice" if image in images else "does not exist"
            raise DiagnosticError(
                [
                    Diagnostic(
                        code="RS308",
                        message=f"not a permutation: rank {image} {reason}",
                        primary=Label(span=expr.span) if expr.span else None,
                        counterexample={**env, "r": rank},
                        help="each rank must be the image of exactly one rank, for example (r + 1) % N",
                    )
                ]
            )
        images[image] = rank
    return tuple(images)
