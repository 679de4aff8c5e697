"""ringsched: collective communication kernels for TPUs from schedules in YAML, proven right.

import ringsched as rs
all_gather = rs.compile("all_gather")
y = jax.shard_map(lambda x: all_gather(x, axis_name="i"), mesh=mesh, ...)(x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringsched import threads

if TYPE_CHECKING:
    from ringsched.auditing.audit import AuditReport
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


def audit(
    function: Callable[..., Any],
    *,
    mesh_axes: Mapping[str, int],
    args: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
    calls: int = 2,
) -> AuditReport:
    """Whether the Pallas kernels of a function can race, deadlock or leave semaphores over, on any interleaving.

    function: what `jax.shard_map` would be given. mesh_axes: names and sizes, {"i": 4}. args: global shapes, arrays,
    `jax.ShapeDtypeStruct`s or texts such as "f32[32,8,128]". in_specs, out_specs: as for `jax.shard_map`, or "i".
    calls: so many in a row, on the same memory.
    No device is needed. What the kernels compute is not checked. Raises AuditError (a ValueError) where nothing can be
    audited, as when the function cannot be traced.
    """
    from ringsched.auditing.audit import audit

    return audit(function, mesh_axes=mesh_axes, args=args, in_specs=in_specs, out_specs=out_specs, calls=calls)
