"""Equations whose bodies are traced with typed values: which of their operands are operands of the typed program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.value_info import is_constant, note_constant


class Split:
    """The operands of an equation: those of the typed program that is made of it, and known arrays, which are not.

    Args:
        operands: The operands.
    """

    def __init__(self, operands: Sequence[Any]) -> None:
        known = [not is_typed(x) and not isinstance(x, jax.core.Tracer) for x in operands]
        self.fixed = {i: x for i, x in enumerate(operands) if known[i]}
        self._constant = [is_constant(x) for x in self.own(operands)]

    def own(self, every: Sequence[Any]) -> list[Any]:
        """Of what there is of all operands, what is of those of the typed program."""
        return [x for i, x in enumerate(every) if i not in self.fixed]

    def every(self, own: Sequence[Any]) -> list[Any]:
        """All operands, from those of the typed program."""
        return self._beside(own, self.fixed)

    def every_or_none(self, own: Sequence[Any]) -> list[Any]:
        """What there is of the operands of the typed program in their places among all, and None for the others."""
        return self._beside(own, dict.fromkeys(self.fixed))

    def _beside(self, own: Sequence[Any], others: dict[int, Any]) -> list[Any]:
        rest = iter(own)
        return [others[i] if i in others else next(rest) for i in range(len(own) + len(others))]

    def body(self, run: Callable[[Sequence[Any]], list[Any]]) -> Callable[..., list[Any]]:
        """A function of all operands as one of those of the typed program, in which constants stay constants."""

        def of_own(*xs: Any) -> list[Any]:
            for x, constant in zip(xs, self._constant, strict=True):
                if constant:
                    note_constant(x)
            return run(self.every(xs))

        return of_own
