"""Rows of reductions, cumulative reductions, sorts and windows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from shtypes import rules
from shtypes.core.shard_fn import ShardFn
from shtypes.evaluation.bound_primitive import NAMES
from shtypes.evaluation.local_rows import LocalSorted
from shtypes.evaluation.rows.elementwise import cast_to
from shtypes.evaluation.rows.families import Call, Row, Types, along, ints, joined_by_labels, rows, sharing
from shtypes.evaluation.table import row
from shtypes.ops.cross_shard import over
from shtypes.ops.sharded_reductions import extreme, position, product
from shtypes.rules import Typing
from shtypes.rules.einsum_like import Window
from shtypes.rules.lookups import sort as _sort_rule
from shtypes.rules.typing import Label

# over dims


def _axes(eqn: Any) -> tuple[int, ...]:
    return ints(eqn.params["axes"])


rows(
    "reduce_sum",
    lambda call, types: rules.reduce_sum(call.name, types[0], _axes(call.eqn), False, call.dtypes[0]),
    idle=lambda eqn: not eqn.params["axes"],
)


def _reduced(call: Call, types: Types) -> Typing:
    """The typing of a reduction; over no dims it is the identity, also on pending sums."""
    name, (t,), (dtype,), axes = call.name, types, call.dtypes, _axes(call.eqn)
    return rules.reduce_nonlinear(name, t, axes, False, dtype) if axes else rules.linear_unary(name, t, dtype)


#: The reductions along sharded dims, where communication is allowed.
_ACROSS: Final[dict[str, Callable[[Any, tuple[int, ...]], Any]]] = {
    "max": functools.partial(extreme, "max"),
    "min": functools.partial(extreme, "min"),
    "all": functools.partial(extreme, "min"),
    "any": functools.partial(extreme, "max"),
    "prod": product,
    "argmax": functools.partial(position, "argmax"),
    "argmin": functools.partial(position, "argmin"),
}
#: The reductions of booleans; on integers these primitives are bitwise.
_BOOLEAN: Final = {"reduce_and": "all", "reduce_or": "any"}


@row("argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_xor")
def _reduction(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Evaluates a nonlinear reduction."""
    name, dtype = NAMES.get(eqn.primitive.name, eqn.primitive.name), eqn.outvars[0].aval.dtype
    name = _BOOLEAN.get(name, name) if dtype == np.bool_ else name
    reduction, across = Row(_reduced, name), _ACROSS.get(name)
    if across is None:
        return reduction(eqn, operands)

    def joined(x: Any, dims: tuple[int, ...]) -> Any:
        return cast_to(across(x, dims), dtype)

    return [over(name, operands[0], _axes(eqn), False, None, lambda x, dims: reduction(eqn, [x])[0], joined)]


# along a dim


def _axis(call: Call) -> tuple[int, ...]:
    key = next(k for k in ("axis", "dimension", "reduction_dimension") if k in call.params)
    return (int(call.params[key]) % call.ndim,)


#: The cumulative reductions of this release of JAX.
_CUMULATIVE: Final = " ".join(
    p.name for name, p in vars(jax.lax).items() if name.startswith("cum") and name.endswith("_p")
)
rows(f"{_CUMULATIVE} approx_top_k top_k", along(_axis))


# in order


def _sorted(call: Call, types: Types) -> Typing:
    if len(types) == 1:
        return along(_axis)(call, types)
    return _sort_rule("sort", types, _axis(call)[0], call.params["num_keys"], call.constants)


def _local_sort(call: Call, operands: Types, results: Types) -> ShardFn:
    (dim,) = _axis(call)
    axes = tuple(t.dims[dim].axes for t in operands)
    return LocalSorted(call.bound(), dim, axes) if any(axes) else call.bound()


rows("sort", _sorted, function=_local_sort)

# by functions of the user's


def _folded(call: Call, operands: Sequence[int], results: Sequence[int]) -> Any:
    """Labels of a reduction by the user's function, of operands and as many initial values, along unsharded dims."""
    ndim, count, drops = operands[0], len(call.eqn.invars) // 2, call.name == "reduce"
    moving = [d for d, w in enumerate([] if drops else windows_of(call.params)) if not w.stays_within(1)]
    within = set(ints(call.params["dimensions"]) if drops else moving)
    dims: tuple[Label, ...] = tuple(("dim", d) for d in range(ndim))
    result_labels = [("output", d) if d in within else ("dim", d) for d in range(ndim) if not drops or d not in within]
    operand_labels = (*[dims] * count, *[()] * (len(operands) - count))
    return operand_labels, [tuple(result_labels)] * len(results), frozenset(dims[d] for d in within), frozenset()


rows("reduce reduce_window", joined_by_labels(_folded), numbers=True)

# windows


def windows_of(p: Mapping[str, Any]) -> list[Window]:
    """The windows of a primitive along each dim, from its parameters."""
    ones = [1] * len(p["window_dimensions"])
    dilations = [ones if p.get(key) is None else ints(p[key]) for key in ("base_dilation", "window_dilation")]
    moves = zip(
        ints(p["window_dimensions"]), ints(p["window_strides"]), map(tuple, p["padding"]), *dilations, strict=True
    )
    return [Window(*each) for each in moves]


def _crossed(call: Call, types: Types) -> list[int]:
    """The dims along which a window may span two shards of the largest operand."""
    sizes = [max(t.local_shape[d] for t in types if t.ndim == call.ndim) for d in range(call.ndim)]
    return [d for d, (w, n) in enumerate(zip(windows_of(call.params), sizes, strict=True)) if not w.stays_within(n)]


def _pooled(call: Call, types: Types) -> Typing:
    crossed = _crossed(call, types)
    return along(lambda _: crossed)(call, types)


def _unpooled(call: Call, types: Types) -> Typing:
    within = set(range(call.ndim)).difference(_crossed(call, types))
    return sharing(lambda _: within)(call, types)


rows("reduce_window_sum reduce_window_max reduce_window_min", _pooled, name="reduce_window")
rows("select_and_gather_add select_and_scatter select_and_scatter_add", _unpooled)
