"""Step code with holes, and how equal steps are rolled into loops.

The instructions of one step are built with a hole in each place where a number may change from step to step: loop
variables, slot numbers, ranks in guards. Two steps with the same instructions but other numbers in the holes are
iterations of one loop where the numbers advance evenly; `roll` finds such runs and writes each hole as a function of
the loop variable. Where it may make tables, any numbers will do, and a hole may have a number for each rank: it becomes
a look-up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ringsched.expr import Compare, Expr, Int, Lookup, Var, binary, integer, names, substitute
from ringsched.program.program import Instruction, Loop, Send, When
from ringsched.program.rewrite import rewrite
from ringsched.program.simplify import simplify

SHORTEST = 3  # iterations that make a loop worth its while

Filling = int | tuple[int, ...]  # the same on all ranks, or a number for each


@dataclass(slots=True)
class StepCode:
    """`values[i]` fills hole `$i`; `names[i]` is the schedule's name for it, if it has one, or that of its table."""

    instructions: list[Instruction] = field(default_factory=list)
    values: list[Filling] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    label: str = ""  # the loop variables of the step, for its comments where it is not rolled up

    def hole(self, value: int, name: str = "") -> Expr:
        """An expression that stands for `value` in this step."""
        self.values.append(value)
        self.names.append(name)
        return Var(name=f"${len(self.values) - 1}")

    def by_rank(self, values: tuple[int, ...], name: str) -> Expr:
        """An expression that stands for the number of this rank; `name`: of the table. For `roll` with a `rank`."""
        return self._hole(values[0] if len(set(values)) == 1 else values, name + "[]")

    def _hole(self, value: Filling, name: str) -> Expr:
        self.values.append(value)
        self.names.append(name)
        return Var(name=f"${len(self.values) - 1}")


def roll(
    steps: list[StepCode], *, loops: bool, below: Mapping[str, int], rank: Expr | None = None
) -> tuple[Instruction, ...]:
    """The steps in order; runs of equal ones as loops where `loops` allows. `below`: see `simplify`.

    rank: this rank's number; with it, numbers that do not advance evenly become tables.
    """
    body: list[Instruction] = []
    start = 0
    while start < len(steps):
        length = _run(steps, start, even=rank is None) if loops else 1
        if length >= SHORTEST:
            body.append(_loop(steps, start, length, below, rank))
        else:
            length = 1
            step = steps[start]
            filled = _filled(step, [_once(v, n, rank) for v, n in zip(step.values, step.names, strict=True)], below)
            body.extend(_labelled(instruction, steps[start].label) for instruction in filled)
        start += length
    return _merged(body)


def _run(steps: list[StepCode], start: int, *, even: bool) -> int:
    """How many steps from `start` on are the same but for numbers, which advance evenly if that is asked for."""
    first = steps[start]
    if not first.instructions:
        return 1
    stride: list[int] | None = None
    length = 1
    for previous, step in itertools.pairwise(steps[start:]):
        if step.instructions != first.instructions or step.names != first.names:
            break
        if even:
            advance = [_plain(b) - _plain(a) for a, b in zip(previous.values, step.values, strict=True)]
            if stride is not None and advance != stride:
                break
            stride = advance
        length += 1
    return length


def _plain(value: Filling) -> int:
    assert isinstance(value, int)
    return value


def _loop(steps: list[StepCode], start: int, length: int, below: Mapping[str, int], rank: Expr | None) -> Instruction:
    first = steps[start]
    columns = list(zip(*(step.values for step in steps[start : start + length]), strict=True))
    strides = [_stride(column) for column in columns]
    named = [i for i, (name, by) in enumerate(zip(first.names, strides, strict=True)) if _counts(name) and by == 1]
    if named:
        # of the same variable several moments may occur (this step's, an earlier arrival's): count by the latest
        leader = max(named, key=lambda i: (first.names[i] == first.names[named[0]], first.values[i]))
        var, base = first.names[leader], _plain(first.values[leader])
    else:
        var, base = "k", 0
    values: list[Expr] = []
    for column, by, name in zip(columns, strides, first.names, strict=True):
        if by is None:
            values.append(_table(column, name, binary("-", Var(name=var), base), rank))
            continue
        scaled = binary("*", by, Var(name=var))
        values.append(simplify(binary("+", scaled, _plain(column[0]) - by * base)))
    body = _merged(_filled(first, values, below))
    return Loop(var=var, first=Int(value=base), last=Int(value=base + length - 1), body=body)


def _stride(column: tuple[Filling, ...]) -> int | None:
    """By how much the numbers advance, None where that is not even, or differs from rank to rank."""
    numbers = [value for value in column if isinstance(value, int)]
    advances = {b - a for a, b in itertools.pairwise(numbers)}
    return advances.pop() if len(numbers) == len(column) and len(advances) == 1 else None


def _counts(name: str) -> bool:
    """Whether it is the name of a loop variable."""
    return bool(name) and not name.endswith("[]")


def _table(column: tuple[Filling, ...], name: str, row: Expr, rank: Expr | None) -> Expr:
    """A number for each step and, where they differ, each rank."""
    assert rank is not None
    title = name.removesuffix("[]") or "hole"
    if all(isinstance(value, int) for value in column):
        return Lookup(name=title, table=tuple(map(_plain, column)), index=row)
    ranks = next(len(value) for value in column if isinstance(value, tuple))
    entries: list[int] = []
    for value in column:
        entries.extend(value if isinstance(value, tuple) else [value] * ranks)
    index = binary("+", binary("*", row, ranks), rank)
    return Lookup(name=title, table=tuple(entries), index=index)


def _once(value: Filling, name: str, rank: Expr | None) -> Expr:
    """A number of a step that stands alone."""
    if isinstance(value, int):
        return Int(value=value)
    assert rank is not None
    return Lookup(name=name.removesuffix("[]"), table=value, index=rank)


def _filled(step: StepCode, values: list[Expr], below: Mapping[str, int]) -> list[Instruction]:
    env = {f"${i}": value for i, value in enumerate(values)}
    fill: Callable[[Expr], Expr] = lambda expr: simplify(substitute(expr, env), below)  # noqa: E731
    filled = (_pinned(rewrite(instruction, fill), below) for instruction in step.instructions)
    return [instruction for one in filled for instruction in _decided(one)]


def _decided(instruction: Instruction) -> tuple[Instruction, ...]:
    """Guards that are known to hold, or not to."""
    if not isinstance(instruction, When):
        return (instruction,)
    body = tuple(inner for one in instruction.body for inner in _decided(one))
    known = {c: _truth(c) for c in instruction.conditions}
    if False in known.values():
        return ()
    conditions = tuple(c for c in instruction.conditions if known[c] is None)
    return (replace(instruction, conditions=conditions, body=body),) if conditions else body


def _truth(condition: Expr) -> bool | None:
    """Whether a condition holds, whatever its names stand for; None where that depends on them."""
    match condition:
        case Compare(first=Lookup() as entry, rest=(("==", Int() as number),)) if number.value not in entry.table:
            return False
        case _:
            return None if names(condition) else bool(integer(condition, {}))


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
