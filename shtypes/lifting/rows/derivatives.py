"""Rows of primitives with custom derivative rules, which apply these rules to typed values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from shtypes._compat import is_transposing
from shtypes._compat.derivative_rules import check_closed_over, has_custom_vjp
from shtypes._compat.jaxprs import captured, jaxpr_of
from shtypes._compat.local_axes import traced_type
from shtypes._compat.plain_programs import implementation_of
from shtypes.context.eqn_source import set_current_eqn
from shtypes.core.shard_fn import is_inexact
from shtypes.dispatch.apply import apply, finished_type, is_typed
from shtypes.errors import ShardingTypeError, quoted
from shtypes.evaluation.interpreter import evaluate_closed
from shtypes.evaluation.table import FALLBACKS, WITHOUT_ROW, body_row
from shtypes.evaluation.value_info import cast_to_type, of_some, type_constants, type_of, typed_constant
from shtypes.lifting.jax_rules import Run, Site, with_rules
from shtypes.ops import functions
from shtypes.ops.along_dims import function
from shtypes.ops.table import OPS
from shtypes.rules.typing import Typing
from shtypes.scopes.scope_rules import Implicit, allows_implicit, in_force, rules_in_force, without_scopes
from shtypes.types import Dim, ShType, State

#: Between a pending sum and its terms: an array with a leading dim that is sharded over the sum's axes.
_ADD_TERMS_DIM: Final = function("terms", lambda x: x[None])
_DROP_TERMS_DIM: Final = function("own_term", lambda x: x[0])


def apply_linear(
    site: Site,
    run: Run,
    plain: Run,
    operands: Sequence[Any],
    linear: Sequence[int],
    outs: int,
    guesses: Sequence[int] = (),
) -> list[Any]:
    """Evaluates a function that its author declares linear in the ``linear`` operands jointly.

    On pending sums ``run`` is tried first, then ``plain`` on each term. Results after the first ``outs`` and the
    operands ``guesses`` need not be sums.
    """
    pending = [operands[i] for i in linear if is_typed(operands[i]) and operands[i].type.axes(State.UNREDUCED)]
    if not pending:
        return run(operands)
    axes = tuple(dict.fromkeys(a for x in pending for a in x.type.axes(State.UNREDUCED)))
    without_implicit = [rule for rule in rules_in_force() if not isinstance(rule, Implicit)]
    try:  # a direct solver is linear op by op
        with in_force(tuple(without_implicit)):
            return run(operands)
    except ShardingTypeError as error:
        reason = str(error).split("\n")[0]
    try:
        with in_force(tuple(without_implicit)):
            stacked = [i for i in guesses if is_typed(operands[i]) and operands[i].type.axes(State.UNREDUCED)]
            return _apply_to_terms(site, plain, operands, [*linear, *stacked], outs, axes)
    except ShardingTypeError:
        pass
    if allows_implicit():
        sums = [i for i in linear if is_typed(operands[i])]
        return run([cast_to_type(x, finished_type(x.type)) if i in sums else x for i, x in enumerate(operands)])
    t = pending[0].type
    raise ShardingTypeError(
        f"`{site.name}` cannot be applied to a pending sum, here {t}",
        why=f"{reason}; nor does it take each term alone: that must not communicate over {quoted(axes)}",
        hints=[invariant_operands_hint(t) if is_transposing() else f'sh.reshard(b, "{finished_type(t)}") before it'],
    )


def invariant_operands_hint(t: ShType) -> str:
    """A hint to make operands invariant, so that the cotangent is no pending sum of this type."""
    axes = ", ".join(f'{axis}="I"' for axis in t.axes(State.UNREDUCED))
    return f"sh.reshard(x, {axes}) of its operands x: then its result is invariant, and the cotangent of that whole"


def _apply_to_terms(
    site: Site, plain: Run, operands: Sequence[Any], linear: Sequence[int], outs: int, axes: tuple[str, ...]
) -> list[Any]:
    """Maps the function over the terms of the ``linear`` operands, one on each device, and sums the results."""
    mesh = next(x.type.mesh for x in operands if is_typed(x))
    size, stacked = mesh.product(axes), list(operands)

    def rule(types: tuple[ShType, ...]) -> Typing:
        (t,) = types
        states = {a: s for a, s in t.beside_dims.items() if a not in axes}
        return Typing(types, (t.replace(dims=(Dim(size, axes), *t.dims), states=states),))

    for i in linear:
        x = operands[i] if is_typed(operands[i]) else typed_constant(operands[i], mesh)
        t = x.type.with_axes(axes, State.UNREDUCED)
        stacked[i] = apply("terms", _ADD_TERMS_DIM, rule, cast_to_type(x, t, "terms"))
    results = site.mapped(plain, size, stacked, [0 if i in linear else None for i in range(len(operands))])
    sums = [(functions if is_typed(y) else jax.numpy).sum(y, 0) for y in results[:outs]]
    return [*sums, *map(_without_terms_dim, results[outs:])]


def _without_terms_dim(y: Any) -> Any:
    """Each device's element of the leading dim; varying over its axes."""
    if not is_typed(y):
        return y[0]

    def rule(types: tuple[ShType, ...]) -> Typing:
        (t,) = types
        states = {**t.beside_dims, **dict.fromkeys(t.dims[0].axes, State.VARYING)}
        return Typing(types, (t.replace(dims=t.dims[1:], states=states),))

    return apply("own_term", _DROP_TERMS_DIM, rule, y)


@body_row("custom_jvp_call")
def _custom_jvp(eqn: Any, operands: list[Any]) -> list[Any]:
    return with_tangents(eqn, lambda xs: evaluate_closed(eqn.params["call_jaxpr"], xs), operands)


def with_tangents(eqn: Any, run: Run, operands: list[Any]) -> list[Any]:
    """Evaluates an equation by ``run``; its derivative by JAX's jvp rule."""
    site = Site(eqn, operands)
    types: list[Any] = []  # of the results of ``run``; JAX wants the rule's results to have the same

    @jax.custom_jvp
    def f(*xs: Any) -> list[Any]:
        outs = run(site.with_notes(xs))
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
class _Pullback:
    """A `jax.vjp` function without its residuals."""

    tree: Any  # its pytree structure, whose leaves are the residuals
    live: tuple[int, ...]  # the differentiated operands
    residuals: tuple[Any, ...]  # JAX's types of the residuals
    cts: tuple[Any, ...]  # JAX's types of the cotangents


def with_cotangents(eqn: Any, run: Run, operands: list[Any]) -> list[Any]:
    """Evaluates an equation by ``run``; where it is differentiated, by JAX's forward and backward functions."""
    site = Site(eqn, operands)
    pullback: list[_Pullback] = []

    @jax.custom_vjp
    def f(*xs: Any) -> list[Any]:
        with set_current_eqn(site.step):
            return run(site.with_notes(xs))

    def fwd(*primals: Any) -> Any:
        check_closed_over(eqn, [x.perturbed for x in primals])
        xs = site.with_notes([x.value for x in primals])
        live = [i for i, x in enumerate(primals) if x.perturbed and is_inexact(x.value)]

        def forward(xs: Any) -> Any:
            out, pull = jax.vjp(of_some(site.bind_plain, xs, live), *[xs[i] for i in live])
            residuals, tree = jax.tree.flatten(pull)
            cts = tuple([traced_type(y).to_ct_aval() for y in out])
            pullback[:] = [_Pullback(tree, tuple(live), tuple(map(traced_type, residuals)), cts)]
            return out, residuals

        with site.applying():
            out, residuals = site.evaluate_rule(lambda *xs: forward(xs), xs, xs, site.in_avals)
        return out, (residuals, xs, pullback[0])

    def bwd(saved: Any, cts: Any) -> Any:
        residuals, xs, pullback = saved
        nonzero = [is_inexact(ct) and not isinstance(ct, SymbolicZero) for ct in cts]

        def pull(residuals: Any, nonzero_cts: Any) -> Any:
            rest = iter(nonzero_cts)
            zeros = [ad.Zero(ct) if is_inexact(ct) else np.zeros(ct.shape, jax.dtypes.float0) for ct in pullback.cts]
            all_cts = [next(rest) if is_nonzero else zero for zero, is_nonzero in zip(zeros, nonzero, strict=True)]
            return jax.tree.unflatten(pullback.tree, residuals)(all_cts)

        nonzero_cts = [ct for ct, is_nonzero in zip(cts, nonzero, strict=True) if is_nonzero]
        cts_in: list[Any] = [None] * len(xs)
        try:
            with site.applying():
                like = [
                    *pullback.residuals,
                    *(ct for ct, is_nonzero in zip(pullback.cts, nonzero, strict=True) if is_nonzero),
                ]
                live_cts = site.evaluate_rule(pull, xs, (residuals, nonzero_cts), like)
                for i, ct in zip(pullback.live, live_cts, strict=True):
                    cts_in[i] = site.cotangent(ct, xs[i].type.cotangent()) if is_typed(xs[i]) else ct
        except ShardingTypeError as error:
            pending = [ct.type for ct in nonzero_cts if is_typed(ct) and ct.type.axes(State.UNREDUCED)]
            if error.__cause__ is None:  # what JAX refuses, another type does not mend
                error.hints = (*error.hints, *map(invariant_operands_hint, pending))
            raise
        return tuple(cts_in)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return list(f(*operands))


@body_row("custom_linear_solve")
def _custom_linear_solve(eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates the user's ``solve``; by JAX's rules tangents solve too, and cotangents solve the transpose."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    first, count = lengths.matvec + lengths.vecmat, sum(lengths)

    def run(xs: Sequence[Any]) -> list[Any]:
        return evaluate_closed(solve, [*xs[first : first + lengths.solve], *xs[count:]])

    linear, guesses = range(count, len(operands)), range(first, count)
    operands = _as_their_solutions(run, operands, linear)
    site = Site(eqn, operands)
    return with_rules(
        site, operands, lambda xs: apply_linear(site, run, site.bind_plain, xs, linear, len(linear), guesses)
    )


def _as_their_solutions(run: Run, operands: list[Any], linear: range) -> list[Any]:
    """Sharded right-hand sides as pending sums where their solutions are, to which JAX's rule adds their tangents."""
    if allows_implicit() or not any(is_typed(x) and x.type.axes(State.SHARDED) for x in operands[linear.start :]):
        return operands
    try:
        with without_scopes():
            solutions = jax.eval_shape(run, operands)
    except ShardingTypeError:  # raised again where it is evaluated
        return operands

    def alike(x: Any, t: Any) -> Any:
        axes = [a for a in t.axes(State.UNREDUCED) if a in x.type.axes(State.SHARDED)]
        return cast_to_type(x, x.type.with_axes(axes, State.UNREDUCED))

    pairs = zip(operands[linear.start :], solutions, strict=True)
    typed = (alike(x, t) if is_typed(x) and isinstance(t, ShType) else x for x, t in pairs)
    return [*operands[: linear.start], *typed]


@body_row("linear_call")
def _linear_call(eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates a linear function with a custom transpose; its residuals have no gradient."""
    callee, site = eqn.params["callee"], Site(eqn, operands)
    linear = range(eqn.params["num_callee_consts"] + eqn.params["num_res"], len(operands))

    def run(xs: Sequence[Any]) -> list[Any]:
        return apply_linear(
            site,
            lambda xs: evaluate_closed(callee, xs),
            lambda xs: jax.core.eval_jaxpr(jaxpr_of(callee), captured(callee), *xs),
            xs,
            linear,
            len(eqn.outvars),
        )

    return with_rules(site, operands, run, nondiff=range(linear.start))


body_row("keep_alive")(lambda eqn, operands: operands[:1])


@body_row("custom_vmap_call")
def _custom_vmap(eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates a function with a custom batching rule."""
    return with_rules(Site(eqn, operands), operands, lambda xs: evaluate_closed(eqn.params["call"], xs))


@body_row("call_hi_primitive")
def _hi_primitive(eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates the expansion of a primitive, with its derivative rule."""
    prim = eqn.params["_prim"]
    if type(prim).__module__.startswith("jax.") and type(prim).__name__ == "Ldexp":  # its expansion has no derivative
        return [OPS["ldexp"].function(*type_constants(operands))]

    def expand(*xs: Any) -> list[Any]:
        return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, xs)))

    run = _as_traced_rule(eqn, operands, expand)
    if not any(is_inexact(v.aval) for v in eqn.outvars):
        return run(operands)  # integers have no gradient
    return (with_cotangents if has_custom_vjp(prim) else with_tangents)(eqn, run, operands)


def _third_party(eqn: Any, operands: list[Any]) -> list[Any] | None:
    """Evaluates the implementation of a third party's primitive, with the rules registered in JAX."""
    run = None if eqn.primitive.name in WITHOUT_ROW else implementation_of(eqn)
    return None if run is None else with_rules(Site(eqn, operands), operands, _as_traced_rule(eqn, operands, run))


def _as_traced_rule(eqn: Any, operands: list[Any], f: Callable[..., list[Any]]) -> Run:
    site = Site(eqn, operands)
    return lambda xs: site.evaluate_rule(f, xs, xs, site.in_avals)


FALLBACKS.append(_third_party)
