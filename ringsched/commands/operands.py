"""The operands of a compiled kernel: as given, the rest to suit it."""

from __future__ import annotations

from collections.abc import Sequence

from ringsched.operand import Operand, chain_operands, operands_for
from ringsched.pipeline import AnyCompiled, Portable
from ringsched.schedule.schedule import Chain


def fitting(
    compiled: AnyCompiled | Portable, given: Sequence[Operand], *, dtype: str, smallest: bool
) -> tuple[Operand, ...]:
    """x, and the weights of what multiplies. Raises RS607, RS112."""
    about = compiled if isinstance(compiled, Portable) else compiled.proven
    if isinstance(about.schedule, Chain):
        return chain_operands(about.schedule, about.topology.ranks, given, dtype=dtype, smallest=smallest)
    promise, compute = about.flat.promise, about.schedule.compute
    return operands_for(promise, compute, given, dtype=dtype, smallest=smallest)
