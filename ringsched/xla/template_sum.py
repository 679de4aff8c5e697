"""The fixed part of a module whose result is the same at all ranks and has the type that says so."""

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir


def _vary(x, axes):
    return lax.pcast(x, axes, to="varying")


# ==== marker ====
# The type of a sum.


def _typed_sum(function, term, axes, *operands):
    """function(*operands), with the type of what is the same at all ranks.

    It is the sum of what `term` makes of the operands at each rank, and its gradient that
    of `lax.psum`: the cotangent has that type, too, and needs no sum of its own.
    """
    apply = jax.custom_vjp(lambda *them: _same.bind(function(*them), axes=axes))

    def transposed(operands, ct):
        return jax.vjp(term, *operands)[1](_vary(ct, axes))

    apply.defvjp(lambda *them: (apply(*them), them), transposed)
    return apply(*operands)


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
