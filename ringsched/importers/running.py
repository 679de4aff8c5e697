"""Runs of a network: one decides for every order of turns whether it ends, see `network`.

A step runs when the step before it in its block is over, what it waits for is over, its message is there, and fewer
than `depth` messages are in flight on the connection that it sends on. It takes its message and sends its own at once,
so a connection gets room when the step that receives is over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ringsched.diagnostics import Diagnostic, Label
from ringsched.importers.network import Event, Network

MAX_SHOWN = 8  # steps of a circle


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """`order`: the events in an order in which they can run. `left`: the next step of each block that does not end."""

    order: tuple[Event, ...]
    left: tuple[Event, ...]


class _Machine:
    def __init__(self, network: Network, depth: int | None) -> None:
        self.network, self.depth = network, depth
        self.over = [0] * len(network.blocks)  # steps of each block
        self.flying = [0] * len(network.connections)

    def waits_for(self, event: Event) -> int | None:
        """The block that has to go on before this event can run; None where it can."""
        step = self.network.at(event)
        for block, place in step.signalled:
            if self.over[block] <= place:
                return block
        if step.receives >= 0 and self.flying[step.receives] == 0:
            return self.network.ends[step.receives][0]
        if step.sends >= 0 and self.depth is not None and self.flying[step.sends] >= self.depth:
            return self.network.ends[step.sends][1]
        return None

    def run(self) -> Run:
        order: list[Event] = []
        waiting: list[set[int]] = [set() for _ in self.network.blocks]  # blocks that wait for a step of this one
        ready = deque(range(len(self.network.blocks)))
        while ready:
            number = ready.popleft()
            block = self.network.blocks[number]
            while self.over[number] < len(block.steps):
                event = (number, self.over[number])
                blocker = self.waits_for(event)
                if blocker is not None:
                    waiting[blocker].add(number)
                    break
                step = block.steps[event[1]]
                if step.receives >= 0:
                    self.flying[step.receives] -= 1
                if step.sends >= 0:
                    self.flying[step.sends] += 1
                self.over[number] += 1
                order.append(event)
                ready.extend(sorted(waiting[number]))
                waiting[number].clear()
        left = [(n, over) for n, over in enumerate(self.over) if over < len(self.network.blocks[n].steps)]
        return Run(order=tuple(order), left=tuple(left))


def run(network: Network, depth: int | None = None) -> Run:
    """At most `depth` messages in flight on each connection; None: any number."""
    return _Machine(network, depth).run()


def least_depth(network: Network) -> int | None:
    """The fewest messages in flight on a connection with which it ends; None where no number is enough.

    More room never makes a step wait that could run, so the depths that are enough are all above the least.
    """
    low, high = 1, 1
    while run(network, high).left:
        if high >= network.most:
            return None
        low, high = high + 1, min(2 * high, network.most)
    while low < high:
        middle = (low + high) // 2
        if run(network, middle).left:
            low = middle + 1
        else:
            high = middle
    return high


def hang(network: Network, depth: int | None, enough: int | None) -> Diagnostic:
    """RS818: the circle of steps that wait for each other with `depth` messages in flight."""
    machine = _Machine(network, depth)
    left = dict(machine.run().left)
    number = next(iter(left))
    seen: dict[int, None] = {}
    while number not in seen:
        seen[number] = None
        blocker = machine.waits_for((number, left[number]))
        assert blocker is not None and blocker in left  # it does not run, and a block that ended keeps nobody waiting
        number = blocker
    circle = [(n, left[n]) for n in list(seen)[list(seen).index(number) :]]
    labels = [Label(span=network.at(event).step.span, text=_reason(machine, event)) for event in circle[:MAX_SHOWN]]
    notes = [f"{network.name(event)}: {_reason(machine, event)}" for event in circle[:MAX_SHOWN]]
    if len(circle) > MAX_SHOWN:
        notes.append(f"and {len(circle) - MAX_SHOWN} more, round to the first")
    where = "with any number of messages in flight" if depth is None else f"with {depth} in flight on a connection"
    if enough is None:
        notes.append("no number of messages in flight is enough")
    else:
        notes.append(f"it runs with {enough} or more in flight")
    who = "a step waits for itself" if len(circle) == 1 else f"{len(circle)} steps wait in a circle"
    return Diagnostic(
        code="RS818",
        message=f"it hangs {where}: {who}",
        primary=labels[0],
        secondary=tuple(labels[1:3]),
        notes=tuple(notes),
        help="let blocks receive between their sends, or send and receive in blocks of their own",
    )


def _reason(machine: _Machine, event: Event) -> str:
    network, step = machine.network, machine.network.at(event)
    for block, place in step.signalled:
        if machine.over[block] <= place:
            return f"waits for {network.name((block, place))}"
    if step.receives >= 0 and machine.flying[step.receives] == 0:
        return f"waits for a message from rank {network.connections[step.receives].sender}"
    return f"waits for room: rank {network.connections[step.sends].receiver} has to receive first"
