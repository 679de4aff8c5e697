"""Products and transfers one after the other: what the Programs look like, how they are asked for, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import ringsched as rs
from ringsched.collective import ScheduleError
from ringsched.diagnostics import DiagnosticError
from ringsched.expr import Var, binary
from ringsched.lower.lower import lower
from ringsched.pipeline import compile_schedule, open_schedule, prove, prove_transpose
from ringsched.program.expand import expand
from ringsched.program.printer import print_program
from ringsched.program.program import Instruction, Loop, Multiply, Region, Round, Send, Wait, WaitDma, When
from ringsched.program.simplify import simplify
from ringsched.schedule.loader import load
from ringsched.schedule.printer import format_text, print_schedule
from ringsched.schedule.schedule import Lowering
from ringsched.schedule.schedule import Multiply as Compute
from ringsched.verify.hazards import check_hazards
from ringsched.verify.values import check_values

GATHERS = tuple(f"all_gather_matmul{how}{ways}" for how in ("", "_features") for ways in ("", "_bidirectional"))
SCATTERS = tuple(name.replace("all_gather_matmul", "matmul_reduce_scatter") for name in GATHERS)
SUMS = ("matmul_all_reduce", *SCATTERS)
SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 12])

GATHERED = """\
  signal   barrier at (r - 1) % 3 by 1
  wait     barrier for 1
  send     x → gathered[r] at (r + 1) % 3               sent: done, received: received[0]
  wait     received[0] for gathered[(r - 1) % 3]
  send     gathered[(r - 1) % 3] → gathered[(r - 1) % 3] at (r + 1) % 3 sent: done, received: received[1]
  wait     received[1] for gathered[(r + 1) % 3]
  wait     done for x
  wait     done for gathered[(r - 1) % 3]
  multiply o = x @ w[r]
  multiply o = o + gathered[(r - 1) % 3] @ w[(r - 1) % 3]
  multiply o = o + gathered[(r + 1) % 3] @ w[(r + 1) % 3]
"""
SUMMED = """\
  signal   barrier at (r - 1) % 3 by 1
  multiply terms = x @ w
  wait     barrier for 1
  send     terms[(r - 1) % 3] → slots[0] at (r + 1) % 3 sent: done, received: received[0]
  wait     received[0] for slots[0]
  add      slots[0] = slots[0] + terms[(r + 1) % 3]
  send     slots[0] → slots[1] at (r + 1) % 3           sent: done, received: received[1]
  wait     received[1] for slots[1]
  add      o = slots[1] + terms[r]
  wait     done for terms[(r - 1) % 3]
  wait     done for slots[0]
"""


@pytest.mark.parametrize(
    ("name", "text"), [("all_gather_matmul_features", GATHERED), ("matmul_reduce_scatter_features", SUMMED)]
)
def test_whole_program(name: str, text: str) -> None:
    program = prove(open_schedule(name, {"N": 3}, "none")).lowered.program
    assert print_program(program).split("\n\n", 1)[1] == text


def leaves(body: tuple[Instruction, ...]) -> Iterator[Instruction]:
    for i in body:
        if isinstance(i, Loop | When):
            yield from leaves(i.body)
        else:
            yield i


@SIZES
@pytest.mark.parametrize("name", GATHERS + SUMS)
def test_products_stand_alone(name: str, size: int) -> None:
    """Behind all waits and sends, or before the first of them; the same transfers as of the collective alone."""
    proven = prove(open_schedule(name, {"N": size}, "none"))
    kinds = [type(i) for i in leaves(proven.lowered.program.body)]
    products = [k for k, kind in enumerate(kinds) if kind is Multiply]
    moves = [k for k, kind in enumerate(kinds) if kind in (Send, Wait, WaitDma)]
    if name in GATHERS:
        assert max(moves, default=-1) < min(products)
    else:
        assert len(products) == 1 and products[0] < min(moves, default=len(kinds))
    alone = prove(replace(open_schedule(name, {"N": size}), compute=None)).lowered.program
    assert kinds.count(Send) == [type(i) for i in leaves(alone.body)].count(Send)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("name", GATHERS + SUMS)
def test_right_with_a_trace_of_every_rank(name: str, size: int) -> None:
    """Rolled and unrolled; and so is the gradient, which overlaps nothing, either."""
    proven = prove(open_schedule(name, {"N": size}, "none"))
    backward = prove_transpose(proven)
    assert (backward is None) == (name == "matmul_all_reduce")
    for one in (proven, backward):
        for unroll in (True, False) if one is not None else ():
            assert one.flat.schedule.compute.overlap == "none"
            flat = replace(one.flat, schedule=replace(one.flat.schedule, lowering=Lowering(unroll=unroll)))
            for symmetric in (True, False):
                expansion = expand(lower(flat, symmetric=one.symmetric).program, symmetric=symmetric)
                assert check_hazards(expansion.execution, 3).ok
                assert not check_values(expansion, flat.promise, flat.schedule.compute)


@pytest.mark.parametrize("symmetric", [True, False])
def test_terms_of_other_chunks_are_noticed(symmetric: bool) -> None:
    """In an all-reduce no chunk has an owner: that they turn with the rank is told by the buffers alone."""
    proven = prove(open_schedule("matmul_all_reduce", {"N": 3}, "none"))
    program = proven.lowered.program
    (product,) = (i for i in program.body if isinstance(i, Multiply))
    for shift in (0, 1):
        places = [simplify(binary("%", binary("+", Var(name="r"), k), 3)) for k in range(3 + shift)]
        several = tuple(
            replace(product, target=Region(buffer="terms", index=(a,)), source=Region(buffer="x", index=(b,)))
            for a, b in zip(places[:3], places[shift:], strict=True)
        )
        body = tuple(each for i in program.body for each in (several if i is product else (i,)))
        expansion = expand(replace(program, body=body), symmetric=symmetric)
        wrong = check_values(expansion, proven.flat.promise, proven.flat.schedule.compute)
        assert bool(wrong) == bool(shift)


# ---- schedules ----------------------------------------------------------------------------------------------------

LINE = """\
schedule: t
collective: all_reduce
topology: {line: 3}
chunks: [2, 3]
compute: {multiply: before sending, shard: SHARD, overlap: none}
steps:
  - {send: chunk, to: r + 1, op: reduce, when: r == 0}
  - {send: chunk, to: r + 1, op: reduce, when: r == 1}
  - {send: "chunk[:, d]", each: d in 0 .. 2, to: r - 1, when: r == 2}
  - {send: chunk, to: r - 1, when: r == 1}
"""
SENT_ON = """\
schedule: t
collective: reduce_scatter
topology: {ring: 3}
chunks: [3]
compute: {multiply: before sending, overlap: OVERLAP}
steps:
  - for: s in 0 .. 1
    do:
      - send: chunk[(r - s - 2) % 3]
        to: r + 1
        op: reduce
  - send: chunk[(r - 1) % 3]
    to: r - 1
"""


@pytest.mark.parametrize("shard", ["rows", "features"])
def test_what_cannot_be_interleaved_can_be_put_apart(shard: str) -> None:
    text = LINE.replace("SHARD", shard)
    proven = prove(load("t.yaml", text))
    expansion = expand(proven.lowered.program, symmetric=False)
    assert check_hazards(expansion.execution, 3).ok
    assert not check_values(expansion, proven.flat.promise, proven.flat.schedule.compute)
    with pytest.raises(DiagnosticError, match="cannot be interleaved"):
        prove(load("t.yaml", text.replace("none", "full")))


@pytest.mark.parametrize("overlap", ["full", "none"])
def test_a_complete_sum_is_not_sent_on_to_where_it_is_promised(overlap: str) -> None:
    """The epilogue is applied by the last addition, which is elsewhere."""
    text = SENT_ON.replace("OVERLAP", overlap)
    prove(load("t.yaml", "\n".join(line for line in text.split("\n") if "compute" not in line)))  # right without it
    with pytest.raises(DiagnosticError) as caught:
        prove(load("t.yaml", text))
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("RS607", "the multiply cannot be lowered")
    assert found.primary is not None
    assert found.primary.text == "a sum is complete at a rank that it is not promised to, and is sent on"


def test_printed_and_read_again() -> None:
    schedule = open_schedule("all_gather_matmul", {}, "none")
    printed = print_schedule(schedule)
    assert "\ncompute: {multiply: on arrival, shard: rows, overlap: none}\nsteps:" in printed
    assert load("t.yaml", printed) == schedule
    assert print_schedule(load("t.yaml", printed)) == printed == format_text(printed, "t.yaml")
    full = printed.replace("none}", "full}")
    assert load("t.yaml", full).compute == Compute(moment="on arrival", overlap="full")
    assert "overlap" not in print_schedule(load("t.yaml", full))


# ---- asking for it ------------------------------------------------------------------------------------------------


def test_it_takes_the_place_of_what_the_file_says(tmp_path: Path) -> None:
    shipped = open_schedule("all_gather_matmul")
    file = tmp_path / "mine.yaml"
    file.write_text(print_schedule(open_schedule("all_gather_matmul", {}, "none")), encoding="utf-8")
    assert open_schedule(file).compute.overlap == open_schedule(file, {}, "none").compute.overlap == "none"
    assert open_schedule(file, {}, "full").compute == shipped.compute


def test_from_python() -> None:
    own, apart = (rs.compile("all_gather_matmul", overlap=overlap).source(N=4) for overlap in (None, "none"))
    text = compile_schedule(open_schedule("all_gather_matmul", {"N": 4}, "none")).source
    assert apart == text != own
    assert "\noverlap   none: products and transfers one after the other\n" in apart
    assert "all shards are multiplied when all are there" in apart
    assert "\ndef _multiply(*products):\n" in apart
    assert rs.compile("all_gather_matmul", overlap="full").source(N=4) == own


@pytest.mark.parametrize(
    ("name", "overlap", "message"),
    [
        ("all_gather", "none", "`overlap` is for one schedule that multiplies, and all_gather multiplies nothing"),
        ("tp_mlp", "none", "`overlap` is for one schedule that multiplies, and tp_mlp is a chain of them"),
        ("all_gather_matmul", "some", "`overlap` is `full` or `none`, not 'some'"),
    ],
)
def test_what_is_refused(name: str, overlap: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        rs.compile(name, overlap=overlap)
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("RS218", message)


def test_a_link_of_a_chain_overlaps(tmp_path: Path) -> None:
    for name in ("all_gather_matmul_features", "matmul_reduce_scatter_features"):
        overlap = "none" if name.startswith("all") else "full"
        (tmp_path / f"{name}.yaml").write_text(print_schedule(open_schedule(name, {}, overlap)), encoding="utf-8")
    links = "".join(f"  - use: {name}\n" for name in ("all_gather_matmul_features", "matmul_reduce_scatter_features"))
    chain = f"schedule: t\ntopology: {{ring: N}}\nparams: {{N: 4}}\nchain:\n{links}"
    with pytest.raises(DiagnosticError) as caught:
        load(tmp_path / "t.yaml", chain)
    (found,) = caught.value.diagnostics
    assert (found.code, found.message) == ("RS217", "`all_gather_matmul_features` overlaps nothing")
    assert found.primary is not None and found.primary.text == "has `overlap: none`"


def test_the_decisions_say_so() -> None:
    def products(overlap: str | None) -> str:
        found = prove(open_schedule("matmul_all_reduce", {}, overlap)).lowered.decisions
        return next(f"{d.choice}: {d.reason}" for d in found if d.subject == "products")

    assert products("none") == "all of them before the all-reduce: asked for by `overlap: none`, for comparison"
    assert products(None).startswith("each term just before it is sent or added: ")


def test_an_only_rank_rounds_what_it_has_computed() -> None:
    """The epilogue and the result's dtype come with the store."""
    body = prove(open_schedule("matmul_reduce_scatter", {"N": 1}, "none")).lowered.program.body
    assert [type(i) for i in body] == [Multiply, Round]
