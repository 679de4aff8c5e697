"""The coordinates that tests of placement use are those that libtpu gives."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slices import KINDS, SLICES, positions_of

from ringsched.target.aot import TARGETS, child_environment

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

READ = """
import json, sys
from jax.experimental import topologies
devices = topologies.get_topology_desc(platform="tpu", topology_name=sys.argv[1]).devices
print(json.dumps([devices[0].device_kind, [[*d.coords, getattr(d, "core_on_chip", 0)] for d in devices]]))
"""


SMALL = ("v4:2x2x1", "v5e:4x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1")
REST = [pytest.param(t, marks=pytest.mark.slow) for t in SLICES if t in TARGETS and t not in SMALL]


@pytest.mark.parametrize("target", [*SMALL, *REST])
def test_coordinates(target: str, tmp_path: Path) -> None:
    environment = {**os.environ, **child_environment(target, tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", READ, target], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    kind, positions = json.loads(done.stdout.splitlines()[-1])
    assert kind == KINDS[target.split(":")[0]]
    assert [tuple(position) for position in positions] == positions_of(target)
