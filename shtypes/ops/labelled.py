"""Functions of JAX applied to operands whose dims run together by labels: one local function, typed by its plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from shtypes import dtypes
from shtypes.localfn import Linear, LocalFn, tell_apart
from shtypes.ops import rules
from shtypes.ops.dispatch import apply, lift
from shtypes.ops.rules.labelled import Plan
from shtypes.ops.rules.labelled import contraction as _contraction_rule
from shtypes.ops.rules.labelled import labelled as _labelled_rule
from shtypes.ops.whole import made
from shtypes.types import ShType


@dataclass(frozen=True)
class Product(LocalFn):
    """A function with static parameters that is linear in each of its operands but ``ids``."""

    name: str
    fn: Callable[..., Any]
    params: tuple[tuple[str, Any], ...] = field(compare=False, default=())
    ids: frozenset[int] = frozenset()
    same: Any = field(init=False, repr=False)
    linear = Linear.EACH

    def __post_init__(self) -> None:
        tell_apart(self, *self.params)

    def __str__(self) -> str:
        return self.name

    def linear_in(self, index: int) -> bool:
        return index not in self.ids

    def __call__(self, *xs: Any) -> Any:
        return self.fn(*xs, **dict(self.params))


#: The labels of an op from the shape of its result.
Planned = Callable[[tuple[int, ...]], Plan]


def product(
    name: str,
    fn: LocalFn,
    operands: Sequence[Any],
    plan: Planned,
    *,
    local: Callable[[tuple[ShType, ...]], LocalFn] | None = None,
) -> Any:
    """Applies a function that is linear in each operand; what is sharded and summed over becomes unreduced.

    Args:
        name: The op, for messages.
        fn: The function of whole values.
        operands: The values.
        plan: The labels.
        local: The function of shards, from the operands' types after the casts; ``fn`` by default.
    """
    return _applied(name, fn, operands, plan, _contraction_rule, local)


def labelled(name: str, fn: LocalFn, operands: Sequence[Any], plan: Planned) -> Any:
    """Applies a function that is linear in no operand; see `product`."""
    return _applied(name, fn, operands, plan, _labelled_rule, None)


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
    labels, dtype = plan(tuple(map(int, whole.shape))), dtypes.from_numpy(whole.dtype)

    def typing(given: tuple[ShType, ...]) -> rules.Typing:
        return rule(name, given, labels, dtype, constants)

    return apply(name, local or fn, typing, *values)


def all_whole(name: str, fn: LocalFn, operands: Sequence[Any]) -> Any:
    """Applies a function for which every dim of every operand must be whole; see `product` and `labelled`."""

    def plan(shape: tuple[int, ...]) -> Plan:
        labels = tuple(tuple((i, d) for d in range(jax.typeof(v).ndim)) for i, v in enumerate(values))
        result = tuple((("result", d), n) for d, n in enumerate(shape))
        return Plan(labels, result, frozenset(label for own in labels for label in own))

    values, _ = lift(operands)
    linear = fn.linear is not Linear.NO
    return (product if linear else labelled)(name, fn, operands, plan)
