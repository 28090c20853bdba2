"""Functions of JAX applied to operands whose dims run together by labels: one local function, typed by its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from shtypes import rules
from shtypes.core.array import Array
from shtypes.core.localfn import Linear, LocalFn, as_tuple
from shtypes.dispatch.apply import apply_all, lift
from shtypes.ops.whole import made
from shtypes.rules.labelled import ProductDims
from shtypes.rules.labelled import contraction as _contraction_rule
from shtypes.rules.labelled import labelled as _labelled_rule
from shtypes.types import ShType, dtypes

#: The labels of an op from the shape of its result.
Planned = Callable[[tuple[int, ...]], ProductDims]


def _applied(
    name: str,
    fn: LocalFn,
    operands: Sequence[Any],
    plan: Planned,
    rule: Callable[..., rules.Typing],
    local: Callable[[tuple[ShType, ...]], LocalFn] | None,
) -> Any:
    values, constants = lift(operands)
    types = tuple(jax.typeof(v) for v in values)
    whole = made(fn, *((t.shape, t.dtype_name) for t in types))
    labels = [(plan(tuple(map(int, out.shape))), dtypes.from_numpy(out.dtype)) for out in as_tuple(whole)]

    def typing(given: tuple[ShType, ...]) -> rules.Typing:
        typings = [rule(name, given, *result, constants) for result in labels]
        return rules.Typing(typings[0].operands, tuple(t.results[0] for t in typings))

    results = apply_all(name, local or fn, typing, values)
    return tuple(results) if isinstance(whole, (tuple, list)) else results[0]


def all_whole(name: str, fn: LocalFn, operands: Sequence[Any]) -> Array:
    """As `all_whole_tree`, of a function that has one result."""
    result: Array = all_whole_tree(name, fn, operands)
    return result


def all_whole_tree(name: str, fn: LocalFn, operands: Sequence[Any]) -> Any:
    """Applies a function for which every dim of every operand must be whole, of one result or several."""

    def plan(shape: tuple[int, ...]) -> ProductDims:
        labels = tuple(tuple((i, d) for d in range(jax.typeof(v).ndim)) for i, v in enumerate(values))
        result = tuple((("result", d), n) for d, n in enumerate(shape))
        return ProductDims(labels, result, frozenset(label for own in labels for label in own))

    values, _ = lift(operands)
    rule = _labelled_rule if fn.linear is Linear.NO else _contraction_rule
    return _applied(name, fn, operands, plan, rule, None)
