"""The barrier that the compiler adds: where `adds_barrier` says so, the kernel has more bundles than without it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import barrier_kernels
import jax
import pytest

from ringsched.auditing.barrier import adds_barrier
from ringsched.auditing.form import KERNELS, form_of
from ringsched.auditing.places import sub_jaxprs
from ringsched.processes import run_module
from ringsched.target.aot import child_environment, read_dumps
from ringsched.target.report import read_bundles

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

LEAST = 20  # bundles of a barrier; its code was never shorter than 40


def bundles(target: str, directory: Path) -> dict[str, int]:
    """Name of each kernel → how many bundles the compiler makes of it."""
    (directory / "kernel.py").write_text(Path(barrier_kernels.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    request = {
        "function": "every",
        "sides": [4],
        "topology": {"kind": "ring", "links": [], "twist": []},
        "operands": [{"shape": [8, 128], "dtype": "float32"}],
        "target": target,
        "options": {},
        "check_vma": False,
        "seconds": 300,
    }
    (directory / "request.json").write_text(json.dumps(request), encoding="utf-8")
    assert run_module("ringsched.target.child", directory, child_environment(target, directory), 300) == 0
    result = json.loads((directory / "result.json").read_text())
    assert "compile_seconds" in result, result
    return {dump.name: len(read_bundles(dump.bundles)) for dump in read_dumps(directory / "dump")}


def forms(jaxpr: Any) -> dict[str, bool]:
    """Name of each kernel → whether it gets a barrier, as the audit has it."""
    found = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in KERNELS:
            form = form_of(eqn)
            found[form.name] = adds_barrier(form)
        else:
            for inner in sub_jaxprs(eqn):
                found |= forms(inner)
    return found


@pytest.mark.parametrize(
    "target",
    [
        "v5p:2x2x1",
        *(pytest.param(target, marks=pytest.mark.slow) for target in ("v5e:2x2", "v6e:2x2", "tpu7x:2x2x1")),
    ],
)
def test_the_compiler_adds_it_where_the_audit_does(target: str, tmp_path: Path) -> None:
    mesh = jax.sharding.AbstractMesh((4,), ("i",))
    split = jax.sharding.PartitionSpec("i")
    mapped = jax.shard_map(
        lambda x: barrier_kernels.every(x, axis_name="i", interpret=False),
        mesh=mesh,
        in_specs=split,
        out_specs=split,
        check_vma=False,
    )
    said = forms(jax.make_jaxpr(mapped)(jax.ShapeDtypeStruct((32, 128), "float32")).jaxpr)
    made = bundles(target, tmp_path)
    assert set(made) == set(said)
    seen = {name: made[name] - made[f"{name}_skip"] > LEAST for name in said if not name.endswith("_skip")}
    assert seen == {name: added for name, added in said.items() if not name.endswith("_skip")}
    assert set(seen.values()) == {True, False}
    assert not any(added for name, added in said.items() if name.endswith("_skip"))
