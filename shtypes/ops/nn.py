"""Normalised exponentials, with the names of `jax.nn`; along sharded dims where communication is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public, published
from shtypes.core.shard_fn import local_dtype
from shtypes.dispatch.apply import apply, dtype_name, lift
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError
from shtypes.ops.across import bound, constant
from shtypes.ops.arithmetic import add, astype, divide, multiply, subtract
from shtypes.ops.asking import along, sharding
from shtypes.ops.elementwise import exp, log, maximum, rsqrt, square
from shtypes.ops.functions import where as _where
from shtypes.ops.reduce import Axis, normalize_dims, only
from shtypes.ops.reduce_nonlinear import added, averaged
from shtypes.ops.whole import apply_whole, function
from shtypes.types import ShType, State


def _softmax(name: str, join: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    """From the shifted values and the sum of their exponentials, by ``join``."""
    native = getattr(jax.nn, name)

    def op(x: Any, axis: Axis = -1, where: Any = None, *, out: Any = None) -> Array:
        ((x,), _) = lift([x])
        if not jax.typeof(x).differentiable:
            x = astype(x, dtype_name(jnp.result_type(float)))
        dims = normalize_dims(axis, jax.typeof(x).ndim, name)
        if where is not None and not sharding(jax.typeof(only(name, x, where, 0)), dims):
            return finished(_masked(name, native, x, dims, where), out)
        if where is not None:
            x = only(name, x, where, 0)  # of the type that both have together

        def across(x: Any) -> Array:
            kept = x if where is None else _where(where, x, -jnp.inf)
            shifted = subtract(kept, constant(bound("max", kept, dims)))
            y = join(shifted, added(exp(shifted), dims, State.REDUCED))
            return y if where is None or name == "softmax" else _where(where, y, -jnp.inf)

        return along(
            f"nn.{name}", x, dims, lambda x: apply_whole(name, function(name, native, axis=dims), x, dims), across, out
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
    """With a mask, which meets the value as an operand of a nonlinear function."""
    (x, mask), constants = lift([x, where])
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


@public
def standardize(
    x: ArrayLike,
    axis: Axis = -1,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-5,
    where: Any = None,
    algorithm: str = "fast",
    *,
    out: Any = None,
) -> Array:
    """The value less its mean, over its standard deviation, as `jax.nn.standardize`; typed as `softmax`.

    Args:
        x (...): A value.
        axis: The dims; the last by default.
        mean: The mean, with the dims kept, where it is known.
        variance: The variance, where it is known.
        epsilon: Added to the variance.
        where (...): A bool array that says which elements count for both.
        algorithm: How the variance is found: ``"fast"``, the mean of the squares less the square of the mean, or
            ``"stable"``, the mean of the squared differences.
        out: A type for the result; allows to communicate.

    Communicates: nothing; along a sharded dim, two all-reduces of one number for each row, forward and backward.
    Transpose: by JAX.
    """
    if algorithm not in ("fast", "stable"):
        raise ShardingTypeError(f"`standardize` knows no algorithm {algorithm!r:.40}", hints=['"fast"', '"stable"'])
    ((x,), _) = lift([x])
    dims = normalize_dims(axis, jax.typeof(x).ndim, "standardize")
    met = x if where is None else only("standardize", x, where, 0)

    def across(met: Any) -> Array:
        center = averaged(met, dims, where) if mean is None else mean
        away = subtract(met if where is None else x, center)
        if variance is not None:
            spread = variance
        elif mean is None or algorithm == "stable":  # less its own mean, both are the same
            spread = averaged(square(away), dims, where)
        else:
            spread = maximum(subtract(averaged(square(met), dims, where), center * center), 0)
        return multiply(away, rsqrt(add(spread, epsilon)))

    def whole(met: Any) -> Array:
        if mean is None and variance is None and where is None:
            fn = function("standardize", jax.nn.standardize, axis=dims, epsilon=epsilon, algorithm=algorithm)
            return apply_whole("standardize", fn, met, dims)
        if sharding(jax.typeof(met), dims):
            apply_whole("standardize", function("standardize", jax.nn.standardize, axis=dims), met, dims)
        return across(met)

    return along("nn.standardize", met, dims, whole, across, out)
