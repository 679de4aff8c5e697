"""Which steps of a kernel's grid run where: all on one core in sequence, or shared out between the two of a device.

A parallel dimension says that its steps may run on different cores. The compiler cuts one such dimension in contiguous
parts, one for each core, in order (read in what libtpu 0.0.42.1 makes for v5p of grids of (2,), (4,), (4, 2) and (2, 4)
with one parallel dimension, the first or the last); of other grids nothing is said here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ringsched.auditing.places import place_of
from ringsched.auditing.tracing import Call
from ringsched.auditing.walk import Undecided

CORES = 2  # of a device that has several


def _kinds(call: Call) -> list[str]:
    """What its compiler parameters say of each dimension."""
    semantics = getattr(call.form.compiler_params, "dimension_semantics", None) or ()
    return [str(kind).lower() for kind in semantics]


def is_shared_out(call: Call) -> bool:
    """Whether steps of the grid may run on several cores."""
    return math.prod(call.form.grid) > 1 and any("parallel" in kind for kind in _kinds(call))


def steps_of(call: Call, core: int | None) -> Sequence[tuple[int, ...]]:
    """The steps that a core runs, in order; core None: all, on one core. Raises Undecided."""
    steps = list(itertools.product(*(range(side) for side in call.form.grid)))
    if core is None:
        return steps
    dimension = _cut(call)
    if dimension is None:
        return steps if core == 0 else []
    part = call.form.grid[dimension] // CORES
    return [step for step in steps if step[dimension] // part == core]


def _cut(call: Call) -> int | None:
    """The dimension that is cut in two; None where one core runs all."""
    kinds, sides, place = _kinds(call), call.form.grid, place_of(call.eqn)
    dimensions = [d for d, kind in enumerate(kinds) if "parallel" in kind and sides[d] > 1]
    if any("subcore" in kind for kind in kinds):
        raise Undecided("its grid is shared out among subcores", place, "a kernel for one core at a time")
    if not dimensions:
        return None
    if len(dimensions) > 1:
        raise Undecided(
            "which of several parallel dimensions of the grid is cut in two",
            place,
            'one parallel dimension, the others "arbitrary"',
        )
    side = sides[dimensions[0]]
    if side % CORES:
        raise Undecided(f"how two cores share out {side} steps of the grid", place, "an even number of steps")
    return dimensions[0]
