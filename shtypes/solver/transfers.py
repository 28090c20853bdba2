"""The reshards of the uses of an assignment, and which of them are one in the program that runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from shtypes.resharding import price
from shtypes.solver.factors import FREE, Measure
from shtypes.solver.graph import Graph
from shtypes.solver.items import Op
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
        cotangent: The cost of the reshard of a cotangent of a use from one type to another.
    """

    def __init__(self, graph: Graph, uses: Sequence[Use], cotangent: Callable[[Use, ShType, ShType], Measure]) -> None:
        self._body, self._cotangent = graph.body, cotangent
        copies, others = [*graph.shared.values()], _backwards(graph.nodes)
        #: Nodes in the order in which their operands are resharded: of the program, and of its backward pass.
        self._forward = {n.id: i for i, n in enumerate((*copies, *reversed(others)))}
        self._backward = {n.id: float(i) for i, n in enumerate((*others, *copies))}
        sources = ((n, graph.source[v][0]) for v, n in graph.shared.items())
        self._backward.update((n.id, self._backward[one.id] - 0.5) for n, one in sources if one.op is not None)
        self._live = [graph.use_has_cotangent(use) for use in uses]
        self._sums_gradient, self._fuses = graph.sums_gradient, graph.fuses_cotangent

    def counted_once(self, transfers: Sequence[Transfer]) -> list[Transfer]:
        """The transfers; of those that are one in the program, all but the most expensive are free."""
        every = [*transfers]
        for i in self._redundant(every):
            every[i] = every[i]._replace(cost=FREE, cotangent=FREE, is_redundant=True)
        for i, cotangent in self._cheaper_cotangents(every):
            t = every[i]
            every[i] = t._replace(cost=t.cost + t.cotangent.times(-1) + cotangent, cotangent=cotangent)
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

    def _cheaper_cotangents(self, transfers: Sequence[Transfer]) -> Iterator[tuple[int, Measure]]:
        """The indices of those whose cotangent costs less than by itself, with what it costs.

        Terms of a sum share one, which is resharded once. One that is a free cast of another is resharded from that if
        that sends less, as by `reshard_cotangent`. A copy has none if no use of it has one.
        """
        live = [i for i, has_cotangent in enumerate(self._live) if has_cotangent]
        read = {transfers[i].use.value.id for i in live if transfers[i].from_copy}
        unread = {i for i in live if transfers[i].use.node.kind == "shared" and transfers[i].use.value.id not in read}
        live = [i for i in live if i not in unread]
        users = Counter((transfers[i].use.value.id, transfers[i].from_copy) for i in live)
        casts: dict[Hashable, set[Hashable]] = {}  # by value or shared copy
        for t in map(transfers.__getitem__, live):
            casts.setdefault((t.use.value.id, t.from_copy), set()).add((t.dst, self._body(t.use)))
        cotangents: dict[Hashable, _Cotangent] = {}  # by value, or shared copy, that all uses take in one type
        reshards, cheaper = list[_Reshard](), dict[int, Measure]()
        for i in sorted(live, key=lambda i: (self._backward[transfers[i].use.node.id], -transfers[i].use.operand)):
            t = transfers[i]
            x, node, body = t.use.value, t.use.node, self._body(t.use)
            alone = users[x.id, t.from_copy] == 1
            ct = _Cotangent(("use", i))
            if (
                node.op is not None
                and t.use.operand in _PASSES.get(node.op.name, ())
                and x.shape == node.results[0].shape
            ):
                ct = cotangents.get((node.results[0].id, False), _Cotangent(node.results[0].id))
            elif node.kind == "shared":
                ct = cotangents.get((x.id, True), ct)
            if t.cotangent.sent:
                to = t.src.cotangent()
                reshards.append(_Reshard(i, (ct.key, t.dst, body), to, t.cotangent.sent))
                # else it may be a sum; in a checkpoint, gradients of arguments are summed after their reshard
                before = ct.cast_from if alone and (self._fuses(t.use) or not self._sums_gradient(x)) else ()
                costs = [self._cotangent(t.use, one, to) for one, place in before if place == body]
                cheapest = min(costs, key=lambda cost: float(cost.sent), default=t.cotangent)
                if cheapest.sent < t.cotangent.sent:
                    cheaper[i] = cheapest
            if len(casts[x.id, t.from_copy]) == 1:
                ct = ct if alone else _Cotangent(("sum", x.id, t.from_copy))
                if t.dst != t.src:
                    ct = _Cotangent((ct.key, t.dst, t.src), self._cast_from(t, ct))
                cotangents[x.id, t.from_copy] = ct
        return iter((cheaper | dict.fromkeys([*unread, *_reusing(reshards)], FREE)).items())

    def _cast_from(self, t: Transfer, ct: _Cotangent) -> tuple[tuple[ShType, int], ...]:
        """What the cotangent of a value is a free cast of, which takes no more memory; ``ct`` is that of its use."""
        before, after = t.dst.cotangent(), t.src.cotangent()
        if t.cotangent.sent or before.local_bytes > after.local_bytes:
            return ()
        return (before, self._body(t.use)), *ct.cast_from


class _Cotangent(NamedTuple):
    """A cotangent of the program that runs."""

    key: Hashable
    cast_from: tuple[tuple[ShType, int], ...] = ()  # the types of which it is a free cast, each with the body


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
