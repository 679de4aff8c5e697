"""The kernels that ringsched writes pass their audit; with any one synchronisation removed, they do not."""

import ast
import re

import pytest
from shipped import RINGS, settings

import ringsched as rs
from ringsched.auditing.audit import AuditReport
from ringsched.auditing.expectation import Collective
from ringsched.collective import as_module
from ringsched.pipeline import open_schedule
from ringsched.schedule.flat import flatten

SIZES = (2, 3, 4, 8)
TALL = 65536  # too large for VMEM: the kernel streams tiles from HBM


def audit(source: str, name: str, ranks: int, shape: str) -> AuditReport:
    function = getattr(as_module(source, name), name)
    return rs.audit(
        lambda x: function(x, axis_name="i"), mesh_axes={"i": ranks}, args=[shape], in_specs="i", out_specs="i"
    )


@pytest.mark.parametrize("name", [name for name in RINGS if "matmul" not in name and "mlp" not in name])
def test_shipped_kernels_are_right(name: str) -> None:
    for ranks in SIZES:
        parameters = settings(name, ranks)
        if parameters is None or (name == "exchange" and ranks % 2):
            continue
        collective = rs.compile(name, **parameters)
        promise = flatten(open_schedule(name, parameters)).promise
        report = rs.audit(
            lambda x, collective=collective: collective(x, axis_name="i"),
            mesh_axes={"i": ranks},
            args=[f"f32[{ranks * ranks * 8},128]"],
            in_specs="i",
            out_specs="i",
            expect=Collective(kind=promise.kind, root=promise.root, permutation=promise.permutation),
        )
        assert (report.verdict, report.values) == ("right", "right"), str(report)
        assert not report.diagnostics


def test_in_hbm() -> None:
    source = rs.compile("reduce_scatter").source(N=2)
    report = audit(source, "reduce_scatter", 2, f"f32[{TALL // 2},1024]")
    assert report.verdict == "right", str(report)


def test_rolled() -> None:
    """Ten ranks: a loop over the steps. An index that is off by one, or a wait less, is found."""
    source = rs.compile("all_gather").source(N=10)
    assert "pl.loop" in source.split("# How kernels move")[0]
    assert audit(source, "all_gather", 10, "f32[80,128]").verdict == "right"
    for tampered in tampered_sources(source, "all_gather"):
        report = audit(tampered, "all_gather", 10, "f32[80,128]")
        assert report.verdict == "wrong", str(report)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all"])
def test_tampered_kernels_are_wrong(name: str) -> None:
    """Each statement of synchronisation in the kernel is needed, so without it the audit must object."""
    source = rs.compile(name).source(N=3)
    tampered = list(tampered_sources(source, name))
    assert len(tampered) >= 8
    for text in tampered:
        report = audit(text, name, 3, "f32[72,128]")
        assert report.verdict == "wrong", str(report)
        assert all(d.primary is not None for d in report.diagnostics if d.code != "RS521")


def tampered_sources(source: str, name: str) -> list[str]:
    """The module with one statement of its forward kernel taken out, for each that waits, signals or sends."""
    lines = source.splitlines(keepends=True)
    kernel = next(f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef) and f.name.startswith("_kernel"))
    found = []
    for node in ast.walk(kernel):
        if isinstance(node, ast.Expr) and re.match(r"(_wait|_signal|_send|pl\.semaphore_wait)\(", ast.unparse(node)):
            found.append(
                "".join([*lines[: node.lineno - 1], " " * node.col_offset, "pass\n", *lines[node.end_lineno :]])
            )
    return found
