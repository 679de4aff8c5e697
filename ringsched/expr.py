"""Index expressions: the only arithmetic of a schedule and of a Program.

    expr    ::= INT | NAME | -expr | expr op expr | expr cmp expr … | min(expr, …) | max(expr, …) | TABLE[expr]
    op      ::= + - * // % ^ <<          cmp ::= == != < <= > >=

`%` and `//` are Python's: the remainder takes the sign of the divisor, so it is never negative for a positive one.
Text is parsed with `ast` into these nodes and nothing else; nothing is evaluated by Python. Nodes compare without
their spans. `evaluate` works on integers and on `Affine` and `Flipped` numbers alike: these carry the rank
symbolically, which is how symmetry under rotation, or under flips of the rank's bits, is proven rather than tried on
samples.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from ringsched.diagnostics import Span

LIMIT = 1 << 62  # beyond it a value is refused: indices are 64-bit at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Int:
    value: int
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Var:
    name: str
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neg:
    operand: Expr
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    op: str
    left: Expr
    right: Expr
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """A chain as in Python: `0 <= t - r < C` holds when every link of it does."""

    first: Expr
    rest: tuple[tuple[str, Expr], ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremum:
    """`min` or `max` of one or more operands."""

    name: str
    operands: tuple[Expr, ...]
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """An entry of a table of constants, counted from 0."""

    name: str
    table: tuple[int, ...]
    index: Expr
    span: Span | None = field(default=None, compare=False)


Expr = Int | Var | Neg | Binary | Compare | Extremum | Lookup


class EvaluationError(Exception):
    """An expression has no value here; `expr` is the part at fault."""

    def __init__(self, code: str, message: str, expr: Expr) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.expr = expr


class NotAffine(Exception):
    """The value does not depend on the coordinates in a way that a rotation preserves."""


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant + Σ coefficients[i] · coordinate[i]`, reduced modulo `modulus` once a `%` was applied (0: not yet).

    With `modulus` set the value is the remainder, in 0 … modulus − 1.
    """

    constant: int
    coefficients: tuple[int, ...]
    modulus: int = 0

    def _exact(self) -> Affine:
        if self.modulus:
            raise NotAffine("arithmetic on a remainder that depends on the rank")
        return self

    def _plus(self, other: int | Affine, sign: int) -> Affine:
        self._exact()
        if isinstance(other, int):
            return Affine(self.constant + sign * other, self.coefficients)
        other._exact()
        pairs = zip(self.coefficients, other.coefficients, strict=True)
        return Affine(self.constant + sign * other.constant, tuple(a + sign * b for a, b in pairs))

    def __add__(self, other: int | Affine) -> Affine:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: int | Affine) -> Affine:
        return self._plus(other, -1)

    def __rsub__(self, other: int) -> Affine:
        return (-self)._plus(other, 1)

    def __neg__(self) -> Affine:
        self._exact()
        return Affine(-self.constant, tuple(-c for c in self.coefficients))

    def __mul__(self, other: int | Affine) -> Affine:
        self._exact()
        if not isinstance(other, int):
            raise NotAffine("a product of two values that depend on the rank")
        return Affine(self.constant * other, tuple(c * other for c in self.coefficients))

    __rmul__ = __mul__

    def __mod__(self, other: int | Affine) -> int | Affine:
        if not isinstance(other, int) or other <= 0:
            raise NotAffine("a modulus that depends on the rank, or is not positive")
        if self.modulus % other if self.modulus else 0:
            raise NotAffine("two different moduli")
        reduced = tuple(c % other for c in self.coefficients)
        if not any(reduced):
            return self.constant % other
        return Affine(self.constant % other, reduced, other)


@dataclass(frozen=True, slots=True)
class Flipped:
    """`r ^ constant`, for a rank r in 0 … ranks − 1, where `ranks` is a power of two and so is a bound of the value."""

    constant: int
    ranks: int

    def __neg__(self) -> Flipped:
        raise NotAffine("arithmetic on a rank whose bits are flipped")


Value = int | Affine | Flipped

_ARITHMETIC: dict[str, Callable[[Value, Value], Value]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_COMPARISON: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate(expr: Expr, env: Mapping[str, Value]) -> Value:
    """The value of `expr`; raises `EvaluationError` (RS202, RS204, RS205) or, on `Affine` input, `NotAffine`."""
    match expr:
        case Int():
            return expr.value
        case Var():
            if expr.name not in env:
                raise EvaluationError("RS202", f"unknown name `{expr.name}`", expr)
            return env[expr.name]
        case Neg():
            return -evaluate(expr.operand, env)
        case Binary():
            return _binary(expr, evaluate(expr.left, env), evaluate(expr.right, env))
        case Compare():
            left = _plain(evaluate(expr.first, env))
            for op, operand in expr.rest:
                right = _plain(evaluate(operand, env))
                if not _COMPARISON[op](left, right):
                    return 0
                left = right
            return 1
        case Extremum():
            values = [_plain(evaluate(operand, env)) for operand in expr.operands]
            return min(values) if expr.name == "min" else max(values)
        case Lookup():
            return _entry(expr, _plain(evaluate(expr.index, env)))
        case _:
            assert_never(expr)


def _entry(expr: Lookup, index: int) -> int:
    if not 0 <= index < len(expr.table):
        message = f"`{expr.name}` has no entry {index}: it has {len(expr.table)}, counted from 0"
        raise EvaluationError("RS206", message, expr)
    return expr.table[index]


def integer(expr: Expr, env: Mapping[str, int]) -> int:
    """`evaluate` where nothing symbolic is in `env`."""
    value = evaluate(expr, env)
    assert isinstance(value, int)
    return value


def holds(conditions: tuple[Expr, ...], env: Mapping[str, Value]) -> bool:
    """Whether all conditions are true; an empty tuple holds. Evaluated left to right, like `and`."""
    return all(_plain(evaluate(condition, env)) for condition in conditions)


def _plain(value: Value) -> int:
    if isinstance(value, Affine | Flipped):
        raise NotAffine("a comparison that depends on the rank")
    return value


def _binary(expr: Binary, left: Value, right: Value) -> Value:
    op = expr.op
    if isinstance(left, Flipped) or isinstance(right, Flipped):
        return _flipped(op, left, right)
    if op in _ARITHMETIC:
        result = _ARITHMETIC[op](left, right)
    elif op == "%" and isinstance(left, Affine):
        result = left % right
    else:
        a, b = _plain(left), _plain(right)
        if op in ("%", "//"):
            if b == 0:
                raise EvaluationError("RS204", "division by zero", expr.right)
            result = a % b if op == "%" else a // b
        elif op == "^":
            result = a ^ b
        elif not 0 <= b <= 62:
            raise EvaluationError("RS205", f"shift by {b}: only 0 … 62 is allowed", expr.right)
        else:
            result = a << b
    if isinstance(result, int) and not -LIMIT < result < LIMIT:
        raise EvaluationError("RS205", "the value does not fit 63 bits", expr)
    return result


def _flipped(op: str, left: Value, right: Value) -> Value:
    """Exclusive or with numbers, or with the rank again; and what changes nothing."""
    if op == "^" and isinstance(left, Flipped) and isinstance(right, Flipped):
        return left.constant ^ right.constant
    if op == "^" and isinstance(left, int):
        left, right = right, left
    if isinstance(left, Flipped) and isinstance(right, int):
        if op == "^" and 0 <= right < left.ranks:
            return Flipped(left.constant ^ right, left.ranks)
        if (op == "%" and right == left.ranks) or (op in "+-" and right == 0):
            return left
    raise NotAffine("arithmetic on a rank whose bits are flipped")


def names(expr: Expr) -> frozenset[str]:
    """The variables that occur in `expr`."""
    match expr:
        case Int():
            return frozenset()
        case Var():
            return frozenset({expr.name})
        case Neg():
            return names(expr.operand)
        case Binary():
            return names(expr.left) | names(expr.right)
        case Compare():
            return names(expr.first).union(*(names(e) for _, e in expr.rest))
        case Extremum():
            return frozenset().union(*(names(e) for e in expr.operands))
        case Lookup():
            return names(expr.index)
        case _:
            assert_never(expr)


def flipping(expr: Expr, name: str) -> bool:
    """Whether the variable is an operand of an exclusive or."""
    match expr:
        case Binary():
            own = Var(name=name) in (expr.left, expr.right) and expr.op == "^"
            return own or flipping(expr.left, name) or flipping(expr.right, name)
        case Neg():
            return flipping(expr.operand, name)
        case _:
            return False


def lookups(expr: Expr) -> tuple[Lookup, ...]:
    """The look-ups in `expr`, outer ones first."""
    match expr:
        case Int() | Var():
            return ()
        case Neg():
            return lookups(expr.operand)
        case Binary():
            return lookups(expr.left) + lookups(expr.right)
        case Compare():
            return lookups(expr.first) + tuple(x for _, e in expr.rest for x in lookups(e))
        case Extremum():
            return tuple(x for e in expr.operands for x in lookups(e))
        case Lookup():
            return (expr, *lookups(expr.index))
        case _:
            assert_never(expr)


def substitute(expr: Expr, env: Mapping[str, Expr | int]) -> Expr:
    """`expr` with variables replaced, and simplified."""
    match expr:
        case Int():
            return expr
        case Var():
            new = env.get(expr.name, expr)
            return Int(value=new) if isinstance(new, int) else new
        case Neg():
            return negated(substitute(expr.operand, env))
        case Binary():
            return binary(expr.op, substitute(expr.left, env), substitute(expr.right, env), expr.span)
        case Compare():
            rest = tuple((op, substitute(e, env)) for op, e in expr.rest)
            return Compare(first=substitute(expr.first, env), rest=rest, span=expr.span)
        case Extremum():
            operands = tuple(substitute(e, env) for e in expr.operands)
            if all(isinstance(e, Int) for e in operands):
                return Int(value=integer(Extremum(name=expr.name, operands=operands), {}))
            return Extremum(name=expr.name, operands=operands, span=expr.span)
        case Lookup():
            return looked_up(expr, substitute(expr.index, env))
        case _:
            assert_never(expr)


def looked_up(expr: Lookup, index: Expr) -> Expr:
    """The entry of the same table at `index`, a number where that is one."""
    if isinstance(index, Int):
        return Int(value=_entry(expr, index.value))
    return Lookup(name=expr.name, table=expr.table, index=index, span=expr.span)


def negated(expr: Expr) -> Expr:
    """`-expr`, folded where it is a number."""
    return Int(value=-expr.value) if isinstance(expr, Int) else Neg(operand=expr)


def binary(op: str, left: Expr | int, right: Expr | int, span: Span | None = None) -> Expr:
    """`left op right` with constants folded and sums kept in the form `… + constant`."""
    left = Int(value=left) if isinstance(left, int) else left
    right = Int(value=right) if isinstance(right, int) else right
    if isinstance(left, Int) and isinstance(right, Int):
        return Int(value=integer(Binary(op=op, left=left, right=right), {}), span=span)
    if op in ("+", "-") and isinstance(right, Int):
        return _offset(left, right.value if op == "+" else -right.value, span)
    if op == "+" and isinstance(left, Int):
        return _offset(right, left.value, span)
    if op in ("+", "-") and isinstance(right, Binary) and right.op in "+-" and isinstance(right.right, Int):
        # a ± (b ± c) becomes (a ± b) ± c, so that constants meet
        inner = right.right.value if right.op == "+" else -right.right.value
        return _offset(binary(op, left, right.left), inner if op == "+" else -inner, span)
    if op == "-" and left == right:
        return Int(value=0)
    if op == "*" and Int(value=1) in (left, right):
        return right if left == Int(value=1) else left
    if op == "*" and Int(value=0) in (left, right):
        return Int(value=0)
    if op == "%" and right == Int(value=1):
        return Int(value=0)
    if op == "//" and right == Int(value=1):
        return left
    return Binary(op=op, left=left, right=right, span=span)


def _offset(expr: Expr, amount: int, span: Span | None) -> Expr:
    """`expr + amount`, merged with a constant that `expr` already ends in."""
    if isinstance(expr, Binary) and expr.op in "+-" and isinstance(expr.right, Int):
        inner = expr.right.value if expr.op == "+" else -expr.right.value
        return _offset(expr.left, inner + amount, span)
    if isinstance(expr, Neg):
        return Binary(op="-", left=Int(value=amount), right=expr.operand, span=span) if amount else expr
    if amount == 0:
        return expr
    return Binary(op="+" if amount > 0 else "-", left=expr, right=Int(value=abs(amount)), span=span)


_PRECEDENCE = {"cmp": 1, "^": 2, "<<": 3, "+": 4, "-": 4, "*": 5, "//": 5, "%": 5, "neg": 6, "atom": 7}


def show(expr: Expr) -> str:
    """The text of `expr`, as it is written in a schedule and in Python, with no needless parentheses."""
    return _show(expr)[0]


def _show(expr: Expr) -> tuple[str, int]:
    match expr:
        case Int():
            return str(expr.value), _PRECEDENCE["atom" if expr.value >= 0 else "neg"]
        case Var():
            return expr.name, _PRECEDENCE["atom"]
        case Neg():
            return f"-{_wrap(expr.operand, _PRECEDENCE['neg'])}", _PRECEDENCE["neg"]
        case Binary():
            level = _PRECEDENCE[expr.op]
            return f"{_wrap(expr.left, level)} {expr.op} {_wrap(expr.right, level + 1)}", level
        case Compare():
            level = _PRECEDENCE["+"]  # (r ^ 1) < N: readers of C would take the bare form for r ^ (1 < N)
            rest = "".join(f" {op} {_wrap(e, level)}" for op, e in expr.rest)
            return _wrap(expr.first, level) + rest, _PRECEDENCE["cmp"]
        case Extremum():
            return f"{expr.name}({', '.join(show(e) for e in expr.operands)})", _PRECEDENCE["atom"]
        case Lookup():
            return f"{expr.name}[{show(expr.index)}]", _PRECEDENCE["atom"]
        case _:
            assert_never(expr)


def _wrap(expr: Expr, level: int) -> str:
    text, own = _show(expr)
    return text if own >= level else f"({text})"
