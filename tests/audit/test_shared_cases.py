"""Small kernels of others' kinds that lie beside the checkout, each with the verdict that it must get."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ringsched
from ringsched.auditing.tracing import AuditError

FOLDER = Path(__file__).parents[2].with_name("shared") / "cases"
RIGHT, WRONG, UNDECIDED = "right", "wrong", "undecided"

# module → function → the verdicts that are true of it
EXPECTED: dict[str, dict[str, tuple[str, ...]]] = {
    "implicit_barrier_shift": {"shift": (RIGHT,)},
    "double_barrier_scoped": {"both": (RIGHT,), "scratch": (RIGHT,)},
    "kernel_beside_core_map": {"both": (WRONG, UNDECIDED)},
    "run_state": {"shifted": (RIGHT, UNDECIDED)},
    "monotonic_wait": {"grows": (RIGHT,)},
    "one_rank_leaves_early": {"by_rank": (WRONG,), "by_data": (UNDECIDED,)},
    "semaphore_read": {
        "skips": (WRONG, UNDECIDED),
        "loops_zero": (WRONG, UNDECIDED),
        "fori": (WRONG, UNDECIDED),
        "amount": (WRONG, UNDECIDED),
        "reports": (UNDECIDED,),
        "polls_then_uses": (WRONG,),  # nothing signals what it polls
    },
    "features": {
        **dict.fromkeys(
            ("priority", "bitcast", "reshaped", "dynamic_size", "select", "while_loop", "switch", "smem_counter"),
            (RIGHT,),
        ),
        **dict.fromkeys(("kernel_api", "core_map", "pipeline", "constant_table", "looked_up_table"), (RIGHT,)),
        "smem_send": (RIGHT, UNDECIDED),
        # The compiler gives operand and result windows of their own in VMEM, and does not load that of the result.
        "aliased": (WRONG,),
    },
    "bad_kernel_inside": {
        **dict.fromkeys(
            (
                "jit",
                "remat",
                "custom_vjp",
                "custom_jvp",
                "backward",
                "scan",
                "fori",
                "while_",
                "cond_true",
                "map_",
                "named_call",
                "closed_call",
                "run_state",
                "linear",
                "custom_root",
                "jac",
                "debug",
                "optimization_barrier",
            ),
            (WRONG, UNDECIDED),
        ),
        "scan_zero": (RIGHT,),
        "cond_false": (RIGHT,),
        "fori_rank": (WRONG,),
        "while_data": (UNDECIDED,),
    },
}
WITHOUT_EXPECT = ("bad_kernel_inside", "kernel_beside_core_map", "run_state", "one_rank_leaves_early")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the cases are not beside this checkout")


@pytest.fixture(autouse=True)
def on_path() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def cases(name: str) -> ModuleType:
    return importlib.import_module(name)


def verdict(function: Any, **options: Any) -> tuple[str, str]:
    asked = {"mesh_axes": {"i": 4}, "args": ["f32[32,128]"], "in_specs": "i", "out_specs": "i", **options}
    try:
        report = ringsched.audit(function, **asked)
    except AuditError as error:
        return UNDECIDED, str(error)
    return report.verdict, str(report)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in EXPECTED.items() for name in names], ids=str
)
def test_verdict(module: str, name: str) -> None:
    options: dict[str, Any] = {}
    if module == "monotonic_wait":
        options = {"mesh_axes": {"i": 2}, "args": ["f32[16,128]"]}
    elif module not in WITHOUT_EXPECT and name != "reports":
        options["expect"] = cases("features").want
    found, report = verdict(getattr(cases(module), name), **options)
    assert found in EXPECTED[module][name], report


def _labelled() -> list[str]:
    if not FOLDER.is_dir():
        return []
    text = (FOLDER / "kernels.py").read_text(encoding="utf-8")
    names = [line.split()[1].split("(")[0] for line in text.splitlines() if line.startswith("def ") and "(x)" in line]
    return [name for name in names if not name.startswith("_")]


@pytest.mark.parametrize("name", _labelled())
def test_labelled(name: str) -> None:
    module = cases("kernels")
    label, why = module.VERDICT[name]
    config = {key: value for key, value in module.CONFIG[name].items() if key in ("args", "expect")}
    found, report = verdict(getattr(module, name), **config)
    assert label == "open" or found == label, f"{why}\n{report}"


@pytest.mark.parametrize("name", ["corners"])
def test_corners(name: str) -> None:
    module = cases(name)
    found = {}
    for each, label in module.EXPECT.items():
        expect = module.want if label == RIGHT and each != "self_send" else None
        found[each] = verdict(getattr(module, each), **({} if expect is None else {"expect": expect}))[0]
    assert found == module.EXPECT


def test_across_kernels() -> None:
    found, report = verdict(
        cases("semaphore_across_kernels").local, mesh_axes={"i": 1}, args=["f32[8,128]"], in_specs="i", out_specs="i"
    )
    assert found == UNDECIDED and "from kernel to kernel" in report


def test_a_table_among_the_operands_is_a_constant() -> None:
    module = cases("listed_transfers")
    specs = {"in_specs": ("-", "i"), "out_specs": "i"}
    found, _ = verdict(module.operand, args=[module.MEET, "f32[32,128]"], **specs)
    assert found == WRONG
    found, report = verdict(module.operand, args=["i32[4,2]", "f32[32,128]"], **specs)
    assert found == UNDECIDED and "constant" in report


@pytest.mark.parametrize("name", ["unused", "four_bytes"])
def test_faults_of_a_compiler_are_not_the_kernels(name: str) -> None:
    args = ["f32[2,256]"]
    found, report = verdict(
        getattr(cases("unused_operand"), name), mesh_axes={"i": 1}, args=args, in_specs="-", out_specs="-"
    )
    assert found == RIGHT, report


def test_a_table_that_meets_nowhere() -> None:
    module = cases("listed_transfers")
    table = np.concatenate([module.APART, [[3, 0]]]).astype(np.int32)
    found, report = verdict(module.operand, args=[table, "f32[32,128]"], in_specs=("-", "i"), out_specs="i")
    assert found in (RIGHT, UNDECIDED), report
