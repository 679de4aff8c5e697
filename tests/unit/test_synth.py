"""The synthesis: what is reached, bounds in words, list scheduling, matchings, topologies in words."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from ringsched.diagnostics import DiagnosticError, InternalError
from ringsched.plans.bounds import bound_of
from ringsched.plans.gather import ring_of
from ringsched.plans.lists import schedule
from ringsched.plans.matching import match
from ringsched.plans.network import Network, network_of
from ringsched.plans.plan import KINDS, Move, Plan, PlanKind, backwards
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load
from ringsched.schedule.schedule import Schedule, Speed, Step
from ringsched.synth.place import parse_topology
from ringsched.synth.search import plan_of, synthesise
from ringsched.synth.write import judged, schedule_of, text_of


def network(where: str) -> Network:
    return network_of(parse_topology(where))


# -- goals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "kind", "units", "steps"),
    [
        ("mesh:4x4", "all_gather", 7.5, 8),
        ("mesh:4x4", "reduce_scatter", 7.5, 8),
        ("mesh:8x8", "all_gather", 31.5, 32),
        ("mesh:3x3", "all_gather", 4, 4),
        ("mesh:3x5", "reduce_scatter", 7, 7),
        ("mesh:2x2x2", "all_gather", 7 / 3, 3),
        ("ring:8", "all_gather", 3.5, 4),
        ("ring:16", "reduce_scatter", 7.5, 8),
        ("ring:5", "all_reduce", 4, 4),
        ("torus:4x4", "all_gather", 3.75, 4),
        ("torus:4x8", "reduce_scatter", 7.75, 8),
        ("torus:4x4x4", "all_gather", 10.5, 11),
        ("torus:16x16", "all_gather", 63.75, 64),
        ("torus:4x4", "all_reduce", 7.5, 8),
        ("torus:2x4", "all_gather", 7 / 3, 3),
        ("torus:4x4", "all_to_all", 8, 8),
        ("torus:8x8", "all_to_all", 64, 64),
        ("line:6", "all_gather", 5, 5),
        ("mesh:4x4", "all_to_all", 16, 16),
        ("ring:8", "all_to_all", 8, 16),
        ("line:5", "all_to_all", 6, 6),
    ],
)
def test_reached_at_the_bound(where: str, kind: PlanKind, units: float, steps: int) -> None:
    found = synthesise(parse_topology(where), kind)
    assert found.units == found.bound.units == Fraction(units).limit_denominator(100)
    assert found.steps == steps
    assert found.verdict == "right"
    assert "At the bound: " in found.schedule.description


def test_all_reduce_on_a_mesh_is_near_the_bound() -> None:
    found = synthesise(parse_topology("mesh:4x4"), "all_reduce")
    assert found.bound.units == 10
    assert found.units <= Fraction(21, 2)
    assert "% above the bound of 10 units" in found.schedule.description


def test_a_stream_of_parts_takes_as_many_steps_as_the_narrowest_cut_and_the_distance() -> None:
    found = synthesise(parse_topology("mesh:3x3"), "broadcast", root=4, parts=10)
    assert (found.steps, found.units) == (6, 9 * Fraction(6, 10))  # 10 / 2 parts, and one hop more
    assert synthesise(parse_topology("mesh:2"), "broadcast").steps == 1  # no parts where they do no good
    short = synthesise(parse_topology("mesh:3x3"), "broadcast", root=4, parts=1)
    assert (short.steps, short.units) == (2, 18)


def test_shards_in_parts_are_not_held_up_behind_a_bridge() -> None:
    bridge = parse_topology("links:0-1,1-2,0-2,2-3,3-4,4-5,3-5")
    assert synthesise(bridge, "all_gather", parts=1).units == 4
    assert synthesise(bridge, "all_gather").units < Fraction(33, 10)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_search() -> None:
    texts = [text_of(synthesise(parse_topology("mesh:3x3"), "all_gather", seed=seed).schedule) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


# -- what is judged ----------------------------------------------------------------------------------------------------


def test_a_wrong_schedule_is_our_fault() -> None:
    right = synthesise(parse_topology("mesh:2x2"), "all_gather").schedule
    assert judged(flatten(right)) == "right"
    with pytest.raises(InternalError, match="the synthesised schedule is wrong"):
        judged(flatten(replace(right, items=right.items[:-1])))


def test_a_file_has_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule_ = synthesise(parse_topology("ring:4"), "all_gather").schedule
    size = len(text_of(schedule_))
    monkeypatch.setattr("ringsched.synth.write.MAX_BYTES", size - 1)
    with pytest.raises(DiagnosticError, match=r"RS241: the schedule is too large: its file would have"):
        text_of(schedule_)
    monkeypatch.undo()
    monkeypatch.setattr("ringsched.synth.write.MAX_NODES", 20_005)
    with pytest.raises(DiagnosticError, match=r"RS241: .* 8 entries in 1 tables"):
        text_of(replace(schedule_, tables=(("far", (1,) * 8),)))
    with pytest.raises(DiagnosticError, match=r"RS241: .* it has over 500,000 transfers"):
        synthesise(parse_topology("mesh:32x32"), "all_to_all")


def test_plans_count_their_own_units() -> None:
    """Two chunks over a link of bandwidth 2 take as long as one over a link of 1."""
    line = network("line:3")
    wide = replace(line, bandwidths=tuple(Fraction(2 if 2 in link else 1) for link in line.links))
    moves = (Move(0, 1, (0, 0)), Move(1, 2, (1, 0)), Move(1, 2, (1, 1)))
    plan = Plan(network=line, kind="all_gather", dims=(3, 2), size=Fraction(1, 2), steps=(moves, moves[:1]), how="")
    assert plan.units == Fraction(3, 2)
    assert replace(plan, network=wide).units == 1
    assert wide.widths == (1, 1, 2, 2)


def test_reversed_twice_is_the_same() -> None:
    mesh = network("mesh:3x3")
    plan = plan_of(mesh, "all_gather", bound_of(mesh, "all_gather"), root=0, parts=None, seed=0)
    there = backwards(plan, "reduce_scatter")
    assert there.units == plan.units and {m.op for step in there.steps for m in step} == {"reduce"}
    back = backwards(there, "all_gather")
    assert [[m._replace(op="copy") for m in step] for step in back.steps] == [list(step) for step in plan.steps]


def test_parts_in_a_row_are_one_transfer() -> None:
    line = network("line:2")
    rows = {(0, 1, 2): "0", (0, 1): "0, 0:2", (1, 2): "0, 1:3", (2,): "0, 2"}
    for parts, shown in rows.items():
        moves = tuple(Move(0, 1, (0, part)) for part in parts)
        plan = Plan(network=line, kind="all_gather", dims=(2, 3), size=Fraction(1, 3), steps=(moves,), how="")
        assert f"- send: chunk[{shown}]\n" in text_of(schedule_of(plan))
    gap = (Move(0, 1, (0, 0)), Move(0, 1, (0, 2)))
    plan = Plan(network=line, kind="all_gather", dims=(2, 3), size=Fraction(1, 3), steps=(gap,), how="")
    assert transfers(schedule_of(plan)) == 2


def test_large_plans_are_tables(tmp_path: Path) -> None:
    mesh = network("mesh:2x3")
    plan = plan_of(mesh, "all_to_all", bound_of(mesh, "all_to_all"), root=0, parts=1, seed=0)
    schedule_ = schedule_of(plan, pinned=plan.transfers - 1)
    file = tmp_path / "made.yaml"
    file.write_text(text_of(schedule_), encoding="utf-8")
    assert load(file) == schedule_
    transfer = """\
      - send: chunk[y_up_to_0[s * 6 + r] // 6, y_up_to_0[s * 6 + r] % 6]
        to: [x, y + 1]
        when: y_up_to_0[s * 6 + r] >= 0
"""
    assert transfer in file.read_text(encoding="utf-8")
    assert schedule_of(plan, pinned=plan.transfers).tables == ()


def test_tables_hold_as_many_steps_as_they_may() -> None:
    mesh = network("mesh:4x8")
    plan = plan_of(mesh, "all_to_all", bound_of(mesh, "all_to_all"), root=0, parts=1, seed=0)
    tables = schedule_of(plan).tables
    assert plan.transfers > 2_000 and len(plan.steps) == 64
    assert {len(table) for _, table in tables} == {31 * 32, 2 * 32}
    assert [name for name, _ in tables][:3] == ["x_down_to_0", "x_up_to_0", "y_down_to_0"]


def test_two_chunks_over_a_link_in_a_step_have_two_tables() -> None:
    line = network("line:2")
    moves = tuple(Move(0, 1, (0, part)) for part in range(2))
    plan = Plan(network=line, kind="all_gather", dims=(2, 2), size=Fraction(1, 2), steps=(moves,), how="")
    assert schedule_of(plan, pinned=0).tables == (("r_up_to_0", (0, -1)),)
    other = replace(plan, steps=((moves[0], Move(0, 1, (1, 1))),))
    assert schedule_of(other, pinned=0).tables == (("r_up_to_part_0", (0, -1)), ("r_up_to_part1_0", (3, -1)))


def transfers(schedule_: Schedule) -> int:
    return sum(len(item.transfers) for item in schedule_.items if isinstance(item, Step))


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "kind", "units", "steps", "reason"),
    [
        ("mesh:4x4", "all_gather", 7.5, 8, "each corner has 2 links in and needs 15 shards"),
        ("mesh:4x4", "reduce_scatter", 7.5, 8, "each corner has 2 links out for its terms of 15 shards"),
        ("mesh:4x4", "all_reduce", 10, 10, "each of the 16 units needs 2 · 15 transfers, and there are 48 links"),
        ("torus:4x4", "all_gather", 3.75, 4, "each rank has 4 links in and needs 15 shards"),
        ("torus:4x8", "all_gather", 7.75, 8, "each rank has 4 links in and needs 31 shards"),
        ("torus:4x4x4", "all_gather", 10.5, 11, "each rank has 6 links in and needs 63 shards"),
        ("torus:8x8", "all_to_all", 64, 64, "the chunks have 16384 hops to go, and there are 256 links"),
        ("torus:32x32", "all_gather", 255.75, 256, "each rank has 4 links in and needs 1023 shards"),
        ("line:4", "all_to_all", 4, 4, "4 chunks have to leave the 2 ranks 0, 1, over 1 link"),
        ("line:4", "broadcast", 4, 3, "the root, rank 0 has 1 link out"),
        ("ring:4", "reduce", 2, 2, "the root, rank 0 has 2 links in"),
        (
            "links:0-1,1-2,0-2,2-3,3-4,4-5,3-5",
            "all_gather",
            3,
            3,
            "1 link leads out of the 3 ranks 3, 4, 5, whose 3 shards the others need",
        ),
        (
            "links:0-1,1-2,0-2,2-3,3-4,4-5,3-5",
            "all_reduce",
            6,
            6,
            "6 units have to cross between the 3 ranks 0, 1, 2 and the rest, both ways, on 2 links",
        ),
    ],
)
def test_bounds_and_their_reasons(where: str, kind: PlanKind, units: float, steps: int, reason: str) -> None:
    bound = bound_of(network(where), kind)
    assert (bound.units, bound.steps, bound.reason) == (Fraction(units), steps, reason)


def test_bandwidth_counts() -> None:
    ring = network("ring:4")
    double = replace(ring, bandwidths=tuple(2 * b for b in ring.bandwidths))
    for kind in KINDS:
        assert bound_of(double, kind).units == bound_of(ring, kind).units / 2
    assert "links of bandwidth 4 in and needs 3 shards" in bound_of(double, "all_gather").reason


@pytest.mark.parametrize("where", ["mesh:2x2", "mesh:2x5", "mesh:5x2", "mesh:3x4", "mesh:4x3", "mesh:6x6", "ring:7"])
def test_rings_of_all_ranks(where: str) -> None:
    topology = parse_topology(where)
    order = ring_of(network(where))
    assert order is not None and sorted(order) == list(range(topology.ranks))
    assert all(topology.linked(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True))


@pytest.mark.parametrize("where", ["mesh:3x3", "mesh:2x2x2", "line:4", "ring:2", "links:0-1,1-2,2-0"])
def test_no_ring_is_known(where: str) -> None:
    assert ring_of(network(where)) is None


# -- searching ---------------------------------------------------------------------------------------------------------


def test_lists_keep_order_and_width() -> None:
    needs = [(), (), (0,), (1, 2), ()]
    assert schedule([0, 0, 1, 0, 0], needs, [1, 1], 3) == [0, 1, 1, 2, 3]
    assert schedule([0, 0, 1, 0, 0], needs, [2, 1], 0) == [0, 0, 1, 2, 1]
    assert schedule([], [], [], 3) == []


def test_waiting_tasks_give_way() -> None:
    assert schedule([0, 0], [(), ()], [1], 0) == [0, 1]
    assert schedule([0, 0], [(), ()], [1], 0, waits=[1, 0]) == [1, 0]


def test_a_link_gives_up_what_only_another_can_bring() -> None:
    offers = {0: [5, 6], 1: [5], 2: []}
    assert match([0, 1, 2], [1, 1, 1], offers.__getitem__) == {6: 0, 5: 1}
    assert match([0], [2], offers.__getitem__) == {5: 0, 6: 0}


# -- topologies in words -----------------------------------------------------------------------------------------------


def test_topologies_in_words(tmp_path: Path) -> None:
    assert parse_topology("Torus:4x8").sides == (4, 8)
    assert parse_topology("links:0-1, 2-1").links == frozenset({(0, 1), (1, 2)})
    file = tmp_path / "my.links"
    file.write_text("# a triangle\n0-1\n1 2\n\n2-0  # and back\n", encoding="utf-8")
    assert parse_topology(f"links:{file}").links == frozenset({(0, 1), (1, 2), (0, 2)})


def test_the_topology_of_a_schedule(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = """\
schedule: mine
collective: all_gather
topology: {torus: [N, 4], twist: {x: [0, 2]}, bandwidth: [2, 1], routed: true}
params: {N: 2}
chunks: [N, 4]
steps: []
"""
    file.write_text(text, encoding="utf-8")
    topology = parse_topology(str(file))
    assert (topology.sides, topology.twist, topology.routed) == ((2, 4), ((0, 2), (0, 0)), False)
    assert topology.speeds == (Speed(2, 1), Speed(1, 1))
    made = synthesise(topology, "all_gather")
    assert "topology: {torus: [2, 4], twist: {x: [0, 2]}, bandwidth: [2, 1]}\n" in text_of(made.schedule)
    assert made.units >= made.bound.units == Fraction(7, 6)  # two links of 2 and two of 1
    file.write_text(text.replace("torus: [N, 4], twist: {x: [0, 2]}, bandwidth: [2, 1]", "ring: 1"), encoding="utf-8")
    with pytest.raises(DiagnosticError, match=r"RS240: .* one rank has no links"):
        parse_topology(str(file))
    with pytest.raises(DiagnosticError, match="RS101"):
        parse_topology("none.yaml")


@pytest.mark.parametrize(
    ("text", "message", "help_"),
    [
        ("tours:4x4", "there is no kind of topology `tours`", "did you mean torus:4x4?"),
        (
            "8",
            "there is no kind of topology `8`",
            "for example ring:8, line:5, mesh:4x4, torus:4x4x4, links:0-1,1-2,2-0",
        ),
        ("mesh", "sides are whole numbers with an x between them", "for example mesh:4x4"),
        ("mesh:4,4", "sides are whole numbers with an x between them", "for example mesh:4x4"),
        ("ring:4x4", "a ring has one side, not 2", "for example ring:8"),
        ("torus:2x2x2x2", "a torus has 1 to 3 sides, not 4", "for example torus:4x4x4"),
        ("torus:4x1", "a side of 1 has no links", "give only sides of 2 or more ranks"),
        ("ring:0", "a side of 0 has no links", "give only sides of 2 or more ranks"),
        ("mesh:999x999", "998001 ranks are over the limit of 65536", "for example mesh:4x4"),
        ("links:", "there are no links", "for example links:0-1,1-2,2-0"),
        ("links:0-1,1", "`1` is no link", "a link is two ranks: links:0-1,1-2,2-0"),
        ("links:0-1,1-1", "the link 1-1 joins a rank with itself", "leave it out"),
        ("links:0-1,3-4", "the links do not join all ranks: none lead from rank 0 to 2, 3, 4", "add a link to them"),
        ("links:0-99999", "rank 99999 is over the limit of 65536 ranks", "number the ranks from 0"),
        ("links:none.txt", "`none.txt` is neither a list of links nor a file", "for example links:0-1,1-2,2-0"),
    ],
)
def test_what_is_no_topology(text: str, message: str, help_: str) -> None:
    with pytest.raises(DiagnosticError) as raised:
        parse_topology(text)
    (found,) = raised.value.diagnostics
    assert (found.code, found.message, found.help) == ("RS240", f"--topology {text}: {message}", help_)
