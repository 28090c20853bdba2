"""Normalised exponentials along dims that every device holds whole, with the names of `jax.nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shtypes.lowering.replay import public
from shtypes.ops import rules
from shtypes.ops.dispatch import apply, lift
from shtypes.ops.reduce import Axis, normalize_dims
from shtypes.ops.whole import apply_whole, function
from shtypes.types import ShType


def _softmax(name: str) -> Callable[..., Any]:
    native = getattr(jax.nn, name)

    def op(x: Any, axis: Axis = -1, where: Any = None) -> Any:
        ((x,), _) = lift([x])
        ndim = jax.typeof(x).ndim
        dims = normalize_dims(axis, ndim, name)
        if where is None:
            return apply_whole(name, function(name, native, axis=dims), x, dims)
        return _masked(name, native, x, dims, where)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"""`jax.nn.{name}` over dims, the last by default.

    Per axis: every state but unreduced is kept; the dims must be whole.

    Args:
        x (...): A value.
        axis: The dims.
        where (...): A bool array that says which elements count, as in JAX.

    Returns:
        (...): The result, of the same type.

    Raises:
        ShardingTypeError: one of the dims is sharded, or the value is unreduced.

    Communicates: nothing. Transpose: by JAX.
    """
    return public(op)


def _masked(name: str, native: Callable[..., Any], x: Any, dims: tuple[int, ...], where: Any) -> Any:
    """With a mask, which meets the value as an operand of a nonlinear function."""
    (x, mask), constants = lift([x, where])
    ndim = max(jax.typeof(x).ndim, jax.typeof(mask).ndim)
    places = tuple(d + ndim - jax.typeof(x).ndim for d in dims)
    dtype = jax.typeof(x).dtype_name

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return rules.nonlinear_along_all(name, types, places, dtype, constants)

    return apply(name, function(name, _with_mask, native=native, axis=places), rule, x, mask)


def _with_mask(x: Any, mask: Any, native: Callable[..., Any], axis: tuple[int, ...]) -> Any:
    x, mask = jnp.broadcast_arrays(x, mask)
    return native(x, axis=axis, where=mask)


softmax, log_softmax = map(_softmax, ("softmax", "log_softmax"))


@public
def standardize(x: Any, axis: Axis = -1, epsilon: float = 1e-5) -> Any:
    """The value less its mean, over its standard deviation, as `jax.nn.standardize`; typed as `softmax`.

    Args:
        x (...): A value.
        axis: The dims; the last by default.
        epsilon: Added to the variance.

    Communicates: nothing. Transpose: by JAX.
    """
    ((x,), _) = lift([x])
    dims = normalize_dims(axis, jax.typeof(x).ndim, "standardize")
    return apply_whole("standardize", function("standardize", jax.nn.standardize, axis=dims, epsilon=epsilon), x, dims)


__all__ = ["log_softmax", "softmax", "standardize"]
