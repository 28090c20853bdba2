"""What JAX has no derivative of is refused where it is differentiated; positions that are known to differ have one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, check, host
from tests.tolerance import assert_close

X = np.linspace(0.5, 2, 24, dtype=np.float32).reshape(4, 6)
ROWS = np.linspace(0.25, 3, 18, dtype=np.float32).reshape(3, 6)
TWICE, ONCE = np.array([2, 0, 2]), np.array([3, 0, 2])
TIES = np.stack([X[2], X[0] + 1, X[2]])


@pytest.mark.parametrize("mode", [lambda f: f, sh.jit, jax.jit], ids=["eager", "sh.jit", "jax.jit"])
@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (lambda x: x.at[TWICE].multiply(x[:3]), "`at_multiply"),
        (lambda x: x.at[TWICE].divide(x[:3]), "`at_divide"),
        (lambda x: x.at[jnp.asarray(ONCE)].power(x[:3]), "`at_power"),
        (lambda x: sh.segment_prod(x, np.array([0, 1, 1, 0]), 2), "`segment_prod"),
        (lambda x: sh.betainc(x, x, x / 4), "`betainc`"),
    ],
)
def test_what_has_no_derivative_says_so_where_it_is_differentiated(
    fn: Callable[[Any], Any], named: str, mode: Callable[..., Any]
) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    with pytest.raises(sh.ShardingTypeError) as error:
        mode(sh.grad(lambda x: sh.sum(fn(x))))(sh.array(X, "[4,6@x]"))
    assert error.value.what.startswith(named)
    assert error.value.what.endswith(" cannot be differentiated")
    assert error.value.where.startswith("test_no_derivative.py:")


def test_known_positions_that_differ_and_extremes_have_gradients() -> None:
    changes: list[Callable[[Any, Any, Any], Any]] = [
        lambda m, x, rows: x.at[ONCE].multiply(rows, unique_indices=m is not sh),
        lambda m, x, rows: x.at[ONCE].divide(rows, unique_indices=m is not sh),
        lambda m, x, rows: x.at[ONCE].power(rows, unique_indices=m is not sh),
        lambda m, x, rows: x.at[TWICE].multiply(1.5) + x.at[ONCE].set(rows),
        lambda m, x, rows: x.at[TWICE].divide(2.0).at[TWICE].power(2) + x.at[ONCE].set(rows),
        lambda m, x, rows: x.at[TWICE].max(rows),
        lambda m, x, rows: x.at[TWICE].min(rows),
    ]
    check(
        sh.make_mesh({"x": 2}),
        [
            Case(f, (X, rows), types)
            for f in changes
            for rows, types in ((ROWS, ("[4,6@x]", "[3,6@x]")), (TIES, ("[4@x,6]", "[3,6]")))
        ],
    )


def test_arrays_of_constants_are_made_in_traced_code() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    x = sh.array(X, "[4,6]")
    found = sh.jit(lambda x: (x[sh.tril_indices_from(x)], x * sh.hanning(6)))(x)
    np.testing.assert_array_equal(host(found[0]), X[np.tril_indices(4, 0, 6)])
    assert_close(host(found[1]), X * np.hanning(6))
