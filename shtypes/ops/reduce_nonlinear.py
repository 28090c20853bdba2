"""Products, variances and sums of exponentials: nonlinear, and made of sums where a sharded dim may communicate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public, published
from shtypes.dispatch.apply import dtype_name, inexact, is_number, lift
from shtypes.dispatch.out_fixes import with_own_fixes
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError
from shtypes.ops import reduce
from shtypes.ops.across import bound, constant, matching, total
from shtypes.ops.arithmetic import add, astype, divide, multiply, subtract
from shtypes.ops.asking import DOC, may_communicate, over, sharding
from shtypes.ops.elementwise import abs as abs_
from shtypes.ops.elementwise import exp, isfinite, less, log, not_equal, sign, sqrt, square
from shtypes.ops.functions import squeeze
from shtypes.ops.functions import where as _where
from shtypes.ops.means import mean_of
from shtypes.ops.reduce import Axis, normalize_dims, only
from shtypes.ops.whole import reduced
from shtypes.types import State, dtypes


def _variance(name: str) -> Callable[..., Array]:
    native = getattr(jnp, name)

    def op(
        a: Any,
        axis: Axis = None,
        dtype: Any = None,
        out: Any = None,
        ddof: Any = 0,
        keepdims: bool = False,
        *,
        where: Any = None,
        mean: Any = None,
        correction: Any = None,
    ) -> Array:
        ((x,), _) = lift([a])
        if where is not None:
            x = only(name, x, where, 0)  # of the type that both have together
        if correction is not None and ddof:
            raise ShardingTypeError(f"`{name}` takes `ddof` or `correction`, not both")
        taken = ddof if correction is None else correction
        wanted = None if dtype is None else dtype_name(dtype)
        options: dict[str, Any] = {} if wanted is None else {"dtype": dtypes.to_numpy(wanted)}

        def across(x: Any, dims: tuple[int, ...]) -> Array:
            v = _spread(x, dims, taken, where, mean, wanted)
            return sqrt(v) if name == "std" else v

        def whole(x: Any, dims: tuple[int, ...]) -> Array:
            if (where is None and mean is None) or sharding(jax.typeof(x), dims):  # which this refuses
                return reduced(name, native, x, dims, keepdims, ddof=taken, **options)
            y = across(x, dims)
            return y if keepdims else squeeze(y, dims)

        return over(name, x, axis, keepdims, out, whole, across)

    return published(
        op,
        name,
        f"""The {"variance" if name == "var" else "standard deviation"} over dims, as `jax.numpy.{name}`.

    {DOC}

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        dtype: The dtype to compute in.
        out: A type for the result; allows to communicate.
        ddof: What is taken from the number of elements.
        keepdims: Keeps the dims with size 1.
        where: A bool array that says which elements count.
        mean: The mean, with the dims kept, where it is known.
        correction: Another name of ``ddof``.

    Communicates: nothing; along a sharded dim, two all-reduces of one number for each row (the mean, the squares), and
    backward one. Transpose: by JAX.
    """,
    )


def _spread(x: Any, dims: tuple[int, ...], taken: Any, where: Any, mean: Any, dtype: str | None) -> Array:
    """The variance over dims, which may be sharded; the dims are kept."""
    t = jax.typeof(x)
    kept = dtype or (t.dtype_name if t.differentiable else inexact(t.dtype))
    x = astype(x, wide(kept))  # as JAX: rounded once
    away = subtract(x, averaged(x, dims, where) if mean is None else mean)
    squares = square(abs_(away)) if kept[0] == "c" else square(away)
    found = averaged(squares, dims, where, taken, State.INVARIANT)
    return found if kept[0] == "c" else astype(found, kept)


def wide(dtype: str) -> str:
    """The dtype that statistics are computed in: at least 32 bits."""
    return "f32" if dtype in ("bf16", "f16") or dtype.startswith("f8") else dtype


def averaged(x: Any, dims: tuple[int, ...], where: Any = None, taken: Any = 0, state: State = State.REDUCED) -> Array:
    """The mean over dims, reduced where they are sharded; the dims are kept.

    By default reduced: it meets sharded values, which would cast an invariant one to that.
    """
    if where is None:
        count = math.prod(jax.typeof(x).shape[d] for d in dims)
        y = (
            reduce.sum_of("mean", x, dims, True, None, count)
            if not taken
            else divide(reduce.sum_of("sum", x, dims, True), count - taken)
        )
    else:
        y = mean_of(x, where, dims, True, None, None, taken=taken, asked=True)
    return total(y, jax.typeof(y).axes(State.UNREDUCED), state)


var, std = _variance("var"), _variance("std")


@overload
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: Literal[False] = False,
    where: Any = None,
    *,
    out: Any = None,
) -> Array: ...
@overload
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    *,
    return_sign: Literal[True],
    where: Any = None,
    out: Any = None,
) -> tuple[Array, Array]: ...
@public
def logsumexp(
    a: ArrayLike,
    axis: Axis = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: Any = None,
    *,
    out: Any = None,
) -> Array | tuple[Array, Array]:
    """``log(sum(exp(a)))`` over dims without overflow, as `jax.nn.logsumexp`; typed as `max`.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        b (...): Factors of the exponentials.
        keepdims: Keeps the dims with size 1.
        return_sign: Whether to return the sign of the sum too, and the logarithm of its absolute value.
        where: A bool array that says which elements count.
        out: A type for the result; allows to communicate.

    Communicates: nothing; along a sharded dim, two all-reduces of one number for each row (the maximum, the sum), and
    backward nothing. Transpose: by JAX.
    """
    ((x,), _) = lift([a])
    factor: Any = b
    x = astype(x, inexact(jax.typeof(x).dtype, *([] if b is None else [b if is_number(b) else factor.dtype])))
    if where is not None:
        x = only("logsumexp", x, where, -jnp.inf)
    if b is None and not return_sign:
        return over(
            "logsumexp",
            x,
            axis,
            keepdims,
            out,
            lambda x, dims: reduced("logsumexp", jax.nn.logsumexp, x, dims, keepdims),
            log_of_sum,
        )
    if b is not None:
        ((b,), _) = lift([np.asarray(b) if is_number(b) else b])
        dtype = jnp.result_type(jax.typeof(x).dtype, jax.typeof(b).dtype)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            x = astype(x, dtype_name(dtype))
        x = _where(not_equal(b, 0), x, -jnp.inf)

    def signed(x: Any, dims: tuple[int, ...]) -> Any:
        most = finite_bound(x, dims)
        terms = exp(subtract(x, most))
        summed = added(terms if b is None else multiply(terms, b), dims)
        return add(log(abs_(summed)), matching(most, jax.typeof(summed))), summed

    dims = normalize_dims(axis, jax.typeof(x).ndim, "logsumexp")

    def plain(x: Any) -> Array:
        y = log_of_sum(x, dims)
        return y if keepdims else squeeze(y, dims)

    if sharding(jax.typeof(x), dims) and not may_communicate(out):
        try:
            reduced("logsumexp", jax.nn.logsumexp, x, dims, keepdims)
        except ShardingTypeError as error:
            raise with_own_fixes(error, "logsumexp", plain, jax.typeof(x)) from None
    y, summed = signed(x, dims)
    if not return_sign:
        y = _where(less(summed, 0), jnp.nan, y)
    y, signs = (v if keepdims else squeeze(v, dims) for v in (y, sign(summed)))
    return (finished(y, out), finished(signs, out)) if return_sign else finished(y, out)


def finite_bound(x: Any, dims: tuple[int, ...]) -> Array:
    """The maximum over dims, or zero where it is not finite; no gradient."""
    most = bound("max", x, dims)
    return matching(constant(_where(isfinite(most), most, 0)), jax.typeof(x))


def added(x: Any, dims: tuple[int, ...], state: State = State.INVARIANT) -> Array:
    """The sum over dims, reduced where they are sharded; the dims are kept."""
    axes = sharding(jax.typeof(x), dims)
    return total(reduce.sum_of("sum", x, dims, True), axes, state)


def log_of_sum(x: Any, dims: tuple[int, ...]) -> Array:
    """The logsumexp over dims, which may be sharded; they are kept."""
    most = finite_bound(x, dims)
    summed = added(exp(subtract(x, most)), dims)
    return add(log(summed), matching(most, jax.typeof(summed)))
