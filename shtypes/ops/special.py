"""More elementwise functions: of `jax.scipy.special`, and those of `jax.lax` that `jax.numpy` calls otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
from jax import lax

from shtypes import dtypes
from shtypes.errors import ShardingTypeError
from shtypes.functions.basics import LinearFn
from shtypes.lowering.replay import public
from shtypes.ops import rules
from shtypes.ops.dispatch import apply, dtype_name, lift, result_dtype
from shtypes.ops.elementwise import (
    _nonlinear,
    _special,
    add,
    astype,
    divide,
    equal,
    floor_divide,
    gammainc,
    gammaincc,
    greater,
    greater_equal,
    i0e,
    i1e,
    isfinite,
    left_shift,
    less,
    less_equal,
    mod,
    multiply,
    negative,
    not_equal,
    subtract,
    trunc,
)
from shtypes.ops.select import where
from shtypes.ops.whole import apply_whole, function

# of `jax.scipy.special`; the parameters that count something are numbers
exp1, expi, spence = _special("exp1"), _special("expi"), _special("spence")
gamma, gammasgn, factorial = _special("gamma"), _special("gammasgn"), _special("factorial")
beta, zeta, polygamma = _special("beta", arity=2), _special("zeta", arity=2), _special("polygamma", arity=2)
poch, expn, hyp1f1 = _special("poch", arity=2), _special("expn", arity=2), _special("hyp1f1", arity=3)
multigammaln = _special("multigammaln")

# of `jax.lax`
neg, sub, mul = negative, subtract, multiply
eq, ne, lt, le, gt, ge = equal, not_equal, less, less_equal, greater, greater_equal
igamma, igammac, bessel_i0e, bessel_i1e = gammainc, gammaincc, i0e, i1e
is_finite, shift_left, convert_element_type = isfinite, left_shift, astype
population_count, clz = _nonlinear("population_count", lax.population_count), _nonlinear("clz", lax.clz)
rem = _nonlinear("fmod", arity=2)


def _together(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `jax.lax`, which wants operands of one shape and dtype, of operands that broadcast."""

    def broadcast(*xs: Any) -> Any:
        dtype = jnp.result_type(*xs)
        return fn(*jnp.broadcast_arrays(*(jnp.asarray(x, dtype) for x in xs)))

    return broadcast


_truncated = _nonlinear("div", _together(lax.div), arity=2)
shift_right_arithmetic = _nonlinear("shift_right_arithmetic", _together(lax.shift_right_arithmetic), arity=2)
shift_right_logical = _nonlinear("shift_right_logical", _together(lax.shift_right_logical), arity=2)
igamma_grad_a = _nonlinear("igamma_grad_a", _together(lax.igamma_grad_a), arity=2)
random_gamma_grad = _nonlinear("random_gamma_grad", _together(lax.random_gamma_grad), arity=2)
reduce_precision = _nonlinear("reduce_precision", lax.reduce_precision)
_clamped = _nonlinear("clamp", _together(lax.clamp), arity=3)
_integer_pow = _nonlinear("integer_pow", lax.integer_pow)


@public
def integer_pow(x: Any, y: int) -> Any:
    """``x`` to a whole power, as `jax.lax.integer_pow`; nonlinear, but for the power 1."""
    return x if y == 1 else _integer_pow(x, y=y)


@public
def div(x: Any, y: Any) -> Any:
    """``x / y``, as `jax.lax.div`: of integers the whole part, towards zero; else typed as `divide`."""
    (a, b), _ = lift([x, y])
    if jnp.issubdtype(jnp.result_type(jax.typeof(a).dtype, jax.typeof(b).dtype), jnp.integer):
        return _truncated(x, y)
    return divide(x, y)


@public
def complex_(x: Any, y: Any) -> Any:
    """``x + i y``, as `jax.lax.complex`: linear in both, typed as `add`.

    Args:
        x (...): The real part, a float.
        y (...): The imaginary part.

    Communicates: nothing. Transpose: the parts of the cotangent.
    """
    names = [jax.typeof(v).dtype_name for v in lift([x, y])[0]]
    if set(names) - {"f32", "f64"}:
        raise ShardingTypeError(f"`complex` takes floats of 32 or 64 bits, not {' and '.join(names)}")
    return add(x, multiply(y, 1j))


@public
def clamp(min: Any, x: Any, max: Any) -> Any:
    """``x`` held between two bounds, as `jax.lax.clamp`: at a bound nothing has a gradient (`clip` shares it).

    Args:
        min (...): Lower bound, a number or an array that broadcasts.
        x (...): A value.
        max (...): Upper bound, likewise.

    Returns:
        (...): Nonlinear, typed as `maximum`.

    Communicates: nothing.
    """
    return _clamped(min, x, max)


@public
def select_n(which: Any, *cases: Any) -> Any:
    """The case whose number ``which`` has, as `jax.lax.select_n`: a bool or an integer; typed as `where`."""
    ((chosen,), _) = lift([which])
    if jax.typeof(chosen).dtype_name == "bool":
        if len(cases) > 2:
            raise ShardingTypeError(f"`select_n` of a bool takes one or two cases, not {len(cases)}")
        return where(chosen, cases[-1], cases[0])
    picked = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        picked = where(less_equal(chosen, i), cases[i], picked)
    return picked


@public
def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
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
def divmod_(x: Any, y: Any) -> tuple[Any, Any]:
    """Quotient and remainder, as `jax.numpy.divmod`; nonlinear."""
    return floor_divide(x, y), mod(x, y)


@public
def frexp(x: Any) -> tuple[Any, Any]:
    """Mantissa and exponent, as `jax.numpy.frexp`; every state but unreduced is kept."""
    ((x,), _) = lift([x])
    mantissa, exponent = apply_whole("frexp", function("frexp", jnp.frexp), x, [])
    return mantissa, exponent


@public
def modf(x: Any) -> tuple[Any, Any]:
    """Fraction and whole part, as `jax.numpy.modf`; nonlinear."""
    whole = trunc(x)
    return subtract(x, whole), whole


@public
def optimization_barrier(operand: Any) -> Any:
    """The same values, computed before what follows, as `jax.lax.optimization_barrier`; every state is kept."""

    def barred(x: Any) -> Any:
        ((x,), _) = lift([x])
        fn = LinearFn("optimization_barrier", lax.optimization_barrier)
        dtype = result_dtype(fn, [x])
        return apply("optimization_barrier", fn, lambda types: rules.linear_unary("barrier", types[0], dtype), x)

    from shtypes.ops.dispatch import is_typed

    return jax.tree.map(barred, operand, is_leaf=is_typed)


complex_.__name__ = "complex"
__all__ = [
    "bessel_i0e", "bessel_i1e", "beta", "bitcast_convert_type", "clamp", "clz", "convert_element_type", "div", "eq",
    "exp1", "expi", "expn", "factorial", "frexp", "gamma", "gammasgn", "ge", "gt", "hyp1f1", "igamma", "igamma_grad_a",
    "igammac", "integer_pow", "is_finite", "le", "lt", "modf", "mul", "multigammaln", "ne", "neg",
    "optimization_barrier", "poch", "polygamma", "population_count", "random_gamma_grad", "reduce_precision", "rem",
    "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "spence", "sub", "zeta",
]  # fmt: skip
