"""Every kernel of the corpus gets its verdict, for its reason, at its line."""

import linecache
from collections import Counter
from typing import Any

import pytest
from corpus import CASES, Case

import ringsched as rs
from ringsched.auditing.audit import AuditReport
from ringsched.diagnostics import Diagnostic

ADVICE = {"RS902", "RS903", "RS904", "RS905"}


def audit(case: Case) -> AuditReport:
    more: dict[str, Any] = {}
    if case.expect is not None:
        more["expect"] = case.expect
    if case.chip is not None:
        more["chip"] = case.chip
    return rs.audit(
        case.function,
        mesh_axes=case.mesh,
        args=case.args,
        in_specs=case.in_specs,
        out_specs=case.out_specs,
        cores=case.cores,
        **more,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(case: Case) -> None:
    report = audit(case)
    assert report.verdict == case.verdict, str(report)
    found = {diagnostic.code for diagnostic in report.diagnostics}
    assert all(found & set(code.split("/")) for code in case.codes), str(report)
    if case.verdict == "right":
        assert found <= ADVICE, str(report)
    if case.line is not None:
        labelled = [d for d in report.diagnostics if any(d.code in code.split("/") for code in case.codes)]
        assert any(case.line in line for diagnostic in labelled for line in lines(diagnostic)), str(report)


def lines(diagnostic: Diagnostic) -> list[str]:
    labels = [diagnostic.primary, *diagnostic.secondary]
    return [linecache.getline(label.span.path, label.span.line) for label in labels if label is not None]


def test_the_corpus_is_balanced() -> None:
    names = Counter(case.name for case in CASES)
    assert not [name for name, count in names.items() if count > 1]
    assert len(CASES) >= 320
    assert 3 * sum(case.verdict == "right" for case in CASES) >= len(CASES)
