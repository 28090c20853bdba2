"""Arithmetic and casts: the elementwise functions whose rules look at more than their states. None communicates.

Operands broadcast as in numpy. Python numbers and plain concrete arrays are constants: they take any state. A plain
traced array enters with the type that JAX's type means.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.eager_cache import public
from shtypes.core.elementwise_fns import Add, AddNumber, Cast, Divide, DivideBy, Mul, Scale
from shtypes.core.shard_fn import local_dtype
from shtypes.dispatch.apply import apply, as_operands, dtype_name, is_number, is_typed, result_dtype
from shtypes.ops.elementwise import maximum, minimum
from shtypes.ops.pointwise import apply_linear, apply_nonlinear
from shtypes.types import State, dtypes


@public
def add(x: ArrayLike, y: ArrayLike) -> Array:
    """``x + y``.

    Per axis: unreduced and replicated give unreduced (the replicated one counts on index 0 only); sharded and
    replicated give sharded; equal states stay. A non-zero constant added to an unreduced value counts once.

    Args:
        x (...): An operand.
        y (...): The other; shapes broadcast.

    Returns:
        (...): The sum.

    Raises:
        ShardingTypeError: one operand is sharded or varying where the other is unreduced, or they are sharded
            differently.

    Transpose: the cotangent, to both. Communicates: nothing; where an invariant operand meets another state, its cast
    communicates backward.
    """
    return _additive("add", x, y, minus=False)


@public
def subtract(x: ArrayLike, y: ArrayLike) -> Array:
    """``x - y``; typed as `add`."""
    return _additive("sub", x, y, minus=True)


def _additive(name: str, x: ArrayLike, y: ArrayLike, *, minus: bool) -> Array:
    if is_number(x) != is_number(y):
        value, number, reverse = (y, x, True) if is_number(x) else (x, y, False)
        ((value,), _) = as_operands([value])
        unreduced = State.UNREDUCED in jax.typeof(value).states
        if not (unreduced and number != 0):
            return apply_linear(name, AddNumber(number, minus, reverse and minus), value)
        # Added on each device it would count once per device: an array, it is masked like any replicated operand. Of
        # numpy, since JAX's would be traced, and have a gradient.
        dtype = local_dtype(AddNumber(number), (jax.typeof(value).dtype_name,))
        array = np.asarray(number) if isinstance(number, complex) else np.asarray(number, dtypes.to_numpy(dtype))
        x, y = (array, value) if reverse else (value, array)
    operands, constants = as_operands([x, y])
    dtype = result_dtype(Add(minus), operands)
    return apply(name, Add(minus), lambda types: rules.additive(name, types, dtype, constants), *operands)


@public
def multiply(x: ArrayLike, y: ArrayLike) -> Array:
    """``x * y``.

    Per axis: one unreduced operand needs the other reduced; sharded with replicated gives sharded; equal replicated
    states stay, reduced wins over invariant.

    Args:
        x (...): An operand.
        y (...): The other; shapes broadcast.

    Returns:
        (...): The product.

    Raises:
        ShardingTypeError: both are unreduced on an axis, or one is unreduced and the other sharded, or both are
            sharded on different dims.

    Transpose: multiplication by the other operand, summed over broadcast dims. Communicates: nothing; the cast of an
    invariant operand communicates backward.
    """
    if is_number(x) != is_number(y):
        number, value = (x, y) if is_number(x) else (y, x)
        return apply_linear("mul", Scale(number), value)
    operands, constants = as_operands([x, y])
    dtype = result_dtype(Mul(), operands)
    return apply("mul", Mul(), lambda types: rules.multilinear("mul", types, dtype, constants), *operands)


@public
def divide(x: ArrayLike, y: ArrayLike) -> Array:
    """``x / y``: linear in the numerator, so that may be unreduced; the denominator may not.

    Args:
        x (...): Numerator.
        y (...): Denominator; shapes broadcast.

    Returns:
        (...): The quotient.

    Raises:
        ShardingTypeError: the denominator is unreduced, or as for `multiply`.

    Transpose: division of the cotangent. Communicates: nothing; the cast of an invariant operand communicates backward.
    """
    if is_number(y) and not is_number(x):
        return apply_linear("div", DivideBy(y), x)
    if is_number(x) and not is_number(y):
        return apply_nonlinear("div", jnp.divide, (x, y), {})
    operands, constants = as_operands([x, y])
    dtype = result_dtype(Divide(), operands)
    return apply("div", Divide(), lambda types: rules.divide(types[0], types[1], dtype, constants), *operands)


@public
def negative(x: ArrayLike) -> Array:
    """``-x``; linear: every state stays."""
    return apply_linear("neg", Scale(-1), x)


@public
def positive(x: ArrayLike) -> Array:
    """``+x``."""
    return as_operands([x])[0][0]


@public
def astype(x: ArrayLike, dtype: Any, copy: bool = False, *, narrow: bool = False) -> Array:
    """Another dtype.

    Args:
        x (...): A value.
        dtype: A dtype, or its short or long name.
        copy: Accepted for compatibility; ignored.
        narrow: Allows rounding each partial value of an unreduced operand to a narrower float.

    Returns:
        (...): The value in that dtype, in the same states; an integer that becomes a float is replicated by policy.

    Raises:
        ShardingTypeError: an unreduced value would become an integer or a bool, or a narrower float without ``narrow``.

    Transpose: the cast back. Communicates: nothing.
    """
    ((x,), _) = as_operands([x])
    name = dtype_name(dtype)
    if name == jax.typeof(x).dtype_name:
        return x
    return apply("astype", Cast(name), lambda types: rules.cast(types[0], name, narrow=narrow), x)


@public
def power(x: ArrayLike, y: ArrayLike) -> Array:
    """``x ** y`` of JAX, element by element; typed as the other nonlinear functions, but for the power of one.

    Args:
        x (...): The base.
        y (...): The exponent; shapes broadcast. The number 1 keeps every state, unreduced too.

    Raises:
        ShardingTypeError: an operand is unreduced (the function is not linear), or they are sharded differently.

    Communicates: nothing. Transpose: by JAX, element by element.
    """
    if is_number(y) and y == 1 and is_typed(x) and jax.typeof(x).dtype_name != "bool":
        return multiply(x, y)  # the same value in the same dtype, and linear
    return apply_nonlinear("power", jnp.power, (x, y), {})


@public
def clip(x: ArrayLike, min: Any = None, max: Any = None) -> Array:
    """The operand clipped to ``min`` and ``max``; nonlinear, typed as `maximum`.

    Args:
        x (...): A value.
        min: Lower bound, a number or an array that broadcasts; None for none.
        max: Upper bound, likewise.
    """
    if min is None and max is None:
        return as_operands([x])[0][0]
    if min is None:
        return minimum(x, max)
    return maximum(x, min) if max is None else apply_nonlinear("clip", jnp.clip, (x, min, max), {})
