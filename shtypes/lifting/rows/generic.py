"""Primitives that have no op, as one local function of shards: which dims run together, and which are whole."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import jax.numpy as jnp

from shtypes.core.functions.basics import NamedFn
from shtypes.lifting.static import Static
from shtypes.ops.dispatch import lift
from shtypes.ops.labelled import labelled
from shtypes.rules.labelled import ProductDims


class Bind:
    """An equation's primitive with its parameters, as a function of arrays.

    Two are equal if the primitive and the parameters are: a jaxpr, or an array, is equal to itself only.
    """

    __name__: str

    def __init__(self, eqn: Any, *last: float) -> None:
        """The function of an equation; ``last`` are numbers, its operands after those of the calls, one for each."""
        self.primitive, self.params, self._last = eqn.primitive, eqn.params, last
        self.__name__ = eqn.primitive.name
        self._key = Static((self.primitive, *sorted(eqn.params.items(), key=itemgetter(0)), *last))

    def __call__(self, *xs: Any) -> Any:
        """The results of the primitive; a tuple where it has several."""
        last = [jnp.asarray(n, x.dtype) for n, x in zip(self._last, xs, strict=False)]
        outs = self.primitive.bind(*xs, *last, **self.primitive.get_bind_params(self.params))
        return tuple(outs) if self.primitive.multiple_results else outs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bind) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def sharing(name: str, eqn: Any, operands: Sequence[Any], shared: Sequence[int]) -> list[Any]:
    """A primitive that is linear in nothing, whose operands and results all have the dims ``shared`` together.

    Args:
        name: What messages call it.
        eqn: Its equation.
        operands: Typed and plain operands.
        shared: Dims from the front, in which it is a loop over what operands and results have there. The others must be
            whole.
    """
    values, _ = lift(operands)
    known = set(shared)

    def plan(shape: tuple[int, ...]) -> ProductDims:
        labels = [
            tuple(("shared", d) if d in known else (i, d) for d in range(v.type.ndim)) for i, v in enumerate(values)
        ]
        result = tuple((("shared", d) if d in known else ("result", d), n) for d, n in enumerate(shape))
        own = {label for each in labels for label in each if label[0] != "shared"}
        return ProductDims(tuple(labels), result, frozenset(own))

    outs: Any = labelled(name, NamedFn(name, Bind(eqn)), values, plan)
    return list(outs) if isinstance(outs, (tuple, list)) else [outs]


def batched(name: str, eqn: Any, operands: Sequence[Any], core: int) -> list[Any]:
    """As `sharing`, of a primitive that maps over all dims but the last ``core`` of its first operand."""
    values, _ = lift(operands)
    return sharing(name, eqn, values, range(values[0].type.ndim - core))
