"""Calls of functions that are traced and typed once, in the programs that make them."""

from __future__ import annotations

from typing import Any, Final

from jax.extend import source_info_util

from shtypes._compat.jaxprs import captured, is_literal, jaxpr_of, with_equations

#: The name of jitted functions that are traced once for several calls, in a program that has their equations.
TYPED_ONCE: Final = "typed_once"


def inlined(jaxpr: Any) -> Any:
    """The jaxpr, open or closed, with the equations of the outer calls that are named `TYPED_ONCE` in their place."""
    eqns, atoms = list[Any](), dict[Any, Any]()

    def read(v: Any) -> Any:
        return v if is_literal(v) else atoms.get(v, v)

    def add(eqn: Any, stack: Any) -> None:
        operands = [*map(read, eqn.invars)]
        source = eqn.source_info.replace(name_stack=stack + eqn.source_info.name_stack)
        if eqn.params.get("name") != TYPED_ONCE or captured(eqn.params["jaxpr"]):
            eqns.append(eqn.replace(invars=operands, outvars=[*map(read, eqn.outvars)], source_info=source))
            return
        body = jaxpr_of(eqn.params["jaxpr"])
        atoms.update(zip(body.invars, operands, strict=True))
        for each in body.eqns:
            atoms.update((v, type(v)(v.aval)) for v in each.outvars)
            add(each, source.name_stack.extend(TYPED_ONCE))
        atoms.update(zip(eqn.outvars, map(read, body.outvars), strict=True))

    opened = jaxpr_of(jaxpr)
    if all(eqn.params.get("name") != TYPED_ONCE for eqn in opened.eqns):
        return jaxpr
    for eqn in opened.eqns:
        add(eqn, source_info_util.NameStack())
    return with_equations(jaxpr, eqns, [*map(read, opened.outvars)])
