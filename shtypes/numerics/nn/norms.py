"""Layer normalisation: statistics of each row, in at least 32 bits, then scale and shift."""

from __future__ import annotations

import functools
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.ops.along_dims import Axis
from shtypes.ops.jax_functions import JaxFunction


def _normalized(x: Any, scale: Any, bias: Any, axis: Any, epsilon: float, centered: bool) -> Any:
    y = x.astype(jnp.promote_types(x.dtype, np.float32))
    if centered:
        y = y - y.mean(axis, keepdims=True)
    y = (y * lax.rsqrt(jnp.square(y).mean(axis, keepdims=True) + epsilon)).astype(x.dtype)
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


_RMS_NORM: Final = JaxFunction("nn.rms_norm", functools.partial(_normalized, bias=None, centered=False))
_LAYER_NORM: Final = JaxFunction("nn.layer_norm", functools.partial(_normalized, centered=True))


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
    normalized: Array = _RMS_NORM.into(out, x, scale, axis=axis, epsilon=float(epsilon))
    return normalized


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
    normalized: Array = _LAYER_NORM.into(out, x, scale, bias, axis=axis, epsilon=float(epsilon))
    return normalized
