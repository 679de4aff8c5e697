"""Which memory the buffers are, what is in it at the start, and what is promised at the end.

With inplace="1" buffers are the same memory: o ≡ i for allreduce (and for what else takes and gives as many chunks),
i[c] ≡ o[rank · k + c] for allgather, o[c] ≡ i[rank · k + c] for reduce_scatter, and likewise at the root of gather and
scatter. A loop of the algorithm has `nchunksperloop` chunks in all, of which a rank's share is k.

RS820 sizes that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from ringsched.diagnostics import Diagnostic, DiagnosticError, Label
from ringsched.importers.algorithm import ROOTED, Algorithm, Buffer, Slot

MAX_CELLS = 1 << 20
MAX_UNDECLARED = 1 << 16  # chunks of a buffer of which the file does not say how large it is


class Cell(NamedTuple):
    """A chunk of memory of one rank, by the buffer that stands for it."""

    buffer: Buffer
    place: int


class Atom(NamedTuple):
    """A chunk of a rank's input."""

    rank: int
    piece: int


class Owed(NamedTuple):
    """What is promised: chunk `offset` of the output of `rank` is the sum of these atoms."""

    rank: int
    offset: int
    atoms: frozenset[Atom]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`total`: chunks of a loop; `share`: k. `root`: of collectives that have one."""

    algorithm: Algorithm
    total: int
    share: int
    root: int

    def limit(self, rank: int, buffer: Buffer) -> int:
        """How many chunks there are in a buffer."""
        declared = self.algorithm.gpus[rank].sizes.get(buffer)
        if buffer == "s" or self.algorithm.kind is None:
            return MAX_UNDECLARED if declared is None else declared
        size = self.inputs(rank) if buffer == "i" else self.outputs(rank)
        # In place, a buffer that is the same as another one need not be declared.
        if declared is None or (self.algorithm.in_place and declared == 0):
            return size
        return min(declared, size)

    def cell(self, rank: int, slot: Slot, ahead: int) -> Cell | None:
        """The memory of the chunk `ahead` of `slot`; None where it is outside of the buffer."""
        index = slot.offset + ahead
        if slot.offset < 0 or index >= self.limit(rank, slot.buffer):
            return None
        return self.place(rank, slot.buffer, index)

    def place(self, rank: int, buffer: Buffer, index: int) -> Cell:
        if self.algorithm.in_place and buffer != "s":
            kind = self.algorithm.kind
            if kind == "all_gather" or (kind == "gather" and rank == self.root):
                return Cell("o", rank * self.share + index) if buffer == "i" else Cell("o", index)
            if kind == "reduce_scatter" or (kind == "scatter" and rank == self.root):
                return Cell("i", rank * self.share + index) if buffer == "o" else Cell("i", index)
            if kind not in ("gather", "scatter"):
                return Cell("i", index)
        return Cell(buffer, index)

    def inputs(self, rank: int) -> int:
        """Chunks of a rank's input."""
        match self.algorithm.kind:
            case "all_gather" | "gather":
                return self.share
            case "scatter":
                return self.total if rank == self.root else 0
            case None:
                return self.algorithm.gpus[rank].sizes.get("i", 0)
            case _:
                return self.total

    def outputs(self, rank: int) -> int:
        match self.algorithm.kind:
            case "reduce_scatter" | "scatter":
                return self.share
            case "gather":
                return self.total if rank == self.root else 0
            case None:
                return self.algorithm.gpus[rank].sizes.get("o", 0)
            case _:
                return self.total

    def promised(self) -> Iterator[Owed]:
        """Everything that the collective promises; nothing where it is not known."""
        kind, ranks, share = self.algorithm.kind, range(self.algorithm.ranks), self.share
        if kind is None:
            return
        sums: dict[int, frozenset[Atom]] = {}

        def all_of(piece: int) -> frozenset[Atom]:
            if piece not in sums:
                sums[piece] = frozenset(Atom(q, piece) for q in ranks)
            return sums[piece]

        for rank in ranks:
            for offset in range(self.outputs(rank)):
                other, rest = divmod(offset, share)
                match kind:
                    case "all_gather" | "gather":
                        atoms = frozenset([Atom(other, rest)])
                    case "all_reduce":
                        atoms = all_of(offset)
                    case "reduce":
                        atoms = all_of(offset) if rank == self.root else frozenset()
                    case "reduce_scatter":
                        atoms = all_of(rank * share + offset)
                    case "all_to_all":
                        atoms = frozenset([Atom(other, rank * share + rest)])
                    case "broadcast":
                        atoms = frozenset([Atom(self.root, offset)])
                    case "scatter":
                        atoms = frozenset([Atom(self.root, rank * share + offset)])
                    case "permute" | "none":
                        atoms = frozenset()  # no file can say these
                    case _:
                        assert_never(kind)
                if atoms:
                    yield Owed(rank, offset, atoms)

    def chunk(self, atom: Atom) -> tuple[int, ...]:
        """The logical chunk that a piece of input belongs to: its indices in the chunk space of a schedule."""
        match self.algorithm.kind:
            case "all_gather" | "gather":
                return (atom.rank, atom.piece)
            case "reduce_scatter" | "scatter":
                return divmod(atom.piece, self.share)
            case "all_to_all":
                return (atom.rank, *divmod(atom.piece, self.share))
            case _:
                return (atom.piece,)


def layouts(algorithm: Algorithm) -> tuple[Layout, ...]:
    """One, or one for each root where the file does not say which it is. Raises RS820; RS701 for too many chunks."""
    total, share = _sizes(algorithm)
    if algorithm.ranks * total > MAX_CELLS:
        raise DiagnosticError([too_large(algorithm, f"{total:,} chunks at {algorithm.ranks} ranks")])
    roots: Sequence[int] = range(algorithm.ranks if algorithm.kind in ROOTED else 1)
    roots = roots if algorithm.root is None else [algorithm.root]
    if not 0 <= roots[0] < algorithm.ranks:
        raise DiagnosticError([_misfit(algorithm, f"the root {roots[0]} is not one of the {algorithm.ranks} ranks")])
    return tuple(Layout(algorithm=algorithm, total=total, share=share, root=root) for root in roots)


def _sizes(algorithm: Algorithm) -> tuple[int, int]:
    """The chunks of a loop, and a rank's share of them where shares matter."""
    ranks = algorithm.ranks
    inputs = max((gpu.sizes.get("i", 0) for gpu in algorithm.gpus), default=0)
    outputs = max((gpu.sizes.get("o", 0) for gpu in algorithm.gpus), default=0)
    total = algorithm.chunks
    match algorithm.kind:
        case None:
            return max(inputs, outputs), 1
        case "gather":
            total = ranks * _share(total, inputs, outputs, ranks)
        case "scatter":
            total = ranks * _share(total, outputs, inputs, ranks)
        case "all_gather":
            total = total if total is not None else (outputs or inputs * ranks)
        case "reduce_scatter":
            total = total if total is not None else (inputs or outputs * ranks)
        case _:
            total = total if total is not None else max(inputs, outputs)
    shared = algorithm.kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    if total < 1 or (shared and total % ranks):
        reason = f"{total} chunks cannot be shared out to {ranks} ranks" if total > 0 else "there are no chunks"
        raise DiagnosticError([_misfit(algorithm, reason)])
    return total, total // ranks if shared else total


def _share(total: int | None, small: int, large: int, ranks: int) -> int:
    """A rank's chunks in gather and scatter: `nchunksperloop` counts them, or those of the root; writers do not agree.

    small, large: the chunks of the buffers, which decide between the two.
    """
    if total is None:
        return small or large // ranks
    return total if total == small or total % ranks else total // ranks


def too_large(algorithm: Algorithm, reason: str) -> Diagnostic:
    """RS701."""
    return Diagnostic(
        code="RS701",
        message=f"the algorithm is too large to be judged: {reason}",
        primary=Label(span=algorithm.chunks_span),
        help="try it with fewer ranks or instances",
    )


def _misfit(algorithm: Algorithm, reason: str) -> Diagnostic:
    return Diagnostic(
        code="RS820",
        message=f"sizes that do not fit: {reason}",
        primary=Label(span=algorithm.chunks_span, text="the chunks of the whole collective"),
        help="nchunksperloop is a multiple of ngpus for allgather, reduce_scatter and alltoall",
    )
