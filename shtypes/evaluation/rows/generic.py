"""How a primitive is evaluated with typed operands: typed by the rule of its family, and bound on the shards.

A row is data: what messages call the primitive, the rule of its family, what its parameters are on a shard, and whether
known numbers among its operands are a part of the function. What it is linear in is in `lifting.bound.LINEAR`; where a
device does something else than the primitive on its shards, `lifting.registry.EXCEPTIONS` says why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.core.shard_fn import Linear, ShardFn, wide_enough
from shtypes.dispatch.apply import apply_all, is_number, is_typed, lift
from shtypes.evaluation.bound_primitive import LINEAR, NAMES, Bound, Linearity
from shtypes.evaluation.table import EQUATIONS
from shtypes.rules import Typing
from shtypes.types import ShType, State, dtypes

Types = tuple[ShType, ...]


class Call(NamedTuple):
    """An equation with what is known of its operands.

    Attributes:
        eqn: The equation.
        known: For each operand the number that it is, as an array of no dims, else None; empty if none is.
        constants: Which of the others are constants.
        linearity: In what the primitive is linear.
    """

    eqn: Any
    known: tuple[Any, ...]
    constants: frozenset[int]
    linearity: Linearity

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the equation."""
        found: dict[str, Any] = self.eqn.params
        return found

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its results."""
        return tuple(dtypes.from_numpy(v.aval.dtype) for v in self.eqn.outvars)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its results."""
        return tuple(tuple(map(int, v.aval.shape)) for v in self.eqn.outvars)

    def bound(self, **params: Any) -> Bound:
        """The primitive on a shard, where these parameters are others than in the equation."""
        return Bound(self.eqn.primitive, {**unchanged(self, (), ()), **params}, self.known, self.linearity)


#: The typing of the operands of a call that are arrays.
FamilyRule = Callable[[Call, Types], Typing]
#: The parameters of a call on a shard, from the types of its operands, after the casts, and of its results.
ShardParams = Callable[[Call, Types, Types], Mapping[str, Any]]
#: What a device does instead, from the same.
Function = Callable[[Call, Types, Types], ShardFn]

#: Parameters that say how a result lies on devices, which the typing says.
_OF_MESHES: Final = ("out_sharding", "sharding")


def unchanged(call: Call, operands: Types, results: Types) -> Mapping[str, Any]:
    """The parameters as they are."""
    params = call.params
    if any(params.get(key) is not None for key in _OF_MESHES):
        return {k: None if k in _OF_MESHES else v for k, v in params.items()}
    return params


def like_first(call: Call, types: Types) -> Typing:
    """The type of the first operand."""
    return Typing(types, types[:1])


def never(eqn: Any) -> bool:
    """That no equation leaves its operand as it is."""
    return False


def linearity_of(eqn: Any) -> Linearity:
    """In what an equation is linear, where that follows from its primitive."""
    return LINEAR.get(eqn.primitive.name, _NOTHING)


_NOTHING: Final = Linearity()


@dataclass(frozen=True)
class Row:
    """How a primitive is evaluated with typed operands.

    Attributes:
        name: What messages call it.
        rule: The rule of its family.
        shard: Its parameters on a shard.
        numbers: Whether known numbers among its operands are a part of the function; else they are constants.
        idle: Whether an equation's result is its operand: nothing runs then.
        linearity: In what an equation is linear.
        per_element: Whether it acts on each element alone.
        function: What a device does where that is more than the primitive on its shards.
    """

    name: str
    rule: FamilyRule
    shard: ShardParams = unchanged
    numbers: bool = False
    idle: Callable[[Any], bool] = never
    linearity: Callable[[Any], Linearity] = linearity_of
    per_element: bool = False
    function: Function | None = None

    def __call__(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of an equation for typed operands and known numbers."""
        if self.idle(eqn):
            return [operands[0]]
        linearity = self.linearity(eqn)
        numbers = [_number(x, v) if is_number(x) else None for x, v in zip(operands, eqn.invars, strict=True)]
        if not any(n is not None for n in numbers):
            values, constants = lift(operands)
            return self.applied(Call(eqn, (), constants, linearity), values)
        held = self.numbers and _may_be_held(linearity, operands)
        arrays = [x if n is None else n for x, n in zip(operands, numbers, strict=True) if n is None or not held]
        with wide_enough(*(n.dtype for n in numbers if n is not None)):
            values, constants = lift(arrays)
        return self.applied(Call(eqn, tuple(numbers) if held else (), constants, linearity), values)

    def applied(self, call: Call, values: Sequence[Any]) -> list[Any]:
        """The results of a call for typed values."""

        def local(types: Types) -> ShardFn:
            results = self.rule(call, types).results
            if self.function is not None:
                return self.function(call, types, results)
            params = self.shard(call, types, results)
            return Bound(call.eqn.primitive, params, call.known, call.linearity, per_element=self.per_element)

        return list(apply_all(self.name, local, functools.partial(self.rule, call), values))


def _number(x: Any, var: Any) -> Any:
    """A number as the array of no dims that it is in the program: of the dtype of its variable."""
    return np.asarray(x, var.aval.dtype)


def _may_be_held(linearity: Linearity, operands: Sequence[Any]) -> bool:
    """Whether known numbers may be a part of the function: a term beside a pending sum may not, it counts once."""
    if linearity.kind not in (Linear.JOINTLY, Linear.BESIDE) or not any(is_number(x) and x != 0 for x in operands):
        return True
    return not any(is_typed(x) and x.type.axes(State.UNREDUCED) for x in operands)


def rows(names: str, row: Callable[[str], Row]) -> None:
    """Puts rows into the table: one for each name, made of what messages call it."""
    for name in names.split():
        EQUATIONS[name] = row(NAMES.get(name, name))
