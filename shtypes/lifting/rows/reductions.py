"""Rows of primitives that reduce dims, run along them, or order what is along them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.core.functions.basics import NamedFn
from shtypes.errors import ShardingTypeError
from shtypes.lifting.registry import equation_row, op, row
from shtypes.lifting.rows.annotations import annotated
from shtypes.lifting.rows.elementwise import narrowly
from shtypes.lifting.rows.generic import Bind, sharing
from shtypes.lifting.rows.shapes import ints
from shtypes.ops.dispatch import is_number, is_typed
from shtypes.ops.labelled import labelled
from shtypes.ops.whole import apply_whole_tree, function
from shtypes.rules.labelled import ProductDims

_REDUCTIONS: Final = {"sum": "sum", "max": "max", "min": "min", "prod": "prod", "and": "all", "or": "any"}


def _reduction(name: str, called: str) -> Callable[..., Any]:
    def reduce(x: Any, *, axes: Any, out_sharding: Any = None) -> Any:
        if not axes:
            return x
        if name in ("and", "or") and x.type.dtype_name != "bool":
            return _by_jax(f"reduce_{name}", x, ints(axes))
        made = _of_dtype(op(called)(x, ints(axes)), x.type.dtype)
        if name == "sum":
            made = narrowly(made, x, lambda x: op("sum")(x, ints(axes)))
        return annotated(made, out_sharding)

    return reduce


def _of_dtype(x: Any, dtype: Any) -> Any:
    return x if x.type.dtype == dtype else op("astype")(x, dtype)


def _by_jax(name: str, x: Any, axes: tuple[int, ...]) -> Any:
    """A reduction over whole dims, as JAX has it."""
    kept = [d for d in range(x.type.ndim) if d not in axes]
    fn = function(name, functools.partial(getattr(jax.lax, name), axes=axes))
    return apply_whole_tree(name, fn, x, axes, [kept])


for _name, _called in _REDUCTIONS.items():
    row(f"reduce_{_name}")(_reduction(_name, _called))


@row("reduce_xor")
def _reduce_xor(x: Any, *, axes: Any, out_sharding: Any = None) -> Any:
    return _by_jax("reduce_xor", x, ints(axes))


def _position(name: str) -> Callable[..., Any]:
    return lambda x, *, axes, index_dtype: _of_dtype(op(name)(x, int(axes[0])), jnp.dtype(index_dtype))


for _name in ("argmax", "argmin"):
    row(_name)(_position(_name))


def _running(name: str) -> Callable[..., Any]:
    def run(x: Any, *, axis: int, reverse: bool) -> Any:
        if name in ("cumsum", "cumprod"):  # `jax.numpy`'s, which have one direction
            made = _of_dtype(op(name)(op("rev")(x, (axis,)) if reverse else x, axis), x.type.dtype)
            return op("rev")(made, (axis,)) if reverse else made
        return op(name)(x, axis, reverse=reverse)

    return run


for _name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    row(_name)(_running(_name))


@row("sort")
def _sort(*xs: Any, dimension: int, is_stable: bool, num_keys: int) -> list[Any]:
    if len(xs) == 1:
        return [op("sort")(xs[0], dimension, stable=is_stable)]
    order: Any = None
    for key in reversed(xs[:num_keys]):  # each by its own stable order, the first key last
        step = _order(key if order is None else _taken(key, order, dimension), dimension)
        order = step if order is None else _taken(order, step, dimension)
    return [_taken(x, order, dimension) for x in xs]


def _order(key: Any, dim: int) -> Any:
    return op("argsort")(key, dim) if is_typed(key) else jnp.argsort(key, dim)


def _taken(x: Any, order: Any, dim: int) -> Any:
    if not is_typed(x) and not is_typed(order):
        return jnp.take_along_axis(x, order, dim)
    return op("take_along_axis")(x, order, dim)


@row("top_k")
def _top_k(x: Any, *, k: int, axis: int = -1, is_stable: bool = True, operand: Any = None) -> Any:
    return op("top_k")(x, k, axis=axis)


@row("approx_top_k")
def _approx_top_k(
    x: Any,
    *,
    k: int,
    reduction_dimension: int,
    recall_target: float,
    is_max_k: bool,
    reduction_input_size_override: int,
    aggregate_to_topk: bool,
) -> list[Any]:
    if not aggregate_to_topk:
        raise ShardingTypeError("`lift` knows `approx_max_k` and `approx_min_k` only with aggregate_to_topk=True")
    fn = jax.lax.approx_max_k if is_max_k else jax.lax.approx_min_k
    given: dict[str, Any] = {"k": k, "reduction_dimension": reduction_dimension, "recall_target": recall_target}
    local = function("approx_top_k", fn, **given)
    dims = range(x.type.ndim)
    return list(apply_whole_tree("approx_top_k", local, x, [reduction_dimension % x.type.ndim], [dims, dims]))


# windows


def _window(name: str) -> Callable[..., Any]:
    def reduce(x: Any, *, window_dimensions: Any, window_strides: Any, padding: Any, **dilations: Any) -> Any:
        least = None if name == "sum" else _bound(x.type.dtype, lowest=name == "max")
        start, combine = (0, jax.lax.add) if least is None else (least, getattr(jax.lax, name))
        given = [ints(dilations.pop(key)) for key in ("base_dilation", "window_dilation")]
        if dilations:
            raise ShardingTypeError(f"`lift` does not know {', '.join(dilations)} of `reduce_window_{name}`")
        edges = [ints(pair) for pair in padding]
        return op("reduce_window")(x, start, combine, ints(window_dimensions), ints(window_strides), edges, *given)

    return reduce


def _bound(dtype: Any, *, lowest: bool) -> Any:
    """What every number is above, or below."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return -float("inf") if lowest else float("inf")
    if dtype == np.dtype(bool):
        return not lowest
    info = np.iinfo(dtype)
    return int(info.min if lowest else info.max)


for _name in ("sum", "max", "min"):
    row(f"reduce_window_{_name}")(_window(_name))


def _moving(eqn: Any, ndim: int) -> list[int]:
    """The dims in which windows move, or are padded."""
    p = eqn.params
    still = []
    for d in range(ndim):
        simple = p["window_dimensions"][d] == 1 and p["window_strides"][d] == 1 and tuple(p["padding"][d]) == (0, 0)
        dilated = any(p.get(key) is not None and p[key][d] != 1 for key in ("base_dilation", "window_dilation"))
        if not simple or dilated:
            still.append(d)
    return still


@equation_row("reduce_window", "reduce")
def _by_function(eqn: Any, operands: list[Any]) -> list[Any]:
    """A reduction by the user's own function, of one operand or several, along dims that are whole."""
    name, n = eqn.primitive.name, len(operands) // 2
    xs, starts = operands[:n], operands[n:]
    ndim = len(eqn.invars[0].aval.shape)
    along = ints(eqn.params["dimensions"]) if name == "reduce" else _moving(eqn, ndim)
    kept = [d for d in range(ndim) if name != "reduce" or d not in along]
    numbers = all(map(is_number, starts))
    fn = NamedFn(name, Bind(eqn, *starts) if numbers else Bind(eqn))
    if not numbers:
        xs = [*xs, *(jnp.asarray(s, x.dtype) if is_number(s) else s for s, x in zip(starts, xs, strict=True))]

    def plan(shape: tuple[int, ...]) -> ProductDims:
        labels = tuple(tuple(("dim", d) for d in range(np.ndim(x))) for x in xs)
        result = tuple((("made" if d in along else "dim", d), size) for d, size in zip(kept, shape, strict=True))
        return ProductDims(labels, result, frozenset(("dim", d) for d in along))

    outs: Any = labelled(name, fn, xs, plan)
    return list(outs) if isinstance(outs, tuple) else [outs]


def _scattered(eqn: Any, operands: list[Any]) -> list[Any]:
    """What a window's gradient is made of: its operands have the same dims, but where windows move."""
    name, first = eqn.primitive.name, next(x for x in operands if is_typed(x))
    along = _moving(eqn, first.type.ndim)
    return sharing(name, eqn, operands, [d for d in range(first.type.ndim) if d not in along])


equation_row("select_and_gather_add", "select_and_scatter", "select_and_scatter_add")(_scattered)
