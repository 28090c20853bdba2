"""The cost tables of decisions: seconds, bytes of memory and reshards, for mesh axes that vary together."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from shtypes.analysis.flops import product_flops
from shtypes.caches import Bounded
from shtypes.resharding.devices import Device
from shtypes.solver.axis_states import typed
from shtypes.solver.factors import FREE, Factor, Measure
from shtypes.solver.graph import Graph
from shtypes.solver.items import Value, is_value, trip_count
from shtypes.solver.nodes import Node, Use
from shtypes.solver.options import is_annotation
from shtypes.solver.reshard_prices import Prices, States, cotangents, dims_of, parts, unlabelled
from shtypes.solver.rows import Assignment, Domains
from shtypes.solver.transfers import Sharing, Transfer
from shtypes.solver.use_costs import EXCLUDED, UseCosts
from shtypes.types import ShType

#: The part of the memory traffic of ops without products that is left after XLA fuses them: of most programs, and at
#: least.
FUSED: Final = 0.4
_LEAST_FUSED: Final = 0.05

#: The most tables that are remembered: those of the uses of a program, of which many are alike.
_MOST_TABLES: Final = 8192
#: The most transfers that are remembered: those of several assignments.
_MOST_TRANSFERS: Final = 32768
#: The most assignments of which all transfers are remembered: a plan has those with which it was priced.
_MOST_PRICED: Final = 8
#: By bytes, how much more work counts that several devices do: a GFLOP of it, or 3 MB from memory, as a byte sent.
_REPEATED: Final = 1e3


class Costs(UseCosts):
    """The costs of the decisions of a graph.

    Args:
        graph: The decision variables.
        prices: Of reshards.
        device: The speed of a device.
        state: Bytes of optimizer state for each byte of a differentiated argument.
        weights: Of communication, forward and backward.
        by_bytes: Whether the objective is bytes sent, with computing as a tie-breaker.
    """

    def __init__(
        self,
        graph: Graph,
        prices: Prices,
        device: Device,
        state: float,
        weights: tuple[float, float] = (1.0, 1.0),
        *,
        by_bytes: bool = False,
    ) -> None:
        super().__init__(graph, prices, weights, by_bytes=by_bytes)
        self.device, self.state, self.fused = device, state, FUSED
        self._table_cache: Bounded[list[Measure]] = Bounded(_MOST_TABLES)
        self._transfer_cache: Bounded[Transfer] = Bounded(_MOST_TRANSFERS)
        self._group_cache: Bounded[list[list[Transfer]]] = Bounded(_MOST_PRICED)
        #: Those with equal costs in all assignments together: of repeated layers.
        self.nodes, self.uses = self._grouped_nodes(), self._grouped_uses()
        self._sharing = Sharing(graph, [*itertools.chain(*self.uses.values())], self._cotangent_from)
        #: The results that the caller has to reduce if they are pending.
        free = enumerate(graph.program.outputs if graph.is_implicit else [])
        nodes = ((v, graph.results.get(i) or Node(-1, "result", (), [v], [], 1)) for i, v in free if is_value(v))
        self.free_results = [Use(node, 0, v, 1) for v, node in nodes]

    # unary factors

    def calibrate(self, seconds: float) -> None:
        """Sets the part of memory traffic that is left after fusion, so that undivided work takes so many seconds."""
        row, totals = np.zeros((1, len(self.sizes)), np.int64), []
        for self.fused in (0.0, 1.0):
            totals.append(
                sum(len(some) * float(np.sum(self.node_cost(some[0], row).seconds)) for some in self.nodes.values())
            )
        products, traffic = totals[0], totals[1] - totals[0]
        self.fused = min(max((seconds - products) / traffic, _LEAST_FUSED), 1.0) if traffic else FUSED

    def node_cost(self, node: Node, rows: Any) -> Measure:
        """The cost of a node, without reshards of its operands."""
        cost = Measure(*(np.zeros(len(rows)) for _ in Measure._fields))
        if node.op is not None:
            cost += self._op_cost(node, rows)
        if node.kind == "argument" and not self.graph.is_implicit:
            v = node.results[0]
            states = self.result_states(node, rows, 0)
            trained = self.graph.has_cotangent(v)
            memory = (2 + self.state if trained else 1) * v.nbytes / parts(states, self.sizes)
            cost += Measure(0.0, 0.0, memory, 0.0, 0.0)
            if trained:  # its gradient is resharded to its type
                gradient = self._reshard_cost(v, cotangents(states), states, (1.0, 0.0), self.prices.pairs)
                cost += gradient._replace(reshards=1.0 * (gradient.sent > 0))
            elif self.graph.grad:  # data comes from outside at each step
                slowest = min(bandwidth for bandwidth, *_ in self.prices.links)
                cost += Measure(0.0, v.nbytes / parts(states, self.sizes) / slowest, 0.0, 0.0, 0.0)
            if v.id in self.graph.sliced:  # a reader expects no axis on the dim of the layers
                cost += Measure(0.0, 0.0, 0.0, 0.0, 0.5 * (dims_of(states) == 0).any(-1))
        for i, v in enumerate(node.results):
            cost += Measure(
                0.0, 0.0, self._residual_bytes(v) / parts(self.result_states(node, rows, i), self.sizes), 0.0, 0.0
            )
        return cost

    def _residual_bytes(self, v: Value) -> float:
        """The bytes for which a result counts by itself: all of a residual, and of others their mean over time."""
        graph = self.graph
        if v.id in graph.saved:
            return v.nbytes * trip_count(v.within)
        if v.id in graph.repeats.needed:
            return v.nbytes / graph.checkpoints
        return v.nbytes * graph.lifetimes.get(v.id, 0.0)

    def _op_cost(self, node: Node, rows: Any) -> Measure:
        """The cost of an op: of computing and of the op's communication."""
        op, graph = node.op, self.graph
        assert op is not None
        is_product, bandwidth = product_flops(op.eqn) is not None, self.device.bandwidth
        divided, (shares, work) = np.ones(len(rows)), self.comm_per_byte(node, rows)
        fused = np.full(len(rows), 0.0 if is_product else self.fused)
        for a, n in enumerate(self.sizes):
            options = self._options[node.leader.id][a]
            divided = np.where(options.divides[rows[:, a]], divided * n, divided)
            fused = np.where(options.across[rows[:, a]], 1.0, fused)  # a collective's operands are in memory
        operands = [(i, x) for i, x in enumerate(op.operands) if isinstance(x, Value)]
        traffic = np.zeros(len(rows))
        for i, x in operands:
            cut = parts(self.operand_states(node, rows, i), self.sizes) if is_value(x) else divided
            traffic += x.nbytes / cut
        for i, v in enumerate(op.results):
            traffic += v.nbytes / parts(self.result_states(node, rows, i), self.sizes)
        has_cotangent = any(map(graph.has_cotangent, op.results))
        once = graph.is_live(node) * trip_count(op.results[0].within) / node.times
        if is_annotation(op.eqn):
            v = op.results[0]
            src, dst = self.operand_states(node, rows, 0), self.result_states(node, rows, 0)
            price = self.prices.pairs
            moved = self._reshard_cost(v, src, dst, graph.reshard_runs(Use(node, 0, v, node.times)), price)
            if graph.has_cotangent(v):
                moved += self._cotangent_cost(v, src, dst, price)
            return moved.times(node.times)
        backward = sum(graph.operand_has_cotangent(op, i) for i, _ in operands)
        seconds = fused * traffic / bandwidth
        for p in op.products:
            moving = (traffic if is_product else p.bytes / divided) / bandwidth
            seconds = seconds + np.maximum(p.flops / divided / self.device.rate(p.dtype), moving)
        if op.products:  # a product has two in the backward pass, whatever else a function around it takes
            backward = min(backward, 2)
        if self.by_bytes:
            seconds = seconds * np.where(divided < math.prod(self.sizes), _REPEATED, 1.0)
        runs = once + node.reruns + backward
        comm, sent = np.zeros(len(rows)), np.zeros(len(rows))
        for share, n, (bandwidth, latency, launch) in zip(shares, self.sizes, self.prices.links, strict=True):
            comm += np.isinf(share[:, 0]) * EXCLUDED
            share = np.where(np.isinf(share), 0.0, share) * np.array([once + node.reruns, float(has_cotangent)])
            if share.any():
                b = share * self.local_bytes(node, rows)[:, None]
                sent += b.sum(1)
                comm += b @ self.weights / bandwidth + np.where(share.any(1), launch + 2 * (n - 1) * latency, 0.0)
        comm += (sent > 0) * self.graph.in_no_comm(node) * EXCLUDED
        return Measure(seconds * work * runs, comm, 0.0, sent, 0.0).times(node.times)

    # all factors

    def _node_form(self, node: Node) -> Any:
        """What the cost of a node depends on beside its rows and what it sends by itself."""
        graph, op = self.graph, node.op
        values = tuple(
            (v.nbytes, graph.has_cotangent(v), trip_count(v.within), self._residual_bytes(v), v.id in graph.sliced)
            for v in node.results
        )
        of_op = op and (graph.is_live(node), graph.in_no_comm(node), is_annotation(op.eqn) and op.id)
        return node.kind, node.times, node.reruns, values, of_op

    def _use_form(self, use: Use) -> Any:
        """What the cost of a use depends on beside the states."""
        graph, v, op = self.graph, use.value, use.node.op
        of_cotangent = graph.use_has_cotangent(use), graph.sums_gradient(v), graph.fuses_cotangent(use)
        of_op = op and (graph.in_no_comm(use.node), is_annotation(op.eqn))
        return v.nbytes, self._saved_bytes(use), graph.reshard_runs(use), use.times, of_cotangent, of_op

    def _grouped_nodes(self) -> dict[Any, list[Node]]:
        nodes: dict[Any, list[Node]] = {}
        for node in self.graph.nodes:
            if node.id not in self.graph.again:
                nodes.setdefault((node.leader.id, self._node_form(node)), []).append(node)
        return nodes

    def _grouped_uses(self) -> dict[Any, list[Use]]:
        graph, uses = self.graph, dict[Any, list[Use]]()
        for use in [*(Use(n, 0, n.operands[0], n.times) for n in graph.shared.values()), *graph.uses()]:
            (source, k), copy = graph.source[use.value.id], graph.shared.get(use.value.id)
            ids = source.leader.id, copy and copy.leader.id, use.node.leader.id
            uses.setdefault((ids, (k, use.operand, self._use_form(use))), []).append(use)
        return uses

    def factors(self, domains: Domains) -> Iterator[Factor]:
        """All factors of the objective; repeated ones are one, multiplied."""
        keys = {n.id: (id(n.options), domains[n.id].tobytes()) for n in self.graph.decisions}
        for (i, form), some in self.nodes.items():
            yield Factor((i,), [self._alone(some[0], form, domains[i]).times(len(some), reshards=1)])
        for (_, form), (use, *more) in self.uses.items():
            ids = (*(n.leader.id for n, _ in self._sources(use)), use.node.leader.id)
            alternatives = functools.partial(self._alternatives, use, domains)
            costs = self._table_cache.get_or_create((form, *map(keys.get, ids)), alternatives)
            yield Factor(ids, [cost.times(1 + len(more), reshards=1) for cost in costs])
        for use in self.free_results:
            node, states = self._returned(use)
            yield Factor((node.leader.id,), [self._finish_cost(use, states(domains[node.leader.id]))])

    def _returned(self, use: Use) -> tuple[Node, Callable[[Any], States]]:
        """The node that decides in which states the caller gets a result, with a function from rows to these."""
        if use.node.id >= 0:
            return use.node, functools.partial(self.operand_states, use.node, i=0)
        source, k = self.graph.source[use.value.id]
        return source, functools.partial(self.result_states, source, i=k)

    def _sources(self, use: Use) -> list[tuple[Node, Callable[[Any], States]]]:
        """The nodes from which a use may take its value, each with a function from rows to its states."""
        source, k = self.graph.source[use.value.id]
        copy = self.graph.shared.get(use.value.id)
        sources: list[tuple[Node, Callable[[Any], States]]]
        sources = [(source, functools.partial(self.result_states, source, i=k))]
        if copy is not None and copy is not use.node:
            sources.append((copy, functools.partial(self.operand_states, copy, i=0)))
        return sources

    def _alone(self, node: Node, form: Any, rows: Any) -> Measure:
        """`node_cost`, which nodes of one form have in common."""
        key = form, self.form(node), rows.tobytes()
        return self._table_cache.get_or_create(key, lambda: [self.node_cost(node, rows)])[0]

    def _alternatives(self, use: Use, domains: Domains) -> list[Measure]:
        """The cost of a use from each of its sources, by the decision variables of these and of its node."""
        sources, dst = self._sources(use), self.operand_states(use.node, domains[use.node.leader.id], use.operand)
        costs = [
            self.transfer_cost(use, states(domains[n.leader.id]), dst, from_copy=i > 0)
            for i, (n, states) in enumerate(sources)
        ]
        if len(costs) > 1:
            costs = [cost.map(functools.partial(np.expand_dims, axis=1 - i)) for i, cost in enumerate(costs)]
        return costs

    # of one assignment

    def transfers(self, assignment: Assignment, byte: float = 0.0) -> list[Transfer]:
        """The transfers of all uses and shared copies in an assignment, with the costs of their reshard plans."""
        return [t for group in self._transfer_groups(assignment, byte) for t in group]

    def _transfer_groups(self, assignment: Assignment, byte: float) -> list[list[Transfer]]:
        """The transfers, with those of repeated layers together."""

        def counted_once() -> list[list[Transfer]]:
            groups = [(some, self._cached_transfer(some[0], assignment, byte)) for some in self.uses.values()]
            every = iter(self._sharing.counted_once([Transfer(use, *t[1:]) for some, t in groups for use in some]))
            return [[*itertools.islice(every, len(some))] for some, _ in groups]

        return self._group_cache.get_or_create((frozenset(assignment.items()), byte), counted_once)

    def _cached_transfer(self, use: Use, assignment: Assignment, byte: float) -> Transfer:
        """The transfer of a use, which is that of another assignment with the same rows of its nodes."""
        sources = self._sources(use)
        rows = [assignment[n.leader.id] for n in (*(n for n, _ in sources), use.node)]
        key = use.node.id, use.operand, *rows, byte if len(sources) > 1 else 0.0
        return self._transfer_cache.get_or_create(key, lambda: self._transfer(use, assignment, byte))

    def _transfer(self, use: Use, assignment: Assignment, byte: float) -> Transfer:
        """The cheapest transfer of a use, from the value or its shared copy."""
        sources, v = self._sources(use), use.value
        rows = {n.leader.id: self.row(n, assignment) for n in (*(n for n, _ in sources), use.node)}
        dst, best = self.operand_states(use.node, rows[use.node.leader.id], use.operand), 0
        stays = [(states(rows[n.leader.id]) == dst).all() and n.kind != "argument" for n, states in sources]
        if len(sources) > 1 and not stays[0]:
            costs = [float(np.ravel(cost.weighted(byte, 1e-12))[0]) for cost in self._alternatives(use, rows)]
            best = costs.index(min(costs))
        source, states = sources[best]
        src = states(rows[source.leader.id])
        types = self.typed(source, v, src), self.typed(use.node, v, dst)
        if stays[best]:
            unmoved = self._use_measure(use, 0.0, 0.0, np.zeros(1), dst, from_copy=bool(best))
            return Transfer(use, *types, bool(best), unmoved.scalars)
        cost = self._use_measure(use, *self._pair_costs(use, src, dst, planned=True), dst, from_copy=bool(best))
        cotangent = self._use_cotangent(use, src, dst, planned=True).times(use.times)
        return Transfer(use, *types, bool(best), cost.scalars, cotangent.scalars)

    def _cotangent_from(self, use: Use, src: ShType, dst: ShType) -> Measure:
        """The cost of the reshard of the cotangent of a use from one type to another."""
        cost = self.prices.of_types(src, dst)
        seconds = self.weights[1] * (cost.seconds * use.value.nbytes + cost.latency)
        return FREE._replace(comm=seconds, sent=cost.sent * use.value.nbytes).times(use.times).scalars

    def typed(self, node: Node, v: Value, states: States) -> ShType:
        """The type of a result or operand. Arguments of no given types are reduced: their gradients are summed last."""
        row = (unlabelled(states) if node.kind == "argument" and not self.graph.is_implicit else states)[0]
        return typed(self.graph.mesh, v.dtype, v.shape, row.tolist())

    def price(self, assignment: Assignment, byte: float = 0.0) -> Measure:
        """The cost of an assignment, with the costs of reshard plans."""
        total = FREE
        for (_, form), some in self.nodes.items():
            cost = self._alone(some[0], form, self.row(some[0], assignment))
            total += cost.scalars.times(len(some), reshards=1)
        for group in self._transfer_groups(assignment, byte):
            costs = [t.cost for t in group]
            total += sum(costs, FREE)._replace(reshards=max(cost.reshards for cost in costs))
        for use in self.free_results:
            node, states = self._returned(use)
            total += self._finish_cost(use, states(self.row(node, assignment))).scalars
        return total
