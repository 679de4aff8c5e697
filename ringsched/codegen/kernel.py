"""Program → the Python text of one kernel function.

One line an instruction, in the Program's order; a comment where the schedule's line changes. Names are those of the
Program: coordinates as they are, buffer `o` as `o_ref`, semaphores as they are.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from ringsched.codegen.fuse import Product, fuse
from ringsched.expr import Binary, Compare, Expr, Extremum, Int, Lookup, Neg, Var, binary, names
from ringsched.lines import WIDTH, call, comment, paragraph
from ringsched.lower.lanes import flat_rank
from ringsched.program.program import (
    BARRIER,
    RANK,
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
from ringsched.program.simplify import simplify
from ringsched.program.tables import Tables, row_of, tables_of
from ringsched.xla.words import SIDE_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a buffer's unit is made of: the names of its two dimensions.

    in_columns: units are blocks of columns. layers: the buffer's first dimension counts layers, a number of the call's.
    """

    rows: str
    cols: str
    in_columns: bool = False
    layers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a kernel is given beside its references; by default, that of one that multiplies.

    finishes: the epilogue of what is computed into a buffer. multiply, add: the functions that compute products, sums.
    """

    names: tuple[str, ...] = ("multiply", "finish")
    finishes: tuple[tuple[str, str], ...] = (("o", "finish"),)
    multiply: str = "multiply"
    add: str = "_add"


COPYING = Arguments(names=(), finishes=())
ADDING = Arguments(names=("add",), finishes=(), add="add")


def kernel_lines(
    program: Program,
    name: str,
    title: str,
    *,
    units: Mapping[str, Unit] | None = None,
    arguments: Arguments = COPYING,
    debug: bool = False,
) -> list[str]:
    """`def name(coordinates, tables, refs, semaphores, *, axes): …`; references come in the order of the Program.

    units: of each buffer; None: they are all alike.
    """
    units = {} if units is None else units
    refs = [f"{b.name}_ref" for b in program.buffers]
    semaphores = [s.name for s in program.semaphores if s.kind != "barrier"]
    writer = _writer(program, units, arguments, debug)
    options = ["*", "axes", *arguments.names]
    tables = [f"{table}_ref" for some in writer.tables for table in some.values()]
    lines = list(call(f"def {name}(", [*program.coordinates, *tables, *refs, *semaphores, *options], 0, "):"))
    lines = [line.replace("*,", "*,") for line in lines]
    lines += [f'    """{title}', "", *_shapes_text(program, units), '    """']
    body: list[str] = []
    for peer, alias in writer.peers.items():
        body += call(f"{alias} = _device(", ["axes", *map(writer.expr, peer)], 4)
    body.extend(writer.block(program.body, 4))
    if writer.ranked:
        own = flat_rank([Var(name=c) for c in program.coordinates], program.sides)
        lines.append(f"    {RANK.name} = {writer.expr(own)}")
    return lines + body


def product_groups(program: Program, units: Mapping[str, Unit]) -> tuple[tuple[tuple[int, ...], ...], int | None]:
    """How many units each product has, for each call that multiplies; the first call that is in a loop or guarded."""
    writer = _writer(program, units, Arguments(), debug=False)
    found: list[tuple[int, ...]] = []
    nested: list[int] = []

    def visit(body: tuple[Instruction, ...], deep: bool) -> None:
        for together, group in itertools.groupby(body, lambda i: isinstance(i, Multiply)):
            row = list(group)
            if together:
                nested.extend([len(found)] if deep else [])
                for products in writer.groups([i for i in row if isinstance(i, Multiply)]):
                    found.append(tuple(writer.units(p) for p in products))
                continue
            for i in row:
                if isinstance(i, Loop | When):
                    visit(i.body, True)

    visit(program.body, False)
    return tuple(found), min(nested, default=None)


def _writer(program: Program, units: Mapping[str, Unit], arguments: Arguments, debug: bool) -> _Writer:
    return _Writer(
        program=program,
        shapes={b.name: b.shape for b in program.buffers},
        counts={s.name: s.count for s in program.semaphores},
        peers=_named_peers(program),
        tables=tables_of(program),
        columns=frozenset(name for name, unit in units.items() if unit.in_columns and not unit.layers),
        stacked=frozenset(name for name, unit in units.items() if unit.in_columns and unit.layers),
        finishes=dict(arguments.finishes),
        multiply=arguments.multiply,
        add=arguments.add,
        debug=debug,
    )


def _shapes_text(program: Program, units: Mapping[str, Unit]) -> list[str]:
    """`x_ref: [4, rows, cols]`, as many a line as fit."""
    texts = []
    for b in program.buffers:
        unit = units.get(b.name, Unit(rows="rows", cols="cols"))
        shape = b.shape[1:] if unit.layers else b.shape
        grid = "" if unit.in_columns else "".join(f"{n}, " for n in shape)
        grid = f"layers, {grid}" if unit.layers else grid
        cols = f"{math.prod(shape)} * {unit.cols}" if unit.in_columns else unit.cols
        texts.append(f"{b.name}_ref: [{grid}{unit.rows}, {cols}]")
    return list(paragraph("; ".join(t.replace(" ", "\0") for t in texts), 4, glue="\0"))


def _named_peers(program: Program) -> dict[Peer, str]:
    """Peers that no loop variable enters, by name: `right` is the next rank, `left` the one before."""
    found: dict[Peer, str] = {}
    for peer in _peers(program.body):
        if peer in found or any(names(e) - {"r", *program.coordinates} for e in peer):
            continue
        name = _neighbour(peer, program)
        found[peer] = f"peer_{len(found)}" if name is None or name in found.values() else name
    return {peer: "peer" if name == "peer_0" and len(found) == 1 else name for peer, name in found.items()}


def _neighbour(peer: Peer, program: Program) -> str | None:
    """`right` and `left` on a ring or line, `x_up` and `x_down` on a grid, `rank_3` where it is pinned."""
    if all(isinstance(e, Int) for e in peer):
        return "rank_" + "_".join(str(e.value) for e in peer if isinstance(e, Int))
    own = tuple(Var(name=c) for c in program.coordinates)
    moved = [axis for axis, e in enumerate(peer) if e != own[axis]]
    if len(moved) != 1:
        return None
    (axis,) = moved
    for offset, ring, grid in ((1, "right", "up"), (-1, "left", "down")):
        there = binary("+", own[axis], offset)
        if peer[axis] in (simplify(there), simplify(binary("%", there, program.sides[axis]))):
            return ring if len(own) == 1 else f"{program.coordinates[axis]}_{grid}"
    return None


def _peers(body: tuple[Instruction, ...]) -> Iterator[Peer]:
    for i in body:
        match i:
            case Loop() | When():
                yield from _peers(i.body)
            case Send() | Signal():
                yield i.peer
            case _:
                pass


@dataclass(slots=True)
class _Writer:
    program: Program
    shapes: dict[str, tuple[int, ...]]  # of buffers, in units
    counts: dict[str, int]  # of semaphore arrays
    peers: dict[Peer, str]  # those with a name
    tables: Tables
    debug: bool
    columns: frozenset[str] = frozenset()  # buffers whose units are blocks of columns
    stacked: frozenset[str] = frozenset()  # layers of such buffers
    finishes: Mapping[str, str] = field(default_factory=dict)  # the epilogue of what is computed into a buffer
    multiply: str = "multiply"  # the function that computes products
    add: str = "_add"  # the one that computes sums
    said: str = ""
    loops: tuple[str, ...] = ()  # the variables in scope
    ranked: bool = False  # the rank's number came up, and is no coordinate

    def block(self, body: tuple[Instruction, ...], indent: int) -> Iterator[str]:
        for together, group in itertools.groupby(body, lambda i: isinstance(i, Multiply)):
            if together:
                yield from self.fused([i for i in group if isinstance(i, Multiply)], indent)
                continue
            for instruction in group:
                yield from self.instruction(instruction, indent)

    def instruction(self, i: Instruction, indent: int) -> Iterator[str]:
        pad = " " * indent
        match i:
            case Loop():
                bounds = [self.expr(i.first), self.expr(_after(i.last))]
                self.loops = (*self.loops, i.var)
                yield from self.nested(f"@pl.loop({', '.join(bounds)})", i.var, i.body, indent)
                self.loops = self.loops[:-1]
            case When():
                yield from self.nested(f"@pl.when({self.condition(i.conditions)})", "", i.body, indent)
            case Send():
                yield from self.say(i.note, indent)
                if self.debug:
                    yield from self.print(i, indent)
                arguments = [self.region(i.source), self.region(i.target), self.semaphore(i.sent)]
                arguments += [self.semaphore(i.received), self.peer(i.peer)]
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
                arguments = [self.semaphore(i.semaphore), self.peer(i.peer)]
                yield from call("_signal(", arguments, indent)
            case Wait():
                yield from self.say(i.note, indent)
                yield f"{pad}pl.semaphore_wait({self.semaphore(i.semaphore)}, {i.amount})"
            case Add():
                arguments = [self.region(i.target), self.region(i.left), self.region(i.right)]
                yield from call(f"{self.add}(", [*arguments, *self.finishing(i.target)], indent)
            case Multiply():
                yield from self.fused([i], indent)
            case Round():
                yield from self.say(i.note, indent)
                taken = self.program.buffer(i.source.buffer).space == "input"  # an operand is no sum
                finishing = [] if taken else self.finishing(i.target)
                yield from call("_round(", [self.region(i.target), self.region(i.source), *finishing], indent)
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
            if len(self.program.sides) == 1:
                yield from comment(re.sub(rf"% {self.program.sides[0]}\b", "% N", note), indent)
            else:
                yield from comment(note, indent)
            self.said = note

    def print(self, i: Send, indent: int) -> Iterator[str]:
        """`--debug`: as each transfer starts, the rank, the step, the chunk and whom it goes to."""
        _, _, step = i.note.partition("; ")
        steps = [step] if step else [f"{var} = {{}}" for var in self.loops]
        how = ", to be added" if "to be added" in i.note else ""
        where = "".join(f", {s}" for s in steps)
        chunk = f"chunk[{_places(i.chunk)}]" if i.chunk else "chunk"
        text = f"rank {_place(self.program.coordinates)}{where}: {chunk} -> rank {_place(i.peer)}{how}"
        loops = [] if step else self.loops
        values = [*self.program.coordinates, *loops, *map(self.expr, i.chunk), *map(self.expr, i.peer)]
        yield from call("pl.debug_print(", [f'"{self.program.name}: {text}"', *values], indent)

    # ---- parts --------------------------------------------------------------------------------------------------

    def region(self, region: Region) -> str:
        """The reference to a region. Dimensions of one unit that come next are indexed, too: then the same units have
        the same shape in every buffer."""
        if region.buffer in self.columns and (region.index or not self.shapes[region.buffer]):
            return self.block_of_columns(region)
        index = self.index(region)
        return f"{region.buffer}_ref.at[{index}]" if index else f"{region.buffer}_ref"

    def index(self, region: Region) -> str:
        index = [self.expr(e) for e in region.index]
        for extent in self.shapes[region.buffer][len(index) :]:
            if extent != 1 or region.buffer in self.columns | self.stacked:
                break
            index.append("0")
        return ", ".join(index)

    def finishing(self, target: Region) -> list[str]:
        """A product that is complete goes through the epilogue."""
        if target.buffer not in self.finishes:
            return []
        index = self.index(target)
        return [f"finish={self.finishes[target.buffer]}{f'.at[{index}]' if index else ''}"]

    def block_of_columns(self, region: Region) -> str:
        """Units of the weight that are blocks of its columns, or several that are next to each other."""
        number: Expr = Int(value=0)
        shape = self.shapes[region.buffer][: len(region.index)]
        for e, extent in zip(region.index, shape, strict=True):
            number = binary("+", binary("*", number, extent), e)
        return f"_columns({region.buffer}_ref, {self.expr(simplify(number))}, {math.prod(shape)})"

    def fused(self, row: list[Multiply], indent: int) -> Iterator[str]:
        """Products in a row: a call for those of which none reads what another writes."""
        yield from self.say(row[0].note, indent)
        for products in self.groups(row):
            texts = [list(call("_Product(", self.product(product), indent + 4)) for product in products]
            lines = [line for text in texts for line in (*text[:-1], f"{text[-1]},")]
            joined = f"{' ' * indent}{self.multiply}({lines[0].strip()[:-1]})"
            if len(lines) == 1 and len(joined) <= WIDTH:
                yield joined
                continue
            yield f"{' ' * indent}{self.multiply}("
            yield from lines
            yield f"{' ' * indent})"

    def groups(self, row: Sequence[Multiply]) -> list[list[Product]]:
        products = [
            Product(targets=(target,), factors=((source, weight),), plus=plus[0] if plus else None)
            for i in row
            for target, source, weight, *plus in self.products(i)
        ]
        return fuse(products, self.blocks, lambda target: target.buffer in self.finishes)

    def units(self, product: Product) -> int:
        """Units that are multiplied."""
        source, _ = product.factors[0]
        inner = math.prod(self.shapes[source.buffer][len(source.index) :])
        return len(product.factors) * len(product.targets) * inner

    def product(self, product: Product) -> list[str]:
        """The arguments of `_Product`."""
        targets = [self.region(target) for target in product.targets]
        factors = [self.region(region) for pair in product.factors for region in pair]
        plus = [] if product.plus is None else [f"plus={self.region(product.plus)}"]
        target = targets[0] if len(targets) == 1 else f"({', '.join(targets)})"
        return [target, *factors, *plus, *self.finishing(product.targets[0])]

    def blocks(self, region: Region) -> int:
        """Into how many blocks of columns the last dimension of a buffer's grid is cut."""
        whole = region.buffer in self.columns and _left(region, self.shapes) == 1
        return self.shapes[region.buffer][-1] if whole else 0

    def products(self, i: Multiply) -> Iterator[tuple[Region, ...]]:
        """The regions of each product: one for every unit of a chunk, where units have weights of their own."""
        regions = [i.target, i.source, i.weight, *(() if i.plus is None else (i.plus,))]
        if _left(i.weight, self.shapes) == 0 and _left(i.target, self.shapes) == _left(i.source, self.shapes):
            yield tuple(regions)
            return
        depth = max(_left(r, self.shapes) for r in regions)
        extents = next(self.shapes[r.buffer][len(r.index) :] for r in regions if _left(r, self.shapes) == depth)
        for number, inner in enumerate(itertools.product(*(range(extent) for extent in extents))):
            index = tuple(Int(value=value) for value in inner)
            parts = [replace(r, index=(*r.index, *index)) if _left(r, self.shapes) == depth else r for r in regions]
            if number and len(parts) == 3 and parts[0] == regions[0]:
                parts.append(parts[0])  # the parts of a chunk are summed up in one place
            yield tuple(parts)

    def semaphore(self, ref: SemaphoreRef) -> str:
        if ref.semaphore == BARRIER:
            return "pltpu.get_barrier_semaphore()"
        if self.counts[ref.semaphore] == 1:
            return ref.semaphore
        return f"{ref.semaphore}.at[{self.expr(ref.index)}]"

    def peer(self, peer: Peer) -> str:
        if peer in self.peers:
            return self.peers[peer]
        return f"_device({', '.join(['axes', *map(self.expr, peer)])})"

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
                self.ranked |= expr == RANK and RANK.name not in self.program.coordinates
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
            case Lookup():
                column = self.tables.by_rank.get(expr.table)
                if column is None:
                    return f"{self.tables.whole[expr.table]}_ref[{self.expr(expr.index)}]", 7
                row = row_of(expr.index, math.prod(self.program.sides))
                assert row is not None
                return f"{column}_ref[{self.expr(row)}]", 7
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


def _places(values: tuple[object, ...]) -> str:
    return ", ".join("{}" for _ in values)


def _place(values: tuple[object, ...]) -> str:
    return "{}" if len(values) == 1 else f"({_places(values)})"


def _left(region: Region, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many dimensions of its grid a region takes whole."""
    return len(shapes[region.buffer]) - len(region.index)


_LEVELS = {"^": 2, "<<": 3, "+": 4, "-": 4, "*": 5, "//": 5, "%": 5}


def _after(last: Expr) -> Expr:
    return simplify(Binary(op="+", left=last, right=Int(value=1)))
