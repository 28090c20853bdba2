"""Rows of primitives that reduce dims, run along them, or order what is along them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np

from shtypes import rules
from shtypes.core.shard_fn import ShardFn
from shtypes.evaluation.bound_primitive import NAMES
from shtypes.evaluation.own_rows import OwnSorted
from shtypes.evaluation.rows.elementwise import cast_to
from shtypes.evaluation.rows.families import along, ints, sharing, together
from shtypes.evaluation.rows.generic import Call, FamilyRule, Row, Types, rows
from shtypes.evaluation.table import EQUATIONS, equation_row
from shtypes.ops.across import extreme, position, product
from shtypes.ops.asking import over
from shtypes.rules import Typing
from shtypes.rules.lookups import sort as _sort_rule
from shtypes.rules.typing import Label

# over dims


def _axes(eqn: Any) -> tuple[int, ...]:
    return ints(eqn.params["axes"])


def _summed(call: Call, types: Types) -> Typing:
    return rules.reduce_sum(types[0], _axes(call.eqn), False, call.dtypes[0], "sum")


def _reduced(name: str) -> FamilyRule:
    """Over no dims nothing is combined: each term of a pending sum is reduced to itself."""

    def rule(call: Call, types: Types) -> Typing:
        (t,), (dtype,), axes = types, call.dtypes, _axes(call.eqn)
        return rules.reduce_nonlinear(name, t, axes, False, dtype) if axes else rules.linear_unary(name, t, dtype)

    return rule


EQUATIONS["reduce_sum"] = Row("sum", _summed, idle=lambda eqn: not eqn.params["axes"])

#: What joins the results of devices along sharded dims, where communication is allowed.
_ACROSS: Final[dict[str, Callable[[Any, tuple[int, ...]], Any]]] = {
    "max": functools.partial(extreme, "max"),
    "min": functools.partial(extreme, "min"),
    "all": functools.partial(extreme, "min"),
    "any": functools.partial(extreme, "max"),
    "prod": product,
    "argmax": functools.partial(position, "argmax"),
    "argmin": functools.partial(position, "argmin"),
}


def _reduction(name: str) -> Callable[[Any, Sequence[Any]], list[Any]]:
    """A reduction that is not linear."""
    row, across = Row(name, _reduced(name)), _ACROSS.get(name)

    def evaluated(eqn: Any, operands: Sequence[Any]) -> list[Any]:
        def joined(x: Any, dims: tuple[int, ...]) -> Any:
            return cast_to(across(x, dims), eqn.outvars[0].aval.dtype)  # type: ignore[misc]  # asked for where it is one

        if across is None:
            return row(eqn, operands)
        return [over(name, operands[0], _axes(eqn), False, None, lambda x, dims: row(eqn, [x])[0], joined)]

    return evaluated


for _name in ("argmax", "argmin", "reduce_max", "reduce_min", "reduce_prod", "reduce_xor"):
    EQUATIONS[_name] = _reduction(NAMES.get(_name, _name))
#: Of booleans, whether all are true or any is; of integers, each bit by itself.
_TRUTH: Final = {"reduce_and": _reduction("all"), "reduce_or": _reduction("any")}
_BITS: Final = {name: _reduction(name) for name in _TRUTH}


@equation_row(*_TRUTH)
def _of_truth_or_bits(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    of = _TRUTH if eqn.invars[0].aval.dtype == np.bool_ else _BITS
    return of[eqn.primitive.name](eqn, operands)


# along a dim


def _axis(call: Call) -> tuple[int, ...]:
    ndim = call.eqn.invars[0].aval.ndim
    key = next(k for k in ("axis", "dimension", "reduction_dimension") if k in call.params)
    return (int(call.params[key]) % ndim,)


#: What runs along a dim, whatever releases of JAX call such primitives.
_RUNNING: Final = " ".join(
    p.name for name, p in vars(jax.lax).items() if name.startswith("cum") and name.endswith("_p")
)
rows(f"{_RUNNING} approx_top_k top_k", lambda name: Row(name, along(name, _axis)))


# in order


def _sorted(call: Call, types: Types) -> Typing:
    return _sort_rule("sort", types, _axis(call)[0], call.params["num_keys"], call.constants)


def _one_sorted(call: Call, types: Types) -> Typing:
    return along("sort", _axis)(call, types) if len(types) == 1 else _sorted(call, types)


def _own_sort(call: Call, operands: Types, results: Types) -> ShardFn:
    (dim,) = _axis(call)
    axes = tuple(t.dims[dim].axes for t in operands)
    return OwnSorted(call.bound(), dim, axes) if any(axes) else call.bound()


rows("sort", lambda name: Row(name, _one_sorted, function=_own_sort))

# by functions of the user's


def _folded(name: str) -> FamilyRule:
    """By the function of the user's, of one operand or several, from as many numbers, along dims that are whole."""

    def labels(call: Call, operands: Sequence[int], results: Sequence[int]) -> Any:
        ndim, count = operands[0], len(call.eqn.invars) // 2
        within = set(ints(call.params["dimensions"]) if name == "reduce" else _moving(call.params, ndim))
        dims: tuple[Label, ...] = tuple(("dim", d) for d in range(ndim))
        made = [("made", d) if d in within else ("dim", d) for d in range(ndim) if name != "reduce" or d not in within]
        own = (*[dims] * count, *[()] * (len(operands) - count))
        return own, [tuple(made)] * len(results), frozenset(dims[d] for d in within), frozenset()

    return together(name, labels)


rows("reduce reduce_window", lambda name: Row(name, _folded(name), numbers=True))

# windows


def _moving(params: dict[str, Any], ndim: int) -> list[int]:
    """The dims in which windows move, or which are padded or dilated."""

    def still(d: int) -> bool:
        dilated = any(
            params.get(key) is not None and params[key][d] != 1 for key in ("base_dilation", "window_dilation")
        )
        sizes = params["window_dimensions"][d], params["window_strides"][d], *params["padding"][d]
        return sizes == (1, 1, 0, 0) and not dilated

    return [d for d in range(ndim) if not still(d)]


def _moving_in(call: Call) -> list[int]:
    return _moving(call.params, call.eqn.invars[0].aval.ndim)


def _still_in(call: Call) -> list[int]:
    moving = _moving_in(call)
    return [d for d in range(call.eqn.invars[0].aval.ndim) if d not in moving]


rows(
    "reduce_window_sum reduce_window_max reduce_window_min",
    lambda name: Row("reduce_window", along("reduce_window", _moving_in)),
)
rows(
    "select_and_gather_add select_and_scatter select_and_scatter_add", lambda name: Row(name, sharing(name, _still_in))
)
