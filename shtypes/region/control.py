"""Loops, branches and calls, for both interpreters: only how a body is evaluated differs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util

from shtypes._compat.jaxprs import ClosedCall, Cond, Control, Scan, While, jaxpr_of

#: Evaluates a body on values.
Evaluate = Callable[[Any, Sequence[Any]], list[Any]]


def run_control(what: Control, xs: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    """Runs an equation that has bodies."""
    match what:
        case Scan():
            return _scan(what, xs, evaluate)
        case While():
            return _while(what, xs, evaluate)
        case Cond():
            index, *operands = xs
            branches = [lambda *ys, body=body: evaluate(body, ys) for body in what.branches]
            return list(lax.switch(index, branches, *operands))
        case ClosedCall():
            return _call(what, xs, evaluate)


def _scan(scan: Scan, xs: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    n, m = scan.consts, scan.consts + scan.carry

    def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = evaluate(scan.body, [*xs[:n], *carry, *slices])
        return outs[: scan.carry], outs[scan.carry :]

    carry, stacked = lax.scan(
        step, list(xs[n:m]), list(xs[m:]), length=scan.length, reverse=scan.reverse, unroll=scan.unroll
    )
    return [*carry, *stacked]


def _while(loop: While, xs: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    n, m = loop.cond_consts, loop.cond_consts + loop.body_consts

    def goes_on(state: Any) -> Any:
        return evaluate(loop.cond, [*xs[:n], *state])[0]

    def step(state: Any) -> Any:
        return evaluate(loop.body, [*xs[n:m], *state])

    if not jaxpr_of(loop.cond).outvars[0].aval.shape:
        return list(lax.while_loop(goes_on, step, list(xs[m:])))

    # Of `vmap`: it runs until all are done, and those that are done stay as they are.
    def step_some(state: Any) -> Any:
        on = goes_on(state)
        pairs = zip(step(state), state, strict=True)
        return [jnp.where(on.reshape(on.shape + (1,) * (x.ndim - on.ndim)), new, x) for new, x in pairs]

    return list(lax.while_loop(lambda state: jnp.any(goes_on(state)), step_some, list(xs[m:])))


def _call(call: ClosedCall, xs: Sequence[Any], evaluate: Evaluate) -> list[Any]:
    if call.barrier:
        # The policy of a checkpoint was applied by AD. What is left keeps the compiler from undoing it.
        behind = iter(lax.optimization_barrier(tuple(x for x, b in zip(xs, call.barrier, strict=True) if b)))
        xs = [next(behind) if b else x for x, b in zip(xs, call.barrier, strict=True)]
    with source_info_util.extend_name_stack(call.scope) if call.scope else contextlib.nullcontext():
        return evaluate(call.body, xs)
