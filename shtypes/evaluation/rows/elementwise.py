"""Rows of primitives that act on each element."""

from __future__ import annotations

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import rules
from shtypes.core.elementwise_fns import Full
from shtypes.core.local import local
from shtypes.core.shard_fn import Linear, wide_enough
from shtypes.dispatch.apply import apply, is_typed
from shtypes.evaluation.bound_primitive import LINEAR, Bound, Linearity
from shtypes.evaluation.rows.generic import Call, Row, Types, like_first, never, rows
from shtypes.evaluation.table import EQUATIONS, equation_row
from shtypes.evaluation.value_info import WIDENED, known
from shtypes.rules import Typing
from shtypes.rules.along_dims import WholeResult
from shtypes.types import State, dtypes

#: Those that are linear in no operand.
NONLINEAR: Final = """abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz cos cosh
digamma eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac integer_pow is_finite le le_to
lgamma log log1p log2 logistic lt lt_to max min ne nextafter not one_minus_square or polygamma polynomial
population_count pow reduce_precision regularized_incomplete_beta rem round rsqrt shift_left shift_right_arithmetic
shift_right_logical sign sin sinh sqrt square tan tanh xor zeta"""
#: Those that are linear in some, as `lifting.bound.LINEAR` says: sums, products, quotients, choices.
LINEAR_IN_SOME: Final = "add add_any complex conj div imag mul neg real select_n sub"


def _linearity(eqn: Any) -> Linearity:
    """Of integers a quotient is rounded."""
    name = eqn.primitive.name
    if name == "div" and not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
        return Linearity()
    return LINEAR.get(name, Linearity())


def elementwise(name: str, call: Call, types: Types) -> Typing:
    """The rule of `rules.elementwise` that fits what the primitive is linear in."""
    (dtype,), constants = call.dtypes, call.constants
    kind, held = _linearity(call.eqn).beside(call.known, len(types))
    if kind is Linear.NO:
        return rules.nonlinear(name, types, dtype, constants)
    if kind is Linear.BESIDE:
        return rules.select_n(name, types, dtype, constants)
    if kind is Linear.EACH and held:
        return rules.divide(types[0], types[1], dtype, constants, name)
    if len(types) == 1:
        return rules.linear_unary(name, types[0], dtype)
    return (rules.additive if kind is Linear.JOINTLY else rules.multilinear)(name, types, dtype, constants)


def _row(name: str) -> Row:
    numbers = name != "select_n"
    rule = functools.partial(elementwise, name)
    idle = _is_first_power if name == "integer_pow" else never
    return Row(name, rule, numbers=numbers, idle=idle, per_element=True, linearity=_linearity)


def _is_first_power(eqn: Any) -> bool:
    return bool(eqn.params["y"] == 1)


rows(NONLINEAR, _row)
rows(LINEAR_IN_SOME, _row)


_SELECT: Final = EQUATIONS["select_n"]


@equation_row("select_n")
def _select_n(eqn: Any, operands: list[Any]) -> list[Any]:
    """Of one case there is no choice, whatever was to make it."""
    return operands[1:] if len(operands) == 2 else _SELECT(eqn, operands)


# casts


def _cast(call: Call, types: Types, narrow: bool = False) -> Typing:
    return rules.cast(types[0], call.dtypes[0], narrow=narrow)


def _same_dtype(eqn: Any) -> bool:
    return bool(eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype)


def _strong(call: Call, operands: Types, results: Types) -> dict[str, Any]:
    """Typed values are never weakly typed."""
    return {**call.params, "weak_type": False, "sharding": None}


_CASTS: Final = {
    narrow: Row(
        "astype", functools.partial(_cast, narrow=narrow), _strong, numbers=True, idle=_same_dtype, per_element=True
    )
    for narrow in (False, True)
}


@equation_row("convert_element_type")
def _convert_element_type(eqn: Any, operands: list[Any]) -> list[Any]:
    """A sum that the program widened is narrowed term by term: each is finished in the wide dtype, and rounded once."""
    (x,) = operands
    return _CASTS[is_typed(x) and known(x, WIDENED) == eqn.outvars[0].aval.dtype](eqn, operands)


def cast_to(x: Any, dtype: Any) -> Any:
    """A typed value in another dtype, as the primitive makes it."""
    if x.type.dtype == dtype:
        return x
    name = dtypes.from_numpy(dtype)
    fn = Bound(
        jax.lax.convert_element_type_p, {"new_dtype": dtype, "weak_type": False, "sharding": None}, per_element=True
    )
    return apply("astype", fn, lambda types: rules.cast(types[0], name), x)


def _bits(call: Call, types: Types) -> Typing:
    """To a dtype of another width, a last dim comes or goes."""
    (shape,), (t,) = call.shapes, types
    along = range(len(shape), t.ndim)
    kept = [(n, d if d < t.ndim else None) for d, n in enumerate(shape)]
    return rules.whole("bitcast_convert_type", t, tuple(along), (WholeResult(call.dtypes[0], tuple(kept)),), False)


rows("bitcast_convert_type", lambda name: Row(name, _bits))
rows("optimization_barrier stop_gradient", lambda name: Row(name, lambda call, types: Typing(types, types)))

# Those whose result is an operand: nothing runs.
rows("copy", lambda name: Row(name, like_first, idle=lambda eqn: True))
equation_row("tie")(lambda eqn, operands: operands[1:])


@equation_row("full_like")
def _full_like(eqn: Any, operands: list[Any]) -> list[Any]:
    """What `jnp.zeros_like` makes: typed like its operand; what is not zero is no pending sum."""
    value = np.asarray(eqn.params["value"]).item()
    t = operands[0].type.replace(dtype=eqn.outvars[0].aval.dtype)
    t = t.with_axes(t.axes(State.UNREDUCED) if value else (), State.REDUCED)
    with wide_enough(t.dtype):
        return [local(Full(value, t.local_shape, t.dtype_name), out=t)]
