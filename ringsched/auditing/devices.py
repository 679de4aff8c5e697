"""Device ids, in any of their forms, as ranks: devices counted row by row over the mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jax._src.pallas.primitives import DeviceIdType

from ringsched.auditing import faults
from ringsched.auditing.form import Form
from ringsched.auditing.recorded import Fault
from ringsched.auditing.scalars import Unknown
from ringsched.auditing.walk import MAKE_CONSTANT, Undecided
from ringsched.diagnostics import Span


class Here(Protocol):
    """The device that names another one. `at`: the counterexample of a finding on it."""

    coordinates: dict[str, int]
    sizes: dict[str, int]
    form: Form  # of the kernel
    flat_ids: list[Span | None]  # where LOGICAL ids are used on a mesh of several axes

    @property
    def at(self) -> Mapping[str, int]: ...


def rank_of(device: Any, kind: Any, here: Here, span: Span | None) -> int:
    """The rank that a device id names: LOGICAL counts all devices, MESH has a number for each axis, or for some.

    Raises Fault (RS523), Undecided.
    """
    sizes = here.sizes
    if kind is DeviceIdType.LOGICAL:
        return _logical(device, here, span)
    if isinstance(device, dict):
        place = dict(here.coordinates)  # along axes that are not named, this device's own
        for axes, value in device.items():
            if here.form.cores.get(axes) == _number(value, span):
                continue  # the one core of the device
            _set_axes(place, axes if isinstance(axes, tuple) else (axes,), _number(value, span), here, span)
    else:
        parts = _leaves(device)
        if len(parts) != len(sizes):
            raise Undecided(
                f"a device id of {len(parts)} numbers on a mesh of {len(sizes)} axes",
                span,
                "one number for each axis of the mesh, or a dict of those that differ",
            )
        place = dict(zip(sizes, (_number(part, span) for part in parts), strict=True))
    rank = 0
    for axis, side in sizes.items():
        if not 0 <= place[axis] < side:
            raise Fault(faults.no_such_device(f"{axis} = {place[axis]} of {side}", span, here.at))
        rank = rank * side + place[axis]
    return rank


def _logical(device: Any, here: Here, span: Span | None) -> int:
    if sum(size > 1 for size in here.sizes.values()) > 1:
        here.flat_ids.append(span)
    parts = _leaves(device)
    if len(parts) != 1:
        raise Undecided(f"a LOGICAL device id of {len(parts)} numbers", span, "a LOGICAL device id is one number")
    number, total = _number(parts[0], span), math.prod(here.sizes.values())
    if not 0 <= number < total:
        raise Fault(faults.no_such_device(f"{number} of {total}", span, here.at))
    return number


def _set_axes(place: dict[str, int], axes: tuple[str, ...], number: int, here: Here, span: Span | None) -> None:
    """Several axes are taken as one, counted row by row."""
    if any(axis not in place for axis in axes):
        raise Undecided(
            f"a device id over {', '.join(map(str, axes))}, which is no axis of the mesh",
            span,
            "name axes of the mesh, and the core of this kernel at most",
        )
    total = math.prod(here.sizes[axis] for axis in axes)
    if not 0 <= number < total:
        raise Fault(faults.no_such_device(f"{' × '.join(axes)} = {number} of {total}", span, here.at))
    for axis in reversed(axes):
        place[axis] = number % here.sizes[axis]
        number //= here.sizes[axis]


def _number(value: Any, span: Span | None) -> int:
    if isinstance(value, Unknown) or np.size(value) != 1:
        raise Undecided("a device id depends on data that the audit does not know", span, MAKE_CONSTANT)
    return int(np.asarray(value).reshape(()))


def _leaves(device: Any) -> Sequence[Any]:
    if isinstance(device, tuple | list):
        return [leaf for part in device for leaf in _leaves(part)]
    if not isinstance(device, Unknown) and np.ndim(device) == 1:
        return list(np.asarray(device))
    return [device]
