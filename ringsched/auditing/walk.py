"""Walks a jaxpr with scalars evaluated: control flow is decided, effects are left to subclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jax._src import core

from ringsched.auditing.data import Constant, Part, Stacked, outcomes
from ringsched.auditing.scalars import UNKNOWN, Unknown, evaluate, known
from ringsched.diagnostics import Span

MOST_STEPS = 1_000_000  # operations of one device

CALLS = {
    "pjit",
    "jit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "custom_vmap_call",
    "ringsched_call",
    "checkpoint",
    "remat",
    "remat2",
    "named_call",
}
_JAXPRS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
# These have an effect that the rule does not look at: no memory and no semaphore is touched.
_HARMLESS = {
    "debug_callback",
    "debug_print",
    "delay",
    "trace_value",
    "prng_seed",
    "prng_random_bits",
}


class Undecided(Exception):
    """The walker does not know how it goes on; `reason` completes "cannot be followed: …".

    `way_on`: what the user can do so that it is decided.
    """

    def __init__(self, reason: str, span: Span | None, way_on: str) -> None:
        self.reason, self.span, self.way_on = reason, span, way_on
        super().__init__(reason)


class Reference:
    """A ref among the values; what it refers to is the subclass's matter."""


MAKE_CONSTANT = "make what decides it a constant of the program, or give --args (args=) the array instead of its shape"


class Walker:
    """Executes one device's jaxpr. `coordinates`: its place on each mesh axis."""

    refuse_unknown: ClassVar[bool] = True

    def __init__(self, coordinates: dict[str, int], sizes: dict[str, int]) -> None:
        self.coordinates = coordinates
        self.sizes = sizes
        self.steps = 0
        self.path: list[object] = []  # the operations that it is in; each copy that a loop is unrolled to counts as one

    def place(self, eqn: Any) -> Span | None:
        """Where the operation stands in the user's source."""
        return None

    def effect(self, eqn: Any, values: list[Any]) -> list[Any] | None:
        """The results of an operation that the subclass knows; None for one that it does not."""
        return None

    def run(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """The results of a jaxpr on these values."""
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            return _known(atom.val) if isinstance(atom, core.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise Undecided(
                    f"it executes more than {MOST_STEPS} operations on a device",
                    self.place(eqn),
                    "audit smaller operands, or fewer rounds: what repeats goes wrong early",
                )
            self.path.append(id(eqn))
            results = self._step(eqn, [read(atom) for atom in eqn.invars])
            self.path.pop()
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _step(self, eqn: Any, values: list[Any]) -> list[Any]:
        results = self.effect(eqn, values)
        if results is not None:
            return results
        name = eqn.primitive.name
        match name:
            case "axis_index":
                return [self._axis_index(eqn)]
            case "cond":
                return self._cond(eqn, values)
            case "while":
                return self._while(eqn, values)
            case "scan":
                return self._scan(eqn, values)
        if name in CALLS:
            inner = inner_jaxpr(eqn.params)
            if inner is not None and len(opened(inner)[0].invars) == len(values):
                return self.enter(inner, values)
        return self._other(eqn, values)

    def enter(self, closed: Any, values: Sequence[Any]) -> list[Any]:
        """Runs a jaxpr that an operation carries."""
        jaxpr, consts = opened(closed)
        return self.run(jaxpr, [_known(c) for c in consts], values)

    def _other(self, eqn: Any, values: list[Any]) -> list[Any]:
        """A pure operation, or one that nobody knows."""
        name = eqn.primitive.name
        if self.refuse_unknown:
            touches = any(isinstance(value, Reference) for value in values)
            if (touches or eqn.effects) and name not in _HARMLESS:
                raise Undecided(
                    f"the operation `{name}` is not known to the audit",
                    self.place(eqn),
                    "leave it out of what is audited: compute it before the kernel, or after it",
                )
        if len(eqn.outvars) == 1 and hasattr(eqn.outvars[0].aval, "shape"):
            aval = eqn.outvars[0].aval
            kinds = [getattr(atom.aval, "dtype", None) for atom in eqn.invars]
            result = evaluate(name, values, eqn.params, kinds, aval.dtype, aval.shape)
            return outcomes(eqn, values) if result is UNKNOWN else [result]
        return outcomes(eqn, values)

    def _axis_index(self, eqn: Any) -> int:
        names = eqn.params["axis_name"]
        flat = 0
        for name in names if isinstance(names, tuple) else (names,):
            if name not in self.coordinates:
                raise Undecided(
                    f"axis {name!r} is no axis of the mesh", self.place(eqn), "name the axis with --mesh (mesh_axes=)"
                )
            flat = flat * self.sizes[name] + self.coordinates[name]
        return flat

    def open_choice(self, eqn: Any, values: list[Any]) -> list[Any]:
        """What becomes of control flow that hangs on data: nothing, where it only computes more data."""
        if eqn.effects or any(isinstance(value, Reference) for value in values):
            what = "the number of rounds of a loop" if eqn.primitive.name == "while" else "a condition"
            raise Undecided(f"{what} depends on data that the audit does not know", self.place(eqn), MAKE_CONSTANT)
        return outcomes(eqn, values)

    def _cond(self, eqn: Any, values: list[Any]) -> list[Any]:
        which, *rest = values
        if isinstance(which, Unknown):
            return self.open_choice(eqn, values)
        branches = eqn.params["branches"]
        return self.enter(branches[min(max(int(which), 0), len(branches) - 1)], rest)

    def _while(self, eqn: Any, values: list[Any]) -> list[Any]:
        params = eqn.params
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        tested, constant, carry = values[:first], values[first:second], values[second:]
        while True:
            (more,) = self.enter(params["cond_jaxpr"], [*tested, *carry])
            if isinstance(more, Unknown):
                return self.open_choice(eqn, values)
            if not bool(more):
                return carry
            before, done = carry, self.done()
            carry = self.enter(params["body_jaxpr"], [*constant, *carry])
            if done == self.done() and all(map(_is_same, before, carry)):
                reason = (
                    "the rounds of a loop are all alike, so that it ends only if somebody else changes what it reads"
                )
                raise Undecided(reason, self.place(eqn), "wait for a semaphore instead of looking at it in a loop")

    def done(self) -> int:
        """How much has been done that a later operation may notice."""
        return 0

    def _scan(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Rounds in order."""
        params = eqn.params
        first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
        constant, carry, stacked = values[:first], values[first:second], values[second:]
        length = int(params["length"])
        is_plain = not eqn.effects and not any(isinstance(value, Reference) for value in values)
        if is_plain and (length > 4096 or not length):
            return outcomes(eqn, values)
        rounds: list[list[Any]] = []
        for turn in range(length):
            index = length - 1 - turn if params["reverse"] else turn
            slices = [
                Part(value, index) if isinstance(value, Unknown) else known(np.asarray(value)[index])
                for value in stacked
            ]
            self.path.append(_copy(turn, length, int(params["unroll"])))
            results = self.enter(params["jaxpr"], [*constant, *carry, *slices])
            self.path.pop()
            carry = results[: params["num_carry"]]
            rounds.append(results[params["num_carry"] :])
        if params["reverse"]:
            rounds.reverse()
        return [*carry, *(Stacked(parts) for parts in zip(*rounds, strict=True))]


def _copy(turn: int, length: int, unroll: int) -> object:
    """Which copy of its body a round of an unrolled loop runs: what is left over has copies of its own."""
    return turn % unroll if turn < length // unroll * unroll else -turn


def inner_jaxpr(params: Mapping[str, Any]) -> Any:
    """What an operation that only calls something calls."""
    return next((params[key] for key in _JAXPRS if key in params), None)


def _is_same(left: Any, right: Any) -> bool:
    return left is right or (type(left) in (int, bool, float) and type(right) is type(left) and left == right)


def opened(closed: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and its constants."""
    inner = getattr(closed, "jaxpr", None)
    return (inner, closed.consts) if hasattr(inner, "eqns") else (closed, ())


def _known(value: Any) -> Any:
    """A constant: small ones are looked at."""
    if isinstance(value, Reference | Unknown):
        return value
    if isinstance(value, bool | int | float | np.generic):
        return known(np.asarray(value)) if not isinstance(value, bool) else value
    if getattr(value, "size", 1 << 30) > 4096:
        return Constant(value)
    try:
        return known(np.asarray(value))
    except (TypeError, ValueError, RuntimeError):
        return UNKNOWN
