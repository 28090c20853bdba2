"""`Row`: evaluates a primitive with typed operands by the typing rule of its family, binding it on the shards.

`bound_primitive.LINEAR` has the linearity of primitives, `table.EXCEPTIONS` those that a device does not just bind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes import rules
from shtypes._compat.jaxprs import wide_enough
from shtypes.core.shard_fn import Linear, ShardFn
from shtypes.dispatch.apply import apply_all, as_operands, is_number, is_typed
from shtypes.evaluation.bound_primitive import LINEAR, NAMES, Bound, Linearity
from shtypes.evaluation.table import ROWS
from shtypes.rules import ResultDims, Typing
from shtypes.rules.einsum_like import ProductDims, nonlinear_contraction
from shtypes.rules.einsum_like import contraction as _contraction
from shtypes.rules.typing import Label
from shtypes.types import ShType, State, dtypes

Types = tuple[ShType, ...]


class Call(NamedTuple):
    """An equation, with the numbers and constants among its operands."""

    name: str  # in messages
    eqn: Any
    numbers: tuple[Any, ...]  # per operand, a number as a 0-d array, or None; empty without numbers
    constants: frozenset[int]  # the indices of constants among the other operands
    linearity: Linearity

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the equation."""
        params: dict[str, Any] = self.eqn.params
        return params

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its results."""
        return tuple(dtypes.from_numpy(v.aval.dtype) for v in self.eqn.outvars)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its results."""
        return tuple(tuple(map(int, v.aval.shape)) for v in self.eqn.outvars)

    @property
    def ndim(self) -> int:
        """The number of dims of its first operand."""
        ndim: int = self.eqn.invars[0].aval.ndim
        return ndim

    def bound(self, **params: Any) -> Bound:
        """The primitive as a function of shards, with these parameters replaced."""
        return Bound(self.eqn.primitive, {**unchanged(self, (), ()), **params}, self.numbers, self.linearity)


#: The typing of a call, from the types of its array operands.
FamilyRule = Callable[[Call, Types], Typing]
#: The parameters of a call on a shard, from the types of its cast operands and of its results.
ShardParams = Callable[[Call, Types, Types], Mapping[str, Any]]
#: The function of shards of a call, from the same types.
Function = Callable[[Call, Types, Types], ShardFn]

#: Parameters for the sharding of results, which the typing replaces.
_SHARDING_PARAMS: Final = ("out_sharding", "sharding")


def unchanged(call: Call, operands: Types, results: Types) -> Mapping[str, Any]:
    """The parameters of the equation, without shardings."""
    params = call.params
    if any(params.get(key) is not None for key in _SHARDING_PARAMS):
        return {k: None if k in _SHARDING_PARAMS else v for k, v in params.items()}
    return params


@dataclass(frozen=True)
class Row:
    """Evaluates a primitive with typed operands."""

    rule: FamilyRule
    name: str = ""  # in messages, if `NAMES` has none
    shard: ShardParams = unchanged  # its parameters on a shard
    numbers: bool = False  # whether numbers are folded into the function of shards; else they are constants
    idle: Callable[[Any], bool] | None = None  # whether an equation is the identity
    linearity: Callable[[Any], Linearity] | None = None  # where it depends on the equation
    per_element: bool = False  # whether it is elementwise
    function: Function | None = None  # the function of shards, if it does more than bind the primitive

    def __call__(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of an equation for typed operands and numbers."""
        if self.idle is not None and self.idle(eqn):
            return [operands[0]]
        primitive = eqn.primitive.name
        name = self.name or NAMES.get(primitive, primitive)
        linearity = LINEAR.get(primitive, Linearity()) if self.linearity is None else self.linearity(eqn)
        pairs = zip(operands, eqn.invars, strict=True)
        numbers = [np.asarray(x, v.aval.dtype) if is_number(x) else None for x, v in pairs]
        if not any(n is not None for n in numbers):
            values, constants = as_operands(operands)
            return self.applied(Call(name, eqn, (), constants, linearity), values)
        folds = self.numbers and _may_fold(linearity, operands)
        arrays = [x if n is None else n for x, n in zip(operands, numbers, strict=True) if n is None or not folds]
        with wide_enough(*(n.dtype for n in numbers if n is not None)):
            values, constants = as_operands(arrays)
        return self.applied(Call(name, eqn, tuple(numbers) if folds else (), constants, linearity), values)

    def applied(self, call: Call, values: Sequence[Any]) -> list[Any]:
        """The results of a call for typed values."""

        def local(types: Types) -> ShardFn:
            results = self.rule(call, types).results
            if self.function is not None:
                return self.function(call, types, results)
            params = self.shard(call, types, results)
            return Bound(call.eqn.primitive, params, call.numbers, call.linearity, per_element=self.per_element)

        return list(apply_all(call.name, local, functools.partial(self.rule, call), values))


def _may_fold(linearity: Linearity, operands: Sequence[Any]) -> bool:
    """Whether numbers may be folded into the function; not one added to a pending sum, which must count once."""
    if linearity.kind not in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE) or not any(
        is_number(x) and x != 0 for x in operands
    ):
        return True
    return not any(is_typed(x) and x.type.axes(State.UNREDUCED) for x in operands)


def rows(names: str, rule: FamilyRule, **options: Any) -> None:
    """Registers a `Row` with this rule for primitives."""
    ROWS.update(dict.fromkeys(names.split(), Row(rule, **options)))


#: A function from a call to some of its dims.
Dims = Callable[[Call], Iterable[int]]


def ints(values: Any) -> tuple[int, ...]:
    """A tuple of Python integers."""
    return tuple(int(n) for n in values)


def along(dims: Dims, *, dropped: Dims | None = None) -> FamilyRule:
    """The rule of one operand with dims that must be unsharded; results lack the ``dropped`` dims."""

    def rule(call: Call, types: Types) -> Typing:
        lost = set(dropped(call)) if dropped is not None else set()
        left = [d for d in range(types[0].ndim) if d not in lost]
        pairs = zip(call.dtypes, call.shapes, strict=True)
        results = tuple(ResultDims(dtype, tuple(zip(shape, left, strict=True))) for dtype, shape in pairs)
        linear = call.linearity.kind is not Linear.NO
        return rules.unary_along(call.name, types[0], tuple(sorted(set(dims(call)))), results, linear)

    return rule


def joined_by_labels(labels: Callable[[Call, Sequence[int], Sequence[int]], Any]) -> FamilyRule:
    """The rule of operands and results whose dims with equal labels have equal axes.

    ``labels`` returns the labels of operands and results, the labels of dims that must be unsharded, and the indices
    of operands that are indices or sizes.
    """

    def rule(call: Call, types: Types) -> Typing:
        of_operands, of_results, unsharded, ids = labels(call, [t.ndim for t in types], [len(s) for s in call.shapes])
        kind, nonlinear = call.linearity.within(call.numbers, len(types))
        family = nonlinear_contraction if kind is Linear.NO else _contraction
        results = list(zip(call.dtypes, call.shapes, of_results, strict=True))
        result_types: list[ShType] = []
        for dtype, shape, result_labels in (*results, *results[:-1]):  # twice, since each may cast the operands
            result_dims = tuple(zip(result_labels, shape, strict=True))
            plan = ProductDims(of_operands, result_dims, unsharded, nonlinear=nonlinear - ids, ids=ids)
            types, result, _ = family(call.name, types, plan, dtype, call.constants)
            result_types += result
        return Typing(types, (*result_types[len(results) :], result_types[len(results) - 1]))

    return rule


def sharing(shared: Dims) -> FamilyRule:
    """The rule of a primitive that loops over some dims, shared by operands and results at the same indices."""

    def labels(call: Call, operands: Sequence[int], results: Sequence[int]) -> Any:
        dims = set(shared(call))

        def of(kind: Label, ndim: int) -> tuple[Label, ...]:
            return tuple(("shared", d) if d in dims else (kind, d) for d in range(ndim))

        of_operands = tuple(of(i, ndim) for i, ndim in enumerate(operands))
        unsharded = frozenset(label for operand in of_operands for label in operand if label[0] != "shared")  # type: ignore[index]
        return of_operands, [of("result", ndim) for ndim in results], unsharded, frozenset()

    return joined_by_labels(labels)


def batched(core: int) -> FamilyRule:
    """The rule of a primitive that is batched over all but the last ``core`` dims of its first operand."""
    return sharing(lambda call: range(call.ndim - core))


#: The rule of a primitive whose operands must be unsharded.
all_unsharded: Final = sharing(lambda call: ())
