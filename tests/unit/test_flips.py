"""Ranks that exchange with those that differ from them in some bits: rank 0 stands for all, up to an exclusive or."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from shipped import DOUBLING
from taken_out import leaves, without

from ringsched.expr import Binary, Expr, Flipped, Int, NotAffine, Var, evaluate, integer
from ringsched.model.loads import loads_of
from ringsched.pipeline import open_schedule, prove
from ringsched.program.expand import expand
from ringsched.program.program import Buffer, Program, Region, Zero
from ringsched.schedule.flat import flatten
from ringsched.schedule.loader import load
from ringsched.verify.dataflow import findings_of, follow, is_symmetric
from ringsched.verify.dataflow_full import Full
from ringsched.verify.hazards import check_hazards
from ringsched.verify.values import check_values

RANKS = 8
R = Var(name="r")
EXPRESSIONS: list[Expr] = [
    R,
    Binary(op="^", left=R, right=Int(value=5)),
    Binary(op="^", left=Int(value=3), right=Binary(op="^", left=R, right=Int(value=6))),
    Binary(op="%", left=Binary(op="^", left=R, right=Int(value=1)), right=Int(value=RANKS)),
    Binary(op="^", left=R, right=R),
    Binary(op="+", left=R, right=Int(value=0)),
]
OTHERS: list[Expr] = [
    Binary(op="+", left=R, right=Int(value=1)),
    Binary(op="^", left=R, right=Int(value=RANKS)),
    Binary(op="%", left=R, right=Int(value=4)),
    Binary(op="//", left=R, right=Int(value=2)),
    Binary(op="*", left=R, right=Int(value=1)),
]


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_as_numbers(expr: Expr) -> None:
    found = evaluate(expr, {"r": Flipped(0, RANKS)})
    constant = found.constant if isinstance(found, Flipped) else None
    for rank in range(RANKS):
        assert integer(expr, {"r": rank}) == (found if constant is None else rank ^ constant)


@pytest.mark.parametrize("expr", OTHERS)
def test_what_is_no_flip(expr: Expr) -> None:
    with pytest.raises(NotAffine):
        evaluate(expr, {"r": Flipped(0, RANKS)})


FLIPS = [name for name in DOUBLING if not name.endswith("swing")]


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("name", FLIPS)
def test_one_rank_stands_for_all(name: str, ranks: int) -> None:
    proven = prove(open_schedule(name, {"N": ranks}))
    assert proven.symmetric
    one, full = (expand(proven.lowered.program, symmetric=way) for way in (True, False))
    assert len(one.execution.traces) == 1 and len(full.execution.traces) == ranks
    assert check_hazards(full.execution, calls=2).ok
    assert not check_values(one, proven.flat.promise, None)
    assert not check_values(full, proven.flat.promise, None)


@pytest.mark.parametrize("name", FLIPS)
def test_damage_is_seen_from_rank_0_as_from_all(name: str) -> None:
    program = prove(open_schedule(name, {"N": RANKS})).lowered.program
    for number in range(len(leaves(program.body))):
        damaged = replace(program, body=without(program.body, number))
        one, full = (check_hazards(expand(damaged, symmetric=way).execution, calls=2).ok for way in (True, False))
        assert (one, full) == (False, False), number


WRONG = {
    "another bit": ("to: r ^ 1 << k", "to: r ^ 1"),
    "another chunk": ("r ^ c]", "r ^ c ^ 1]"),
    "one chunk too few": ("(1 << k) - 1", "(1 << k) - 2"),
    "a step too few": ("k in 0 ..", "k in 1 .."),
}


@pytest.mark.parametrize("change", WRONG)
def test_wrong_schedules(change: str) -> None:
    text = (open_schedule("all_gather_doubling")).path
    with open(text, encoding="utf-8") as file:
        source = file.read()
    old, new = WRONG[change]
    assert old in source
    flat = flatten(load("t.yaml", source.replace(old, new).replace("N: 4", f"N: {RANKS}")))  # type: ignore[arg-type]
    assert flat.flips and is_symmetric(flat)
    mine, all_ranks = findings_of(flat), follow(Full(flat))
    assert mine and all_ranks
    assert [f.code for f in mine] == [f.code for f in all_ranks]


def test_a_dimension_of_another_size_does_not_flip() -> None:
    """Of 16 chunks on 8 ranks `chunk[r ^ 1]` is another one for each rank: rank 0 does not stand for all."""
    head = "schedule: t\ncollective: all_reduce\ntopology: {ring: 8}\nchunks: [16]\nsteps:\n"
    text = f"{head}  - {{send: 'chunk[r ^ 1]', to: r ^ 1, op: reduce}}\n"
    assert not is_symmetric(flatten(load("t.yaml", text)))  # type: ignore[arg-type]
    index = (Binary(op="^", left=R, right=Int(value=1)),)
    for size, alike in ((RANKS, True), (2 * RANKS, False)):
        buffer = Buffer(name="o", space="output", shape=(size,))
        zero = Zero(target=Region(buffer="o", index=index))
        program = Program(name="t", coordinates=("r",), sides=(RANKS,), buffers=(buffer,), semaphores=(), body=(zero,))
        assert expand(program).execution.symmetric is alike


def test_bits_and_sums_do_not_mix() -> None:
    """A schedule that flips bits in one place and counts on in another is looked at from every rank."""
    text = """\
schedule: t
collective: all_gather
topology: {ring: 4}
chunks: [4]
steps:
  - step:
      - {send: "chunk[r]", to: r ^ 1}
  - step:
      - {send: "chunk[r]", to: r + 1, when: r % 2 == 1}
      - {send: "chunk[r]", to: r - 1, when: r % 2 == 0}
      - {send: "chunk[r ^ 1]", to: r + 1, when: r % 2 == 1}
      - {send: "chunk[r ^ 1]", to: r - 1, when: r % 2 == 0}
"""
    flat = flatten(load("t.yaml", text))  # type: ignore[arg-type]
    assert flat.flips and not is_symmetric(flat)
    assert findings_of(flat) == ()
    prove(load("t.yaml", text))  # type: ignore[type-var]


def test_routed_transfers_load_every_link_on_their_way() -> None:
    flat = flatten(open_schedule("all_gather_doubling", {"N": 8}))  # type: ignore[arg-type]
    loads = loads_of(flat)
    busiest = [loads.busiest(step)[1] for step in range(3)]
    assert busiest == [1, 4, 16]  # hops of 1, 2 and 4 links, of 1, 2 and 4 chunks each way
    assert loads.directions()["r + 1"] == loads.directions()["r - 1"]


def test_routes() -> None:
    torus = flatten(open_schedule("all_gather_torus", {"X": 4, "Y": 4})).topology  # type: ignore[arg-type]
    for a, b in itertools.product(range(16), repeat=2):
        route = torus.route(a, b)
        assert [x for x, _ in route] == [a, *(y for _, y in route[:-1])][: len(route)]
        assert all(torus.linked(x, y) for x, y in route)
        assert not route if a == b else route[-1][1] == b
        hops = sum(min((p - q) % 4, (q - p) % 4) for p, q in zip(torus.at(a), torus.at(b), strict=True))
        assert len(route) == hops
