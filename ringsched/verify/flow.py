"""One step of data flow: every transfer reads the state before the step, then all are applied.

The state is a list of contribution masks, one for each cell; a cell is a chunk at a rank. Both modes, full and
symmetric, run this same code and differ only in what their cells are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

from ringsched.diagnostics import Diagnostic
from ringsched.schedule.flat import FlatSchedule
from ringsched.verify.resolve import Move


class Carried(NamedTuple):
    """A move in terms of cells: `sources[i]` goes to `targets[i]`, its mask passed through `turn`."""

    move: Move
    sources: Sequence[int]
    targets: Sequence[int]
    turn: Callable[[int], int] | None = None


class Problem(NamedTuple):
    """What a step cannot do: `chunk` is its number; the masks are those that meet at the receiver, as carried."""

    kind: Literal["absent", "no base", "twice", "collision"]
    carried: Carried
    chunk: int
    target: int
    before: int = 0
    mask: int = 0


class Mode(Protocol):
    """How a flat schedule is followed: rank by rank, or rank 0 for all."""

    flat: FlatSchedule

    @property
    def ranks(self) -> Sequence[int]:
        """Those whose state is followed."""
        ...

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Of statements that make no move, so far."""
        ...

    def initial(self) -> list[int]: ...

    def step(self, number: int) -> list[Carried]:
        """The moves of a step."""
        ...

    def cell(self, rank: int, chunk: int) -> int:
        """Of a rank that is followed."""
        ...

    def absolute(self, carried: Carried, mask: int) -> int:
        """A mask at the receiver of a move, as ranks counted from 0."""
        ...

    def history(self, chunk: int) -> Iterator[list[Move]]:
        """For each step the moves of this chunk between all ranks, each with this chunk alone."""
        ...


def advance(state: list[int], moves: Iterable[Carried], chunks: int) -> list[Problem]:
    """Applies a step to `state`, or leaves it alone and returns the first problem of each kind and statement."""
    writes: dict[int, int] = {}
    copied: set[int] = set()
    problems: dict[tuple[str, int], Problem] = {}

    def refuse(problem: Problem) -> None:
        problems.setdefault((problem.kind, id(problem.carried.move.transfer.statement)), problem)

    for carried in moves:
        turn = carried.turn
        copies = carried.move.transfer.statement.op == "copy"
        for source, target in zip(carried.sources, carried.targets, strict=True):
            mask = state[source]
            if not mask:
                refuse(Problem("absent", carried, source % chunks, target))
                continue
            if turn is not None:
                mask = turn(mask)
            if copies:
                if target in writes:
                    refuse(Problem("collision", carried, source % chunks, target))
                    continue
                writes[target] = mask
                copied.add(target)
            elif target in copied:
                refuse(Problem("collision", carried, source % chunks, target))
            else:
                before = writes.get(target) or state[target]
                # Adding to a chunk that is not held would add to whatever its memory holds.
                if not before:
                    refuse(Problem("no base", carried, source % chunks, target))
                elif before & mask:
                    refuse(Problem("twice", carried, source % chunks, target, before, mask))
                else:
                    writes[target] = before | mask
    if not problems:
        for target, mask in writes.items():
            state[target] = mask
    return list(problems.values())
