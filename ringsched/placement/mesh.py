"""`rs.make_mesh` and `rs.check_mesh`: devices of JAX laid out for a topology, and what a layout costs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringsched.diagnostics import Diagnostic, DiagnosticError
from ringsched.placement.chips import Chips, Position, chips_of
from ringsched.placement.layout import device_order, disjoint_order
from ringsched.placement.report import MeshReport, report_of
from ringsched.topology import Topology, named_topology

if TYPE_CHECKING:
    import jax


class PlacementWarning(UserWarning):
    """Neighbours of a topology are not neighbours on the chips, or share links (RS906, RS907)."""


class PlacementError(ValueError):
    """A mesh that cannot be made, or is not as it was asked for."""


def make_mesh(
    devices: Sequence[Any] | None,
    topology: str,
    axis_names: str | Sequence[str] | None,
    strict: bool,
    ring: int | None,
) -> jax.sharding.Mesh:
    """See `ringsched.make_mesh`."""
    import jax
    import numpy as np

    wanted = _named(topology)
    given = list(jax.devices() if devices is None else devices)
    if len(given) != wanted.ranks:
        raise PlacementError(f"{topology} has {wanted.ranks} ranks, but there are {len(given)} devices")
    names = _axis_names(wanted, topology, axis_names)
    chips = chips_of_devices(given)
    order = tuple(range(len(given)))
    if ring is not None:
        order = _second(chips, wanted, topology, ring)
    elif chips is not None:
        order = device_order(chips, wanted)
    tell(report_of(chips, wanted, [order], names), strict=strict)
    return jax.sharding.Mesh(np.array([given[index] for index in order], object).reshape(wanted.sides), names)


def check_mesh(mesh: jax.sharding.Mesh, topology: str, axis_names: str | Sequence[str] | None) -> MeshReport:
    """See `ringsched.check_mesh`."""
    wanted = _named(topology)
    names = tuple(mesh.axis_names) if axis_names is None else _tuple(axis_names)
    unknown = [name for name in names if name not in mesh.axis_names]
    if unknown:
        raise PlacementError(
            f"the mesh has no axis {unknown[0]!r}; its axes are {', '.join(map(repr, mesh.axis_names))}"
        )
    sizes = tuple(mesh.shape[name] for name in names)
    if sizes != wanted.sides and (len(wanted.sides) > 1 or math.prod(sizes) != wanted.ranks):
        have = " × ".join(map(str, sizes))
        axes = " and ".join(map(repr, names))
        raise PlacementError(f"{topology} does not fit mesh ax{'e' if len(names) > 1 else 'i'}s {axes} of {have}")
    return report_on(mesh, wanted, names)


def report_on(mesh: jax.sharding.Mesh, topology: Topology, names: Sequence[str]) -> MeshReport:
    """The report of a topology on axes of a mesh; along the others are copies of it."""
    import numpy as np

    places = [mesh.axis_names.index(name) for name in names]
    others = [axis for axis in range(len(mesh.axis_names)) if axis not in places]
    devices = list(mesh.devices.reshape(-1))
    index = np.arange(len(devices)).reshape(mesh.devices.shape)
    orders = index.transpose(*others, *places).reshape(-1, topology.ranks).tolist()
    axes = tuple(map(str, names)) if len(names) == len(topology.sides) else (", ".join(map(str, names)),)
    return report_of(chips_of_devices(devices), topology, orders, axes)


def tell(report: MeshReport, *, strict: bool = False) -> None:
    """Warns of each finding; strict: raises PlacementError where neighbours are not neighbours."""
    found = report.diagnostics
    if strict and report.longest > 1:
        raise PlacementError("\n".join(_text(finding) for finding in found))
    for finding in found:
        warnings.warn(_text(finding), PlacementWarning, stacklevel=4)


def chips_of_devices(devices: Sequence[Any]) -> Chips | None:
    """The devices by their coordinates; None where they have none, as on a CPU or GPU."""
    positions: list[Position] = []
    for device in devices:
        coords = getattr(device, "coords", None)
        if coords is None:
            return None
        positions.append((*coords, getattr(device, "core_on_chip", None) or 0))
    return chips_of(positions, devices[0].device_kind)


def _second(chips: Chips | None, wanted: Topology, topology: str, ring: int) -> tuple[int, ...]:
    if wanted.kind != "ring" or ring not in (1, 2):
        raise PlacementError(f"ring={ring!r} is for the first or second (1 or 2) of two rings, not for {topology}")
    if chips is None:
        raise PlacementError("two rings that share no link need devices with coordinates")
    try:
        return disjoint_order(chips, ring)
    except ValueError as error:
        raise PlacementError(str(error)) from None


def _text(finding: Diagnostic) -> str:
    return f"{finding.code}: {finding.message}; {'; '.join(finding.notes)}"


def _named(topology: str) -> Topology:
    try:
        return named_topology(topology)
    except DiagnosticError as error:
        (finding,) = error.diagnostics
        raise PlacementError(f"{finding.code}: {finding.message}: {finding.help}") from None


def _axis_names(wanted: Topology, topology: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    names = wanted.coordinates if given is None else _tuple(given)
    if len(names) != len(wanted.sides):
        raise PlacementError(f"{topology} has {len(wanted.sides)} axes, but axis_names has {len(names)}: {names}")
    return names


def _tuple(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
