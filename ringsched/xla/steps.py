"""Exchange → the text of `_transfers`, the function that runs all steps.

Where chunks are multiplied on arrival, it has the products `out`, too: `out.plus(chunk)[index]` has one more. Where
they are multiplied before they are sent, `terms[index]` are the rank's own terms, and `terms.plus(arrived)[index]` are
these with what arrives.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ringsched.expr import Binary, Expr, Var, binary, integer, names, show, substitute
from ringsched.lines import WIDTH, call, comment
from ringsched.lower.lanes import untwisted
from ringsched.schedule.notation import show_chunk, show_range, show_rank
from ringsched.schedule.schedule import Moment, Range, Slice, Transfer
from ringsched.xla.exchange import Exchange, Index, Loop, Own, Pairs, Round, Route, Shift, Step
from ringsched.xla.translate import Translator, nested

UNROLLED = 8  # turns of a loop that jax unrolls as it traces


@dataclass(slots=True)
class Steps:
    """`name`: of the function; `names`: of the pairs that stand before the steps, by the arguments of `_pairs`."""

    exchange: Exchange
    translator: Translator
    name: str = "_transfers"
    names: dict[tuple[str, ...], str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The function."""
        body = [line for node in self.exchange.nodes for line in ("", *self._node(node))]
        coordinates = self.exchange.flat.topology.coordinates
        prelude = []
        if "r" in self.translator.used:
            prelude.append("    r = axes.index")
        if "r" not in coordinates and self.translator.used & set(coordinates):
            prelude.append(f"    {', '.join(coordinates)} = axes.coordinates")
        for arguments, name in self.names.items():
            prelude += call(f"{name} = _pairs(", arguments, 4)
        result = "held, out" if self.moment == "on arrival" else "held"
        return [*self._head(), *prelude, *body, *([""] if body else []), f"    return {result}"]

    @property
    def moment(self) -> Moment | None:
        """When chunks are multiplied, if they are."""
        compute = self.exchange.flat.schedule.compute
        return None if compute is None else compute.moment

    def _head(self) -> list[str]:
        match self.moment:
            case None:
                more, held, says = "", "[*CHUNKS, size], the chunks at this rank", ""
            case "on arrival":
                more, held, says = ", out", "[*CHUNKS, rows, depth]", "; out: their products"
            case _:
                more, held, says = ", terms", "[*CHUNKS, rows, cols]", "; terms: this rank's own"
        return [
            f"def {self.name}(held, axes{more}):",
            f'    """All steps of the schedule; held: {held}{says}."""',
        ]

    def _node(self, node: Step | Loop | Own) -> Iterator[str]:
        if isinstance(node, Step):
            yield from _Writer(self, 4, node.label).step(node)
            return
        if isinstance(node, Own):
            yield from _Writer(self, 4).own(node)
            return
        self.translator.bounds[node.var] = (node.first, node.last)
        if node.even and node.turns > UNROLLED and not node.multiplies:  # products hide transfers of other turns
            yield f"    def turn({node.var}, held):"
            yield from _Writer(self, 8).step(node.step)
            yield "        return held"
            yield ""
            yield f"    held = lax.fori_loop({node.first}, {node.last + 1}, turn, held)"
        else:
            self.translator.plain.add(node.var)
            yield f"    for {node.var} in range({f'{node.first}, ' if node.first else ''}{node.last + 1}):"
            yield from _Writer(self, 8, plain=node.var).step(node.step)
            self.translator.plain.discard(node.var)
        del self.translator.bounds[node.var]

    def named(self, arguments: tuple[str, ...], base: str) -> str:
        """The name of pairs that are the same throughout, which stand at the top."""
        if arguments not in self.names:
            taken = {*self.names.values(), *self.translator.bounds, *self.exchange.parameters}
            name, number = base, 1
            while name in taken:
                name, number = f"{base}_{number + 1}", number + 1
            self.names[arguments] = name
        return self.names[arguments]


@dataclass(slots=True)
class _Writer:
    """One step. `plain`: the variable of the loop around it, a number of Python. `stores`: what stands at the end."""

    steps: Steps
    indent: int
    label: str = ""
    plain: str = ""
    stores: list[str] = field(default_factory=list)
    ranges: dict[str, str] = field(default_factory=dict)  # variables of `each`
    parts: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def translator(self) -> Translator:
        return self.steps.translator

    @property
    def pad(self) -> str:
        return " " * self.indent

    def step(self, step: Step) -> Iterator[str]:
        """All messages leave before the first one is stored."""
        for number, message in enumerate(step.messages, 1):
            arrived = f"arrived_{number}" if len(step.messages) > 1 else "arrived"
            if isinstance(message, Shift):
                yield from self._shift(message, arrived)
            else:
                yield from self._round(message, arrived)
        yield from self.stores
        self._forget()

    def _forget(self) -> None:
        for var in self.ranges:
            del self.translator.bounds[var]

    def own(self, own: Own) -> Iterator[str]:
        """What is multiplied without having arrived."""
        gathers = self.steps.moment == "on arrival"
        if not own.index:
            yield f"{self.pad}{'out = out.plus(held)[...]' if gathers else 'held = terms[...]'}"
            return
        yield from comment("this rank's own" if gathers else "this rank's own terms", self.indent)
        index = own.index
        if own.each is not None:
            (index,), lines = self._each((index,), own.each)
            yield from lines
        before: list[str] = []
        place = self._place(index, "", before)
        yield from before
        if gathers:
            yield f"{self.pad}out = out.plus(held[{place}])[{place}]"
        else:
            yield from call(f"held = held.at[{place}].set(", [f"terms[{place}]"], self.indent)
        self._forget()

    # ---- a statement at every rank ------------------------------------------------------------------------------

    def _shift(self, shift: Shift, arrived: str) -> Iterator[str]:
        yield from comment(_statement(shift.statement) + (f"; {self.label}" if self.label else ""), self.indent)
        if shift.each is not None:
            (sent, then), lines = self._each((shift.sent, shift.arrived), shift.each)
            shift = replace(shift, sent=sent, arrived=then)
            yield from lines
        pairs = self._pairs(shift.pairs)
        if self.plain in _names(shift.pairs):
            name = "pairs" + arrived.removeprefix("arrived")
            yield from call(f"{name} = _pairs(", pairs, self.indent)
        else:
            name = self.steps.named(pairs, self._base(shift.pairs))
        before: list[str] = []
        operand = f"held[{self._place(shift.sent, '', before)}]" if shift.sent else "held"
        yield from before
        yield from call(f"{arrived} = _permute(", [operand, "axes", name, *self._travelling], self.indent)
        self.stores += self._store(shift, arrived, name)

    @property
    def _travelling(self) -> list[str]:
        """As which dtype sums travel."""
        return ["terms.partial"] if self.steps.moment == "before sending" else []

    def _store(self, shift: Shift, arrived: str, pairs: str) -> Iterator[str]:
        """Puts what arrives where it belongs; a rank to which nothing comes drops it."""
        adds = shift.statement.op == "reduce"
        multiplied = self.steps.moment if shift.multiplies else None
        if not shift.arrived:
            if multiplied == "before sending":
                arrived = f"terms.plus({arrived})[...]"
            if adds and multiplied is None:
                arrived = f"axes.combined(held.at[...], {arrived})"
            yield f"{self.pad}held = {arrived}"
            if multiplied == "on arrival":
                yield f"{self.pad}out = out.plus({arrived})[...]"
            return
        before: list[str] = []
        place = self._place(shift.arrived, "" if shift.everyone else pairs, before)
        yield from before
        options = [] if shift.everyone else ['mode="drop"']
        if multiplied == "before sending":
            sums = f"terms.plus({arrived})[{place}]"
            yield from call(f"held = held.at[{place}].set(", [sums, *options], self.indent)
            return
        if adds:
            yield from call("held = axes.combined(", [f"held.at[{place}]", arrived, *options], self.indent)
        else:
            yield from call(f"held = held.at[{place}].set(", [arrived, *options], self.indent)
        if multiplied == "on arrival":
            yield f"{self.pad}out = out.plus({arrived})[{place}]"

    def _place(self, index: Index, only: str, before: list[str]) -> str:
        """`i, j`; in `before` what has to stand before it where it is too long for a line of its own.

        only: pairs; ranks to which they bring nothing get a place that there is not.
        """
        room = WIDTH - self.indent - len("held = held.at[].set(")
        room -= len("    terms.plus()[],") if self.steps.moment == "before sending" else 0
        room -= len(f"_only({only}, axes, )") if only else 0
        while True:
            parts = [self._part(part) for part in index]
            longest = max(range(len(parts)), key=lambda k: len(parts[k]))
            part = index[longest]
            if len(", ".join(parts)) <= room or isinstance(part, Slice | Var):
                break
            index = (*index[:longest], self._named(part, before), *index[longest + 1 :])
        if only:
            number = next(k for k, part in enumerate(index) if not isinstance(part, Slice))
            parts[number] = f"_only({only}, axes, {parts[number]})"
        return ", ".join(parts)

    def _part(self, part: Expr | Slice) -> str:
        if not isinstance(part, Slice):
            return self.translator.traced(part)
        start, stop = ("" if end is None else self.translator.number(end) for end in (part.start, part.stop))
        return f"{start}:{stop}"

    def _named(self, expr: Expr, before: list[str]) -> Var:
        """A variable with the value of the expression, whose operands get names where it is too long itself."""
        name = f"index_{next(self.parts)}"
        size = self.translator.size(expr)
        while len(f"{self.pad}{name} = {self.translator.traced(expr)}") > WIDTH and isinstance(expr, Binary):
            if len(show(expr.left)) >= len(show(expr.right)):
                expr = replace(expr, left=self._named(expr.left, before))
            else:
                expr = replace(expr, right=self._named(expr.right, before))
        before.append(f"{self.pad}{name} = {self.translator.traced(expr)}")
        self.translator.bounds[name] = (-size, size)
        self.ranges[name] = ""
        return Var(name=name)

    def _each(self, indices: tuple[Index, ...], each: Range) -> tuple[tuple[Index, ...], list[str]]:
        """The variable of `each` as an array of all its values; another name where it has other values in the step."""
        stop = self.translator.number(binary("+", each.last, 1))
        text = f"jnp.arange({self.translator.number(each.first)}, {stop})"
        var = each.var
        while self.ranges.get(var, text) != text:
            var += "_"
        known = {each.var: Var(name=var)}
        indices = tuple(_renamed(index, known) for index in indices)
        if var in self.ranges:
            return indices, []
        self.ranges[var] = text
        self.translator.bounds[var] = self._least_and_greatest(each)
        return indices, [f"{self.pad}{var} = {text}"]

    def _least_and_greatest(self, each: Range) -> tuple[int, int]:
        envs: list[dict[str, int]] = [dict(self.translator.env)]
        for name in sorted((names(each.first) | names(each.last)) & self.translator.bounds.keys()):
            low, high = self.translator.bounds[name]
            envs = [{**env, name: value} for env in envs for value in range(low, high + 1)]
        return min(integer(each.first, env) for env in envs), max(integer(each.last, env) for env in envs)

    def _pairs(self, pairs: Pairs) -> tuple[str, ...]:
        """`lambda r: r + 1`, and the same for `when`; what is too long for a line is a table."""

        topology = self.steps.exchange.flat.topology
        to_place = untwisted(topology, pairs.to) if topology.twist else pairs.to  # else the text wraps them itself

        def place(text: Callable[[Expr], str]) -> str:
            coordinates = ", ".join(map(text, to_place))
            return self._lambda(f"({coordinates})" if len(pairs.to) > 1 else coordinates, pairs.to)

        room = WIDTH - self.indent - len("    when=,")
        to = place(self.translator.number)
        if len(to) > room:
            to = place(self.translator.table)
        if not pairs.when:
            return (to,)
        when = self._lambda(" and ".join(map(self.translator.number, pairs.when)), pairs.when)
        if len(when) > room:
            every = functools.reduce(lambda a, b: Binary(op="*", left=a, right=b), pairs.when)
            when = self._lambda(self.translator.table(every), pairs.when)
        return to, f"when={when}"

    def _lambda(self, body: str, exprs: tuple[Expr, ...]) -> str:
        """The variable of a loop is bound as it is now."""
        own = list(self.steps.exchange.flat.topology.coordinates)
        bound = [f"{self.plain}={self.plain}"] if any(self.plain in names(expr) for expr in exprs) else []
        return f"lambda {', '.join(own + bound)}: {body}"

    def _base(self, pairs: Pairs) -> str:
        """A name for pairs: `right`, `left`, or `next_x`, `previous_x`."""
        coordinates = self.steps.exchange.flat.topology.coordinates
        for axis, c in enumerate(coordinates):
            for hop, words in ((1, ("right", f"next_{c}")), (-1, ("left", f"previous_{c}"))):
                to: list[Expr] = [Var(name=c) for c in coordinates]
                to[axis] = binary("+", to[axis], hop)
                if pairs.to == tuple(to):
                    return words[len(coordinates) > 1]
        return "pairs"

    # ---- transfers of single ranks ------------------------------------------------------------------------------

    def _round(self, round_: Round, arrived: str) -> Iterator[str]:
        suffix = arrived.removeprefix("arrived")
        if self.label:
            yield from comment(self.label, self.indent)
        yield f"{self.pad}routes{suffix} = ["
        said: tuple[Transfer, ...] = ()
        for route in round_.routes:
            for statement in route.statements if route.statements != said else ():
                yield from comment(_statement(statement), self.indent + 4)
            said = route.statements
            yield from self._route(route)
        yield f"{self.pad}]"
        arguments = ["held", "axes", f"routes{suffix}", *self._travelling]
        yield from call(f"{arrived}, place{suffix} = _carried(", arguments, self.indent)
        place = f"place{suffix}, {arrived}"
        stored = f"_combined(held, axes, {place})" if round_.adds else f"_stored(held, {place})"
        self.stores.append(f"{self.pad}held = {stored}")

    def _route(self, route: Route) -> Iterator[str]:
        """`(0, 1, [3, 4]),`"""
        numbers = list(route.chunks)
        run = range(numbers[0], numbers[0] + len(numbers))
        pad = f"{self.pad}    "
        text = f"range({run.start}, {run.stop})" if len(run) > 2 and numbers == list(run) else str(numbers)
        line = f"{pad}({route.sender}, {route.receiver}, {text}),"
        if len(line) <= WIDTH:
            yield line
            return
        yield f"{pad}("
        yield f"{pad}    {route.sender},"
        yield f"{pad}    {route.receiver},"
        yield from nested("", tuple(numbers), (len(numbers),), ",", self.indent + 8)
        yield f"{pad}),"


def _names(pairs: Pairs) -> frozenset[str]:
    return frozenset().union(*(names(expr) for expr in (*pairs.to, *pairs.when)))


def _renamed(index: Index, known: dict[str, Var]) -> Index:
    return tuple(part if isinstance(part, Slice) else substitute(part, dict(known)) for part in index)


def _statement(statement: Transfer) -> str:
    """The line of the schedule, as a sentence."""
    parts = [f"send {show_chunk(statement.chunk)}"]
    if statement.sender is not None:
        parts.append(f"from {show_rank(statement.sender)}")
    text = f"{' '.join(parts)} to {show_rank(statement.to)}"
    if statement.each is not None:
        text += f", each {show_range(statement.each)}"
    if statement.op == "reduce":
        text += ", to be added"
    if statement.when:
        text += f", when {' and '.join(map(show, statement.when))}"
    return text
