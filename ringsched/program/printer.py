"""Program → text, for `--emit program`.

program all_gather (r in 0 .. 3)
  buffer     x        input    1 unit
  …
  send       x → o[r] at (r + 1) % 4             counts on sent here, received[0] there
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

from ringsched.expr import Int, show
from ringsched.program.program import (
    Add,
    Copy,
    Instruction,
    Loop,
    Multiply,
    Peer,
    Program,
    Region,
    Round,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
    When,
    Zero,
)


def print_program(program: Program) -> str:
    """One line an instruction, in execution order."""
    ranks = ", ".join(f"{c} in 0 .. {n - 1}" for c, n in zip(program.coordinates, program.sides, strict=True))
    lines = [f"program {program.name} ({ranks})"]
    names = [b.name for b in program.buffers] + [s.name for s in program.semaphores]
    width = max(len(name) for name in names)
    for buffer in program.buffers:
        shape = " × ".join(map(str, buffer.shape)) or "1"
        total = math.prod(buffer.shape)
        units = f"{shape} {'unit' if total == 1 else 'units'}"
        lines.append(f"  buffer     {buffer.name:<{width}}  {buffer.space:<8} {units}")
    for semaphore in program.semaphores:
        lines.append(f"  semaphore  {semaphore.name:<{width}}  {semaphore.kind:<8} {semaphore.count}")
    counts = {s.name: s.count for s in program.semaphores}
    lines.append("")
    lines.extend(_Text(counts).body(program.body, 1))
    return "\n".join(lines) + "\n"


class _Text:
    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def body(self, body: tuple[Instruction, ...], depth: int) -> Iterator[str]:
        for instruction in body:
            yield from self.lines(instruction, depth)

    def lines(self, i: Instruction, depth: int) -> Iterator[str]:
        pad = "  " * depth
        match i:
            case Loop():
                yield f"{pad}for {i.var} in {show(i.first)} .. {show(i.last)}"
                yield from self.body(i.body, depth + 1)
            case When():
                yield f"{pad}when {' and '.join(show(c) for c in i.conditions)}"
                yield from self.body(i.body, depth + 1)
            case Send():
                what = f"{region_text(i.source)} → {region_text(i.target)} at {peer_text(i.peer)}"
                yield f"{pad}{'send':<8} {what:<44} sent: {self.ref(i.sent)}, received: {self.ref(i.received)}"
            case Copy():
                what = f"{region_text(i.source)} → {region_text(i.target)}"
                yield f"{pad}{'copy':<8} {what:<44} done: {self.ref(i.done)}"
            case WaitDma():
                yield f"{pad}{'wait':<8} {self.ref(i.semaphore)} for {region_text(i.region)}"
            case Wait():
                yield f"{pad}{'wait':<8} {self.ref(i.semaphore)} for {i.amount}"
            case Signal():
                yield f"{pad}{'signal':<8} {self.ref(i.semaphore)} at {peer_text(i.peer)} by {i.amount}"
            case Add():
                sums = f"{region_text(i.left)} + {region_text(i.right)}"
                yield f"{pad}{'add':<8} {region_text(i.target)} = {sums}"
            case Multiply():
                product = f"{region_text(i.source)} @ {region_text(i.weight)}"
                plus = "" if i.plus is None else f"{region_text(i.plus)} + "
                yield f"{pad}{'multiply':<8} {region_text(i.target)} = {plus}{product}"
            case Round():
                yield f"{pad}{'round':<8} {region_text(i.target)} = {region_text(i.source)}"
            case Zero():
                yield f"{pad}{'zero':<8} {region_text(i.target)}"
            case _:
                assert_never(i)

    def ref(self, semaphore: SemaphoreRef) -> str:
        if self.counts.get(semaphore.semaphore, 1) == 1 and semaphore.index == Int(value=0):
            return semaphore.semaphore
        return f"{semaphore.semaphore}[{show(semaphore.index)}]"


def region_text(region: Region) -> str:
    """`o[(r + 1) % 4]`, or the buffer's name where it is taken whole."""
    index = ", ".join(show(e) for e in region.index)
    return f"{region.buffer}[{index}]" if index else region.buffer


def peer_text(peer: Peer) -> str:
    texts = [show(e) for e in peer]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
