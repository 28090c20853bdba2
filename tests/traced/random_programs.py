"""Random typed programs: what types is kept, op by op, so that every program is one that a user could have written."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import shtypes as sh

AXES = {"dp": 2, "tp": 4}  # the size of a group of devices tells its axes
SIZE = 8


class Step(NamedTuple):
    """One op applied to values made before; ``operands`` number them, arguments first."""

    name: str
    op: Callable[..., Any]
    operands: tuple[int, ...]


class Program(NamedTuple):
    """A program of square matrices: the types of its arguments, its ops, and the values that it returns."""

    arguments: tuple[sh.ShType, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    types: tuple[sh.ShType, ...]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        values = list(args)
        for step in self.steps:
            values.append(step.op(*[values[i] for i in step.operands]))
        return tuple(values[i] for i in self.results)

    def values(self) -> list[Any]:
        """Arguments with data."""
        return [filled(t, i) for i, t in enumerate(self.arguments)]

    def cotangents(self) -> list[Any]:
        """Cotangents of the results, with data."""
        return [filled(self.types[i].cotangent(), 10 + i) for i in self.results]

    def gradients(self, args: Any, cts: Any) -> Any:
        """The results and the gradients for given cotangents."""
        outs, pull = sh.vjp(self.__call__, *args)
        return outs, pull(tuple(cts))

    def __str__(self) -> str:
        lines = [f"{i}: {t}" for i, t in enumerate(self.arguments)]
        n = len(self.arguments)
        lines += [f"{n + i}: {self.types[n + i]} = {s.name}{s.operands}" for i, s in enumerate(self.steps)]
        return "\n".join([*lines, f"return {self.results}"])


def filled(t: sh.ShType, seed: int) -> Any:
    """Random numbers of a type."""
    return sh.array(np.random.default_rng(seed).uniform(0.5, 1.5, t.shape).astype(np.float32), t)


def _types(states: str) -> list[sh.ShType]:
    """All types of a square matrix whose axes are in these states; a digit shards that dim."""
    found = []
    for places in itertools.product(states, repeat=len(AXES)):
        t = sh.ShType.parse(f"f32[{SIZE},{SIZE}]" + "{R:(dp,tp)}")
        for axis, place in zip(AXES, places, strict=True):
            state, dim = (sh.State.SHARDED, int(place)) if place.isdigit() else (sh.State(place), None)
            t = t.with_axis(axis, state, dim)
        found.append(t)
    return found


def _looped(x: Any, w: Any) -> Any:
    return sh.scan(lambda c, _: (sh.tanh(c * w), None), x, None, 3)[0]


def _looped_with_reshards(there: sh.ShType) -> Callable[..., Any]:
    def op(x: Any) -> Any:
        here = x.type if isinstance(x, sh.Array) else jax.typeof(x)
        return sh.scan(lambda c, _: (sh.reshard(sh.sin(sh.reshard(c, there)), sh.typeof(here)), None), x, None, 3)[0]

    return op


def _recomputed(x: Any, w: Any) -> Any:
    return sh.checkpoint(lambda x, w: sh.sin(sh.tanh(x) @ w))(x, w)


UNARY: dict[str, Callable[..., Any]] = {
    "sin": sh.sin,
    "silu": sh.silu,
    "negative": sh.negative,
    "transpose": sh.transpose,
    "scaled": lambda x: x * 3.0,
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": sh.add,
    "multiply": sh.multiply,
    "matmul": sh.matmul,
    "einsum ji,jk->ki": lambda x, y: sh.einsum("ji,jk->ki", x, y),
    "sum and multiply": lambda x, y: sh.sum(x, 0) * y,
    "scan": _looped,
    "checkpoint": _recomputed,
}


def random_program(seed: int, *, states: str = "01RIU", scope: Any = contextlib.nullcontext) -> Program:
    """A program of 5 to 12 ops, all of them typed inside ``scope()``.

    Args:
        seed: Two of a seed are equal.
        states: The places that a mesh axis may take in arguments and reshards.
        scope: Makes the scope in which ops are tried.
    """
    rng = np.random.default_rng(seed)
    choices = _types(states)

    def draw(items: Any) -> Any:
        return items[int(rng.integers(len(items)))]

    arguments = tuple(draw([t for t in choices if not t.axes(sh.State.UNREDUCED)]) for _ in range(3))
    types, steps = list(arguments), list[Step]()
    length, tries = int(rng.integers(5, 13)), 0
    while len(steps) < length and tries < 400:
        tries += 1
        kind = draw(("unary", "binary", "binary", "binary", "reshard", "loop"))
        first = draw((len(types) - 1, len(types) - 1, int(rng.integers(len(types)))))
        if kind == "unary":
            name = draw(sorted(UNARY))
            step = Step(name, UNARY[name], (first,))
        elif kind == "binary":
            name = draw(sorted(BINARY))
            step = Step(name, BINARY[name], (first, int(rng.integers(len(types)))))
        else:
            there = draw(choices)
            make = (lambda t: lambda x: sh.reshard(x, t)) if kind == "reshard" else _looped_with_reshards
            step = Step(f"{kind} {there}", make(there), (first,))
        try:
            with scope():
                traced = jax.make_jaxpr(step.op)(*[sh.abstract_array(types[i]) for i in step.operands])
        except sh.ShardingTypeError:
            continue
        steps.append(step)
        types.append(traced.jaxpr.outvars[0].aval)
    results = tuple(sorted({len(types) - 1, int(rng.integers(3, len(types)))}))
    return Program(arguments, tuple(steps), results, tuple(types))
