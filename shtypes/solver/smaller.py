"""Equations with smaller dims that have the same options, so that many equations of a model are tried once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shtypes._compat.jaxprs import is_literal, is_used, variable
from shtypes.analysis.flops import is_convolution
from shtypes.evaluation.rows.elementwise import acts_per_element
from shtypes.solver.option import Operand

#: A dim of an operand or result, by its index among both.
_Dim = tuple[int, int]


def smaller(eqn: Any, operands: Sequence[Operand | None], size: int) -> tuple[Any, Sequence[Operand | None]]:
    """An equation, with its operands, that has the same options along an axis of ``size`` devices.

    Dims whose size matters only in that the axis divides them, or not, are as small as they can be. What a way sends
    per byte of its first operand is the same, but for results of another size, until it is priced as a plan takes it.
    """
    every = [*eqn.invars, *eqn.outvars]
    shapes = [list(v.aval.shape) for v in every]
    if (
        not all(map(is_used, eqn.outvars))
        or any(0 in shape for shape in shapes)
        or any(x and x.place for x in operands)
    ):
        return eqn, operands
    for k, d in _free_dims(eqn, shapes):
        n = shapes[k][d]
        shapes[k][d] = 1 if n == 1 else size if n % size == 0 else size + 1
    new = [v if is_literal(v) else variable(v.aval.update(shape=tuple(s))) for v, s in zip(every, shapes, strict=True)]
    count = len(operands)
    changed = [x and x._replace(shape=tuple(s)) for x, s in zip(operands, shapes[:count], strict=True)]
    return eqn.replace(invars=new[:count], outvars=new[count:]), changed


def _free_dims(eqn: Any, shapes: Sequence[Sequence[int]]) -> Iterable[_Dim]:
    """The dims of an equation that are all that its parameters leave free: those of elements, batches and features."""
    if acts_per_element(eqn.primitive.name):
        return ((k, d) for k, shape in enumerate(shapes) for d in range(len(shape)))
    if is_convolution(eqn) and eqn.params["feature_group_count"] == eqn.params["batch_group_count"] == 1:
        return ((k, d) for k, spec in enumerate(eqn.params["dimension_numbers"]) for d in spec[:2])
    return ()
