"""The reshards of the uses of an assignment, and which of them are one in the program that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from shtypes.resharding import price
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
    """The places of unused copies, and of transfers that reuse one of the same value in the same body."""
    used_copies = {t.use.value.id for t in transfers.values() if t.from_copy}
    unused, reshards = set[str](), list[_Reshard]()
    for node in (*graph.shared.values(), *reversed(_backwards(graph.nodes))):
        for t in _of(node, transfers):
            if t.cost.sent and node.kind == "shared" and t.use.value.id not in used_copies:
                unused.add(t.use.place)
            elif t.cost.sent:
                value = t.use.value.id, graph.body(t.use), t.from_copy
                reshards.append(_Reshard(t.use.place, value, t.dst, t.cost.sent))
    return unused | _reusing(reshards)


def _shared_cotangents(graph: Graph, transfers: Mapping[str, Transfer]) -> set[str]:
    """The places whose cotangent is resharded at another place too: all terms of a sum have its cotangent."""
    users = Counter(t.use.value.id for t in transfers.values() if graph.use_has_cotangent(t.use))
    cotangents: dict[int, Hashable] = {}  # by value with one use
    reshards = list[_Reshard]()
    for node in (*_backwards(graph.nodes), *graph.shared.values()):
        for t in reversed(_of(node, transfers)):
            x, i = t.use.value, t.use.operand
            ct: Hashable = t.use.place
            if node.op is not None and i in _PASSES.get(node.op.name, ()) and x.shape == node.results[0].shape:
                ct = cotangents.get(node.results[0].id, node.results[0].id)
            if t.cotangent.sent:
                value = ct, t.dst, graph.body(t.use)
                reshards.append(_Reshard(t.use.place, value, t.src.cotangent(), t.cotangent.sent))
            if users[x.id] == 1:
                cotangents[x.id] = (ct, t.dst, t.src) if t.dst != t.src else ct
    return _reusing(reshards)


def _of(node: Node, transfers: Mapping[str, Transfer]) -> list[Transfer]:
    """The transfers of the operands of a node."""
    return [transfers[node.place(i)] for i, x in enumerate(node.operands) if is_value(x) and node.place(i) in transfers]


def _backwards(nodes: Sequence[Node]) -> list[Node]:
    """All but shared copies, the users of each value before its op."""
    ops = [n for n in nodes if n.op is not None]
    return [*(n for n in nodes if n.op is None and n.kind != "shared"), *reversed(ops)]


class _Reshard(NamedTuple):
    """A reshard of the program that runs."""

    place: str
    value: Hashable
    dst: ShType
    sent: float


def _reusing(reshards: Iterable[_Reshard]) -> set[str]:
    """The places of reshards that are free since another of the same value is reused, as by `reshard_once`.

    They are in program order. Of those that are one, the most expensive is not free.
    """
    by_value: dict[Hashable, list[list[_Reshard]]] = {}
    for one in reshards:
        groups = by_value.setdefault(one.value, [])
        group = next((g for g in groups if g[0].dst.dims == one.dst.dims and _is_free(g[0].dst, one.dst)), None)
        if group is None:
            groups.append(group := [])
        group.append(one)
    every = (group for groups in by_value.values() for group in groups)
    return {one.place for group in every for one in group if one is not max(group, key=lambda each: each.sent)}


def _is_free(src: ShType, dst: ShType) -> bool:
    """Whether a reshard sends nothing forward and backward."""
    return src == dst or not ((cast := price(src, dst)).forward or cast.backward)
