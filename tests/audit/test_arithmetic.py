"""What the audit computes is what jax computes, where that is exact."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ringsched.auditing.arithmetic import Untold, carrier, run


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 8, (rows, columns)).astype(np.float32)


X, Y = matrix(8, 16), matrix(16, 4, 1)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "matmul": (lambda x, y: x @ y, (X, Y)),
    "batched matmul": (
        lambda x, y: jnp.einsum("bij,bjk->bik", x, y),
        (X.reshape(2, 4, 16), matrix(32, 5).reshape(2, 16, 5)),
    ),
    "matmul of integers": (
        lambda x, y: lax.dot(x.astype(jnp.int8), y.astype(jnp.int8), preferred_element_type=jnp.int32),
        (X, Y),
    ),
    "transposed matmul": (lambda x, y: lax.dot_general(x, y, (((0,), (1,)), ((), ()))), (X, matrix(3, 8))),
    "gelu": (jax.nn.gelu, (X,)),
    "exact gelu": (lambda x: jax.nn.gelu(x, approximate=False), (X,)),
    "silu": (jax.nn.silu, (X,)),
    "relu": (jax.nn.relu, (X,)),
    "softmax": (jax.nn.softmax, (X,)),
    "layer norm": (lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1), (X,)),
    "where": (lambda x: jnp.where(x > 0, x, 2 * x), (X,)),
    "concatenate and slice": (lambda x: jnp.concatenate([x, x], 1)[:, 3:20:2], (X,)),
    "roll and flip": (lambda x: jnp.roll(x[::-1], 3, 1), (X,)),
    "pad": (lambda x: jnp.pad(x, ((0, 2), (1, 0)), constant_values=7), (X,)),
    "update": (lambda x: lax.dynamic_update_slice(x, x[:2, :2], (3, 5)), (X,)),
    "update past the end": (lambda x: lax.dynamic_update_slice(x, x[:2, :2], (7, 15)), (X,)),
    "iota": (lambda x: x + lax.broadcasted_iota(jnp.float32, x.shape, 1), (X,)),
    "to integers": (lambda x: (x / 3).astype(jnp.int32), (X,)),
    "loop": (lambda x: lax.fori_loop(0, 5, lambda k, a: a + k * x, x), (X,)),
    "loop on data": (lambda x: lax.while_loop(lambda a: jnp.sum(a) < 1000, lambda a: a + 1, x), (X,)),
    "scan": (lambda x: lax.scan(lambda a, row: (a + row, a * row), x[0], x), (X,)),
    "scan backwards": (lambda x: lax.scan(lambda a, row: (a + row, a), x[0], x, reverse=True), (X,)),
    "choice on data": (lambda x: lax.cond(x[0, 0] > 0, lambda: x, lambda: -x), (X,)),
    "cumulated": (lambda x: jnp.cumsum(x, 0), (X,)),
    "sorted": (lambda x: jnp.sort(x, 1), (X,)),
    "bits and back": (
        lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x.astype(jnp.float16), jnp.uint16), jnp.float16),
        (X,),
    ),
    "split": (lambda x: jnp.split(x, 4, 1)[2], (X,)),
    "remainder": (lambda x: x.astype(jnp.int32) % 3, (X,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_jax_does(name: str) -> None:
    function, operands = FUNCTIONS[name]
    closed = jax.make_jaxpr(function)(*operands)
    found = run(closed.jaxpr, closed.consts, operands)
    wanted = jax.tree.leaves(function(*operands))
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert got.dtype == carrier(want.dtype)
        np.testing.assert_allclose(got, np.asarray(want), rtol=2e-5, atol=2e-5)


def test_narrow_floats_are_not_rounded() -> None:
    """1000 times 1001 has more digits than bfloat16."""
    closed = jax.make_jaxpr(lambda x: (x * x + x).astype(jnp.bfloat16))(jnp.ones((1,), jnp.bfloat16))
    assert run(closed.jaxpr, closed.consts, [np.array([1000.0])])[0] == 1001000


def test_random_bits_are_not_guessed() -> None:
    closed = jax.make_jaxpr(lambda key: jax.random.uniform(key, (4,)))(jax.random.key(0))
    with pytest.raises(Untold):
        run(closed.jaxpr, closed.consts, [np.zeros(2, np.uint32)])
