"""What the kernels compute, compared with what is expected: RS801, RS802, RS435, and RS703 where it is open.

    devices, expect  →  findings

Nothing races where this is asked, so one run tells for all. It is made twice, with different junk in memory that
nothing has written, not-a-numbers and random numbers: what depends on such memory differs.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ringsched.auditing import faults
from ringsched.auditing.arithmetic import Untold
from ringsched.auditing.compute import NOBODY, Run, compute
from ringsched.auditing.data import KernelResult
from ringsched.auditing.expectation import Expect, arguments_of, expected
from ringsched.auditing.layout import Stay
from ringsched.auditing.places import place_of
from ringsched.auditing.tracing import AuditError, Device
from ringsched.diagnostics import Diagnostic, Span

Values = Literal["not checked", "right", "wrong", "undecided"]
MOST_ELEMENTS = 1 << 22  # of all shards, where nobody asked for values
CLOSE = 1e-9  # of the largest value; only functions such as exp are not exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    values: Values
    findings: tuple[Diagnostic, ...] = ()


class Junk:
    """Meaningless values. `changed`: buffers that have others than with the same seed elsewhere."""

    def __init__(self, seed: int | None, changed: frozenset[str] = frozenset()) -> None:
        """seed None: not-a-number, where the dtype has one."""
        self.seed = seed
        self.changed = changed
        self._random: dict[str, np.random.Generator] = {}

    def __call__(self, shape: tuple[int, ...], dtype: Any, name: str) -> np.ndarray:
        if self.seed is None and dtype.kind == "f":
            return np.full(shape, np.nan)
        if name not in self._random:
            salt = 1000 if name in self.changed else 0
            self._random[name] = np.random.default_rng([self.seed or 0, salt, zlib.crc32(name.encode())])
        random = self._random[name]
        if dtype.kind == "b":
            return random.integers(0, 2, shape).astype(bool)
        if dtype.kind == "f":
            return np.asarray(random.integers(1, 1 << 20, shape) * random.choice([-1.0, 1.0], shape) + 0.25)
        info = np.iinfo(dtype)
        return np.asarray(random.integers(max(info.min, -(1 << 20)), min(info.max, 1 << 20), shape)).astype(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Everything that a run needs but arguments and junk."""

    stays: Sequence[Sequence[Stay]]
    devices: Sequence[Device]
    mesh_axes: Mapping[str, int]
    expect: Expect | None

    @property
    def ranks(self) -> int:
        return len(self.devices)

    def run(self, arguments: Sequence[Sequence[np.ndarray]], junk: Junk) -> Run:
        places = [dict(zip(self.mesh_axes, place, strict=True)) for place in np.ndindex(*self.mesh_axes.values())]
        return compute(self.stays, self.devices, arguments, places, self.mesh_axes, junk)

    def expected(self, arguments: Sequence[Sequence[np.ndarray]], run: Run) -> list[list[np.ndarray]]:
        assert self.expect is not None
        shapes = [[each.shape for each in results] for results in run.results]
        return expected(self.expect, self.mesh_axes, self.devices[0].arguments, arguments, shapes)


def check_values(
    stays: Sequence[Sequence[Stay]], devices: Sequence[Device], mesh_axes: Mapping[str, int], expect: Expect | None
) -> Checked:
    """stays: what `extract` made of the devices; free of races, deadlock and leftovers. Raises AuditError."""
    question = _Question(stays=stays, devices=devices, mesh_axes=mesh_axes, expect=expect)
    elements = question.ranks * sum(math.prod(shard.shape) for shard in devices[0].arguments)
    if expect is None and elements > MOST_ELEMENTS:
        return Checked(values="not checked")
    try:
        arguments = arguments_of(devices[0].arguments, question.ranks)
        runs = question.run(arguments, Junk(None)), question.run(arguments, Junk(1))
        found = _meaningless(question, arguments, *runs)
        if found is not None:
            return Checked(values="wrong", findings=(found,))
        if expect is None:
            return Checked(values="not checked")
        return _compared(question, arguments, runs[1])
    except Untold as error:
        if expect is None:
            return Checked(values="not checked")
        return Checked(values="undecided", findings=(faults.values_open(error.reason),))


# -- memory that nothing has written


def _meaningless(
    question: _Question, arguments: Sequence[Sequence[np.ndarray]], first: Run, second: Run
) -> Diagnostic | None:
    """A result that depends on such memory. Parts of a result that are only written on some devices may do."""
    differing = {
        (rank, number): _differs(left, right)
        for rank in range(question.ranks)
        for number, (left, right) in enumerate(zip(first.results[rank], second.results[rank], strict=True))
    }
    touched = {place: mask for place, mask in differing.items() if mask.any()}
    if not touched:
        return None
    (rank, number), mask = next(iter(touched.items()))
    computed = _computed(first, second)
    everywhere = len({r for r, k in touched if k == number}) == question.ranks
    if not computed and not everywhere and question.expect is None:
        return None
    where = tuple(int(i) for i in np.argwhere(mask)[0])
    at = {"ranks": question.ranks, "rank": rank}
    if not computed:
        missing, total = int(mask.sum()), mask.size
        return faults.partly_written(_title(question, number), where, missing, total, rank, _call_place(question), at)
    culprit = _culprit(question, arguments, second, rank, number)
    return faults.meaningless(_title(question, number), where, rank, culprit, second.unwritten.get(culprit or ""), at)


def _computed(first: Run, second: Run) -> bool:
    """Whether something that depends on unwritten memory was written into a result, instead of nothing."""
    return any(
        bool(np.any(_differs(first.kernels[key].values, written.values) & (written.writers != NOBODY)))
        for key, written in second.kernels.items()
    )


def _culprit(
    question: _Question, arguments: Sequence[Sequence[np.ndarray]], run: Run, rank: int, number: int
) -> str | None:
    """The buffer whose junk the result depends on."""
    for name in run.unwritten:
        other = question.run(arguments, Junk(1, frozenset({name})))
        if _differs(other.results[rank][number], run.results[rank][number]).any():
            return name
    return None


def _differs(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    found: np.ndarray = ~(left == right)
    if left.dtype.kind == "f":
        found &= ~_close(left, right)
    return found


def _close(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        scale = np.nanmax(np.abs(right), initial=1.0, where=np.isfinite(right))
        found: np.ndarray = (np.abs(left - right) <= CLOSE * scale) | (left == right)
    return found


# -- what is expected


def _compared(question: _Question, arguments: Sequence[Sequence[np.ndarray]], run: Run) -> Checked:
    wanted = question.expected(arguments, run)
    if len(wanted[0]) != len(run.results[0]):
        raise AuditError(f"expect returns {len(wanted[0])} results, the function {len(run.results[0])}")
    for rank in range(question.ranks):
        for number, (got, want) in enumerate(zip(run.results[rank], wanted[rank], strict=True)):
            if got.shape != want.shape:
                raise AuditError(f"expect returns {want.shape} on a device, the function {got.shape}")
            mask = _differs(got, want)
            if mask.any():
                finding = _wrong(question, arguments, run, rank, number, mask, want)
                return Checked(values="wrong", findings=(finding,))
    return Checked(values="right")


def _wrong(
    question: _Question,
    arguments: Sequence[Sequence[np.ndarray]],
    run: Run,
    rank: int,
    number: int,
    mask: np.ndarray,
    want: np.ndarray,
) -> Diagnostic:
    where = tuple(int(i) for i in np.argwhere(mask)[0])
    got = run.results[rank][number]
    notes = (
        f"{int(mask.sum())} of {mask.size} elements differ on rank {rank}",
        *_terms(question, arguments, run, rank, number, where),
    )
    return faults.wrong_value(
        _title(question, number),
        where,
        rank,
        (got[where].item(), want[where].item()),
        notes,
        _writer(question, run, rank, number, where),
        {"ranks": question.ranks, "rank": rank},
    )


def _terms(
    question: _Question,
    arguments: Sequence[Sequence[np.ndarray]],
    run: Run,
    rank: int,
    number: int,
    where: tuple[int, ...],
) -> tuple[str, ...]:
    """Which rank's operands are missing, or in it too often: each alone, where the function is a sum of them."""
    told = []
    total = 0.0
    for source in range(question.ranks):
        alone = [
            [each if other == source else np.zeros_like(each) for each in shards]
            for other, shards in enumerate(arguments)
        ]
        part = question.run(alone, Junk(1))
        got = part.results[rank][number][where].item()
        want = question.expected(alone, part)[rank][number][where].item()
        total += got
        if abs(got - want) <= CLOSE * max(1.0, abs(want)):
            continue
        if got == 0:
            told.append(f"the term of rank {source} is missing")
        elif want == 0:
            told.append(f"a term of rank {source} is in it that does not belong there")
        elif got % want == 0 and got != want:
            told.append(f"the term of rank {source} is in it {int(got // want)} times")
        else:
            told.append(f"the term of rank {source} is another one")
    additive = abs(total - run.results[rank][number][where].item()) <= CLOSE * max(1.0, abs(total))
    return tuple(told) if additive else ()


def _writer(question: _Question, run: Run, rank: int, number: int, where: tuple[int, ...]) -> Span | None:
    """Where the element was written last, if the result is one of a kernel as it stands."""
    result = question.devices[rank].results[number]
    if isinstance(result, KernelResult):
        written = run.kernels[rank, result.call, result.number]
        writer = int(written.writers[where])
        if writer != NOBODY and run.writers[writer] is not None:
            return run.writers[writer]
    return _call_place(question)


def _call_place(question: _Question) -> Span | None:
    return place_of(question.devices[0].calls[-1].eqn)


def _title(question: _Question, number: int) -> str:
    """What the kernel calls the result, where it is one of a kernel as it stands."""
    results = question.devices[0].results
    result = results[number]
    if isinstance(result, KernelResult):
        return question.stays[0][result.call].results[result.number].name
    return "the result" if len(results) == 1 else f"result {number}"
