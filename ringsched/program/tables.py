"""The tables of constants that a Program looks up."""

from __future__ import annotations

from ringsched.expr import Expr, lookups
from ringsched.program.program import Program
from ringsched.program.rewrite import rewrite

Table = tuple[int, ...]


def tables_of(program: Program) -> dict[Table, str]:
    """Each table once, in the order of appearance, with a name of its own: that which the schedule gave it, if free."""
    found: dict[Table, str] = {}

    def look(expr: Expr) -> Expr:
        for lookup in lookups(expr):
            if lookup.table not in found:
                taken, name, number = set(found.values()), lookup.name, 1
                while name in taken:
                    name, number = f"{lookup.name}_{number}", number + 1
                found[lookup.table] = name
        return expr

    for instruction in program.body:
        rewrite(instruction, look)
    return found
