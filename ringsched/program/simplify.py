"""Index expressions in a normal form that reads well: sums collected, remainders of remainders merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from ringsched.expr import (
    Binary,
    Compare,
    Expr,
    Extremum,
    Int,
    Lookup,
    Neg,
    Var,
    binary,
    integer,
    looked_up,
    substitute,
)

Terms = dict[Expr, int]
Bounds = Mapping[str, int]
NO_BOUNDS: Bounds = {}


def simplify(expr: Expr, below: Bounds = NO_BOUNDS) -> Expr:
    """An equal expression; `((r - 1) % 4 - s) % 4` becomes `(r - s - 1) % 4`.

    `below` names variables known to lie in 0 … bound − 1; their remainder by the bound is dropped.
    """
    match expr:
        case Int() | Var():
            return expr
        case Compare():
            return Compare(
                first=simplify(expr.first, below), rest=tuple((op, simplify(e, below)) for op, e in expr.rest)
            )
        case Extremum():
            operands = tuple(simplify(e, below) for e in expr.operands)
            return substitute(Extremum(name=expr.name, operands=operands), {})
        case Lookup():
            return looked_up(expr, simplify(expr.index, below))
        case Neg() | Binary():
            terms, constant = _linear(expr, below)
            return _rebuilt(terms, constant)
        case _:
            assert_never(expr)


def _linear(expr: Expr, below: Bounds) -> tuple[Terms, int]:
    """`expr` as a sum of atoms with integer factors, and a constant."""
    match expr:
        case Int():
            return {}, expr.value
        case Neg():
            terms, constant = _linear(expr.operand, below)
            return {atom: -factor for atom, factor in terms.items()}, -constant
        case Binary() if expr.op in "+-":
            terms, constant = _linear(expr.left, below)
            more, extra = _linear(expr.right, below)
            sign = 1 if expr.op == "+" else -1
            total = dict(terms)
            for atom, factor in more.items():
                total[atom] = total.get(atom, 0) + sign * factor
            return _whole({a: f for a, f in total.items() if f}, constant + sign * extra, below)
        case Binary() if expr.op == "*":
            left, right = simplify(expr.left, below), simplify(expr.right, below)
            if isinstance(left, Int):
                left, right = right, left
            if isinstance(right, Int):
                terms, constant = _linear(left, below)
                return {a: f * right.value for a, f in terms.items() if right.value}, constant * right.value
            return {Binary(op="*", left=left, right=right): 1}, 0
        case Binary() if expr.op == "%":
            return _remainder(expr, below)
        case Binary():
            new = binary(expr.op, simplify(expr.left, below), simplify(expr.right, below))
            if isinstance(new, Binary) and new.op == expr.op:
                return {new: 1}, 0
            return _linear(new, below)  # `x // 1` is x, which may be a sum
        case Var():
            return {expr: 1}, 0
        case Compare() | Extremum() | Lookup():
            new = simplify(expr, below)
            return ({}, new.value) if isinstance(new, Int) else ({new: 1}, 0)
        case _:
            assert_never(expr)


def _whole(terms: Terms, constant: int, below: Bounds) -> tuple[Terms, int]:
    """`c * (e // c) + e % c` is e."""
    for atom, factor in terms.items():
        if not (isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.right, Int) and atom.right.value > 0):
            continue
        rest = Binary(op="%", left=atom.left, right=atom.right)
        times, over = divmod(factor, atom.right.value)
        if not over and terms.get(rest) == times:
            inner, extra = _linear(atom.left, below)
            kept = {a: f for a, f in terms.items() if a not in (atom, rest)}
            for a, f in inner.items():
                kept[a] = kept.get(a, 0) + f * times
            return {a: f for a, f in kept.items() if f}, constant + extra * times
    return terms, constant


def _remainder(expr: Binary, below: Bounds) -> tuple[Terms, int]:
    """Inner remainders by a multiple of the same modulus drop out; the constant is kept small."""
    modulus = simplify(expr.right, below)
    terms, constant = _linear(expr.left, below)
    if not isinstance(modulus, Int) or modulus.value <= 0:
        return {Binary(op="%", left=_rebuilt(terms, constant), right=modulus): 1}, 0
    m = modulus.value
    flat: Terms = {}
    for atom, factor in terms.items():
        inner, extra = {atom: 1}, 0
        if isinstance(atom, Binary) and atom.op == "%" and isinstance(atom.right, Int) and atom.right.value % m == 0:
            inner, extra = _linear(atom.left, below)
        constant += extra * factor
        for a, f in inner.items():
            flat[a] = flat.get(a, 0) + f * factor
    flat = {a: f for a, f in flat.items() if f % m}
    constant %= m
    if not flat:
        return {}, constant
    if constant == 0 and len(flat) == 1:
        ((atom, factor),) = flat.items()
        if factor == 1 and isinstance(atom, Var) and below.get(atom.name, m + 1) <= m:
            return flat, 0
    if constant > m // 2:
        constant -= m
    left = _rebuilt(flat, constant)
    return {Binary(op="%", left=left, right=modulus): 1}, 0


def _rebuilt(terms: Terms, constant: int) -> Expr:
    result: Expr | None = None
    ordered = sorted(terms.items(), key=lambda item: item[1] < 0)  # positive ones first, else in order of appearance
    for atom, factor in ordered:
        scaled = atom if abs(factor) == 1 else Binary(op="*", left=Int(value=abs(factor)), right=atom)
        if result is None:
            result = scaled if factor > 0 else (Neg(operand=scaled) if not constant else None)
            if result is None:
                result, constant = Binary(op="-", left=Int(value=constant), right=scaled), 0
        else:
            result = Binary(op="+" if factor > 0 else "-", left=result, right=scaled)
    if result is None:
        return Int(value=constant)
    if constant:
        result = Binary(op="+" if constant > 0 else "-", left=result, right=Int(value=abs(constant)))
    return result


def quotient(expr: Expr, divisor: int) -> Expr | None:
    """`expr // divisor` where it is a sum of multiples of the divisor."""
    terms, constant = _linear(expr, NO_BOUNDS)
    if constant % divisor or any(factor % divisor for factor in terms.values()):
        return None
    return _rebuilt({atom: factor // divisor for atom, factor in terms.items()}, constant // divisor)


def known(expr: Expr, env: dict[str, int]) -> Expr:
    """`expr` with names replaced by numbers, simplified."""
    return simplify(substitute(expr, dict(env)))


def constant(expr: Expr) -> int | None:
    """Its value where it is a number."""
    return integer(expr, {}) if isinstance(expr, Int) else None
