"""Rows of primitives that act on each element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.core.functions.basics import Full
from shtypes.errors import ShardingTypeError
from shtypes.lifting.constants import NARROW, is_inexact, known, note, typed_constant
from shtypes.lifting.registry import equation_row, op, row
from shtypes.lifting.rows.generic import sharing
from shtypes.ops.dispatch import is_number, is_typed
from shtypes.ops.pointwise import apply_nonlinear
from shtypes.primitives.local import local
from shtypes.types import State

#: Those that are not linear: each is one local function, with its parameters.
NONLINEAR: Final = """abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz cos cosh
digamma eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac integer_pow is_finite le
le_to lgamma log log1p log2 logistic lt lt_to max min ne nextafter not one_minus_square or polygamma polynomial
population_count pow reduce_precision regularized_incomplete_beta rem round rsqrt shift_left
shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh xor zeta"""
#: Those that are linear in some operands, and the ops that do them.
LINEAR: Final = {
    "add": "add",
    "add_any": "add",
    "complex": "complex",
    "conj": "conj",
    "div": "div",
    "imag": "imag",
    "neg": "negative",
    "real": "real",
    "sub": "subtract",
}


@functools.cache
def native(primitive: Any) -> Callable[..., Any]:
    """A primitive as a function of arrays and Python numbers."""

    def fn(*xs: Any, **params: Any) -> Any:
        like = next(x for x in xs if not is_number(x))
        return primitive.bind(*[_filled(x, like) if is_number(x) else x for x in xs], **params)

    fn.__name__ = primitive.name
    return fn


def _filled(x: Any, like: Any) -> Any:
    """A number as an operand beside an array; a whole number stays one beside floats, as exponents are."""
    whole = isinstance(x, int) and not isinstance(x, bool) and jnp.issubdtype(like.dtype, jnp.inexact)
    return jax.lax.full(like.shape, x, np.dtype("int32") if whole else like.dtype)


@equation_row(*NONLINEAR.split())
def _nonlinear(eqn: Any, operands: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    if name == "integer_pow" and eqn.params["y"] == 1:
        return operands
    if name == "pow" and is_number(operands[0]) and not is_inexact(operands[1]):  # a float to the power of integers
        base = np.asarray(operands[0], eqn.invars[0].aval.dtype)
        operands = [typed_constant(base, operands[1].type.mesh), operands[1]]
    return [apply_nonlinear(name, native(eqn.primitive), operands, dict(eqn.params))]


def _linear(name: str) -> Callable[..., Any]:
    def apply(*xs: Any, **params: Any) -> Any:
        _plainly(name, params)
        made = op(name)(*xs)
        if name == "div" and is_number(xs[1]):
            return narrowly(made, xs[0], lambda x: op(name)(x, xs[1]))
        return made

    return apply


def _plainly(name: str, params: dict[str, Any]) -> None:
    """Refuses parameters that are not as `jax.numpy` leaves them."""
    for key, value in params.items():
        if value is not None and key != "input_dtype":
            raise ShardingTypeError(f"`lift` does not know `{key}={value!r:.40}` of `{name}`")


for _primitive, _op in LINEAR.items():
    row(_primitive)(_linear(_op))


@row("mul")
def _mul(x: Any, y: Any, *, out_dtype: Any = None) -> Any:
    _plainly("mul", {"out_dtype": out_dtype})
    return op("multiply")(x, y)


@row("stop_gradient")
def _stop_gradient(x: Any) -> Any:
    return op("stop_gradient")(x)


@row("copy")
def _same(x: Any, **_: Any) -> Any:
    return x


@row("tie")
def _tie(x: Any, y: Any) -> Any:
    return y


@row("convert_element_type")
def _convert_element_type(x: Any, *, new_dtype: Any, weak_type: Any = False, sharding: Any = None) -> Any:
    if x.type.dtype == new_dtype:
        return x
    narrow = known(x, NARROW)
    if narrow is not None and narrow[0] == new_dtype and x.type.axes(State.UNREDUCED):
        return narrow[1]()
    made = op("convert_element_type")(x, new_dtype)
    if jnp.issubdtype(x.type.dtype, jnp.floating) and x.type.dtype.itemsize < made.type.dtype.itemsize:
        note(made, NARROW, (x.type.dtype, lambda: x))
    return made


def narrowly(made: Any, x: Any, again: Callable[[Any], Any]) -> Any:
    """A result of a value that was widened, noted with what makes it of the value as it was."""
    narrow = known(x, NARROW) if is_typed(x) else None
    if narrow is not None:
        note(made, NARROW, (narrow[0], lambda: again(narrow[1]())))
    return made


@equation_row("bitcast_convert_type")
def _bitcast_convert_type(eqn: Any, operands: list[Any]) -> list[Any]:
    """To a dtype of another width, a last dim comes or goes."""
    src, dst = eqn.invars[0].aval, eqn.outvars[0].aval
    if src.ndim != dst.ndim:
        return sharing("bitcast_convert_type", eqn, operands, range(min(src.ndim, dst.ndim)))
    return [op("bitcast_convert_type")(operands[0], dst.dtype)]


@row("optimization_barrier")
def _optimization_barrier(*xs: Any) -> list[Any]:
    barrier = op("optimization_barrier")
    return [barrier(x) if hasattr(x, "type") else x for x in xs]


@row("full_like")
def _full_like(x: Any, *, value: Any, dtype: Any) -> Any:
    """Typed like ``x``; what is not zero is no pending sum, which would be of no use."""
    t = op("full_like")(x, 0, dtype).type
    whole = t.with_axes(t.axes(State.UNREDUCED) if value else (), State.REDUCED)
    return local(Full(value, whole.local_shape, whole.dtype_name), out=whole)


@row("select_n")
def _select_n(which: Any, *cases: Any) -> Any:
    return op("select_n")(which, *cases)
