"""Reductions that are not sums: the dims must be whole on every device, and nothing unreduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shtypes import dtypes
from shtypes.errors import ShardingTypeError
from shtypes.localfn import LocalFn
from shtypes.lowering.replay import public
from shtypes.ops import reduce, rules
from shtypes.ops.dispatch import apply, dtype_name, lift
from shtypes.ops.elementwise import isnan, not_equal
from shtypes.ops.reduce import Axis, normalize_dims
from shtypes.ops.select import where as _where
from shtypes.ops.whole import function, made


def reduced(name: str, fn: Callable[..., Any], x: Any, axis: Axis, keepdims: bool, **params: Any) -> Any:
    """A reduction over dims, as one local function."""
    dims = normalize_dims(axis, jax.typeof(x).ndim, name)
    given = dims[0] if isinstance(axis, int) else None if axis is None else dims
    return reduced_by(name, function(name, fn, axis=given, keepdims=bool(keepdims), **params), x, dims, keepdims)


def reduced_by(name: str, fn: LocalFn, x: Any, dims: tuple[int, ...], keepdims: bool) -> Any:
    """A reduction over ``dims`` by a local function that makes one result."""
    t = jax.typeof(x)
    dtype = dtypes.from_numpy(made(fn, (t.shape, t.dtype_name)).dtype)
    return apply(name, fn, lambda types: rules.reduce_nonlinear(name, types[0], dims, keepdims, dtype), x)


def _reduction(name: str, identity: Any = None) -> Callable[..., Any]:
    """The typed form of a reduction of `jax.numpy`; ``identity`` is what elements that ``where`` leaves out become."""
    native = getattr(jnp, name)

    def op(
        a: Any, axis: Axis = None, *, keepdims: bool = False, initial: Any = None, where: Any = None, dtype: Any = None
    ) -> Any:
        ((x,), _) = lift([a])
        if where is not None:
            left_out = identity if initial is None else initial
            if left_out is None:
                raise ShardingTypeError(f"`{name}` with `where` needs `initial`", why="it may find no element")
            x = _where(where, x, left_out)
        options: dict[str, Any] = {} if initial is None else {"initial": initial}
        if dtype is not None:
            options["dtype"] = dtypes.to_numpy(dtype_name(dtype))
        return reduced(name, native, x, axis, keepdims, **options)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = _doc(name)
    return public(op)


def _doc(name: str) -> str:
    return f"""`{name}` over dims, as in `jax.numpy`.

    Per axis: every state but unreduced is kept; the dims must be whole.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        keepdims: Keeps the dims with size 1.
        initial: A number that is among the elements.
        where: A bool array that says which elements count.
        dtype: The dtype to compute in, where `jax.numpy` has one.

    Returns:
        (...): The result.

    Raises:
        ShardingTypeError: one of the dims is sharded, or the operand is unreduced.

    Communicates: nothing. Transpose: by JAX.
    """


max, min, prod = _reduction("max"), _reduction("min"), _reduction("prod", 1)
amax, amin = max, min
any, all = _reduction("any", False), _reduction("all", True)


def _plain(name: str, **defaults: Any) -> Callable[..., Any]:
    """The typed form of a reduction of `jax.numpy` with parameters of its own."""
    native = getattr(jnp, name)

    def op(a: Any, axis: Axis = None, *, keepdims: bool = False, **params: Any) -> Any:
        ((x,), _) = lift([a])
        unknown = next((k for k in params if k not in defaults), None)
        if unknown is not None:
            raise ShardingTypeError(f"`{name}` has no parameter `{unknown}`; it has {', '.join(defaults) or 'none'}")
        return reduced(name, native, x, axis, keepdims, **params)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"""`{name}` over dims, as in `jax.numpy`; typed as `max`.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        keepdims: Keeps the dims with size 1.
        **params: As in `jax.numpy`: {", ".join(f"``{k}``" for k in defaults) or "none"}.

    Communicates: nothing. Transpose: by JAX.
    """
    return public(op)


var, std = _plain("var", ddof=0, correction=None), _plain("std", ddof=0, correction=None)
ptp, median = _plain("ptp"), _plain("median")
nanmax, nanmin = _plain("nanmax", initial=None), _plain("nanmin", initial=None)


def _position(name: str) -> Callable[..., Any]:
    native = getattr(jnp, name)

    def op(a: Any, axis: int | None = None, *, keepdims: bool = False) -> Any:
        ((x,), _) = lift([a])
        return reduced(name, native, x, axis, keepdims)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"""`{name}` along a dim (all as one by default), as in `jax.numpy`; typed as `max`, no gradient.

    Args:
        a (...): The operand.
        axis: The dim.
        keepdims: Keeps it with size 1.

    Communicates: nothing.
    """
    return public(op)


argmax, argmin = _position("argmax"), _position("argmin")
nanargmax, nanargmin = _position("nanargmax"), _position("nanargmin")


@public
def logsumexp(a: Any, axis: Axis = None, *, keepdims: bool = False, where: Any = None) -> Any:
    """``log(sum(exp(a)))`` over dims without overflow, as `jax.nn.logsumexp`; typed as `max`.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        keepdims: Keeps the dims with size 1.
        where: A bool array that says which elements count.

    Communicates: nothing. Transpose: by JAX.
    """
    ((x,), _) = lift([a])
    if where is not None:
        x = _where(where, x, -jnp.inf)
    return reduced("logsumexp", jax.nn.logsumexp, x, axis, keepdims)


# sums after an elementwise step


@public
def count_nonzero(a: Any, axis: Axis = None, *, keepdims: bool = False) -> Any:
    """How many elements are not zero, as in `jax.numpy`; a sum, so over a sharded dim it is unreduced.

    Args:
        a (...): The operand, not unreduced.
        axis: The dims; all by default.
        keepdims: Keeps the dims with size 1.

    Communicates: nothing.
    """
    ((x,), _) = lift([a])
    found = not_equal(x, 0) if jax.typeof(x).dtype_name != "bool" else x
    return reduce.sum(found, axis, keepdims=keepdims, dtype=dtype_name(jnp.int_))


@public
def nansum(a: Any, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
    """The sum of the elements that are not NaN; typed as `sum` of a value that is not unreduced.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        dtype: The dtype to sum in.
        keepdims: Keeps the dims with size 1.

    Communicates: nothing. Transpose: the cotangent, zero at NaNs.
    """
    ((x,), _) = lift([a])
    return reduce.sum(_where(isnan(x), 0, x), axis, dtype=dtype, keepdims=keepdims)


@public
def average(a: Any, axis: Axis = None, weights: Any = None, *, keepdims: bool = False) -> Any:
    """The mean weighted by ``weights``, as in `jax.numpy`, over their sum; without weights it is `mean`.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        weights (...): Of the operand's shape; their own sum must not be unreduced: over sharded dims it has to be
            reduced first.
        keepdims: Keeps the dims with size 1.

    Communicates: nothing.
    """
    if weights is None:
        return reduce.mean(a, axis, keepdims=keepdims)
    ((x, w), _) = lift([a, weights])
    total = reduce.sum(w, axis, keepdims=keepdims)
    return reduce.sum(x * w, axis, keepdims=keepdims) / total


__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "average", "count_nonzero", "logsumexp", "max", "median", "min",
    "nanargmax", "nanargmin", "nanmax", "nanmin", "nansum", "prod", "ptp", "std", "var",
]  # fmt: skip
