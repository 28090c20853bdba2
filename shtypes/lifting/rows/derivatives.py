"""Rows of primitives with custom derivative rules: these rules are applied, as JAX applies them."""

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
from shtypes.dispatch.apply import apply, finished_type, is_typed
from shtypes.errors import ShardingTypeError, quoted
from shtypes.evaluation.interpreter import evaluate_closed
from shtypes.evaluation.table import FALLBACKS, REASONS, body_row
from shtypes.evaluation.value_info import beside_others, is_inexact, of_some, placed, type_of, typed_constant
from shtypes.lifting.jax_rules import Run, Site, with_rules
from shtypes.ops import functions
from shtypes.ops.along_dims import function
from shtypes.ops.table import OPS
from shtypes.rules.typing import Typing
from shtypes.scopes.comm import Implicit, allows_implicit, in_force, rules_in_force
from shtypes.types import Dim, ShType, State

_STACK: Final = function("terms", lambda x: x[None])
_OWN: Final = function("own_term", lambda x: x[0])


def linearly(
    site: Site,
    run: Run,
    plain: Run,
    operands: Sequence[Any],
    linear: Sequence[int],
    outs: int,
    guesses: Sequence[int] = (),
) -> list[Any]:
    """The results of a function that is linear in some operands together, by its author's word."""
    pending = [operands[i] for i in linear if is_typed(operands[i]) and operands[i].type.axes(State.UNREDUCED)]
    if not pending:
        return run(operands)
    axes = tuple(dict.fromkeys(a for x in pending for a in x.type.axes(State.UNREDUCED)))
    strictly = [rule for rule in rules_in_force() if not isinstance(rule, Implicit)]
    try:  # first as it is written: a direct solver is linear op by op
        with in_force(tuple(strictly)):
            return run(operands)
    except ShardingTypeError as error:
        reason = str(error).split("\n")[0]
    try:
        with in_force(tuple(strictly)):
            stacked = [i for i in guesses if is_typed(operands[i]) and operands[i].type.axes(State.UNREDUCED)]
            return _of_terms(site, plain, operands, [*linear, *stacked], outs, axes)
    except ShardingTypeError:
        pass
    if allows_implicit():
        return run([_finished(x) if i in linear else x for i, x in enumerate(operands)])
    t = pending[0].type
    raise ShardingTypeError(
        f"`{site.name}` cannot be applied to a pending sum, here {t}",
        why=f"{reason}; nor does it take each term alone: that must not communicate over {quoted(axes)}",
        hints=[whole_cotangent(t) if is_transposing() else f'sh.reshard(b, "{finished_type(t)}") before it'],
    )


def _finished(x: Any) -> Any:
    return placed(x, finished_type(x.type)) if is_typed(x) else x


def whole_cotangent(t: ShType) -> str:
    """A hint: how a function gets a cotangent that is no pending sum, instead of one of this type."""
    axes = ", ".join(f'{axis}="I"' for axis in t.axes(State.UNREDUCED))
    return f"sh.reshard(x, {axes}) of its operands x: then its result is invariant, and the cotangent of that whole"


def _of_terms(
    site: Site, plain: Run, operands: Sequence[Any], linear: Sequence[int], outs: int, axes: tuple[str, ...]
) -> list[Any]:
    mesh = next(x.type.mesh for x in operands if is_typed(x))
    size, stacked = mesh.product(axes), list(operands)

    def rule(types: tuple[ShType, ...]) -> Typing:
        (t,) = types
        states = {a: s for a, s in t.beside_dims.items() if a not in axes}
        return Typing(types, (t.replace(dims=(Dim(size, axes), *t.dims), states=states),))

    for i in linear:
        x = operands[i] if is_typed(operands[i]) else typed_constant(operands[i], mesh)
        t = x.type.with_axes(axes, State.UNREDUCED)
        stacked[i] = apply("terms", _STACK, rule, placed(x, t, "terms"))
    dims = [0 if i in linear else None for i in range(len(operands))]
    results = site.mapped(plain, size, stacked, dims)
    sums = [(functions if is_typed(y) else jax.numpy).sum(y, 0) for y in results[:outs]]
    return [*sums, *map(_shard_of_step, results[outs:])]


def _shard_of_step(y: Any) -> Any:
    if not is_typed(y):
        return y[0]

    def rule(types: tuple[ShType, ...]) -> Typing:
        (t,) = types
        states = {**t.beside_dims, **dict.fromkeys(t.dims[0].axes, State.VARYING)}
        return Typing(types, (t.replace(dims=t.dims[1:], states=states),))

    return apply("own_term", _OWN, rule, y)


@body_row("custom_jvp_call")
def _custom_jvp(eqn: Any, operands: list[Any]) -> list[Any]:
    return with_tangents(eqn, lambda xs: evaluate_closed(eqn.params["call_jaxpr"], xs), operands)


def with_tangents(eqn: Any, run: Run, operands: list[Any]) -> list[Any]:
    """The results of an equation by ``run``; where it is differentiated, its results and tangents by JAX's rule."""
    site = Site(eqn, operands)
    types: list[Any] = []  # of the results where the function itself ran, which JAX holds the rule's to

    @jax.custom_jvp
    def f(*xs: Any) -> list[Any]:
        outs = run(site.own(xs))
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
    """The static parts of a pullback, beside its residuals."""

    tree: Any  # how the residuals make it up
    live: tuple[int, ...]  # which operands it is of
    residuals: tuple[Any, ...]  # JAX's types of the residuals
    cts: tuple[Any, ...]  # those of the cotangents


def with_cotangents(eqn: Any, run: Run, operands: list[Any]) -> list[Any]:
    """The results of an equation by ``run``; where it is differentiated, by JAX's forward and backward functions."""
    site = Site(eqn, operands)
    pulled: list[_Pulled] = []

    @jax.custom_vjp
    def f(*xs: Any) -> list[Any]:
        with set_current_eqn(site.here):
            return run(site.own(xs))

    def fwd(*primals: Any) -> Any:
        check_closed_over(eqn, [x.perturbed for x in primals])
        xs = site.own([x.value for x in primals])
        live = [i for i, x in enumerate(primals) if x.perturbed and is_inexact(x.value)]

        def forward(xs: Any) -> Any:
            out, pull = jax.vjp(of_some(site.native, xs, live), *[xs[i] for i in live])
            residuals, tree = jax.tree.flatten(pull)
            cts = tuple([traced_type(y).to_ct_aval() for y in out])
            pulled[:] = [_Pulled(tree, tuple(live), tuple(map(traced_type, residuals)), cts)]
            return out, residuals

        with site.applying():
            out, residuals = site.plainly(lambda *xs: forward(xs), xs, xs, site.ins)
        return out, (residuals, xs, pulled[0])

    def bwd(saved: Any, cts: Any) -> Any:
        residuals, xs, pulled = saved
        nonzero = [is_inexact(ct) and not isinstance(ct, SymbolicZero) for ct in cts]

        def pull(residuals: Any, nonzero_cts: Any) -> Any:
            rest = iter(nonzero_cts)
            zeros = [ad.Zero(ct) if is_inexact(ct) else np.zeros(ct.shape, jax.dtypes.float0) for ct in pulled.cts]
            full = [next(rest) if there else zero for zero, there in zip(zeros, nonzero, strict=True)]
            return jax.tree.unflatten(pulled.tree, residuals)(full)

        nonzero_cts = [ct for ct, there in zip(cts, nonzero, strict=True) if there]
        full: list[Any] = [None] * len(xs)
        try:
            with site.applying():
                like = [*pulled.residuals, *(ct for ct, there in zip(pulled.cts, nonzero, strict=True) if there)]
                cts_in = site.plainly(pull, xs, (residuals, nonzero_cts), like)
                for i, ct in zip(pulled.live, cts_in, strict=True):
                    full[i] = site.cotangent(ct, xs[i].type.cotangent()) if is_typed(xs[i]) else ct
        except ShardingTypeError as error:
            pending = [ct.type for ct in nonzero_cts if is_typed(ct) and ct.type.axes(State.UNREDUCED)]
            if error.__cause__ is None:  # of what JAX refuses, another type is no remedy
                error.hints = (*error.hints, *map(whole_cotangent, pending))
            raise
        return tuple(full)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return list(f(*operands))


@body_row("custom_linear_solve")
def _custom_linear_solve(eqn: Any, operands: list[Any]) -> list[Any]:
    """The solution by ``solve``; by JAX's rules a tangent solves it too, and a cotangent the transpose."""
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

    return with_rules(site, operands, run, nondiff=range(linear.start))


body_row("keep_alive")(lambda eqn, operands: operands[:1])


@body_row("custom_vmap_call")
def _custom_vmap(eqn: Any, operands: list[Any]) -> list[Any]:
    """A function that is mapped by another one."""
    return with_rules(Site(eqn, operands), operands, lambda xs: evaluate_closed(eqn.params["call"], xs))


#: Those of JAX that take floats apart into bits, of which no pending sum has any, and the ops that they are.
_WHOLE: Final = {"Frexp": "frexp", "Ldexp": "ldexp"}


@body_row("call_hi_primitive")
def _hi_primitive(eqn: Any, operands: list[Any]) -> list[Any]:
    """A primitive that expands to others, with a derivative rule."""
    prim = eqn.params["_prim"]
    if type(prim).__module__.startswith("jax.") and type(prim).__name__ in _WHOLE:
        return jax.tree.leaves(OPS[_WHOLE[type(prim).__name__]].function(*beside_others(operands)))

    def expand(*xs: Any) -> list[Any]:
        return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, xs)))

    run = _traced(eqn, operands, expand)
    if not any(is_inexact(v.aval) for v in eqn.outvars):
        return run(operands)  # positions and counts have no gradient, whatever rules there are
    return (with_cotangents if has_custom_vjp(prim) else with_tangents)(eqn, run, operands)


def _of_third_party(eqn: Any, operands: list[Any]) -> list[Any] | None:
    """A primitive of a third party through what it runs, with the rules that JAX has for it."""
    run = None if eqn.primitive.name in REASONS else implementation_of(eqn)
    return None if run is None else with_rules(Site(eqn, operands), operands, _traced(eqn, operands, run))


def _traced(eqn: Any, operands: list[Any], f: Callable[..., list[Any]]) -> Run:
    site = Site(eqn, operands)
    return lambda xs: site.plainly(f, xs, xs, site.ins)


FALLBACKS.append(_of_third_party)
