"""What the kernels compute, compared with what is expected: RS801, RS802, RS435, RS506, and RS703 where it is open.

    devices, expect  →  findings

Nothing races where this is asked, so one run tells for all; one for each kind of operands (`operands.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ringsched.auditing import faults
from ringsched.auditing.arithmetic import Endless
from ringsched.auditing.compute import NOBODY, Run, compute
from ringsched.auditing.data import KernelResult
from ringsched.auditing.expectation import Expect, expected, moves_and_adds
from ringsched.auditing.layout import Stay
from ringsched.auditing.numbers import Untold, taint_of
from ringsched.auditing.operands import KINDS, LARGE, NOT_FINITE, PLAIN, VARIED, Kind, arguments_of
from ringsched.auditing.places import place_of
from ringsched.auditing.rounding import RUNS, Rounding, close, same
from ringsched.auditing.tracing import AuditError, Device
from ringsched.diagnostics import Diagnostic, Span

Values = Literal["not checked", "right", "wrong", "undecided"]
MOST_ELEMENTS = 1 << 26  # of all shards, where nobody asked for values
CLOSE = 1e-9  # of terms that a message names
Arguments = Sequence[Sequence[np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """`reason`: why values are not checked, or not known."""

    values: Values
    findings: tuple[Diagnostic, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """Everything that a run needs but arguments."""

    stays: Sequence[Sequence[Stay]]
    devices: Sequence[Device]
    mesh_axes: Mapping[str, int]
    expect: Expect | None

    @property
    def ranks(self) -> int:
        return len(self.devices)

    @property
    def elements(self) -> int:
        return self.ranks * sum(int(math.prod(shard.shape)) for shard in self.devices[0].arguments)

    def arguments(self, kind: Kind) -> Arguments:
        return arguments_of(self.devices[0].arguments, [device.constants for device in self.devices], kind)

    def run(self, arguments: Arguments, rounding: Rounding | None = None) -> Run:
        places = [dict(zip(self.mesh_axes, place, strict=True)) for place in np.ndindex(*self.mesh_axes.values())]
        return compute(self.stays, self.devices, arguments, places, self.mesh_axes, rounding)

    def expected(self, arguments: Arguments, run: Run, rounding: Rounding | None = None) -> list[list[np.ndarray]]:
        assert self.expect is not None
        shapes = [[each.values.shape for each in results] for results in run.results]
        return expected(self.expect, self.mesh_axes, self.devices[0].arguments, arguments, shapes, rounding)


def check_values(
    stays: Sequence[Sequence[Stay]], devices: Sequence[Device], mesh_axes: Mapping[str, int], expect: Expect | None
) -> Checked:
    """stays: what `extract` made of the devices; free of races, deadlock and leftovers. Raises AuditError."""
    question = _Question(stays=stays, devices=devices, mesh_axes=mesh_axes, expect=expect)
    if expect is None and question.elements > MOST_ELEMENTS:
        return Checked(values="not checked", reason=f"the operands have more than {MOST_ELEMENTS} elements")
    try:
        for kind in KINDS:
            found = _checked(question, kind)
            if found is not None:
                return Checked(values="wrong", findings=(found,))
    except Untold as error:
        return _open(error, expect)
    if expect is None:
        return Checked(values="not checked", reason="nothing says what is expected")
    return Checked(values="right")


def _open(error: Untold, expect: Expect | None) -> Checked:
    if expect is None and not error.may_hang:
        return Checked(values="not checked", reason=f"memory that nothing has written is not tracked, {error.reason}")
    return Checked(values="undecided", findings=(faults.values_open(error.reason),), reason=error.reason)


def _checked(question: _Question, kind: Kind) -> Diagnostic | None:
    """What is wrong with operands of a kind. What can be told of plain ones only is told of them. Raises Untold."""
    if kind in (LARGE, NOT_FINITE) and question.expect is None:
        return None
    if kind is NOT_FINITE and not moves_and_adds(question.expect, question.mesh_axes, question.devices[0].arguments):
        return None
    arguments = question.arguments(kind)
    try:
        run = question.run(arguments)
        found = _meaningless(question, run)
        if found is None and question.expect is not None:
            found = _compared(question, arguments, run, kind)
        return found
    except Endless as error:
        if kind not in (PLAIN, VARIED):
            return None
        return faults.endless(place_of(error.eqn) or _call_place(question), {"ranks": question.ranks})
    except Untold:
        if kind is PLAIN:
            raise
        return None


# -- memory that nothing has written


def _meaningless(question: _Question, run: Run) -> Diagnostic | None:
    """A result that depends on such memory. Parts of a result that are only written on some devices may do."""
    touched = {
        (rank, number): found.taint
        for rank, results in enumerate(run.results)
        for number, found in enumerate(results)
        if found.taint is not None and found.taint.any()
    }
    if not touched:
        return None
    (rank, number), taint = next(iter(touched.items()))
    computed = any(
        bool(np.any((taint_of(written.numbers) > 0) & (written.writers != NOBODY))) for written in run.kernels.values()
    )
    everywhere = len({r for r, k in touched if k == number}) == question.ranks
    if not computed and not everywhere and question.expect is None:
        return None
    where = tuple(int(i) for i in np.argwhere(taint)[0])
    at = {"ranks": question.ranks, "rank": rank}
    if not computed:
        missing = int((taint > 0).sum())
        return faults.partly_written(
            _title(question, number), where, missing, taint.size, rank, _call_place(question), at
        )
    culprit = run.buffers[int(taint[where])]
    return faults.meaningless(_title(question, number), where, rank, culprit, run.unwritten.get(culprit), at)


# -- what is expected


def _compared(question: _Question, arguments: Arguments, run: Run, kind: Kind) -> Diagnostic | None:
    wanted = question.expected(arguments, run)
    if len(wanted[0]) != len(run.results[0]):
        raise AuditError(f"expect returns {len(wanted[0])} results, the function {len(run.results[0])}")
    for rank in range(question.ranks):
        for got, want in zip(run.results[rank], wanted[rank], strict=True):
            if got.values.shape != want.shape:
                raise AuditError(f"expect returns {want.shape} on a device, the function {got.values.shape}")
            if not same(got.values, want).all():
                return _but_for_rounding(question, arguments, run, wanted, kind)
    return None


def _but_for_rounding(
    question: _Question, arguments: Arguments, run: Run, wanted: list[list[np.ndarray]], kind: Kind
) -> Diagnostic | None:
    """Of results that are not equal, one that is further off than rounding can make it."""
    runs = [question.run(arguments, Rounding(2 * seed)).results for seed in range(RUNS)]
    others = [question.expected(arguments, run, Rounding(2 * seed + 1)) for seed in range(RUNS)]
    for rank in range(question.ranks):
        for number, (got, want) in enumerate(zip(run.results[rank], wanted[rank], strict=True)):
            lefts, rights = [each[rank][number].values for each in runs], [each[rank][number] for each in others]
            mask = ~close(got.values, want, lefts, rights)
            if (
                kind is LARGE and got.values.dtype.kind == "f"
            ):  # what is too large for one way to compute it is no fault
                mask &= np.isfinite(got.values) & np.isfinite(want)
            if mask.any():
                return _wrong(question, arguments, run, rank, number, mask, want, kind)
    return None


def _wrong(
    question: _Question,
    arguments: Arguments,
    run: Run,
    rank: int,
    number: int,
    mask: np.ndarray,
    want: np.ndarray,
    kind: Kind,
) -> Diagnostic:
    where = tuple(int(i) for i in np.argwhere(mask)[0])
    got = run.results[rank][number].values
    notes = (
        f"{int(mask.sum())} of {mask.size} elements differ on rank {rank}",
        *(_terms(question, arguments, run, rank, number, where) if kind is PLAIN else (f"operands: {kind.told}",)),
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
    arguments: Arguments,
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
        part = question.run(alone)
        got = part.results[rank][number].values[where].item()
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
    additive = abs(total - run.results[rank][number].values[where].item()) <= CLOSE * max(1.0, abs(total))
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
