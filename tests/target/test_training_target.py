"""A whole step of training on data × model, tests/kernels/training.py, compiled for a TPU in jax's default settings."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ringsched.processes import read_log, run_module
from ringsched.target.aot import child_environment

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

FOLDER = Path(__file__).parent
SIZES = {"batch": 4, "length": 512, "features": 512, "hidden": 1024, "vocabulary": 512, "dtype": "bfloat16"}
SECONDS = 600.0
# Along "model", with the gradients': that of a gathering product is a scattering one, and the other way round.
KERNELS = {"all_gather", "reduce_scatter", "all_reduce", "all_gather_matmul", "matmul_reduce_scatter"}


def compiled(directory: Path, target: str, by: str, **sizes: Any) -> dict[str, Any]:
    """What was found in the compiled step, from a process of its own: libtpu is noisy, and may end it.

    by: "ringsched" or "lax". Fails where nothing is found, with the end of what the process said.
    """
    (directory / "request.json").write_text(json.dumps({"target": target, "by": by, "sizes": SIZES | sizes}))
    environment = child_environment(target, directory) | {"LIBTPU_INIT_ARGS": ""}  # no dumps
    paths = (FOLDER.parents[1], FOLDER.parent / "kernels", FOLDER, *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    environment["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths if str(path))
    code = run_module("test_training_target", directory, environment, SECONDS)
    assert code is not None, f"no end within {SECONDS:g} s\n{read_log(directory)[-4000:]}"
    assert code == 0, read_log(directory)[-4000:]
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return found


def main(directory: Path) -> None:
    """request.json in the directory → result.json there."""
    import time

    import jax
    import numpy as np
    import training
    from jax.experimental import topologies

    request = json.loads((directory / "request.json").read_text())
    config = training.Config(**request["sizes"])
    on = training.by_ringsched(interpret=False) if request["by"] == "ringsched" else training.by_lax()
    devices = topologies.get_topology_desc(platform="tpu", topology_name=request["target"]).devices
    mesh = jax.sharding.Mesh(np.array(devices).reshape(2, 4), training.AXES)
    start = time.perf_counter()
    text = training.step_on(config, on, mesh).lower(*training.abstract(config, mesh)).compile().as_text()
    (directory / "step.hlo").write_text(text)
    found = {"seconds": time.perf_counter() - start, "kernels": kernels(text), "collectives": collectives(text)}
    (directory / "result.json").write_text(json.dumps(found))


def kernels(text: str) -> dict[str, int]:
    """How many calls of each kernel an optimised module has, by the names of the schedules."""
    lines = [line for line in text.splitlines() if 'custom_call_target="tpu_custom_call"' in line]
    return dict(Counter(re.sub(r"[.\d]+$", "", line.split("=")[0].split()[-1].lstrip("%")) for line in lines))


def collectives(text: str) -> dict[str, int]:
    """How many of XLA's own collectives there are, by name; what starts one is counted, what awaits it is not."""
    return dict(Counter(re.findall(r"\s(all-gather|reduce-scatter|all-reduce|all-to-all)(?:-start)?\(", text)))


@pytest.mark.parametrize("target", [pytest.param("v5p:2x2x2", marks=pytest.mark.slow), "v6e:2x4"])
def test_a_whole_step(tmp_path: Path, target: str) -> None:
    found = compiled(tmp_path, target, "ringsched")
    assert set(found["kernels"]) == KERNELS
    # jax sums gradients along "data"; for those of weights, two plain products gather x by jax.lax (docs/kernels.md).
    assert set(found["collectives"]) == {"all-reduce", "all-gather"} and found["collectives"]["all-gather"] == 2


@pytest.mark.slow
def test_by_lax(tmp_path: Path) -> None:
    found = compiled(tmp_path, "v6e:2x4", "lax")
    assert found["kernels"] == {} and found["collectives"]["reduce-scatter"] > 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
