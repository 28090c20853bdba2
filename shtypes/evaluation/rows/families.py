"""The families of primitives that are more than one: how their dims run together, as rules of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shtypes import rules
from shtypes.core.shard_fn import Linear
from shtypes.evaluation.rows.generic import Call, FamilyRule, Types
from shtypes.rules import Typing, WholeResult
from shtypes.rules.einsum_like import ProductDims
from shtypes.rules.einsum_like import contraction as _contraction
from shtypes.rules.einsum_like import labelled as _labelled
from shtypes.rules.typing import Label
from shtypes.types import ShType

#: Of a call, some of its dims.
Dims = Callable[[Call], Iterable[int]]


def ints(values: Any) -> tuple[int, ...]:
    """Whole numbers as Python's."""
    return tuple(int(n) for n in values)


def along(name: str, dims: Dims, *, dropped: Dims | None = None) -> FamilyRule:
    """One operand along dims that every device holds whole; the others keep their axes.

    Args:
        name: What messages call it.
        dims: The dims.
        dropped: Those of them that the results lack.
    """

    def rule(call: Call, types: Types) -> Typing:
        lost = set(dropped(call)) if dropped is not None else set()
        kept = [d for d in range(types[0].ndim) if d not in lost]
        pairs = zip(call.dtypes, call.shapes, strict=True)
        results = tuple(WholeResult(dtype, tuple(zip(shape, kept, strict=True))) for dtype, shape in pairs)
        linear = call.linearity.kind is not Linear.NO
        return rules.whole(name, types[0], tuple(sorted(set(dims(call)))), results, linear)

    return rule


def together(name: str, labels: Callable[[Call, Sequence[int], Sequence[int]], Any]) -> FamilyRule:
    """Operands and results whose dims run together by labels.

    Args:
        name: What messages call it.
        labels: From the ranks of the operands and of the results to the labels of each, the labels whose dims must be
            whole, and the operands that are positions or counts.
    """

    def rule(call: Call, types: Types) -> Typing:
        of_operands, of_results, whole, ids = labels(call, [t.ndim for t in types], [len(s) for s in call.shapes])
        family = _labelled if call.linearity.kind is Linear.NO else _contraction
        results = list(zip(call.dtypes, call.shapes, of_results, strict=True))
        made: list[ShType] = []
        for dtype, shape, own in (*results, *results[:-1]):  # what one casts the operands to, the others have
            plan = ProductDims(of_operands, tuple(zip(own, shape, strict=True)), whole, ids=ids)
            types, result = family(name, types, plan, dtype, call.constants)
            made += result
        return Typing(types, (*made[len(results) :], made[len(results) - 1]))

    return rule


def sharing(name: str, shared: Callable[[Call], Iterable[int]]) -> FamilyRule:
    """A primitive that is a loop over some dims, which operands and results have at the same places.

    Args:
        name: What messages call it.
        shared: These dims, from the front. All others must be whole.
    """

    def labels(call: Call, operands: Sequence[int], results: Sequence[int]) -> Any:
        known = set(shared(call))

        def of(kind: Label, ndim: int) -> tuple[Label, ...]:
            return tuple(("shared", d) if d in known else (kind, d) for d in range(ndim))

        of_operands = tuple(of(i, ndim) for i, ndim in enumerate(operands))
        whole = frozenset(label for own in of_operands for label in own if label[0] != "shared")  # type: ignore[index]
        return of_operands, [of("result", ndim) for ndim in results], whole, frozenset()

    return together(name, labels)


def batched(name: str, core: int) -> FamilyRule:
    """A primitive that is mapped over all dims but the last ``core`` of its first operand."""
    return sharing(name, lambda call: range(call.eqn.invars[0].aval.ndim - core))


def all_whole(name: str) -> FamilyRule:
    """A primitive for which each dim of each operand must be whole."""
    return sharing(name, lambda call: ())
