"""How a primitive is evaluated with typed operands: typed by the rule of its family, and bound on the shards.

A row is data: the rule of the primitive's family, what its parameters are on a shard, and whether numbers among
its operands are a part of the function. What it is linear in says `bound_primitive.LINEAR`; why a device does something
else than the primitive on its shards, `table.EXCEPTIONS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes import rules
from shtypes.core.shard_fn import Linear, ShardFn, wide_enough
from shtypes.dispatch.apply import apply_all, as_operands, is_number, is_typed
from shtypes.evaluation.bound_primitive import LINEAR, NAMES, Bound, Linearity
from shtypes.evaluation.table import ROWS
from shtypes.rules import Typing, WholeResult
from shtypes.rules.einsum_like import ProductDims
from shtypes.rules.einsum_like import contraction as _contraction
from shtypes.rules.einsum_like import labelled as _labelled
from shtypes.rules.typing import Label
from shtypes.types import ShType, State, dtypes

Types = tuple[ShType, ...]


class Call(NamedTuple):
    """An equation with the constants among its operands."""

    name: str  # what messages call it
    eqn: Any
    numbers: tuple[Any, ...]  # for each operand the number that it is, as a 0-d array, or None; empty if none is
    constants: frozenset[int]  # which of the others are constants
    linearity: Linearity  # in what the primitive is linear

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
        """How many dims its first operand has."""
        ndim: int = self.eqn.invars[0].aval.ndim
        return ndim

    def bound(self, **params: Any) -> Bound:
        """The primitive on a shard, where these parameters are others than in the equation."""
        return Bound(self.eqn.primitive, {**unchanged(self, (), ()), **params}, self.numbers, self.linearity)


#: The typing of the operands of a call that are arrays.
FamilyRule = Callable[[Call, Types], Typing]
#: The parameters of a call on a shard, from the types of its operands, after the casts, and of its results.
ShardParams = Callable[[Call, Types, Types], Mapping[str, Any]]
#: A function of the same arguments that returns what a device does instead.
Function = Callable[[Call, Types, Types], ShardFn]

#: Parameters that say how a result lies on devices, which the typing says.
_OF_MESHES: Final = ("out_sharding", "sharding")


def unchanged(call: Call, operands: Types, results: Types) -> Mapping[str, Any]:
    """The parameters as they are."""
    params = call.params
    if any(params.get(key) is not None for key in _OF_MESHES):
        return {k: None if k in _OF_MESHES else v for k, v in params.items()}
    return params


@dataclass(frozen=True)
class Row:
    """How a primitive is evaluated with typed operands."""

    rule: FamilyRule  # how the dims of its operands and results run together
    name: str = ""  # what messages call it, where `NAMES` does not say so
    shard: ShardParams = unchanged  # its parameters on a shard
    numbers: bool = False  # whether numbers among its operands are a part of the function; else constants
    idle: Callable[[Any], bool] | None = None  # whether an equation's result is its operand: nothing runs then
    linearity: Callable[[Any], Linearity] | None = None  # where that does not follow from the primitive
    per_element: bool = False  # whether it acts on each element alone
    function: Function | None = None  # what a device does where that is more than the primitive on its shards

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
        folds = self.numbers and _may_be_held(linearity, operands)
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


def _may_be_held(linearity: Linearity, operands: Sequence[Any]) -> bool:
    """Whether numbers may be a part of the function: a term beside a pending sum may not, it counts once."""
    if linearity.kind not in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE) or not any(
        is_number(x) and x != 0 for x in operands
    ):
        return True
    return not any(is_typed(x) and x.type.axes(State.UNREDUCED) for x in operands)


def rows(names: str, rule: FamilyRule, **options: Any) -> None:
    """Makes `Row`s of a rule the rows of primitives."""
    ROWS.update(dict.fromkeys(names.split(), Row(rule, **options)))


#: A function from a call to some of its dims.
Dims = Callable[[Call], Iterable[int]]


def ints(values: Any) -> tuple[int, ...]:
    """Whole numbers as Python's."""
    return tuple(int(n) for n in values)


def along(dims: Dims, *, dropped: Dims | None = None) -> FamilyRule:
    """One operand along dims that must not be sharded; results lack the ``dropped`` ones. Other dims keep axes."""

    def rule(call: Call, types: Types) -> Typing:
        lost = set(dropped(call)) if dropped is not None else set()
        left = [d for d in range(types[0].ndim) if d not in lost]
        pairs = zip(call.dtypes, call.shapes, strict=True)
        results = tuple(WholeResult(dtype, tuple(zip(shape, left, strict=True))) for dtype, shape in pairs)
        linear = call.linearity.kind is not Linear.NO
        return rules.whole(call.name, types[0], tuple(sorted(set(dims(call)))), results, linear)

    return rule


def together(labels: Callable[[Call, Sequence[int], Sequence[int]], Any]) -> FamilyRule:
    """Operands and results whose dims of the same label have the same axes.

    ``labels`` gives the labels of the operands and of the results, the labels whose dims must not be sharded, and the
    operands that are positions or counts.
    """

    def rule(call: Call, types: Types) -> Typing:
        of_operands, of_results, unsharded, ids = labels(call, [t.ndim for t in types], [len(s) for s in call.shapes])
        family = _labelled if call.linearity.kind is Linear.NO else _contraction
        results = list(zip(call.dtypes, call.shapes, of_results, strict=True))
        result_types: list[ShType] = []
        for dtype, shape, result_labels in (*results, *results[:-1]):  # what one casts the operands to, the others have
            plan = ProductDims(of_operands, tuple(zip(result_labels, shape, strict=True)), unsharded, ids=ids)
            types, result, _ = family(call.name, types, plan, dtype, call.constants)
            result_types += result
        return Typing(types, (*result_types[len(results) :], result_types[len(results) - 1]))

    return rule


def sharing(shared: Dims) -> FamilyRule:
    """A primitive that is a loop over some dims, which operands and results have at the same places."""

    def labels(call: Call, operands: Sequence[int], results: Sequence[int]) -> Any:
        dims = set(shared(call))

        def of(kind: Label, ndim: int) -> tuple[Label, ...]:
            return tuple(("shared", d) if d in dims else (kind, d) for d in range(ndim))

        of_operands = tuple(of(i, ndim) for i, ndim in enumerate(operands))
        unsharded = frozenset(label for operand in of_operands for label in operand if label[0] != "shared")  # type: ignore[index]
        return of_operands, [of("result", ndim) for ndim in results], unsharded, frozenset()

    return together(labels)


def batched(core: int) -> FamilyRule:
    """A primitive that is mapped over all dims but the last ``core`` of its first operand."""
    return sharing(lambda call: range(call.ndim - core))


#: A primitive for which no dim of an operand may be sharded.
all_whole: Final = sharing(lambda call: ())
