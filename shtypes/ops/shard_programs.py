"""Converts a local typed jaxpr to one function of a device's shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp

from shtypes._compat.jaxprs import ClosedCall, Control, captured, control, inner_jaxprs, is_literal, jaxpr_of
from shtypes.caches import Static
from shtypes.core.device_put import from_concrete_p
from shtypes.core.dim_fns import Composite, Constant, ShardStep
from shtypes.core.jax_type import HiShType
from shtypes.core.local import Local
from shtypes.core.region import run_control
from shtypes.core.region_plan import live
from shtypes.core.reshard import Reshard
from shtypes.core.run_plan import run_plan
from shtypes.core.shard_fn import Linear, ShardFn, as_tuple, is_inexact
from shtypes.evaluation.bound_primitive import Bound
from shtypes.resharding import plan
from shtypes.types import ShType, State


class NotLocalError(Exception):
    """A program communicates, or cannot be one function of shards."""


class ShardProgram(NamedTuple):
    """The local program of each device.

    Attributes:
        operands: The types to which the operands are cast.
        fn: The function; None if the results are operands.
        passed: Then the index of the operand for each result.
    """

    operands: tuple[ShType, ...]
    fn: ShardFn | None
    passed: tuple[int, ...] = ()


def shard_program(name: str, closed: Any) -> ShardProgram:
    """Converts a typed jaxpr to one local function, with a name for listings.

    Operands may be cast, if all uses take them in the same type, and constants. `NotLocalError` if it communicates, has
    effects or custom derivative rules, or calls the host.
    """
    steps = _Steps(closed)
    slots = tuple([steps.slot(x) for x in jaxpr_of(closed).outvars])
    operands, arity = tuple(steps.operands), len(steps.operands)
    if not steps.steps:
        return ShardProgram(operands, None, slots)
    alone = steps.steps[0] if len(steps.steps) == 1 and not isinstance(steps.steps[0].fn, ShardControl) else None
    if alone and alone.operands == (*range(arity),) and slots == (*range(arity, arity + len(alone.inexact)),):
        return ShardProgram(operands, alone.fn)
    moving = tuple(t.differentiable for t in operands)
    return ShardProgram(operands, Composite(name, tuple(steps.steps), slots, moving))


class _Steps:
    """The steps of a typed jaxpr; ``is_body``: of a loop or a branch, whose operands are not cast."""

    def __init__(self, closed: Any, is_body: bool = False) -> None:
        self._jaxpr = jaxpr_of(closed)
        self.operands: list[Any] = [v.aval for v in self._jaxpr.invars]
        self.steps: list[ShardStep] = []
        self._is_body = is_body
        self._slots: dict[Any, int] = {var: i for i, var in enumerate(self._jaxpr.invars)}
        self._count = len(self._slots)
        self._constant: set[int] = set()  # the slots that depend on no operand
        for var, value in zip(self._jaxpr.constvars, captured(closed), strict=True):
            self._add(Constant(Static(value)), (), [var])
        for eqn in live(self._jaxpr):
            self._visit(eqn)

    def slot(self, x: Any) -> int:
        """The slot of a variable, or a new one for a literal."""
        return self._add(Constant(Static(x.val)), (), [x]) if is_literal(x) else self._slots[x]

    def _add(self, fn: ShardFn, operands: Sequence[Any], results: Sequence[Any]) -> int:
        """Adds a function, and returns the slot of its first result."""
        slots = tuple([self.slot(x) for x in operands])
        self.steps.append(ShardStep(fn, slots, tuple([is_inexact(v.aval) for v in results])))
        first = self._count
        self._slots.update((var, first + i) for i, var in enumerate(results) if not is_literal(var))
        self._count += len(results)
        if self._constant.issuperset(slots):
            self._constant.update(range(first, self._count))
        return first

    def _visit(self, eqn: Any) -> None:
        operation, what = eqn.params.get("operation"), control(eqn)
        if isinstance(operation, Local):
            if operation.fn.calls_host or not operation.fn.compared:
                raise NotLocalError
            self._add(operation.fn, eqn.invars, eqn.outvars)
        elif isinstance(operation, Reshard) and operation.inserted:
            self._cast(eqn, operation)
        elif eqn.primitive is from_concrete_p:
            self._typed_constant(eqn)
        elif what is not None and (not isinstance(what, ClosedCall) or eqn.primitive.name == "jit"):
            self._add(ShardControl(what, _bodies(eqn)), eqn.invars, eqn.outvars)
        elif what is not None or eqn.effects or any(type(v.aval) is HiShType for v in (*eqn.invars, *eqn.outvars)):
            raise NotLocalError
        else:
            self._add(Bound(eqn.primitive, eqn.params), eqn.invars, eqn.outvars)

    def _cast(self, eqn: Any, operation: Reshard) -> None:
        (x,), (y,) = eqn.invars, eqn.outvars
        if self.slot(x) in self._constant and not operation.forward_comm():
            self._add(PartOfConstant(operation.src, operation.dst), [x], [y])
            return
        is_operand = not self._is_body and x in self._jaxpr.invars
        if not is_operand or any(x in e.invars for e in self._jaxpr.eqns if e is not eqn):
            raise NotLocalError
        self._slots[y] = self._slots[x]
        self.operands[self._slots[x]] = operation.dst

    def _typed_constant(self, eqn: Any) -> None:
        """Adds a constant, which must be replicated."""
        (x,), (y,) = eqn.invars, eqn.outvars
        if not {*y.aval.states} <= {State.REDUCED, State.INVARIANT}:
            raise NotLocalError
        self._slots[y] = self.slot(x)


def _bodies(eqn: Any) -> dict[int, Composite]:
    """The bodies of an equation as local functions, by the identity of their jaxprs."""
    bodies = {}
    for body, _ in inner_jaxprs(eqn):
        steps = _Steps(body, is_body=True)
        slots = tuple([steps.slot(x) for x in jaxpr_of(body).outvars])
        moving = tuple([is_inexact(v.aval) for v in jaxpr_of(body).invars])
        bodies[id(jaxpr_of(body))] = Composite("body", tuple(steps.steps), slots, moving)
    return bodies


@dataclass(frozen=True, eq=False)
class ShardControl(ShardFn):
    """A loop, a branch or a call on shards."""

    what: Control
    bodies: Mapping[int, Composite] = field(repr=False)

    def __str__(self) -> str:
        return type(self.what).__name__.lower()

    def __call__(self, *shards: Any) -> Any:
        return tuple(run_control(self.what, shards, self._run))

    def _run(self, body: Any, xs: Sequence[Any]) -> list[Any]:
        fn = self.bodies[id(jaxpr_of(body))]
        return list(as_tuple(fn(*xs))) if fn.results else []


@dataclass(frozen=True)
class PartOfConstant(ShardFn):
    """A device's shard of a constant, cast to another type without communication."""

    src: ShType
    dst: ShType
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return "cast"

    def __call__(self, x: Any) -> Any:
        return jnp.reshape(run_plan(plan(self.src, self.dst), jnp.asarray(x)), self.dst.local_shape)
