"""Algorithm → Network: the steps of all blocks joined up by connections and dependences.

A connection is (sender, receiver, channel). It belongs to one block at each end, and carries messages in order, so the
k-th sending step at one end goes with the k-th receiving step at the other. Each block has one next step, nobody else
takes from or gives to its ends of its connections, and a step that can run stays able to run: the outcome of a run, and
whether it ends, does not depend on the order in which blocks take turns (Kahn 1974, with bounded queues).

RS810 a peer that cannot be; RS811 two blocks at one end; RS812, RS813 dependences; RS815, RS816 unmatched messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ringsched.diagnostics import Diagnostic, Label, Span
from ringsched.importers.algorithm import Algorithm, Block, Step

Event = tuple[int, int]  # a block of the network, a position in it


class Connection(NamedTuple):
    sender: int
    receiver: int
    channel: int

    def __str__(self) -> str:
        return f"{self.sender} → {self.receiver}, channel {self.channel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetStep:
    """A step with its ends joined up. `sends`, `receives`: a number of a connection, -1 for none.

    `after`: the events that have to be over, as the file says; `signalled`: those whose signal it waits for. They
    differ where the step to wait for has hasdep="0": the next step of that block that has it gives the signal. A file
    is right only if it is with either reading: `after` alone puts accesses in order, and runs wait for `signalled`.
    """

    step: Step
    sends: int
    receives: int
    after: tuple[Event, ...]
    signalled: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetBlock:
    rank: int
    block: Block
    steps: tuple[NetStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """`ends[c]`: the blocks that send and receive on connection c."""

    blocks: tuple[NetBlock, ...]
    connections: tuple[Connection, ...]
    ends: tuple[tuple[int, int], ...]
    most: int  # messages on one connection

    def at(self, event: Event) -> NetStep:
        return self.blocks[event[0]].steps[event[1]]

    def name(self, event: Event) -> str:
        """`rank 2, block 1, step 3`."""
        block = self.blocks[event[0]]
        return f"rank {block.rank}, block {block.block.id}, step {block.steps[event[1]].step.number}"


class _Ends(NamedTuple):
    senders: dict[Connection, int]
    receivers: dict[Connection, int]


def join(algorithm: Algorithm) -> tuple[Network | None, tuple[Diagnostic, ...]]:
    """The network, None where there is something wrong with it."""
    found: list[Diagnostic] = []
    blocks = [(gpu.rank, block) for gpu in algorithm.gpus for block in gpu.blocks]
    ends = _Ends({}, {})
    for number, (rank, block) in enumerate(blocks):
        found.extend(_peers(algorithm, rank, block, number, ends, blocks))
    found.extend(_unmatched(blocks, ends))
    connections = tuple(c for c in ends.senders if c in ends.receivers)
    numbers = {connection: number for number, connection in enumerate(connections)}
    joined = []
    positions = [{step.number: place for place, step in enumerate(block.steps)} for _, block in blocks]
    index = {(rank, block.id): number for number, (rank, block) in enumerate(blocks)}
    for rank, block in blocks:
        steps = []
        for step in block.steps:
            after, signalled = [], []
            for need in step.needs:
                target = _target(rank, step, need, index, positions)
                if isinstance(target, Diagnostic):
                    found.append(target)
                    continue
                signal = _signal(rank, step, target, blocks[target[0]][1])
                if isinstance(signal, Diagnostic):
                    found.append(signal)
                    continue
                after.append(target)
                signalled.append((target[0], signal))
            sends, receives = _connections(rank, block)
            steps.append(
                NetStep(
                    step=step,
                    sends=numbers.get(sends, -1) if sends and step.sends else -1,
                    receives=numbers.get(receives, -1) if receives and step.receives else -1,
                    after=tuple(after),
                    signalled=tuple(signalled),
                )
            )
        joined.append(NetBlock(rank=rank, block=block, steps=tuple(steps)))
    if found:
        return None, tuple(found)
    most = max((sum(s.sends for s in blocks[ends.senders[c]][1].steps) for c in connections), default=0)
    places = tuple((ends.senders[c], ends.receivers[c]) for c in connections)
    return Network(blocks=tuple(joined), connections=connections, ends=places, most=most), ()


def _connections(rank: int, block: Block) -> tuple[Connection | None, Connection | None]:
    """The one that it sends on, and the one that it receives on."""
    out = None if block.send is None else Connection(rank, block.send, block.channel)
    into = None if block.receive is None else Connection(block.receive, rank, block.channel)
    return out, into


def _peers(
    algorithm: Algorithm, rank: int, block: Block, number: int, ends: _Ends, blocks: list[tuple[int, Block]]
) -> list[Diagnostic]:
    """Enters the block's ends of its connections into `ends`."""
    found = []
    out, into = _connections(rank, block)
    ways = (
        ("send", block.send, out, ends.senders, _sending(block)),
        ("recv", block.receive, into, ends.receivers, _receiving(block)),
    )
    for word, peer, connection, ends_, steps in ways:
        first = steps[0] if steps else None
        if peer is not None and (not 0 <= peer < algorithm.ranks or peer == rank):
            reason = "that is its own rank" if peer == rank else f"ranks are 0 … {algorithm.ranks - 1}"
            found.append(
                _finding(
                    "RS810", f'block {block.id} of rank {rank} has {word}="{peer}": {reason}', block.span, "this block"
                )
            )
        elif first is None:
            continue
        elif connection is None:
            message = f'a step of type "{first.type}" in a block without a peer to {word}'
            found.append(
                _finding("RS810", message, first.span, f'its block has {word}="-1"', (Label(span=block.span),))
            )
        elif connection in ends_:
            other = blocks[ends_[connection]][1]
            message = f"blocks {other.id} and {block.id} of rank {rank} both {word} on the connection {connection}"
            secondary = (Label(span=other.span, text="the other one"),)
            found.append(
                _finding(
                    "RS811",
                    message,
                    block.span,
                    "messages of the two would mix",
                    secondary,
                    help="give one of them another channel, at both ends",
                )
            )
        else:
            ends_[connection] = number
    return found


def _sending(block: Block) -> list[Step]:
    return [step for step in block.steps if step.sends]


def _receiving(block: Block) -> list[Step]:
    return [step for step in block.steps if step.receives]


def _unmatched(blocks: list[tuple[int, Block]], ends: _Ends) -> list[Diagnostic]:
    """Messages that one end sends and the other does not receive, or not as many chunks."""
    found = []
    for connection in dict.fromkeys((*ends.senders, *ends.receivers)):
        out = _sending(blocks[ends.senders[connection]][1]) if connection in ends.senders else []
        into = _receiving(blocks[ends.receivers[connection]][1]) if connection in ends.receivers else []
        if len(out) != len(into):
            more, word, other = (out, "sent", "received") if len(out) > len(into) else (into, "received", "sent")
            matched = min(len(out), len(into))
            step = more[matched]
            count = "1 message is" if len(more) == 1 else f"{len(more)} messages are"
            message = f"{count} {word} on the connection {connection}, and {matched or 'none'} {other}"
            found.append(_finding("RS815", message, step.span, f"this one is never {other}"))
            continue
        for sent, received in zip(out, into, strict=True):
            if sent.count != received.count:
                chunks = "1 chunk is" if sent.count == 1 else f"{sent.count} chunks are"
                message = f"{chunks} sent, and {received.count} received, on the connection {connection}"
                found.append(
                    _finding(
                        "RS816",
                        message,
                        received.span,
                        f"receives {received.count}",
                        (Label(span=sent.span, text=f"sends {sent.count}"),),
                        help="the k-th message that is sent on a connection is the k-th that is received",
                    )
                )
                break
    return found


def _target(
    rank: int, step: Step, need: tuple[int, int], index: dict[tuple[int, int], int], positions: list[dict[int, int]]
) -> Event | Diagnostic:
    """The event that a step waits for."""
    block = index.get((rank, need[0]))
    if block is None or need[1] not in positions[block]:
        what = f"block {need[0]}" if block is None else f"step {need[1]} in block {need[0]}"
        return _finding("RS812", f"rank {rank} has no {what}", step.span, "this step waits for it")
    return block, positions[block][need[1]]


def _signal(rank: int, step: Step, target: Event, block: Block) -> int | Diagnostic:
    """Where in `block` the signal is given that `target` is over."""
    for place in range(target[1], len(block.steps)):
        if block.steps[place].flagged is not False:
            return place
    waited = block.steps[target[1]]
    message = f"rank {rank} waits for step {waited.number} of block {block.id}, which never says that it is over"
    return _finding(
        "RS813",
        message,
        step.span,
        "this step waits for ever",
        (Label(span=waited.span, text='has hasdep="0", as all after it'),),
        help='write hasdep="1" there',
    )


def _finding(
    code: str, message: str, span: Span, text: str, secondary: tuple[Label, ...] = (), help: str | None = None
) -> Diagnostic:
    return Diagnostic(code=code, message=message, primary=Label(span=span, text=text), secondary=secondary, help=help)
