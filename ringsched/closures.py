"""Index expressions as closures, for the places where one expression is evaluated a million times."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import assert_never

from ringsched.expr import LIMIT, Binary, Compare, Expr, Extremum, Int, Lookup, Neg, Var

Environment = dict[str, int]
Getter = Callable[[Environment], int]


def compiled(expr: Expr) -> Getter:
    """`expr` as a closure: the same values as `evaluate`, several times faster.

    Where `evaluate` raises `EvaluationError`, the closure raises a `KeyError`, `ArithmeticError` or `ValueError`.
    """
    match expr:
        case Int():
            return _constant(expr.value)
        case Var():
            return operator.itemgetter(expr.name)
        case Neg():
            operand = compiled(expr.operand)
            return lambda env: -operand(env)
        case Binary():
            return _binary(expr.op, compiled(expr.left), compiled(expr.right))
        case Compare():
            return _comparison(expr)
        case Extremum():
            operands = tuple(compiled(e) for e in expr.operands)
            if expr.name == "min":
                return lambda env: min([get(env) for get in operands])
            return lambda env: max([get(env) for get in operands])
        case Lookup():
            return _entry(expr.table, compiled(expr.index))
        case _:
            assert_never(expr)


def _entry(table: tuple[int, ...], index: Getter) -> Getter:
    def get(env: Environment) -> int:
        place = index(env)
        return table[place] if 0 <= place < len(table) else _overflow()

    return get


def _constant(value: int) -> Getter:
    return lambda env: value


def _binary(op: str, left: Getter, right: Getter) -> Getter:
    def add(env: Environment) -> int:
        value = left(env) + right(env)
        return value if -LIMIT < value < LIMIT else _overflow()

    def subtract(env: Environment) -> int:
        value = left(env) - right(env)
        return value if -LIMIT < value < LIMIT else _overflow()

    def multiply(env: Environment) -> int:
        value = left(env) * right(env)
        return value if -LIMIT < value < LIMIT else _overflow()

    def shift(env: Environment) -> int:
        value, by = left(env), right(env)
        return value << by if 0 <= by <= 62 and -LIMIT < value << by < LIMIT else _overflow()

    match op:
        case "+":
            return add
        case "-":
            return subtract
        case "*":
            return multiply
        case "//":
            return lambda env: left(env) // right(env)
        case "%":
            return lambda env: left(env) % right(env)
        case "^":
            return lambda env: left(env) ^ right(env)
        case _:
            return shift


def _overflow() -> int:
    raise OverflowError


_HOLDS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _comparison(expr: Compare) -> Getter:
    first = compiled(expr.first)
    rest = tuple((_HOLDS[op], compiled(operand)) for op, operand in expr.rest)

    def get(env: Environment) -> int:
        left = first(env)
        for test, operand in rest:
            right = operand(env)
            if not test(left, right):
                return 0
            left = right
        return 1

    return get
