"""Elementwise functions that are more than a row of the table: with several results, or a case of their own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
from jax import lax

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.functions.basics import NamedFn
from shtypes.core.localfn import Linear
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.arithmetic import add, astype, divide, multiply, subtract
from shtypes.ops.dispatch import apply, dtype_name, is_typed, lift, meeting, result_dtype
from shtypes.ops.elementwise import floor_divide, less_equal, mod, trunc
from shtypes.ops.pointwise import apply_nonlinear, together
from shtypes.ops.select import where
from shtypes.ops.whole import apply_whole, apply_whole_tree, function
from shtypes.types import dtypes


@public
def integer_pow(x: ArrayLike, y: int) -> Array:
    """``x`` to a whole power, as `jax.lax.integer_pow`; nonlinear, but for the power 1."""
    return lift([x])[0][0] if y == 1 else apply_nonlinear("integer_pow", lax.integer_pow, [x], {"y": y})


@public
def div(x: ArrayLike, y: ArrayLike) -> Array:
    """``x / y``, as `jax.lax.div`: of integers the whole part, towards zero; else typed as `divide`."""
    (a, b), _ = lift([x, y])
    if jnp.issubdtype(jnp.result_type(jax.typeof(a).dtype, jax.typeof(b).dtype), jnp.integer):
        return apply_nonlinear("div", together(lax.div), [x, y], {})
    return divide(x, y)


@public
def complex_(x: ArrayLike, y: ArrayLike) -> Array:
    """``x + i y``, as `jax.lax.complex`: linear in both, typed as `add`.

    Args:
        x (...): The real part, a float.
        y (...): The imaginary part.

    Communicates: nothing. Transpose: the parts of the cotangent.
    """
    x, y = meeting([x, y])
    names = [jax.typeof(v).dtype_name for v in (x, y)]
    if set(names) - {"f32", "f64"}:
        raise ShardingTypeError(f"`complex` takes floats of 32 or 64 bits, not {' and '.join(names)}")
    return add(x, multiply(y, 1j))


@public
def clamp(min: Any, x: ArrayLike, max: Any) -> Array:
    """``x`` held between two bounds, as `jax.lax.clamp`: at a bound nothing has a gradient (`clip` shares it).

    Args:
        min (...): Lower bound, a number or an array that broadcasts.
        x (...): A value.
        max (...): Upper bound, likewise.

    Returns:
        (...): Nonlinear, typed as `maximum`.

    Communicates: nothing.
    """
    return apply_nonlinear("clamp", together(lax.clamp), [min, x, max], {})


@public
def select_n(which: Any, *cases: Any) -> Array:
    """The case whose number ``which`` has, as `jax.lax.select_n`: a bool or an integer; typed as `where`."""
    ((chosen,), _) = lift([which])
    t = jax.typeof(chosen)
    if t.dtype_name != "bool" and not jnp.issubdtype(t.dtype, jnp.integer):
        raise ShardingTypeError(f"`select_n` selects by a bool or an integer, not by {t}")
    if t.dtype_name == "bool":
        if len(cases) > 2:
            raise ShardingTypeError(f"`select_n` of a bool takes one or two cases, not {len(cases)}")
        return where(chosen, cases[-1], cases[0])
    ((picked,), _) = lift(cases[-1:])
    for i in reversed(range(len(cases) - 1)):
        picked = where(less_equal(chosen, i), cases[i], picked)
    return picked


@public
def bitcast_convert_type(operand: ArrayLike, new_dtype: Any) -> Array:
    """The bits read as another dtype of the same width, as `jax.lax.bitcast_convert_type`; nonlinear, no gradient.

    Args:
        operand (...): A value; every state but unreduced is kept.
        new_dtype: A dtype of as many bits.

    Communicates: nothing.
    """
    ((x,), _) = lift([operand])
    t, name = jax.typeof(x), dtype_name(new_dtype)
    if name == "bool" or dtypes.bits(name) != dtypes.bits(t.dtype_name):
        raise ShardingTypeError(f"`bitcast_convert_type` of {t} needs a dtype of as many bits, not `{name}`")
    fn = function("bitcast", lax.bitcast_convert_type, new_dtype=dtypes.to_numpy(name))
    return apply_whole("bitcast_convert_type", fn, x, [])


# several results


@public
def divmod_(x1: ArrayLike, x2: ArrayLike) -> tuple[Array, Array]:
    """Quotient and remainder, as `jax.numpy.divmod`; nonlinear."""
    return floor_divide(x1, x2), mod(x1, x2)


@public
def frexp(x: ArrayLike) -> tuple[Array, Array]:
    """Mantissa and exponent, as `jax.numpy.frexp`; every state but unreduced is kept."""
    ((x,), _) = lift([x])
    mantissa, exponent = apply_whole_tree("frexp", function("frexp", jnp.frexp), x, [])
    return mantissa, exponent


@public
def modf(x: ArrayLike) -> tuple[Array, Array]:
    """Fraction and whole part, as `jax.numpy.modf`; nonlinear."""
    ((x,), _) = lift([x])
    if not jax.typeof(x).differentiable:
        x = astype(x, dtype_name(jnp.result_type(float)))
    whole = trunc(x)
    return subtract(x, whole), whole


@public
def optimization_barrier(operand: Any) -> Any:
    """The same values, computed before what follows, as `jax.lax.optimization_barrier`; every state is kept."""

    def barred(x: Any) -> Array:
        ((x,), _) = lift([x])
        fn = NamedFn("optimization_barrier", lax.optimization_barrier, linear=Linear.JOINTLY)
        dtype = result_dtype(fn, [x])
        return apply("optimization_barrier", fn, lambda types: rules.linear_unary("barrier", types[0], dtype), x)

    return jax.tree.map(barred, operand, is_leaf=is_typed)


complex_.__name__ = "complex"
