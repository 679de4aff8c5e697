"""ringsched: collective communication kernels for TPUs from schedules in YAML, proven right.

import ringsched as rs
all_gather = rs.compile("all_gather")
y = jax.shard_map(lambda x: all_gather(x, axis_name="i"), mesh=mesh, ...)(x)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ringsched import threads

if TYPE_CHECKING:
    from ringsched.collective import Collective

__version__ = "0.1.0"

threads.provide()


def compile(schedule: str | Path, *, debug: bool = False, **parameters: int) -> Collective:
    """A schedule as a function for use inside `jax.shard_map`.

    schedule: a path, or the name of a shipped schedule such as "reduce_scatter".
    parameters: fixed ones; sizes of the topology that are left out come from the mesh at each call.
    debug: the kernel prints rank, step and chunk of each transfer.
    Raises ScheduleError (a ValueError) with the diagnostics of a schedule that is wrong.
    """
    from ringsched.collective import compile_collective

    return compile_collective(schedule, parameters, debug)
