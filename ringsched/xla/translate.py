"""Index expressions → Python text: of numbers (in lambdas, in bounds of loops) or of traced values (`r`, `jnp.arange`).

Sums, products, `%`, `//`, `^` and `<<` mean the same for jax's int32 as for Python, as long as no intermediate value is
too large. Tables of a schedule are tables here. Whatever else an expression has in it (comparisons, `min`) becomes a
constant table over the variables that it depends on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ringsched.codegen.outside import plain, spelt
from ringsched.expr import (
    Binary,
    Compare,
    EvaluationError,
    Expr,
    Extremum,
    Int,
    Lookup,
    Neg,
    Var,
    binary,
    integer,
    names,
    show,
)

INT32 = 2**31
Table = tuple[tuple[int, ...], tuple[int, ...]]  # values, row-major, and the sizes of the dimensions


@dataclass(slots=True)
class Translator:
    """`env`: the parameters; `bounds`: least and greatest value of each variable; `tables`: those written so far.

    plain: variables that are numbers of Python in traced text, too.
    """

    env: Mapping[str, int]
    bounds: dict[str, tuple[int, int]]
    plain: set[str] = field(default_factory=set)
    tables: dict[Table, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)  # names in traced text

    def number(self, expr: Expr) -> str:
        """For numbers of Python."""
        return show(self._known(expr, _PYTHON))

    def traced(self, expr: Expr) -> str:
        """For traced integers of 32 bits."""
        if not self._is_traced(expr):
            return self.number(expr)
        text = show(self._known(expr, _TRACED))
        self.used |= self._variables(expr)
        return text

    def _variables(self, expr: Expr) -> frozenset[str]:
        return names(expr) & self.bounds.keys()

    def table(self, expr: Expr) -> str:
        """`number`, as a table where the expression has variables."""
        return self._table(expr, jnp=False) if self._variables(expr) else self.number(expr)

    def _is_traced(self, expr: Expr) -> bool:
        return bool(self._variables(expr) - self.plain)

    def _known(self, expr: Expr, kinds: tuple[type, ...]) -> Expr:
        """`expr` with every part that has no text of its own replaced by a table."""
        if not self._is_traced(expr):  # Python works it out
            kinds = _PYTHON
        if not isinstance(expr, kinds) or (kinds is _TRACED and not self._fits(expr)):
            if not self._variables(expr):
                return Int(value=integer(expr, self.env))
            return Var(name=self._table(expr, jnp=kinds is _TRACED))
        match expr:
            case Neg():
                return Neg(operand=self._known(expr.operand, kinds))
            case Binary():
                return Binary(op=expr.op, left=self._known(expr.left, kinds), right=self._known(expr.right, kinds))
            case Compare():
                rest = tuple((op, self._known(e, kinds)) for op, e in expr.rest)
                return Compare(first=self._known(expr.first, kinds), rest=rest)
            case Lookup():
                return Var(name=self._entry(expr, kinds))
            case Extremum():
                return Extremum(name=expr.name, operands=tuple(self._known(e, kinds) for e in expr.operands))
            case _:
                return expr

    def _fits(self, expr: Expr) -> bool:
        """Whether its value and those that it is computed from have 32 bits."""
        operands: tuple[Expr, ...] = ()
        if isinstance(expr, Binary):
            operands = (expr.left, expr.right)
        elif isinstance(expr, Lookup):
            operands = (expr.index,)
        return all(self.size(e) < INT32 for e in (expr, *operands))

    def size(self, expr: Expr) -> int:
        """No value of the expression is larger in magnitude; -1 // 2 is -1, so quotients are no larger, either."""
        match expr:
            case Int():
                return abs(expr.value)
            case Var():
                low, high = self.bounds[expr.name] if expr.name in self.bounds else (self.env[expr.name],) * 2
                return max(abs(low), abs(high))
            case Neg():
                return self.size(expr.operand)
            case Binary():
                left, right = self.size(expr.left), self.size(expr.right)
                match expr.op:
                    case "+" | "-":
                        return left + right
                    case "*":
                        return left * right
                    case "%":
                        return right
                    case "//":
                        return left
                    case "^":
                        return 1 << max(left.bit_length(), right.bit_length())
                    case _:
                        return left << min(right, 64) if left else 0
            case Lookup():
                return max(map(abs, expr.table))
            case _:
                return max(map(abs, self._values(expr)[0]))

    def _entry(self, expr: Lookup, kinds: tuple[type, ...]) -> str:
        """`jnp.array(X0)[s]`; `x0` is the schedule's name of the table."""
        name = spelt(plain(expr.name).upper())
        taken = {*self.tables.values(), *self.env}
        while name in taken:
            name += spelt("_")
        name = self.tables.setdefault((expr.table, (len(expr.table),)), name)
        index = show(self._known(expr.index, kinds))
        return f"jnp.array({name})[{index}]" if kinds is _TRACED else f"{name}[{index}]"

    def _table(self, expr: Expr, *, jnp: bool) -> str:
        """`TABLE_1[s - 1, r]`."""
        name = self.tables.setdefault(self._values(expr), f"TABLE_{len(self.tables) + 1}")
        lows = ((variable, self.bounds[variable][0]) for variable in sorted(self._variables(expr), key=plain))
        index = [show(binary("-", Var(name=variable), low)) for variable, low in lows]
        return f"jnp.array({name})[{', '.join(index)}]" if jnp else name + "".join(f"[{i}]" for i in index)

    def _values(self, expr: Expr) -> Table:
        """0 where the expression has no value: behind a guard that is false, where none is used."""
        variables = sorted(self._variables(expr), key=plain)
        ranges = [range(low, high + 1) for low, high in (self.bounds[name] for name in variables)]
        values = []
        for at in itertools.product(*ranges):
            try:
                values.append(integer(expr, {**self.env, **dict(zip(variables, at, strict=True))}))
            except EvaluationError:
                values.append(0)
        return tuple(values), tuple(map(len, ranges))

    def table_lines(self) -> Iterator[str]:
        """The tables, as constants of the module."""
        for (values, sizes), name in self.tables.items():
            yield from nested(f"{name} = ", values, sizes, "")


def nested(head: str, values: tuple[int, ...], sizes: tuple[int, ...], tail: str, indent: int = 0) -> Iterator[str]:
    """Nested lists of numbers, as a formatter has them: on one line, or an item a line."""
    pad = " " * indent
    text = pad + head + _flat(values, sizes) + tail
    if len(text) <= 88:
        yield text
        return
    yield f"{pad}{head}["
    step = len(values) // sizes[0]
    for i in range(sizes[0]):
        part = values[i * step : (i + 1) * step]
        if len(sizes) == 1:
            yield f"{pad}    {part[0]},"
        else:
            yield from nested("", part, sizes[1:], ",", indent + 4)
    yield f"{pad}]{tail}"


def _flat(values: tuple[int, ...], sizes: tuple[int, ...]) -> str:
    if len(sizes) == 1:
        return f"[{', '.join(map(str, values))}]"
    step = len(values) // sizes[0]
    return f"[{', '.join(_flat(values[i * step : (i + 1) * step], sizes[1:]) for i in range(sizes[0]))}]"


_PYTHON = (Int, Var, Neg, Binary, Compare, Extremum, Lookup)
_TRACED = (Int, Var, Neg, Binary, Lookup)
