"""MSCCL XML → Algorithm, however it is spelt.

RS131, RS132, RS135 (see `elements`); RS133 not an algorithm; RS134 a value that cannot be read. What is left out or
filled in is advice (RS913), kept in the Algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ringsched.diagnostics import Collector, Diagnostic, Label, Span
from ringsched.importers.algorithm import COLLECTIVES, DEPTHS, Algorithm, Block, Buffer, Gpu, Slot, Step, StepType
from ringsched.importers.elements import Element, parse, read
from ringsched.schedule.tree import fail

_Word = TypeVar("_Word")

_INTEGER = re.compile(r"[+-]?[0-9]+")
MAX_DIGITS = 9
MAX_RANKS = 4096
MAX_FINDINGS = 10

_TYPES: dict[str, StepType] = {
    "s": "s", "send": "s", "r": "r", "recv": "r", "receive": "r", "rcs": "rcs", "rrc": "rrc", "rrs": "rrs",
    "rrcs": "rrcs", "cpy": "cpy", "copy": "cpy", "re": "re", "reduce": "re", "nop": "nop",
}  # fmt: skip
_BUFFERS: dict[str, Buffer] = {
    "i": "i", "in": "i", "input": "i", "o": "o", "out": "o", "output": "o", "s": "s", "scratch": "s",
}  # fmt: skip

# Attributes by all their names. Older and newer writers differ in underscores, and some spell names out.
_COLL = ("coll", "collective")
_CHUNKS = ("nchunksperloop", "nChunksPerLoop", "nchunks")
_RANKS = ("ngpus", "nGpus", "nranks")
_CHANNELS = ("nchannels", "nChannels")
_PROTOCOL = ("proto", "protocol")
_IN_PLACE = ("inplace", "inPlace", "in_place")
_SIZES: tuple[tuple[Buffer, tuple[str, ...]], ...] = (
    ("i", ("i_chunks", "input_chunks", "ichunks")),
    ("o", ("o_chunks", "output_chunks", "ochunks")),
    ("s", ("s_chunks", "scratch_chunks", "schunks")),
)
_SEND = ("send", "sendpeer", "send_peer")
_RECEIVE = ("recv", "recvpeer", "recv_peer")
_CHANNEL = ("chan", "channel", "chanid")
_NEED_BLOCKS = ("depid", "depId", "dep_id", "dependid")
_NEED_STEPS = ("deps", "depstep", "dep_s", "depends")
_FLAGGED = ("hasdep", "has_dep", "hasDep")
_WORDS = {"true": True, "false": False}
_INSIDE = {"algo": "gpu", "gpu": "tb", "tb": "step"}


def read_algorithm(path: str) -> Algorithm:
    """The algorithm in a file."""
    return algorithm_of(parse(read(path), path))


def algorithm_of(root: Element) -> Algorithm:
    """The algorithm that an element is; all its faults together."""
    inner = [child for child in root.children if child.tag.lower() == "algo"]
    if root.tag.lower() != "algo" and len(inner) == 1:
        root = inner[0]
    if root.tag.lower() != "algo":
        raise fail(
            "RS133",
            f"not an MSCCL algorithm: its outermost element is <{root.tag}>",
            root.span,
            "<algo …> belongs here",
            help="other forms, such as plans in JSON, are not read",
        )
    reader = _Reader()
    algorithm = reader.algorithm(root)
    if len(reader.found.diagnostics) > MAX_FINDINGS:  # a file of another dialect has one mistake a step
        del reader.found.diagnostics[MAX_FINDINGS:]
    reader.found.check()
    return replace(algorithm, advice=tuple(reader.advice))


@dataclass(slots=True)
class _Reader:
    found: Collector = field(default_factory=Collector)
    advice: list[Diagnostic] = field(default_factory=list)

    # -- the tree -------------------------------------------------------------------------------------------------

    def algorithm(self, root: Element) -> Algorithm:
        collective = self.text(root, _COLL)
        places = [(self.number(e, ("id", "rank")), e) for e in self.inside(root)]
        ranks = self.number(root, _RANKS)
        if ranks is None:
            ranks = max((rank + 1 for rank, _ in places if rank is not None), default=0)
        if not 1 <= ranks <= MAX_RANKS:
            span = root.place(_RANKS[0])
            self.refuse(f"{ranks} ranks", span, "RS133", help=f'an algorithm has 1 to {MAX_RANKS:,} ranks: ngpus="4"')
            ranks = 0
        gpus: dict[int, Gpu] = {}
        for rank, element in places:
            if rank is None:
                self.missing(element, ("id",))
            elif not 0 <= rank < ranks or rank in gpus:
                text = "this rank is here twice" if rank in gpus else f"ranks are 0 … {ranks - 1}"
                self.refuse(f"a gpu with id {rank}", element.place("id"), "RS133", text)
            else:
                gpus[rank] = self.gpu(element, rank)
        for rank in range(ranks):
            gpus.setdefault(rank, Gpu(rank=rank, sizes={}, blocks=(), span=root.span))
        kind = None
        if collective is not None:
            kind = COLLECTIVES.get(collective.lower().replace("_", "").replace("-", "").replace(" ", ""))
        steps = [s for g in gpus.values() for b in g.blocks for s in b.steps]
        if not any(s.flagged for s in steps):  # this writer does not use the attribute
            gpus = {rank: _unflagged(gpu) for rank, gpu in gpus.items()}
            waits = next((s for s in steps if s.needs and s.flagged is not None), None)
            if waits is not None:
                self.advise('no step has hasdep="1": all are taken to have it', waits.span, "this one waits")
        return Algorithm(
            name=root.attributes.get("name", ""),
            collective=collective or "",
            kind=kind,
            ranks=ranks,
            chunks=self.number(root, _CHUNKS),
            channels=self.number(root, _CHANNELS),
            protocol=self.protocol(root),
            in_place=self.flag(root, _IN_PLACE),
            root=self.number(root, ("root",)),
            gpus=tuple(gpus[rank] for rank in sorted(gpus)),
            span=self.named(root, _COLL),
            chunks_span=self.named(root, _CHUNKS),
            path=root.span.path,
        )

    def gpu(self, element: Element, rank: int) -> Gpu:
        sizes: dict[Buffer, int] = {}
        for buffer, names in _SIZES:
            size = self.number(element, names)
            if size is not None and size < 0:
                self.refuse(f"a buffer of {size} chunks", element.place(names[0]), "RS134", "0 or more")
            elif size is not None:
                sizes[buffer] = size
        blocks: dict[int, Block] = {}
        for position, child in enumerate(self.inside(element)):
            given = self.number(child, ("id",))
            id = position if given is None else given
            if id in blocks:
                self.refuse(f"block {id} of rank {rank} is here twice", child.place("id"), "RS133", "the second one")
            blocks[id] = self.block(child, id)
        copies = [child for child in element.children if child.tag.lower() == "copy"]
        if copies:
            id = max(blocks, default=-1) + 1
            blocks[id] = self.copies(copies, id)
        ordered = tuple(blocks[id] for id in sorted(blocks))
        return Gpu(rank=rank, sizes=sizes, blocks=ordered, span=element.head("id"))

    def copies(self, elements: list[Element], id: int) -> Block:
        """<copy i_off="0" o_off="2"/> of older writers: a block of its own that copies input to output."""
        self.advise("<copy> is taken for a local copy; newer runtimes leave it out", elements[0].span)
        steps = []
        for number, element in enumerate(elements):
            source, target = (self.number(element, names) for names in (("i_off", "srcoff"), ("o_off", "dstoff")))
            for offset, name in ((source, "i_off"), (target, "o_off")):
                if offset is None:
                    self.missing(element, (name,))
            count = self.number(element, ("cnt", "count"))
            steps.append(
                Step(
                    number=number,
                    type="cpy",
                    source=Slot(buffer="i", offset=-1 if source is None else source),
                    target=Slot(buffer="o", offset=-1 if target is None else target),
                    count=1 if count is None else max(count, 0),
                    needs=(),
                    flagged=None,
                    span=element.span,
                )
            )
        return Block(id=id, send=None, receive=None, channel=0, steps=tuple(steps), span=elements[0].span)

    def block(self, element: Element, id: int) -> Block:
        steps: dict[int, Step] = {}
        disordered: Span | None = None
        for position, child in enumerate(self.inside(element)):
            given = self.number(child, ("s", "id", "step"))
            number = position if given is None else given
            if number in steps:
                self.refuse(f"step {number} is here twice", child.place("s"), "RS133", "the second one")
            if steps and number < max(steps):
                disordered = disordered or child.place("s")
            steps[number] = self.step(child, number)
        if disordered is not None:
            self.advise("steps out of order: they are taken by their numbers", disordered, "after a later one")
        peers = [self.number(element, names) for names in (_SEND, _RECEIVE)]
        send, receive = (None if peer == -1 else peer for peer in peers)
        ordered = tuple(steps[number] for number in sorted(steps))
        channel = self.number(element, _CHANNEL) or 0
        return Block(id=id, send=send, receive=receive, channel=channel, steps=ordered, span=element.head("id"))

    def step(self, element: Element, number: int) -> Step:
        type_ = self.word(element, ("type", "op"), _TYPES, "nop")
        source = self.slot(element, ("srcbuf", "src_buf"), ("srcoff", "src_off"), "i")
        target = self.slot(element, ("dstbuf", "dst_buf"), ("dstoff", "dst_off"), "o")
        given = self.number(element, ("cnt", "count"))
        count = 1 if given is None else given
        if count < 0:
            self.refuse(f"a step of {count} chunks", element.place("cnt"), "RS134", "0 or more")
        return Step(
            number=number,
            type=type_,
            source=source,
            target=target,
            count=0 if type_ == "nop" else count,
            needs=self.needs(element),
            flagged=self.flag(element, _FLAGGED),
            span=element.head("type"),
        )

    def needs(self, element: Element) -> tuple[tuple[int, int], ...]:
        """depid="2" deps="0", or lists: depid="2,3" deps="0,1"."""
        if self.text(element, _NEED_BLOCKS) in (None, "-1"):
            return ()
        blocks, steps = (self.numbers(element, names) for names in (_NEED_BLOCKS, _NEED_STEPS))
        if len(blocks) != len(steps):
            if any(b >= 0 for b in blocks):
                self.refuse(
                    f"{len(blocks)} blocks to wait for, and {len(steps)} steps",
                    self.named(element, _NEED_BLOCKS),
                    "RS134",
                    help='name one step for each block: depid="2" deps="0"',
                )
            return ()
        return tuple((b, s) for b, s in zip(blocks, steps, strict=True) if b >= 0)

    def slot(self, element: Element, buffers: tuple[str, ...], offsets: tuple[str, ...], usual: Buffer) -> Slot:
        offset = self.number(element, offsets)
        return Slot(buffer=self.word(element, buffers, _BUFFERS, usual), offset=-1 if offset is None else offset)

    def protocol(self, root: Element) -> str:
        given = self.text(root, _PROTOCOL)
        known = {name.lower(): name for name in DEPTHS}
        if given is None or given.lower() not in known:
            what = "no protocol" if given is None else f"the protocol {given!r} is not known"
            self.advise(f"{what}: Simple is assumed, 2 messages in flight", self.named(root, _PROTOCOL))
            return "Simple"
        return known[given.lower()]

    def inside(self, element: Element) -> Iterator[Element]:
        """The children that matter at this level."""
        wanted = _INSIDE[element.tag.lower()]
        strange: dict[str, Element] = {}
        for child in element.children:
            if child.tag.lower() == wanted:
                yield child
            elif (wanted, child.tag.lower()) != ("tb", "copy"):
                strange.setdefault(child.tag, child)
        for tag, child in strange.items():
            if wanted == "step":  # what it does cannot be known, and the block is another one without it
                self.refuse(f"<{tag}> in a block", child.span, "RS133", help='its steps are <step s="0" type="s" …/>')
                continue
            self.advise(f"<{tag}> means nothing inside <{element.tag}>: it is left out", child.span)

    # -- values ---------------------------------------------------------------------------------------------------

    def text(self, element: Element, names: tuple[str, ...]) -> str | None:
        """None, too, for one that is empty, as some writers leave those that do not matter."""
        for name in names:
            if name in element.attributes:
                return element.attributes[name].strip() or None
        return None

    def word(self, element: Element, names: tuple[str, ...], table: dict[str, _Word], usual: _Word) -> _Word:
        text = self.text(element, names)
        if text is None:
            if names[0] == "type":
                self.missing(element, names)
            return usual
        found = table.get(text.lower())
        if found is None:
            words = ", ".join(map(str, dict.fromkeys(table.values())))
            self.refuse(
                f"{names[0]} {text!r} is not known", self.named(element, names), "RS134", help=f"one of {words}"
            )
        return usual if found is None else found

    def number(self, element: Element, names: tuple[str, ...]) -> int | None:
        text = self.text(element, names)
        if text is None:
            return None
        if len(text) <= MAX_DIGITS and _INTEGER.fullmatch(text):
            return int(text)
        found = self.numbers(element, names)
        if len(found) > 1:
            self.refuse(f"one number is wanted, not {len(found)}", self.named(element, names), "RS134")
        return found[0] if found else None

    def flag(self, element: Element, names: tuple[str, ...]) -> bool | None:
        text = self.text(element, names)
        if text is not None and text.lower() in _WORDS:
            return _WORDS[text.lower()]
        number = self.number(element, names)
        return None if number is None else number != 0

    def numbers(self, element: Element, names: tuple[str, ...]) -> tuple[int, ...]:
        text = self.text(element, names)
        if not text:
            return ()
        found = []
        for part in text.replace(",", " ").strip("[]() ").split():
            if _INTEGER.fullmatch(part) is None:
                self.refuse(f"{part[:40]!r} is not an integer", self.named(element, names), "RS134")
            elif len(part) > MAX_DIGITS:
                self.refuse(f"{part[:40]!r} is out of range", self.named(element, names), "RS134")
            else:
                found.append(int(part))
        return tuple(found)

    def named(self, element: Element, names: tuple[str, ...]) -> Span:
        return element.place(next((name for name in names if name in element.attributes), names[0]))

    # -- findings -------------------------------------------------------------------------------------------------

    def missing(self, element: Element, names: tuple[str, ...]) -> None:
        name = names[0]
        self.refuse(f"<{element.tag}> has no `{name}`", element.span, "RS133", help=f'write {name}="…"')

    def refuse(self, message: str, span: Span, code: str, text: str = "", help: str | None = None) -> None:
        self.found.add(Diagnostic(code=code, message=message, primary=Label(span=span, text=text), help=help))

    def advise(self, message: str, span: Span, text: str = "") -> None:
        """Each of them once, at its first place."""
        if all(other.message != message for other in self.advice):
            self.advice.append(Diagnostic(code="RS913", message=message, primary=Label(span=span, text=text)))


def _unflagged(gpu: Gpu) -> Gpu:
    blocks = [replace(b, steps=tuple(replace(s, flagged=None) for s in b.steps)) for b in gpu.blocks]
    return replace(gpu, blocks=tuple(blocks))
