"""Program → the Python text of one kernel function.

One line an instruction, in the Program's order; a comment where the schedule's line changes. Names are those of the
Program: coordinates as they are, buffer `o` as `o_ref`, semaphores as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from ringsched.codegen.lines import call, comment
from ringsched.expr import Binary, Compare, Expr, Extremum, Int, Neg, Var
from ringsched.program.program import (
    BARRIER,
    Add,
    Copy,
    Instruction,
    Loop,
    Peer,
    Program,
    Region,
    SemaphoreRef,
    Send,
    Signal,
    Wait,
    WaitDma,
    When,
    Zero,
)

SIDE_NAMES = ("X", "Y", "Z")


def kernel_lines(program: Program, name: str, doc: str, *, debug: bool = False) -> list[str]:
    """`def name(coordinates, refs, semaphores, *, axes): …`; the references come in the order of the Program."""
    refs = [f"{b.name}_ref" for b in program.buffers]
    semaphores = [s.name for s in program.semaphores if s.kind != "barrier"]
    writer = _Writer(program=program, counts={s.name: s.count for s in program.semaphores}, debug=debug)
    lines = list(call(f"def {name}(", [*program.coordinates, *refs, *semaphores, "*", "axes"], 0, "):"))
    lines = [line.replace("*,", "*,") for line in lines]
    lines.append(f'    """{doc}"""')
    lines.extend(writer.block(program.body, 4))
    return lines


@dataclass(slots=True)
class _Writer:
    program: Program
    counts: dict[str, int]
    debug: bool
    said: str = ""

    def block(self, body: tuple[Instruction, ...], indent: int) -> Iterator[str]:
        for instruction in body:
            yield from self.instruction(instruction, indent)

    def instruction(self, i: Instruction, indent: int) -> Iterator[str]:
        pad = " " * indent
        match i:
            case Loop():
                bounds = [self.expr(i.first), self.expr(_after(i.last))]
                yield from self.nested(f"@pl.loop({', '.join(bounds)})", i.var, i.body, indent)
            case When():
                yield from self.nested(f"@pl.when({self.condition(i.conditions)})", "", i.body, indent)
            case Send():
                yield from self.say(i.note, indent)
                if self.debug:
                    yield from self.print(i, indent)
                arguments = [self.region(i.source), self.region(i.target), self.semaphore(i.sent)]
                arguments += [self.semaphore(i.received), "axes", self.peer(i.peer)]
                yield from call("_send(", arguments, indent)
            case Copy():
                yield from self.say(i.note, indent)
                arguments = [self.region(i.source), self.region(i.target), self.semaphore(i.done)]
                yield from call("_copy(", arguments, indent)
            case WaitDma():
                yield from self.say(i.note, indent)
                yield from call("_wait(", [self.region(i.region), self.semaphore(i.semaphore)], indent)
            case Signal():
                yield from self.say(i.note, indent)
                arguments = [self.semaphore(i.semaphore), "axes", self.peer(i.peer)]
                yield from call("_signal(", arguments, indent)
            case Wait():
                yield from self.say(i.note, indent)
                yield f"{pad}pl.semaphore_wait({self.semaphore(i.semaphore)}, {i.amount})"
            case Add():
                arguments = [self.region(i.target), self.region(i.left), self.region(i.right)]
                yield from call("_add(", arguments, indent)
            case Zero():
                yield from self.say(i.note, indent)
                yield f"{pad}_zero({self.region(i.target)})"
            case _:
                assert_never(i)

    def nested(self, head: str, parameter: str, body: tuple[Instruction, ...], indent: int) -> Iterator[str]:
        pad = " " * indent
        yield ""
        yield pad + head
        yield f"{pad}def _({parameter}):"
        self.said = ""
        yield from self.block(body, indent + 4)
        self.said = ""
        yield ""

    def say(self, note: str, indent: int) -> Iterator[str]:
        """A comment where a new matter begins, set off by a blank line."""
        if note and note != self.said:
            yield ""
            yield from comment(note, indent)
            self.said = note

    def print(self, i: Send, indent: int) -> Iterator[str]:
        """`--debug`: who sends what where, at run time."""
        coordinates = ", ".join(f"{c} = {{}}" for c in self.program.coordinates)
        values = [*self.program.coordinates, *(self.expr(e) for e in i.target.index)]
        place = ", ".join("{}" for _ in i.target.index)
        text = f'"{coordinates}: {i.target.buffer}[{place}] → next"'
        text = text.replace("→ next", f"<- {i.note}".replace("{", "(").replace("}", ")"))
        yield from call("pl.debug_print(", [text, *values], indent)

    # ---- parts --------------------------------------------------------------------------------------------------

    def region(self, region: Region) -> str:
        index = ", ".join(self.expr(e) for e in region.index)
        return f"{region.buffer}_ref.at[{index}]" if index else f"{region.buffer}_ref"

    def semaphore(self, ref: SemaphoreRef) -> str:
        if ref.semaphore == BARRIER:
            return "pltpu.get_barrier_semaphore()"
        if self.counts[ref.semaphore] == 1:
            return ref.semaphore
        return f"{ref.semaphore}.at[{self.expr(ref.index)}]"

    def peer(self, peer: Peer) -> str:
        texts = [self.expr(e) for e in peer]
        return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"

    def condition(self, conditions: tuple[Expr, ...]) -> str:
        parts: list[str] = []
        for c in conditions:
            parts.extend(self.comparisons(c))
        if len(parts) == 1:
            return parts[0]
        return " & ".join(f"({p})" for p in parts)

    def comparisons(self, expr: Expr) -> list[str]:
        """The links of a chain, to be joined by `&`: traced values know no `and`."""
        if isinstance(expr, Extremum):
            choices = [" & ".join(f"({p})" for p in self.comparisons(e)) for e in expr.operands]
            return [" | ".join(choices)]
        assert isinstance(expr, Compare)
        parts, left = [], expr.first
        for op, right in expr.rest:
            parts.append(f"{self.expr(left)} {op} {self.expr(right)}")
            left = right
        return parts

    def expr(self, expr: Expr) -> str:
        return self._expr(expr)[0]

    def _expr(self, expr: Expr) -> tuple[str, int]:
        """Text and precedence; a remainder by a side is written with the side's name."""
        match expr:
            case Int():
                return str(expr.value), 7 if expr.value >= 0 else 6
            case Var():
                return expr.name, 7
            case Neg():
                return f"-{self._wrapped(expr.operand, 6)}", 6
            case Binary():
                level = _LEVELS[expr.op]
                right = self._wrapped(expr.right, level + 1)
                if expr.op in ("%", "//") and isinstance(expr.right, Int):
                    right = self._side(expr.right.value)
                return f"{self._wrapped(expr.left, level)} {expr.op} {right}", level
            case Extremum():
                name = "jnp.minimum" if expr.name == "min" else "jnp.maximum"
                text = self.expr(expr.operands[0])
                for operand in expr.operands[1:]:
                    text = f"{name}({text}, {self.expr(operand)})"
                return text, 7
            case Compare():
                return " & ".join(f"({p})" for p in self.comparisons(expr)), 3
            case _:
                assert_never(expr)

    def _wrapped(self, expr: Expr, level: int) -> str:
        text, own = self._expr(expr)
        return text if own >= level else f"({text})"

    def _side(self, value: int) -> str:
        sides = self.program.sides
        if len(sides) == 1:
            return "N" if value == sides[0] else str(value)
        return SIDE_NAMES[sides.index(value)] if value in sides else str(value)


_LEVELS = {"^": 2, "<<": 3, "+": 4, "-": 4, "*": 5, "//": 5, "%": 5}


def _after(last: Expr) -> Expr:
    from ringsched.program.simplify import simplify

    return simplify(Binary(op="+", left=last, right=Int(value=1)))
