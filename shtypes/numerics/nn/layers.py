"""Linear layers, gates and dropout."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import jax

from shtypes.context.signature_errors import refuse_unknown
from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_ints, as_matching_operands, as_operands, is_number
from shtypes.errors import ShardingTypeError
from shtypes.numerics.random.samples import bernoulli
from shtypes.ops.along_dims import normalize_dims
from shtypes.ops.arithmetic import add, divide, multiply
from shtypes.ops.create import zeros_like
from shtypes.ops.einsum import einsum
from shtypes.ops.elementwise import gelu, silu
from shtypes.ops.functions import where
from shtypes.types import ShType, State


@public
def linear(
    x: ArrayLike, w: Any, b: ArrayLike | None = None, *, dims: int = 1, out: Any = None, **options: Any
) -> Array:
    """``x @ w + b``: the last dims of ``x`` contracted with the first of ``w``; typed as `einsum`.

    Args:
        x (..., i): Rows.
        w (i, ...): Weights; all other dims are in the result.
        b (...): A bias, added once, after ``out``.
        dims: The number of contracted dims: 2 for weights of ``(heads, head, hidden)``.
        out: A type to reshard the product to, such as ``"[..., _]"``: all-reduced if it is unreduced.
        **options: Those of `einsum`: ``overlap``, ``precision``, ``preferred_element_type``.

    Returns:
        (..., ...): The result; without ``out`` unreduced on the axes that shard the contracted dims.

    Communicates: only the reshard to ``out``. Transpose: einsums.

    Examples:
        >>> import numpy as np
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"tp": 2})):
        ...     x, w = sh.array(np.ones((3, 4)), "[3,4@tp]"), sh.array(np.ones((4, 2)), "[4@tp,2]")
        ...     sh.nn.linear(x, w).type, sh.nn.linear(x, w, out="[3,2]").type
        (f32[3,2]{U:tp}, f32[3,2])
    """
    refuse_unknown("linear", options, ("overlap", "precision", "preferred_element_type"))
    values, _ = as_operands([x, w])
    n, m = (jax.typeof(v).ndim for v in values)
    if not 0 < dims <= min(n, m):
        raise ShardingTypeError(f"`linear` over {dims} dims does not fit arrays of {n} and {m} dims")
    letters = string.ascii_letters
    rows, shared, columns = letters[: n - dims], letters[n - dims : n], letters[n : n + m - dims]
    y = einsum(f"{rows}{shared},{shared}{columns}->{rows}{columns}", x, w, out=out, **options)
    return y if b is None else add(y, b)


@public
def swiglu(gate: Any, value: Any) -> Array:
    """``silu(gate) * value``. Communicates: nothing."""
    gate, value = as_matching_operands([gate, value])
    return multiply(silu(gate), value)


@public
def geglu(gate: Any, value: Any, *, approximate: bool = True) -> Array:
    """``gelu(gate) * value``. Communicates: nothing."""
    gate, value = as_matching_operands([gate, value])
    return multiply(gelu(gate, approximate=approximate), value)


@public
def dropout(
    x: ArrayLike, rate: float, key: Any, *, broadcast_dims: int | Sequence[int] = (), deterministic: bool = False
) -> Array:
    """Sets elements to zero at random, and divides the others by ``1 - rate``.

    The mask is that of the global array: it depends on the key, and not on the mesh or the value's sharding.

    Args:
        x (...): A value, in any state.
        rate: The probability of an element to be dropped.
        key (): A key of `sh.random`.
        broadcast_dims: Dims along which the mask is constant.
        deterministic: Whether to drop nothing.

    Returns:
        (...): The result, of the type of ``x``.

    Communicates: nothing. Transpose: the same mask.
    """
    if not is_number(rate) or not 0 <= rate <= 1:
        raise ShardingTypeError(f"the rate of `dropout` is a number from 0 to 1, not {rate!r:.40}")
    ((x,), _) = as_operands([x])
    t: ShType = jax.typeof(x)
    shared = normalize_dims(as_ints(broadcast_dims, "`broadcast_dims`"), t.ndim, "dropout")
    if deterministic or rate == 0:
        return x
    if rate == 1:
        return zeros_like(x)
    return where(bernoulli(key, 1 - rate, _mask_type(t, shared)), divide(x, 1 - rate), 0)


def _mask_type(t: ShType, shared: Sequence[int]) -> ShType:
    """The type of a mask: sharded and varying where the value is."""
    for d in shared:
        t = t.replace(
            dims=[dim._replace(size=1, axes=()) if i == d else dim for i, dim in enumerate(t.dims)],
            states={
                a: State.REDUCED if s is State.SHARDED else s
                for a, s in zip(t.mesh.axis_names, t.states, strict=True)
                if s is not State.SHARDED or a in t.dims[d].axes
            },
        )
    same = (State.SHARDED, State.VARYING)
    return t.replace(dtype="bool", states=[s if s in same else State.REDUCED for s in t.states])
