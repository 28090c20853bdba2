"""Programs among the parameters of a primitive, such as a kernel of Pallas, where the primitive is bound again.

Their equations keep the mesh that they were traced in: that of a plain program. JAX enters it where it evaluates them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from shtypes._compat import private
from shtypes._compat.jaxprs import is_literal, jaxpr_of, literal_value
from shtypes._compat.program_mesh import ProgramMesh, on_mesh

_context: Any = private("jax._src.core", "JaxprEqnContext")


def as_of_here(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the mesh in context in the place of that of a plain program."""
    return {key: _as_of_here(value) for key, value in params.items()}


def _as_of_here(value: Any) -> Any:
    if hasattr(jaxpr_of(value), "eqns"):
        return _program(value)
    if _is_of_program(value):  # the type of a result
        return _type(value)
    if type(value) in (tuple, list):
        items: list[Any] = [_as_of_here(item) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        changed = {name: new for name, x in fields.items() if (new := _as_of_here(x)) is not x}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _program(jaxpr: Any) -> Any:
    """A program with other variables, where the types of its own name the mesh."""
    opened, changed = jaxpr_of(jaxpr), dict[Any, Any]()

    def renamed(atoms: Sequence[Any]) -> list[Any]:
        return [_literal(x) if is_literal(x) else changed.get(x, x) for x in atoms]

    def bound(variables: Sequence[Any]) -> list[Any]:
        for x in variables:
            aval = _type(x.aval)
            if aval is not x.aval:
                changed[x] = type(x)(aval)
        return renamed(variables)

    consts, given = bound(opened.constvars), bound(opened.invars)
    eqns = [_equation(eqn, renamed(eqn.invars), bound(eqn.outvars)) for eqn in opened.eqns]
    parts = {"constvars": consts, "invars": given, "eqns": eqns, "outvars": renamed(opened.outvars)}
    if all(a is b for key, items in parts.items() for a, b in zip(items, getattr(opened, key), strict=True)):
        return jaxpr
    own = opened.replace(**parts)
    return own if opened is jaxpr else jaxpr.replace(jaxpr=own)


def _equation(eqn: Any, given: list[Any], outs: list[Any]) -> Any:
    parts: dict[str, Any] = {"invars": given, "outvars": outs, "params": as_of_here(eqn.params)}
    same = all(a is b for key in ("invars", "outvars") for a, b in zip(parts[key], getattr(eqn, key), strict=True))
    if type(getattr(eqn.ctx, "cur_abstract_mesh", None)) is ProgramMesh and _context is not None:
        mesh = jax.sharding.get_abstract_mesh()
        with eqn.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
            return eqn.replace(**parts, ctx=_context())
    return eqn if same and all(parts["params"][k] is v for k, v in eqn.params.items()) else eqn.replace(**parts)


def _type(aval: Any) -> Any:
    """The type of an array on the mesh in context; of a reference, that to one."""
    inner = getattr(aval, "inner_aval", None)
    if inner is not None:
        own = _type(inner)
        return aval if own is inner else aval.update(inner_aval=own)
    if not _is_of_program(aval):
        return aval
    own = on_mesh(aval, jax.sharding.get_abstract_mesh())
    return own.update(manual_axis_type=jax.sharding.ManualAxisType()) if hasattr(own, "manual_axis_type") else own


def _literal(literal: Any) -> Any:
    if not _is_of_program(literal.aval):
        return literal
    return type(literal)(literal_value(literal), _type(literal.aval))


def _is_of_program(aval: Any) -> bool:
    return type(getattr(getattr(aval, "sharding", None), "mesh", None)) is ProgramMesh


__all__ = ["as_of_here"]
