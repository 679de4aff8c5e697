"""Pictures: where things lie, that all of it is drawn, and that the bytes are the same each time."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from ringsched.model.loads import hops, loads_of
from ringsched.pictures.layout import layout_of
from ringsched.pictures.picture import picture
from ringsched.pictures.svg import decimal, number
from ringsched.pipeline import open_schedule
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load
from ringsched.topology import Topology, named_topology, topology_of

NAMESPACE = "{http://www.w3.org/2000/svg}"
PLACES = [
    "ring:2", "ring:3", "ring:8", "ring:16", "ring:64", "line:5", "line:30", "mesh:2x2", "mesh:4x4", "torus:2x3",
    "torus:4x4", "torus:4x8", "torus:16x16", "torus:4x4x4", "mesh:2x3x2", "torus:2x2x2",
]  # fmt: skip


def made(place: str, steps: str = "  []\n") -> str:
    return f"schedule: t\ncollective: all_gather\ntopology: {place}\nchunks: [4]\nsteps:\n{steps}"


def topologies() -> list[Topology]:
    found = [named_topology(name) for name in PLACES]
    for place in (
        "{torus: [2, 4], twist: {x: [0, 2]}}",
        "{links: [[0, 1], [0, 2], [1, 3], [1, 4], [2, 5], [2, 6], [3, 4]]}",
    ):
        found.append(topology_of(load("t.yaml", made(place)), {}))
    return found


@pytest.mark.parametrize("topology", topologies(), ids=lambda t: f"{t.kind}{t.sides}{t.twist}")
def test_everything_has_its_place(topology: Topology) -> None:
    layout = layout_of(topology)
    for x, y in layout.places:
        assert layout.radius <= x <= layout.width - layout.radius
        assert layout.radius <= y <= layout.height - layout.radius
    for a in range(topology.ranks if topology.ranks <= 64 else 0):
        for b in range(a):
            assert math.dist(layout.places[a], layout.places[b]) > 2.2 * layout.radius
    ways = Counter[tuple[float, ...]]()
    for hop in hops(topology):
        strokes = layout.strokes(hop)
        assert 1 <= len(strokes) <= 2
        ways[(*strokes[0].start, *strokes[0].end)] += 1
        assert math.dist(strokes[0].start, layout.places[hop[0]]) == pytest.approx(layout.radius)
        if not strokes[0].alone:
            assert math.dist(strokes[-1].end, layout.places[hop[1]]) == pytest.approx(layout.radius)
        for stroke in strokes:
            for x, y in (stroke.start, stroke.end):
                assert 0 <= x <= layout.width and 0 <= y <= layout.height
    assert max(ways.values(), default=1) == 1  # no two hops are drawn alike


def test_what_wraps_is_drawn_as_stubs() -> None:
    layout = layout_of(named_topology("torus:4x4"))
    assert len(layout.strokes((0, 4))) == 1  # x + 1
    out, into = layout.strokes((12, 0))  # x + 1 from the last place
    assert out.end[0] > layout.places[12][0] and into.start[0] < layout.places[0][0]
    assert len(layout_of(named_topology("torus:2x4")).strokes((0, 4))) == 1  # a side of 2 does not
    up, down = (layout_of(named_topology("torus:4x4x4")).strokes((0, rank))[0] for rank in (1, 3))
    assert up.alone and up.end[0] > up.start[0] and up.end[1] < up.start[1]
    assert down.alone and down.end[0] < down.start[0] and down.end[1] > down.start[1]


def drawn(svg: str) -> tuple[list[str], list[str]]:
    """The texts, and the classes of the shafts of arrows; the SVG is well-formed."""
    root = ElementTree.fromstring(svg)
    texts = [element.text or "" for element in root.iter(f"{NAMESPACE}text")]
    return texts, [element.get("class", "") for element in root.iter(f"{NAMESPACE}path")]


def pictured(name: str, **values: int) -> tuple[list[str], list[str]]:
    flat = flatten(open_schedule(name, values))
    loads = loads_of(flat)
    svg = picture(flat, loads, "a summary")
    assert svg == picture(flatten(open_schedule(name, values)), loads, "a summary")
    return drawn(svg)


def test_a_ring() -> None:
    texts, arrows = pictured("all_reduce", N=4)
    assert [text for text in texts if text.startswith("step ")] == [f"step {k}" for k in range(1, 7)]
    assert {
        "all_reduce",
        "a summary",
        "all steps",
        "0 to 6 units a link",
        "to r + 1",
        "dashed: added to what is there",
    } <= set(texts)
    assert "to r - 1" not in texts
    # three steps that add, three that copy, the totals, and two in the legend
    assert Counter(arrows) == {"line a reduce": 3 * 4 + 1, "line a": 3 * 4 + 4 + 1}
    assert texts.count("1 unit") == 6


def test_chunks_are_named_where_there_is_room() -> None:
    flat = flatten(load("t.yaml", made("{ring: 4}", '  - {send: "chunk[(r + 2) % 4]", to: r + 1}\n')))
    texts, _ = drawn(picture(flat, loads_of(flat), ""))
    ranks, chunks = ["0", "1", "2", "3"], ["2", "3", "0", "1"]
    assert texts[:2] == ranks[:2]
    start = texts.index("1 unit") + 1
    assert texts[start : start + 4] == chunks


def test_all_parts_of_a_shard_have_its_name() -> None:
    flat = flatten(open_schedule("all_gather_bidirectional", {"N": 4}))
    texts, _ = drawn(picture(flat, loads_of(flat), ""))
    assert "3,0" in texts and "3,0 3,1" not in texts


def test_long_schedules_and_many_ranks_are_cut_short() -> None:
    texts, _ = pictured("all_gather", N=40)
    titles = [text for text in texts if text.startswith("step ")]
    assert titles == [*(f"step {k}" for k in range(1, 11)), "step 39, after 28 more"]
    assert "1" not in texts  # the ranks are too many to be named
    texts, _ = pictured("all_gather", N=300)
    assert [text for text in texts if text.startswith("step ")] == ["step 1", "step 2", "step 299, after 296 more"]


def test_names_are_escaped() -> None:
    flat = flatten(open_schedule("shift", {"N": 4}))
    assert "a &lt; b" in picture(flat, loads_of(flat), "a < b")


def test_numbers() -> None:
    from fractions import Fraction

    assert [number(x) for x in (1.0, 1.26, -0.04, 0.0, 10.0)] == ["1", "1.3", "0", "0", "10"]
    assert [decimal(Fraction(*x)) for x in ((15, 4), (7, 1), (1, 3), (0, 1))] == ["3.75", "7", "0.333", "0"]
