"""A schedule as a function: compiled for the number of ranks that it is called on."""

from __future__ import annotations

import linecache
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringsched.codegen.outside import function_name
from ringsched.diagnostics import DiagnosticError
from ringsched.expr import Var
from ringsched.pipeline import compile_portable, compile_schedule, open_schedule
from ringsched.placement.mesh import report_on, tell
from ringsched.placement.report import MeshReport
from ringsched.schedule.loader import set_parameters, sources
from ringsched.schedule.schedule import Chain, Schedule
from ringsched.topology import topology_of


class ScheduleError(ValueError):
    """A schedule is wrong; the message is that of the command line, with code and counterexample."""

    def __init__(self, error: DiagnosticError) -> None:
        from ringsched.diagnostics import render

        self.diagnostics = error.diagnostics
        texts = sources(error.diagnostics)
        super().__init__("\n\n".join(render(d, texts) for d in error.diagnostics))


@dataclass(slots=True, eq=False, weakref_slot=True)
class Collective:
    """What `rs.compile` returns.

    Called inside `jax.shard_map` it runs the kernel for as many ranks as the mesh axis has:

        y = all_gather(x, "i")

    Arguments are those of the generated function: `axis`, `tiled`, and of a kernel `interpret`, `collective_id`, …
    Parameters given to `compile` are fixed; sizes of the topology that were not given come from the mesh.
    """

    schedule: Schedule | Chain
    fixed: dict[str, int]
    debug: bool = False
    backend: str = "pallas"
    # of each size: the module, and what it calls the function
    _modules: dict[tuple[tuple[str, int], ...], tuple[types.ModuleType, str]] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        return self.schedule.name

    def __reduce__(self) -> tuple[Any, ...]:
        return Collective, (self.schedule, self.fixed, self.debug, self.backend)

    @property
    def operands(self) -> int:
        """How many arrays it takes: x, of a schedule that multiplies w, and of a chain w1, w2, …."""
        if isinstance(self.schedule, Chain):
            return 1 + len(self.schedule.links)
        return 1 if self.schedule.compute is None else 2

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """arguments: this rank's operands, the mesh axis or axes, and what else the generated function takes.

        Raises ValueError for uneven sizes, ScheduleError for a wrong schedule.
        """
        import jax

        count, rest = self.operands, arguments[self.operands :]
        axis_name = rest[0] if rest else options.pop("axis_name", None)
        if axis_name is None:
            raise TypeError(f"{self.schedule.name} needs axis_name, the mesh axis that the ranks lie along")
        names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
        shape = jax.sharding.get_abstract_mesh().shape
        unknown = [name for name in names if name not in shape]
        if unknown:
            raise ValueError(f"{self.schedule.name} must run in jax.shard_map over axis {unknown[0]!r}")
        sides = tuple(shape[name] for name in names)
        groups = options.get("axis_index_groups")
        if groups is not None:
            sides = (max(map(len, groups), default=0),)
        function = self._function(self._sizes(sides))
        return function(*arguments[:count], axis_name, *rest[1:], **options)

    def on(self, mesh: Any, axis_name: str | Sequence[str] | None = None, **options: Any) -> Callable[..., Any]:
        """The function that does the shard_map itself: global arrays in and out.

        Its operand holds the ranks' operands joined along axis 0; see the generated function for the result.
        """
        if axis_name is None:
            axis_name = mesh.axis_names if len(mesh.axis_names) > 1 else mesh.axis_names[0]
        names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
        sizes = self._sizes(tuple(mesh.shape[name] for name in names))
        function = self._function(sizes, "_sharded")
        tell(self.check(mesh, names))
        return lambda *operands: function(*operands, mesh=mesh, axis_name=axis_name, **options)

    def check(self, mesh: Any, axis_name: str | Sequence[str]) -> MeshReport:
        """What the schedule's topology costs on the chips of these mesh axes. Raises ScheduleError (RS210)."""
        names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
        sizes = self._sizes(tuple(mesh.shape[name] for name in names))
        try:
            schedule = set_parameters(self.schedule, {**self.fixed, **sizes})
            topology = topology_of(schedule, {p.name: p.value for p in schedule.parameters})
        except DiagnosticError as error:
            raise ScheduleError(error) from None
        return report_on(mesh, topology, names)

    def source(self, **parameters: int) -> str:
        """The text of the kernel module at these parameters."""
        try:
            schedule = set_parameters(self.schedule, {**self.fixed, **parameters})
            if self.backend == "xla":
                return compile_portable(schedule).source
            return compile_schedule(schedule, debug=self.debug).source
        except DiagnosticError as error:
            raise ScheduleError(error) from None

    def _sizes(self, found: tuple[int, ...]) -> dict[str, int]:
        """Topology parameters that were not given, from the extents of the mesh axes."""
        sides = self.schedule.topology.sides
        if len(sides) == 1 and len(found) > 1:
            total = 1
            for size in found:
                total *= size
            found = (total,)
        sizes = {}
        if len(sides) not in (0, len(found)) and not self._fits(found):
            kind, have = self.schedule.topology.kind, " × ".join(map(str, found))
            axes = f"{len(found)} mesh ax{'e' if len(found) > 1 else 'i'}s of {have}"
            raise ValueError(
                f"{self.schedule.name} is for a {kind} of {len(sides)} axes: axis_name names {axes}, and has to name "
                "one for each side"
            )
        if len(sides) == len(found):
            for side, size in zip(sides, found, strict=True):
                if isinstance(side, Var) and side.name not in self.fixed:
                    sizes[side.name] = size
        return sizes

    def _fits(self, found: tuple[int, ...]) -> bool:
        """Whether there are as many ranks as the given parameters and the defaults make."""
        schedule = set_parameters(self.schedule, self.fixed)
        topology = topology_of(schedule, {p.name: p.value for p in schedule.parameters})
        return topology.ranks == math.prod(found)

    def _function(self, sizes: dict[str, int], kind: str = "") -> Callable[..., Any]:
        """kind: what is behind its name in the module."""
        key = tuple(sorted(sizes.items()))
        if key not in self._modules:
            source = self.source(**sizes)
            name = function_name(source, self.schedule.name)
            self._modules[key] = as_module(source, self.schedule.name, key), name
        module, name = self._modules[key]
        function: Callable[..., Any] = getattr(module, f"{name}{kind}")
        return function


def as_module(source: str, name: str, key: tuple[tuple[str, int], ...] = ()) -> types.ModuleType:
    """The text of a kernel module as a module; tracebacks show its lines."""
    label = ", ".join(f"{k}={v}" for k, v in key)
    filename = f"<ringsched {name}{' ' + label if label else ''}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    module = types.ModuleType(f"ringsched_kernel_{name}")
    exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
    return module


def compile_collective(
    schedule: str | Path, fixed: dict[str, int], debug: bool, overlap: str | None = None, backend: str = "pallas"
) -> Collective:
    """See `ringsched.compile`."""
    if backend not in ("pallas", "xla"):
        raise ValueError(f'backend={backend!r}: it is "pallas" or "xla"')
    if backend == "xla" and debug:
        raise ValueError("debug=True is for the kernels of the pallas back end")
    try:
        opened = open_schedule(schedule, fixed, overlap)
        collective = Collective(opened, dict(fixed), debug, backend)
        collective.source()  # a wrong schedule is told here, not at the first call
    except DiagnosticError as error:
        raise ScheduleError(error) from None
    return collective
