"""`Composite`: a sequence of shard functions as one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from shtypes.core.shard_fn import Linear, ShardFn, as_tuple


@dataclass(frozen=True)
class Constant(ShardFn):
    """A constant array, the same on all devices; compared by the identity of its holder."""

    holder: Any

    def __str__(self) -> str:
        return "constant"

    def __call__(self) -> Any:
        return self.holder.value


@dataclass(frozen=True)
class ZerosLike(ShardFn):
    """Zeros in place of an operand."""

    def __str__(self) -> str:
        return "zeros"

    def __call__(self, x: Any) -> Any:
        return jnp.zeros_like(x)


class ShardStep(NamedTuple):
    """A shard function of a composite, and whether each result's dtype has a gradient.

    Its operands are slots: first those of the composite's operands, then those of each result.
    """

    fn: ShardFn
    operands: tuple[int, ...]
    inexact: tuple[bool, ...] = (True,)


class _Slot(NamedTuple):
    """Whether and how a value depends on the operands that have a gradient."""

    depends: bool
    linear: bool
    inexact: bool = True
    zero: bool = False


@dataclass(frozen=True)
class Composite(ShardFn):
    """Shard functions in sequence, differentiated by JAX as one, by the chain rule on each device.

    ``results`` are the slots of its results; ``moving`` says whether each operand has a gradient.
    """

    name: str
    steps: tuple[ShardStep, ...]
    results: tuple[int, ...]
    moving: tuple[bool, ...]

    def __str__(self) -> str:
        return self.name

    def __call__(self, *shards: Any) -> Any:
        slots = list(shards)
        for fn, operands, _ in self.steps:
            slots += as_tuple(fn(*[slots[i] for i in operands]))
        results = tuple([slots[i] for i in self.results])
        return results[0] if len(results) == 1 else results

    @functools.cached_property
    def _linearized(self) -> tuple[Linear, ShardFn | None]:
        """How it is linear, and its linear part: the function with each constant term replaced by zero."""
        slots = [_Slot(moves, True, moves) for moves in self.moving]
        part = _Steps(len(slots))
        for fn, operands, inexact in self.steps:
            ins = [slots[i] for i in operands]
            depends, linear = any(x.depends for x in ins), all(x.linear for x in ins) and _is_linear(fn, ins)
            at = [part.places[i] for i in operands]
            if depends and fn.linear in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE):
                at = [
                    i if x.depends or x.zero or not x.inexact else part.zeros(i) for i, x in zip(at, ins, strict=True)
                ]
            part.add(ShardStep(fn, tuple(at), inexact))
            slots += [_Slot(depends, linear, kind, isinstance(fn, ZerosLike)) for kind in inexact]
        outs = [slots[i] for i in self.results]
        if not all(x.linear for x in outs) or not any(x.depends for x in outs):
            return Linear.NO, None
        results = [
            part.places[i] if x.depends or x.zero else part.zeros(part.places[i])
            for i, x in zip(self.results, outs, strict=True)
        ]
        if part.is_same:
            return (Linear.JOINTLY if all(self.moving) else Linear.IN_DIFFERENTIABLE), self
        return Linear.NO, Composite(self.name, tuple(part.steps), tuple(results), self.moving)

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere; here it depends on the steps
        return self._linearized[0]

    @property
    def linear_part(self) -> ShardFn | None:
        return self._linearized[1]

    def linear_in(self, index: int) -> bool:
        return self.moving[index]


class _Steps:
    """Builds the steps of a linear part."""

    def __init__(self, count: int) -> None:
        self.steps: list[ShardStep] = []
        self.places = list(range(count))  # the slot here for each slot of the composite
        self.is_same = True
        self._count = count

    def add(self, step: ShardStep) -> None:
        """Adds a step of the composite."""
        self.steps.append(step)
        self.places += range(self._count, self._count + len(step.inexact))
        self._count += len(step.inexact)

    def zeros(self, slot: int) -> int:
        """The slot of zeros in place of a constant term."""
        self.steps.append(ShardStep(ZerosLike(), (slot,)))
        self.is_same = False
        self._count += 1
        return self._count - 1


def _is_linear(fn: ShardFn, operands: Sequence[_Slot]) -> bool:
    """Whether a function is linear in all operands that depend on something."""
    moving = [i for i, x in enumerate(operands) if x.depends]
    if not moving or fn.linear in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE):
        return not moving or all(operands[i].inexact for i in moving)
    return fn.linear is Linear.MULTILINEAR and len(moving) == 1 and fn.linear_in(moving[0])
