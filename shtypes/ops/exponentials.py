"""Normalised exponentials and their sums; along sharded dims if communication is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public, published
from shtypes.core.shard_fn import local_dtype
from shtypes.dispatch.apply import apply, as_operands, dtype_name, inexact, is_number
from shtypes.dispatch.call_fixes import with_out_fixes
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError
from shtypes.ops.along_dims import Axis, apply_unsharded, function, normalize_dims, reduced, sum_of
from shtypes.ops.arithmetic import add, astype, divide, multiply, subtract
from shtypes.ops.cross_shard import along, may_communicate, over, sharding
from shtypes.ops.elementwise import abs as abs_
from shtypes.ops.elementwise import exp, less, log, not_equal, sign
from shtypes.ops.functions import squeeze
from shtypes.ops.functions import where as _where
from shtypes.ops.sharded_reductions import bound, constant, finite_bound, matching, total
from shtypes.types import ShType, State


def _select_by_mask(name: str, x: Any, where: Any, fill: Any) -> Array:
    """The elements that a bool mask selects; the others are ``fill``."""
    kind = jax.typeof(where).dtype if hasattr(where, "dtype") else np.asarray(where).dtype
    if not np.issubdtype(kind, np.bool_):
        raise ShardingTypeError(f"the mask of `{name}` is one of booleans, not of {kind}", hints=["where != 0"])
    mask = tuple(jax.typeof(where).shape) if hasattr(where, "dtype") else np.shape(where)
    shape = jax.typeof(x).shape
    if len(mask) > len(shape) or any(m not in (1, n) for m, n in zip(mask[::-1], shape[::-1], strict=False)):
        raise ShardingTypeError(f"`{name}` of {jax.typeof(x)} cannot take a mask of shape {list(mask)}")
    flag = is_number(fill) and fill in (0, 1) and jax.typeof(x).dtype_name == "bool"
    return _where(where, x, bool(fill) if flag else fill)


def _softmax(name: str, join: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    """The op that computes ``join`` of the shifted values and the sum of their exponentials."""
    native = getattr(jax.nn, name)

    def op(x: Any, axis: Axis = -1, where: Any = None, *, out: Any = None) -> Array:
        ((x,), _) = as_operands([x])
        if not jax.typeof(x).differentiable:
            masked = where is not None  # with -inf, which JAX promotes with
            x = astype(x, dtype_name(jnp.result_type(float)) if masked else inexact(jax.typeof(x).dtype))
        dims = normalize_dims(axis, jax.typeof(x).ndim, name)
        if where is not None and not sharding(jax.typeof(_select_by_mask(name, x, where, 0)), dims):
            return finished(_masked(name, native, x, dims, where), out)
        if where is not None:
            x = _select_by_mask(name, x, where, 0)  # with the joint type of both

        def across(x: Any) -> Array:
            counted = x if where is None else _where(where, x, -jnp.inf)
            shifted = subtract(counted, constant(bound("max", counted, dims)))
            y = join(shifted, _added(exp(shifted), dims, State.REDUCED))
            return y if where is None or name == "softmax" else _where(where, y, -jnp.inf)

        return along(
            f"nn.{name}",
            x,
            dims,
            lambda x: apply_unsharded(name, function(name, native, axis=dims), x, dims),
            across,
            out,
        )

    return published(
        op,
        name,
        f"""`jax.nn.{name}` over dims, the last by default.

    Per axis: every state but unreduced is kept. Where an axis shards one of the dims, ``out`` or an `implicit_comm`
    scope must allow communication.

    Args:
        x (...): A value.
        axis: The dims.
        where (...): A bool array that says which elements count, as in JAX.
        out: A type for the result, such as that of ``x``; allows to communicate.

    Returns:
        (...): The result, of the same type.

    Raises:
        ShardingTypeError: one of the dims is sharded and nothing allows to communicate, or the value is unreduced.

    Communicates: nothing; along a sharded dim, two all-reduces of one number for each row (the maximum, the sum), and
    backward one. Transpose: by JAX.
    """,
    )


def _masked(name: str, native: Callable[..., Any], x: Any, dims: tuple[int, ...], where: Any) -> Array:
    """The native function with a mask, an operand of a nonlinear function like the value."""
    (x, mask), constants = as_operands([x, where])
    fn = function(name, _with_mask, native=native, axis=dims)
    dtype = local_dtype(fn, (jax.typeof(x).dtype_name, jax.typeof(mask).dtype_name), jax.typeof(x).ndim)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.nonlinear_along_all(name, types, dims, dtype, constants)

    return apply(name, fn, rule, x, mask)


def _with_mask(x: Any, mask: Any, native: Callable[..., Any], axis: tuple[int, ...]) -> Any:
    x, mask = jnp.broadcast_arrays(x, mask)
    return native(x, axis=axis, where=mask)


softmax = _softmax("softmax", lambda shifted, total: divide(exp(shifted), total))
log_softmax = _softmax("log_softmax", lambda shifted, total: subtract(shifted, log(total)))


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
    ((x,), _) = as_operands([a])
    factor: Any = b
    x = astype(x, inexact(jax.typeof(x).dtype, *([] if b is None else [b if is_number(b) else factor.dtype])))
    if where is not None:
        x = _select_by_mask("logsumexp", x, where, -jnp.inf)
    if b is None and not return_sign:
        return over(
            "logsumexp",
            x,
            axis,
            keepdims,
            out,
            lambda x, dims: reduced("logsumexp", jax.nn.logsumexp, x, dims, keepdims),
            _log_of_sum,
        )
    if b is not None:
        ((b,), _) = as_operands([np.asarray(b) if is_number(b) else b])
        dtype = jnp.result_type(jax.typeof(x).dtype, jax.typeof(b).dtype)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            x = astype(x, dtype_name(dtype))
        x = _where(not_equal(b, 0), x, -jnp.inf)

    def signed(x: Any, dims: tuple[int, ...]) -> Any:
        most = finite_bound(x, dims)
        terms = exp(subtract(x, most))
        summed = _added(terms if b is None else multiply(terms, b), dims)
        return add(log(abs_(summed)), matching(most, jax.typeof(summed))), summed

    dims = normalize_dims(axis, jax.typeof(x).ndim, "logsumexp")

    def asked(x: Any, out: Any = None) -> Array | tuple[Array, Array]:
        y, summed = signed(x, dims)
        if not return_sign:
            y = _where(less(summed, 0), jnp.nan, y)
        y, signs = (v if keepdims else squeeze(v, dims) for v in (y, sign(summed)))
        return (finished(y, out), finished(signs, out)) if return_sign else finished(y, out)

    if sharding(jax.typeof(x), dims) and not may_communicate(out):
        try:
            reduced("logsumexp", jax.nn.logsumexp, x, dims, keepdims)
        except ShardingTypeError as error:
            raise with_out_fixes(error, "logsumexp", asked, jax.typeof(x)) from None
    return asked(x, out)


def _added(x: Any, dims: tuple[int, ...], state: State = State.INVARIANT) -> Array:
    """The sum over dims with keepdims; in ``state`` on the axes that shard them."""
    axes = sharding(jax.typeof(x), dims)
    return total(sum_of("sum", x, dims), axes, state)


def _log_of_sum(x: Any, dims: tuple[int, ...]) -> Array:
    """The logsumexp over dims, which may be sharded, with keepdims."""
    most = finite_bound(x, dims)
    summed = _added(exp(subtract(x, most)), dims)
    return add(log(summed), matching(most, jax.typeof(summed)))
