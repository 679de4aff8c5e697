"""Every kernel of the corpus gets its verdict, for its reason, at its line."""

import linecache

import pytest
from corpus import CASES, Case

import ringsched as rs
from ringsched.auditing.audit import AuditReport


def audit(case: Case) -> AuditReport:
    return rs.audit(
        case.function, mesh_axes=case.mesh, args=case.args, in_specs=case.in_specs, out_specs=case.out_specs
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case: Case) -> None:
    report = audit(case)
    assert report.verdict == case.verdict, str(report)
    found = {diagnostic.code for diagnostic in report.diagnostics}
    assert case.codes <= found, str(report)
    if case.verdict == "right":
        assert found <= {"RS902"}, str(report)
    if case.line is not None:
        assert any(case.line in shown for d in report.diagnostics if d.code in case.codes for shown in lines(d)), report


def lines(diagnostic: object) -> list[str]:
    labels = [diagnostic.primary, *diagnostic.secondary]
    return [linecache.getline(label.span.path, label.span.line) for label in labels if label is not None]
