"""The policies of checkpoints in plain programs: called on each plain equation where it is evaluated, as in JAX.

One plain equation may be several typed ones, of which none is JAX's: what a policy saves is marked, and JAX sees marks.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from shtypes._compat import HiPrimitive
from shtypes._compat.derivative_rules import name_p, offloads, policy_decides, policy_decides_inside, saves
from shtypes._compat.jaxprs import jaxpr_of, variable, with_bodies, with_equations
from shtypes.autodiff.checkpoint import ForTyped, Policy, contraction, function_of, refuse_offload
from shtypes.core.elementwise_fns import IDENTITY, Identity
from shtypes.core.local import local
from shtypes.core.shard_fn import ShardFn
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.value_info import note, noted


@dataclass(frozen=True)
class Mark:
    """The decisions of the policies around an equation, except to compute its result again."""

    said: tuple[tuple[Policy, Any], ...]

    def __str__(self) -> str:
        return "saved"

    def by(self, policy: Policy) -> Any:
        """The decision of one of them."""
        return next((decision for other, decision in self.said if other == policy), False)


@dataclass(frozen=True)
class _Marked(Identity):
    """The operand, with what policies say of it."""

    mark: Mark = Mark(())

    def __str__(self) -> str:
        return str(self.mark)

    @property
    def linear_part(self) -> ShardFn | None:
        """The operand without the mark: tangents and cotangents are never saved."""
        return IDENTITY


def with_mark(x: Any, mark: Mark) -> Any:
    """A value with a mark."""
    if not is_typed(x):
        return name_p.bind(x, name=mark)
    y = local(_Marked(mark=mark), x, out=x.type)
    for kind, what in noted(x).items():
        note(y, kind, what)
    return y


class ByMarks(ForTyped):
    """A policy for a program in which it has marked what it saves.

    A contraction that is not in the program, but in its derivative, is a `dot_general` to it; other operations on
    typed values is computed again.
    """

    def __call__(self, prim: Any, *args: Any, **params: Any) -> Any:
        """The decision on the results of an equation."""
        fn, name = function_of(params), params.get("name")
        if isinstance(fn, _Marked):
            return refuse_offload(fn.mark.by(self.policy))
        if isinstance(name, Mark):
            return name.by(self.policy)
        if isinstance(prim, HiPrimitive) and contraction(params) is None:
            return False
        return super().__call__(prim, *args, **params)


# the policies around what is evaluated


class _Thread(threading.local):
    policies: tuple[Policy, ...] = ()


_thread: Final = _Thread()


def policies_in_force() -> tuple[Policy, ...]:
    """The policies of the checkpoints that are being evaluated."""
    return _thread.policies


@contextlib.contextmanager
def under_policies(policies: tuple[Policy, ...]) -> Iterator[None]:
    """A scope around the evaluation of a program in checkpoints with these policies."""
    outer, _thread.policies = _thread.policies, policies
    try:
        yield
    finally:
        _thread.policies = outer


@functools.lru_cache(maxsize=256)
def marked(jaxpr: Any, policies: tuple[Policy, ...]) -> Any:
    """The program with marks at what the policies keep, in the bodies that JAX asks about too."""
    if not policies:
        return jaxpr
    opened = jaxpr_of(jaxpr)
    eqns: list[Any] = []
    for eqn in opened.eqns:
        if policy_decides_inside(eqn):
            eqn = with_bodies(eqn, lambda body: marked(body, policies))
        mark = _mark(eqn, policies) if policy_decides(eqn) else None
        if mark is None:
            eqns.append(eqn)
            continue
        unmarked = [variable(v.aval) for v in eqn.outvars]
        eqns.append(eqn.replace(outvars=unmarked))
        name = eqn.replace(primitive=name_p, params={"name": mark}, effects=set())
        eqns += [name.replace(invars=[x], outvars=[v]) for x, v in zip(unmarked, eqn.outvars, strict=True)]
    return with_equations(jaxpr, eqns, opened.outvars)


def _mark(eqn: Any, policies: tuple[Policy, ...]) -> Mark | None:
    avals = [v.aval for v in eqn.invars]
    said = [(policy, policy(eqn.primitive, *avals, **eqn.params)) for policy in policies]
    decisions = tuple((policy, decision) for policy, decision in said if saves(decision) or offloads(decision))
    return Mark(decisions) if decisions else None
