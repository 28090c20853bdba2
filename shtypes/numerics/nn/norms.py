"""Layer normalisation: statistics of each row, in at least 32 bits, then scale and shift."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import as_matching_operands
from shtypes.dispatch.reshard import finished
from shtypes.ops.along_dims import Axis, apply_unsharded, function, normalize_dims
from shtypes.ops.arithmetic import add, astype, multiply, subtract
from shtypes.ops.cross_shard import along
from shtypes.ops.elementwise import rsqrt, square
from shtypes.ops.sharded_reductions import averaged, wide
from shtypes.types import dtypes


def _normalized(name: str, x: Any, axis: Axis, epsilon: float, out: Any, centered: bool) -> Array:
    t = jax.typeof(x)
    dims = normalize_dims(axis, t.ndim, name)

    def across(x: Any) -> Array:
        y = astype(x, wide(t.dtype_name))
        if centered:
            y = subtract(y, averaged(y, dims))
        y = multiply(y, rsqrt(add(averaged(square(y), dims), float(epsilon))))
        return astype(y, t.dtype_name)

    fn = function(name, _local, axis=dims, epsilon=float(epsilon), centered=centered)
    target = None if out is None else t
    return along(f"nn.{name}", x, dims, lambda x: apply_unsharded(name, fn, x, dims), across, target)


def _local(x: Any, axis: tuple[int, ...], epsilon: float, centered: bool) -> Any:
    y = x.astype(dtypes.to_numpy(wide(dtypes.from_numpy(x.dtype))))
    if centered:
        y = y - y.mean(axis, keepdims=True)
    return (y * lax.rsqrt(jnp.square(y).mean(axis, keepdims=True) + epsilon)).astype(x.dtype)


@public
def rms_norm(x: ArrayLike, scale: Any = None, *, axis: Axis = -1, epsilon: float = 1e-6, out: Any = None) -> Array:
    """Divides rows by their root mean square, and multiplies by a scale.

    Per axis: every state but unreduced is preserved. If the rows are distributed and the scale is reduced, its gradient
    is
    unreduced: each device has the term of its rows.

    Args:
        x (..., n): A value; ``n`` is dim ``axis``. Means are computed in at least 32 bits.
        scale (n): Factors, one for each element of a row.
        axis: The dims of a row.
        epsilon: Added to the mean square.
        out: A type for the result, such as that of ``x``; allows communication if the rows themselves are sharded.

    Returns:
        (..., n): The result; without ``scale`` of the type of ``x``.

    Raises:
        ShardingTypeError: the rows are sharded and communication is not allowed; the value is unreduced.

    Communicates: nothing; with sharded rows, an all-reduce of one number for each row, forward and backward. Transpose:
    by JAX.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"tp": 2})):
        ...     x = sh.ones("f32[3, 4@tp]")
        ...     sh.nn.rms_norm(x, out="[_, _@tp]").type
        f32[3,4@tp]
    """
    x, *factors = as_matching_operands([v for v in (x, scale) if v is not None])
    y = _normalized("rms_norm", x, axis, epsilon, out, centered=False)
    return finished(multiply(y, *factors) if factors else y, out)


@public
def layer_norm(
    x: ArrayLike,
    scale: Any = None,
    bias: Any = None,
    *,
    axis: Axis = -1,
    epsilon: float = 1e-5,
    out: Any = None,
) -> Array:
    """Subtracts the mean of rows, divides by their standard deviation, scales and shifts; typed as `rms_norm`.

    Args:
        x (..., n): A value, as for `rms_norm`.
        scale (n): Factors.
        bias (n): Terms.
        axis: The dims of a row.
        epsilon: Added to the variance.
        out: As for `rms_norm`.

    Returns:
        (..., n): The result; without ``scale`` and ``bias`` of the type of ``x``.

    Raises:
        ShardingTypeError: as for `rms_norm`.

    Communicates: nothing; with sharded rows, two all-reduces of one number for each row, forward and backward.
    Transpose: by JAX.
    """
    x, *params = as_matching_operands([v for v in (x, scale, bias) if v is not None])
    y = _normalized("layer_norm", x, axis, epsilon, out, centered=True)
    y = y if scale is None else multiply(y, params[0])
    return finished(y if bias is None else add(y, params[-1]), out)
