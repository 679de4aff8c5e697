"""Exports: what is written is judged right, and read back it means the same; traces are graphs whose messages match."""

import json
from collections import Counter

import pytest
from msccl_files import codes

from ringsched.diagnostics import DiagnosticError
from ringsched.exporters.chakra import Node, json_text, trace, wire
from ringsched.exporters.messages import messages
from ringsched.exporters.msccl import export
from ringsched.importers.convert import convert
from ringsched.pipeline import open_schedule
from ringsched.schedule.flat import FlatSchedule, flatten
from ringsched.schedule.loader import load, shipped_names
from ringsched.schedule.schedule import Chain, Schedule
from ringsched.verify.dataflow import findings_of


def plain() -> list[str]:
    """The shipped schedules that have a counterpart there."""
    found = []
    for name in shipped_names():
        schedule = open_schedule(name)
        if isinstance(schedule, Schedule) and schedule.compute is None and schedule.collective.kind != "permute":
            found.append(name)
    return found


def sent(flat: FlatSchedule) -> list[tuple[int, int, int, str]]:
    return sorted((m.sender, m.receiver, c, m.op) for step in messages(flat) for m in step for c in m.chunks)


def flat_of(text: str) -> FlatSchedule:
    schedule = load("mine.yaml", text)
    assert isinstance(schedule, Schedule)
    return flatten(schedule)


# -- MSCCL XML ---------------------------------------------------------------------------------------------------------


def test_most_shipped_schedules_can_be_exported() -> None:
    assert {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"} <= set(plain())


def at_some_sizes(name: str) -> list[FlatSchedule]:
    """A shipped schedule at those of some sizes for which it is right; some are for powers of two only."""
    names = [parameter.name for parameter in open_schedule(name).parameters]
    if "N" in names:
        choices = [{"N": size} for size in (1, 2, 3, 8)]
    elif "Z" in names:
        choices = [{"X": 2, "Y": 2, "Z": 2}, {"X": 2, "Y": 3, "Z": 2}]
    else:
        choices = [{"X": 2, "Y": 2}, {"X": 2, "Y": 3}, {"X": 3, "Y": 3}, {"X": 4, "Y": 2}]
    found = []
    for values in choices:
        try:
            schedule = open_schedule(name, values)
            assert isinstance(schedule, Schedule)
            flat = flatten(schedule)
        except DiagnosticError:
            continue
        if not findings_of(flat):
            found.append(flat)
    assert len(found) > 1
    return found


@pytest.mark.parametrize("name", plain())
def test_exported_and_imported_it_means_the_same(name: str) -> None:
    """The same transfers in as many steps, and right with the two messages in flight of Simple."""
    for flat in at_some_sizes(name):
        judgement = export(flat, "Simple").judgement
        assert (judgement.verdict, judgement.advice) == ("right", ())
        assert judgement.least_depth is not None and judgement.least_depth <= 2
        again = flatten(convert(judgement, name, "").schedule)
        assert again.promise.kind == flat.promise.kind and again.promise.root == flat.promise.root
        assert sent(again) == sent(flat)
        assert len(again.steps) <= sum(bool(step) for step in messages(flat))


STEP = """\
schedule: mine
collective: {collective}
topology: {{links: [[0, 1], [0, 2], [1, 2]]}}
chunks: {chunks}
steps:
{steps}
"""


@pytest.mark.parametrize(
    ("collective", "chunks", "steps"),
    [
        ("{gather: 1}", "[3, 2]", [("chunk[0]", 0, 2), ("chunk[2]", 2, 1), ("chunk[0]", 2, 1)]),
        ("{scatter: 1}", "[3, 2]", [("chunk[0]", 1, 2), ("chunk[2]", 1, 2), ("chunk[0]", 2, 0)]),
        ("{broadcast: 2}", "[2]", [("chunk[0]", 2, 0), ("chunk[1]", 2, 1), ("chunk[1]", 1, 0), ("chunk[0]", 0, 1)]),
        ("{reduce: 1}", "[2]", [("chunk[0:2]", 0, 2, "reduce"), ("chunk[0:2]", 2, 1, "reduce")]),
    ],
)  # fmt: skip
def test_rooted_collectives(
    collective: str, chunks: str, steps: list[tuple[str, int, int] | tuple[str, int, int, str]]
) -> None:
    lines = [
        f"  - {{send: '{step[0]}', from: {step[1]}, to: {step[2]}, op: {step[3] if len(step) > 3 else 'copy'}}}"
        for step in steps
    ]
    flat = flat_of(STEP.format(collective=collective, chunks=chunks, steps="\n".join(lines)))
    judgement = export(flat, "LL128").judgement
    assert (judgement.verdict, codes(judgement)) == ("right", [])
    assert judgement.layout is not None and judgement.layout.root == flat.promise.root
    again = flatten(convert(judgement, "again", "").schedule)
    assert sent(again) == sent(flat)


EXCHANGE = """\
schedule: mine
collective: all_reduce
topology: {ring: 2}
chunks: [4, 2]
steps:
  - step:
      - {send: "chunk[k, 0]", from: 0, to: 1, op: reduce, each: k in 0 .. 3}
      - {send: "chunk[k, 1]", from: 0, to: 1, op: reduce, each: k in 0 .. 3}
      - {send: "chunk[3 - k, 1]", from: 1, to: 0, op: reduce, each: k in 0 .. 3}
      - {send: "chunk[3 - k, 0]", from: 1, to: 0, op: reduce, each: k in 0 .. 3}
"""


@pytest.mark.parametrize(("most", "channels"), [(1, 4), (8, 8)])
def test_channels_for_messages_that_would_wait_for_each_other(most: int, channels: int) -> None:
    """What arrives first is added to what goes last, at both ranks: with room for two of the eight they would hang."""
    exported = export(flat_of(EXCHANGE), "Simple", most)
    assert (exported.judgement.verdict, exported.channels) == ("right", channels)
    assert f'nchannels="{channels}"' in exported.text


def test_schedules_without_a_counterpart() -> None:
    for name, reason in (("all_gather_matmul", "it multiplies"), ("shift", "there is no 'permute' there")):
        schedule = open_schedule(name)
        assert not isinstance(schedule, Chain)
        with pytest.raises(DiagnosticError) as error:
            export(flatten(schedule), "Simple")
        (finding,) = error.value.diagnostics
        assert (finding.code, finding.message) == ("RS831", f"{name} cannot be exported: {reason}")


# -- Chakra ------------------------------------------------------------------------------------------------------------


def check(ranks: tuple[tuple[Node, ...], ...], flat: FlatSchedule) -> None:
    """Ids are those of the order, dependences go back, and each message has one send and one receive of its size."""
    ends: dict[str, Counter[tuple[int, int, int, int]]] = {"COMM_SEND_NODE": Counter(), "COMM_RECV_NODE": Counter()}
    for rank, nodes in enumerate(ranks):
        assert [node.id for node in nodes] == list(range(len(nodes)))
        for node in nodes:
            assert all(0 <= other < node.id for other in (*node.data_deps, *node.ctrl_deps))
            if node.type != "COMP_NODE":
                ends[node.type][node.sender, node.receiver, node.tag, node.size] += 1
                assert rank == (node.sender if node.type == "COMM_SEND_NODE" else node.receiver)
    assert ends["COMM_SEND_NODE"] == ends["COMM_RECV_NODE"]
    assert set(ends["COMM_SEND_NODE"].values()) <= {1}
    assert sum(ends["COMM_SEND_NODE"].values()) == sum(len(step) for step in messages(flat))


def stuck(ranks: tuple[tuple[Node, ...], ...]) -> int:
    """The nodes that never end: a node starts when what it waits for is over, a receive ends when its send is over.

    In a round a rank sends one message, the one with the least id that can go, as simulators do.
    """
    left = {(rank, node.id): node for rank, nodes in enumerate(ranks) for node in nodes}
    over: set[tuple[int, int]] = set()
    sent: set[tuple[int, int, int]] = set()
    while True:
        sending: set[int] = set()
        ended: list[tuple[int, int]] = []
        for (rank, id), node in left.items():
            if any((rank, other) not in over for other in (*node.data_deps, *node.ctrl_deps)):
                continue
            message = (node.sender, node.receiver, node.tag)
            if node.type == "COMM_SEND_NODE" and rank not in sending:
                sending.add(rank)
                sent.add(message)
                ended.append((rank, id))
            elif node.type == "COMP_NODE" or (node.type == "COMM_RECV_NODE" and message in sent):
                ended.append((rank, id))
        if not ended:
            return len(left)
        over.update(ended)
        for key in ended:
            del left[key]


@pytest.mark.parametrize("name", [*plain(), "shift"])
def test_traces_of_shipped_schedules(name: str) -> None:
    for flat in at_some_sizes(name)[:3]:
        ranks = trace(flat, 4096)
        check(ranks, flat)
        assert stuck(ranks) == 0 and all(ranks)
        unsent = tuple(tuple(node for node in nodes if node.type != "COMM_SEND_NODE") for nodes in ranks)
        assert (stuck(unsent) > 0) == (len(ranks) > 1)


def test_a_rank_with_nothing_to_do_has_a_node_that_ends() -> None:
    schedule = open_schedule("all_gather", {"N": 1})
    assert isinstance(schedule, Schedule)
    ((node,),) = trace(flatten(schedule), 4096)
    assert (node.type, node.size, node.data_deps, node.ctrl_deps) == ("COMP_NODE", 0, (), ())


def test_what_a_node_waits_for() -> None:
    """In a ring all-reduce of two: what was added is sent, and what arrives later replaces it only then."""
    schedule = open_schedule("all_reduce", {"N": 2})
    assert isinstance(schedule, Schedule)
    (nodes, _) = trace(flatten(schedule), 4096)
    assert [(n.type, n.size, n.data_deps, n.ctrl_deps) for n in nodes] == [
        ("COMM_SEND_NODE", 2048, (), ()),
        ("COMM_RECV_NODE", 2048, (), ()),
        ("COMP_NODE", 2048, (1,), ()),
        ("COMM_SEND_NODE", 2048, (2,), ()),
        ("COMM_RECV_NODE", 2048, (), (0,)),
    ]


def decoded(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a message: (number, value)."""
    found: list[tuple[int, int | bytes]] = []
    while data:
        key, data = varint(data)
        if key & 7 == 0:
            value, data = varint(data)
            found.append((key >> 3, value))
        else:
            assert key & 7 == 2
            length, data = varint(data)
            found.append((key >> 3, data[:length]))
            data = data[length:]
    return found


def varint(data: bytes) -> tuple[int, bytes]:
    value = shift = 0
    for position, byte in enumerate(data):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, data[position + 1 :]
    raise AssertionError("a number that does not end")


def ids(data: bytes) -> tuple[int, ...]:
    found = []
    while data:
        value, data = varint(data)
        found.append(value)
    return tuple(found)


def test_the_wire_format() -> None:
    """By the numbers of the schema: Node has id 1, name 2, type 3, ctrl_deps 4, data_deps 5, attr 10."""
    schedule = open_schedule("all_reduce", {"N": 3})
    assert isinstance(schedule, Schedule)
    nodes = trace(flatten(schedule), 3 << 20)[0]
    data = wire(nodes)
    parts = []
    while data:
        length, data = varint(data)
        parts.append(decoded(data[:length]))
        data = data[length:]
    assert parts[0] == [(1, b"0.0.4")]
    assert len(parts) == 1 + len(nodes)
    for node, fields in zip(nodes, parts[1:], strict=True):
        values = dict(fields)
        assert values.get(1, 0) == node.id and values[2] == node.name.encode()
        assert values[3] == {"COMP_NODE": 4, "COMM_SEND_NODE": 5, "COMM_RECV_NODE": 6}[node.type]
        assert ids(bytes(values.get(4, b""))) == node.ctrl_deps and ids(bytes(values.get(5, b""))) == node.data_deps  # type: ignore[arg-type]
        attributes = {}
        for number, value in fields:
            if number == 10:
                assert isinstance(value, bytes)
                (_, name), (kind, what) = decoded(value)
                attributes[bytes(name).decode()] = (kind, what)  # type: ignore[arg-type]
        if node.type == "COMP_NODE":  # int64 is field 9, uint64 13, int32 7, bool 27
            assert attributes == {"is_cpu_op": (27, 0), "num_ops": (9, node.size // 4), "tensor_size": (13, node.size)}
        else:
            assert attributes == {
                "is_cpu_op": (27, 0),
                "comm_size": (9, node.size),
                "comm_src": (7, node.sender),
                "comm_dst": (7, node.receiver),
                "comm_tag": (7, node.tag),
            }


def test_json() -> None:
    schedule = open_schedule("reduce_scatter", {"N": 2})
    assert isinstance(schedule, Schedule)
    entries = json.loads(json_text(trace(flatten(schedule), 8)[1]))["workload_graph"]
    assert [entry["NodeType"] for entry in entries] == [5, 6, 4]
    assert entries[0]["comm_size"] == 4 and (entries[0]["comm_src"], entries[0]["comm_dst"]) == (1, 0)
    assert entries[2]["data_deps"] == [1] and entries[2]["num_ops"] == 1


def test_products_are_not_traced() -> None:
    schedule = open_schedule("all_gather_matmul")
    assert isinstance(schedule, Schedule)
    with pytest.raises(DiagnosticError) as error:
        trace(flatten(schedule), 8)
    assert error.value.diagnostics[0].code == "RS831"
