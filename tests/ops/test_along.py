"""Ops along whole dims (extremes, running sums, sorting, Fourier, matrices, softmax) against JAX on one device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import host
from tests.tolerance import assert_close

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def matrices(*batch: int, n: int = 3) -> Any:
    """Well conditioned, symmetric and positive."""
    a = rng.normal(size=(*batch, n, n))
    return (a @ np.swapaxes(a, -1, -2) + n * np.eye(n)).astype(np.float32)


def test_a_solution_is_linear_in_the_right_hand_side() -> None:
    a, b = matrices(), arr(3, 4)
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        x = sh.linalg.solve(sh.array(a, "[3,3]"), sh.array(b, "[3,4@x]{U:y}"))
        assert str(x.type) == "f32[3,4@x]{U:y}"
        assert_close(host(x), np.linalg.solve(a, b))


@pytest.mark.nightly
def test_functions_of_matrices_give_what_those_of_jax_give() -> None:
    a = matrices(2)
    for name in ("qr", "svd", "eigh", "slogdet"):
        wanted = getattr(jnp.linalg, name)(a)
        with sh.use_mesh(sh.make_mesh({"x": 2})):
            found = getattr(sh.linalg, name)(sh.array(a, "[2@x,3,3]"))
        assert type(found) is type(wanted)
        assert [v.shape for v in found] == [v.shape for v in wanted]
        assert {v.type.dims[0].axes for v in found} == {("x",)}


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda s, u: sh.max(s), "`max` reduces dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.max(u, 1), "`max` is nonlinear in the operand, which is unreduced on mesh axis `x`"),
        (lambda s, u: sh.max(s, 1, where=s > 0), "`max` does not take these arguments"),
                (lambda s, u: sh.softmax(s, 0), "`softmax` reduces dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.softmax(u), "`softmax` is nonlinear in the operand, which is unreduced on mesh axis `x`"),
        (lambda s, u: sh.cumsum(s, 0), "`cumsum` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.sort(s, 0), "`sort` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.cumsum(s, 2), "`cumsum` does not take `axis=2`"),
        (lambda s, u: sh.top_k(s, 9), "`top_k` does not take these arguments"),
        (lambda s, u: sh.fft.fft(s, axis=0), "`fft.fft` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.linalg.inv(s), "`linalg.inv` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.linalg.qr(sh.max(s, 1)), "`qr` does not take these arguments"),
        (lambda s, u: sh.linalg.eigh(u, full=1), "`eigh` has no parameter `full`"),  # type: ignore[call-arg]
    ],
)  # fmt: skip
def test_an_op_along_dims_that_does_not_type_says_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        s, u = sh.array(arr(4, 4), "[4@x,4]"), sh.array(arr(4, 4), "[4,4]{U:x}")
        with pytest.raises(sh.ShardingTypeError) as info:
            call(s, u)
    assert info.value.what == what
    assert "test_along.py" in info.value.where


def test_an_extreme_along_a_sharded_dim_offers_priced_fixes() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})), pytest.raises(sh.ShardingTypeError) as info:
        sh.max(sh.array(arr(4, 4), "[4@x,4@y]"))
    assert info.value.fixes[0].code == 'sh.max(..., out="[]{I:(x,y)}")'
    assert info.value.fixes[0].bytes_forward > 0 == info.value.fixes[0].bytes_backward


@pytest.mark.nightly  # each step of its loops is traced for each fix
def test_what_has_no_gradient_backward_has_fixes_with_the_price_forward() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:  # it bisects in a loop
        sh.linalg.eigh_tridiagonal(sh.array(arr(4), "[4@x]"), sh.array(arr(3), "[3]"), eigvals_only=True)
    (asking,) = [fix for fix in info.value.fixes if fix.code == 'sh.linalg.eigh_tridiagonal(..., out="[4]")']
    assert asking.bytes_forward > 0 == asking.bytes_backward


@pytest.mark.parametrize("name", ["max", "ptp", "median", "nanmedian", "argmin", "trapezoid"])
def test_what_needs_elements_is_refused_where_there_are_none(name: str) -> None:
    try:
        jax.eval_shape(lambda a: getattr(jnp, name)(a, axis=0), jnp.zeros((0, 4)))
        refused: AbstractContextManager[object] = nullcontext()  # JAX 0.12 gives NaN for the `nanmedian` of no elements
    except (TypeError, ValueError, IndexError):
        refused = pytest.raises(sh.ShardingTypeError, match=f"`{name}` does not take")
    with sh.use_mesh(sh.abstract_mesh({"x": 2})), refused:
        given = jax.eval_shape(lambda a: getattr(sh, name)(a, axis=0), sh.ShType.parse("f32[0, 4@x]"))
        assert given.shape == (4,)
