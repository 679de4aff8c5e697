"""FlatSchedule → Chakra execution traces (mlcommons/chakra, schema/protobuf/et_def.proto), one for each rank.

A trace is a graph of nodes: COMM_SEND, COMM_RECV, and COMP for what adds up what arrived. `data_deps` name the nodes
whose data a node takes, `ctrl_deps` those whose memory it takes over. A send and its receive have the same sender,
receiver, size, and a tag of their own. `.et` is a length-delimited GlobalMetadata and then the nodes, in the wire
format of protocol buffers; JSON is the form that the feeder of simulators reads (`workload_graph`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ringsched.exporters.messages import exportable, messages
from ringsched.schedule.flat import FlatSchedule

VERSION = "0.0.4"  # of the schema
ITEM_BYTES = 4  # of what is added, for the number of operations

NodeType = Literal["COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE"]
_TYPES: dict[NodeType, int] = {"COMP_NODE": 4, "COMM_SEND_NODE": 5, "COMM_RECV_NODE": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """`size` in bytes. `sender`, `receiver`, `tag`: of a message."""

    id: int
    name: str
    type: NodeType
    size: int
    data_deps: tuple[int, ...]
    ctrl_deps: tuple[int, ...]
    sender: int = 0
    receiver: int = 0
    tag: int = 0


@dataclass(slots=True)
class _Rank:
    """`written`: the node that made what there is of a chunk. `read`: those that have used it since."""

    nodes: list[Node] = field(default_factory=list)
    written: dict[int, int] = field(default_factory=dict)
    read: dict[int, set[int]] = field(default_factory=dict)

    def sources(self, chunks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({self.written[chunk] for chunk in chunks if chunk in self.written}))

    def users(self, chunks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(set().union(*(self.read.get(chunk, set()) for chunk in chunks))))

    def use(self, id: int, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            self.read.setdefault(chunk, set()).add(id)

    def make(self, id: int, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            self.written[chunk], self.read[chunk] = id, set()


def trace(flat: FlatSchedule, operand: int) -> tuple[tuple[Node, ...], ...]:
    """The nodes of each rank, for an operand of so many bytes on one rank. Raises RS831."""
    exportable(flat, permutations=True)
    size = -(-operand // math.prod(flat.promise.input_shape()))
    ranks = [_Rank() for _ in range(flat.topology.ranks)]
    tags: dict[tuple[int, int], int] = {}
    for step in messages(flat):
        tagged = []
        for message in step:
            way = (message.sender, message.receiver)
            tagged.append((message, tags.setdefault(way, 0)))
            tags[way] += 1
        for message, tag in tagged:
            at = ranks[message.sender]
            node = Node(
                id=len(at.nodes),
                name=f"send_{message.step}_to_{message.receiver}_{tag}",
                type="COMM_SEND_NODE",
                size=size * len(message.chunks),
                data_deps=at.sources(message.chunks),
                ctrl_deps=(),
                sender=message.sender,
                receiver=message.receiver,
                tag=tag,
            )
            at.nodes.append(node)
            at.use(node.id, message.chunks)
        for message, tag in tagged:
            at, reduces = ranks[message.receiver], message.op == "reduce"
            came = Node(
                id=len(at.nodes),
                name=f"receive_{message.step}_from_{message.sender}_{tag}",
                type="COMM_RECV_NODE",
                size=size * len(message.chunks),
                data_deps=(),
                # What is added up arrives in memory of its own.
                ctrl_deps=() if reduces else tuple(sorted({*at.users(message.chunks), *at.sources(message.chunks)})),
                sender=message.sender,
                receiver=message.receiver,
                tag=tag,
            )
            at.nodes.append(came)
            if reduces:
                added = Node(
                    id=len(at.nodes),
                    name=f"add_{message.step}_from_{message.sender}_{tag}",
                    type="COMP_NODE",
                    size=came.size,
                    data_deps=tuple(sorted({*at.sources(message.chunks), came.id})),
                    ctrl_deps=at.users(message.chunks),
                )
                at.nodes.append(added)
            at.make(at.nodes[-1].id, message.chunks)
    for at in ranks:
        if not at.nodes:  # a simulator takes a trace without a node that can start for a deadlock
            at.nodes.append(Node(id=0, name="nothing", type="COMP_NODE", size=0, data_deps=(), ctrl_deps=()))
    return tuple(tuple(rank.nodes) for rank in ranks)


# -- JSON -------------------------------------------------------------------------------------------------------------


def json_text(nodes: Iterable[Node]) -> str:
    """One rank's trace."""
    return json.dumps({"workload_graph": [_entry(node) for node in nodes]}, indent=1) + "\n"


def _entry(node: Node) -> dict[str, object]:
    common: dict[str, object] = {
        "Id": node.id,
        "Name": node.name,
        "NodeType": _TYPES[node.type],
        "is_cpu_op": False,
        "data_deps": list(node.data_deps),
        "ctrl_deps": list(node.ctrl_deps),
    }
    if node.type == "COMP_NODE":
        return {**common, "runtime": 0, "num_ops": _operations(node), "tensor_size": node.size}
    ends = {"comm_src": node.sender, "comm_dst": node.receiver, "comm_tag": node.tag}
    return {**common, "tensor_size": node.size, "comm_size": node.size, **ends}


def _operations(node: Node) -> int:
    return -(-node.size // ITEM_BYTES)


# -- protocol buffers -------------------------------------------------------------------------------------------------


def wire(nodes: Iterable[Node]) -> bytes:
    """One rank's trace."""
    parts = [_bytes(1, VERSION.encode()), *map(_node, nodes)]
    return b"".join(_varint(len(part)) + part for part in parts)


def _node(node: Node) -> bytes:
    fields = _number(1, node.id) + _bytes(2, node.name.encode()) + _number(3, _TYPES[node.type])
    for number, ids in ((4, node.ctrl_deps), (5, node.data_deps)):
        if ids:
            fields += _bytes(number, b"".join(map(_varint, ids)))  # packed
    attributes = [("is_cpu_op", _BOOL, 0)]
    if node.type == "COMP_NODE":
        attributes += [("num_ops", _INT64, _operations(node)), ("tensor_size", _UINT64, node.size)]
    else:
        attributes += [
            ("comm_size", _INT64, node.size),
            ("comm_src", _INT32, node.sender),
            ("comm_dst", _INT32, node.receiver),
            ("comm_tag", _INT32, node.tag),
        ]
    for name, number, value in attributes:
        # The value is one of a `oneof`, which is written even where it is 0.
        fields += _bytes(10, _bytes(1, name.encode()) + _varint(number << 3) + _varint(value))
    return fields


_INT32, _INT64, _UINT64, _BOOL = 7, 9, 13, 27  # fields of AttributeProto


def _number(field: int, value: int) -> bytes:
    """Zero is what is read where nothing is written."""
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
