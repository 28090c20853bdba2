"""Rules: one type for the arguments whose paths are alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from typing import Any, Final, NamedTuple

from shtypes.solver.rows import Assignment
from shtypes.solver.tables import Costs
from shtypes.solver.transfers import Transfer
from shtypes.types import ShType

#: The most names in brackets in a path.
_MOST_NAMES: Final = 6
#: The number of a layer in a path.
_NUMBER: Final = re.compile(r"(^|/)\d+(?=/|$)")


class Rule(NamedTuple):
    """A type for the arguments whose paths match a pattern."""

    pattern: str  # a path in which ``*`` stands for the number of a layer
    type: ShType
    arguments: int  # the number of them
    bytes: int  # of all on each device
    seconds: float  # of the reshards of them and their gradients
    fixed: bool  # whether the user fixed the type


def rules_of(
    costs: Costs, assignment: Assignment, types: Sequence[ShType], transfers: Iterable[Transfer], fixed: Set[str]
) -> list[Rule]:
    """The rules of a plan, by the arguments' types and the plan's transfers; ``fixed`` are names of arguments."""
    typed_inputs = [*zip(costs.graph.program.inputs, types, strict=True)]
    reshards: dict[str, float] = {}  # seconds
    for t in transfers:
        name = t.use.value.name.removesuffix("[i]")
        reshards[name] = reshards.get(name, 0.0) + float(t.cost.comm)
    kinds: dict[str, set[tuple[ShType, bool]]] = {}
    for v, type_ in typed_inputs:
        kinds.setdefault(pattern_of(v.name), set()).add((type_, v.name in fixed))
    alike = max(map(len, kinds.values())) == 1  # if not, each layer has its own rule
    rules: dict[str, Rule] = {}
    for v, type_ in typed_inputs:
        node, _ = costs.graph.source[v.id]
        gradient = float(costs.node_cost(node, costs.row(node, assignment)).comm.sum())
        name, seconds = pattern_of(v.name) if alike else v.name, gradient + reshards.get(v.name, 0.0)
        rule = Rule(name, type_, 1, type_.local_bytes, seconds, v.name in fixed)
        rules[name] = _total([rules[name], rule]) if name in rules else rule
    return [*rules.values()]


def pattern_of(path: str) -> str:
    """A path with ``*`` for the numbers of layers."""
    return _NUMBER.sub(r"\1*", path)


def merged(rules: Iterable[Rule]) -> list[tuple[str, Rule]]:
    """Merges rules of siblings with one type; returns them with their patterns."""
    groups: dict[tuple[ShType, bool], dict[str, Rule]] = {}
    for rule in rules:
        groups.setdefault((rule.type, rule.fixed), {})[rule.pattern] = rule
    merged = [
        (pattern, _total([group[name] for name in names]))
        for group in groups.values()
        for pattern, names in siblings(group).items()
    ]
    return sorted(merged, key=lambda each: each[0])


def _total(some: Sequence[Rule]) -> Rule:
    """One rule for several of one type."""
    arguments, sizes, seconds = map(sum, zip(*(r[2:5] for r in some), strict=True))
    return some[0]._replace(arguments=arguments, bytes=sizes, seconds=seconds)


def siblings(paths: Iterable[str]) -> dict[str, list[str]]:
    """Merges paths that differ in one part, like ``attn/[k,q,v]``; returns the paths of each."""
    groups = {tuple(path.split("/")): [path] for path in paths}
    for back in range(max(map(len, groups))):
        alike: dict[tuple[Any, Any], dict[str, list[str]]] = {}
        for parts, some in groups.items():
            k = max(len(parts) - 1 - back, 0)
            alike.setdefault((parts[:k], parts[k + 1 :]), {})[parts[k]] = some
        groups = {}
        for (before, after), names in alike.items():
            one = ",".join(names) if len(names) <= _MOST_NAMES else f"{','.join([*names][:_MOST_NAMES])},..."
            one = one if not before + after else f"[{one}]"
            parts = (*before, one if len(names) > 1 else next(iter(names)), *after)
            groups[parts] = [path for some in names.values() for path in some]
    return {"/".join(parts): some for parts, some in groups.items()}
