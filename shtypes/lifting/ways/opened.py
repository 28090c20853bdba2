"""Opens calls in a program: what they call takes their place. And what functions are as equations of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from shtypes._compat.eqn_frames import is_of_a_library
from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import captured, is_literal, jaxpr_of, variable, with_equations
from shtypes._compat.plain_programs import alone, trace_plain
from shtypes.lifting.ways.choice import CALLS


def opened(jaxpr: Any, opens: Callable[[Any, bool], bool], begins: Callable[[Any], bool] = lambda eqn: False) -> Any:
    """The program with the equations of some calls, and of such in these; its results are the same variables.

    Args:
        jaxpr: The program.
        opens: Whether to open a call, of which is known whether it depends on what equations that begin compute.
        begins: Whether an equation begins.
    """
    eqns: list[Any] = []
    after: set[Any] = set()  # variables that depend on equations that begin

    def add(block: Any, env: dict[Any, Any], names: Mapping[Any, Any], call: Any) -> list[Any]:
        def read(v: Any) -> Any:
            return v if is_literal(v) else env.get(v, v)

        for eqn in block.eqns:
            operands = list(map(read, eqn.invars))
            outs = [names[v] if v in names else variable(v.aval) for v in eqn.outvars]
            is_after = any(not is_literal(v) and v in after for v in operands)
            if _may_be_opened(eqn) and opens(eqn, is_after):
                body = jaxpr_of(eqn.params["jaxpr"])
                inner = {v: out for v, out in zip(body.outvars, outs, strict=True) if not is_literal(v)}
                from_call = eqn if call is None and is_of_a_library(eqn.params["jaxpr"]) else call
                outs = add(body, dict(zip(body.invars, operands, strict=True)), inner, from_call)
            else:
                source = (eqn if call is None else call).source_info
                eqns.append(eqn.replace(invars=operands, outvars=outs, source_info=source))
                if is_after or begins(eqn):
                    after.update(outs)
            env.update(zip(eqn.outvars, outs, strict=True))
        return list(map(read, block.outvars))

    outvars = add(jaxpr, {}, {v: v for eqn in jaxpr.eqns for v in eqn.outvars}, None)
    return with_equations(jaxpr, eqns, outvars) if outvars == list(jaxpr.outvars) else jaxpr


def _may_be_opened(eqn: Any) -> bool:
    """Whether a call captures nothing, and its settings stay: equations of a library's function have the call's."""
    if eqn.primitive.name not in CALLS or jaxpr_of(eqn.params["jaxpr"]).constvars:
        return False
    program = eqn.params["jaxpr"]
    return not captured(program) and (set_at(eqn) is None or is_of_a_library(program))


def equations_of(
    f: Callable[..., Any], operands: Sequence[Any], like: Any, outs: Sequence[Any] = (None,)
) -> tuple[list[Any], list[Any]]:
    """The equations of a function of variables at the place of an equation, and its results: ``outs`` where given."""
    avals = [jax.core.ShapedArray(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in operands]
    with alone():
        closed, *_ = trace_plain(f, avals)
    body, eqns = jaxpr_of(closed), list[Any]()
    env: dict[Any, Any] = dict(zip(body.invars, operands, strict=True))
    env.update((v, out) for v, out in zip(body.outvars, outs, strict=True) if out is not None)
    for e in body.eqns:
        env.update((v, variable(v.aval)) for v in e.outvars if v not in env)
        invars, outvars = [v if is_literal(v) else env[v] for v in e.invars], [env[v] for v in e.outvars]
        eqns.append(e.replace(invars=invars, outvars=outvars, source_info=like.source_info, ctx=like.ctx))
    return eqns, [env[v] for v in body.outvars]
