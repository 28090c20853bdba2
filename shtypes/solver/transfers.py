"""The reshards of the uses of an assignment, and which of them are one in the program that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from shtypes.resharding import price
from shtypes.solver.factors import FREE, Measure
from shtypes.solver.graph import Graph
from shtypes.solver.items import Op, Value
from shtypes.solver.nodes import Node, Use
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


class Sharing:
    """Finds the transfers that are one in the program that runs.

    Args:
        graph: The graph.
        uses: All uses, in the order of the transfers.
    """

    def __init__(self, graph: Graph, uses: Sequence[Use]) -> None:
        self._body = graph.body
        copies, others = [*graph.shared.values()], _backwards(graph.nodes)
        #: Nodes in the order in which their operands are resharded: of the program, and of its backward pass.
        self._forward = {n.id: i for i, n in enumerate((*copies, *reversed(others)))}
        self._backward = {n.id: i for i, n in enumerate((*others, *copies))}
        self._users = Counter(use.value.id for use in uses if graph.use_has_cotangent(use))
        sums = [n for n in graph.nodes if n.op is not None and n.op.name in _PASSES]
        self._terms = {v.id for n in sums for v in (*n.operands, *n.results) if isinstance(v, Value)}

    def counted_once(self, transfers: Sequence[Transfer]) -> list[Transfer]:
        """The transfers; of those that are one in the program, all but the most expensive are free."""
        every = [*transfers]
        for i in self._redundant(every):
            every[i] = every[i]._replace(cost=FREE, cotangent=FREE, is_redundant=True)
        for i in self._shared_cotangents(every):
            t = every[i]
            every[i] = t._replace(cost=t.cost + t.cotangent.times(-1), cotangent=FREE)
        return every

    def _redundant(self, transfers: Sequence[Transfer]) -> list[int]:
        """The indices of unused copies, and of transfers that reuse one of the same value in the same body."""
        used_copies = {t.use.value.id for t in transfers if t.from_copy}
        unused, reshards = list[int](), list[_Reshard]()
        sent = [i for i, t in enumerate(transfers) if t.cost.sent]
        for i in sorted(sent, key=lambda i: (self._forward[transfers[i].use.node.id], transfers[i].use.operand)):
            t = transfers[i]
            value = t.use.value.id
            if t.use.node.kind == "shared" and value not in used_copies:
                unused.append(i)
            else:
                reshards.append(_Reshard(i, (value, self._body(t.use), t.from_copy), t.dst, t.cost.sent))
        return unused + _reusing(reshards)

    def _shared_cotangents(self, transfers: Sequence[Transfer]) -> list[int]:
        """The indices of those whose cotangent is resharded for another use too: terms of a sum share one."""
        cotangents: dict[int, Hashable] = {}  # by value with one use
        reshards = list[_Reshard]()
        some = [i for i, t in enumerate(transfers) if t.cotangent.sent or t.use.value.id in self._terms]
        for i in sorted(some, key=lambda i: (self._backward[transfers[i].use.node.id], -transfers[i].use.operand)):
            t = transfers[i]
            x, node = t.use.value, t.use.node
            ct: Hashable = "use", i
            if (
                node.op is not None
                and t.use.operand in _PASSES.get(node.op.name, ())
                and x.shape == node.results[0].shape
            ):
                ct = cotangents.get(node.results[0].id, node.results[0].id)
            if t.cotangent.sent:
                reshards.append(_Reshard(i, (ct, t.dst, self._body(t.use)), t.src.cotangent(), t.cotangent.sent))
            if self._users[x.id] == 1:
                cotangents[x.id] = (ct, t.dst, t.src) if t.dst != t.src else ct
        return _reusing(reshards)


def _backwards(nodes: Sequence[Node]) -> list[Node]:
    """All but shared copies, the users of each value before its op."""
    ops = [n for n in nodes if isinstance(n.item, Op)]
    return [*(n for n in nodes if not isinstance(n.item, Op) and n.kind != "shared"), *reversed(ops)]


class _Reshard(NamedTuple):
    """A reshard of the program that runs."""

    at: int
    value: Hashable
    dst: ShType
    sent: float


def _reusing(reshards: Iterable[_Reshard]) -> list[int]:
    """The indices of reshards that are free since another of the same value is reused, as by `reshard_once`.

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
    return [one.at for group in every for one in group if one is not max(group, key=lambda each: each.sent)]


def _is_free(src: ShType, dst: ShType) -> bool:
    """Whether a reshard sends nothing forward and backward."""
    return src == dst or not ((cast := price(src, dst)).forward or cast.backward)
