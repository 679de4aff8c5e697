"""Executes an MSCCL algorithm with numbers, block after block in an order of the caller's choice.

Written without regard to how ringsched judges, from what the format means: its own reader, its own memory. A run ends
in None where all went well, or in a word for what went wrong.
"""

from __future__ import annotations

import random
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

Choice = Callable[[list[int]], int]  # from the blocks that can run, the one that does

SEND, RECEIVE = {"s", "rcs", "rrs", "rrcs"}, {"r", "rcs", "rrc", "rrs", "rrcs"}
LOCAL, WRITE = {"s", "rrc", "rrs", "rrcs", "cpy", "re"}, {"r", "rcs", "rrc", "rrcs", "cpy", "re"}


class Fault(Exception):
    """Something that no order of turns avoids, or that this one ran into."""


class _Step:
    """Its attributes as numbers."""

    def __init__(self, given: dict[str, str]) -> None:
        self.kind, self.number, self.count = given["type"], int(given["s"]), int(given["cnt"])
        self.source, self.target = (given["srcbuf"], int(given["srcoff"])), (given["dstbuf"], int(given["dstoff"]))
        self.block, self.step, self.flagged = int(given["depid"]), int(given["deps"]), given["hasdep"] == "1"
        self.moves = self.count > 0 and self.kind != "nop"
        self.sends, self.receives = self.moves and self.kind in SEND, self.moves and self.kind in RECEIVE


class Algorithm:
    """`blocks`: (rank, attributes, steps); `memory` at the start, and `wanted` at the end, of one random operand."""

    def __init__(self, text: str, seed: int = 0, root: int = 0) -> None:
        tree = ElementTree.fromstring(text)
        self.coll = tree.get("coll", "").lower().replace("_", "")
        self.ranks, self.total = int(tree.get("ngpus", 0)), int(tree.get("nchunksperloop", 0))
        self.in_place = tree.get("inplace") == "1"
        self.depth = 2 if tree.get("proto", "Simple") == "Simple" else 8
        self.root = root
        self.sizes: dict[tuple[int, str], int] = {}
        self.blocks: list[tuple[int, dict[str, str], list[dict[str, str]]]] = []
        for gpu in tree.iter("gpu"):
            rank = int(gpu.get("id", 0))
            for buffer in "ios":
                self.sizes[rank, buffer] = int(gpu.get(f"{buffer}_chunks", 0))
            for tb in gpu.iter("tb"):
                steps = sorted((dict(s.attrib) for s in tb.iter("step")), key=lambda s: int(s["s"]))
                self.blocks.append((rank, dict(tb.attrib), steps))
        for rank, tb, _ in self.blocks:
            for peer in (int(tb["send"]), int(tb["recv"])):
                if peer == rank or not -1 <= peer < self.ranks:
                    raise Fault("peer")  # no runtime loads it, whether a step uses it or not
        self.where = {(rank, int(tb["id"])): number for number, (rank, tb, _) in enumerate(self.blocks)}
        self.code = [[_Step(s) for s in steps] for _, _, steps in self.blocks]
        self.places = [{step.number: place for place, step in enumerate(steps)} for steps in self.code]
        self.flagged = any(step.flagged for steps in self.code for step in steps)  # else the writer does not say it
        shared = self.coll in ("allgather", "reducescatter", "alltoall")
        if self.total < 1 or (shared and self.total % self.ranks):
            raise Fault("sizes")
        self.share = self.total // self.ranks if shared else self.total
        if self.coll in ("gather", "scatter"):
            # Some writers count a rank's chunks, others those of the root; the rank's buffer tells them apart.
            small = max(self.sizes[rank, "i" if self.coll == "gather" else "o"] for rank in range(self.ranks))
            rank_counts = self.total == small or self.total % self.ranks
            self.share = self.total if rank_counts else self.total // self.ranks
            self.total = self.share * self.ranks
        source = random.Random(seed)
        self.input = {
            (rank, i): source.getrandbits(40) for rank in range(self.ranks) for i in range(self.length(rank, "i"))
        }
        self.seed = seed

    def length(self, rank: int, buffer: str) -> int:
        """What the caller gives, in chunks."""
        if buffer == "s":
            return self.sizes.get((rank, "s"), 0)
        if self.coll == "allgather":
            return self.share if buffer == "i" else self.total
        if self.coll == "reducescatter":
            return self.total if buffer == "i" else self.share
        if self.coll == "gather":
            return self.share if buffer == "i" else self.total * (rank == self.root)
        if self.coll == "scatter":
            return self.share if buffer == "o" else self.total * (rank == self.root)
        return self.total

    def address(self, rank: int, buffer: str, index: int) -> tuple[int, str, int]:
        declared = self.sizes.get((rank, buffer), 0)
        free = self.in_place and declared == 0
        if index < 0 or index >= self.length(rank, buffer) or (index >= declared and not free):
            raise Fault("bounds")
        return self.alias(rank, buffer, index)

    def alias(self, rank: int, buffer: str, index: int) -> tuple[int, str, int]:
        if self.in_place and buffer != "s":
            rooted = self.coll in ("gather", "scatter")
            if self.coll == "allgather" or (self.coll == "gather" and rank == self.root):
                return (rank, "m", rank * self.share + index if buffer == "i" else index)
            if self.coll == "reducescatter" or (self.coll == "scatter" and rank == self.root):
                return (rank, "m", rank * self.share + index if buffer == "o" else index)
            if not rooted:
                return (rank, "m", index)
        return (rank, buffer, index)

    def wanted(self) -> dict[tuple[int, str, int], int]:
        """What the collective promises, by address."""
        given, k, ranks = self.input, self.share, range(self.ranks)
        found: dict[tuple[int, int], int] = {}
        for rank in ranks:
            for o in range(self.length(rank, "o")):
                if self.coll in ("allgather", "gather"):
                    found[rank, o] = given[o // k, o % k]
                elif self.coll == "allreduce" or (self.coll == "reduce" and rank == self.root):
                    found[rank, o] = sum(given[q, o] for q in ranks)
                elif self.coll == "reducescatter":
                    found[rank, o] = sum(given[q, rank * k + o] for q in ranks)
                elif self.coll == "alltoall":
                    found[rank, o] = given[o // k, rank * k + o % k]
                elif self.coll == "broadcast":
                    found[rank, o] = given[self.root, o]
                elif self.coll == "scatter":
                    found[rank, o] = given[self.root, rank * k + o]
        return {self.alias(rank, "o", o): value for (rank, o), value in found.items()}

    def run(self, choose: Choice, depth: int | None, *, flags: bool = False, hold: Hold | None = None) -> str | None:
        """flags: a step waits for the signal of hasdep, in place of the end of the step."""
        return self.traced(choose, depth, flags, hold)[0]

    def traced(self, choose: Choice, depth: int | None, flags: bool, hold: Hold | None) -> tuple[str | None, int]:
        """Also the most messages in flight: where there is more room, all goes the same way."""
        run = _Run(self, depth, flags)
        try:
            return run.go(choose, hold), run.most
        except Fault as fault:
            return str(fault), run.most


def first(able: list[int]) -> int:
    return able[0]


class Hold(NamedTuple):
    """A block that stays before a step as long as another one can run; torn: between what the step reads and writes."""

    block: int
    place: int
    torn: bool = False


class _Run:
    def __init__(self, algorithm: Algorithm, depth: int | None, flags: bool) -> None:
        self.algorithm, self.depth, self.flags = algorithm, depth, flags
        self.memory = {algorithm.alias(rank, "i", i): value for (rank, i), value in algorithm.input.items()}
        self.at = [0] * len(algorithm.blocks)
        self.signalled = [-1] * len(algorithm.blocks)
        self.flying: dict[tuple[int, int, int], deque[list[int]]] = {}
        self.users: dict[tuple[str, tuple[int, int, int]], int] = {}
        self.ends: dict[tuple[int, str], tuple[int, int, int]] = {}  # connections that are in order
        self.most = 0  # messages in flight on a connection

    def go(self, choose: Choice, hold: Hold | None) -> str | None:
        unfinished = self.unfinished()
        early: dict[tuple[int, str, int], int] = {}  # what the held step has read
        while unfinished:
            asked = unfinished
            if hold is not None and hold.block in unfinished and self.at[hold.block] == hold.place:
                asked = [b for b in unfinished if b != hold.block] + [hold.block]  # the last to be asked
                if hold.torn and not early and self.able(hold.block):
                    early = {a: self.load(a) for a in self.operands(hold.block)}
            if choose is first:
                able = next(([b] for b in asked if self.able(b)), [])
            else:
                able = [b for b in asked if self.able(b)]
            if not able:
                return "hang"
            block = choose(able)
            held = hold is not None and (block, self.at[block]) == (hold.block, hold.place)
            self.step(block, early if held else {})
            if self.at[block] == len(self.algorithm.code[block]):
                unfinished.remove(block)
        if any(self.flying.values()):
            return "left over"
        wanted = self.algorithm.wanted()
        return None if all(self.memory.get(a) == value for a, value in wanted.items()) else "values"

    def copied(self) -> _Run:
        other = _Run(self.algorithm, self.depth, self.flags)
        other.memory, other.users = dict(self.memory), dict(self.users)
        other.ends, other.most = dict(self.ends), self.most
        other.at, other.signalled = list(self.at), list(self.signalled)
        other.flying = {connection: deque(queue) for connection, queue in self.flying.items()}
        return other

    def unfinished(self) -> list[int]:
        return [b for b, steps in enumerate(self.algorithm.code) if self.at[b] < len(steps)]

    def connection(self, block: int, way: str) -> tuple[int, int, int]:
        if (block, way) not in self.ends:
            self.ends[block, way] = self._connected(block, way)
        return self.ends[block, way]

    def _connected(self, block: int, way: str) -> tuple[int, int, int]:
        rank, tb, _ = self.algorithm.blocks[block]
        peer = int(tb[way])
        if peer < 0:
            raise Fault("peer")
        ends = (rank, peer) if way == "send" else (peer, rank)
        connection = (*ends, int(tb["chan"]))
        if self.users.setdefault((way, connection), block) != block:
            raise Fault("shared")
        return connection

    def able(self, block: int) -> bool:
        algorithm = self.algorithm
        step = algorithm.code[block][self.at[block]]
        if step.block >= 0:
            other = algorithm.where.get((algorithm.blocks[block][0], step.block))
            if other is None or step.step not in algorithm.places[other]:
                raise Fault("dependence")
            if self.flags and algorithm.flagged and self.signalled[other] < step.step:
                return False
            if algorithm.places[other][step.step] >= self.at[other]:
                return False
        if step.receives and not self.flying.get(self.connection(block, "recv")):
            return False
        if step.sends:
            flying = self.flying.get(self.connection(block, "send"), ())
            return self.depth is None or len(flying) < self.depth
        return True

    def step(self, block: int, early: dict[tuple[int, str, int], int]) -> None:
        """early: what it has read before, if it has."""
        load = early.__getitem__ if early else self.load
        rank = self.algorithm.blocks[block][0]
        step = self.algorithm.code[block][self.at[block]]
        kind, count = step.kind, step.count
        self.at[block] += 1
        if step.flagged:
            self.signalled[block] = step.number
        if not step.moves:
            return
        came = self.flying[self.connection(block, "recv")].popleft() if step.receives else []
        if step.receives and len(came) != count:
            raise Fault("count")
        if kind in LOCAL:
            source = [self.algorithm.address(rank, step.source[0], step.source[1] + i) for i in range(count)]
        if kind in WRITE:
            target = [self.algorithm.address(rank, step.target[0], step.target[1] + i) for i in range(count)]
            if kind in LOCAL and any(a in target and target.index(a) != i for i, a in enumerate(source)):
                raise Fault("overlap")
        if kind in ("s", "cpy"):
            result = [load(a) for a in source]
        elif kind in ("r", "rcs"):
            result = came
        elif kind == "re":
            result = [load(a) + load(b) for a, b in zip(source, target, strict=True)]
        else:
            result = [value + load(a) for value, a in zip(came, source, strict=True)]
        if kind in WRITE:
            self.memory.update(zip(target, result, strict=True))
        if step.sends:
            queue = self.flying.setdefault(self.connection(block, "send"), deque())
            queue.append(result)
            self.most = max(self.most, len(queue))

    def operands(self, block: int) -> list[tuple[int, str, int]]:
        """What the next step of the block reads."""
        rank, step = self.algorithm.blocks[block][0], self.algorithm.code[block][self.at[block]]
        slots = [step.source] if step.moves and step.kind in LOCAL else []
        slots += [step.target] if step.moves and step.kind == "re" else []
        return [self.algorithm.address(rank, buffer, offset + i) for buffer, offset in slots for i in range(step.count)]

    def load(self, address: tuple[int, str, int]) -> int:
        """What nothing has written is something, and the same in every run."""
        if address not in self.memory:
            self.memory[address] = random.Random(f"{self.algorithm.seed} {address}").getrandbits(40)
        return self.memory[address]


def depths(algorithm: Algorithm, extra: int | None) -> list[int | None]:
    """Those to try: no limit, what the protocol has, and the least that is said to be enough."""
    return [None, *sorted({algorithm.depth, *([extra] if extra is not None else [])}, reverse=True)]


def attempts(algorithm: Algorithm, seeds: int) -> Iterator[tuple[Choice, Hold | None]]:
    """Orders of turns: at random; and each step, or what it writes, held back for as long as anything else can run."""
    for seed in range(seeds):
        yield random.Random(seed).choice, None
    for block, steps in enumerate(algorithm.code):
        for place, step in enumerate(steps):
            yield first, Hold(block, place)
            if step.moves and step.kind in LOCAL & WRITE:
                yield first, Hold(block, place, torn=True)


def every_order(algorithm: Algorithm, depth: int | None, limit: int = 20_000) -> set[str | None] | None:
    """The outcomes of all orders of turns; None where there are more than `limit` states on the way."""
    ends = every_end(algorithm, depth, limit)
    return None if ends is None else {outcome for outcome, _ in ends}


End = tuple[str | None, tuple[object, ...]]


def every_end(algorithm: Algorithm, depth: int | None, limit: int) -> set[End] | None:
    """All ends that there are: the outcome, and what memory holds."""
    found: set[End] = set()
    seen: set[tuple[object, ...]] = set()
    waiting = [_Run(algorithm, depth, False)]
    while waiting:
        run = waiting.pop()
        memory = tuple(sorted(run.memory.items()))
        state = (tuple(run.at), memory, tuple((c, tuple(map(tuple, q))) for c, q in sorted(run.flying.items())))
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > limit:
            return None
        try:
            unfinished = run.unfinished()
            able = [b for b in unfinished if run.able(b)]
            for block in able:
                other = run.copied()
                other.step(block, {})
                waiting.append(other)
        except Fault as fault:
            found.add((str(fault), ()))
            continue
        if not able:
            found.add(("hang", ()) if unfinished else (run.go(first, None), memory))
    return found
