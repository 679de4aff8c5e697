"""Which kernels `compile` and `verify --audit` have audited: the kernel itself where it is small, else a smaller one.

A schedule with sides of its own, such as one that names its ranks, has no smaller one: its kernel is audited as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from ringsched.auditing.generated import SECONDS, Auditor, Request
from ringsched.commands.operands import fitting
from ringsched.commands.settings import parameters_text
from ringsched.diagnostics import DiagnosticError
from ringsched.expr import Var
from ringsched.pipeline import AnyCompiled, Compiled, ProvenChain, compile_schedule
from ringsched.schedule.loader import set_parameters
from ringsched.schedule.schedule import Chain, Schedule

MOST_RANKS = 8  # of a kernel that is audited at its own size whatever else there is
MOST_ALONE = 16  # of one that is audited at its own size, since there is no smaller one
PATIENCE = 20.0  # seconds that a compilation waits for the audit of such a one
SMALL = {1: ((4,), (3,), (2,)), 2: ((2, 3), (2, 2)), 3: ((2, 2, 2),)}  # sides to try instead


def auditor(wanted: bool) -> AbstractContextManager[Auditor | None]:
    """The process that audits, or nothing."""
    return Auditor() if wanted else nullcontext(None)


def smaller_kernel(compiled: AnyCompiled) -> AnyCompiled | None:
    """That of the same schedule for fewer ranks; None where there is none that is right."""
    schedule = compiled.proven.schedule
    names = [side.name if isinstance(side, Var) else None for side in schedule.topology.sides]
    for sides in SMALL.get(len(names), ()):
        values = {str(name): side for name, side in zip(names, sides, strict=True)}
        if None in names or tuple(values[str(name)] for name in names) != sides:
            continue
        found = _at(schedule, values)
        if found is not None:
            return found
    return None


def _at(schedule: Schedule | Chain, sides: dict[str, int]) -> AnyCompiled | None:
    try:
        return compile_schedule(set_parameters(schedule, sides))
    except DiagnosticError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`sizes`: the parameters of each kernel that was audited; `undecided`: why it is open, else empty."""

    sizes: tuple[dict[str, int], ...]
    seconds: float
    undecided: str

    def to_json(self) -> dict[str, object]:
        verdict = "undecided" if self.undecided else "right"
        return {"verdict": verdict, "params": list(self.sizes), "seconds": round(self.seconds, 3)}

    def words(self) -> str:
        """For the sentence about the schedule."""
        if self.undecided:
            return "kernel not audited"
        if len(self.sizes) > 1:
            return f"{len(self.sizes)} kernels audited, up to {parameters_text(self.sizes[-1])}"
        return f"kernel audited{f' at {parameters_text(self.sizes[0])}' if self.sizes[0] else ''}"


def audit_small(process: Auditor, kernels: Sequence[AnyCompiled], patience: float = SECONDS) -> Outcome:
    """Audits the small ones, or else a smaller one of the same schedule, or else the first.

    patience: seconds for that last case. Raises InternalError where one is wrong.
    """
    small = [kernel for kernel in kernels if kernel.proven.topology.ranks <= MOST_RANKS]
    deadline = SECONDS
    if not small:
        other = smaller_kernel(kernels[0])
        small = [] if other is None else [other]
    ranks = kernels[0].proven.topology.ranks
    if not small and ranks <= MOST_ALONE:
        small, deadline = [kernels[0]], patience
    if not small:
        return Outcome(sizes=(), seconds=0.0, undecided=f"it has {ranks} ranks, and no smaller size that is right")
    found = process.audit([request_for(kernel) for kernel in small], deadline)
    sizes = tuple({p.name: p.value for p in kernel.proven.schedule.parameters} for kernel in small)
    return Outcome(sizes=sizes, seconds=found.seconds, undecided=found.undecided)


def request_for(compiled: AnyCompiled) -> Request:
    """What its auditor has to know; the operands are as small as they can be."""
    proven = compiled.proven
    promise = proven.links[-1].flat.promise if isinstance(proven, ProvenChain) else proven.flat.promise
    compute = None if isinstance(proven, ProvenChain) else proven.schedule.compute
    operands = fitting(compiled, (), dtype="float32", smallest=True)
    return Request(
        source=compiled.source,
        function=compiled.function,
        kind=promise.kind,
        root=promise.root,
        permutation=tuple(promise.permutation),
        sides=tuple(promise.topology.sides),
        shapes=tuple(operand.shape for operand in operands),
        dtype=operands[0].dtype,
        compute=None if compute is None else (compute.moment, compute.shard),
        layers=proven.layers if isinstance(proven, ProvenChain) else None,
        gradient=isinstance(compiled, Compiled) and compiled.backward is not None,
    )
