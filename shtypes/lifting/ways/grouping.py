"""Programs in which what moves elements along a dim, to sizes that no devices divide, is one call with what follows.

``x[1:] - x[:-1]`` and ``jnp.pad(x, (1, 0))[:-1]`` are several equations with odd sizes in between. As one call they are
evaluated on shards (`moves`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import is_literal, jaxpr_of, with_equations
from shtypes.caches import Bounded
from shtypes.evaluation.table import REWRITES
from shtypes.lifting.ways.moves import kind_of

#: The bodies of calls that were made here: they are no programs to be grouped.
_bodies: Final[Bounded[bool]] = Bounded()


@functools.lru_cache(maxsize=256)
def grouped(jaxpr: Any) -> Any:
    """A program whose equations that depend on each other by odd sizes are calls; itself where there are none."""
    if jaxpr in _bodies:
        return jaxpr
    groups = [g for g in _groups(jaxpr) if _is_closed(jaxpr, g)]
    if not groups:
        return jaxpr
    at = {i: g for g in groups for i in g}
    eqns = [e if i not in at else _call(jaxpr, at[i]) for i, e in enumerate(jaxpr.eqns) if i not in at or i == at[i][0]]
    return with_equations(jaxpr, _in_order(eqns), jaxpr.outvars)


def _in_order(eqns: list[Any]) -> list[Any]:
    """Equations in an order in which each comes after those that it depends on."""
    made = {v: e for e in eqns for v in e.outvars}
    ordered: dict[int, Any] = {}

    def visit(eqn: Any) -> None:
        for v in eqn.invars:
            if not is_literal(v) and v in made and id(made[v]) not in ordered:
                visit(made[v])
        ordered.setdefault(id(eqn), eqn)

    for eqn in eqns:
        visit(eqn)
    return list(ordered.values())


REWRITES.append(grouped)


def _groups(jaxpr: Any) -> list[list[int]]:
    """The equations that are connected by values of odd sizes, by number."""
    parent = list(range(len(jaxpr.eqns)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    odd: dict[Any, tuple[int, frozenset[Any]]] = {}  # by variable, what makes it, and the sizes before
    for i, eqn in enumerate(jaxpr.eqns):
        kind = kind_of(eqn)
        if kind is None:
            continue
        inputs = [v for v in eqn.invars if not is_literal(v) and v in odd]
        for v in inputs:
            parent[root(i)] = root(odd[v][0])
        even = {v.aval.shape for v in eqn.invars if not is_literal(v) and v not in odd}
        even = even.union(*(odd[v][1] for v in inputs))
        if (inputs or kind) and eqn.outvars[0].aval.shape not in even:
            odd[eqn.outvars[0]] = i, frozenset(even)
    members: dict[int, list[int]] = {}
    for i in range(len(parent)):
        members.setdefault(root(i), []).append(i)
    return [g for g in members.values() if len(g) > 1]


def _is_closed(jaxpr: Any, group: Sequence[int]) -> bool:
    """Whether a group can be one call: its results have the shapes of operands, and nothing between needs them."""
    inside = set(group)
    marks = {set_at(jaxpr.eqns[i]) for i in group}
    made = {v for i in group for v in jaxpr.eqns[i].outvars}
    operands, results = _boundary(jaxpr, group)
    shapes = {v.aval.shape for v in operands}
    if len(marks) > 1 or not results or any(v.aval.shape not in shapes for v in results):
        return False
    after: set[Any] = set()  # what depends on the group outside of it
    for i in range(group[0], group[-1] + 1):
        eqn = jaxpr.eqns[i]
        reads = {v for v in eqn.invars if not is_literal(v)}
        if i in inside and reads & after:
            return False
        if i not in inside and reads & (made | after):
            after.update(eqn.outvars)
    return True


def _boundary(jaxpr: Any, group: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The variables that a group reads from outside, and those that are read outside of it."""
    inside = set(group)
    made = {v for i in group for v in jaxpr.eqns[i].outvars}
    read = [v for i in group for v in jaxpr.eqns[i].invars if not is_literal(v) and v not in made]
    elsewhere = {v for i, e in enumerate(jaxpr.eqns) if i not in inside for v in e.invars if not is_literal(v)}
    elsewhere |= {v for v in jaxpr.outvars if not is_literal(v)}
    return list(dict.fromkeys(read)), [v for i in group for v in jaxpr.eqns[i].outvars if v in elsewhere]


def _call(jaxpr: Any, group: Sequence[int]) -> Any:
    """The call of a group."""
    operands, results = _boundary(jaxpr, group)
    template = _template()
    body = with_equations(jaxpr, [jaxpr.eqns[i] for i in group], results)
    body = body.replace(constvars=[], invars=operands)
    _bodies.put(body, True)
    closed = template.params["jaxpr"]
    params: dict[str, Any] = {}
    for key, value in template.params.items():
        count = len(results) if key.startswith("out_") else len(operands)
        params[key] = value * count if isinstance(value, tuple) and len(value) == 1 else value
    params |= {"name": "moves", "jaxpr": body if closed is jaxpr_of(closed) else closed.replace(jaxpr=body)}
    last = jaxpr.eqns[group[-1]]
    return template.replace(invars=operands, outvars=results, params=params, source_info=last.source_info, ctx=last.ctx)


@functools.cache
def _template() -> Any:
    """The equation of a jitted function of one argument."""
    (eqn,) = jaxpr_of(jax.make_jaxpr(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((1,), "float32"))).eqns
    return eqn
