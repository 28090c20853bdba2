"""Extremes, their positions, and truth: reductions that pick an element; along sharded dims where it is asked for."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.ops.across import extreme, position
from shtypes.ops.arithmetic import subtract
from shtypes.ops.asking import DOC, over
from shtypes.ops.dispatch import lift
from shtypes.ops.elementwise import isnan, maximum, minimum, not_equal
from shtypes.ops.joins import concatenate
from shtypes.ops.reduce import Axis, normalize_dims, only, scalar
from shtypes.ops.reshard import finished
from shtypes.ops.select import where as select
from shtypes.ops.shape import broadcast_to
from shtypes.ops.whole import reduced


def _extreme(name: str, join: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    native = getattr(jnp, name)

    def op(
        a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Array:
        ((x,), _) = lift([a])
        if where is not None:
            if initial is None:
                raise ShardingTypeError(f"`{name}` with `where` needs `initial`", why="it may find no element")
            x = only(name, x, where, initial)

        for d in normalize_dims(axis, jax.typeof(x).ndim, name) if initial is not None else ():
            if not jax.typeof(x).shape[d]:  # JAX reduces no elements
                x = _with_one(name, x, d, initial)

        def begun(y: Any) -> Any:
            return y if initial is None else join(y, scalar(name, initial, y))

        return over(
            name,
            x,
            axis,
            keepdims,
            out,
            lambda x, dims: begun(reduced(name, native, x, dims, keepdims)),
            lambda x, dims: begun(extreme(name, x, dims)),
        )

    return published(
        op,
        name,
        f"""The {name}imum over dims, as `jax.numpy.{name}`.

    {DOC}

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        out: A type for the result; allows to communicate.
        keepdims: Keeps the dims with size 1.
        initial: A number that is among the elements.
        where: A bool array that says which elements count; needs ``initial``.

    Returns:
        (...): The result.

    Raises:
        ShardingTypeError: one of the dims is sharded and nothing allows to communicate, or the operand is unreduced.

    Communicates: nothing; along a sharded dim, an all-reduce of one number for each row, and backward one of as many
    that counts the elements which reach the result. Transpose: to those elements, in equal parts.
    """,
    )


def _with_one(name: str, x: Any, dim: int, initial: Any) -> Array:
    """A value that has no elements along a dim, with a number there."""
    shape = tuple(1 if d == dim else n for d, n in enumerate(jax.typeof(x).shape))
    return concatenate([x, broadcast_to(scalar(name, initial, x), shape)], dim)


max, min = _extreme("max", maximum), _extreme("min", minimum)
amax, amin = max, min


def _truth(name: str, identity: bool, what: str, same: str) -> Callable[..., Array]:
    native = getattr(jnp, name)

    def op(a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, *, where: Any = None) -> Array:
        ((x,), _) = lift([a])
        x = x if where is None else only(name, x, where, identity)

        def across(x: Any, dims: tuple[int, ...]) -> Array:
            return extreme(same, x if jax.typeof(x).dtype_name == "bool" else not_equal(x, 0), dims)

        return over(name, x, axis, keepdims, out, lambda x, dims: reduced(name, native, x, dims, keepdims), across)

    return published(
        op,
        name,
        f"""Whether {what} of the elements over dims {"are" if identity else "is"} true, as `jax.numpy.{name}`.

    {DOC}

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        out: A type for the result; allows to communicate.
        keepdims: Keeps the dims with size 1.
        where: A bool array that says which elements count.

    Communicates: nothing; along a sharded dim, an all-reduce of one byte for each row.
    """,
    )


any, all = _truth("any", False, "any", "max"), _truth("all", True, "all", "min")


@public
def median(
    a: ArrayLike, axis: Axis = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Array:
    """The median over dims, as `jax.numpy.median`; the dims must be whole.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        out: A type to reshard the result to.
        overwrite_input: Accepted for compatibility; ignored.
        keepdims: Keeps the dims with size 1.

    Communicates: nothing but what ``out`` asks for. Transpose: by JAX.
    """
    ((x,), _) = lift([a])
    return finished(reduced("median", jnp.median, x, axis, keepdims), out)


def _skipping(name: str, full: Callable[..., Array], least: bool) -> Callable[..., Array]:
    native = getattr(jnp, name)
    same = name.removeprefix("nan")

    def op(
        a: Any, axis: Axis = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = None
    ) -> Array:
        ((x,), _) = lift([a])
        if not jax.typeof(x).differentiable:  # no integer is NaN
            return full(x, axis, out, keepdims, initial, where)
        never = jnp.inf if least else -jnp.inf
        if initial is not None or where is not None:
            return full(select(isnan(x), never, x), axis, out, keepdims, initial, where)

        def across(x: Any, dims: tuple[int, ...]) -> Array:
            missing = isnan(x)
            found = extreme(same, select(missing, never, x), dims)
            return select(extreme("min", missing, dims), jnp.nan, found)

        whole = lambda x, dims: reduced(name, native, x, dims, keepdims)  # noqa: E731
        return over(name, x, axis, keepdims, out, whole, across)

    return published(
        op,
        name,
        f"""The {same}imum of what is not NaN over dims, as `jax.numpy.{name}`; typed as `{same}`.

    Communicates: nothing; along a sharded dim what `{same}` does, and an all-reduce of one byte for each row.
    """,
    )


nanmax, nanmin = _skipping("nanmax", max, False), _skipping("nanmin", min, True)


@public
def ptp(a: ArrayLike, axis: Axis = None, out: Any = None, keepdims: bool = False) -> Array:
    """The maximum less the minimum over dims, as `jax.numpy.ptp`; typed as `max`.

    Args:
        a (...): The operand.
        axis: The dims; all by default.
        out: A type for the result; allows to communicate.
        keepdims: Keeps the dims with size 1.

    Communicates: nothing; along a sharded dim what `max` and `min` do.
    """
    ((x,), _) = lift([a])
    return over(
        "ptp",
        x,
        axis,
        keepdims,
        out,
        lambda x, dims: reduced("ptp", jnp.ptp, x, dims, keepdims),
        lambda x, dims: subtract(extreme("max", x, dims), extreme("min", x, dims)),
    )


def _position(name: str) -> Callable[..., Array]:
    native = getattr(jnp, name)
    known = name in ("argmax", "argmin")

    def op(a: Any, axis: int | None = None, out: Any = None, keepdims: bool | None = None) -> Array:
        ((x,), _) = lift([a])
        if not known:
            return finished(reduced(name, native, x, axis, bool(keepdims)), out)
        given = None if axis is None else operator.index(axis)
        return over(
            name,
            x,
            given,
            keepdims,
            out,
            lambda x, dims: reduced(name, native, x, given, bool(keepdims)),
            lambda x, dims: position(name, x, dims),
        )

    along_sharded = "two all-reduces of one number for each row" if known else "refused"
    return published(
        op,
        name,
        f"""`{name}` along a dim (all as one by default), as in `jax.numpy`; typed as `max`, no gradient.

    Args:
        a (...): The operand.
        axis: The dim.
        out: A type for the result{"; allows to communicate" if known else ""}.
        keepdims: Keeps it with size 1.

    Communicates: nothing; along a sharded dim: {along_sharded}.
    """,
    )


argmax, argmin = _position("argmax"), _position("argmin")
nanargmax, nanargmin = _position("nanargmax"), _position("nanargmin")
