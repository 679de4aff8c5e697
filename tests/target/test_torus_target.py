"""Tori through the TPU compiler: ranks lie on the chips as `rs.make_mesh` lays them. Needs libtpu, no TPU."""

from __future__ import annotations

import importlib.util

import pytest

from ringsched.operand import Operand
from ringsched.pipeline import compile_schedule
from ringsched.schedule.loader import load, set_parameters
from ringsched.target.aot import compile_for_target
from ringsched.target.report import TargetReport

pytestmark = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

PLAIN = """\
schedule: both_axes
collective: all_gather
topology: {torus: [X, Y]}
params: {X: 4, Y: 4}
chunks: [X, Y]
steps:
  - {for: s in 0 .. X - 2, do: [{send: "chunk[(x - s) % X, y]", to: [x + 1, y]}]}
  - {for: s in 0 .. Y - 2, do: [{send: "chunk[:, (y - s) % Y]", to: [x, y + 1]}]}
"""
TWISTED = """\
schedule: twisted
collective: all_gather
topology: {torus: [X, 2 * X], twist: {x: [0, X]}}
params: {X: 2}
chunks: [X, 2 * X]
steps:
  - for: s in 0 .. 2 * X - 2
    do:
      - send: chunk[(x - s) % X, (y + (x - s) // X * X) % (2 * X)]
        to: [x + 1, y]
  - for: t in 0 .. X - 2
    do:
      - send: chunk[(x - s) % X, (y - t + (x - s) // X * X) % (2 * X)]
        each: s in 0 .. 2 * X - 1
        to: [x, y + 1]
"""


def report(text: str, target: str, **values: int) -> TargetReport:
    compiled = compile_schedule(set_parameters(load("t.yaml", text), values))
    topology = compiled.proven.topology
    return compile_for_target(
        source=compiled.source,
        function=compiled.proven.schedule.name,
        sides=topology.sides,
        topology=topology,
        operands=(Operand(name="x", shape=(256, 128), dtype="float32"),),
        target=target,
    )


def placed(found: TargetReport) -> list[str]:
    return [note for note in found.notes if note.startswith("RS")]


def test_a_torus_whose_links_are_there() -> None:
    assert placed(report(PLAIN, "v5p:2x2x2", X=2, Y=4)) == []


def test_a_torus_on_chips_that_do_not_wrap() -> None:
    assert placed(report(PLAIN, "v5e:4x4")) == [
        "RS906: mesh axis 'x' is no ring of links: it has hops of up to 2",
        "RS906: mesh axis 'y' is no ring of links: it has hops of up to 2",
        "RS907: up to 2 hops meet on a link, on 48 of the 48 links that are used",
    ]


def test_a_twisted_torus() -> None:
    found = report(TWISTED, "v6e:2x4")
    assert found.cycles
    assert placed(found)[0].startswith("RS906: mesh axis 'x' is no ring of links")
