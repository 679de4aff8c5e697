"""Instruction → instruction: expressions inside replaced, the rest kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import assert_never

from ringsched.expr import Expr
from ringsched.program.program import (
    Add,
    Copy,
    Instruction,
    Loop,
    Multiply,
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

Change = Callable[[Expr], Expr]


def rewrite(instruction: Instruction, change: Change) -> Instruction:
    """`instruction` with `change` applied to each of its expressions, nested bodies included."""
    match instruction:
        case Send():
            return replace(
                instruction,
                source=_region(instruction.source, change),
                target=_region(instruction.target, change),
                peer=tuple(change(e) for e in instruction.peer),
                sent=_semaphore(instruction.sent, change),
                received=_semaphore(instruction.received, change),
                chunk=tuple(change(e) for e in instruction.chunk),
            )
        case Copy():
            return replace(
                instruction,
                source=_region(instruction.source, change),
                target=_region(instruction.target, change),
                done=_semaphore(instruction.done, change),
            )
        case WaitDma():
            return replace(
                instruction,
                semaphore=_semaphore(instruction.semaphore, change),
                region=_region(instruction.region, change),
            )
        case Signal():
            return replace(
                instruction,
                semaphore=_semaphore(instruction.semaphore, change),
                peer=tuple(change(e) for e in instruction.peer),
            )
        case Wait():
            return replace(instruction, semaphore=_semaphore(instruction.semaphore, change))
        case Add():
            return replace(
                instruction,
                target=_region(instruction.target, change),
                left=_region(instruction.left, change),
                right=_region(instruction.right, change),
            )
        case Multiply():
            return replace(
                instruction,
                target=_region(instruction.target, change),
                source=_region(instruction.source, change),
                weight=_region(instruction.weight, change),
                plus=None if instruction.plus is None else _region(instruction.plus, change),
            )
        case Round():
            target, source = _region(instruction.target, change), _region(instruction.source, change)
            return replace(instruction, target=target, source=source)
        case Zero():
            return replace(instruction, target=_region(instruction.target, change))
        case Loop():
            return replace(
                instruction,
                first=change(instruction.first),
                last=change(instruction.last),
                body=tuple(rewrite(i, change) for i in instruction.body),
            )
        case When():
            return replace(
                instruction,
                conditions=tuple(change(e) for e in instruction.conditions),
                body=tuple(rewrite(i, change) for i in instruction.body),
            )
        case _:
            assert_never(instruction)


def _region(region: Region, change: Change) -> Region:
    return Region(buffer=region.buffer, index=tuple(change(e) for e in region.index))


def _semaphore(semaphore: SemaphoreRef, change: Change) -> SemaphoreRef:
    return SemaphoreRef(semaphore=semaphore.semaphore, index=change(semaphore.index))


def renamed(i: Instruction, buffers: Mapping[str, str], semaphores: Mapping[str, str]) -> Instruction:
    """`i` with other names for buffers and semaphores, nested bodies included."""

    def region(old: Region) -> Region:
        return Region(buffer=buffers[old.buffer], index=old.index)

    def semaphore(old: SemaphoreRef) -> SemaphoreRef:
        return SemaphoreRef(semaphore=semaphores[old.semaphore], index=old.index)

    match i:
        case Send():
            sent, received = semaphore(i.sent), semaphore(i.received)
            return replace(i, source=region(i.source), target=region(i.target), sent=sent, received=received)
        case Copy():
            return replace(i, source=region(i.source), target=region(i.target), done=semaphore(i.done))
        case WaitDma():
            return replace(i, semaphore=semaphore(i.semaphore), region=region(i.region))
        case Signal() | Wait():
            return replace(i, semaphore=semaphore(i.semaphore))
        case Add():
            return replace(i, target=region(i.target), left=region(i.left), right=region(i.right))
        case Multiply():
            plus = None if i.plus is None else region(i.plus)
            return replace(i, target=region(i.target), source=region(i.source), weight=region(i.weight), plus=plus)
        case Round():
            return replace(i, target=region(i.target), source=region(i.source))
        case Zero():
            return replace(i, target=region(i.target))
        case Loop() | When():
            return replace(i, body=tuple(renamed(inner, buffers, semaphores) for inner in i.body))
        case _:
            assert_never(i)
