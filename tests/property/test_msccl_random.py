"""Random networks of blocks, all orders of turns: without a race there is one end, and the least depth is the least."""

import random

from msccl_agreement import judged
from msccl_execution import Algorithm, every_end

_Block = dict[str, object]


def network(source: random.Random) -> str:
    """Blocks of 2 or 3 ranks whose sends and receives match in number; what waits for what is arbitrary."""
    ranks = source.choice((2, 2, 3))
    blocks: list[list[_Block]] = [[] for _ in range(ranks)]
    taken: set[tuple[int, int, int]] = set()
    for _ in range(source.randint(1, 3)):
        sender, receiver = source.sample(range(ranks), 2)
        channel = source.choice((0, 0, 0, 1))
        if (sender, receiver, channel) in taken:
            continue
        taken.add((sender, receiver, channel))
        count = source.randint(1, 3)
        both = source.random() < 0.8
        _place(source, blocks[sender], "send", receiver, channel, ["s"] * count, both)
        _place(source, blocks[receiver], "recv", sender, channel, [source.choice(("r", "r", "rrc"))] * count, both)
    for own in blocks:
        if source.random() < 0.7:
            own.append({"send": -1, "recv": -1, "chan": 0, "types": [source.choice(("cpy", "re"))]})
    return _text(source, blocks)


def exchange(source: random.Random) -> str:
    """Two ranks with a block each that send and receive in some order: how much room they need depends on it."""
    count = source.randint(2, 4)
    blocks: list[list[_Block]] = []
    for rank in (0, 1):
        types = sorted(["s"] * count + ["r"] * count, key=lambda type_: source.random() + (type_ == "r") * 0.7)
        blocks.append([{"send": 1 - rank, "recv": 1 - rank, "chan": 0, "types": types}])
    return _text(source, blocks)


def _place(
    source: random.Random,
    blocks: list[_Block],
    way: str,
    peer: int,
    channel: int,
    types: list[str],
    both: bool,
) -> None:
    """In a block of its own, or in one that has the other way free."""
    for block in blocks:
        if both and block[way] == -1 and block["chan"] == channel:
            block[way] = peer
            mixed = [*block["types"], *types]  # type: ignore[misc]
            source.shuffle(mixed)
            block["types"] = mixed
            return
    blocks.append({"send": -1, "recv": -1, "chan": channel, way: peer, "types": list(types)})


def _text(source: random.Random, blocks: list[list[_Block]]) -> str:
    lines = [f'<algo name="t" proto="LL" nchunksperloop="2" ngpus="{len(blocks)}" coll="custom" inplace="0">']
    for rank, own in enumerate(blocks):
        lines.append(f'<gpu id="{rank}" i_chunks="2" o_chunks="2" s_chunks="2">')
        for id, block in enumerate(own):
            lines.append(f'<tb id="{id}" send="{block["send"]}" recv="{block["recv"]}" chan="{block["chan"]}">')
            types = block["types"]
            assert isinstance(types, list)
            for number, kind in enumerate(types):
                other = source.randrange(len(own))
                waits = other != id and source.random() < 0.25
                steps = own[other]["types"]
                assert isinstance(steps, list)
                need = f'depid="{other}" deps="{source.randrange(len(steps))}"' if waits else 'depid="-1" deps="-1"'
                slots = [f'"{source.choice("ios")}" {word}off="{source.randint(0, 1)}"' for word in ("src", "dst")]
                lines.append(
                    f'<step s="{number}" type="{kind}" srcbuf={slots[0]} dstbuf={slots[1]} cnt="1" {need} hasdep="1"/>'
                )
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def test_random_networks() -> None:
    source = random.Random(5)
    seen = {"hangs": 0, "needs depth": 0, "one end": 0, "races": 0, "several ends": 0}
    for number in range(160):
        text = network(source) if number % 3 else exchange(source)
        judgement = judged(text)
        assert judgement is not None, text
        algorithm = Algorithm(text, seed=number)
        least, codes = judgement.least_depth, [finding.code for finding in judgement.findings]
        assert set(codes) <= {"RS704", "RS817", "RS818", "RS821"}, codes
        for depth in (1, 2, None):
            ends = every_end(algorithm, depth, 250)
            if ends is None:
                break
            outcomes = {outcome for outcome, _ in ends}
            finishes = least is not None and (depth is None or depth >= least)
            assert outcomes == ({None} if finishes else {"hang"}), text
            if finishes and "RS817" not in codes:
                assert len(ends) == 1, text
        else:
            seen["hangs"] += least is None
            seen["needs depth"] += least is not None and least > 1
            if least is not None:
                seen["races" if "RS817" in codes else "one end"] += 1
                seen["several ends"] += ends is not None and len(ends) > 1
    assert all(count > 8 for count in seen.values()), seen
    # A race that changes nothing is still one: equal values, or memory that nothing reads again.
    assert seen["several ends"] > 0.8 * seen["races"], seen
