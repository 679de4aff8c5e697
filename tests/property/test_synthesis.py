"""Synthesised schedules on random networks: right, never below the bound, and wrong as soon as one move is changed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringsched.model.loads import loads_of
from ringsched.plans.bounds import bound_of
from ringsched.plans.cuts import connectivity, densest_side, weakest_partition
from ringsched.plans.network import Network, network_of
from ringsched.plans.plan import KINDS, Plan, PlanKind
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load
from ringsched.synth.place import parse_topology
from ringsched.synth.search import plan_of, synthesise
from ringsched.synth.write import schedule_of, text_of
from ringsched.topology import Topology
from ringsched.verify.dataflow import findings_of

QUICK = settings(max_examples=8, deadline=None, derandomize=True)


@st.composite
def topologies(draw: st.DrawFn, most: int = 6) -> Topology:
    """Links of 2 … `most` ranks: a random tree, and some links more."""
    ranks = draw(st.integers(2, most))
    links = {(draw(st.integers(0, rank - 1)), rank) for rank in range(1, ranks)}
    every = list(itertools.combinations(range(ranks), 2))
    links |= draw(st.sets(st.sampled_from(every), max_size=ranks))
    return Topology(kind="links", sides=(ranks,), links=frozenset(links))


def with_bandwidths(network: Network, seed: int) -> Network:
    rng = random.Random(seed)
    chosen = {
        (min(link), max(link)): Fraction(rng.choice([1, 1, 2, 3]), rng.choice([1, 2])) for link in sorted(network.links)
    }
    return replace(network, bandwidths=tuple(chosen[min(link), max(link)] for link in network.links))


@pytest.mark.parametrize("kind", KINDS)
@given(topology=topologies(), seed=st.integers(0, 3), where=st.integers(0, 5))
@QUICK
def test_schedules_are_right_and_not_below_the_bound(kind: PlanKind, topology: Topology, seed: int, where: int) -> None:
    root = where % topology.ranks if kind in ("broadcast", "reduce") else 0
    network = network_of(topology)
    bound = bound_of(network, kind, root)
    plan = plan_of(network, kind, bound, root=root, parts=seed or None, seed=seed)
    flat = flatten(schedule_of(plan))
    assert findings_of(flat) == ()
    assert loads_of(flat).units == plan.units >= bound.units
    assert len(flat.steps) >= max(network.distances(root))


@pytest.mark.parametrize("kind", KINDS)
@given(topology=topologies(5), seed=st.integers(0, 99))
@QUICK
def test_links_of_unequal_bandwidth(kind: PlanKind, topology: Topology, seed: int) -> None:
    network = with_bandwidths(network_of(topology), seed)
    bound = bound_of(network, kind)
    plan = plan_of(network, kind, bound, root=0, parts=seed % 4 or None, seed=seed)
    assert plan.units >= bound.units
    assert findings_of(flatten(schedule_of(plan))) == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["mesh:2x3", "links:0-1,1-2,0-2,2-3", "ring:5", "line:3"])
def test_the_file_says_what_was_planned(kind: PlanKind, where: str, tmp_path: Path) -> None:
    made = synthesise(parse_topology(where), kind, parts=3)
    path = tmp_path / "made.yaml"
    path.write_text(text_of(made.schedule), encoding="utf-8")
    loaded = load(path)
    assert loaded == made.schedule
    flat = flatten(loaded)
    assert findings_of(flat) == ()
    assert (len(flat.steps), loads_of(flat).units) == (made.steps, made.units)


@pytest.mark.parametrize("kind", KINDS)
@given(topology=topologies(), where=st.sampled_from(["", "mesh:2x3", "torus:2x4", "torus:3x3", "ring:5", "line:3"]))
@QUICK
def test_tables_say_the_same(kind: PlanKind, topology: Topology, where: str) -> None:
    network = network_of(parse_topology(where) if where else topology)
    plan = plan_of(network, kind, bound_of(network, kind), root=0, parts=2, seed=0)
    flat = flatten(schedule_of(plan, pinned=0))
    assert flat.schedule.tables
    assert findings_of(flat) == ()
    assert loads_of(flat).steps == loads_of(flatten(schedule_of(plan))).steps


# -- mutants -----------------------------------------------------------------------------------------------------------


def mutants(plan: Plan) -> Iterator[Plan]:
    """Each move left out; each that passes something on, in the step in which it arrives; each of a sum made twice."""
    for number, step in enumerate(plan.steps):
        for move in step:
            rest = tuple(m for m in step if m is not move)
            without = (*plan.steps[:number], rest, *plan.steps[number + 1 :])
            yield replace(plan, steps=without)
            for earlier in range(number):
                arrives = any(m.receiver == move.sender and m.chunk == move.chunk for m in plan.steps[earlier])
                if arrives:
                    early = (*without[earlier], move)
                    yield replace(plan, steps=(*without[:earlier], early, *without[earlier + 1 :]))
            if move.op == "reduce":
                yield replace(plan, steps=(*plan.steps[: number + 1], (move,), *plan.steps[number + 1 :]))


@pytest.mark.parametrize("kind", KINDS)
@given(topology=topologies(4), seed=st.integers(0, 3))
@settings(max_examples=4, deadline=None, derandomize=True)
def test_mutants_are_rejected(kind: PlanKind, topology: Topology, seed: int) -> None:
    network = network_of(topology)
    plan = plan_of(network, kind, bound_of(network, kind), root=0, parts=1 + seed % 2, seed=seed)
    for mutant in mutants(plan):
        assert findings_of(flatten(schedule_of(mutant))), mutant.steps


# -- the bounds, against all sets and all partitions ------------------------------------------------------------------


def partitions(ranks: list[int]) -> Iterator[list[list[int]]]:
    if not ranks:
        yield []
        return
    first, *rest = ranks
    for partition in partitions(rest):
        yield [[first], *partition]
        for number, group in enumerate(partition):
            yield [*partition[:number], [first, *group], *partition[number + 1 :]]


@given(topology=topologies(), seed=st.integers(0, 99), plain=st.booleans())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_cuts_are_the_best_of_all(topology: Topology, seed: int, plain: bool) -> None:
    network = network_of(topology) if plain else with_bandwidths(network_of(topology), seed)
    everyone = range(network.ranks)
    sides = [side for size in range(1, network.ranks) for side in itertools.combinations(everyone, size)]
    found = densest_side(network, (0,))
    assert len(found) / network.capacity_out(found) == max(len(s) / network.capacity_out(s) for s in sides)

    def strength(partition: object) -> Fraction:
        groups = list(partition)  # type: ignore[call-overload]
        return sum(network.capacity_out(group) for group in groups) / (len(groups) - 1)

    several = [p for p in partitions(list(everyone)) if len(p) > 1]
    assert strength(weakest_partition(network)) == min(map(strength, several))
    least, side = connectivity(network, 0)
    assert least == min(network.capacity_out(s) for s in sides if 0 in s) == network.capacity_out(side)


def test_all_small_graphs_gather_at_the_bound() -> None:
    """Every connected graph of up to five ranks: the cut bound is reached, or 20 % above it."""
    for graph in networkx.graph_atlas_g():
        if not 2 <= len(graph) <= 5 or not networkx.is_connected(graph):
            continue
        links = frozenset((min(e), max(e)) for e in graph.edges)
        network = network_of(Topology(kind="links", sides=(len(graph),), links=links))
        bound = bound_of(network, "all_gather")
        plan = plan_of(network, "all_gather", bound, root=0, parts=None, seed=0)
        assert bound.units <= plan.units <= bound.units * Fraction(6, 5), sorted(links)
