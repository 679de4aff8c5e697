"""The verdict on altered MSCCL algorithms is what executing them shows, in every order of turns where they are small.

All mutants: benchmarks/msccl_mutants.py.
"""

from pathlib import Path

import pytest
from msccl_agreement import judged, root_of, shown
from msccl_execution import Algorithm, Fault, every_order
from msccl_mutants import is_spelt_out, mutants

ROOT = Path(__file__).resolve().parents[2]
FILES = [p for p in sorted((ROOT / "tests" / "corpus" / "msccl").glob("*.xml")) if is_spelt_out(p.read_text("utf-8"))]
SMALL = ("reduce_scatter_scratch", "reduce_line", "broadcast_star", "gather_star", "scatter_star")
EVERY = {
    "all_reduce_exchange": 19,
    "all_reduce_relay": 11,
    "all_reduce_line": 11,
    "broadcast_star": 4,
}  # the larger ones are for the benchmark


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_verdicts_are_what_execution_shows(path: Path) -> None:
    """Right: nothing goes wrong. Wrong: something does."""
    seen = {"right": 0, "wrong": 0}
    for number, (what, text) in enumerate(mutants(path.read_text(encoding="utf-8"))):
        if number % EVERY.get(path.stem, 3):
            continue
        judgement = judged(text)
        verdict = "wrong" if judgement is None else judgement.verdict
        found = shown(text, judgement, seeds=2)
        assert (found is None) == (verdict == "right"), f"{what}: judged {verdict}, execution: {found}"
        seen[verdict] += 1
    assert seen["right"] and (seen["wrong"] or path.stem == "all_reduce_one")


@pytest.mark.parametrize("name", SMALL)
def test_every_order_of_turns(name: str) -> None:
    path = ROOT / "tests" / "corpus" / "msccl" / f"{name}.xml"
    tried = 0
    for number, (what, text) in enumerate(mutants(path.read_text(encoding="utf-8"))):
        if number % 7:
            continue
        judgement = judged(text)
        try:
            algorithm = Algorithm(text, root=root_of(judgement))
            outcomes = every_order(algorithm, algorithm.depth, 2_000)
        except Fault as fault:
            outcomes = {str(fault)}
        if outcomes is None:
            continue
        tried += 1
        right = judgement is not None and judgement.verdict == "right"
        # Whether a run ends is the same in every order; what it leaves behind is, where there is no race.
        assert (outcomes == {None}) == right, f"{what}: {outcomes}"
    assert tried > 10


def test_the_executor_sees_what_is_wrong() -> None:
    """Or else it would agree with anything."""
    text = (ROOT / "tests" / "corpus" / "msccl" / "all_reduce_exchange.xml").read_text(encoding="utf-8")
    assert shown(text, judged(text), 2) is None
    for old, new, found in [
        ('type="re"', 'type="cpy"', "values"),
        ('depid="0" deps="1"', 'depid="-1" deps="-1"', "values"),  # some order only
        ('type="r"', 'type="nop"', "left over"),
        ('srcbuf="s" srcoff="0"', 'srcbuf="s" srcoff="9"', "bounds"),
        ('depid="0" deps="1"', 'depid="2" deps="3"', "hang"),
    ]:
        assert old in text
        assert shown(text.replace(old, new, 1), None, 2) == found


def test_the_executor_sees_sums_that_get_lost() -> None:
    """Two blocks add to the same chunk at once: each order of whole steps gives the sum of all."""
    first, second = (
        f's="0" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="{dep}" deps="{dep}" hasdep="1"'
        for dep in (-1, 0)
    )

    def text(other: str) -> str:
        adding = "".join(
            f'<tb id="{n}" send="-1" recv="{n + 1}" chan="0"><step type="rrc" {step}/></tb>'
            for n, step in enumerate((first, other))
        )
        sending = f'<tb id="0" send="0" recv="-1" chan="0"><step type="s" {first}/></tb>'
        gpus = (f'<gpu id="{r}" i_chunks="1">{blocks}</gpu>' for r, blocks in enumerate((adding, sending, sending)))
        return f'<algo coll="reduce" nchunksperloop="1" ngpus="3" inplace="1" root="0">{"".join(gpus)}</algo>'

    torn = text(first)
    algorithm = Algorithm(torn)
    assert every_order(algorithm, algorithm.depth) == {None}
    assert shown(torn, judged(torn), 2) == "values"
    judgement = judged(text(second))
    assert judgement is not None and judgement.verdict == "right" and shown(text(second), judgement, 2) is None
