"""What schedules put on their links, in units of one rank's shard over one link."""

from __future__ import annotations

import time
from collections import Counter
from fractions import Fraction

import pytest

from ringsched.diagnostics import DiagnosticError
from ringsched.model.loads import Loads, direction, hops, loads_of
from ringsched.pipeline import open_schedule
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.loader import load
from ringsched.verify.resolve import Resolver


def flat(
    steps: str, topology: str, collective: str = "all_gather", chunks: str = "[X, Y]", **values: int
) -> FlatSchedule:
    params = ", ".join(f"{name}: {value}" for name, value in values.items())
    head = f"schedule: t\ncollective: {collective}\ntopology: {topology}\nparams: {{{params}}}\nchunks: {chunks}\n"
    return flatten(load("t.yaml", f"{head}steps:\n{steps}"))


def counted(flat: FlatSchedule) -> list[dict[tuple[int, int], int]]:
    """The chunks of every step on every link, rank by rank."""
    resolver = Resolver(flat)
    found = []
    for number in range(len(flat.steps)):
        counts: Counter[tuple[int, int]] = Counter()
        for move in resolver.step(number):
            counts[move.sender, move.receiver] += len(move.chunks)
        found.append(dict(counts))
    return found


AXES = """\
  - {for: s in 0 .. X - 2, do: [{send: "chunk[(x - s) % X, y]", to: [x + 1, y]}]}
  - for: s in 0 .. Y // 2 - 1
    do:
      - {send: "chunk[:, (y - s) % Y]", to: [x, y + 1]}
      - {send: "chunk[:, (y + s) % Y]", to: [x, y - 1], when: s < (Y - 1) // 2}
"""


@pytest.mark.parametrize(("name", "ranks", "units", "steps"), [
    ("all_gather", 8, Fraction(7), 7),
    ("all_gather_bidirectional", 8, Fraction(7, 2), 4),
    ("all_gather_bidirectional", 16, Fraction(15, 2), 8),
    ("reduce_scatter_bidirectional", 16, Fraction(15, 2), 8),
    ("all_reduce", 8, Fraction(14), 14),
    ("all_reduce_bidirectional", 8, Fraction(7), 8),
    ("all_to_all", 8, Fraction(28), 7),
    ("shift", 4, Fraction(1), 1),
    ("exchange", 4, Fraction(1), 1),
])  # fmt: skip
def test_shipped_schedules(name: str, ranks: int, units: Fraction, steps: int) -> None:
    found = loads_of(flatten(open_schedule(name, {"N": ranks})))
    assert (found.units, len(found.steps), found.latency) == (units, steps, steps)


@pytest.mark.parametrize("topology", ["{torus: [X, Y]}", "{torus: [X, Y], bandwidth: [1, 3]}"])
@pytest.mark.parametrize(("x", "y"), [(3, 4), (2, 5), (4, 2), (2, 2)])
def test_rank_0_stands_for_all(topology: str, x: int, y: int) -> None:
    made = flat(AXES, topology, X=x, Y=y)
    found, every = loads_of(made), counted(made)
    assert found.symmetric
    assert [found.everywhere(step) for step in found.steps] == every
    total: Counter[tuple[int, int]] = Counter()
    for step in every:
        total.update(step)
    assert found.totals() == {hop: total[hop] for hop in hops(made.topology)}
    assert sum(found.totals().values()) == total.total()


def test_a_link_that_is_faster_takes_less() -> None:
    plain, fast = (
        loads_of(flat(AXES, place, X=3, Y=4))
        for place in ("{torus: [X, Y]}", "{torus: [X, Y], bandwidth: [1, 3], latency: [1, 2]}")
    )
    assert [plain.busiest(step) for step in range(4)] == [((0, 4), 1), ((0, 4), 1), ((0, 1), 3), ((0, 1), 3)]
    assert [fast.busiest(step)[1] for step in range(4)] == [1, 1, 1, 1]
    assert (plain.units, fast.units) == (8, 4)
    assert (plain.latency, fast.latency) == (4, 6)


def test_both_ways_round_a_side_of_two_is_one_link() -> None:
    steps = '  - step: [{send: "chunk[x, y]", to: [x + 1, y]}, {send: "chunk[x, y]", to: [x - 1, y]}]\n'
    two = loads_of(flat(steps, "{torus: [X, Y]}", X=2, Y=3))
    three = loads_of(flat(steps, "{torus: [X, Y]}", X=3, Y=3))
    twisted = loads_of(flat(steps, "{torus: [X, Y], twist: {x: [0, 1]}}", X=2, Y=3))
    assert (two.units, three.units, twisted.units) == (2, 1, 1)
    assert list(two.directions()) == ["x + 1", "y + 1", "y - 1"]
    assert list(twisted.directions()) == ["x + 1", "x - 1", "y + 1", "y - 1"]
    assert not twisted.symmetric


def test_directions_have_mean_and_largest() -> None:
    made = flat(
        "".join(f"  - {{send: 'chunk[{c}]', from: {a}, to: {a + 1}}}\n" for c, a in ((0, 0), (0, 1), (1, 0))),
        "{line: X}",
        "broadcast",
        "[2]",
        X=4,
    )
    found = loads_of(made)
    assert found.chunk == 2  # of 1 / 4 of the operand
    assert found.directions() == {"r + 1": (2, 4), "r - 1": (0, 0)}
    assert found.busiest(1) == ((1, 2), 2)
    assert found.units == 6


def test_explicit_links_are_their_own_directions() -> None:
    steps = '  - {send: "chunk[2]", from: 2, to: 10}\n  - {send: "chunk[2]", from: 10, to: 1}\n'
    links = ", ".join(f"[{a}, 10]" for a in range(10))
    found = loads_of(flat(steps, f"{{links: [{links}]}}", chunks="[11]"))
    assert list(found.directions())[:3] == ["0 → 10", "1 → 10", "2 → 10"]
    assert list(found.directions())[-1] == "10 → 9"
    assert {name: most for name, (_, most) in found.directions().items() if most} == {"2 → 10": 1, "10 → 1": 1}


def test_the_unit_of_each_collective() -> None:
    def chunk(collective: str, chunks: str) -> Fraction:
        return loads_of(flat("  []\n", "{ring: N}", collective, chunks, N=4)).chunk

    assert chunk("all_gather", "[N, 3]") == chunk("reduce_scatter", "[N, 3]") == Fraction(1, 3)
    assert chunk("all_to_all", "[N, N, 2]") == Fraction(1, 2)
    assert chunk("all_reduce", "[8]") == chunk("broadcast", "[8]") == chunk("reduce", "[2, 4]") == Fraction(1, 2)
    assert chunk("all_reduce", "[1]") == 4
    assert chunk("gather", "[N]") == chunk("scatter", "[N]") == chunk("{permute: r}", "[N]") == 1


def test_a_step_without_transfers_takes_no_time() -> None:
    found = loads_of(flat('  - {send: "chunk[r]", to: r + 1, when: r < 0}\n', "{ring: N}", chunks="[N]", N=4))
    assert found.busiest(0) == (None, 0)
    assert (found.units, found.latency) == (0, 0)


def test_a_transfer_over_no_link_is_refused() -> None:
    with pytest.raises(DiagnosticError) as caught:
        loads_of(flat('  - {send: "chunk[r]", to: r + 2}\n', "{ring: N}", chunks="[N]", N=4))
    assert [d.code for d in caught.value.diagnostics] == ["RS207"]


def test_the_direction_of_a_hop() -> None:
    twisted = flat("  []\n", "{torus: [X, Y], twist: {x: [0, 2]}}", X=2, Y=4).topology
    assert [direction(twisted, (0, other)) for other in twisted.neighbours(0)] == ["y + 1", "y - 1", "x + 1", "x - 1"]


def test_a_torus_of_1024_ranks_takes_little_time() -> None:
    made = flat(AXES, "{torus: [X, Y]}", X=32, Y=32)
    start = time.perf_counter()
    found: Loads = loads_of(made)
    assert found.units == 31 + 16 * 32
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize(
    "name", ["all_gather_bruck", "all_gather_doubling", "all_reduce_halving_doubling", "all_to_all_bruck"]
)
def test_the_links_of_every_rank_are_counted_where_transfers_are_routed(name: str, ranks: int) -> None:
    """Ranks that are alike up to a flip of bits, and ways round a ring that differ halfway round."""
    made = flatten(open_schedule(name, {"N": ranks}))
    found = loads_of(made)
    for number, counts in enumerate(found.steps):
        every: Counter[tuple[int, int]] = Counter()
        for move in Resolver(made).step(number):
            for hop in made.topology.route(move.sender, move.receiver):
                every[hop] += len(move.chunks)
        assert found.everywhere(counts) == every
