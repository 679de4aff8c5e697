"""The judge on algorithms with something wrong: each kind of fault, whole messages, and the depth at which they run."""

import pytest
from msccl_files import changed, codes, judged, own

from ringsched.diagnostics import Diagnostic, render
from ringsched.importers.judge import Judgement


def step(number: int, type_: str, source: str, target: str, needs: str = "-1 -1", flag: int = 0, count: int = 1) -> str:
    block, before = needs.split()
    return (
        f'<step s="{number}" type="{type_}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
        f'dstoff="{target[1:]}" cnt="{count}" depid="{block}" deps="{before}" hasdep="{flag}"/>\n'
    )


def block(id: int, send: int, receive: int, *steps: str, channel: int = 0) -> str:
    return f'<tb id="{id}" send="{send}" recv="{receive}" chan="{channel}">\n{"".join(steps)}</tb>\n'


def algorithm(
    coll: str,
    *gpus: tuple[str, ...],
    chunks: int | None = None,
    sizes: str = "2 2 2",
    proto: str = "Simple",
    more: str = "",
) -> Judgement:
    """`sizes`: of input, output and scratch at every rank."""
    i, o, s = sizes.split()
    total = int(i) if chunks is None else chunks
    inner = "".join(
        f'<gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">\n{"".join(blocks)}</gpu>\n'
        for rank, blocks in enumerate(gpus)
    )
    head = f'<algo name="t" proto="{proto}" nchunksperloop="{total}" ngpus="{len(gpus)}" coll="{coll}" {more}>\n'
    return judged(f"{head}{inner}</algo>\n")


def only(judgement: Judgement) -> Diagnostic:
    assert judgement.verdict == "wrong"
    (finding,) = judgement.findings
    return finding


IN_PLACE = 'inplace="1"'


# -- what cannot be joined up ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("send", "message"),
    [
        (0, 'block 0 of rank 0 has send="0": that is its own rank'),
        (7, 'block 0 of rank 0 has send="7": ranks are 0 … 1'),
        (-2, 'block 0 of rank 0 has send="-2": ranks are 0 … 1'),
        (-1, 'a step of type "s" in a block without a peer to send'),
    ],
)
def test_peers(send: int, message: str) -> None:
    judgement = algorithm("custom", (block(0, send, -1, step(0, "s", "i0", "o0")),), ())
    assert (codes(judgement)[0], judgement.findings[0].message) == ("RS810", message)
    assert judgement.least_depth is None


def test_two_blocks_at_one_end_of_a_connection() -> None:
    sends = (block(0, 1, -1, step(0, "s", "i0", "o0")), block(1, 1, -1, step(0, "s", "i1", "o1")))
    receives = (block(0, -1, 0, step(0, "r", "i0", "o0"), step(1, "r", "i1", "o1")),)
    judgement = algorithm("custom", sends, receives)
    assert codes(judgement) == ["RS811", "RS815"]
    assert judgement.findings[0].message == "blocks 0 and 1 of rank 0 both send on the connection 0 → 1, channel 0"
    apart = (sends[0], block(1, 1, -1, step(0, "s", "i1", "o1"), channel=1))
    joined = (block(0, -1, 0, step(0, "r", "i0", "o0")), block(1, -1, 0, step(0, "r", "i1", "o1"), channel=1))
    assert codes(algorithm("custom", apart, joined)) == ["RS704"]


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ("5 0", "rank 0 has no block 5"),
        ("1 3", "rank 0 has no step 3 in block 1"),
        ("1 -1", "rank 0 has no step -1 in block 1"),
    ],
)
def test_dependences_on_nothing(needs: str, message: str) -> None:
    blocks = (block(0, -1, -1, step(0, "cpy", "i0", "o0", needs)), block(1, -1, -1, step(0, "cpy", "i1", "o1")))
    finding = only(algorithm("custom", blocks))
    assert (finding.code, finding.message) == ("RS812", message)


def test_a_signal_that_is_not_given() -> None:
    """… at the step or after it: the next signal of the block counts for what comes before."""

    def gpu(*flags: int) -> tuple[str, ...]:
        first = block(0, -1, -1, *(step(n, "cpy", f"i{n}", f"o{n}", flag=flag) for n, flag in enumerate(flags)))
        return (first, block(1, -1, -1, step(0, "nop", "i0", "o0", "0 0", flag=1)))

    finding = only(algorithm("custom", gpu(0, 0)))
    assert finding.code == "RS813"
    assert finding.message == "rank 0 waits for step 0 of block 0, which never says that it is over"
    assert codes(algorithm("custom", gpu(0, 1))) == ["RS704"]
    assert codes(algorithm("custom", gpu(1, 0))) == ["RS704"]


def test_a_late_signal_does_not_stand_in_for_a_dependence() -> None:
    """The file says to wait for a step before the one that writes; that the signal comes after it is luck."""
    writes = block(0, -1, -1, step(0, "nop", "i0", "o0"), step(1, "cpy", "i0", "o0", flag=1))
    reads = block(1, -1, -1, step(0, "cpy", "o0", "s0", "0 0"))
    assert codes(algorithm("custom", (writes, reads))) == ["RS817"]


def test_a_writer_without_signals() -> None:
    text = own("reduce_scatter_scratch").replace('depid="-1" deps="-1"', 'depid="0" deps="0"', 1)
    judgement = judged(
        text.replace('<tb id="0"', '<tb id="1"', 1).replace(
            "<tb",
            '<tb id="0" send="-1" recv="-1" chan="0"><step s="0" type="nop" depid="-1" deps="-1" hasdep="0"/></tb><tb',
            1,
        )
    )
    assert judgement.verdict == "right"
    assert [a.message for a in judgement.advice] == ['no step has hasdep="1": all are taken to have it']


@pytest.mark.parametrize(
    ("sent", "received", "word"), [(2, 1, "sent"), (1, 2, "received"), (1, 0, "sent"), (0, 1, "received")]
)
def test_unmatched_messages(sent: int, received: int, word: str) -> None:
    a = block(0, 1, -1, *(step(n, "s", f"i{n}", f"o{n}") for n in range(sent)))
    b = block(0, -1, 0, *(step(n, "r", f"i{n}", f"o{n}") for n in range(received)))
    finding = only(algorithm("custom", (a,), (b,)))
    assert finding.code == "RS815"
    assert finding.message.startswith(f"{'2 messages are' if 2 in (sent, received) else '1 message is'} {word} on the")
    assert f"on the connection 0 → 1, channel 0, and {min(sent, received) or 'none'} " in finding.message


def test_counts_that_do_not_match() -> None:
    a, b = block(0, 1, -1, step(0, "s", "i0", "o0", count=2)), block(0, -1, 0, step(0, "r", "i0", "o0"))
    finding = only(algorithm("custom", (a,), (b,)))
    assert finding.message == "2 chunks are sent, and 1 received, on the connection 0 → 1, channel 0"
    assert finding.code == "RS816"


def test_steps_of_no_chunks_move_nothing() -> None:
    a, b = block(0, 1, -1, step(0, "s", "i0", "o0", count=0)), block(0, -1, 0)
    assert codes(algorithm("custom", (a,), (b,))) == ["RS704"]


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "source", "target", "message"),
    [
        ("cpy", "i2", "o0", "i[2] is outside of the input buffer of rank 0"),
        ("cpy", "i0", "o2", "o[2] is outside of the output buffer of rank 0"),
        ("cpy", "s0", "o0", "s[0] is outside of the scratch buffer of rank 0"),
        ("re", "i-1", "o0", "i[-1] is outside of the input buffer of rank 0"),
    ],
)
def test_bounds(type_: str, source: str, target: str, message: str) -> None:
    finding = only(algorithm("allreduce", (block(0, -1, -1, step(0, type_, source, target)),), sizes="2 2 0"))
    assert (finding.code, finding.message) == ("RS814", message)


def test_bounds_of_ranges_and_of_what_is_declared() -> None:
    steps = step(0, "cpy", "i0", "o0", count=2)
    assert algorithm("allreduce", (block(0, -1, -1, steps),)).verdict == "right"
    assert codes(algorithm("allreduce", (block(0, -1, -1, steps),), sizes="2 1 0")) == ["RS814"]
    # More than the collective has is declared, and used.
    assert codes(algorithm("allreduce", (block(0, -1, -1, steps),), chunks=1)) == ["RS814"]


def test_what_a_step_does_not_read_need_not_be_there() -> None:
    ring = own("broadcast_star").replace('type="r" srcbuf="i" srcoff="0"', 'type="r" srcbuf="i" srcoff="-1"')
    assert judged(ring).verdict == "right"


@pytest.mark.parametrize("inplace", [0, 1])
def test_buffers_that_are_the_same_memory(inplace: int) -> None:
    """With inplace="1" a copy from input to output of an allreduce is a copy onto itself, and not needed."""
    blocks = [(block(0, 1 - r, 1 - r, step(0, "s", "i0", "s0"), step(1, "rrc", "i0", "i0")),) for r in (0, 1)]
    judgement = algorithm("allreduce", *blocks, sizes="1 1 0", more=f'inplace="{inplace}"')
    assert judgement.verdict == ("right" if inplace else "wrong")
    assert [a.code for a in judgement.advice] == ([] if inplace else ["RS914"])


def test_in_place_gathers_and_scatters() -> None:
    """i[c] ≡ o[rank · k + c] for allgather, o[c] ≡ i[rank · k + c] for reduce_scatter."""
    gather = [(block(0, 1 - r, 1 - r, step(0, "s", "i0", f"o{r}"), step(1, "r", "i0", f"o{1 - r}")),) for r in (0, 1)]
    assert algorithm("allgather", *gather, sizes="1 2 0", chunks=2, more=IN_PLACE).verdict == "right"
    assert codes(algorithm("allgather", *gather, sizes="1 2 0", chunks=2)) == ["RS819"]
    scatter = [(block(0, 1 - r, 1 - r, step(0, "s", f"i{1 - r}", "o0"), step(1, "rrc", "o0", "o0")),) for r in (0, 1)]
    assert algorithm("reduce_scatter", *scatter, sizes="2 1 0", chunks=2, more=IN_PLACE).verdict == "right"
    assert codes(algorithm("reduce_scatter", *scatter, sizes="2 1 0", chunks=2)) == ["RS819"]


# -- races -------------------------------------------------------------------------------------------------------------


def race(first: str, second: str) -> list[str]:
    return codes(algorithm("custom", (block(0, -1, -1, first), block(1, -1, -1, second)), sizes="4 4 4"))


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (step(0, "cpy", "i0", "o0"), step(0, "cpy", "i1", "o0"), ["RS817"]),  # two writes
        (step(0, "cpy", "i0", "o0"), step(0, "cpy", "o0", "s0"), ["RS817"]),
        (step(0, "cpy", "o0", "s0"), step(0, "cpy", "i0", "o0"), ["RS817"]),
        (step(0, "cpy", "i0", "o0", count=2), step(0, "cpy", "o1", "s0"), ["RS817"]),  # overlapping ranges
        (step(0, "re", "i0", "o0"), step(0, "re", "i1", "o0"), ["RS817"]),
        (step(0, "cpy", "i0", "o0"), step(0, "cpy", "i0", "o1"), ["RS704"]),  # two reads
        (step(0, "cpy", "i0", "o0", flag=1), step(0, "cpy", "o0", "s0", "0 0"), ["RS704"]),
        (step(0, "cpy", "i0", "o0", count=2), step(0, "cpy", "o2", "s0"), ["RS704"]),
        (step(0, "cpy", "o0", "o1", count=2), step(0, "nop", "i0", "o0"), ["RS817"]),  # a step with itself
        (step(0, "cpy", "o0", "o0", count=2), step(0, "nop", "i0", "o0"), ["RS704"]),
        (step(0, "re", "s1", "s0", count=2), step(0, "nop", "i0", "o0"), ["RS817"]),
        (step(0, "cpy", "o0", "o0"), step(0, "cpy", "o0", "s0"), ["RS704"]),  # it is there all the time
        (step(0, "cpy", "o0", "o0"), step(0, "cpy", "i0", "o0"), ["RS817"]),  # may be put back as it was
        (step(0, "re", "o0", "o0"), step(0, "cpy", "o0", "s0"), ["RS817"]),
    ],
)
def test_races(first: str, second: str, found: list[str]) -> None:
    assert race(first, second) == found


def test_messages_put_events_in_order() -> None:
    """A copy before a send comes before what follows the answer; without the answer nothing is known."""

    def both(answer: str) -> list[str]:
        sends = block(0, 1, -1, step(0, "cpy", "i0", "o0"), step(1, "s", "i0", "o0"))
        reads = block(1, -1, 1, step(0, answer, "i0", "s0"), step(1, "cpy", "o0", "s1"))
        other = block(0, 0, 0, step(0, "r", "i0", "s0"), step(1, "s", "i0", "s0") if answer == "r" else "")
        return codes(algorithm("custom", (sends, reads), (other,)))

    assert both("r") == ["RS704"]
    assert both("nop") == ["RS817"]


def test_room_on_a_connection_is_not_relied_on() -> None:
    """The third send waits for the first receive with Simple, and that follows the read; with LL it does not wait."""
    sends = block(0, 1, -1, *(step(n, "s", f"i{n}", f"o{n}") for n in range(3)), step(3, "cpy", "i0", "o0"))
    reads = block(1, 1, -1, step(0, "s", "o0", "s0"), channel=1)
    first = block(0, -1, 0, step(0, "r", "i0", "s0", flag=1), channel=1)
    rest = block(1, -1, 0, step(0, "r", "i0", "o0", "0 0"), step(1, "r", "i1", "o1"), step(2, "r", "i2", "o2"))
    assert codes(algorithm("custom", (sends, reads), (first, rest), sizes="4 4 4")) == ["RS817"]


@pytest.mark.parametrize(("in_place", "own_", "found"), [(1, 0, []), (1, 1, ["RS817"] * 2), (0, 0, [])])
def test_a_copy_of_what_is_there_already(in_place: int, own_: int, found: list[str]) -> None:
    """Some writers copy a rank's own chunk to the output in place, too, where it is already, and send it meanwhile."""

    def gpu(r: int) -> tuple[str, ...]:
        copies = block(0, -1, -1, step(0, "cpy", "i0", f"o{(r + own_) % 2}"))
        return copies, block(1, 1 - r, 1 - r, step(0, "s", "i0", f"o{r}"), step(1, "r", "i0", f"o{1 - r}"))

    judgement = algorithm("allgather", gpu(0), gpu(1), chunks=2, sizes="1 2 0", more=f'inplace="{in_place}"')
    assert codes(judgement) == found


def test_many_races_are_told_once_each_and_not_all() -> None:
    blocks = tuple(block(n, -1, -1, step(0, "cpy", "i0", "o0")) for n in range(30))
    judgement = algorithm("custom", blocks)
    assert codes(judgement) == ["RS817"] * 10
    assert judgement.findings[-1].notes[-1] == "and 19 more pairs of steps"


# -- depth -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "proto", "least", "verdict"),
    [
        (1, "Simple", 1, "right"),
        (2, "Simple", 2, "right"),
        (3, "Simple", 3, "wrong"),
        (8, "LL", 8, "right"),
        (9, "LL128", 9, "wrong"),
    ],
)
def test_the_least_depth(count: int, proto: str, least: int, verdict: str) -> None:
    """Both ranks send everything before they receive anything."""

    def gpu(rank: int) -> tuple[str, ...]:
        sends = [step(n, "s", f"i{n}", "s0") for n in range(count)]
        receives = [step(count + n, "rrc", f"i{n}", f"i{n}") for n in range(count)]
        return (block(0, 1 - rank, 1 - rank, *sends, *receives),)

    judgement = algorithm("allreduce", gpu(0), gpu(1), sizes=f"{count} {count} 0", proto=proto, more=IN_PLACE)
    assert (judgement.least_depth, judgement.verdict) == (least, verdict)
    assert codes(judgement) == ([] if verdict == "right" else ["RS818"])


def test_a_step_that_receives_and_sends_needs_both_at_once() -> None:
    """So a ring of them needs room for two messages: none lets go of one before it can pass it on."""
    text = own("reduce_line")
    assert judged(text).least_depth == 1

    def gpu(r: int) -> tuple[str, ...]:
        own_, last, other = f"o{r}", f"o{(r - 1) % 3}", f"o{(r - 2) % 3}"
        steps = step(0, "s", own_, own_), step(1, "rcs", last, last), step(2, "r", other, other)
        return (block(0, (r + 1) % 3, (r - 1) % 3, *steps),)

    ring = algorithm("allgather", gpu(0), gpu(1), gpu(2), chunks=3, sizes="1 3 0", more=IN_PLACE)
    assert (ring.verdict, ring.least_depth) == ("right", 2)


def test_a_circle_of_dependences_hangs_at_any_depth() -> None:
    blocks = (
        block(0, -1, -1, step(0, "cpy", "i0", "o0", "1 0", 1)),
        block(1, -1, -1, step(0, "cpy", "i1", "o1", "0 0", 1)),
    )
    judgement = algorithm("allreduce", blocks)
    finding = only(judgement)
    assert judgement.least_depth is None
    assert finding.message == "it hangs with any number of messages in flight: 2 steps wait in a circle"
    assert finding.notes == (
        "rank 0, block 0, step 0: waits for rank 0, block 1, step 0",
        "rank 0, block 1, step 0: waits for rank 0, block 0, step 0",
        "no number of messages in flight is enough",
    )
    itself = algorithm(
        "allreduce", (block(0, -1, -1, step(0, "cpy", "i0", "o0", "0 1"), step(1, "cpy", "i1", "o1", flag=1)),)
    )
    assert only(itself).message == "it hangs with any number of messages in flight: a step waits for itself"


# -- results -----------------------------------------------------------------------------------------------------------


def two(coll: str, *steps: str, more: str = IN_PLACE) -> Judgement:
    """Both ranks run the same block, towards each other."""
    return algorithm(coll, *((block(0, 1 - r, 1 - r, *steps),) for r in (0, 1)), sizes="1 1 1", more=more)


SEND, ADD = step(0, "s", "i0", "i0"), step(1, "rrc", "i0", "i0")


def test_a_sum() -> None:
    assert two("allreduce", SEND, ADD).verdict == "right"
    finding = only(two("allreduce", SEND, step(1, "r", "i0", "i0")))
    assert (finding.code, finding.message) == ("RS819", "o[0] of rank 0 is not what allreduce promises")
    assert finding.notes == (
        "there: i[0] of rank 1",
        "promised: i[0] of all 2 ranks",
        "missing: i[0] of rank 0",
        "2 chunks are wrong, at ranks 0, 1",
    )


def test_a_term_that_is_counted_twice() -> None:
    finding = only(two("allreduce", SEND, step(1, "rrc", "i0", "s0"), step(2, "re", "s0", "i0")))
    assert finding.notes[0] == "there: i[0] of ranks 0, 0, 1"
    assert finding.notes[2] == "too often: i[0] of rank 0"


def test_memory_that_nothing_has_written() -> None:
    finding = only(two("allreduce", SEND, step(1, "rrc", "s0", "i0")))
    assert finding.notes[0] == "there: i[0] of rank 1 + memory that nothing has written"
    assert [label.text for label in finding.secondary] == ["reads memory that nothing has written"]
    nothing = only(two("allreduce", SEND, step(1, "r", "i0", "s0"), more='inplace="0"'))
    assert nothing.notes[0] == "there: memory that nothing has written"
    assert nothing.primary is not None and nothing.primary.text == "nothing writes it"


def test_garbage_that_is_overwritten_does_no_harm() -> None:
    assert two("allreduce", SEND, step(1, "re", "s0", "s0"), step(2, "rrc", "i0", "i0")).verdict == "right"


def test_doubling_without_end_is_still_wrong() -> None:
    steps = [step(n, "re", "i0", "i0") for n in range(2, 60)]
    assert codes(two("allreduce", SEND, ADD, *steps)) == ["RS819"]


@pytest.mark.parametrize("coll", ["custom", "alltoallv", "send", "allgatherv"])
def test_collectives_of_which_nothing_is_known(coll: str) -> None:
    judgement = two(coll, SEND, ADD)
    assert (judgement.verdict, codes(judgement)) == ("undecided", ["RS704"])
    assert judgement.findings[0].message == f"it is not known what {coll!r} promises"


def test_a_reduction_that_loses_its_operand() -> None:
    a = block(0, 1, -1, step(0, "s", "i0", "i1"))
    lost = only(algorithm("custom", (a,), (block(0, -1, 0, step(0, "rrc", "i0", "i1")),)))
    assert (lost.code, lost.help) == ("RS821", 'to add to i[1], write srcbuf="i" srcoff="1"')
    for kept in ("s0", "o1"):
        assert codes(algorithm("custom", (a,), (block(0, -1, 0, step(0, "rrc", "i0", kept)),))) == ["RS704"]
    saved = step(0, "cpy", "i1", "s0"), step(1, "rrc", "i0", "i1")
    assert codes(algorithm("custom", (a,), (block(0, -1, 0, *saved),))) == ["RS704"]


@pytest.mark.parametrize(
    ("coll", "chunks", "message"),
    [
        ("allgather", 3, "3 chunks cannot be shared out to 2 ranks"),
        ("allreduce", 0, "there are no chunks"),
    ],
)
def test_sizes_that_do_not_fit(coll: str, chunks: int, message: str) -> None:
    finding = only(algorithm(coll, (), (), chunks=chunks))
    assert (finding.code, finding.message) == ("RS820", f"sizes that do not fit: {message}")


def test_what_is_too_large_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = algorithm("allreduce", (), (), chunks=1 << 28)
    assert (judgement.verdict, codes(judgement)) == ("undecided", ["RS701"])
    many = [step(n, "cpy", "s0", "s1", count=90_000_000) for n in range(3)]
    assert codes(algorithm("allreduce", (block(0, -1, -1, *many),), sizes="1 1 999999999")) == ["RS701"]
    monkeypatch.setattr("ringsched.importers.judge.MAX_MOVES", 1)
    assert codes(two("allreduce", SEND, ADD)) == ["RS701"]


def test_roots() -> None:
    """The root is the one for which it is right, unless the file says which it is."""
    star = own("broadcast_star")
    judgement = judged(star)
    assert judgement.layout is not None and judgement.layout.root == 1
    assert judged(star.replace("inplace", 'root="1" inplace')).verdict == "right"
    finding = only(judged(star.replace("inplace", 'root="0" inplace')))
    assert finding.message == "o[0] of rank 0 is not what broadcast with root 0 promises"
    assert codes(judged(star.replace("inplace", 'root="3" inplace'))) == ["RS820"]
    for name, root in (("gather_star", 2), ("scatter_star", 2), ("reduce_line", 0)):
        layout = judged(own(name)).layout
        assert layout is not None and layout.root == root


# -- advice ------------------------------------------------------------------------------------------------------------


def advice(judgement: Judgement) -> list[str]:
    assert judgement.verdict == "right"
    assert all(finding.code == "RS911" for finding in judgement.advice)
    return [finding.message for finding in judgement.advice]


def test_limits_of_the_runtime() -> None:
    nops = [step(n, "nop", "i0", "o0") for n in range(2, 70)]
    assert advice(two("allreduce", SEND, ADD, *nops)) == ["the runtime takes at most 64 steps in a block"]
    waits = step(2, "nop", "i0", "o0", "0 1"), step(3, "cpy", "i0", "s0")
    flagged = ADD.replace('hasdep="0"', 'hasdep="1"')
    assert advice(two("allreduce", SEND, flagged, *waits)) == [
        "the runtime wants the step after a waiting `nop` to wait as well"
    ]
    assert advice(two("allreduce", SEND, flagged, waits[0])) == ["the runtime leaves out a `nop` that ends a block"]
    gap = ADD.replace('s="1"', 's="5"')
    assert advice(two("allreduce", SEND, gap)) == ["the runtime counts steps from 0, whatever their numbers are"]
    blocks = [(block(3, 1 - r, 1 - r, SEND, ADD, channel=40),) for r in (0, 1)]
    assert advice(algorithm("allreduce", *blocks, sizes="1 1 0", more=IN_PLACE)) == [
        "the runtime wants blocks numbered 0, 1, 2 … without a gap",
        "the runtime has channels 0 … 31",
    ]
    big = [
        (block(0, 1 - r, 1 - r, step(0, "s", "i0", "i0", count=72), step(1, "rrc", "i0", "i0", count=72)),)
        for r in (0, 1)
    ]
    assert advice(algorithm("allreduce", *big, sizes="72 72 0", more=IN_PLACE)) == [
        "the runtime takes at most 71 chunks in a step"
    ]
    star = [
        (*(block(p - 1, p, -1, SEND) for p in range(1, 40)),),
        *((block(0, -1, 0, step(0, "r", "i0", "i0")),) for _ in range(39)),
    ]
    assert advice(algorithm("broadcast", *star, sizes="1 1 0", more=IN_PLACE)) == [
        "the runtime takes at most 32 peers on a channel of a rank"
    ]


def test_slots_that_the_two_ends_name_differently() -> None:
    judgement = two("allreduce", step(0, "s", "i0", "s0"), ADD)
    assert judgement.verdict == "right"
    (finding,) = judgement.advice
    assert (finding.code, finding.message) == ("RS912", "sent for s[0] of rank 1, and put into i[0]")
    assert finding.notes == ("the receiving step decides", "and 1 more messages")


def test_a_whole_message() -> None:
    text = changed(own("reduce_scatter_scratch"), ('type="re"', 'type="cpy"'))
    (finding,) = judged(text).findings
    assert render(finding, {"a.xml": text}).splitlines() == [
        "error[RS819]: o[0] of rank 0 is not what reducescatter promises",
        "  --> a.xml:7:7",
        "  |",
        f"7 | {text.splitlines()[6]}",
        "  |       ^^^^^^^^^^^^^^^^^^^^^^ the last to write it",
        "  |",
        "  = there: i[0] of rank 1",
        "  = promised: i[0] of all 2 ranks",
        "  = missing: i[0] of rank 0",
        "  = more: ringsched explain RS819",
    ]
