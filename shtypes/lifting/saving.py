"""Applies the policies of `jax.checkpoint` in plain programs to the plain equations, as JAX does.

A plain equation may be evaluated as several typed ones, which the policy does not know. So its results are marked with
the policy's decision, and the policy that JAX gets reads the marks.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from dataclasses import dataclass
from typing import Any, Final

from shtypes._compat import HiPrimitive
from shtypes._compat.derivative_rules import name_p, offloads, policy_decides, policy_decides_inside, saves
from shtypes._compat.jaxprs import jaxpr_of, variable, with_bodies, with_equations
from shtypes.autodiff.checkpoint import ForTyped, Policy, contraction, function_of, refuse_offload
from shtypes.context.scope import attribute_set
from shtypes.core.elementwise_fns import Identity
from shtypes.core.local import local
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.value_info import copy_notes


@dataclass(frozen=True)
class Mark:
    """The decisions of the enclosing policies on an equation's result, without those to recompute it."""

    decisions: tuple[tuple[Policy, Any], ...]

    def __str__(self) -> str:
        return "saved"

    def decision_of(self, policy: Policy) -> Any:
        """The decision of one policy; False to recompute."""
        return next((decision for other, decision in self.decisions if other == policy), False)


@dataclass(frozen=True)
class _Marked(Identity):
    """The identity, with the policies' decisions on its operand."""

    mark: Mark = Mark(())

    def __str__(self) -> str:
        return str(self.mark)


def with_mark(x: Any, mark: Mark) -> Any:
    """Marks a value."""
    if not is_typed(x):
        return name_p.bind(x, name=mark)
    y = local(_Marked(mark=mark), x, out=x.type)
    copy_notes(x, to=y)
    return y


class ByMarks(ForTyped):
    """The policy that JAX's `checkpoint` gets in place of the user's: it reads the user's decisions off the marks.

    Unmarked contractions, which derivative rules add, are passed to the user's policy as a `dot_general`; other
    unmarked operations on typed values are recomputed.
    """

    def __call__(self, prim: Any, *args: Any, **params: Any) -> Any:
        """The decision on the results of an equation."""
        fn, name = function_of(params), params.get("name")
        if isinstance(fn, _Marked):
            return refuse_offload(fn.mark.decision_of(self.policy))
        if isinstance(name, Mark):
            return name.decision_of(self.policy)
        if isinstance(prim, HiPrimitive) and contraction(params) is None:
            return False
        return super().__call__(prim, *args, **params)


class _Thread(threading.local):
    policies: tuple[Policy, ...] = ()


_thread: Final = _Thread()


def policies_in_force() -> tuple[Policy, ...]:
    """The policies of the enclosing checkpoints."""
    return _thread.policies


def under_policies(policies: tuple[Policy, ...]) -> contextlib.AbstractContextManager[Any]:
    """A scope that evaluates a program inside checkpoints with these policies."""
    return attribute_set(_thread, "policies", policies)


@functools.lru_cache(maxsize=256)
def marked(jaxpr: Any, policies: tuple[Policy, ...]) -> Any:
    """Adds marks to the results that the policies save, also in the sub-jaxprs to which JAX applies policies."""
    if not policies:
        return jaxpr
    eqns: list[Any] = []
    for eqn in jaxpr_of(jaxpr).eqns:
        if policy_decides_inside(eqn):
            eqn = with_bodies(eqn, lambda body: marked(body, policies))
        mark = _mark(eqn, policies) if policy_decides(eqn) else None
        if mark is None:
            eqns.append(eqn)
            continue
        unmarked = [variable(v.aval) for v in eqn.outvars]
        eqns.append(eqn.replace(outvars=unmarked))
        name_eqn = eqn.replace(primitive=name_p, params={"name": mark}, effects=set())
        eqns += [name_eqn.replace(invars=[x], outvars=[v]) for x, v in zip(unmarked, eqn.outvars, strict=True)]
    return with_equations(jaxpr, eqns, jaxpr_of(jaxpr).outvars)


def _mark(eqn: Any, policies: tuple[Policy, ...]) -> Mark | None:
    avals = [v.aval for v in eqn.invars]
    by_policy = [(policy, policy(eqn.primitive, *avals, **eqn.params)) for policy in policies]
    decisions = tuple((policy, decision) for policy, decision in by_policy if saves(decision) or offloads(decision))
    return Mark(decisions) if decisions else None
