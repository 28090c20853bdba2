"""The types that the user fixes in a plan: of arguments by path, of operands of lines, and of results."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax

from shtypes.errors import ShardingTypeError
from shtypes.resharding.devices import Device
from shtypes.solver.apply import named_uses, no_such_use
from shtypes.solver.axis_states import INVARIANT, REDUCED, axis_states, typed
from shtypes.solver.graph import Graph
from shtypes.solver.items import Value
from shtypes.solver.nodes import Node
from shtypes.solver.program import Program
from shtypes.solver.reshard_prices import Prices
from shtypes.solver.tables import Costs
from shtypes.types import ShType
from shtypes.types.mesh import Mesh


class FixedTypes(NamedTuple):
    """The types that the user fixes, as strings or types."""

    arguments: Mapping[Value, Any]
    at: Mapping[str, Any]  # of the operands of lines, and of carries
    results: Any  # a tree with None for free types, or None


def by_path(program: Program, fixed: Mapping[str, Any]) -> tuple[dict[Value, Any], dict[str, Any]]:
    """Splits ``fixed`` into the types of the arguments that match a path, and those at operands of lines."""
    arguments, at = dict[Value, Any](), dict[str, Any]()
    for pattern, target in fixed.items():
        if " <- " in pattern:
            at[pattern] = target
            continue
        matching = [v for v in program.inputs if _fits(v.name, pattern)]
        if not matching:
            some = ", ".join(f"`{v.name}`" for v in program.inputs[:6])
            raise ShardingTypeError(f"no argument has the path `{pattern}`", why=f"there are {some}", hints=[])
        arguments |= dict.fromkeys(matching, target)
    return arguments, at


def costs_of(
    program: Program, mesh: Mesh, grad: bool, fixed: FixedTypes, prices: Prices, device: Device, state: float
) -> Costs:
    """The costs of a program, restricted to the types that the user fixed."""
    graph = Graph(program, mesh, grad=grad, fixed={v: str(t) for v, t in fixed.arguments.items()})
    costs = Costs(graph, prices, device, state)
    for v, t in fixed.arguments.items():
        _fix(costs, graph.source[v.id][0], v, t, "results")
    for place, t in fixed.at.items():
        _fix_at(costs, place, t)
    _fix_results(costs, fixed.results)
    return costs


def _fix_at(costs: Costs, at: str, target: Any) -> None:
    """Fixes the types of the operands, or carries, that a name matches."""
    every = named_uses(costs.graph.program)
    places = {use.place for use in every if use.matches(at)}
    if not places:
        raise no_such_use(at, every)
    for node in costs.graph.nodes:
        for i, x in enumerate(node.operands):
            if node.item is None or node.place(i) not in places:
                continue
            if node.kind != "carry":
                _fix(costs, node, x, target, "operands", i)
            elif i == 1:
                _fix(costs, node, node.results[0], target, "results")


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.partition("/")[2], pattern)


def _fix(costs: Costs, node: Node, v: Value, target: Any, which: Literal["operands", "results"], at: int = 0) -> None:
    """Restricts a node to the options in which an operand or result has a type."""
    mesh = costs.graph.mesh
    plain = typed(mesh, v.dtype, v.shape, [REDUCED] * len(mesh.axis_names))
    t = target if isinstance(target, ShType) else ShType.parse(target, mesh, like=plain)
    if (states := axis_states(t)) is None:
        why = "no value of a plan varies, and axes on one dim are in the mesh's order, but for some in front"
        raise ShardingTypeError(f"`{v.name}` cannot be {t} in a plan", why=why)
    allowed = list[Sequence[int]]()
    before = costs.allowed.get(node.leader.id) if node.kind == "op" else None  # from another operand
    for k, (a, options, state) in enumerate(zip(mesh.axis_names, node.leader.options, states, strict=True)):
        replicated = state in (REDUCED, INVARIANT) and node.kind in ("argument", "result")
        accepted = (REDUCED, INVARIANT) if replicated else (state,)
        fits = [getattr(o, which)[at] in accepted for o in options]
        left = [i for i, fit in enumerate(fits) if fit and (before is None or i in before[k])]
        if not left:
            raise ShardingTypeError(f"`{v.name}` cannot be {t} in a plan", why=f"it may not be so on mesh axis `{a}`")
        allowed.append(left)
    costs.allowed[node.leader.id] = allowed


def _fix_results(costs: Costs, out: Any) -> None:
    """Fixes the types of results."""
    if out is None:
        return
    program = costs.graph.program
    types = jax.tree.leaves(out, is_leaf=lambda x: x is None or isinstance(x, (str, ShType)))
    if len(types) != len(program.outputs):
        raise ShardingTypeError(
            f"`out` of `suggest` says {len(types)} types, and `{program.name}` has {len(program.outputs)} results",
            hints=["a tree of types like the results, with None for what may be chosen"],
        )
    for i, t in enumerate(types):
        node = costs.graph.results.get(i)
        if t is not None and node is not None:
            _fix(costs, node, program.outputs[i], t, "operands")
