"""The operands of a compiled kernel: as given, the rest to suit it."""

from __future__ import annotations

from collections.abc import Sequence

from ringsched.operand import Operand, chain_operands, operands_for
from ringsched.pipeline import AnyCompiled, CompiledChain


def fitting(compiled: AnyCompiled, given: Sequence[Operand], *, dtype: str, smallest: bool) -> tuple[Operand, ...]:
    """x, and the weights of what multiplies. Raises RS607, RS112."""
    if isinstance(compiled, CompiledChain):
        chain, ranks = compiled.proven.schedule, compiled.proven.topology.ranks
        return chain_operands(chain, ranks, given, dtype=dtype, smallest=smallest)
    promise, compute = compiled.proven.flat.promise, compiled.proven.schedule.compute
    return operands_for(promise, compute, given, dtype=dtype, smallest=smallest)
