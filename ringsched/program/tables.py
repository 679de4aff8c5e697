"""The tables of constants that a Program looks up.

Where ranks do different things, a table has a row for each step and a column for each rank. A rank that looks up its
own column only gets just that one: as many entries as there are steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ringsched.expr import Expr, binary, lookups
from ringsched.program.program import RANK, Program
from ringsched.program.rewrite import rewrite
from ringsched.program.simplify import quotient

Table = tuple[int, ...]


class Tables(NamedTuple):
    """Names of tables: of those that a rank has its column of, and of those that it has whole."""

    by_rank: dict[Table, str]
    whole: dict[Table, str]


def tables_of(program: Program) -> Tables:
    """Each table once, in the order of appearance, with a name of its own: that which the schedule gave it, if free."""
    found: dict[Table, str] = {}
    whole: set[Table] = set()
    ranks = math.prod(program.sides)

    def look(expr: Expr) -> Expr:
        for lookup in lookups(expr):
            if lookup.table not in found:
                taken, name, number = set(found.values()), lookup.name, 1
                while name in taken:
                    name, number = f"{lookup.name}_{number}", number + 1
                found[lookup.table] = name
            if len(lookup.table) % ranks or row_of(lookup.index, ranks) is None:
                whole.add(lookup.table)
        return expr

    for instruction in program.body:
        rewrite(instruction, look)
    return Tables(
        by_rank={table: name for table, name in found.items() if table not in whole},
        whole={table: name for table, name in found.items() if table in whole},
    )


def row_of(index: Expr, ranks: int) -> Expr | None:
    """The row of an entry in the column of this rank; None where the index is not one of these."""
    return quotient(binary("-", index, RANK), ranks)
