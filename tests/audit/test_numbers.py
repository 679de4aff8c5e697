"""What is computed beside values: which elements hang on memory that nothing has written, and how far rounding goes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ringsched.auditing.arithmetic import Endless, Setting, _evaluate, run
from ringsched.auditing.bits import repacked
from ringsched.auditing.numbers import Numbers, Untold, as_array, numbers, taint_of
from ringsched.auditing.rounding import RUNS, Rounding, close

X = np.arange(1.0, 9.0).reshape(2, 4)
HOLE = np.zeros((2, 4), np.uint16)
HOLE[0, 1] = 7  # the element that nothing has written


def taint(function: Callable[..., Any], x: np.ndarray = X, hole: np.ndarray = HOLE, dtype: Any = "float32") -> Any:
    closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(x.shape, dtype))
    consts = [Numbers(as_array(c, v.aval.dtype)) for c, v in zip(closed.consts, closed.jaxpr.constvars, strict=True)]
    (found,) = _evaluate(closed.jaxpr, [*consts, numbers(as_array(x, dtype), hole)], Setting())
    return taint_of(found)


ONE = HOLE
ROW = np.array([[7, 7, 7, 7], [0, 0, 0, 0]])
CASES: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "added": (lambda x: x + 1, ONE),
    "times zero, which may be not-a-number": (lambda x: x * 0, ONE),
    "moved": (lambda x: jnp.flip(x, 1), np.flip(ONE, 1)),
    "turned": (lambda x: x.T, ONE.T),
    "cut away": (lambda x: x[1:], np.zeros((1, 4))),
    "summed over a row": (lambda x: x.sum(1), np.array([7, 0])),
    "the largest of a column": (lambda x: x.max(0), np.array([0, 7, 0, 0])),
    "summed up": (lambda x: jnp.cumsum(x, 1), np.array([[0, 7, 7, 7], [0, 0, 0, 0]])),
    "multiplied": (lambda x: x @ jnp.ones((4, 4)), ROW),
    "multiplied from the left": (lambda x: jnp.ones((3, 2)) @ x, np.array([[0, 7, 0, 0]] * 3)),
    "written over": (lambda x: lax.dynamic_update_slice(x, jnp.zeros((1, 4)), (0, 0)), np.zeros((2, 4))),
    "not chosen": (lambda x: jnp.where(jnp.arange(4) == 1, 0.0, x), np.zeros((2, 4))),
    "chosen": (lambda x: jnp.where(jnp.arange(4) == 1, x, 0.0), ONE),
    "decides": (lambda x: jnp.where(x > 0, 1.0, 2.0), ONE),
    "decides a branch": (lambda x: lax.cond(x[0, 1] > 0, lambda: x[1], lambda: -x[1]), np.full(4, 7)),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda k, a: a + jnp.roll(a, 1, 1), x), ROW),
    "in a scan": (lambda x: lax.scan(lambda a, row: (a + row, a), x[1], x)[0], np.array([0, 7, 0, 0])),
    "through bits": (lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.int32), jnp.float32), ONE),
    "converted": (lambda x: x.astype(jnp.int32).astype(jnp.float32), ONE),
}


@pytest.mark.parametrize("name", CASES)
def test_taint(name: str) -> None:
    function, expected = CASES[name]
    np.testing.assert_array_equal(taint(function), expected)


def test_what_settles_an_and_or_a_product_of_integers() -> None:
    flags = np.ones((2, 4), bool)
    np.testing.assert_array_equal(taint(lambda x: x & (jnp.arange(4) > 1), flags, dtype="bool"), 0 * HOLE)
    np.testing.assert_array_equal(taint(lambda x: x & (jnp.arange(4) > 0), flags, dtype="bool"), HOLE)
    np.testing.assert_array_equal(taint(lambda x: x | (jnp.arange(4) > 0), flags, dtype="bool"), 0 * HOLE)
    np.testing.assert_array_equal(taint(lambda x: x * 0, X.astype(np.int32), dtype="int32"), 0 * HOLE)


@pytest.mark.parametrize("function", [lambda x: jnp.sort(x, 1), lambda x: x[jnp.array([1, 0])]])
def test_an_operation_of_which_it_is_not_known_is_not_guessed(function: Callable[..., Any]) -> None:
    with pytest.raises(Untold, match="memory that nothing has written"):
        taint(function)


def test_how_often_a_loop_runs() -> None:
    with pytest.raises(Untold, match="how often a loop runs") as found:
        taint(lambda x: lax.while_loop(lambda a: a[0, 1] < 10, lambda a: a + 1, x))
    assert found.value.may_hang


def test_a_loop_that_repeats_itself_never_ends() -> None:
    endless = jax.make_jaxpr(lambda x: lax.while_loop(lambda a: a[0] > 0, lambda a: a * 1, x))(jnp.ones(3))
    with pytest.raises(Endless):
        run(endless.jaxpr, endless.consts, [np.ones(3)])
    ends = jax.make_jaxpr(lambda x: lax.while_loop(lambda a: a[0] > 0, lambda a: a - 1, x))(jnp.ones(3))
    assert run(ends.jaxpr, ends.consts, [np.ones(3)])[0][0] == 0


def test_elements_of_another_width_lie_as_in_a_reference() -> None:
    """As `ref.bitcast` of JAX has them: two rows of 16 bits are one of 32."""
    from jax._src.state.utils import bitcast

    narrow = jnp.arange(16 * 4, dtype=jnp.bfloat16).reshape(16, 4)
    wide = np.asarray(bitcast(narrow, jnp.int32))
    found = repacked(Numbers(np.asarray(narrow, np.float64)), jnp.bfloat16, jnp.int32)
    np.testing.assert_array_equal(found.values, wide)
    back = repacked(found, jnp.int32, jnp.bfloat16)
    np.testing.assert_array_equal(back.values, np.asarray(narrow, np.float64))


def test_the_taint_of_packed_elements() -> None:
    hole = np.zeros((4, 3), np.uint16)
    hole[1, 2] = 5
    found = repacked(Numbers(np.zeros((4, 3)), hole), jnp.bfloat16, jnp.int32)
    np.testing.assert_array_equal(taint_of(found), [[0, 0, 5], [0, 0, 0]])
    back = repacked(found, jnp.int32, jnp.bfloat16)
    np.testing.assert_array_equal(taint_of(back), [[0, 0, 5], [0, 0, 5], [0, 0, 0], [0, 0, 0]])


def test_bits_that_are_not_known() -> None:
    with pytest.raises(Untold, match="not rounded"):
        repacked(Numbers(np.full((2, 2), 1 / 3)), jnp.bfloat16, jnp.int32)


@pytest.mark.parametrize(("value", "held"), [(7, 7), (8, -8), (-9, 7), (16, 0)])
def test_integers_of_four_bits_wrap(value: int, held: int) -> None:
    assert as_array(np.array([value]), jnp.int4)[0] == held


def test_complex_numbers_are_not_told() -> None:
    with pytest.raises(Untold, match="complex64"):
        as_array(np.zeros(2), jnp.complex64)


# Two ways to compute one thing, on operands where they round differently; and one that is something else.
VARIED = np.array([2.0**-20, 1.0, -1.0, 0.5, 2.0**20, -3.0, 0.0, 100.0])
SAME: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "in another order": (lambda x: (x + 0.1).sum(), lambda x: (x[::-1] + 0.1).sum()),
    "cancelled": (lambda x: (x + 0.1) - 0.1, lambda x: x),
    "by exp2": (lambda x: jnp.exp(-jnp.abs(x)), lambda x: jnp.exp2(-jnp.abs(x) * 1.4426950408889634)),
    "mean": (lambda x: x.mean() - x, lambda x: x.sum() / 8 - x),
    "thirds": (lambda x: x / 3 * 3, lambda x: x),
}
OTHER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "off by one": (lambda x: jnp.exp(-jnp.abs(x)) - 1, lambda x: jnp.exp(-jnp.abs(x))),
    "a small term is lost beside a large one": (lambda x: jnp.where(x < 1e-3, 0.0, x), lambda x: x),
    "cut off": (lambda x: jnp.clip(x, -100, 100), lambda x: x),
    "to integers": (lambda x: x.astype(jnp.int32).astype(jnp.float32), lambda x: x),
    "a little more": (lambda x: x * 1.0001, lambda x: x),
}


def agree(left: Callable[..., Any], right: Callable[..., Any]) -> np.ndarray:
    def values(function: Callable[..., Any], rounding: Rounding | None) -> np.ndarray:
        closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(VARIED.shape, "float32"))
        return run(closed.jaxpr, closed.consts, [VARIED], rounding)[0]

    lefts = [values(left, Rounding(2 * seed)) for seed in range(RUNS)]
    rights = [values(right, Rounding(2 * seed + 1)) for seed in range(RUNS)]
    return close(values(left, None), values(right, None), lefts, rights)


@pytest.mark.parametrize("name", SAME)
def test_the_same_but_for_rounding(name: str) -> None:
    assert agree(*SAME[name]).all()


@pytest.mark.parametrize("name", OTHER)
def test_something_else(name: str) -> None:
    assert not agree(*OTHER[name]).all()
