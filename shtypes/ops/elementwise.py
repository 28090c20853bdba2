"""Arithmetic and the elementwise functions of `jax.numpy` and `jax.nn`. None of them communicates.

Operands broadcast as in numpy. Python numbers and plain concrete arrays are constants: they take any state. A plain
traced array enters with the type that JAX's own type means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np

from shtypes import dtypes
from shtypes.calls import parameters, refuse_unknown
from shtypes.errors import ShardingTypeError
from shtypes.functions.arithmetic import Add, AddNumber, Divide, DivideBy, Mul, Scale
from shtypes.functions.basics import Cast, Elementwise, LinearFn, WithNumbers
from shtypes.localfn import LocalFn, local_dtype
from shtypes.lowering.replay import public
from shtypes.ops import rules
from shtypes.ops.dispatch import apply, dtype_name, is_number, is_typed, lift, result_dtype
from shtypes.types import State

__all__ = [  # noqa: RUF022  # by the alphabet
    "abs", "absolute", "acos", "acosh", "add", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan",
    "arctan2", "arctanh", "around", "asin", "asinh", "astype", "atan", "atan2", "atanh", "betainc", "betaln",
    "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "cbrt", "ceil", "celu", "clip", "conj", "conjugate", "copysign", "cos",
    "cosh", "deg2rad", "degrees", "digamma", "divide", "elu", "entr", "equal", "erf", "erf_inv", "erfc", "erfinv",
    "exp", "exp2", "expit", "expm1", "fabs", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod",
    "gammainc", "gammaincc", "gammaln", "gcd", "gelu", "greater", "greater_equal", "hard_sigmoid", "hard_silu",
    "hard_swish", "hard_tanh", "heaviside", "hypot", "i0", "i0e", "i1", "i1e", "imag", "invert",
    "isclose", "iscomplex", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "kl_div", "lcm",
    "ldexp", "leaky_relu", "left_shift", "less", "less_equal", "lgamma", "log", "log10", "log1mexp", "log1p",
    "log2", "log_ndtr", "log_sigmoid", "logaddexp", "logaddexp2", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logistic", "logit", "maximum", "minimum", "mish", "mod", "multiply", "nan_to_num", "ndtr",
    "ndtri", "negative", "nextafter", "not_equal", "positive", "pow", "power", "rad2deg", "radians", "real",
    "reciprocal", "rel_entr", "relu", "relu6", "remainder", "right_shift", "rint", "round", "rsqrt", "selu",
    "sigmoid", "sign", "signbit", "silu", "sin", "sinc", "sinh", "soft_sign", "softplus", "spacing",
    "sparse_plus", "sparse_sigmoid", "sqrt", "square", "squareplus", "subtract", "swish", "tan", "tanh",
    "true_divide", "trunc", "xlog1py", "xlogy",
]  # fmt: skip

Value = Any


def _unary_linear(name: str, fn: LocalFn, x: Value) -> Value:
    """A linear function of one operand: every state is kept, unreduced too."""
    ((x,), _) = lift([x])
    dtype = result_dtype(fn, [x])
    return apply(name, fn, lambda types: rules.linear_unary(name, types[0], dtype), x)


@public
def add(x: Value, y: Value) -> Value:
    """``x + y``.

    Per axis: unreduced and replicated give unreduced (the replicated one is kept on index 0 only); sharded and
    replicated give sharded; equal states are kept. A non-zero constant added to an unreduced value counts once.

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
def subtract(x: Value, y: Value) -> Value:
    """``x - y``; typed as `add`."""
    return _additive("sub", x, y, minus=True)


def _additive(name: str, x: Value, y: Value, *, minus: bool) -> Value:
    if is_number(x) != is_number(y):
        value, number, reverse = (y, x, True) if is_number(x) else (x, y, False)
        ((value,), _) = lift([value])
        unreduced = State.UNREDUCED in jax.typeof(value).states
        if not (unreduced and number != 0):
            fn = AddNumber(number, minus, reverse and minus)
            return _unary_linear(name, fn, value)
        # Added on each device it would count once per device: an array, it is masked like any replicated operand. Of
        # numpy, since JAX's would be traced, and have a gradient.
        dtype = local_dtype(AddNumber(number), (jax.typeof(value).dtype_name,))
        array = np.asarray(number) if isinstance(number, complex) else np.asarray(number, dtypes.to_numpy(dtype))
        x, y = (array, value) if reverse else (value, array)
    operands, constants = lift([x, y])
    dtype = result_dtype(Add(minus), operands)
    return apply(name, Add(minus), lambda types: rules.additive(name, types, dtype, constants), *operands)


@public
def multiply(x: Value, y: Value) -> Value:
    """``x * y``.

    Per axis: one unreduced operand needs the other reduced; sharded with replicated gives sharded; equal replicated
    states are kept, reduced wins over invariant.

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
        return _unary_linear("mul", Scale(number), value)
    operands, constants = lift([x, y])
    dtype = result_dtype(Mul(), operands)
    return apply("mul", Mul(), lambda types: rules.multilinear("mul", types, dtype, constants), *operands)


@public
def divide(x: Value, y: Value) -> Value:
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
        return _unary_linear("div", DivideBy(y), x)
    if is_number(x) and not is_number(y):
        return _with_numbers("div", jnp.divide, (x, y), {})
    operands, constants = lift([x, y])
    dtype = result_dtype(Divide(), operands)
    return apply("div", Divide(), lambda types: rules.divide(types[0], types[1], dtype, constants), *operands)


@public
def negative(x: Value) -> Value:
    """``-x``; linear: every state is kept."""
    return _unary_linear("neg", Scale(-1), x)


def positive(x: Value) -> Value:
    """``+x``."""
    return x


@public
def astype(x: Value, dtype: Any, copy: bool = False, *, narrow: bool = False) -> Value:
    """Another dtype.

    Args:
        x (...): A value.
        dtype: A dtype, or its short or long name.
        copy: For JAX's sake.
        narrow: Allows rounding each partial value of an unreduced operand to a narrower float.

    Returns:
        (...): The value in that dtype, in the same states; an integer that becomes a float is replicated by policy.

    Raises:
        ShardingTypeError: an unreduced value would become an integer or a bool, or a narrower float without ``narrow``.

    Transpose: the cast back. Communicates: nothing.
    """
    ((x,), _) = lift([x])
    name = dtype_name(dtype)
    if name == jax.typeof(x).dtype_name:
        return x
    return apply("astype", Cast(name), lambda types: rules.cast(types[0], name, narrow=narrow), x)


def _with_numbers(name: str, fn: Callable[..., Any], xs: tuple[Any, ...], params: dict[str, Any]) -> Value:
    """A nonlinear function some of whose operands are Python numbers."""
    arrays, constants = lift([x for x in xs if not is_number(x)])
    local_fn = WithNumbers(name, fn, tuple(x if is_number(x) else None for x in xs), tuple(sorted(params.items())))
    dtype = result_dtype(local_fn, arrays)
    return apply(name, local_fn, lambda types: rules.nonlinear(name, types, dtype, constants), *arrays)


def _nonlinear(name: str, fn: Callable[..., Any] | None = None, arity: int = 1) -> Callable[..., Any]:
    """The typed form of an elementwise function of `jax.numpy` or `jax.nn`."""
    native = fn or getattr(jnp, name)
    known = parameters(native, arity)

    def op(*xs: Value, **params: Any) -> Value:
        refuse_unknown(name, params, known)
        if len(xs) < arity:
            raise ShardingTypeError(f"`{name}` takes {arity} operands, not {len(xs)}")
        given = xs[:arity]
        positional = _positional(name, native, xs[arity:], arity)
        params = {**positional, **params}
        if any(map(is_number, given)):
            if all(map(is_number, given)):
                raise ShardingTypeError(f"`{name}` was given numbers only", hints=[f"jax.numpy.{name}"])
            return _with_numbers(name, native, given, params)
        operands, constants = lift(given)
        local_fn = Elementwise(name, native, tuple(sorted(params.items())))
        dtype = result_dtype(local_fn, operands)
        return apply(name, local_fn, lambda types: rules.nonlinear(name, types, dtype, constants), *operands)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"""`{name}` of JAX, element by element.

    Args:
        *xs: {"The operand" if arity == 1 else f"The {arity} operands, which broadcast"}; Python numbers take any state.
        **params: As in JAX.

    Returns:
        (...): The result; sharded, replicated and varying states are kept, sharded with replicated gives sharded.

    Raises:
        ShardingTypeError: an operand is unreduced (the function is not linear), or they are sharded differently.

    Communicates: nothing. Transpose: by JAX, element by element.
    """
    return public(op)


def _positional(name: str, native: Callable[..., Any], extra: tuple[Any, ...], arity: int) -> dict[str, Any]:
    """Positional parameters after the operands, by name, so that they can be hashed and printed."""
    if not extra:
        return {}
    import inspect

    names = list(inspect.signature(native).parameters)[arity : arity + len(extra)]
    if len(names) < len(extra):
        raise ShardingTypeError(f"`{name}` takes {arity} operands, not {arity + len(extra)}")
    return dict(zip(names, extra, strict=True))


def _linear(name: str) -> Callable[[Value], Value]:
    native = getattr(jnp, name)

    def op(x: Value) -> Value:
        return _unary_linear(name, LinearFn(name, native), x)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = f"`{name}` of JAX: linear, so every state is kept. Communicates: nothing."
    return public(op)


def _special(name: str, arity: int = 1) -> Callable[..., Any]:
    return _nonlinear(name, getattr(jax.scipy.special, name), arity)


# linear
real, imag, conj = _linear("real"), _linear("imag"), _linear("conj")
deg2rad, rad2deg = _linear("deg2rad"), _linear("rad2deg")
conjugate, radians, degrees = conj, deg2rad, rad2deg
true_divide = divide

# one operand
abs = absolute = _nonlinear("abs")
fabs, spacing = _nonlinear("fabs"), _nonlinear("spacing")
sign, floor, ceil, trunc, rint = map(_nonlinear, ("sign", "floor", "ceil", "trunc", "rint"))
round = around = _nonlinear("round")
exp, exp2, expm1 = map(_nonlinear, ("exp", "exp2", "expm1"))
log, log2, log10, log1p = map(_nonlinear, ("log", "log2", "log10", "log1p"))
sqrt, cbrt, square, reciprocal = map(_nonlinear, ("sqrt", "cbrt", "square", "reciprocal"))
rsqrt = _nonlinear("rsqrt", jax.lax.rsqrt)
sin, cos, tan = map(_nonlinear, ("sin", "cos", "tan"))
arcsin, arccos, arctan = map(_nonlinear, ("arcsin", "arccos", "arctan"))
asin, acos, atan = arcsin, arccos, arctan
sinh, cosh, tanh = map(_nonlinear, ("sinh", "cosh", "tanh"))
arcsinh, arccosh, arctanh = map(_nonlinear, ("arcsinh", "arccosh", "arctanh"))
asinh, acosh, atanh = arcsinh, arccosh, arctanh
sinc, i0, angle, nan_to_num = map(_nonlinear, ("sinc", "i0", "angle", "nan_to_num"))
isreal, iscomplex = _nonlinear("isreal"), _nonlinear("iscomplex")
isfinite, isnan, isinf = map(_nonlinear, ("isfinite", "isnan", "isinf"))
isposinf, isneginf, signbit = map(_nonlinear, ("isposinf", "isneginf", "signbit"))
logical_not, bitwise_not, bitwise_count = map(_nonlinear, ("logical_not", "bitwise_not", "bitwise_count"))
bitwise_invert = invert = bitwise_not

# several operands
maximum, minimum = _nonlinear("maximum", arity=2), _nonlinear("minimum", arity=2)
fmax, fmin = _nonlinear("fmax", arity=2), _nonlinear("fmin", arity=2)
_power, float_power = _nonlinear("power", arity=2), _nonlinear("float_power", arity=2)


@public
def power(x: Value, y: Value) -> Value:
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
    return _power(x, y)


arctan2, hypot = _nonlinear("arctan2", arity=2), _nonlinear("hypot", arity=2)
pow, atan2 = power, arctan2
logaddexp, logaddexp2 = _nonlinear("logaddexp", arity=2), _nonlinear("logaddexp2", arity=2)
mod, remainder = _nonlinear("mod", arity=2), _nonlinear("remainder", arity=2)
fmod, floor_divide = _nonlinear("fmod", arity=2), _nonlinear("floor_divide", arity=2)
copysign, nextafter = _nonlinear("copysign", arity=2), _nonlinear("nextafter", arity=2)
heaviside, ldexp = _nonlinear("heaviside", arity=2), _nonlinear("ldexp", arity=2)
gcd, lcm = _nonlinear("gcd", arity=2), _nonlinear("lcm", arity=2)
equal, not_equal = _nonlinear("equal", arity=2), _nonlinear("not_equal", arity=2)
less, less_equal = _nonlinear("less", arity=2), _nonlinear("less_equal", arity=2)
greater, greater_equal = _nonlinear("greater", arity=2), _nonlinear("greater_equal", arity=2)
isclose = _nonlinear("isclose", arity=2)
logical_and, logical_or = _nonlinear("logical_and", arity=2), _nonlinear("logical_or", arity=2)
logical_xor = _nonlinear("logical_xor", arity=2)
bitwise_and, bitwise_or = _nonlinear("bitwise_and", arity=2), _nonlinear("bitwise_or", arity=2)
bitwise_xor = _nonlinear("bitwise_xor", arity=2)
left_shift, right_shift = _nonlinear("left_shift", arity=2), _nonlinear("right_shift", arity=2)
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift
_clamp = _nonlinear("clip", arity=3)

# of `jax.scipy.special`
erf, erfc, erfinv = _special("erf"), _special("erfc"), _special("erfinv")
digamma, gammaln, entr, ndtr = _special("digamma"), _special("gammaln"), _special("entr"), _special("ndtr")
ndtri, log_ndtr, expit, logit = _special("ndtri"), _special("log_ndtr"), _special("expit"), _special("logit")
i0e, i1, i1e = _special("i0e"), _special("i1"), _special("i1e")
xlogy, xlog1py = _special("xlogy", arity=2), _special("xlog1py", arity=2)
kl_div, rel_entr = _special("kl_div", arity=2), _special("rel_entr", arity=2)
gammainc, gammaincc = _special("gammainc", arity=2), _special("gammaincc", arity=2)
betaln, betainc = _special("betaln", arity=2), _special("betainc", arity=3)
lgamma, erf_inv, logistic = gammaln, erfinv, expit  # as `jax.lax` calls them

# activations
relu, relu6 = _nonlinear("relu", jax.nn.relu), _nonlinear("relu6", jax.nn.relu6)
silu, swish = _nonlinear("silu", jax.nn.silu), _nonlinear("swish", jax.nn.swish)
gelu, sigmoid = _nonlinear("gelu", jax.nn.gelu), _nonlinear("sigmoid", jax.nn.sigmoid)
hard_sigmoid, hard_tanh = _nonlinear("hard_sigmoid", jax.nn.hard_sigmoid), _nonlinear("hard_tanh", jax.nn.hard_tanh)
hard_silu, hard_swish = _nonlinear("hard_silu", jax.nn.hard_silu), _nonlinear("hard_swish", jax.nn.hard_swish)
elu, celu, selu = _nonlinear("elu", jax.nn.elu), _nonlinear("celu", jax.nn.celu), _nonlinear("selu", jax.nn.selu)
leaky_relu, softplus = _nonlinear("leaky_relu", jax.nn.leaky_relu), _nonlinear("softplus", jax.nn.softplus)
soft_sign, log_sigmoid = _nonlinear("soft_sign", jax.nn.soft_sign), _nonlinear("log_sigmoid", jax.nn.log_sigmoid)
mish, squareplus = _nonlinear("mish", jax.nn.mish), _nonlinear("squareplus", jax.nn.squareplus)
sparse_plus = _nonlinear("sparse_plus", jax.nn.sparse_plus)
sparse_sigmoid = _nonlinear("sparse_sigmoid", jax.nn.sparse_sigmoid)
log1mexp = _nonlinear("log1mexp", jax.nn.log1mexp)


@public
def clip(x: Value, min: Any = None, max: Any = None) -> Value:
    """The operand held between ``min`` and ``max``; nonlinear, typed as `maximum`.

    Args:
        x (...): A value.
        min: Lower bound, a number or an array that broadcasts; None for none.
        max: Upper bound, likewise.
    """
    if min is None and max is None:
        return x
    if min is None:
        return minimum(x, max)
    return maximum(x, min) if max is None else _clamp(x, min, max)
