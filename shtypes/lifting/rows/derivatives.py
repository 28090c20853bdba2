"""Rows of primitives that carry derivative rules of their own: these rules are applied, as JAX applies them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from shtypes._compat.derivative_rules import check_closed_over, has_own_vjp
from shtypes._compat.jaxprs import captured, jaxpr_of
from shtypes._compat.local_axes import told_of
from shtypes._compat.plain_programs import implementation_of
from shtypes.context.eqn_source import set_current_eqn
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.branch_types import of_some, type_of
from shtypes.evaluation.interpreter import evaluate_closed
from shtypes.evaluation.table import FALLBACK, body_row
from shtypes.evaluation.value_info import beside_others, is_inexact
from shtypes.lifting.jax_rules import Run, Site, with_rules
from shtypes.lifting.public_ops import op
from shtypes.lifting.terms import linearly, whole_cotangent
from shtypes.types import State


@body_row("custom_jvp_call")
def _custom_jvp(eqn: Any, operands: list[Any]) -> list[Any]:
    return with_tangents(eqn, lambda xs: evaluate_closed(eqn.params["call_jaxpr"], xs), operands)


def with_tangents(eqn: Any, run: Run, operands: list[Any]) -> list[Any]:
    """The results of an equation by ``run``; where it is differentiated, its results and tangents by JAX's rule."""
    site = Site(eqn, operands)
    types: list[Any] = []  # of the results where the function itself ran, which JAX holds the rule's to

    @jax.custom_jvp
    def f(*xs: Any) -> list[Any]:
        outs = run(xs)
        types[:] = map(type_of, outs)
        return outs

    def rule(primals: Any, tangents: Any) -> Any:
        outs, dots = site.jvp(primals, [None if isinstance(t, SymbolicZero) else t for t in tangents], types)
        zeros = map(SymbolicZero.from_primal_value, outs)
        return outs, [z if t is None else t for z, t in zip(zeros, dots, strict=True)]

    f.defjvp(rule, symbolic_zeros=True)
    return list(f(*operands))


@body_row("custom_vjp_call")
def _custom_vjp(eqn: Any, operands: list[Any]) -> list[Any]:
    return with_cotangents(eqn, lambda xs: evaluate_closed(eqn.params["call_jaxpr"], xs), operands)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Pulled:
    """What is known of a pullback beside its residuals.

    Attributes:
        tree: How the residuals make it up.
        live: Which operands it is of.
        residuals: JAX's types of the residuals.
        cts: Those of the cotangents.
    """

    tree: Any
    live: tuple[int, ...]
    residuals: tuple[Any, ...]
    cts: tuple[Any, ...]


def with_cotangents(eqn: Any, run: Run, operands: list[Any]) -> list[Any]:
    """The results of an equation by ``run``; where it is differentiated, by JAX's forward and backward functions."""
    site = Site(eqn, operands)
    pulled: list[_Pulled] = []

    @jax.custom_vjp
    def f(*xs: Any) -> list[Any]:
        with set_current_eqn(site.here):
            return run(xs)

    def fwd(*given: Any) -> Any:
        check_closed_over(eqn, [x.perturbed for x in given])
        xs = [x.value for x in given]
        live = [i for i, x in enumerate(given) if x.perturbed and is_inexact(x.value)]

        def forward(xs: Any) -> Any:
            out, pull = jax.vjp(of_some(site.native, xs, live), *[xs[i] for i in live])
            residuals, tree = jax.tree.flatten(pull)
            cts = tuple([told_of(y).to_ct_aval() for y in out])
            pulled[:] = [_Pulled(tree, tuple(live), tuple(map(told_of, residuals)), cts)]
            return out, residuals

        with site.applying():
            out, residuals = site.plainly(lambda *xs: forward(xs), xs, xs, site.ins)
        return out, (residuals, xs, pulled[0])

    def bwd(kept: Any, cts: Any) -> Any:
        residuals, xs, pulled = kept
        known = [is_inexact(ct) and not isinstance(ct, SymbolicZero) for ct in cts]

        def pull(residuals: Any, given: Any) -> Any:
            rest = iter(given)
            full = [next(rest) if there else _zero(ct) for ct, there in zip(pulled.cts, known, strict=True)]
            return jax.tree.unflatten(pulled.tree, residuals)(full)

        given = [ct for ct, there in zip(cts, known, strict=True) if there]
        full: list[Any] = [None] * len(xs)
        try:
            with site.applying():
                like = [*pulled.residuals, *(ct for ct, there in zip(pulled.cts, known, strict=True) if there)]
                found = site.plainly(pull, xs, (residuals, given), like)
                for i, ct in zip(pulled.live, found, strict=True):
                    full[i] = site.cotangent(ct, xs[i].type.cotangent()) if is_typed(xs[i]) else ct
        except ShardingTypeError as error:
            pending = [ct.type for ct in given if is_typed(ct) and ct.type.axes(State.UNREDUCED)]
            error.hints = (*error.hints, *map(whole_cotangent, pending))
            raise
        return tuple(full)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return list(f(*operands))


def _zero(x: Any) -> Any:
    return ad.Zero(x) if is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0)


@body_row("custom_linear_solve")
def _custom_linear_solve(eqn: Any, operands: list[Any]) -> list[Any]:
    """The solution by ``solve``; by JAX's rules a tangent is a solution too, and a cotangent one of the transpose."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    first, count = lengths.matvec + lengths.vecmat, sum(lengths)

    def run(xs: Sequence[Any]) -> list[Any]:
        return evaluate_closed(solve, [*xs[first : first + lengths.solve], *xs[count:]])

    site, linear, guesses = Site(eqn, operands), range(count, len(operands)), range(first, count)
    return with_rules(site, operands, lambda xs: linearly(site, run, site.native, xs, linear, len(linear), guesses))


@body_row("linear_call")
def _linear_call(eqn: Any, operands: list[Any]) -> list[Any]:
    """A linear function whose transpose is another function's; what it is linear beside has no gradient."""
    callee, site = eqn.params["callee"], Site(eqn, operands)
    linear = range(eqn.params["num_callee_consts"] + eqn.params["num_res"], len(operands))

    def run(xs: Sequence[Any]) -> list[Any]:
        return linearly(
            site,
            lambda xs: evaluate_closed(callee, xs),
            lambda xs: jax.core.eval_jaxpr(jaxpr_of(callee), captured(callee), *xs),
            xs,
            linear,
            len(eqn.outvars),
        )

    return with_rules(site, operands, run, held=range(linear.start))


@body_row("kept")
def _kept(eqn: Any, operands: list[Any]) -> list[Any]:
    return operands[:1]


@body_row("custom_vmap_call")
def _custom_vmap(eqn: Any, operands: list[Any]) -> list[Any]:
    """A function that is mapped by another one."""
    return with_rules(Site(eqn, operands), operands, lambda xs: evaluate_closed(eqn.params["call"], xs))


#: Those of JAX that take floats apart into bits, of which no pending sum has any, and the ops that they are.
_WHOLE: Final = {"Frexp": "frexp", "Ldexp": "ldexp"}


@body_row("call_hi_primitive")
def _hi_primitive(eqn: Any, operands: list[Any]) -> list[Any]:
    """A primitive that is made of others; its derivative is its own."""
    prim = eqn.params["_prim"]
    if type(prim).__module__.startswith("jax.") and type(prim).__name__ in _WHOLE:
        return jax.tree.leaves(op(_WHOLE[type(prim).__name__])(*beside_others(operands)))

    def expand(*xs: Any) -> list[Any]:
        return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, xs)))

    keeping = with_cotangents if has_own_vjp(prim) else with_tangents
    return keeping(eqn, _traced(eqn, operands, expand), operands)


def _of_third_party(eqn: Any, operands: list[Any]) -> list[Any] | None:
    """A primitive of a third party through what it runs, with the rules that JAX has for it."""
    run = implementation_of(eqn)
    return None if run is None else with_rules(Site(eqn, operands), operands, _traced(eqn, operands, run))


def _traced(eqn: Any, operands: list[Any], f: Callable[..., list[Any]]) -> Run:
    site = Site(eqn, operands)
    return lambda xs: site.plainly(f, xs, xs, site.ins)


FALLBACK[:] = [_of_third_party]
