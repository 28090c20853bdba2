"""Two ways for one op: along dims that every device holds, and across devices, which the user must ask for.

``out=`` asks for it, and so does an `implicit_comm` scope. Else the error offers the second way, typed again and priced
by the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from shtypes import rules
from shtypes.core.array import Array
from shtypes.dispatch.apply import cast_once
from shtypes.dispatch.call_fixes import with_out_fixes
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError
from shtypes.ops.along_dims import Axis, normalize_dims
from shtypes.ops.functions import squeeze
from shtypes.scopes.comm import allows_implicit, finishes_scalars
from shtypes.types import ShType

Whole = Callable[[Any], Array]


def sharding(t: ShType, dims: Sequence[int]) -> tuple[str, ...]:
    """The mesh axes that shard the dims, dim by dim."""
    return tuple(a for d in dims for a in t.dims[d].axes)


def along(
    name: str, x: Any, dims: Sequence[int], unsharded: Whole, across: Whole, out: Any = None, *, may_send: bool = False
) -> Array:
    """An op along ``dims``: ``unsharded`` where no axis shards them, else ``across`` if communication is allowed.

    Args:
        name: What the user calls it, after ``sh.``: for fixes.
        x (...): The operand.
        dims: The dims.
        unsharded: The op where every device has all of the dims; refuses sharded ones.
        across: The op where they are sharded.
        out: A type to reshard the result to, which allows communication.
        may_send: Whether something else allows it.

    Raises:
        ShardingTypeError: a dim is sharded, and communication is not allowed; or what the op itself refuses.
    """
    if not sharding(jax.typeof(x), dims):
        return finished(unsharded(x), out)
    if may_send or may_communicate(out):
        if allows_implicit():  # else the ops in `across` refuse a pending sum, in the words of the op
            x = cast_once(name, lambda types: rules.nonlinear(name, types, types[0].dtype_name), x)
        return finished(across(x), out)
    try:
        return unsharded(x)
    except ShardingTypeError as error:
        raise with_out_fixes(error, name, lambda x, out: finished(across(x), out), jax.typeof(x)) from None


def may_communicate(out: Any) -> bool:
    """Whether the user allowed communication."""
    return out is not None or allows_implicit()


def over(
    name: str,
    x: Any,
    axis: Axis,
    keepdims: Any,
    out: Any,
    unsharded: Callable[[Any, tuple[int, ...]], Any],
    across: Callable[[Any, tuple[int, ...]], Any],
) -> Array:
    """A reduction in two ways, of which the second keeps the dims.

    Args:
        name: What the user calls it, after ``sh.``.
        x (...): The operand.
        axis: The dims as the user passes them.
        keepdims: Whether the result keeps them.
        out: A type for the result, which allows communication.
        unsharded: The op over unsharded dims, in its final shape.
        across: The op over sharded dims, with keepdims.
    """
    dims = normalize_dims(axis, jax.typeof(x).ndim, name)

    def joined(x: Any) -> Array:
        y = across(x, dims)
        return y if keepdims else squeeze(y, dims)

    one = all(size == 1 or d in dims for d, size in enumerate(jax.typeof(x).shape))
    return along(name, x, dims, lambda x: unsharded(x, dims), joined, out, may_send=one and finishes_scalars())
