"""The data-flow check against a simulator without masks or symmetry, and its two modes against each other."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_mutants import mutants

from ringsched.diagnostics import DiagnosticError
from ringsched.expr import EvaluationError, NotAffine, holds, integer
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.loader import load, set_parameters
from ringsched.schedule.schedule import Schedule, Slice
from ringsched.verify.dataflow import follow, is_symmetric, verify_dataflow
from ringsched.verify.dataflow_full import Full
from ringsched.verify.dataflow_symmetric import Symmetric, rotation

HEAD = (
    "schedule: {name}\ncollective: {collective}\ntopology: {{{topology}}}\nparams: {params}\nchunks: {chunks}\nsteps:\n"
)
RING = {"topology": "ring: N", "params": "{N: 4}", "chunks": "[N]"}
TORUS = {"topology": "torus: [X, Y]", "params": "{X: 3, Y: 2}", "chunks": "[X, Y]"}


def text(name: str, steps: str, collective: str = "", **head: str) -> str:
    return HEAD.format(name=name, collective=collective or name, **head) + steps


GATHER = "  - {for: s in 0 .. N - 2, do: [{send: 'chunk[(r - s) % N]', to: r + 1}]}\n"
SCATTER = "  - {for: s in 0 .. N - 2, do: [{send: 'chunk[(r - s - 1) % N]', to: r + 1, op: reduce}]}\n"
AFTER = "  - {for: s in 0 .. N - 2, do: [{send: 'chunk[(r - s) % N]', to: r + 1}]}\n"
TWO_WAYS = """\
  - for: s in 0 .. (N - 1) // 2 - 1
    do:
      - {send: 'chunk[(r - s) % N]', to: r + 1}
      - {send: 'chunk[(r + s) % N]', to: r - 1}
  - step:
      - {send: 'chunk[(r - N // 2 + 1) % N, 0]', to: r + 1, when: N % 2 == 0}
      - {send: 'chunk[(r + N // 2 - 1) % N, 1]', to: r - 1, when: N % 2 == 0}
"""
ALL_PAIRS = """\
  - for: h in 0 .. N - 2
    do:
      - {send: 'chunk[(r - h) % N, (r - h + d) % N]', each: d in h + 1 .. N - 1, to: r + 1}
"""
TORUS_GATHER = """\
  - {for: s in 0 .. X - 2, do: [{send: 'chunk[(x - s) % X, y]', to: [x + 1, y]}]}
  - {for: s in 0 .. Y - 2, do: [{send: 'chunk[:, (y - s) % Y]', to: [x, y + 1]}]}
"""
TORUS_SCATTER = """\
  - {for: s in 0 .. Y - 2, do: [{send: 'chunk[:, (y - s - 1) % Y]', to: [x, y + 1], op: reduce}]}
  - {for: s in 0 .. X - 2, do: [{send: 'chunk[(x - s - 1) % X, y]', to: [x + 1, y], op: reduce}]}
"""
CHAIN = "  - {for: s in 0 .. N - 2, do: [{send: chunk, to: r + 1, when: r == s}]}\n"
# Once around along x comes back one further along y: one circle through all ranks.
TWISTED = {**TORUS, "topology": "torus: [X, Y], twist: {x: [0, 1]}"}
TWISTED_GATHER = """\
  - for: s in 0 .. X * Y - 2
    do:
      - send: chunk[(x - s) % X, (y + (x - s) // X) % Y]
        to: [x + 1, y]
"""
RIGHT = {
    "all_gather": text("all_gather", GATHER, **RING),
    "reduce_scatter": text("reduce_scatter", SCATTER, **RING),
    "all_reduce": text("all_reduce", SCATTER + AFTER, **RING),
    "two_ways": text("two_ways", TWO_WAYS, "all_gather", **{**RING, "chunks": "[N, 2 - N % 2]"}),
    "all_to_all": text("all_to_all", ALL_PAIRS, **{**RING, "chunks": "[N, N]"}),
    "shift": text("shift", "  - {send: 'chunk[r]', to: r + 1}\n", "{permute: (r + 1) % N}", **RING),
    "torus_gather": text("torus_gather", TORUS_GATHER, "all_gather", **TORUS),
    "torus_scatter": text("torus_scatter", TORUS_SCATTER, "reduce_scatter", **TORUS),
    "torus_twisted": text("torus_twisted", TWISTED_GATHER, "all_gather", **TWISTED),
    "broadcast": text("broadcast", CHAIN, **{**RING, "topology": "line: N", "chunks": "[2]"}),
}
SYMMETRIC = sorted(set(RIGHT) - {"broadcast", "torus_twisted"})
SIZES = [{"N": 3}, {"N": 4}, {"N": 5}]
TORUS_SIZES = [{"X": 3, "Y": 2}, {"X": 2, "Y": 4}, {"X": 2, "Y": 2}, {"X": 3, "Y": 3}]


def sizes(name: str) -> list[dict[str, int]]:
    return TORUS_SIZES if name.startswith("torus") else SIZES


# -- the simulator: state as explicit multisets, one dictionary, no cleverness ----------------------------------------


def simulate(flat: FlatSchedule) -> bool:
    promise, topology = flat.promise, flat.topology
    ranks, chunks = range(topology.ranks), list(promise.chunks())
    bits = lambda mask: Counter(q for q in ranks if mask >> q & 1)  # noqa: E731
    state = {(d, c): bits(promise.initial(d, c)) for d in ranks for c in chunks}
    for step in flat.steps:
        arriving: dict[tuple[int, tuple[int, ...]], list[tuple[str, Counter[int]]]] = {}
        for moving in step:
            t = moving.statement
            for value, d in itertools.product(range(moving.each[0], moving.each[1] + 1) if moving.each else [0], ranks):
                env = {**moving.env, **topology.environment(d), **({t.each.var: value} if t.each else {})}
                if t.sender and place(flat, [integer(e, env) for e in t.sender.coordinates]) != d:
                    continue
                try:
                    if not holds(t.when, env):
                        continue
                    to = place(flat, [integer(e, env) for e in t.to.coordinates])
                    picked = []
                    for dim, index in itertools.zip_longest(range(len(promise.dims)), t.chunk.index, fillvalue=Slice()):
                        if isinstance(index, Slice):
                            a = integer(index.start, env) if index.start else 0
                            b = integer(index.stop, env) if index.stop else promise.dims[dim]
                        else:
                            a, b = integer(index, env), integer(index, env) + 1
                        if not 0 <= a < b <= promise.dims[dim]:
                            return False
                        picked.append(range(a, b))
                except EvaluationError:
                    return False
                if to is None or not topology.linked(d, to):
                    return False
                for c in itertools.product(*picked):
                    if not state[d, c]:
                        return False
                    arriving.setdefault((to, c), []).append((t.op, state[d, c]))
        new = dict(state)
        for cell, parts in arriving.items():
            if len(parts) > 1 and "copy" in [op for op, _ in parts]:
                return False
            if parts[0][0] == "copy":
                new[cell] = parts[0][1]
                continue
            new[cell] = sum((terms for _, terms in parts), start=state[cell])
            if not state[cell] or max(new[cell].values()) > 1:
                return False
        state = new
    wanted = {(d, c): bits(promise.promised(d, c)) for d in ranks for c in chunks}
    return all(state[cell] == terms for cell, terms in wanted.items() if terms)


def place(flat: FlatSchedule, coordinates: list[int]) -> int | None:
    if len(coordinates) == len(flat.topology.sides):
        return flat.topology.rank(tuple(coordinates))
    return coordinates[0] if 0 <= coordinates[0] < flat.topology.ranks else None


# -- mutants ----------------------------------------------------------------------------------------------------------


def of_size(source: str, values: dict[str, int]) -> Schedule:
    return set_parameters(load("t.yaml", source), values)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_right_schedules_are_right(name: str) -> None:
    more = [{"X": 4, "Y": 3}] if name.startswith("torus") else [{"N": 1}, {"N": 2}, {"N": 8}]
    for values in sizes(name) + [m for m in more if name != "shift" or m != {"N": 1}]:
        flat = flatten(of_size(RIGHT[name], values))
        assert verify_dataflow(flat) == ()
        assert simulate(flat)
        assert is_symmetric(flat) == (name in SYMMETRIC and flat.topology.ranks > 1) or flat.topology.ranks == 1


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_mutants_are_judged_as_by_the_simulator(name: str) -> None:
    survivors = []
    rejected = 0
    for values in sizes(name):
        schedule = of_size(RIGHT[name], values)
        for mutant, items in mutants(schedule.items):
            flat = flatten(replace(schedule, items=items))
            found = follow(Full(flat))
            assert (found == ()) == simulate(flat), (mutant, values, found)
            assert_modes_agree(flat)
            if found:
                rejected += 1
            else:
                survivors.append((mutant, values))
    assert rejected > 0
    # Only what says nothing at this size survives.
    for mutant, values in survivors:
        assert harmless(name, mutant, values), (mutant, values)


def harmless(name: str, mutant: str, values: dict[str, int]) -> bool:
    """Mutants that are right all the same: they change what is not carried out at this size."""
    if name == "two_ways":
        return mutant.startswith("1.") and values["N"] % 2 == 1
    if name.startswith("torus"):  # loops that are empty at a side of 1
        return values["XY"[(mutant[0] == "1") ^ (name == "torus_scatter")]] == 1
    return False


def assert_modes_agree(flat: FlatSchedule) -> None:
    """Same findings, word for word, unless the last writer named differs for want of a common order."""
    try:
        symmetric = follow(Symmetric(flat))
    except NotAffine:
        return
    full = follow(Full(flat))
    assert [d.code for d in symmetric] == [d.code for d in full]
    assert [d.message for d in symmetric] == [d.message for d in full]
    if all(d.code in ("RS301", "RS302", "RS303") for d in full):
        assert [(d.counterexample, d.primary, d.notes) for d in symmetric] == [
            (d.counterexample, d.primary, d.notes) for d in full
        ]


# -- random schedules -------------------------------------------------------------------------------------------------

offsets = st.integers(-2, 2)


@st.composite
def ring_schedules(draw: st.DrawFn) -> str:
    """Mostly wrong, but often for several steps right."""
    kind = draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "{permute: (r + 2) % N}"]))
    chunks = {"all_to_all": "[N, N]", "all_reduce": draw(st.sampled_from(["[N]", "[2]", "[N, 2]"]))}.get(kind, "[N]")
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        transfers = []
        for _ in range(draw(st.integers(1, 2))):
            index = [
                f"({draw(st.sampled_from(['r', 'r - s', 'r + s', 's', 'r - 2 * s']))} + {draw(offsets)}) % {size}"
                for size in chunks[1:-1].split(", ")
            ]
            index = draw(st.sampled_from([index, index[:-1] or [":"], [*index[:-1], ":"]]))
            op, hop = draw(st.sampled_from(["copy", "reduce"])), draw(st.sampled_from([1, 1, 1, -1]))
            transfers.append(f"{{send: 'chunk[{', '.join(index)}]', to: r + {hop}, op: {op}}}")
        lines.append(
            f"  - {{for: s in 0 .. {draw(st.sampled_from(['N - 2', '0', '1']))}, do: [{', '.join(transfers)}]}}\n"
        )
    return text("random", "".join(lines), kind, **{**RING, "chunks": chunks})


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ring_schedules(), st.integers(2, 5))
def test_random_ring_schedules(source: str, size: int) -> None:
    flat = flatten(of_size(source, {"N": size}))
    assert (follow(Full(flat)) == ()) == simulate(flat)
    assert_modes_agree(flat)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(sorted(RIGHT)))
def test_mutants_of_mutants(data: st.DataObject, name: str) -> None:
    schedule = of_size(RIGHT[name], data.draw(st.sampled_from(sizes(name))))
    for _ in range(data.draw(st.integers(2, 4))):
        choices = list(mutants(schedule.items))
        if choices:
            schedule = replace(schedule, items=data.draw(st.sampled_from(choices))[1])
    try:
        flat = flatten(schedule)
    except DiagnosticError:
        return
    assert (follow(Full(flat)) == ()) == simulate(flat)
    assert_modes_agree(flat)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 1)), max_size=12),
    st.data(),
)
def test_pinned_transfers_on_random_links(size: int, moves: list[tuple[int, int, int]], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["broadcast", "reduce", "gather", "scatter", "all_gather", "all_reduce"]))
    chunks = f"[{size}]" if kind not in ("broadcast", "reduce") else "[2]"
    links = [[i, i + 1] for i in range(size - 1)] + [[0, size - 1]] * (size > 2)
    lines = [
        f"  - {{send: 'chunk[{c}]', from: {a}, to: {b}, op: {data.draw(st.sampled_from(['copy', 'reduce']))}}}\n"
        for a, b, c in moves
        if a != b and max(a, b) < size
    ]
    source = text("random", "".join(lines) or "  []\n", kind, topology=f"links: {links}", params="{}", chunks=chunks)
    flat = flatten(load("t.yaml", source))
    assert (follow(Full(flat)) == ()) == simulate(flat)
    assert not is_symmetric(flat)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.data())
def test_rotation_moves_every_bit(x: int, y: int, z: int, data: st.DataObject) -> None:
    sides = (x, y, z)
    hop = tuple(data.draw(st.integers(-4, 4)) for _ in sides)
    numbers = {p: n for n, p in enumerate(itertools.product(*(range(s) for s in sides)))}
    for p, number in numbers.items():
        moved = tuple((a - b) % s for a, b, s in zip(p, hop, sides, strict=True))
        assert rotation(sides, hop)(1 << number) == 1 << numbers[moved]
