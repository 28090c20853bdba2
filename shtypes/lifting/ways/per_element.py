"""Evaluates elementwise functions with custom derivative rules on shards, whose shapes they were not traced for."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from shtypes._compat.derivative_rules import custom_jvp_rule
from shtypes._compat.jaxprs import captured, jaxpr_of
from shtypes._compat.plain_programs import bind_in_program, results_of
from shtypes.caches import CACHE_SIZE
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.rows.elementwise import acts_per_element
from shtypes.lifting.ways.choice import CALLS, name_of
from shtypes.ops.jax_functions import JaxFunction

#: The primitive of functions with a custom derivative rule.
RULED: Final = "custom_jvp_call"


def is_per_element(jaxpr: Any) -> bool:
    """Whether all equations of a program are elementwise."""
    for e in jaxpr.eqns:
        name, fills = e.primitive.name, e.primitive.name == "broadcast_in_dim" and not e.invars[0].aval.ndim
        calls = name == RULED or (name in CALLS and is_per_element(jaxpr_of(e.params["jaxpr"])))
        if not (fills or calls or acts_per_element(name)):
            return False
    return True


def ruled_per_element(eqn: Any) -> bool:
    """Whether an equation is an elementwise function with a derivative rule, of operands of one shape and numbers."""
    if eqn.primitive.name != RULED or eqn.params["num_consts"]:
        return False
    shapes = {v.aval.shape for v in (*eqn.invars, *eqn.outvars)} - {()}
    return len(shapes) < 2 and is_per_element(jaxpr_of(eqn.params["call_jaxpr"]))


@functools.lru_cache(maxsize=CACHE_SIZE)
def with_rule(eqn: Any) -> JaxFunction:
    """An elementwise function with its derivative rule, for arrays of any shape."""

    def run(program: Any, xs: Sequence[Any], shape: Sequence[int]) -> list[Any]:
        def step(e: Any, operands: list[Any]) -> Any:
            if e.primitive.name == "broadcast_in_dim":
                return [jnp.broadcast_to(operands[0], shape)]
            if e.primitive.name in CALLS:
                return run(e.params["jaxpr"], operands, shape)
            return with_rule(e).fn(*operands) if e.primitive.name == RULED else bind_in_program(e, operands)

        jaxpr = jaxpr_of(program)
        if not is_per_element(jaxpr):
            raise ShardingTypeError(f"the derivative rule of `{name_of(eqn)}` does not act on each element alone")
        return results_of(jaxpr, captured(program), xs, step)

    @jax.custom_jvp
    def f(*xs: Any) -> list[Any]:
        return run(eqn.params["call_jaxpr"], xs, jnp.broadcast_shapes(*map(jnp.shape, xs)))

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        rule, n = custom_jvp_rule(eqn, [False] * len(primals)), len(eqn.outvars)
        shape = jnp.broadcast_shapes(*map(jnp.shape, primals))
        results = run(rule.jaxpr, [*rule.consts, *primals, *tangents], shape)
        dots = iter(results[n:])
        pairs = zip(results, rule.out_zeros, strict=False)
        return results[:n], [jnp.zeros_like(y) if zero else next(dots) for y, zero in pairs]

    return JaxFunction(name_of(eqn), f, takes_out=False)
