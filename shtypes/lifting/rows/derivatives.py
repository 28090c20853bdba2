"""Rows of primitives that carry derivative rules of their own: these rules are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import zero_from_primal

from shtypes._compat.plain_programs import bind_plain, implementation_of, trace_plain, tracing_plain
from shtypes.context.origin import evaluating
from shtypes.lifting.constants import is_inexact
from shtypes.lifting.evaluate import evaluate_closed
from shtypes.lifting.joins import aval_of, of_some, placed
from shtypes.lifting.registry import FALLBACK, body_row, op
from shtypes.lifting.steps import current
from shtypes.ops.dispatch import is_typed


def plainly(f: Callable[..., Any], *args: Any) -> Any:
    """A function of plain arrays, of typed values: traced, and evaluated."""
    leaves, tree = jax.tree.flatten(args)
    avals = [aval_of(x) for x in leaves]
    structure: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        out, found = jax.tree.flatten(f(*jax.tree.unflatten(tree, xs)))
        structure.append(found)
        return out

    closed, _ = trace_plain(flat, avals)
    return jax.tree.unflatten(structure[0], evaluate_closed(closed, leaves))


def primitive_of(eqn: Any) -> Callable[..., list[Any]]:
    """An equation as a function of plain arrays, with JAX's own derivative."""
    return lambda *xs: bind_plain(eqn, xs)


def _float0(x: Any) -> Any:
    """The tangent, or the cotangent, of what has none."""
    return zero_from_primal(x) if is_typed(x) else np.zeros(x.shape, jax.dtypes.float0)


def with_tangents(eqn: Any, primal: Callable[..., list[Any]], operands: list[Any]) -> list[Any]:
    """An equation whose values are those of ``primal``, and whose tangents are those that JAX has for it."""
    native, here = primitive_of(eqn), current()

    @jax.custom_jvp
    def f(*xs: Any) -> list[Any]:
        return primal(*xs)

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        live = [i for i, x in enumerate(primals) if is_inexact(x)]

        def push(xs: Any, ts: Any) -> Any:
            return jax.jvp(of_some(lambda full: native(*full), xs, live), [xs[i] for i in live], ts)

        with evaluating(here):
            ys = primal(*primals)
            _, dots = plainly(push, list(primals), [tangents[i] for i in live])
        return ys, [_as_tangent(t, y) for t, y in zip(dots, ys, strict=True)]

    return list(f(*operands))


def _as_tangent(t: Any, y: Any) -> Any:
    if not is_inexact(y):
        return _float0(y)
    return placed(t, y.type) if is_typed(y) else t


@body_row("custom_jvp_call")
def _custom_jvp(eqn: Any, operands: list[Any]) -> list[Any]:
    return with_tangents(eqn, lambda *xs: evaluate_closed(eqn.params["call_jaxpr"], xs), operands)


@body_row("custom_vjp_call")
def _custom_vjp(eqn: Any, operands: list[Any]) -> list[Any]:
    native, body, here = primitive_of(eqn), eqn.params["call_jaxpr"], current()
    live = [i for i, x in enumerate(operands) if is_inexact(x)]
    trees: list[Any] = []

    def forward(xs: Any) -> Any:
        out, pull = jax.vjp(of_some(lambda full: native(*full), xs, live), *[xs[i] for i in live])
        residuals, tree = jax.tree.flatten(pull)
        trees.append(tree)
        return out, residuals

    @jax.custom_vjp
    def f(*xs: Any) -> list[Any]:
        with evaluating(here):
            return evaluate_closed(body, xs)

    def fwd(*xs: Any) -> Any:
        with evaluating(here):
            out, residuals = plainly(forward, list(xs))
        return out, (residuals, list(xs))

    def bwd(kept: Any, cts: Any) -> Any:
        residuals, xs = kept
        inexact = [is_inexact(ct) for ct in cts]

        def pull(residuals: Any, cts: Any) -> Any:
            given = iter(cts)
            full = [next(given) if live else _float0(ct) for ct, live in zip(shapes, inexact, strict=True)]
            return jax.tree.unflatten(trees[-1], residuals)(full)

        shapes = [jax.ShapeDtypeStruct(ct.shape, ct.dtype) for ct in cts]
        with evaluating(here):
            found = plainly(pull, residuals, [ct for ct, live in zip(cts, inexact, strict=True) if live])
        full: list[Any] = [_float0(x) for x in xs]
        for i, ct in zip(live, found, strict=True):
            full[i] = _as_cotangent(ct, xs[i])
        return tuple(full)

    f.defvjp(fwd, bwd)
    return list(f(*operands))


@body_row("linear_call")
def _linear_call(eqn: Any, operands: list[Any]) -> list[Any]:
    """A linear function whose transpose is another function's; what it is linear beside has no gradient."""
    p = eqn.params
    count, first = p["num_callee_consts"] + p["num_res"], p["num_callee_consts"]
    held, given = operands[:count], operands[count:]

    @jax.custom_vjp
    def f(held: Any, given: Any) -> list[Any]:
        return evaluate_closed(p["callee"], [*held, *given])

    def bwd(kept: Any, cts: Any) -> Any:
        held, given = kept
        with tracing_plain():
            transpose, consts = p["transpose_thunk"]()
        found = evaluate_closed(transpose, [*consts, *held[first:], *cts])
        return [_no_cotangent(x) for x in held], [_as_cotangent(ct, x) for ct, x in zip(found, given, strict=True)]

    f.defvjp(lambda held, given: (f(held, given), (held, given)), bwd)
    return list(f(held, given))


def _no_cotangent(x: Any) -> Any:
    if not is_inexact(x):
        return _float0(x)
    zeros = jax.numpy.zeros(x.shape, x.dtype)
    return placed(zeros, x.type.cotangent()) if is_typed(x) else zeros


def _as_cotangent(ct: Any, x: Any) -> Any:
    return placed(ct, x.type.cotangent()) if is_typed(x) else ct


@body_row("custom_linear_solve")
def _custom_linear_solve(eqn: Any, operands: list[Any]) -> list[Any]:
    """The solution, and one Newton step from it: the same value, and the derivative through ``matvec``."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    parts, at = {}, 0
    for name in ("matvec", "vecmat", "solve", "transpose_solve"):
        count = getattr(lengths, name) or 0
        parts[name], at = operands[at : at + count], at + count
    rhs = operands[at:]
    first = [_held(x) for x in evaluate_closed(jaxprs.solve, [*parts["solve"], *rhs])]
    reached = evaluate_closed(jaxprs.matvec, [*parts["matvec"], *first])
    left = [_binary("subtract", b, y) for b, y in zip(rhs, reached, strict=True)]
    step = evaluate_closed(jaxprs.solve, [*parts["solve"], *left])
    return [_binary("add", x, d) for x, d in zip(first, step, strict=True)]


def _held(x: Any) -> Any:
    return op("stop_gradient")(x) if is_typed(x) else jax.lax.stop_gradient(x)


def _binary(name: str, x: Any, y: Any) -> Any:
    return op(name)(x, y) if is_typed(x) or is_typed(y) else getattr(jax.numpy, name)(x, y)


@body_row("call_hi_primitive")
def _hi_primitive(eqn: Any, operands: list[Any]) -> list[Any]:
    """A primitive of JAX's that is made of others; its derivative is its own."""
    prim = eqn.params["_prim"]

    def expand(*xs: Any) -> list[Any]:
        return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, xs)))

    return with_tangents(eqn, lambda *xs: plainly(expand, *xs), operands)


def _of_third_party(eqn: Any, operands: list[Any]) -> list[Any] | None:
    """A primitive of a third party through what it runs, with its own derivative."""
    run = implementation_of(eqn)
    return None if run is None else with_tangents(eqn, lambda *xs: plainly(run, *xs), operands)


FALLBACK[:] = [_of_third_party]
