"""The reshards of the uses of an assignment, and which of them are one in the program that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from shtypes.solver.factors import FREE, Measure
from shtypes.solver.graph import Graph, Node, Use
from shtypes.solver.items import is_value
from shtypes.types import ShType

#: The operands to which an op passes the cotangent of its result.
_PASSES: Final = {"add": (0, 1), "add_any": (0, 1), "sub": (0,)}


class Transfer(NamedTuple):
    """The reshard of a value for a use, which may do nothing."""

    use: Use
    src: ShType
    dst: ShType
    from_copy: bool  # whether it starts from the shared copy
    cost: Measure
    cotangent: Measure = FREE  # the part of the cost that is of the cotangent
    is_redundant: bool = False  # whether another use pays for the same reshard, or a shared copy has no use


def counted_once(graph: Graph, transfers: Sequence[Transfer]) -> dict[str, Transfer]:
    """The transfers by place; of those that are one in the program, all but the most expensive are free."""
    every = {t.use.place: t for t in transfers}
    for place in _redundant(graph, every):
        every[place] = every[place]._replace(cost=FREE, cotangent=FREE, is_redundant=True)
    for place in _shared_cotangents(graph, every):
        t = every[place]
        every[place] = t._replace(cost=t.cost + t.cotangent.times(-1), cotangent=FREE)
    return every


def _redundant(graph: Graph, transfers: Mapping[str, Transfer]) -> set[str]:
    """The places of unused copies, and of equal transfers of a value in one body."""
    used_copies = {t.use.value.id for t in transfers.values() if t.from_copy}
    keys, unused = dict[str, Hashable](), set[str]()
    for place, t in transfers.items():
        if t.cost.sent and t.use.node.kind == "shared" and t.use.value.id not in used_copies:
            unused.add(place)
        elif t.cost.sent:
            keys[place] = t.use.value.id, graph.body(t.use), t.from_copy, t.dst
    return unused | _but_the_first((-transfers[place].cost.sent, place, key) for place, key in keys.items())


def _shared_cotangents(graph: Graph, transfers: Mapping[str, Transfer]) -> set[str]:
    """The places whose cotangent is resharded at another place too: all terms of a sum have its cotangent."""
    users = Counter(t.use.value.id for t in transfers.values() if graph.use_has_cotangent(t.use))
    cotangents: dict[int, Hashable] = {}  # by value with one use
    reshards = list[tuple[float, str, Hashable]]()
    for node in _backwards(graph.nodes):
        for i, x in enumerate(node.operands):
            if not is_value(x) or (t := transfers.get(node.place(i))) is None:
                continue
            place = t.use.place
            ct: Hashable = place
            if node.op is not None and i in _PASSES.get(node.op.name, ()) and x.shape == node.results[0].shape:
                ct = cotangents.get(node.results[0].id, node.results[0].id)
            reshard = ct, t.dst, t.src
            if t.cotangent.sent:
                reshards.append((-t.cotangent.sent, place, (*reshard, graph.body(t.use))))
            if users[x.id] == 1:
                cotangents[x.id] = reshard if t.dst != t.src else ct
    return _but_the_first(reshards)


def _backwards(nodes: Sequence[Node]) -> list[Node]:
    """The users of each value before its op."""
    return [*(n for n in nodes if n.op is None), *(n for n in reversed(nodes) if n.op is not None)]


def _but_the_first(keyed: Iterable[tuple[float, str, Hashable]]) -> set[str]:
    """The places of all but the first of each key."""
    seen, others = set[Hashable](), set[str]()
    for _, place, key in sorted(keyed, key=lambda one: one[:2]):
        (others.add(place) if key in seen else seen.add(key))
    return others
