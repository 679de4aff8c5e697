"""An operation, the taint of its operands  →  that of its result: what hangs on memory that nothing has written.

An element hangs on it if another content of that memory could have changed it: with a known False an `and` does not,
and a select does not hang on the case that it leaves. Zero times an unknown float does: it may be not-a-number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ringsched.auditing.numbers import Numbers, Taint, Untold, taint_of

# Each element of the result is one of an operand; how many operands have elements, before those that say which.
MOVES = {
    "broadcast_in_dim": 1,
    "concatenate": None,
    "copy": 1,
    "copy_p": 1,
    "dynamic_slice": 1,
    "dynamic_update_slice": 2,
    "expand_dims": 1,
    "multiple_of": 1,
    "optimization_barrier": 1,
    "pad": 2,
    "pcast": 1,
    "pvary": 1,
    "reshape": 1,
    "rev": 1,
    "roll": 1,
    "slice": 1,
    "squeeze": 1,
    "stack": None,
    "stop_gradient": 1,
    "transpose": 1,
}
REDUCTIONS = (
    "argmax",
    "argmin",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
)
# fmt: off
ELEMENTWISE = frozenset((
    "abs", "add", "add_any", "and", "bitcast_convert_type", "ceil", "clamp", "convert_element_type", "cos", "div",
    "eq", "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "reduce_precision", "rem", "rsqrt",
    "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sqrt", "square", "sub", "tanh",
    "xor",
))
# The result is a value of an operand, or exact: nothing is rounded.
EXACT = frozenset((
    *MOVES,
    "abs", "and", "argmax", "argmin", "ceil", "clamp", "eq", "floor", "ge", "gt", "is_finite", "le", "lt", "max",
    "min", "ne", "neg", "not", "or", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_precision",
    "select_n", "sign", "xor", "iota", "convert_element_type", "bitcast_convert_type",
))
# fmt: on

Operation = Callable[[list[Any], dict[str, Any]], Any]


def tainted(
    name: str, operation: Operation, operands: Sequence[Numbers], params: dict[str, Any], shape: tuple[int, ...]
) -> Taint | None:
    """Raises Untold for an operation of which it is not known. operation: what computes it, on arrays."""
    if all(each.taint is None for each in operands):
        return None
    if name in MOVES:
        return _moved(operation, operands, params, MOVES[name], shape)
    taints = [taint_of(each) for each in operands]
    if name in REDUCTIONS:
        return np.asarray(np.max(taints[0], axis=tuple(params["axes"]), initial=0)).reshape(shape)
    match name:
        case "select_n":
            return _selected(operands, taints, shape)
        case "dot_general":
            return _contracted(taints, params, shape)
        case "cumsum":
            line = np.flip(taints[0], params["axis"]) if params["reverse"] else taints[0]
            found = np.maximum.accumulate(line, axis=params["axis"])
            return np.asarray(np.flip(found, params["axis"]) if params["reverse"] else found)
        case "and" | "or" | "mul":
            return _absorbed(name, operands, taints, shape)
        case _ if name in ELEMENTWISE:
            return _worst(taints, shape)
        case _:
            raise Untold(f"what the operation `{name}` makes of memory that nothing has written")


def _worst(taints: Sequence[Taint], shape: tuple[int, ...]) -> Taint:
    found = np.zeros(shape, np.uint16)
    for each in taints:
        found = np.maximum(found, each)
    return found


def _moved(
    operation: Operation,
    operands: Sequence[Numbers],
    params: dict[str, Any],
    count: int | None,
    shape: tuple[int, ...],
) -> Taint:
    """The taint goes where the elements go; an unknown place is an unknown element."""
    count = len(operands) if count is None else count
    where = [each.values for each in operands[count:]]
    worst = max((each.worst for each in operands[count:]), default=0)
    found = np.asarray(operation([*(taint_of(each) for each in operands[:count]), *where], params)).reshape(shape)
    return np.asarray(np.maximum(found, np.uint16(worst)))


def _selected(operands: Sequence[Numbers], taints: Sequence[Taint], shape: tuple[int, ...]) -> Taint:
    which = np.broadcast_to(operands[0].values.astype(np.int64), shape)
    cases = [np.broadcast_to(each, shape) for each in taints[1:]]
    chosen = np.choose(np.clip(which, 0, len(cases) - 1), cases)
    return np.asarray(np.maximum(chosen, taints[0]))


def _contracted(taints: Sequence[Taint], params: dict[str, Any], shape: tuple[int, ...]) -> Taint:
    """Batch dimensions first, then what is left of each."""
    (cx, cy), (bx, by) = params["dimension_numbers"]
    free = []
    for taint, contracted, batch in ((taints[0], cx, bx), (taints[1], cy, by)):
        rest = [d for d in range(taint.ndim) if d not in (*contracted, *batch)]
        ordered = taint.transpose([*batch, *rest, *contracted])
        free.append((ordered.max(axis=tuple(range(len(batch) + len(rest), taint.ndim)), initial=0), len(rest)))
    (left, of_left), (right, of_right) = free
    batch_shape = left.shape[: len(bx)]
    left = left.reshape(*batch_shape, *left.shape[len(bx) :], *([1] * of_right))
    right = right.reshape(*batch_shape, *([1] * of_left), *right.shape[len(bx) :])
    return np.broadcast_to(np.maximum(left, right), shape).copy()


def _absorbed(name: str, operands: Sequence[Numbers], taints: Sequence[Taint], shape: tuple[int, ...]) -> Taint:
    """Where a known operand settles it alone, whatever the other is."""
    if operands[0].values.dtype.kind == "f":
        return _worst(taints, shape)
    settled = np.zeros(shape, bool)
    for each, taint in zip(operands, taints, strict=True):
        everything = ~np.zeros((), each.values.dtype) if name == "or" else np.zeros((), each.values.dtype)
        settled |= (each.values == everything) & (taint == 0)
    return np.where(settled, np.uint16(0), _worst(taints, shape))
