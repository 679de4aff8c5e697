"""Scalars are evaluated as jax evaluates them; what differs would send the walk astray."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ringsched.auditing.scalars import UNKNOWN, Unknown, evaluate
from ringsched.auditing.walk import Walker

EDGES = [0, 1, 2, 3, 5, 7, 31, 32, 100, 2**31 - 1, -1, -2, -3, -7, -(2**31)]
FUNCTIONS = {
    "add": lax.add,
    "sub": lax.sub,
    "mul": lax.mul,
    "div": lax.div,
    "rem": lax.rem,
    "max": lax.max,
    "min": lax.min,
    "eq": lax.eq,
    "ne": lax.ne,
    "lt": lax.lt,
    "le": lax.le,
    "gt": lax.gt,
    "ge": lax.ge,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
    "xor": lax.bitwise_xor,
    "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical,
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: x % y,
    "not": lambda x, y: ~x,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: lax.abs(x),
    "sign": lambda x, y: lax.sign(x),
    "clamp": lambda x, y: lax.clamp(x - x - 3, x, x - x + 3),
    "square": lambda x, y: x * x,
    "power": lambda x, y: x**3,
    "select": lambda x, y: jnp.where(x < y, x, y),
    "truth": lambda x, y: lax.bitwise_not(x < y) | (x == y),
    "narrow": lambda x, y: x.astype(jnp.int8).astype(jnp.int32) + y.astype(jnp.uint8).astype(jnp.int32),
    "unsigned": lambda x, y: (x.astype(jnp.uint32) - y.astype(jnp.uint32)).astype(jnp.int32),
    "float": lambda x, y: (x.astype(jnp.float32) * 0.5).astype(jnp.int32),
    "table": lambda x, y: lax.dynamic_index_in_dim(jnp.array([4, 8, 15, 16, 23, 42]), x, keepdims=False),
    "sum": lambda x, y: jnp.sum(jnp.arange(4) * x + y),
    "all": lambda x, y: jnp.all(jnp.arange(3) < x),
    "bits": lambda x, y: lax.reduce_and(jnp.array([12, 6, 4]) & x, axes=(0,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_jax_does(name: str) -> None:
    pairs = [(a, b) for a in EDGES for b in EDGES]
    compiled = jax.jit(FUNCTIONS[name])
    closed = jax.make_jaxpr(FUNCTIONS[name])(jnp.int32(1), jnp.int32(1))
    decided = 0
    for a, b in random.Random(name).sample(pairs, 60):
        (found,) = Walker({}, {}).run(closed.jaxpr, closed.consts, [a, b])
        if isinstance(found, Unknown):
            continue
        decided += 1
        wanted = np.asarray(compiled(jnp.int32(a), jnp.int32(b)))
        assert found == wanted, (a, b)
        assert type(found) is (bool if wanted.dtype == bool else int)
    assert decided >= 10


def test_unknown_stays_unknown() -> None:
    i32 = np.dtype(np.int32)
    assert evaluate("add", [1, UNKNOWN], {}, [i32, i32], i32, ()) is UNKNOWN
    assert evaluate("no_such_operation", [1], {}, [i32], i32, ()) is UNKNOWN
    assert evaluate("div", [1, 0], {}, [i32, i32], i32, ()) is UNKNOWN
    flag = np.dtype(bool)
    assert evaluate("and", [False, UNKNOWN], {}, [flag, flag], flag, ()) is False
    assert evaluate("and", [True, UNKNOWN], {}, [flag, flag], flag, ()) is UNKNOWN
    assert evaluate("or", [UNKNOWN, True], {}, [flag, flag], flag, ()) is True
