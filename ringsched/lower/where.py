"""Sets of ranks as conditions on the coordinates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from ringsched.expr import Compare, Expr, Extremum, Int, Var, binary
from ringsched.topology import Topology

Number = Callable[[int], Expr]


def where(topology: Topology, ranks: frozenset[int], number: Number) -> tuple[Expr, ...]:
    """Conditions that hold on exactly these ranks; () on all. `number` writes a rank that may change by step."""
    places = [topology.at(rank) for rank in sorted(ranks)]
    projections = [sorted({place[axis] for place in places}) for axis in range(len(topology.sides))]
    if len(places) == math.prod(len(p) for p in projections):
        conditions: list[Expr] = []
        for name, side, values in zip(topology.coordinates, topology.sides, projections, strict=True):
            conditions.extend(_one_axis(Var(name=name), side, values, number))
        return tuple(conditions)
    return tuple(_one_axis(Var(name="r"), topology.ranks, sorted(ranks), number))


def _one_axis(value: Expr, side: int, members: list[int], number: Number) -> list[Expr]:
    low, high = members[0], members[-1]
    if len(members) == 1 and side > 1:
        return [_compare(value, "==", number(low))]
    if len(members) == high - low + 1:
        return _bounds(value, side, low, high, number)
    stride = members[1] - low
    if members == list(range(low, high + 1, stride)):
        bounds = _bounds(value, side, low if low >= stride else 0, high if high + stride < side else side - 1, number)
        return [_compare(binary("%", value, stride), "==", Int(value=low % stride)), *bounds]
    runs: list[Expr] = []
    for _, group in itertools.groupby(enumerate(members), key=lambda pair: pair[1] - pair[0]):
        run = [member for _, member in group]
        if len(run) == 1:
            runs.append(_compare(value, "==", number(run[0])))
        else:
            runs.append(Compare(first=number(run[0]), rest=(("<=", value), ("<=", number(run[-1])))))
    return [Extremum(name="max", operands=tuple(runs))]


def _bounds(value: Expr, side: int, low: int, high: int, number: Number) -> list[Expr]:
    if low > 0 and high < side - 1:
        return [Compare(first=number(low), rest=(("<=", value), ("<=", number(high))))]
    if low > 0:
        return [_compare(value, ">=", number(low))]
    if high < side - 1:
        return [_compare(value, "<=", number(high))]
    return []


def _compare(left: Expr, op: str, right: Expr) -> Expr:
    return Compare(first=left, rest=((op, right),))
