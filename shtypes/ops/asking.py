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
from shtypes.dispatch.apply import settled
from shtypes.dispatch.call_fixes import with_own_fixes
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
    name: str, x: Any, dims: Sequence[int], whole: Whole, across: Whole, out: Any = None, *, asked: bool = False
) -> Array:
    """An op along ``dims``: ``whole`` where no axis shards them, else ``across`` if communication is asked for.

    Args:
        name: What the user calls it, after ``sh.``: for fixes.
        x (...): The operand.
        dims: The dims.
        whole: The op where every device holds the dims; refuses sharded ones.
        across: The op where they are sharded.
        out: A type to reshard the result to, which allows communication.
        asked: Whether something else allows it.

    Raises:
        ShardingTypeError: a dim is sharded, and communication is not asked for; or what the op itself refuses.
    """
    if not sharding(jax.typeof(x), dims):
        return finished(whole(x), out)
    if asked or may_communicate(out):
        if allows_implicit():  # else what `across` is made of refuses a pending sum, in the words of the op
            x = settled(name, lambda types: rules.nonlinear(name, types, types[0].dtype_name), x)
        return finished(across(x), out)
    try:
        return whole(x)
    except ShardingTypeError as error:
        raise with_own_fixes(error, name, across, jax.typeof(x)) from None


def may_communicate(out: Any) -> bool:
    """Whether the user asked for it."""
    return out is not None or allows_implicit()


def over(
    name: str,
    x: Any,
    axis: Axis,
    keepdims: Any,
    out: Any,
    whole: Callable[[Any, tuple[int, ...]], Any],
    across: Callable[[Any, tuple[int, ...]], Any],
) -> Array:
    """A reduction in two ways, of which the second keeps the dims.

    Args:
        name: What the user calls it, after ``sh.``.
        x (...): The operand.
        axis: The dims as the user gives them.
        keepdims: Whether the result keeps them.
        out: A type for the result, which allows communication.
        whole: The op over dims that are whole, in its final shape.
        across: The op over dims that are sharded, which it keeps with size 1.
    """
    dims = normalize_dims(axis, jax.typeof(x).ndim, name)

    def joined(x: Any) -> Array:
        y = across(x, dims)
        return y if keepdims else squeeze(y, dims)

    one = all(size == 1 or d in dims for d, size in enumerate(jax.typeof(x).shape))
    return along(name, x, dims, lambda x: whole(x, dims), joined, out, asked=one and finishes_scalars())
