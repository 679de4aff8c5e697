"""jaxpr, arrays  →  arrays: what the operations of a kernel compute, in exact arithmetic where that is possible."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core

from ringsched.auditing.bits import recast, repacked
from ringsched.auditing.numbers import Numbers, Untold, as_array, carrier, numbers, stacked, taint_of
from ringsched.auditing.rounding import Rounding
from ringsched.auditing.scalars import OPERATIONS, Unsupported
from ringsched.auditing.taint import EXACT, tainted
from ringsched.auditing.walk import CALLS, inner_jaxpr, opened

MOST_ROUNDS = 20_000  # of a loop whose end depends on data


class Endless(Exception):
    """A loop that repeats itself: with these operands it never ends."""

    def __init__(self, eqn: Any) -> None:
        self.eqn = eqn
        super().__init__("a loop never ends")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where operations are performed. `place`: the device's index on each mesh axis; `rounding`: None for none."""

    place: Mapping[str, int] | None = None
    rounding: Rounding | None = None


NOWHERE = Setting()


def run(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], rounding: Rounding | None = None
) -> list[np.ndarray]:
    """The results of a jaxpr without effects. Raises Untold, Endless."""
    inner = [*jaxpr.constvars, *jaxpr.invars]
    values = [Numbers(as_array(x, v.aval.dtype)) for v, x in zip(inner, [*consts, *arguments], strict=True)]
    return [found.values for found in _evaluate(jaxpr, values, Setting(rounding=rounding))]


def _evaluate(jaxpr: Any, values: Sequence[Numbers], setting: Setting) -> list[Numbers]:
    """values: of its constants, then of its arguments."""
    env: dict[Any, Numbers] = dict(zip([*jaxpr.constvars, *jaxpr.invars], values, strict=True))

    def read(atom: Any) -> Numbers:
        return Numbers(as_array(atom.val, atom.aval.dtype)) if isinstance(atom, core.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        results = perform(eqn, [read(atom) for atom in eqn.invars], setting)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def perform(eqn: Any, operands: list[Numbers], setting: Setting) -> list[Numbers]:
    """The results of one operation. Raises Untold, Endless."""
    name, params = eqn.primitive.name, eqn.params
    match name:
        case "cond":
            which, *rest = operands
            branches = params["branches"]
            taken = branches[min(max(int(which.values), 0), len(branches) - 1)]
            return [each.tainted(which.worst) for each in _enter(taken, rest, setting)]
        case "while":
            return _while(eqn, operands, setting)
        case "scan":
            return _scan(params, operands, setting)
        case "axis_index":
            if setting.place is None or params["axis_name"] not in setting.place:
                raise Untold(f"axis {params['axis_name']!r} is not known")
            return [Numbers(as_array(setting.place[params["axis_name"]], np.int32))]
        case "bitcast" | "bitcast_convert_type":
            return [_bitcast(name, eqn, operands[0])]
        case "split":
            cuts = list(itertools.accumulate(params["sizes"]))[:-1]
            taints = np.split(taint_of(operands[0]), cuts, axis=params["axis"])
            parts = np.split(operands[0].values, cuts, axis=params["axis"])
            return [numbers(part, taint) for part, taint in zip(parts, taints, strict=True)]
    if name in CALLS:
        inner = inner_jaxpr(params)
        if inner is not None and len(opened(inner)[0].invars) == len(operands):
            return _enter(inner, operands, setting)
    operation = _MORE.get(name) or _EXACT.get(name)
    if operation is None or len(eqn.outvars) != 1:
        return _by_jax(eqn, operands, setting)
    aval = eqn.outvars[0].aval
    known = {**params, "aval": aval, "kind": eqn.invars and eqn.invars[0].aval}
    arrays = [each.values for each in operands]
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(operation(arrays, known))
            scale = _scale(name, operation, arrays, known) if setting.rounding is not None else None
        taint = tainted(name, operation, operands, known, aval.shape)
    except Unsupported:
        raise Untold(f"the operation `{name}` on these operands") from None
    values = as_array(found, aval.dtype).reshape(aval.shape)
    if setting.rounding is not None and name not in EXACT:
        values = setting.rounding(values, arrays, None if scale is None else scale.reshape(aval.shape))
    return [Numbers(values, taint)]


def _scale(
    name: str, operation: Callable[..., Any], operands: Sequence[np.ndarray], params: dict[str, Any]
) -> np.ndarray | None:
    """The size of what an operation adds up, which its result does not tell where something cancels."""
    if name not in ("add", "add_any", "cumsum", "dot_general", "reduce_sum", "sub"):
        return None
    if params["aval"].dtype.kind in "biu":
        return None
    sizes = [np.abs(each) for each in operands]
    return np.asarray(sizes[0] + sizes[1] if name == "sub" else operation(sizes, params))


def _by_jax(eqn: Any, operands: list[Numbers], setting: Setting) -> list[Numbers]:
    """As jax computes it, in 64 bits."""
    name = eqn.primitive.name
    if eqn.effects or any(hasattr(opened(v)[0], "eqns") for v in eqn.params.values()):
        raise Untold(f"the operation `{name}`")
    if any(each.taint is not None for each in operands):
        raise Untold(f"what the operation `{name}` makes of memory that nothing has written")
    try:
        with jax.enable_x64(True):
            found = eqn.primitive.bind(*(jnp.asarray(each.values) for each in operands), **eqn.params)
    # A primitive that has no meaning outside a kernel says so in its own way.
    except Exception:
        raise Untold(f"the operation `{name}`") from None
    results = found if eqn.primitive.multiple_results else [found]
    arrays = [as_array(r, v.aval.dtype) for r, v in zip(results, eqn.outvars, strict=True)]
    if setting.rounding is None:
        return [Numbers(each) for each in arrays]
    return [Numbers(setting.rounding(each, [operand.values for operand in operands])) for each in arrays]


def _enter(closed: Any, values: Sequence[Numbers], setting: Setting) -> list[Numbers]:
    jaxpr, consts = opened(closed)
    constants = [Numbers(as_array(x, v.aval.dtype)) for v, x in zip(jaxpr.constvars, consts, strict=True)]
    return _evaluate(jaxpr, [*constants, *values], setting)


def _while(eqn: Any, operands: list[Numbers], setting: Setting) -> list[Numbers]:
    params = eqn.params
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    tested, constant, carry = operands[:first], operands[first:second], operands[second:]
    for _ in range(MOST_ROUNDS):
        (more,) = _enter(params["cond_jaxpr"], [*tested, *carry], setting)
        if more.worst:
            raise Untold("how often a loop runs hangs on memory that nothing has written", may_hang=True)
        if not bool(more.values):
            return carry
        before, carry = carry, _enter(params["body_jaxpr"], [*constant, *carry], setting)
        if all(map(_unchanged, before, carry)):
            raise Endless(eqn)
    raise Untold(f"a loop of more than {MOST_ROUNDS} rounds, which need not end", may_hang=True)


def _unchanged(before: Numbers, after: Numbers) -> bool:
    return bool(np.array_equal(before.values, after.values, equal_nan=before.values.dtype.kind == "f"))


def _scan(params: Any, operands: list[Numbers], setting: Setting) -> list[Numbers]:
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
    constant, carry, columns = operands[:first], operands[first:second], operands[second:]
    length = int(params["length"])
    rounds: list[list[Numbers]] = []
    for turn in reversed(range(length)) if params["reverse"] else range(length):
        results = _enter(params["jaxpr"], [*constant, *carry, *(each[turn] for each in columns)], setting)
        carry = results[: params["num_carry"]]
        rounds.append(results[params["num_carry"] :])
    if params["reverse"]:
        rounds.reverse()
    if not rounds and len(params["jaxpr"].jaxpr.outvars) > len(carry):
        raise Untold("a loop without rounds")
    return [*carry, *(stacked(each) for each in zip(*rounds, strict=True))]


def _bitcast(name: str, eqn: Any, x: Numbers) -> Numbers:
    """Elements of another width lie along the second-last dimension (`pltpu.bitcast`) or the last (`jax.lax`)."""
    old, new, shape = eqn.invars[0].aval.dtype, eqn.outvars[0].aval.dtype, eqn.outvars[0].aval.shape
    if np.dtype(old).itemsize == np.dtype(new).itemsize:
        return recast(x, old, new)
    if name == "bitcast":
        return repacked(x, old, new)
    if np.dtype(old).itemsize > np.dtype(new).itemsize:  # [...] → [..., ratio]
        found = repacked(x[..., None, None], old, new)
    else:
        found = repacked(x[..., None], old, new)
    return numbers(found.values.reshape(shape), taint_of(found).reshape(shape))


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
