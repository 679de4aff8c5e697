"""What the audit reads out of a kernel is what was written into it: the hazard check says the same of both.

The executions are random and many of them almost right, those of tests/property.
"""

import importlib.util
import random
from collections import Counter
from pathlib import Path

import pytest
from execution_kernel import UNIT, function_of, writable

from ringsched.auditing.extract import extract
from ringsched.auditing.layout import lay_out
from ringsched.auditing.tracing import find_calls
from ringsched.program.trace import Execution
from ringsched.verify.hazards import all_races, check_hazards

_SPEC = importlib.util.spec_from_file_location(
    "random_programs", Path(__file__).parents[1] / "property" / "random_programs.py"
)
PROGRAMS = 60


def random_execution(seed: int) -> tuple[Execution, int]:
    module = importlib.util.module_from_spec(_SPEC)
    __import__("sys").modules.setdefault("random_programs", module)
    _SPEC.loader.exec_module(module)
    return module.random_execution(random.Random(seed))


def read_back(execution: Execution) -> Execution:
    mesh = {"i": len(execution.traces)}
    extracted = extract(find_calls(function_of(execution), mesh, ["f32[24,128]"], "i", "i"), mesh)
    assert extracted.complete, extracted.findings
    return lay_out(extracted.devices, tuple(mesh.values()))[0]


def summary(execution: Execution, calls: int, scale: int) -> tuple[object, ...]:
    """Who races with whom in whose memory, where ranks are stuck, what is left over; `scale`: of a DMA's units."""
    report = check_hazards(execution, calls)
    races = {(owner, first[0], second[0]) for owner, first, second in all_races(execution, calls)}
    stuck = () if report.deadlock is None else tuple((wait.rank, wait.call) for wait in report.deadlock.stuck)

    def units(semaphore: tuple[str, int], amount: int) -> int:
        return amount // scale if semaphore[0] in ("recv", "send") else amount

    leftovers = {
        (left.rank, left.semaphore, units(left.semaphore, left.added), units(left.semaphore, left.taken))
        for left in report.leftovers
    }
    return races, stuck, leftovers


@pytest.mark.parametrize("batch", range(4))
def test_random_kernels(batch: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(batch * PROGRAMS, (batch + 1) * PROGRAMS):
        execution, calls = random_execution(seed)
        execution = writable(execution)
        wanted = summary(execution, calls, 1)
        assert summary(read_back(execution), calls, UNIT) == wanted, f"seed {seed}"
        races, stuck, leftovers = wanted
        seen["right"] += not (races or stuck or leftovers)
        seen["race"] += bool(races)
        seen["deadlock"] += bool(stuck)
    assert min(seen.values()) >= 1, seen
