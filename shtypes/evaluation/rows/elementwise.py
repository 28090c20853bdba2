"""Rows of elementwise primitives."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import rules
from shtypes._compat.jaxprs import wide_enough
from shtypes.core.elementwise_fns import Full
from shtypes.core.local import local
from shtypes.core.shard_fn import Linear
from shtypes.dispatch.apply import apply, is_typed
from shtypes.evaluation.bound_primitive import LINEAR, Bound, Linearity
from shtypes.evaluation.rows.families import Call, Row, Types, rows
from shtypes.evaluation.table import ROWS, row
from shtypes.evaluation.value_info import WIDENED, note_of
from shtypes.rules import Typing
from shtypes.rules.along_dims import ResultDims
from shtypes.types import State, dtypes

#: Nonlinear elementwise primitives.
NONLINEAR: Final = """abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz cos cosh
digamma eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac is_finite le le_to
lgamma log log1p log2 logistic lt lt_to max min ne nextafter not one_minus_square or polygamma polynomial
population_count pow reduce_precision regularized_incomplete_beta rem round rsqrt shift_left shift_right_arithmetic
shift_right_logical sign sin sinh sqrt square tan tanh xor zeta"""
#: Elementwise primitives that are linear in some operands, as `bound_primitive.LINEAR` has it.
LINEAR_IN_SOME: Final = "add add_any complex conj div imag mul neg real sub"


def _linearity(eqn: Any) -> Linearity:
    """The linearity of a primitive; a quotient of integers has none."""
    name = eqn.primitive.name
    if name == "div" and not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
        return Linearity()
    return LINEAR.get(name, Linearity())


def _per_element(call: Call, types: Types) -> Typing:
    """The rule of `rules.elementwise` for the primitive's linearity."""
    name, (dtype,), constants = call.name, call.dtypes, call.constants
    kind, nonlinear = call.linearity.within(call.numbers, len(types))
    if kind is Linear.NO:
        return rules.nonlinear(name, types, dtype, constants)
    if kind is Linear.IN_DIFFERENTIABLE:
        return rules.select_n(name, types, dtype, constants)
    if kind is Linear.MULTILINEAR and nonlinear:
        return rules.divide(types[0], types[1], dtype, constants, name)
    if len(types) == 1:
        return rules.linear_unary(name, types[0], dtype)
    return (rules.additive if kind is Linear.JOINTLY else rules.multilinear)(name, types, dtype, constants)


rows(NONLINEAR, _per_element, numbers=True, per_element=True)
rows(LINEAR_IN_SOME, _per_element, numbers=True, per_element=True, linearity=_linearity)
rows("integer_pow", _per_element, idle=lambda eqn: eqn.params["y"] == 1, per_element=True)
_SELECT: Final = Row(_per_element, per_element=True)


def acts_per_element(name: str) -> bool:
    """Whether a primitive is elementwise, by its row."""
    row = ROWS.get(name)
    others = ("select_n", "convert_element_type", "copy", "full_like", "stop_gradient")
    return name in others or (isinstance(row, Row) and row.per_element)


@row("select_n")
def _select_n(eqn: Any, operands: list[Any]) -> list[Any]:
    """`select_n`; with a single case, that case."""
    return operands[1:] if len(operands) == 2 else _SELECT(eqn, operands)


# casts


def _cast(narrow: bool) -> Row:
    return Row(
        lambda call, types: rules.cast(types[0], call.dtypes[0], narrow=narrow),
        shard=lambda call, operands, results: {**call.params, "weak_type": False, "sharding": None},
        numbers=True,
        idle=lambda eqn: eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype,
        per_element=True,
    )


_CAST, _NARROWED = _cast(False), _cast(True)


@row("convert_element_type")
def _convert_element_type(eqn: Any, operands: list[Any]) -> list[Any]:
    """Casts; a pending sum that the program widened may be narrowed too, since it is finished in the wide dtype."""
    (x,) = operands
    narrowed = is_typed(x) and note_of(x, WIDENED) == eqn.outvars[0].aval.dtype
    return (_NARROWED if narrowed else _CAST)(eqn, operands)


def cast_to(x: Any, dtype: Any) -> Any:
    """Casts a typed value to a dtype."""
    if x.type.dtype == dtype:
        return x
    name = dtypes.from_numpy(dtype)
    fn = Bound(
        jax.lax.convert_element_type_p, {"new_dtype": dtype, "weak_type": False, "sharding": None}, per_element=True
    )
    return apply("astype", fn, lambda types: rules.cast(types[0], name), x)


def _bits(call: Call, types: Types) -> Typing:
    """The typing of a bitcast, which adds or drops a last dim if the widths differ."""
    (shape,), (t,) = call.shapes, types
    along = range(len(shape), t.ndim)
    result_dims = [(n, d if d < t.ndim else None) for d, n in enumerate(shape)]
    return rules.unary_along(
        "bitcast_convert_type", t, tuple(along), (ResultDims(call.dtypes[0], tuple(result_dims)),), False
    )


rows("bitcast_convert_type", _bits)
rows("optimization_barrier stop_gradient", lambda call, types: Typing(types, types))

# Identities.
row("copy")(lambda eqn, operands: operands)
row("tie")(lambda eqn, operands: operands[1:])


@row("full_like")
def _full_like(eqn: Any, operands: list[Any]) -> list[Any]:
    """`jnp.zeros_like` and `full_like`: in the operand's type; other values than zero reduced where it is unreduced."""
    value = np.asarray(eqn.params["value"]).item()
    t = operands[0].type.like(dtypes.from_numpy(eqn.outvars[0].aval.dtype))
    t = t.with_axes(t.axes(State.UNREDUCED) if value else (), State.REDUCED)
    with wide_enough(t.dtype):
        return [local(Full(value, t.local_shape, t.dtype_name), out=t)]
