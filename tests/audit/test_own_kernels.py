"""The audit that `compile` has made of its kernels: what it refuses, and what it leaves open."""

import pytest

from ringsched.auditing.generated import Auditor, Request
from ringsched.commands.audited import smaller_kernel
from ringsched.diagnostics import InternalError
from ringsched.pipeline import compile_schedule, open_schedule


def request(source: str, kind: str = "all_gather") -> Request:
    return Request(
        source=source,
        function="all_gather",
        kind=kind,
        root=0,
        permutation=(),
        sides=(3,),
        shapes=((8, 128),),
        dtype="float32",
        compute=None,
        gradient=True,
    )


SOURCE = compile_schedule(open_schedule("all_gather", {"N": 3})).source


def test_right() -> None:
    with Auditor() as auditor:
        assert not auditor.audit([request(SOURCE)]).undecided


def test_a_kernel_with_a_wait_less() -> None:
    wait = next(line for line in SOURCE.split("\n") if line.strip().startswith("pl.semaphore_wait(pltpu.get_barrier"))
    tampered = SOURCE.replace(wait, wait[: len(wait) - len(wait.lstrip())] + "pass", 1)
    with Auditor() as auditor, pytest.raises(InternalError, match="the generated kernel is wrong"):
        auditor.audit([request(tampered)])


def test_a_kernel_that_computes_something_else() -> None:
    with Auditor() as auditor, pytest.raises(InternalError, match="RS801"):
        auditor.audit([request(SOURCE.replace("def all_gather(", "def _other(") + WRONG)])


WRONG = """

def all_gather(x, *, axis_name):
    return -_other(x, axis_name=axis_name)
"""


def test_a_smaller_kernel() -> None:
    ring = smaller_kernel(compile_schedule(open_schedule("reduce_scatter", {"N": 16})))
    assert ring is not None and ring.proven.flat.topology.sides == (4,)
