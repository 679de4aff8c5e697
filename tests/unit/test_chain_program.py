"""Chains: the Program of all layers, with what is wrong in its mutants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from chains import ACTIVATIONS, FEATURES, PAIRS, program, proven

from ringsched.diagnostics import InternalError
from ringsched.expr import Var, binary
from ringsched.lower.chain import PROVEN_LAYERS, chain_program, finishing
from ringsched.lower.streams import LAYERS
from ringsched.pipeline import compile_schedule, open_schedule, prove
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
    Signal,
    Wait,
    WaitDma,
    When,
)
from ringsched.program.simplify import simplify
from ringsched.verify.chain_values import wrong_ranks
from ringsched.verify.hazards import check_hazards

SIZES = {"sharded": (1, 2, 3, 4, 5, 6, 7, 8, 11), "whole": (1, 2, 3, 4, 5, 8)}


@pytest.mark.parametrize(
    ("activation", "ranks"),
    [
        *(("sharded", ranks) for ranks in (1, 2, 3, 4, 5, 6, 7, 8, 11)),
        *(("whole", ranks) for ranks in (1, 2, 3, 4, 5, 8)),
    ],
)
@pytest.mark.parametrize("links", PAIRS.values(), ids=PAIRS)
def test_no_hazard(links: tuple[str, ...], activation: str, ranks: int) -> None:
    """One rank that stands for all, and each with a trace of its own: two calls in a row, one to four layers."""
    chain = proven(links, ranks, activation)
    for layers in (*PROVEN_LAYERS, 4):
        whole = chain.program(layers)
        assert check_hazards(expand(whole).execution, calls=2).ok
        if ranks <= 5:
            full = expand(whole, symmetric=False).execution
            assert not full.symmetric and check_hazards(full, calls=2).ok


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_text_is_that_of_any_number_of_layers(activation: str) -> None:
    """Only the loop's bound, and that of the guards, is a number in one and a name in the other."""
    chain = proven(PAIRS["both ways"], 4, activation)
    named, three = print_program(chain.program()), print_program(chain.program(3))
    renamed = named.replace(f"{LAYERS.name} - 1", "2")
    renamed = renamed.replace(f"< {LAYERS.name}", "< 3").replace(f">= {LAYERS.name}", ">= 3")
    assert [line for line in renamed.splitlines() if "input" not in line] == [
        line for line in three.splitlines() if "input" not in line
    ]


def test_layers_share_memory_and_weights_are_fetched_ahead() -> None:
    shown = print_program(program(PAIRS["both ways"], 4, 3))
    assert shown.count("gathered_1  ") == 1
    fetches = [line.split("copy")[1].split("done:")[0].strip() for line in shown.splitlines() if " copy " in line]
    assert fetches == [
        "w1[0] → weights_1",
        "w2[0] → weights_2",
        "w1[layer + 1] → weights_1",
        "w2[layer + 1] → weights_2",
    ]


def test_a_whole_activation_is_cut_at_the_start_and_gathered_at_the_end() -> None:
    shown = print_program(program(PAIRS["both ways"], 4, 3, "whole"))
    before, after = shown.split("for layer in 0 .. 2\n")
    assert "copy     x[r] → shard" in before and "send" not in before
    behind = [line.strip() for line in after.splitlines() if line.startswith("  ") and not line.startswith("    ")]
    sends = [line.split()[1:4] for line in behind if line.startswith("send")]
    assert sends == [
        ["last", "→", "o[r]"],
        ["last", "→", "o[r]"],
        ["o[(r", "-", "1)"],
        ["o[(r", "+", "1)"],
    ]
    assert not any("multiply" in line or "add" in line for line in behind)


def test_the_result_is_rounded_once() -> None:
    """What the last layer adds up is stored in the result itself, in its dtype."""
    for activation, result in (("sharded", "o"), ("whole", "last")):
        shown = print_program(program(PAIRS["both ways"], 4, 3, activation)).split("for layer")[1]
        stored = [line.split()[1] for line in shown.splitlines() if line.strip().startswith(("add", "round"))][-2:]
        assert stored == ["shard", result]


# -- mutants ----------------------------------------------------------------------------------------------------------


def without_one(body: tuple[Instruction, ...]) -> Iterator[tuple[Instruction, tuple[Instruction, ...]]]:
    """Each wait, signal, send or copy removed, at any depth."""
    for number, i in enumerate(body):
        rest = (*body[:number], *body[number + 1 :])
        match i:
            case Loop() | When():
                for removed, inner in without_one(i.body):
                    yield removed, (*body[:number], replace(i, body=inner), *body[number + 1 :])
            case Send() | Copy() | Signal() | Wait() | WaitDma():
                yield i, rest
            case _:
                pass


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("links", PAIRS.values(), ids=PAIRS)
def test_mutants_are_refused(links: tuple[str, ...], activation: str) -> None:
    whole = program(links, 3, 3, activation)
    mutants = list(without_one(whole.body))
    assert len(mutants) > 20
    for removed, body in mutants:
        report = check_hazards(expand(replace(whole, body=body)).execution, calls=2)
        assert not report.ok, removed


def products(body: tuple[Instruction, ...]) -> Iterator[tuple[Instruction, tuple[Instruction, ...]]]:
    """Each product, sum or copy by the core removed, at any depth; no check of hazards can miss it."""
    for number, i in enumerate(body):
        if isinstance(i, Loop | When):
            for removed, inner in products(i.body):
                yield removed, (*body[:number], replace(i, body=inner), *body[number + 1 :])
        elif isinstance(i, Multiply | Add | Round):
            yield i, (*body[:number], *body[number + 1 :])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("links", PAIRS.values(), ids=PAIRS)
def test_what_computes_something_else_is_refused(links: tuple[str, ...], activation: str) -> None:
    chain = proven(links, 3, activation)
    whole = program(links, 3, 2, activation)

    def wrong(body: tuple[Instruction, ...]) -> tuple[int, ...]:
        return wrong_ranks(
            whole,
            expand(replace(whole, body=body), symmetric=False).execution,
            chain.links[0].flat.promise,
            chain.layers,
            finishing(len(links), whole=activation == "whole"),
        )

    assert wrong(whole.body) == ()
    mutants = list(products(whole.body))
    assert len(mutants) > 5
    for removed, body in mutants:
        assert wrong(body) == (0, 1, 2), removed


def test_credits_would_be_missed() -> None:
    """A layer that does not wait for its terms runs into the next one's: so the check does look across layers."""
    whole = program(FEATURES, 4, 2)
    loop = next(i for i in whole.body if isinstance(i, Loop))
    twice = tuple(i for i in loop.body for _ in range(2 if isinstance(i, Send) else 1))
    body = tuple(replace(i, body=twice) if i is loop else i for i in whole.body)
    assert not check_hazards(expand(replace(whole, body=body)).execution, calls=2).ok


def test_a_weight_fetched_too_early() -> None:
    """Before the last product by it: the copy and the product race."""
    whole = program(PAIRS["both ways"], 4, 3)
    loop = next(i for i in whole.body if isinstance(i, Loop))
    fetch = next(i for i in loop.body if isinstance(i, When) and isinstance(i.body[0], Copy))
    early = (fetch, *(i for i in loop.body if i is not fetch))
    body = tuple(replace(i, body=early) if i is loop else i for i in whole.body)
    assert check_hazards(expand(replace(whole, body=body)).execution, calls=2).races


@pytest.mark.parametrize("ranks", [3, 4])
def test_a_shard_of_another_rank_is_noticed(ranks: int) -> None:
    """What is taken at the start, what is gathered at the end, and where it is put."""
    chain = proven(PAIRS["both ways"], ranks, "whole")
    whole = chain.program(2)
    loop = next(number for number, i in enumerate(whole.body) if isinstance(i, Loop))
    other_rank = simplify(binary("%", binary("+", Var(name="r"), 1), ranks))

    def moved(region: Region) -> Region:
        return replace(region, index=(other_rank, *region.index[1:]))

    mutants = []
    for number, i in enumerate(whole.body):
        match i:
            case Copy() if i.source.buffer == "x":
                mutants.append((number, replace(i, source=moved(i.source))))
            case Copy() if i.target.buffer == "o":
                mutants.append((number, replace(i, target=moved(i.target))))
            case Send() if number > loop and i.source.buffer == "last":
                mutants.append((number, replace(i, target=moved(i.target))))
    assert len(mutants) == 4
    for number, i in mutants:
        mutant = replace(whole, body=(*whole.body[:number], i, *whole.body[number + 1 :]))
        full = expand(mutant, symmetric=False).execution
        promise, finishes = chain.links[0].flat.promise, finishing(2, whole=True)
        assert not check_hazards(full, calls=2).ok or wrong_ranks(mutant, full, promise, chain.layers, finishes), i


def test_compiled() -> None:
    source = compile_schedule(open_schedule("tp_mlp")).source
    assert "@pl.loop(0, layers)" in source
    assert "of 1, 2 and 3 layers" in source


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Wait, "layers is wrong"), (Multiply, "layers computes something else")],
    ids=["race", "values"],
)
@pytest.mark.parametrize("name", ["tp_mlp", "tp_mlp_whole"])
def test_the_pipeline_refuses_a_wrong_program(
    name: str, kind: type, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wait on the barrier, and without one product."""

    def damaged(*arguments: object, **options: object) -> Program:
        whole = chain_program(*arguments, **options)
        bodies = without_one(whole.body) if kind is Wait else products(whole.body)
        return replace(whole, body=next(body for left_out, body in bodies if isinstance(left_out, kind)))

    monkeypatch.setattr("ringsched.pipeline.chain_program", damaged)
    with pytest.raises(InternalError, match=message):
        prove(open_schedule(name, {"N": 4}))
