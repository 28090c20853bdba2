"""Ops along dims: local where no axis shards them, else across devices if the user allows communication.

``out=`` or an `implicit_comm` scope allows it. Else the error offers it as a fix, typed again and priced by the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from shtypes.core.array import Array
from shtypes.dispatch.apply import finish_once
from shtypes.dispatch.call_fixes import with_out_fixes
from shtypes.dispatch.reshard import finished
from shtypes.errors import ShardingTypeError
from shtypes.ops.along_dims import Axis, normalize_dims
from shtypes.ops.functions import squeeze
from shtypes.scopes.scope_rules import allows_implicit, finishes_scalars
from shtypes.types import ShType

ArrayFn = Callable[[Any], Array]


def sharding(t: ShType, dims: Sequence[int]) -> tuple[str, ...]:
    """The mesh axes that shard the dims, dim by dim."""
    return tuple(a for d in dims for a in t.dims[d].axes)


def along(
    name: str,
    x: Any,
    dims: Sequence[int],
    unsharded: ArrayFn,
    across: ArrayFn,
    out: Any = None,
    *,
    may_send: bool = False,
) -> Array:
    """An op along ``dims``: ``unsharded`` where no axis shards them, else ``across`` if communication is allowed.

    ``name`` is the op after ``sh.``, for fixes. ``unsharded`` refuses sharded dims. ``out``, a type to reshard the
    result to, or ``may_send`` allows communication.
    """
    if not sharding(jax.typeof(x), dims):
        return finished(unsharded(x), out)
    if may_send or may_communicate(out):
        if allows_implicit():  # else the ops in `across` refuse a pending sum, in the words of the op
            x = finish_once(name, x)
        return finished(across(x), out)
    try:
        return unsharded(x)
    except ShardingTypeError as error:
        raise with_out_fixes(error, name, across, jax.typeof(x)) from None


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
    """A reduction over ``axis``, as `along`: ``unsharded`` in its final shape, or ``across``, with keepdims."""
    dims = normalize_dims(axis, jax.typeof(x).ndim, name)

    def joined(x: Any) -> Array:
        y = across(x, dims)
        return y if keepdims else squeeze(y, dims)

    one = all(size == 1 or d in dims for d, size in enumerate(jax.typeof(x).shape))
    return along(name, x, dims, lambda x: unsharded(x, dims), joined, out, may_send=one and finishes_scalars())
