"""Functions of JAX and numpy that are given a typed value say so in our shape; operators beside plain arrays work."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import assert_close

X = np.arange(1, 9, dtype=np.float32).reshape(2, 4)


@pytest.fixture(autouse=True)
def on_a_mesh() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))


@pytest.mark.parametrize("mode", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x: jnp.add(x, 1), "`jax.numpy.add`"),
        (lambda x: jnp.add(1, x), "`jax.numpy.add`"),
        (lambda x: -jnp.sin(x), "`jax.numpy.sin`"),
        (lambda x: jnp.einsum("ij->i", x), "`jax.numpy.einsum`"),
        (lambda x: jnp.where(True, x, 0.0), "`jax.numpy.where`"),
        (lambda x: jnp.stack([x, x]), "`jax.numpy.stack`"),
        (lambda x: -jax.nn.relu(x), "`jax.nn.relu`"),
        (lambda x: -lax.sin(x), "sin`"),
        (lambda x: lax.dynamic_slice(x, (0, 0), (1, 1)), "`jax.lax.dynamic_slice`"),
        (lambda x: np.add(x, 1), "numpy"),
        (lambda x: -np.sin(x), "numpy"),
        (lambda x: np.multiply(x, x), "numpy"),
    ],
)
def test_a_function_of_arrays_says_that_it_takes_no_typed_value(
    call: Callable[[Any], Any], named: str, mode: Callable[..., Any]
) -> None:
    with pytest.raises(sh.ShardingTypeError) as error:
        mode(call)(sh.array(X, "[2,4@x]"))
    what, where = error.value.what, error.value.where
    assert what.startswith("a typed value, f32[2,4@x], was given to ")
    assert named in what
    assert where.startswith("test_foreign.py:")
    assert "refuse" not in where


@pytest.mark.parametrize("call", [lambda x: np.concatenate([x, x]), np.linalg.norm, lambda x: np.allclose(x, x)])
def test_numpy_reads_a_value_where_it_is_and_is_refused_where_it_is_traced(call: Callable[[Any], Any]) -> None:
    x = sh.array(X, "[2,4@x]")
    np.testing.assert_array_equal(call(x), call(X))
    with pytest.raises(sh.ShardingTypeError, match="was given to a function of numpy") as error:
        jax.jit(lambda x: np.asarray(call(x)))(x)
    assert error.value.where.startswith("test_foreign.py:")


@pytest.mark.parametrize("mode", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("op", ["sub", "pow", "matmul", "lt", "eq"])
def test_operators_of_plain_arrays_and_numbers_leave_the_operation_to_the_typed_value(op: str, mode: Any) -> None:
    apply = getattr(operator, op)
    other = X.T if op == "matmul" else X[:, ::-1].copy()
    x = sh.array(X, "[2,4]")
    plain = [other, jax.device_put(other)]
    if op != "matmul":
        plain.append(np.float32(2))
    for a in plain:
        found = mode(lambda x, a=a: apply(a, x))(x)
        assert isinstance(found, sh.Array)
        assert_close(host(found), apply(np.asarray(a), X))


def test_a_traced_plain_array_on_the_left_is_told_what_to_write() -> None:
    with pytest.raises(sh.ShardingTypeError, match="an operator of a traced plain array") as error:
        jax.jit(lambda x, a: a * x)(sh.array(X, "[2,4]"), X)
    assert error.value.hints[0] == "write the typed one first: x * a, not a * x"
    assert error.value.where.startswith("test_foreign.py:")
