"""Scalars of a kernel, evaluated: index arithmetic.

A value is an int or a bool, a small numpy array (or scalar of another dtype), or UNKNOWN. Only what can take part in
indices, device ids and conditions is evaluated; all else is UNKNOWN.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MOST_ELEMENTS = 4096  # larger arrays are data, and data is not looked at


class Unknown:
    """A value that the audit does not know."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = Unknown()


class Unsupported(Exception):
    """This application of the operation is not evaluated."""


def evaluate(
    name: str, values: list[Any], params: dict[str, Any], operands: Sequence[Any], dtype: Any, shape: tuple[int, ...]
) -> Any:
    """The result of a pure operation with one result, or UNKNOWN where an operand or the operation is.

    operands: the dtypes of the values; dtype, shape: those of the result.
    """
    if shape == () and name in _WHOLE and all(type(value) is int or type(value) is bool for value in values):
        return _wrapped(_WHOLE[name](*values), dtype)
    if math.prod(shape) > MOST_ELEMENTS or not _plain(dtype):
        return UNKNOWN
    if name == "iota":
        axis = params["dimension"]
        line = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
        return np.broadcast_to(line, shape).astype(dtype)
    if name == "select_n":
        return _select(values, dtype, shape)
    if any(isinstance(value, Unknown) for value in values):
        return _absorbing(name, values, dtype, shape)
    operation = OPERATIONS.get(name)
    if operation is None:
        return UNKNOWN
    arrays = [np.asarray(value, dtype=kind) for value, kind in zip(values, operands, strict=True)]
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(operation(arrays, params)).astype(dtype)
    except Unsupported:
        return UNKNOWN
    return known(found) if found.shape == shape else UNKNOWN


def known(value: Any) -> Any:
    """A value in the form that it has here."""
    if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 and value.dtype.kind in "biu":
        return value.item()
    return value


def _wrapped(value: Any, dtype: Any) -> Any:
    """As an integer of this dtype holds it."""
    if dtype == np.bool_:
        return bool(value)
    bits = 8 * dtype.itemsize
    if dtype.kind == "u":
        return int(value) % (1 << bits)
    half = 1 << (bits - 1)
    return value if type(value) is int and -half <= value < half else (int(value) + half) % (1 << bits) - half


def _plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def _select(values: list[Any], dtype: Any, shape: tuple[int, ...]) -> Any:
    """The case that a known scalar picks; the other may be unknown."""
    which, *cases = values
    if isinstance(which, Unknown):
        return UNKNOWN
    if type(which) in (int, bool):
        chosen = cases[int(which)]
        return chosen if isinstance(chosen, Unknown) else known(np.asarray(chosen).astype(dtype))
    if any(isinstance(case, Unknown) for case in cases):
        return UNKNOWN
    return np.broadcast_to(np.choose(np.asarray(which).astype(np.int64), cases), shape).astype(dtype)


def _absorbing(name: str, values: list[Any], dtype: Any, shape: tuple[int, ...]) -> Any:
    """`False and unknown` is False, `True or unknown` is True."""
    if dtype == np.bool_ and name in ("and", "or"):
        for value in values:
            if not isinstance(value, Unknown) and np.all(value == (name == "or")):
                return known(np.full(shape, name == "or"))
    return UNKNOWN


def _divided(x: Any, y: Any) -> Any:
    """Integers: rounded towards zero, as lax.div does; by zero: unsupported."""
    if np.asarray(x).dtype.kind == "f":
        return x / y
    if np.any(y == 0):
        raise Unsupported
    quotient = np.abs(np.asarray(x, np.int64)) // np.abs(np.asarray(y, np.int64))
    return quotient * np.sign(x) * np.sign(y)


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of x, as lax.rem has it."""
    if np.asarray(x).dtype.kind != "f" and np.any(y == 0):
        raise Unsupported
    return np.fmod(x, y)


def _shifted(direction: int) -> Callable[[list[Any], dict[str, Any]], Any]:
    def shift(values: list[Any], params: dict[str, Any]) -> Any:
        x, by = values
        if np.any(by < 0) or np.any(by >= 8 * np.asarray(x).dtype.itemsize):
            raise Unsupported
        return x << by if direction > 0 else x >> by

    return shift


def _logical_right(values: list[Any], params: dict[str, Any]) -> Any:
    if np.any(np.asarray(values[0]) < 0):
        raise Unsupported
    return _shifted(-1)(values, params)


def _broadcast(values: list[Any], params: dict[str, Any]) -> Any:
    shape, dimensions = params["shape"], params["broadcast_dimensions"]
    x = np.asarray(values[0])
    wide = [1] * len(shape)
    for size, dimension in zip(x.shape, dimensions, strict=True):
        wide[dimension] = size
    return np.broadcast_to(x.reshape(wide), shape)


def _sliced(values: list[Any], params: dict[str, Any]) -> Any:
    steps = params["strides"] or (1,) * np.ndim(values[0])
    slices = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
    return np.asarray(values[0])[tuple(slice(*each) for each in slices)]


def _dynamic_slice(values: list[Any], params: dict[str, Any]) -> Any:
    """Starts are clamped, as XLA does."""
    x, *starts = values
    sizes = params["slice_sizes"]
    if len(starts) != len(sizes):
        raise Unsupported
    index = []
    for start, size, side in zip(starts, sizes, np.shape(x), strict=True):
        first = min(max(int(start), 0), side - size)
        index.append(slice(first, first + size))
    return np.asarray(x)[tuple(index)]


def _converted(values: list[Any], params: dict[str, Any]) -> Any:
    """Floats beyond the integers are saturated by XLA and wrapped by numpy: unsupported."""
    x = np.asarray(values[0])
    if x.dtype.kind == "f" and not np.all(np.abs(x) < 2.0**31):
        raise Unsupported
    return x


def _reduced(function: Callable[..., Any]) -> Callable[[list[Any], dict[str, Any]], Any]:
    return lambda values, params: function(values[0], axis=tuple(params["axes"]))


def _power(values: list[Any], params: dict[str, Any]) -> Any:
    if params["y"] < 0:
        raise Unsupported
    return values[0] ** params["y"]


_WHOLE: dict[str, Callable[..., Any]] = {  # exact on ints; the result is then wrapped
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": max,
    "min": min,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "convert_element_type": lambda x: x,
    "multiple_of": lambda x: x,
}

OPERATIONS: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "add": lambda v, p: v[0] + v[1],
    "add_any": lambda v, p: v[0] + v[1],
    "sub": lambda v, p: v[0] - v[1],
    "mul": lambda v, p: v[0] * v[1],
    "div": lambda v, p: _divided(v[0], v[1]),
    "rem": lambda v, p: _remainder(v[0], v[1]),
    "neg": lambda v, p: -v[0],
    "abs": lambda v, p: np.abs(v[0]),
    "sign": lambda v, p: np.sign(v[0]),
    "max": lambda v, p: np.maximum(v[0], v[1]),
    "min": lambda v, p: np.minimum(v[0], v[1]),
    "clamp": lambda v, p: np.minimum(np.maximum(v[1], v[0]), v[2]),
    "integer_pow": _power,
    "square": lambda v, p: v[0] * v[0],
    "eq": lambda v, p: v[0] == v[1],
    "ne": lambda v, p: v[0] != v[1],
    "lt": lambda v, p: v[0] < v[1],
    "le": lambda v, p: v[0] <= v[1],
    "gt": lambda v, p: v[0] > v[1],
    "ge": lambda v, p: v[0] >= v[1],
    "and": lambda v, p: v[0] & v[1],
    "or": lambda v, p: v[0] | v[1],
    "xor": lambda v, p: v[0] ^ v[1],
    "not": lambda v, p: ~v[0],
    "shift_left": _shifted(1),
    "shift_right_arithmetic": _shifted(-1),
    "shift_right_logical": _logical_right,
    "convert_element_type": _converted,
    "copy": lambda v, p: v[0],
    "stop_gradient": lambda v, p: v[0],
    "multiple_of": lambda v, p: v[0],
    "pvary": lambda v, p: v[0],
    "pcast": lambda v, p: v[0],
    "optimization_barrier": lambda v, p: v[0],
    "squeeze": lambda v, p: np.squeeze(v[0], axis=tuple(p["dimensions"])),
    "expand_dims": lambda v, p: np.expand_dims(v[0], axis=tuple(p["dimensions"])),
    "reshape": lambda v, p: np.reshape(v[0], p["new_sizes"]),
    "transpose": lambda v, p: np.transpose(v[0], p["permutation"]),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda v, p: np.concatenate(v, axis=p["dimension"]),
    "stack": lambda v, p: np.stack(v, axis=p["axis"]),
    "slice": _sliced,
    "dynamic_slice": _dynamic_slice,
    "reduce_sum": _reduced(np.sum),
    "reduce_max": _reduced(np.max),
    "reduce_min": _reduced(np.min),
    "reduce_and": _reduced(np.bitwise_and.reduce),
    "reduce_or": _reduced(np.bitwise_or.reduce),
}
