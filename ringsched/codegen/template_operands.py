"""What is the same in every generated module that multiplies, with or without a kernel: factors and epilogues.

Everything after the marker is copied into the module.
"""

import copy

import jax
import jax.numpy as jnp
from jax import lax

from ringsched.codegen.template_call import _types

# ==== marker ====
# What is multiplied, and what is done to sums. What follows is the same in every module
# that multiplies.


def _dot(x, w, transposed=False):
    """x @ w, or x @ w.T, summed up in 32 bits; f32 is not cut short to bf16."""
    wide = jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else jnp.int32
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    dimensions = (((1,), (1 if transposed else 0,)), ((), ()))
    options = {"precision": precision, "preferred_element_type": wide}
    return lax.dot_general(x, w, dimensions, **options)


def _wide(dtype):
    """In which sums are added up."""
    return jnp.dtype("float32" if jnp.issubdtype(dtype, jnp.floating) else "int32")


def _pushed(function, primals, tangents):
    """The tangents of a function's results; None: an operand has none."""
    given = [i for i, tangent in enumerate(tangents) if tangent is not None]

    def of_some(*some):
        operands = list(primals)
        for i, operand in zip(given, some, strict=True):
            operands[i] = operand
        return function(*operands)

    some = tuple(primals[i] for i in given), tuple(tangents[i] for i in given)
    return jax.jvp(of_some, *some)[1]


def _joined(parts, axis):
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=axis)


class _Epilogue:
    """What is done to complete sums in 32 bits before they are stored.

    y ↦ function(y * scale + bias) + residual. Where there is a gate, y has its columns
    and then those of the weight: function(gate) * weight + residual.
    scale, bias: [1, cols], [2, cols] with a gate; residual: like the result.
    """

    def __init__(self, function=None, gated=False):
        self.function, self.gated = function, gated
        self.scale = self.bias = self.residual = None

    def of(self, **operands):
        """The same with other operands."""
        other = copy.copy(self)
        vars(other).update(operands)
        return other

    def __call__(self, y):
        if self.scale is not None:
            y = y.astype(jnp.float32) * self._row(self.scale)
        if self.bias is not None:
            y = y.astype(jnp.float32) + self._row(self.bias)
        residual = None if self.residual is None else self.residual[...]
        return _activated(self.function, self.gated, y, residual)

    def _row(self, operand):
        """One row for all columns of y."""
        return _joined([operand[i : i + 1] for i in range(operand.shape[0])], 1)


def _activated(function, gated, y, residual=None):
    """The last part of an epilogue, on values."""
    if gated:
        half = y.shape[-1] // 2
        gate, y = y[..., :half], y[..., half:]
        y = (gate if function is None else function(gate)) * y
    elif function is not None:
        y = function(y)
    return y if residual is None else y + residual.astype(jnp.float32)


def _shape_of(w, options):
    """Rows and columns of a weight, the way it is multiplied."""
    return w.shape[::-1] if options["transposed"] else w.shape


def _alike(call, operands, same=()):
    """Operands with the type that differs wherever that of one of them does.

    jax sums up their cotangents again. same: as well, but not over the ranks' axes.
    """
    axes = {axis for it in (*operands, *same) for axis in _types(it).varying}
    others = tuple(sorted(axes - set(call.axes)))
    operands = tuple(call.vary(it, (*call.axes, *others)) for it in operands)
    return operands, tuple(call.vary(it, others) for it in same)


_WIDE = jnp.dtype("float32")  # of sums in a gradient
_FACTORS = ("float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2")


def _check_factor(call, dtype, known):
    """Raises ValueError where a dtype is not multiplied, or not by this chip."""
    if call.tpu is not None and call.tpu.generation < 5:
        known = [name for name in known if jnp.dtype(name).itemsize > 1]
    if dtype.name not in known:
        chip = "" if call.tpu is None else f" on TPU {call.tpu.chip_version}"
        have = f"{', '.join(known)}{chip}, not {dtype}"
        raise ValueError(f"{call.name} multiplies {have}")


def _epilogue(name, epilogue):
    """The function that is applied to complete sums, in 32 bits."""
    known = {
        "gelu": jax.nn.gelu,
        "gelu_exact": lambda y: jax.nn.gelu(y, approximate=False),
        "silu": jax.nn.silu,
        "relu": jax.nn.relu,
    }
    if epilogue is None or callable(epilogue):
        return epilogue
    if epilogue not in known:
        have = f"{', '.join(known)} or a function"
        raise ValueError(f"{name} knows the epilogues {have}, not {epilogue!r}")
    return known[epilogue]
