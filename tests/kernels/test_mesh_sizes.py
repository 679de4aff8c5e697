"""Meshes of virtual devices, and schedules that are for others."""

from __future__ import annotations

from typing import Any

import pytest

ALL_GATHER = """\
schedule: both_axes
collective: all_gather
topology: {torus: [X, Y]}
params: {X: 4, Y: 4}
chunks: [X, Y]
steps:
  - {for: s in 0 .. X - 2, do: [{send: "chunk[(x - s) % X, y]", to: [x + 1, y]}]}
  - {for: s in 0 .. Y - 2, do: [{send: "chunk[:, (y - s) % Y]", to: [x, y + 1]}]}
"""


def test_virtual_devices_keep_their_order(devices: Any) -> None:
    import jax

    import ringsched as rs

    mesh = rs.make_mesh(jax.devices()[:8], "torus:2x4")
    assert (mesh.axis_names, mesh.devices.shape) == (("x", "y"), (2, 4))
    assert [device.id for device in mesh.devices.flat] == [device.id for device in jax.devices()[:8]]
    report = rs.check_mesh(mesh, "torus:2x4")
    assert (report.known, report.longest, report.diagnostics) == (False, 0, ())
    assert str(report) == "torus:2x4: the devices have no coordinates"


def test_a_schedule_for_other_sides(devices: Any, tmp_path: Any) -> None:
    """4 × 4 on 2 × 8: the module says so; a schedule whose sides are open is compiled for the mesh that there is."""
    import jax
    import numpy as np
    from twins import Interpreted

    import ringsched as rs

    file = tmp_path / "both_axes.yaml"
    file.write_text(ALL_GATHER)
    mesh = rs.make_mesh(jax.devices()[:16], "torus:2x8")
    x = np.zeros((16, 8, 128), np.float32)
    fixed = Interpreted(file, X=4, Y=4)
    with pytest.raises(ValueError) as told:
        fixed.on(mesh)(x)
    assert str(told.value) == "both_axes was compiled for 4 × 4 ranks, but mesh axis ('x', 'y') has 2 × 8"
    with pytest.raises(ValueError) as told:
        rs.compile(file).on(rs.make_mesh(jax.devices()[:8], "ring:8"))
    assert str(told.value) == (
        "both_axes is for a torus of 2 axes: axis_name names 1 mesh axis of 8, and has to name one for each side"
    )
