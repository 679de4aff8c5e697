"""The fixed part of a module whose result is the same at all ranks and has the type that says so."""

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir


def _sum(x, axes):
    return lax.psum(x, axes)


def _vary(x, axes):
    return lax.pcast(x, axes, to="varying")


# ==== marker ====
# The type of a sum.


def _typed_sum(x, axes):
    """`_sum` with the type of what is the same at all ranks, as that of `lax.psum`."""
    apply = jax.custom_vjp(lambda x: _same.bind(_sum(x, axes), axes=axes))
    # The cotangent has that type, too: it needs no sum of its own.
    apply.defvjp(lambda x: (apply(x), None), lambda _, ct: (_vary(ct, axes),))
    return apply(x)


def _same_type(x, *, axes):
    types = x.mat.update(varying=x.mat.varying - set(axes))
    return x.update(manual_axis_type=types)


def _same_batch(operands, dimensions, *, axes):
    return _same.bind(*operands, axes=axes), dimensions[0]


# Does nothing: jax has no cast to this type, which the schedule is proven to deserve.
_same = Primitive("same_at_all_ranks")
_same.def_abstract_eval(_same_type)
mlir.register_lowering(_same, lambda _, x, *, axes: [x])
batching.primitive_batchers[_same] = _same_batch
