"""Programs that multiply: what they look like, in which order they work, and that no wrong product goes unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from ringsched.diagnostics import DiagnosticError
from ringsched.expr import binary
from ringsched.lower.lower import lower
from ringsched.pipeline import Proven, open_schedule, prove, prove_transpose
from ringsched.program.expand import expand
from ringsched.program.printer import print_program
from ringsched.program.program import (
    Add,
    Copy,
    Instruction,
    Loop,
    Multiply,
    Program,
    Region,
    Round,
    Send,
    Wait,
    WaitDma,
    When,
    Zero,
)
from ringsched.program.simplify import simplify
from ringsched.schedule.loader import load, shipped_directory, shipped_names
from ringsched.schedule.printer import format_text, print_schedule
from ringsched.schedule.schedule import Lowering
from ringsched.schedule.schedule import Multiply as Compute
from ringsched.verify.hazards import check_hazards
from ringsched.verify.values import Activations, Meaningless, Term, Total, Weight, WrongValue, ZeroValue, check_values

NAMES = tuple(sorted(name for name in shipped_names() if "matmul" in name and name != "matmul"))
ONE_WAY = tuple(name for name in NAMES if not name.endswith("bidirectional"))
GATHERS = tuple(name for name in NAMES if name.startswith("all_gather"))
SUMS = tuple(name for name in NAMES if name.startswith("matmul"))
FEATURES = tuple(name for name in NAMES if "features" in name)
WAYS = pytest.mark.parametrize("symmetric", [True, False], ids=["one rank for all", "every rank"])


@cache
def lowered(name: str, size: int) -> Proven:
    return prove(open_schedule(name, {"N": size}))


def program(name: str, size: int) -> Program:
    return lowered(name, size).lowered.program


def unrolled(name: str, size: int) -> Program:
    return with_unroll(lowered(name, size), unroll=True)


def with_unroll(proven: Proven, *, unroll: bool) -> Program:
    flat = replace(proven.flat, schedule=replace(proven.flat.schedule, lowering=Lowering(unroll=unroll)))
    return lower(flat, symmetric=proven.symmetric).program


def test_there_are_nine() -> None:
    assert len(NAMES) == 9
    assert sorted(GATHERS + SUMS) == list(NAMES)


# ---- the whole text ---------------------------------------------------------------------------------------------


ALL_GATHER_MATMUL = """\
program all_gather_matmul (r in 0 .. 2)
  buffer     x         input    1 unit
  buffer     w         input    1 unit
  buffer     o         output   3 units
  buffer     gathered  scratch  3 units
  semaphore  done      dma      1
  semaphore  received  dma      2
  semaphore  barrier   barrier  1

  signal   barrier at (r - 1) % 3 by 1
  wait     barrier for 1
  send     x → gathered[r] at (r + 1) % 3               sent: done, received: received[0]
  multiply o[r] = x @ w
  wait     received[0] for gathered[(r - 1) % 3]
  send     gathered[(r - 1) % 3] → gathered[(r - 1) % 3] at (r + 1) % 3 sent: done, received: received[1]
  multiply o[(r - 1) % 3] = gathered[(r - 1) % 3] @ w
  wait     received[1] for gathered[(r + 1) % 3]
  multiply o[(r + 1) % 3] = gathered[(r + 1) % 3] @ w
  wait     done for x
  wait     done for gathered[(r - 1) % 3]
"""

ALL_GATHER_MATMUL_FEATURES = """\
program all_gather_matmul_features (r in 0 .. 2)
  buffer     x         input    1 unit
  buffer     w         input    3 units
  buffer     o         output   1 unit
  buffer     gathered  scratch  3 units
  buffer     total     scratch  1 unit
  semaphore  done      dma      1
  semaphore  received  dma      2
  semaphore  barrier   barrier  1

  signal   barrier at (r - 1) % 3 by 1
  wait     barrier for 1
  send     x → gathered[r] at (r + 1) % 3               sent: done, received: received[0]
  multiply total = x @ w[r]
  wait     received[0] for gathered[(r - 1) % 3]
  send     gathered[(r - 1) % 3] → gathered[(r - 1) % 3] at (r + 1) % 3 sent: done, received: received[1]
  multiply total = total + gathered[(r - 1) % 3] @ w[(r - 1) % 3]
  wait     received[1] for gathered[(r + 1) % 3]
  multiply o = total + gathered[(r + 1) % 3] @ w[(r + 1) % 3]
  wait     done for x
  wait     done for gathered[(r - 1) % 3]
"""

MATMUL_REDUCE_SCATTER = """\
program matmul_reduce_scatter (r in 0 .. 2)
  buffer     x         input    3 units
  buffer     w         input    1 unit
  buffer     o         output   1 unit
  buffer     first     scratch  1 unit
  buffer     partial   scratch  1 unit
  buffer     slots     scratch  2 units
  semaphore  done      dma      1
  semaphore  received  dma      2
  semaphore  barrier   barrier  1

  signal   barrier at (r - 1) % 3 by 1
  multiply first[0] = x[(r - 1) % 3] @ w
  wait     barrier for 1
  send     first[0] → slots[0] at (r + 1) % 3           sent: done, received: received[0]
  multiply partial[0] = x[(r + 1) % 3] @ w
  wait     received[0] for slots[0]
  add      slots[0] = slots[0] + partial[0]
  send     slots[0] → slots[1] at (r + 1) % 3           sent: done, received: received[1]
  multiply partial[0] = x[r] @ w
  wait     received[1] for slots[1]
  add      o = slots[1] + partial[0]
  wait     done for first[0]
  wait     done for slots[0]
"""

MATMUL_REDUCE_SCATTER_FEATURES = """\
program matmul_reduce_scatter_features (r in 0 .. 2)
  buffer     x         input    1 unit
  buffer     w         input    3 units
  buffer     o         output   1 unit
  buffer     first     scratch  1 unit
  buffer     partial   scratch  1 unit
  buffer     slots     scratch  2 units
  semaphore  done      dma      1
  semaphore  received  dma      2
  semaphore  barrier   barrier  1

  signal   barrier at (r - 1) % 3 by 1
  multiply first[0] = x @ w[(r - 1) % 3]
  wait     barrier for 1
  send     first[0] → slots[0] at (r + 1) % 3           sent: done, received: received[0]
  multiply partial[0] = x @ w[(r + 1) % 3]
  wait     received[0] for slots[0]
  add      slots[0] = slots[0] + partial[0]
  send     slots[0] → slots[1] at (r + 1) % 3           sent: done, received: received[1]
  multiply partial[0] = x @ w[r]
  wait     received[1] for slots[1]
  add      o = slots[1] + partial[0]
  wait     done for first[0]
  wait     done for slots[0]
"""

ROLLED = """\
program all_gather_matmul_features (r in 0 .. 11)
  buffer     x         input    1 unit
  buffer     w         input    12 units
  buffer     o         output   1 unit
  buffer     gathered  scratch  12 units
  buffer     total     scratch  1 unit
  semaphore  done      dma      1
  semaphore  received  dma      11
  semaphore  barrier   barrier  1

  signal   barrier at (r - 1) % 12 by 1
  wait     barrier for 1
  send     x → gathered[r] at (r + 1) % 12              sent: done, received: received[0]
  multiply total = x @ w[r]
  for s in 1 .. 10
    wait     received[s - 1] for gathered[(r - s) % 12]
    send     gathered[(r - s) % 12] → gathered[(r - s) % 12] at (r + 1) % 12 sent: done, received: received[s]
    multiply total = total + gathered[(r - s) % 12] @ w[(r - s) % 12]
  wait     received[10] for gathered[(r + 1) % 12]
  multiply o = total + gathered[(r + 1) % 12] @ w[(r + 1) % 12]
  wait     done for x
  for s in 1 .. 10
    wait     done for gathered[(r - s) % 12]
"""


@pytest.mark.parametrize(
    ("name", "size", "text"),
    [
        ("all_gather_matmul", 3, ALL_GATHER_MATMUL),
        ("all_gather_matmul_features", 3, ALL_GATHER_MATMUL_FEATURES),
        ("matmul_reduce_scatter", 3, MATMUL_REDUCE_SCATTER),
        ("matmul_reduce_scatter_features", 3, MATMUL_REDUCE_SCATTER_FEATURES),
        ("all_gather_matmul_features", 12, ROLLED),
    ],
)
def test_whole_program(name: str, size: int, text: str) -> None:
    assert print_program(program(name, size)) == text


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_multiplies_and_that_is_all(name: str) -> None:
    body = print_program(program(name, 1)).split("\n\n")[1]
    assert body in ("  multiply o = x @ w\n", "  multiply total = x @ w\n  round    o = total\n")


@pytest.mark.parametrize("name", NAMES)
def test_rolled_is_unrolled(name: str) -> None:
    proven = lowered(name, 12)
    rolled, flat = with_unroll(proven, unroll=False), with_unroll(proven, unroll=True)
    loops = [i for i in rolled.body if isinstance(i, Loop)]
    assert loops and not any(isinstance(i, Loop) for i in flat.body)
    assert expand(rolled).execution == expand(flat).execution
    assert expand(rolled, symmetric=False).execution == expand(flat, symmetric=False).execution


@pytest.mark.parametrize("name", NAMES)
def test_transpose(name: str) -> None:
    """Where the gradient is a kernel, it is right with a trace of every rank, too."""
    backward = prove_transpose(lowered(name, 4))
    if backward is not None:
        expansion = expand(backward.lowered.program, symmetric=False)
        assert check_hazards(expansion.execution, 3).ok
        assert not check_values(expansion, backward.flat.promise, backward.flat.schedule.compute)


# ---- the order --------------------------------------------------------------------------------------------------

SIZES = pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 12])


@SIZES
@pytest.mark.parametrize("name", GATHERS)
def test_what_a_neighbour_waits_for_is_sent_before_it_is_multiplied(name: str, size: int) -> None:
    body = unrolled(name, size).body
    products = [k for k, i in enumerate(body) if isinstance(i, Multiply)]
    own = [k for k in products if reads(body[k], "x")]
    assert own[: len(own)] == products[: len(own)]  # this rank's own chunk first
    for k in products:
        source = multiply_at(body, k).source
        assert not any(isinstance(i, Send) and meet(i.source, source) for i in body[k:])


@SIZES
@pytest.mark.parametrize("name", GATHERS)
def test_nothing_is_multiplied_before_it_is_there(name: str, size: int) -> None:
    body = unrolled(name, size).body
    for k, i in enumerate(body):
        if isinstance(i, Multiply) and i.source.buffer == "gathered":
            assert any(isinstance(w, WaitDma) and meet(w.region, i.source) for w in body[:k])


@SIZES
@pytest.mark.parametrize("name", [name for name in GATHERS if name in FEATURES])
def test_the_sum_goes_to_the_result_with_the_last_product(name: str, size: int) -> None:
    """Or, where that is of several units, right after it."""
    body = unrolled(name, size).body
    writers = [i for i in body if isinstance(i, Multiply | Round)]
    assert [i.target.buffer for i in writers] == ["total"] * (len(writers) - 1) + ["o"]
    assert [i.plus is None for i in writers if isinstance(i, Multiply)][:2] == [True, False]
    assert name not in ONE_WAY or not any(isinstance(i, Round) for i in body)
    last = max(k for k, i in enumerate(body) if isinstance(i, Multiply))
    assert not any(isinstance(i, Round) for k, i in enumerate(body) if k != last + 1)


@SIZES
@pytest.mark.parametrize("name", SUMS)
def test_a_partial_sum_is_computed_before_the_arrival_that_it_is_added_to_is_waited_for(name: str, size: int) -> None:
    body = unrolled(name, size).body
    found = 0
    for k, i in enumerate(body):
        if isinstance(i, Add) and i.right.buffer == "partial":
            product = max(j for j in range(k) if isinstance(body[j], Multiply) and writes(body[j], i.right))
            arrival = max(j for j in range(k) if isinstance(body[j], WaitDma) and waits(body[j], i.left))
            assert product < arrival
            assert not any(isinstance(between, Send | Multiply) for between in body[arrival:k])
            found += 1
    assert found or size == 2


@SIZES
@pytest.mark.parametrize("name", SUMS)
def test_the_first_product_is_computed_while_the_barrier_fills(name: str, size: int) -> None:
    body = unrolled(name, size).body
    kinds = [type(i) for i in body]
    assert kinds.index(Multiply) < kinds.index(Wait) < kinds.index(Send)


@SIZES
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_sent_at_once(name: str, size: int) -> None:
    """No product stands between the addition and the send that a neighbour waits for."""
    body = unrolled(name, size).body
    for k, i in enumerate(body):
        if isinstance(i, Send) and i.source.buffer.startswith("slots"):
            added = max(j for j in range(k) if isinstance(body[j], Add) and body[j].target == i.source)
            assert not any(isinstance(between, Multiply) for between in body[added:k])


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_copied(name: str) -> None:
    """Every chunk of the result is written by a product, a sum, or a neighbour."""
    assert not any(isinstance(i, Copy | Zero) for i in program(name, 4).body)


def multiply_at(body: tuple[Instruction, ...], k: int) -> Multiply:
    found = body[k]
    assert isinstance(found, Multiply)
    return found


def reads(instruction: Instruction, buffer: str) -> bool:
    return isinstance(instruction, Multiply) and instruction.source.buffer == buffer


def writes(instruction: Instruction, region: Region) -> bool:
    return isinstance(instruction, Multiply) and instruction.target == region


def waits(instruction: Instruction, region: Region) -> bool:
    return isinstance(instruction, WaitDma) and instruction.region == region


def meet(a: Region, b: Region) -> bool:
    """Of one buffer, and one within the other: indices are in their simplest form."""
    common = min(len(a.index), len(b.index))
    return a.buffer == b.buffer and a.index[:common] == b.index[:common]


# ---- values -----------------------------------------------------------------------------------------------------


def wrong_values(proven: Proven, body: tuple[Instruction, ...], *, symmetric: bool) -> tuple[WrongValue, ...]:
    changed = replace(proven.lowered.program, body=body)
    return check_values(expand(changed, symmetric=symmetric), proven.flat.promise, proven.flat.schedule.compute)


def products(proven: Proven) -> Iterator[tuple[int, Multiply]]:
    for k, i in enumerate(proven.lowered.program.body):
        if isinstance(i, Multiply):
            yield k, i


def edited(proven: Proven, k: int, *instead: Instruction) -> tuple[Instruction, ...]:
    body = proven.lowered.program.body
    return (*body[:k], *instead, *body[k + 1 :])


def shifted(region: Region, size: int) -> Region:
    index = simplify(binary("%", binary("+", region.index[0], 1), size))
    return replace(region, index=(index, *region.index[1:]))


def rejected(proven: Proven, body: tuple[Instruction, ...], *, symmetric: bool) -> WrongValue:
    """At every rank; the first one."""
    wrong = wrong_values(proven, body, symmetric=symmetric)
    ranks = {w.rank for w in wrong}
    assert ranks == ({0} if symmetric else set(range(proven.flat.topology.ranks)))
    return wrong[0]


@WAYS
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", FEATURES)
def test_another_part_of_the_weight(name: str, size: int, symmetric: bool) -> None:
    proven = lowered(name, size)
    for k, product in products(proven):
        changed = edited(proven, k, replace(product, weight=shifted(product.weight, size)))
        assert isinstance(rejected(proven, changed, symmetric=symmetric).found, Meaningless | Term)


@WAYS
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_another_source(name: str, size: int, symmetric: bool) -> None:
    proven = lowered(name, size)
    tried = 0
    for k, product in products(proven):
        own = product.source.buffer == "x" and name in GATHERS
        if product.source.index and not own:
            changed = replace(product, source=shifted(product.source, size))
            rejected(proven, edited(proven, k, changed), symmetric=symmetric)
            tried += 1
    assert tried or (name in SUMS and name in FEATURES)  # all of x is a factor there


@WAYS
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_product_left_out(name: str, size: int, symmetric: bool) -> None:
    proven = lowered(name, size)
    for k, _ in products(proven):
        rejected(proven, edited(proven, k), symmetric=symmetric)


@WAYS
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_product_done_twice(name: str, size: int, symmetric: bool) -> None:
    """It is added twice; one that is only written is the same again."""
    proven = lowered(name, size)
    for k, product in products(proven):
        twice = edited(proven, k, product, product)
        if product.plus == product.target:
            assert isinstance(rejected(proven, twice, symmetric=symmetric).found, Meaningless)
        else:
            assert not wrong_values(proven, twice, symmetric=symmetric)


@WAYS
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("name", [name for name in GATHERS if name in FEATURES])
def test_a_product_added_to_nothing(name: str, size: int, symmetric: bool) -> None:
    """Written over the sum so far; or the first of them added to memory that was never written."""
    proven = lowered(name, size)
    for k, product in products(proven):
        if product.plus is None:
            changed = edited(proven, k, replace(product, plus=product.target))
            assert isinstance(rejected(proven, changed, symmetric=symmetric).found, Meaningless)
        else:
            found = rejected(proven, edited(proven, k, replace(product, plus=None)), symmetric=symmetric).found
            assert isinstance(found, Total)


@WAYS
@pytest.mark.parametrize("name", [name for name in NAMES if name in SUMS or name not in FEATURES])
def test_a_product_added_to_something(name: str, symmetric: bool) -> None:
    """Sums over ranks are additions of their own."""
    proven = lowered(name, 3)
    for k, product in products(proven):
        wrong = wrong_values(proven, edited(proven, k, replace(product, plus=product.target)), symmetric=symmetric)
        assert wrong[0].found == Meaningless("a product is added to something")


@WAYS
@pytest.mark.parametrize("name", [name for name in NAMES if name not in FEATURES])
def test_a_chunk_that_is_not_multiplied(name: str, symmetric: bool) -> None:
    proven = lowered(name, 3)
    for k, product in products(proven):
        changed = edited(proven, k, Round(target=product.target, source=product.source))
        found = rejected(proven, changed, symmetric=symmetric).found
        allowed = (Meaningless("a sum of a product and what is none"),)
        assert found in allowed or (isinstance(found, Term) and not found.multiplied)


@WAYS
@pytest.mark.parametrize("name", [name for name in GATHERS if name not in FEATURES])
def test_a_product_multiplied_again(name: str, symmetric: bool) -> None:
    proven = lowered(name, 3)
    for k, product in products(proven):
        again = replace(product, source=product.target)
        assert rejected(proven, edited(proven, k, product, again), symmetric=symmetric).found == Meaningless(
            "a product of things that do not belong together"
        )


@WAYS
@pytest.mark.parametrize("name", NAMES)
def test_factors_swapped(name: str, symmetric: bool) -> None:
    """The order of the factors matters."""
    proven = lowered(name, 3)
    for k, product in products(proven):
        changed = replace(product, source=product.weight, weight=product.source)
        assert isinstance(rejected(proven, edited(proven, k, changed), symmetric=symmetric).found, Meaningless)


@WAYS
@pytest.mark.parametrize("name", NAMES)
def test_a_result_that_is_no_product(name: str, symmetric: bool) -> None:
    """A factor, or zero, in place of the whole result."""
    proven = lowered(name, 3)
    body = proven.lowered.program.body
    everything = Region(buffer="o")
    found = {w.found for w in wrong_values(proven, (*body, Zero(target=everything)), symmetric=symmetric)}
    assert found == {ZeroValue()}
    if name in ("all_gather_matmul", "all_gather_matmul_bidirectional"):
        return  # w is a unit, and the result several
    factor = Round(target=everything, source=Region(buffer="w"))
    found = {w.found for w in wrong_values(proven, (*body, factor), symmetric=symmetric)}
    assert all(isinstance(value, Weight | Activations | Meaningless) for value in found)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FEATURES])
def test_products_where_chunks_are_promised(name: str) -> None:
    """Without `compute:`, what comes out is not what the collective promises."""
    proven = lowered(name, 3)
    assert check_values(expand(proven.lowered.program), proven.flat.promise)


# ---- schedules --------------------------------------------------------------------------------------------------

EACH_ON_ARRIVAL = """\
schedule: t
collective: all_gather
topology: {ring: N}
params: {N: 4}
chunks: [N, 3]
compute: {multiply: on arrival, shard: SHARD}
steps:
  - for: s in 0 .. N - 2
    do:
      - send: chunk[(r - s) % N, d]
        each: d in 0 .. 2
        to: r + 1
"""
TORUS = """\
schedule: t
collective: all_gather
topology: {torus: [3, 3]}
chunks: [3, 3]
compute: {multiply: on arrival, shard: SHARD}
steps:
  - {for: s in 0 .. 1, do: [{send: "chunk[(x - s) % 3, y]", to: [x + 1, y]}]}
  - {for: t in 0 .. 1, do: [{send: "chunk[0:3, (y - t) % 3]", to: [x, y + 1]}]}
"""
HEAD = """\
schedule: t
collective: all_reduce
topology: {line: 3}
chunks: [3]
compute: {multiply: before sending, shard: SHARD}
steps:
"""
HOPS = """\
  - {send: "chunk[C]", to: r + 1, op: reduce, when: r == 0}
  - {send: "chunk[C]", to: r + 1, op: reduce, when: r == 1}
  - {send: "chunk[C]", to: r - 1, when: r == 2}
  - {send: "chunk[C]", to: r - 1, when: r == 1}
"""
LINE = HEAD + "".join(HOPS.replace("C", str(chunk)) for chunk in range(3))


@pytest.mark.parametrize("shard", ["rows", "features"])
@pytest.mark.parametrize("text", [EACH_ON_ARRIVAL, TORUS, LINE], ids=["each", "torus", "line"])
def test_other_shapes(text: str, shard: str) -> None:
    """Not symmetric, of several dimensions, in a loop over `each`: every rank with a trace of its own."""
    proven = prove(load("t.yaml", text.replace("SHARD", shard)))
    for one in (proven.lowered.program, with_unroll(proven, unroll=True), with_unroll(proven, unroll=False)):
        expansion = expand(one, symmetric=False)
        assert check_hazards(expansion.execution, 3).ok
        assert not check_values(expansion, proven.flat.promise, proven.flat.schedule.compute)


def test_a_guarded_last_product() -> None:
    """Where the last product stands in a loop or under a guard, the sum goes to the result afterwards."""
    body = prove(load("t.yaml", EACH_ON_ARRIVAL.replace("SHARD", "features")))
    rolled = with_unroll(body, unroll=False).body
    rounds = [k for k, i in enumerate(rolled) if isinstance(i, Round)]
    assert len(rounds) == 1
    last = max(k for k, i in enumerate(rolled) if isinstance(i, Loop | When | Multiply) and multiplies(i))
    assert rounds[0] == last + 1
    changed = replace(body.lowered.program, body=tuple(i for i in rolled if not isinstance(i, Round)))
    assert check_values(expand(changed), body.flat.promise, body.flat.schedule.compute)


def multiplies(instruction: Instruction) -> bool:
    if isinstance(instruction, Loop | When):
        return any(map(multiplies, instruction.body))
    return isinstance(instruction, Multiply)


REFUSED = {
    "a chunk arrives at a rank more than once": """\
collective: all_gather
topology: {ring: 3}
chunks: [3]
compute: {multiply: on arrival, shard: rows}
steps:
  - use: all_gather
    with: {N: 3}
  - {send: "chunk[r]", to: r + 1}
""",
    "a transfer with `each:`, or of several pieces, starts with a rank's own term": """\
collective: reduce_scatter
topology: {ring: 2}
chunks: [2, 3]
compute: {multiply: before sending, shard: rows}
steps:
  - {send: "chunk[1 - r, d]", each: d in 0 .. 2, to: r + 1, op: reduce}
""",
    "a transfer takes chunks of several ranks at once": """\
collective: all_reduce
topology: {line: 2}
chunks: [2]
compute: {multiply: before sending, shard: rows}
steps:
  - {send: chunk, to: 1 - r, op: reduce}
""",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_interleaved(reason: str) -> None:
    text = f"schedule: t\n{REFUSED[reason]}"
    prove(load("t.yaml", "\n".join(line for line in text.split("\n") if "compute" not in line)))  # right without it
    with pytest.raises(DiagnosticError) as caught:
        prove(load("t.yaml", text))
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("RS607", "the multiply cannot be interleaved")
    assert found.primary is not None and found.primary.text == reason


@pytest.mark.parametrize("shard", ["rows", "features"])
@pytest.mark.parametrize("moment", ["on arrival", "before sending"])
def test_printed_and_read_again(moment: str, shard: str) -> None:
    kind = "all_gather" if moment == "on arrival" else "reduce_scatter"
    text = (
        f"chunks: [N]\ncompute:   {{shard: {shard},   multiply: '{moment}'}} # how\nschedule: t\n"
        f"collective: {kind}\nparams: {{N: 4}}\ntopology: {{ring: N}}\nsteps:\n  - use: {kind}\n"
    )
    schedule = load("t.yaml", text)
    assert schedule.compute == Compute(moment=moment, shard=shard)  # type: ignore[arg-type]
    printed = print_schedule(schedule)
    assert f"\ncompute: {{multiply: {moment}, shard: {shard}}}\nsteps:" in printed
    assert load("t.yaml", printed) == schedule
    assert print_schedule(load("t.yaml", printed)) == printed == format_text(printed, "t.yaml")
    formatted = format_text(text, "t.yaml")
    assert load("t.yaml", formatted) == schedule
    assert f"\ncompute: {{shard: {shard}, multiply: {moment}}}  # how\n" in formatted


@pytest.mark.parametrize("name", NAMES)
def test_shipped_files_are_formatted(name: str) -> None:
    path = shipped_directory() / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    assert format_text(text, str(path)) == text
    assert load(path, print_schedule(load(path))) == load(path)


def test_rows_unless_it_says_features() -> None:
    text = "schedule: t\ncollective: all_gather\ntopology: {ring: 2}\nchunks: [2]\nsteps: [{use: all_gather}]\n"
    schedule = load("t.yaml", text.replace("steps", "compute: {multiply: on arrival}\nsteps"))
    assert schedule.compute == Compute(moment="on arrival", shard="rows")
    assert load("t.yaml", text).compute is None
