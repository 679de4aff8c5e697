"""Values that depend on data: not the numbers, but how they come about.

The walker of a kernel knows scalars only. What it does not know it leaves as a node of this kind, so that the numbers
can be computed afterwards, in one run of all devices (`compute.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringsched.auditing.scalars import Unknown


class Data(Unknown):
    """A value that the walker did not look at."""


@dataclass(frozen=True, slots=True, eq=False)
class Argument(Data):
    """The shard of an argument of the function."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Data):
    """An array that is too large to be looked at."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Reading(Data):
    """What the core reads in a region of memory, at one moment."""

    region: Any  # memory.Region


@dataclass(frozen=True, slots=True, eq=False)
class Computation:
    """A pure operation and its operands: ints, small arrays and Data."""

    eqn: Any
    operands: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Data):
    """One result of an operation."""

    computation: Computation
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Added(Data):
    """The sum of two values."""

    left: Any
    right: Any


@dataclass(frozen=True, slots=True, eq=False)
class Stacked(Data):
    """Values of the rounds of a loop, along a new first dimension."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Part(Data):
    """`whole[index]`."""

    whole: Any
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class KernelResult(Data):
    """A result of a device's `call`-th kernel."""

    call: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Exchanged(Data):
    """A result of a collective outside kernels, the `occurrence`-th time that this device comes upon it."""

    eqn: Any
    operands: tuple[Any, ...]
    number: int
    occurrence: int

    @property
    def key(self) -> tuple[int, int]:
        """The same on all devices."""
        return id(self.eqn), self.occurrence


@dataclass(frozen=True, slots=True, eq=False)
class Box(Data):
    """A block of an array: from `starts`, of `shape`, where the array ends before it does, meaningless."""

    array: Any
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lost(Data):
    """A value that cannot be followed."""

    reason: str


def outcomes(eqn: Any, values: list[Any]) -> list[Any]:
    """The results of an operation that is not evaluated here."""
    computation = Computation(eqn, tuple(values))
    return [Outcome(computation, number) for number in range(len(eqn.outvars))]
