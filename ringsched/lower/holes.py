"""Step code with holes, and how equal steps are rolled into loops.

The instructions of one step are built with a hole in each place where a number may change from step to step: loop
variables, slot numbers, ranks in guards. Two steps with the same instructions but other numbers in the holes are
iterations of one loop where the numbers advance evenly; `roll` finds such runs and writes each hole as a function of
the loop variable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ringsched.expr import Compare, Expr, Int, Var, binary, substitute
from ringsched.program.program import Instruction, Loop, Send, When
from ringsched.program.rewrite import rewrite
from ringsched.program.simplify import simplify

SHORTEST = 3  # iterations that make a loop worth its while


@dataclass(slots=True)
class StepCode:
    """`values[i]` fills hole `$i`; `names[i]` is the schedule's name for it, if it has one."""

    instructions: list[Instruction] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    label: str = ""  # the loop variables of the step, for its comments where it is not rolled up

    def hole(self, value: int, name: str = "") -> Expr:
        """An expression that stands for `value` in this step."""
        self.values.append(value)
        self.names.append(name)
        return Var(name=f"${len(self.values) - 1}")


def roll(steps: list[StepCode], *, loops: bool, below: Mapping[str, int]) -> tuple[Instruction, ...]:
    """The steps in order; runs of equal ones as loops where `loops` allows. `below`: see `simplify`."""
    body: list[Instruction] = []
    start = 0
    while start < len(steps):
        length = _run(steps, start) if loops else 1
        if length >= SHORTEST:
            body.append(_loop(steps, start, length, below))
        else:
            length = 1
            filled = _filled(steps[start], [Int(value=v) for v in steps[start].values], below)
            body.extend(_labelled(instruction, steps[start].label) for instruction in filled)
        start += length
    return _merged(body)


def _run(steps: list[StepCode], start: int) -> int:
    """How many steps from `start` on are the same but for numbers that advance evenly."""
    first = steps[start]
    if not first.instructions:
        return 1
    stride: list[int] | None = None
    length = 1
    for previous, step in itertools.pairwise(steps[start:]):
        if step.instructions != first.instructions or step.names != first.names:
            break
        advance = [b - a for a, b in zip(previous.values, step.values, strict=True)]
        if stride is not None and advance != stride:
            break
        stride = advance
        length += 1
    return length


def _loop(steps: list[StepCode], start: int, length: int, below: Mapping[str, int]) -> Instruction:
    first = steps[start]
    stride = [b - a for a, b in zip(first.values, steps[start + 1].values, strict=True)]
    named = [i for i, (name, by) in enumerate(zip(first.names, stride, strict=True)) if name and by == 1]
    if named:
        # of the same variable several moments may occur (this step's, an earlier arrival's): count by the latest
        leader = max(named, key=lambda i: (first.names[i] == first.names[named[0]], first.values[i]))
        var, base = first.names[leader], first.values[leader]
    else:
        var, base = "k", 0
    values: list[Expr] = []
    for value, by in zip(first.values, stride, strict=True):
        scaled = binary("*", by, Var(name=var))
        values.append(simplify(binary("+", scaled, value - by * base)))
    body = _merged(_filled(first, values, below))
    return Loop(var=var, first=Int(value=base), last=Int(value=base + length - 1), body=body)


def _filled(step: StepCode, values: list[Expr], below: Mapping[str, int]) -> list[Instruction]:
    env = {f"${i}": value for i, value in enumerate(values)}
    fill: Callable[[Expr], Expr] = lambda expr: simplify(substitute(expr, env), below)  # noqa: E731
    return [_pinned(rewrite(instruction, fill), below) for instruction in step.instructions]


def _labelled(instruction: Instruction, label: str) -> Instruction:
    match instruction:
        case Send() if label:
            return replace(instruction, note=f"{instruction.note}; {label}")
        case Loop() | When():
            return replace(instruction, body=tuple(_labelled(i, label) for i in instruction.body))
        case _:
            return instruction


def _pinned(instruction: Instruction, below: Mapping[str, int]) -> Instruction:
    """Where a guard fixes a coordinate, the guarded code need not compute with it."""
    if not isinstance(instruction, When):
        return instruction
    env = {
        c.first.name: c.rest[0][1]
        for c in instruction.conditions
        if isinstance(c, Compare) and isinstance(c.first, Var) and len(c.rest) == 1 and c.rest[0][0] == "=="
    }
    body = tuple(rewrite(i, lambda expr: simplify(substitute(expr, dict(env)), below)) for i in instruction.body)
    return When(conditions=instruction.conditions, body=body, note=instruction.note) if env else instruction


def _merged(body: list[Instruction]) -> tuple[Instruction, ...]:
    """Neighbouring guards with the same conditions become one."""
    merged: list[Instruction] = []
    for instruction in body:
        last = merged[-1] if merged else None
        if isinstance(instruction, When) and isinstance(last, When) and last.conditions == instruction.conditions:
            merged[-1] = When(conditions=last.conditions, body=(*last.body, *instruction.body))
        else:
            merged.append(instruction)
    return tuple(merged)
