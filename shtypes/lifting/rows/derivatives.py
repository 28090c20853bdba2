"""Rows of primitives that carry derivative rules of their own: these rules are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from shtypes._compat.jaxprs import equations, reached
from shtypes._compat.plain_programs import bind_plain, has_transpose, implementation_of, trace_plain, tracing_plain
from shtypes.context.origin import evaluating
from shtypes.lifting.constants import beside_others, is_inexact
from shtypes.lifting.evaluate import evaluate_closed
from shtypes.lifting.joins import aval_of, of_some, placed
from shtypes.lifting.registry import FALLBACK, ROWS, body_row, op
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

    closed, around, _ = trace_plain(flat, avals)
    return jax.tree.unflatten(structure[0], evaluate_closed(closed, [*around, *leaves]))


def primitive_of(eqn: Any) -> Callable[..., list[Any]]:
    """An equation as a function of plain arrays, with JAX's own derivative."""
    return lambda *xs: bind_plain(eqn, xs)


def with_tangents(eqn: Any, primal: Callable[..., list[Any]], operands: list[Any]) -> list[Any]:
    """An equation whose values are those of ``primal``, and whose tangents are those that JAX has for it."""
    native, here = primitive_of(eqn), current()

    @jax.custom_jvp
    def f(*xs: Any) -> list[Any]:
        return primal(*xs)

    def rule(primals: Any, tangents: Any) -> Any:
        live = [i for i, t in enumerate(tangents) if is_inexact(primals[i]) and not isinstance(t, SymbolicZero)]

        def push(*given: Any) -> Any:
            xs, ts = given[: len(primals)], given[len(primals) :]
            return jax.jvp(of_some(lambda full: native(*full), xs, live), [xs[i] for i in live], list(ts))[1]

        with evaluating(here):
            ys = primal(*primals)
            given = [*primals, *(tangents[i] for i in live)]
            closed, around, _ = trace_plain(push, [aval_of(x) for x in given])
            dots = evaluate_closed(closed, [*around, *given])
        first = len(around) + len(primals)
        moved = reached(closed, range(first, first + len(live)))
        return ys, [_as_tangent(t, y, there) for t, y, there in zip(dots, ys, moved, strict=True)]

    f.defjvp(rule, symbolic_zeros=True)
    return list(f(*operands))


def _as_tangent(t: Any, y: Any, there: bool) -> Any:
    if not there or not is_inexact(y):
        return SymbolicZero.from_primal_value(y)
    return placed(t, y.type) if is_typed(y) else t


@body_row("custom_jvp_call")
def _custom_jvp(eqn: Any, operands: list[Any]) -> list[Any]:
    keeping = with_cotangents if _solves(eqn, operands) else with_tangents
    return keeping(eqn, lambda *xs: evaluate_closed(eqn.params["call_jaxpr"], xs), operands)


def _solves(eqn: Any, operands: list[Any]) -> bool:
    """Whether tangents go through a primitive of a third party that says itself how it is transposed.

    That is what an implicit derivative does. JAX transposes the plain program, in which the primitive is still there.
    """
    if not any(e.primitive.name == "while" or _is_linear(e) for e in equations(eqn.params["call_jaxpr"])):
        return False
    avals, native = [aval_of(x) for x in operands], primitive_of(eqn)
    live = [i for i, x in enumerate(avals) if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]

    def push(*xs: Any) -> Any:
        return jax.jvp(of_some(lambda full: native(*full), xs, live), [xs[i] for i in live], [xs[i] for i in live])

    try:
        derivative = trace_plain(push, avals)[0]
    except Exception:  # JAX has none of operands like these, which matters only where one is asked for
        return False
    return any(map(_is_linear, equations(derivative)))


def _is_linear(eqn: Any) -> bool:
    return eqn.primitive.name not in ROWS and has_transpose(eqn) and implementation_of(eqn) is not None


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Pulled:
    """What is known of a pullback beside its residuals: how they make it up, and which operands it is of."""

    tree: Any
    live: tuple[int, ...]


def with_cotangents(eqn: Any, primal: Callable[..., list[Any]], operands: list[Any]) -> list[Any]:
    """An equation whose values are those of ``primal``, and whose cotangents are those that JAX has for it."""
    native, here = primitive_of(eqn), current()
    trees: list[Any] = []

    @jax.custom_vjp
    def f(*xs: Any) -> list[Any]:
        with evaluating(here):
            return primal(*xs)

    def fwd(*given: Any) -> Any:
        xs = [x.value for x in given]
        live = [i for i, x in enumerate(given) if x.perturbed and is_inexact(x.value)]

        def forward(xs: Any) -> Any:
            out, pull = jax.vjp(of_some(lambda full: native(*full), xs, live), *[xs[i] for i in live])
            residuals, tree = jax.tree.flatten(pull)
            trees.append(tree)
            return out, residuals

        with evaluating(here):
            out, residuals = plainly(forward, xs)
        return out, (residuals, xs, _Pulled(trees[-1], tuple(live)))

    def bwd(kept: Any, cts: Any) -> Any:
        residuals, xs, pulled = kept
        known = [is_inexact(ct) and not isinstance(ct, SymbolicZero) for ct in cts]

        def pull(residuals: Any, given: Any) -> Any:
            rest = iter(given)
            full = [next(rest) if there else _zero(ct) for ct, there in zip(shapes, known, strict=True)]
            return jax.tree.unflatten(pulled.tree, residuals)(full)

        shapes = [jax.ShapeDtypeStruct(ct.shape, ct.dtype) for ct in cts]
        with evaluating(here):
            found = plainly(pull, residuals, [ct for ct, there in zip(cts, known, strict=True) if there])
        full: list[Any] = [None] * len(xs)
        for i, ct in zip(pulled.live, found, strict=True):
            full[i] = _as_cotangent(ct, xs[i])
        return tuple(full)

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    return list(f(*operands))


def _zero(x: Any) -> Any:
    return ad.Zero(jax.core.ShapedArray(x.shape, x.dtype)) if is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0)


@body_row("custom_vjp_call")
def _custom_vjp(eqn: Any, operands: list[Any]) -> list[Any]:
    return with_cotangents(eqn, lambda *xs: evaluate_closed(eqn.params["call_jaxpr"], xs), operands)


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
        return [None] * len(held), [_as_cotangent(ct, x) for ct, x in zip(found, given, strict=True)]

    f.defvjp(lambda held, given: (f(held, given), (held, given)), bwd)
    return list(f(held, given))


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


#: Those of JAX that take floats apart into bits, of which no pending sum has any, and the ops that they are.
_WHOLE: Final = {"Frexp": "frexp", "Ldexp": "ldexp"}


@body_row("call_hi_primitive")
def _hi_primitive(eqn: Any, operands: list[Any]) -> list[Any]:
    """A primitive of JAX's that is made of others; its derivative is its own."""
    prim = eqn.params["_prim"]
    if type(prim).__module__.startswith("jax.") and type(prim).__name__ in _WHOLE:
        return jax.tree.leaves(op(_WHOLE[type(prim).__name__])(*beside_others(operands)))

    def expand(*xs: Any) -> list[Any]:
        return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, xs)))

    return with_tangents(eqn, lambda *xs: plainly(expand, *xs), operands)


def _of_third_party(eqn: Any, operands: list[Any]) -> list[Any] | None:
    """A primitive of a third party through what it runs, with its own derivative, and transpose if it has one."""
    run = implementation_of(eqn)
    if run is None:
        return None
    keeping = with_cotangents if has_transpose(eqn) else with_tangents
    return keeping(eqn, lambda *xs: plainly(run, *xs), operands)


FALLBACK[:] = [_of_third_party]
