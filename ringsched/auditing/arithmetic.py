"""jaxpr, arrays  →  arrays: what the operations of a kernel compute, in exact arithmetic where that is possible.

Floats of every width are held as float64 and never rounded to a narrower type, so sums and products of small integers
are exact and do not depend on their order. Integers and bools are what they are in the kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core

from ringsched.auditing.scalars import OPERATIONS, Unsupported
from ringsched.auditing.walk import CALLS, inner_jaxpr, opened

MOST_ROUNDS = 100_000  # of a loop whose end depends on data


class Untold(Exception):
    """An operation whose results are not known here; `reason` completes "values are not known: …"."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def carrier(dtype: Any) -> np.dtype[Any]:
    """The dtype that holds values of a kernel's dtype here."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64)
    if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_):
        kind: np.dtype[Any] = np.dtype(dtype)
        return kind
    raise Untold(f"values of dtype {dtype}")


def run(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], place: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """The results of a jaxpr without effects. place: this device's index on each mesh axis. Raises Untold."""
    env: dict[Any, np.ndarray] = {}

    def read(atom: Any) -> np.ndarray:
        return as_array(atom.val, atom.aval.dtype) if isinstance(atom, core.Literal) else env[atom]

    for variable, value in zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True):
        env[variable] = as_array(value, variable.aval.dtype)
    for eqn in jaxpr.eqns:
        results = perform(eqn, [read(atom) for atom in eqn.invars], place)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def as_array(value: Any, dtype: Any) -> np.ndarray:
    """A number or array of a kernel in the form that it has here."""
    return np.asarray(value).astype(carrier(dtype), copy=False)


def perform(eqn: Any, operands: list[np.ndarray], place: Mapping[str, int] | None = None) -> list[np.ndarray]:
    """The results of one operation. Raises Untold."""
    name, params = eqn.primitive.name, eqn.params
    match name:
        case "cond":
            which, *rest = operands
            branches = params["branches"]
            return _enter(branches[min(max(int(which), 0), len(branches) - 1)], rest, place)
        case "while":
            return _while(params, operands, place)
        case "scan":
            return _scan(params, operands, place)
        case "axis_index":
            if place is None or params["axis_name"] not in place:
                raise Untold(f"axis {params['axis_name']!r} is not known")
            return [as_array(place[params["axis_name"]], np.int32)]
    if name in CALLS:
        inner = inner_jaxpr(params)
        if inner is not None and len(opened(inner)[0].invars) == len(operands):
            return _enter(inner, operands, place)
    if name == "split":
        cuts = list(itertools.accumulate(params["sizes"]))[:-1]
        return list(np.split(operands[0], cuts, axis=params["axis"]))
    operation = _MORE.get(name) or _EXACT.get(name)
    if operation is None or len(eqn.outvars) != 1:
        return _by_jax(eqn, operands)
    aval = eqn.outvars[0].aval
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(operation(operands, {**params, "aval": aval, "kind": eqn.invars and eqn.invars[0].aval}))
    except Unsupported:
        raise Untold(f"the operation `{name}` on these operands") from None
    return [as_array(found, aval.dtype).reshape(aval.shape)]


def _by_jax(eqn: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
    """As jax computes it, in 64 bits."""
    if eqn.effects or any(hasattr(opened(v)[0], "eqns") for v in eqn.params.values()):
        raise Untold(f"the operation `{eqn.primitive.name}`")
    try:
        with jax.enable_x64(True):
            found = eqn.primitive.bind(*(jnp.asarray(each) for each in operands), **eqn.params)
    # A primitive that has no meaning outside a kernel says so in its own way.
    except Exception:
        raise Untold(f"the operation `{eqn.primitive.name}`") from None
    results = found if eqn.primitive.multiple_results else [found]
    return [as_array(r, v.aval.dtype) for r, v in zip(results, eqn.outvars, strict=True)]


def _enter(closed: Any, values: Sequence[Any], place: Mapping[str, int] | None) -> list[np.ndarray]:
    jaxpr, consts = opened(closed)
    return run(jaxpr, consts, values, place)


def _while(params: Any, operands: list[np.ndarray], place: Mapping[str, int] | None) -> list[np.ndarray]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    tested, constant, carry = operands[:first], operands[first:second], operands[second:]
    for _ in range(MOST_ROUNDS):
        (more,) = _enter(params["cond_jaxpr"], [*tested, *carry], place)
        if not bool(more):
            return carry
        carry = _enter(params["body_jaxpr"], [*constant, *carry], place)
    raise Untold(f"a loop of more than {MOST_ROUNDS} rounds")


def _scan(params: Any, operands: list[np.ndarray], place: Mapping[str, int] | None) -> list[np.ndarray]:
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    constant, carry, stacked = operands[:first], operands[first:second], operands[second:]
    length = int(params["length"])
    rounds: list[list[np.ndarray]] = []
    for turn in reversed(range(length)) if params["reverse"] else range(length):
        results = _enter(params["jaxpr"], [*constant, *carry, *(each[turn] for each in stacked)], place)
        carry = results[: params["num_carry"]]
        rounds.append(results[params["num_carry"] :])
    if params["reverse"]:
        rounds.reverse()
    if not rounds and len(params["jaxpr"].jaxpr.outvars) > len(carry):
        raise Untold("a loop without rounds")
    return [*carry, *(np.stack(each) for each in zip(*rounds, strict=True))]


# -- operations that scalars.py does not have, or means for indices only

_Operation = Callable[[list[np.ndarray], dict[str, Any]], Any]


def _dot(v: list[np.ndarray], p: dict[str, Any]) -> np.ndarray:
    """Batch dimensions first, then what is left of x, then what is left of y."""
    x, y = (each.astype(carrier(p["aval"].dtype)) for each in v)
    (cx, cy), (bx, by) = p["dimension_numbers"]
    fx = [d for d in range(x.ndim) if d not in (*cx, *bx)]
    fy = [d for d in range(y.ndim) if d not in (*cy, *by)]
    depth = int(np.prod([x.shape[d] for d in cx], dtype=np.int64))
    batch = [x.shape[d] for d in bx]
    wide = x.transpose([*bx, *fx, *cx]).reshape([*batch, -1 if x.size else 0, depth])
    high = y.transpose([*by, *cy, *fy]).reshape([*batch, depth, -1 if y.size else 0])
    product: np.ndarray = np.matmul(wide, high)
    return product.reshape([*batch, *(x.shape[d] for d in fx), *(y.shape[d] for d in fy)])


def _converted(v: list[np.ndarray], p: dict[str, Any]) -> np.ndarray:
    x, to = v[0], carrier(p["aval"].dtype)
    if x.dtype.kind == "f" and to.kind in "iu":
        if not np.all(np.abs(x) < 2.0**31):
            raise Unsupported
        x = np.trunc(x).astype(np.int64)
    found: np.ndarray = x.astype(to)
    return found


def _bitcast(v: list[np.ndarray], p: dict[str, Any]) -> np.ndarray:
    """Through the bits of the kernel's own dtype; exact for what that can hold."""
    source, target = np.dtype(p["kind"].dtype), np.dtype(p["aval"].dtype)
    if source.itemsize != target.itemsize:
        raise Unsupported
    bits = v[0].astype(source)
    if not np.array_equal(bits.astype(v[0].dtype), v[0]):
        raise Unsupported
    found: np.ndarray = np.ascontiguousarray(bits).view(target).astype(carrier(target))
    return found


def _selected(v: list[np.ndarray], p: dict[str, Any]) -> np.ndarray:
    which, *cases = v
    shape = p["aval"].shape
    choice = np.broadcast_to(which.astype(np.int64), shape) if which.ndim else np.full(shape, int(which))
    return np.choose(choice, [np.broadcast_to(case, shape) for case in cases])


def _iota(v: list[np.ndarray], p: dict[str, Any]) -> np.ndarray:
    shape, axis = p["aval"].shape, p["dimension"]
    line = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.broadcast_to(line, shape)


def _updated(v: list[np.ndarray], p: dict[str, Any]) -> np.ndarray:
    """dynamic_update_slice: starts are clamped, as XLA does."""
    x, update, *starts = v
    if len(starts) != x.ndim:
        raise Unsupported
    result = x.copy()
    index = []
    for start, size, side in zip(starts, update.shape, x.shape, strict=True):
        first = min(max(int(start), 0), side - size)
        index.append(slice(first, first + size))
    result[tuple(index)] = update
    return result


def _padded(v: list[np.ndarray], p: dict[str, Any]) -> np.ndarray:
    x, value = v
    if any(low < 0 or high < 0 or inner for low, high, inner in p["padding_config"]):
        raise Unsupported
    return np.pad(x, [(low, high) for low, high, _ in p["padding_config"]], constant_values=value)


def _rolled(v: list[np.ndarray], p: dict[str, Any]) -> np.ndarray:
    if p.get("stride") is not None:
        raise Unsupported
    return np.roll(v[0], int(v[1]), axis=p["axis"])


def _best(function: Callable[..., Any]) -> _Operation:
    return lambda v, p: function(v[0], axis=p["axes"][0])


_ERF = np.vectorize(math.erf, otypes=[np.float64])

_MORE: dict[str, _Operation] = {
    "dot_general": _dot,
    "convert_element_type": _converted,
    "bitcast_convert_type": _bitcast,
    "select_n": _selected,
    "iota": _iota,
    "dynamic_update_slice": _updated,
    "pad": _padded,
    "roll": _rolled,
    "rev": lambda v, p: np.flip(v[0], axis=tuple(p["dimensions"])),
    "reduce_precision": lambda v, p: v[0],
    "copy_p": lambda v, p: v[0],
    "exp": lambda v, p: np.exp(v[0]),
    "exp2": lambda v, p: np.exp2(v[0]),
    "expm1": lambda v, p: np.expm1(v[0]),
    "log": lambda v, p: np.log(v[0]),
    "log1p": lambda v, p: np.log1p(v[0]),
    "tanh": lambda v, p: np.tanh(v[0]),
    "sin": lambda v, p: np.sin(v[0]),
    "cos": lambda v, p: np.cos(v[0]),
    "logistic": lambda v, p: 1 / (1 + np.exp(-v[0])),
    "sqrt": lambda v, p: np.sqrt(v[0]),
    "rsqrt": lambda v, p: 1 / np.sqrt(v[0]),
    "pow": lambda v, p: np.power(v[0], v[1]),
    "integer_pow": lambda v, p: v[0].astype(np.float64) ** p["y"] if p["y"] < 0 else v[0] ** p["y"],
    "floor": lambda v, p: np.floor(v[0]),
    "ceil": lambda v, p: np.ceil(v[0]),
    "is_finite": lambda v, p: np.isfinite(v[0]),
    "erf": lambda v, p: _ERF(v[0]),
    "reduce_prod": lambda v, p: np.prod(v[0], axis=tuple(p["axes"])),
    "argmax": _best(np.argmax),
    "argmin": _best(np.argmin),
    "cumsum": lambda v, p: (
        np.flip(np.cumsum(np.flip(v[0], p["axis"]), p["axis"]), p["axis"])
        if p["reverse"]
        else np.cumsum(v[0], p["axis"])
    ),
}
_EXACT: dict[str, _Operation] = OPERATIONS
