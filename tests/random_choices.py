"""Choices that random programs make: values of a pool, dims, types, constants; and the list of ops."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

import shtypes as sh
from tests.end_to_end import assignments
from tests.random_plain import CONSTANTS


@dataclass(frozen=True)
class Step:
    """``name = text``; a refused step must raise `ShardingTypeError` and has no value."""

    name: str
    text: str
    refused: bool = False


@dataclass(frozen=True)
class Value:
    """A name of a program: its type, and about how large its elements may be."""

    name: str
    type: Any
    bound: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.type.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def kind(self) -> str:
        return "b" if self.type.dtype_name == "bool" else "f" if self.type.differentiable else "i"


class Choices:
    """Choices from what a program has so far."""

    def __init__(self, rng: np.random.Generator, mesh: Any, pool: Sequence[Value]) -> None:
        self.rng, self.mesh, self.pool = rng, mesh, pool

    def one(self, options: Sequence[Any]) -> Any:
        """One of several."""
        if not options:
            raise NothingFits
        return options[int(self.rng.integers(len(options)))]

    def flip(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def value(self, kinds: str = "f", keep: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value of one of some kinds (``f``, ``i``, ``b``), the later ones more often."""
        fitting = [v for v in self.pool if v.kind in kinds and keep(v)]
        if fitting and self.flip(0.4):
            return fitting[-1]
        found: Value = self.one(fitting)
        return found

    def summed(self, v: Value, chance: float = 0.8) -> Value:
        """A value without its pending sums, mostly: what nonlinear ops and other factors of a product take."""
        if not v.type.axes(sh.State.UNREDUCED) or not self.flip(chance):
            return v
        states = zip(v.type.mesh.axis_names, v.type.states, strict=True)
        whole = {a: sh.State.INVARIANT for a, s in states if s is not sh.State.SHARDED}
        return replace(v, name=f"m.all_reduce({v.name})", type=v.type.replace(states=whole))

    def partner(self, v: Value, kinds: str = "f") -> Value:
        """A value that broadcasts with ``v``; often itself."""
        return self.value(kinds, lambda w: broadcasts(v.shape, w.shape))

    def dim(self, v: Value) -> int:
        return int(self.one(range(v.ndim)))

    def dims(self, v: Value) -> Any:
        """What an ``axis`` parameter may be."""
        options = [c for n in range(1, v.ndim + 1) for c in itertools.combinations(range(v.ndim), n)]
        chosen = self.one([None, *options])
        return chosen[0] - self.one([0, v.ndim]) if chosen is not None and len(chosen) == 1 else chosen

    def type(self, shape: Sequence[int]) -> str:
        """A type text without a dtype, every axis in any state that fits."""
        return str(self.one(list(assignments(self.mesh, shape))))

    def constant(self, v: Value) -> str:
        """A number, or a plain array that broadcasts with ``v``."""
        arrays = [k for k, a in CONSTANTS.items() if hasattr(a, "dtype") and a.dtype == np.float32]
        fitting = [k for k in arrays if broadcasts(v.shape, np.shape(CONSTANTS[k]))]
        return str(self.one(["2", "0.5", "-1.5", "0", "0.0", "-0.0", "1", "True", *fitting, *fitting]))


class NothingFits(Exception):  # noqa: N818  # a signal, not an error
    """The pool has no operand for the op that was chosen."""


def broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(n == m or 1 in (n, m) for n, m in zip(reversed(a), reversed(b), strict=False))


#: What an op generates: an expression and a bound of its elements.
Expression = tuple[str, float]
OPS: list[tuple[float, Callable[[Choices], Expression]]] = []


def op(weight: float = 1.0) -> Callable[[Callable[[Choices], Expression]], Callable[[Choices], Expression]]:
    """Registers an op of the generator."""

    def register(generate: Callable[[Choices], Expression]) -> Callable[[Choices], Expression]:
        OPS.append((weight, generate))
        return generate

    return register


def chances(favour: Sequence[str] = ()) -> Any:
    """How often each op is chosen; those that ``favour`` names, or whose file it names, together nine times of ten."""
    weights = np.asarray([w for w, _ in OPS])
    if favour:
        named = [{d.__name__, d.__module__.split(".")[-1]} & set(favour) for _, d in OPS]
        chosen = np.asarray(list(map(bool, named)))
        weights = weights * np.where(chosen, 9 / sum(weights[chosen]), 1 / sum(weights[~chosen]))
    return weights / sum(weights)


def evaluated(step: Step, env: dict[str, Any]) -> Any:
    return eval(step.text, env)


def typed_step(step: Step, pool: Sequence[Value], *, quiet: bool = False) -> Any:
    """The type of a step, or None where it is refused, whose fixes are read unless it is ``quiet``; others leave."""
    names = [v for v in pool if re.search(rf"\b{v.name}\b", step.text)]

    refused: list[sh.ShardingTypeError] = []

    def run(*values: Any) -> Any:
        try:
            return evaluated(step, {**CONSTANTS, "m": sh, **dict(zip([v.name for v in names], values, strict=True))})
        except sh.ShardingTypeError as error:  # before JAX rewrites its traceback, which is slow
            refused.append(error)

    try:
        out = jax.eval_shape(run, *[sh.abstract_array(v.type) for v in names])
        if refused:
            if "please report" in (f"{refused[0].what} {refused[0].why}" if quiet else str(refused[0])):
                raise refused[0]
            return None
    except Exception as error:
        error.add_note(f"in {step.text} of {', '.join(f'{v.name}: {v.type}' for v in names)}")
        raise
    return out.type if isinstance(out, sh.Array) else out
