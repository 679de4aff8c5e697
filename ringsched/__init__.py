"""ringsched: collective communication kernels for TPUs from schedules in YAML, proven right.

import ringsched as rs
all_gather = rs.compile("all_gather")
y = jax.shard_map(lambda x: all_gather(x, axis_name="i"), mesh=mesh, ...)(x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringsched import threads

if TYPE_CHECKING:
    from pathlib import Path

    import jax

    from ringsched.auditing.audit import AuditReport
    from ringsched.collective import Collective
    from ringsched.placement.report import MeshReport

__version__ = "0.1.0"

threads.provide()


def compile(
    schedule: str | Path,
    *,
    overlap: str | None = None,
    backend: str = "pallas",
    debug: bool = False,
    **parameters: int,
) -> Collective:
    """A schedule as a function for use inside `jax.shard_map`.

    schedule: a path, or the name of a shipped schedule such as "reduce_scatter".
    parameters: fixed ones; sizes of the topology that are left out come from the mesh at each call.
    overlap: "none" puts products and transfers one after the other, for comparison; None: as the schedule says.
    backend: "xla" makes it of `jax.lax.ppermute`, for any device, in place of a TPU kernel.
    debug: the kernel prints rank, step and chunk of each transfer.
    Raises ScheduleError (a ValueError) with the diagnostics of a schedule that is wrong, and ValueError for a back end
    that there is not, or that cannot print.
    """
    from ringsched.collective import compile_collective

    return compile_collective(schedule, parameters, debug, overlap, backend)


def make_mesh(
    devices: Sequence[Any] | None,
    topology: str,
    *,
    axis_names: str | Sequence[str] | None = None,
    strict: bool = False,
    ring: int | None = None,
) -> jax.sharding.Mesh:
    """A mesh in which neighbours of the topology are neighbours on the chips, as far as the chips allow it.

    devices: of one slice, one for each rank; None: all there are. Without coordinates, as on a CPU, their order stays.
    topology: "ring:8", "line:4", "mesh:2x4", "torus:4x4", "torus:4x4x8".
    axis_names: default ("r",), or ("x", "y", "z") as far as needed.
    strict: raise where a hop takes more than one link; else that is a PlacementWarning (RS906, RS907).
    ring: 1 or 2, for the first or second of two rings of all devices that share no link.
    Raises PlacementError (a ValueError).
    """
    from ringsched.placement.mesh import make_mesh

    return make_mesh(devices, topology, axis_names, strict, ring)


def check_mesh(mesh: jax.sharding.Mesh, topology: str, *, axis_names: str | Sequence[str] | None = None) -> MeshReport:
    """How many links lie between neighbours of a topology on a mesh, and which hops share a link.

    axis_names: the axes that the topology lies along, default all; along the others there are copies of it.
    Raises PlacementError (a ValueError) where the axes are not as long as its sides.
    """
    from ringsched.placement.mesh import check_mesh

    return check_mesh(mesh, topology, axis_names)


def audit(
    function: Callable[..., Any],
    *,
    mesh_axes: Mapping[str, int],
    args: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
    expect: Callable[..., Any] | str | None = None,
    calls: int | None = None,
    chip: str = "TPU v5p",
    cores: int = 1,
) -> AuditReport:
    """Whether the Pallas kernels of a function race, deadlock, leave semaphores over or compute something else.

    function: what `jax.shard_map` would be given. mesh_axes: names and sizes, {"i": 4}. args: global shapes, arrays,
    `jax.ShapeDtypeStruct`s or texts such as "f32[32,8,128]"; a small array of integers is taken as a constant, for
    whose values alone the verdict holds. in_specs, out_specs: as for `jax.shard_map`, or "i".
    expect: what it ought to compute, as a function of jax.lax collectives for inside shard_map, or the name of a
    collective ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"); without it, only that it computes nothing
    from memory that was never written. calls: so many in a row, on the same memory; None: as many as it takes. chip: as
    JAX names its kind. cores: of a device, 1 or 2 (v4 and v5p); with 2, a parallel grid has to be right on both and on
    one in sequence.
    The verdict holds for every interleaving. No device is needed. Raises AuditError (a ValueError) where nothing can be
    audited, as when the function cannot be traced.
    """
    from ringsched.auditing.audit import audit

    return audit(
        function,
        mesh_axes=mesh_axes,
        args=args,
        in_specs=in_specs,
        out_specs=out_specs,
        expect=expect,
        calls=calls,
        chip=chip,
        cores=cores,
    )
