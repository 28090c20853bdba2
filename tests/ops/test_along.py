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
from tests.end_to_end import Case, check, host, sampled, some
from tests.tolerance import assert_close

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def matrices(*batch: int, n: int = 3) -> Any:
    """Well conditioned, symmetric and positive."""
    a = rng.normal(size=(*batch, n, n))
    return (a @ np.swapaxes(a, -1, -2) + n * np.eye(n)).astype(np.float32)


Expression = tuple[Callable[..., Any], tuple[Any, ...]]

REDUCTIONS: dict[str, Expression] = {
    "max": (lambda m, a: m.max(a, 1), (arr(4, 8),)),
    "min": (lambda m, a: a.min(keepdims=True), (arr(4, 4),)),
    "max where": (lambda m, a: m.max(a, 0, where=a > 0, initial=-1.0), (arr(4, 8),)),
    "prod": (lambda m, a: m.prod(a, (0, -1)), (arr(2, 4, 2),)),
    "prod where": (lambda m, a: m.prod(a, 0, where=a > 0), (arr(4, 4),)),
    "any": (lambda m, a: m.any(a > 1, axis=1), (arr(4, 4),)),
    "all": (lambda m, a: (a > -1).all(0, keepdims=True), (arr(4, 4),)),
    "argmax": (lambda m, a: m.argmax(a, axis=0), (arr(4, 4),)),
    "argmin": (lambda m, a: a.argmin(), (arr(4, 4),)),
    "var": (lambda m, a: m.var(a, 1, ddof=1), (arr(4, 4),)),
    "std": (lambda m, a: a.std(0, keepdims=True), (arr(4, 4),)),
    "ptp": (lambda m, a: m.ptp(a, 1), (arr(4, 4),)),
    "median": (lambda m, a: m.median(a, 1), (arr(4, 4),)),
    "nanmax": (lambda m, a: m.nanmax(a, 1), (arr(4, 4),)),
    "logsumexp": (lambda m, a: m.logsumexp(a, 1, keepdims=True), (arr(4, 4),)),
    "count_nonzero": (lambda m, a: m.count_nonzero(a > 0, 0), (arr(4, 4),)),
    "nansum": (lambda m, a: m.nansum(m.log(a), 0), (arr(4, 4),)),
    "average": (lambda m, a, w: m.average(a, 0, weights=m.exp(w)), (arr(4, 4), arr(4, 4))),
}
RUNNING: dict[str, Expression] = {
    "cumsum": (lambda m, a: m.cumsum(a, 1), (arr(4, 4),)),
    "cumsum as one dim": (lambda m, a: a.cumsum(), (arr(4, 2),)),
    "cumprod": (lambda m, a: m.cumprod(a, 0), (arr(4, 4),)),
    "cummax": (lambda m, a: m.cummax(a, 1, reverse=True), (arr(4, 4),)),
    "cumlogsumexp": (lambda m, a: m.cumlogsumexp(a, 1), (arr(4, 4),)),
    "diff": (lambda m, a: m.diff(a, 2, axis=0), (arr(4, 4),)),
    "diff with an end": (lambda m, a: m.diff(a, prepend=0.0), (arr(4, 4),)),
    "sort": (lambda m, a: m.sort(a, 0, descending=True), (arr(4, 4),)),
    "argsort": (lambda m, a: m.argsort(a), (arr(4, 4),)),
    "sort as one dim": (lambda m, a: m.sort(a, None), (arr(4, 2),)),
    "top_k": (lambda m, a: m.top_k(a, 2)[0], (arr(4, 4),)),
    "top_k indices": (lambda m, a: m.top_k(a, 2)[1], (arr(4, 4),)),
    "softmax": (lambda m, a: m.softmax(a), (arr(4, 4),)),
    "softmax of two": (lambda m, a: m.softmax(a, (0, 1)), (arr(4, 2, 2),)),
    "softmax where": (lambda m, a, b: m.softmax(a, where=b > -0.5), (arr(4, 4), arr(4, 4))),
    "log_softmax": (lambda m, a: m.log_softmax(a, 0), (arr(4, 4),)),
    "standardize": (lambda m, a: m.standardize(a), (arr(4, 4),)),
}
FOURIER: dict[str, Expression] = {
    "fft": (lambda m, a: m.fft.fft(a, 6), (arr(4, 4),)),
    "ifft": (lambda m, a: m.fft.ifft(a, axis=0, norm="ortho"), (arr(4, 4),)),
    "rfft and back": (lambda m, a: m.fft.irfft(m.fft.rfft(a) * 2.0, 4), (arr(4, 4),)),
    "fft2": (lambda m, a: m.fft.fft2(a), (arr(4, 2, 2),)),
    "rfftn": (lambda m, a: m.fft.rfftn(a, axes=(0, 2)), (arr(2, 4, 4),)),
    "ifftn of sizes": (lambda m, a: m.fft.ifftn(a, (3,)), (arr(4, 4),)),
    "fftshift": (lambda m, a: m.fft.fftshift(a, 1), (arr(4, 4),)),
}
MATRICES: dict[str, Expression] = {
    "norm": (lambda m, a: m.linalg.norm(a, axis=1), (arr(4, 4),)),
    "norm of all": (lambda m, a: m.linalg.norm(a), (arr(4, 4),)),
    "norm of matrices": (lambda m, a: m.linalg.norm(a, "fro", (2, 0)), (arr(2, 4, 2),)),
    "vector_norm": (lambda m, a: m.linalg.vector_norm(a, axis=-1, ord=1), (arr(4, 4),)),
    "cholesky": (lambda m, a: m.linalg.cholesky(a), (matrices(4),)),
    "inv": (lambda m, a: m.linalg.inv(a), (matrices(4),)),
    "det": (lambda m, a: m.linalg.det(a), (matrices(4),)),
    "slogdet": (lambda m, a: m.linalg.slogdet(a)[1], (matrices(4),)),
    "qr": (lambda m, a: m.linalg.qr(a).R, (matrices(4),)),
    "svd": (lambda m, a: m.linalg.svd(a, full_matrices=False)[1], (matrices(4),)),
    "eigh": (lambda m, a: m.linalg.eigh(a).eigenvalues, (matrices(4),)),
    "matrix_power": (lambda m, a: m.linalg.matrix_power(a, 3), (matrices(2, n=4),)),
    "solve": (lambda m, a, b: m.linalg.solve(a, b), (matrices(4), arr(4, 3, 2))),
    "solve for one": (lambda m, a, b: m.linalg.solve(a, b), (matrices(), arr(3))),
    "solve for many": (lambda m, a, b: m.linalg.solve(a, b), (matrices(), arr(4, 3, 4))),
    "multi_dot": (lambda m, a, b, c: m.linalg.multi_dot([a, b, c]), (arr(4, 2), arr(2, 8), arr(8))),
}


#: By how much a solution can be further off than its matrix.
CONDITION = max(
    float(np.linalg.cond(x).max())
    for _, operands in MATRICES.values()
    for x in operands
    if x.ndim > 1 and x.shape[-1] == x.shape[-2]
)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("expressions", "growth"),
    [(REDUCTIONS, 1), (RUNNING, 1), (FOURIER, 1), (MATRICES, CONDITION)],
    ids=["reductions", "running", "Fourier", "matrices"],
)
def test_every_op_along_dims_that_types_is_right_forward_and_backward(
    expressions: dict[str, Expression], growth: float
) -> None:
    mesh = sh.make_mesh({"x": 2})
    cases = [
        case
        for seed, (name, (fn, operands)) in enumerate(expressions.items())
        for case in sampled(mesh, fn, *operands, id=name, count=some(1, 3), seed=seed, growth=growth)
    ]
    assert len(cases) > len(expressions) / 4
    check(mesh, cases)


def test_ops_along_dims_of_eager_values_on_two_axes_are_right() -> None:
    picked = [(REDUCTIONS, "max"), (RUNNING, "cumsum"), (RUNNING, "softmax"), (FOURIER, "fft"), (MATRICES, "cholesky")]
    mesh = sh.make_mesh({"x": 2, "y": 2})
    cases = [
        case
        for expressions, name in picked
        for case in sampled(mesh, expressions[name][0], *expressions[name][1], id=name, count=some(1, 3))
    ]
    check(mesh, cases, eager=True)


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_ops_along_dims_have_the_types_that_the_law_gives(policy: Any) -> None:
    def typed(expressions: dict[str, Expression], name: str, given: str, out: str) -> Case:
        fn, operands = expressions[name]
        return Case(fn, operands[:1], (given,), out=out, id=name)

    with sh.policy(policy):
        check(
            sh.make_mesh({"x": 2, "y": 2}),
            [
                typed(REDUCTIONS, "max", "[4@(x,y),8]", "[4@(x,y)]"),
                typed(REDUCTIONS, "argmax", "[4,4@x]{I:y}", "[4@x]{R:y}"),
                typed(REDUCTIONS, "count_nonzero", "[4@x,4@y]", "[4@y]{U:x}"),
                typed(REDUCTIONS, "nansum", "[4@x,4@y]", "[4@y]{U:x}"),
                typed(RUNNING, "cumsum", "[4@x,4]{U:y}", "[4@x,4]{U:y}"),
                typed(RUNNING, "diff", "[4,4@x]{U:y}", "[2,4@x]{U:y}"),
                typed(FOURIER, "fft", "[4@x,4]{U:y}", "[4@x,6]{U:y}"),
                typed(MATRICES, "cholesky", "[4@(x,y),3,3]", "[4@(x,y),3,3]"),
            ],
        )


def test_a_solution_is_linear_in_the_right_hand_side() -> None:
    a, b = matrices(), arr(3, 4)
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        x = sh.linalg.solve(sh.array(a, "[3,3]"), sh.array(b, "[3,4@x]{U:y}"))
        assert str(x.type) == "f32[3,4@x]{U:y}"
        assert_close(host(x), np.linalg.solve(a, b))


def test_functions_of_matrices_give_what_those_of_jax_give() -> None:
    a = matrices(2)
    for name in ("qr", "svd", "eigh", "slogdet"):
        wanted = getattr(jnp.linalg, name)(a)
        with sh.use_mesh(sh.make_mesh({"x": 2})):
            found = getattr(sh.linalg, name)(sh.array(a, "[2@x,3,3]"))
        assert type(found) is type(wanted)
        assert [v.shape for v in found] == [v.shape for v in wanted]
        assert {v.type.dims[0].axes for v in found} == {("x",)}


def test_ops_along_dims_map_over_another() -> None:
    a = arr(3, 4, 4)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(a, "[3,4@x,4]")
        for typed, plain in (
            (lambda r: sh.cumsum(r, 1), lambda r: np.cumsum(r, 1)),
            (sh.softmax, lambda r: np.asarray(jax.nn.softmax(r))),
            (lambda r: sh.max(r, -1), lambda r: r.max(-1)),
            (lambda r: sh.sort(r, 1), lambda r: np.sort(r, 1)),
        ):
            assert_close(host(sh.vmap(typed)(x)), np.stack([plain(r) for r in a]))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda s, u: sh.max(s), "`max` reduces dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.max(u, 1), "`max` is nonlinear in the operand, which is unreduced on mesh axis `x`"),
        (lambda s, u: sh.max(s, 1, where=s > 0), "`max` does not take these arguments"),
                (lambda s, u: sh.softmax(s, 0), "`softmax` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.softmax(u), "`softmax` is nonlinear in the operand, which is unreduced on mesh axis `x`"),
        (lambda s, u: sh.cumsum(s, 0), "`cumsum` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.sort(s, 0), "`sort` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.cumsum(s, 2), "`cumsum` does not take `axis=2`"),
        (lambda s, u: sh.top_k(s, 9), "`top_k` does not take these arguments"),
        (lambda s, u: sh.fft.fft(s, axis=0), "`fft` acts along dim 1, which is sharded on mesh axis `x`"),
        (lambda s, u: sh.linalg.inv(s), "`lu` acts along dim 0, which is sharded on mesh axis `x`"),
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
