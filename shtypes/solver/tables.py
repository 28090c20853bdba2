"""The cost tables of decisions: seconds, bytes of memory and reshards, for mesh axes that vary together."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.analysis.flops import product_flops
from shtypes.caches import Bounded
from shtypes.resharding.devices import Device
from shtypes.solver.axis_states import FRONT, INVARIANT, REDUCED, SHARDED, UNREDUCED, typed
from shtypes.solver.factors import FREE, Factor, Measure
from shtypes.solver.graph import Graph, Node, Use
from shtypes.solver.items import Value, is_value, trip_count
from shtypes.solver.options import FORBIDDEN, CommPerByte, Option, is_annotation
from shtypes.solver.reshard_prices import (
    Cost,
    Prices,
    States,
    Table,
    cotangents,
    dims_of,
    distinct,
    in_order,
    parts,
    unlabelled,
)
from shtypes.solver.transfers import Sharing, Transfer
from shtypes.types import ShType

#: The prices of reshards from each row to the same row.
Price = Callable[[States, States], Cost]
#: The part of the memory traffic of ops without products that is left after XLA fuses them: of most programs, and at
#: least.
FUSED: Final = 0.4
_LEAST_FUSED: Final = 0.05

#: The most tables of states, and of the rows that fit some shapes, that are remembered.
_MOST_STATES: Final = 8192
#: The most entries of a cached factor.
_MOST_CACHED: Final = 4096
#: The most transfers that are remembered: those of several assignments.
_MOST_TRANSFERS: Final = 32768
#: The most assignments of which all transfers are remembered: a plan has those with which it was priced.
_MOST_PRICED: Final = 8
#: Seconds that exclude an option.
_EXCLUDED: Final = 1e9
#: A relative cost below that of any work, as a tie-breaker.
_TIE_BREAKER: Final = 1e-10

#: The tolerance of bytes, which are rounded.
_ROUNDED: Final = 0.5

#: For each decision variable, the index of an option for each mesh axis.
Assignment = dict[int, tuple[int, ...]]
#: For each decision variable, the rows of option indices that it may take.
Domains = dict[int, Any]


def _shards_align(values: Sequence[States], count: int) -> Any:
    """Mask of the rows of states that an op can have, from the order of axes on a dim.

    If two axes shard a dim of one value, no other value may be sharded by the minor one alone: its shards would not be
    parts of the others'.
    """
    ok = np.ones(count, bool)
    for a, b in itertools.combinations(range(values[0].shape[-1] if values else 0), 2):
        both, in_front, without = np.zeros(count, bool), np.zeros(count, bool), np.zeros((2, count), bool)
        for states in values:
            on_a, on_b = dims_of(states[:, a]), dims_of(states[:, b])
            shared = (on_a >= 0) & (on_a == on_b)
            both |= shared
            in_front |= shared & (states[:, b] >= FRONT)
            without |= np.stack([(on_a < 0) & (on_b >= 0), (on_b < 0) & (on_a >= 0)])
        ok &= ~(both & np.where(in_front, without[1], without[0]))
    return ok


def _gradient_cost(fused: Cost, first: Cost, second: Cost, may_fuse: Any) -> Cost:
    """The cost of two reshards of a gradient: to the cotangent's type, then to the argument's.

    They are one ``fused`` reshard if the first sends nothing and the fused one is no more expensive.
    """
    one = may_fuse & (first.sent == 0) & (fused.sent <= second.sent) & (fused.launches <= second.launches)
    return Cost(*(np.where(one, f, a + b) for f, a, b in zip(fused, first, second, strict=True)))


class _OptionArrays(NamedTuple):
    """The options of a node along an axis, as arrays."""

    operands: Any
    results: Any
    divides: Any
    sent: Any  # forward and backward
    work: Any
    across: Any
    unpriced: Any  # of ways, until a plan takes them

    @classmethod
    def of(cls, options: Sequence[Option]) -> _OptionArrays:
        operands, results = (np.array([o[k] for o in options], np.int64) for k in range(2))
        others = zip(*((o.divides, o[2:4], o.work, o.across_shards, o.way is not None) for o in options), strict=True)
        return cls(operands, results, *map(np.array, others))


class Costs:
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
        self.graph, self.prices, self.device, self.state = graph, prices, device, state
        self.weights, self.by_bytes = weights, by_bytes
        self.sizes, self.fused = graph.sizes, FUSED
        self._options = {n.id: [_OptionArrays.of(each) for each in n.options] for n in graph.decisions}
        self._pair_cache: dict[Any, tuple[Table, Table, Table]] = {}
        self._factor_cache: dict[Any, Factor] = {}
        self._states_cache: Bounded[States] = Bounded(_MOST_STATES)
        self._rows_cache: Bounded[Any] = Bounded(_MOST_STATES)
        self._transfer_cache: Bounded[Transfer] = Bounded(_MOST_TRANSFERS)
        self._group_cache: Bounded[list[list[Transfer]]] = Bounded(_MOST_PRICED)
        #: By decision and row: the communication of ops that is not the sum over the axes.
        self._row_comm: dict[int, dict[tuple[int, ...], CommPerByte]] = {}
        #: The same by the ways, or the options across shards along several axes, of those that an assignment had.
        self._across_comm: dict[Any, CommPerByte] = {}
        self.nodes, self.uses = self._group_repeated()
        self._sharing = Sharing(graph, [use for some in self.uses for use in some])
        #: The results of a program with free result types, which the caller has to reduce if they are pending.
        free = graph.program.outputs if graph.is_implicit else []
        self.free_results = [Use(Node(-1, "result", (), [v], [], 1), 0, v, 1) for v in free if is_value(v)]
        self.allowed: dict[
            int, list[Sequence[int] | None]
        ] = {}  # by node: the options that the user allows, for each axis

    # domains

    def domain(self, node: Node, axes: Sequence[int], fixed: Assignment) -> Any:
        """The valid rows of options: all options along ``axes``, those of ``fixed`` along the others."""
        limits = self.allowed.get(node.id, [None] * len(self.sizes))
        ranges: list[Sequence[int]] = []
        for a, limit in enumerate(limits):
            every: Sequence[int] = range(len(node.options[a])) if limit is None else limit
            ranges.append(every if a in axes else self._alike(node, a, fixed[node.id][a], every))
        rows = np.array(list(itertools.product(*ranges)), np.int64).reshape(-1, len(self.sizes))
        shapes = tuple([is_value(x) and x.shape for x in (*node.results, *node.operands)])
        key = node.op is None, self._sums_gradient(node), node.options, shapes, rows.tobytes()
        rows = self._rows_cache.get_or_create(key, lambda: self._fitting(node, rows))
        if node.op is None or is_annotation(node.op.eqn):
            return rows
        allowed = np.isfinite(self._comm_per_byte(node, rows)[0][:, :, 0]).all(0)
        return rows[allowed] if allowed.any() else rows

    def _fitting(self, node: Node, rows: Any) -> Any:
        """The rows of options whose states values can have together."""
        ok, fronts = np.ones(len(rows), bool), np.zeros(rows.shape, bool)
        states = [(v, self.result_states(node, rows, i)) for i, v in enumerate(node.results)]
        states += [(x, self.operand_states(node, rows, i)) for i, x in enumerate(node.operands) if is_value(x)]
        for v, each in states:
            ok &= self.graph.fits(v, each)
            fronts |= each >= FRONT
        if node.op is not None:
            ok &= _shards_align([each for _, each in states], len(rows))
        for a, options in enumerate(node.options):  # to be the major axis of only one is the same option
            ok &= fronts[:, a] | ~np.array([o.is_major for o in options])[rows[:, a]]
        if self._sums_gradient(node):
            large = states[0][1][:, np.array(self.sizes) > 1]
            ok &= ~((large == INVARIANT).any(-1) & (large == REDUCED).any(-1))
        return rows[ok]

    def _sums_gradient(self, node: Node) -> bool:
        """Whether a node is an argument whose gradient is summed over all axes at once, which are replicated alike."""
        return node.kind == "argument" and not self.graph.is_implicit and self.graph.has_cotangent(node.results[0])

    def _alike(self, node: Node, axis: int, option: int, every: Sequence[int]) -> Sequence[int]:
        """The options along an axis that is fixed: an argument replicated there follows the axes that are not."""
        results = [o.results[0] for o in node.options[axis]] if self._sums_gradient(node) else []
        replicated = [i for i in every if results and results[i] in (INVARIANT, REDUCED)]
        return replicated if option in replicated else [option]

    def first_options(self, node: Node) -> tuple[int, ...]:
        """The row of the first allowed option along each axis."""
        return tuple(
            [0 if limit is None else limit[0] for limit in self.allowed.get(node.id, [None] * len(self.sizes))]
        )

    def result_states(self, node: Node, rows: Any, i: int) -> States:
        """The states of a result, for each row."""
        return self._states(node, rows, i)

    def operand_states(self, node: Node, rows: Any, i: int) -> States:
        """The states of an operand, for each row."""
        return self._states(node, rows, i, of_operands=True)

    def _states(self, node: Node, rows: Any, i: int, *, of_operands: bool = False) -> States:
        options = self._options[node.leader.id]

        def states() -> States:
            each = [(o.operands if of_operands else o.results)[rows[:, a], i] for a, o in enumerate(options)]
            return in_order(np.stack(each, -1))

        return self._states_cache.get_or_create((node.leader.id, i, of_operands, rows.tobytes()), states)

    @staticmethod
    def row(node: Node, assignment: Assignment) -> Any:
        """The row of a node in an assignment."""
        return np.array([assignment[node.leader.id]])

    @staticmethod
    def chosen(node: Node, row: Sequence[int]) -> list[Option]:
        """The options of a row, one for each axis."""
        return [each[i] for each, i in zip(node.leader.options, row, strict=True)]

    # unary factors

    def calibrate(self, seconds: float) -> None:
        """Sets the part of memory traffic that is left after fusion, so that undivided work takes so many seconds."""
        row, totals = np.zeros((1, len(self.sizes)), np.int64), []
        for self.fused in (0.0, 1.0):
            totals.append(sum(len(some) * float(np.sum(self.node_cost(some[0], row).seconds)) for some in self.nodes))
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
            if v.id in self.graph.saved or v.id in self.graph.repeats.needed:
                times = trip_count(v.within) if v.id in self.graph.saved else 1 / self.graph.checkpoints
                saved = times * v.nbytes / parts(self.result_states(node, rows, i), self.sizes)
                cost += Measure(0.0, 0.0, saved, 0.0, 0.0)
        return cost

    def _op_cost(self, node: Node, rows: Any) -> Measure:
        """The cost of an op: of computing and of the op's communication."""
        op, graph = node.op, self.graph
        assert op is not None
        is_product, bandwidth = product_flops(op.eqn) is not None, self.device.bandwidth
        divided, (shares, work) = np.ones(len(rows)), self._comm_per_byte(node, rows)
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
        backward = sum(graph.has_cotangent(x) for _, x in operands) if has_cotangent else 0
        seconds = fused * traffic / bandwidth
        for p in op.products:
            moving = (traffic if is_product else p.bytes / divided) / bandwidth
            seconds = seconds + np.maximum(p.flops / divided / self.device.rate(p.dtype), moving)
        if op.products:  # a product has two in the backward pass, whatever else a function around it takes
            backward = min(backward, 2)
        runs = once + node.reruns + backward
        comm, sent = np.zeros(len(rows)), np.zeros(len(rows))
        for share, n, (bandwidth, latency, launch) in zip(shares, self.sizes, self.prices.links, strict=True):
            comm += np.isinf(share[:, 0]) * _EXCLUDED
            share = np.where(np.isinf(share), 0.0, share) * np.array([once + node.reruns, float(has_cotangent)])
            if share.any():
                b = share * (op.results[0].nbytes / parts(self.result_states(node, rows, 0), self.sizes))[:, None]
                sent += b.sum(1)
                comm += b @ self.weights / bandwidth + np.where(share.any(1), launch + 2 * (n - 1) * latency, 0.0)
        comm += (sent > 0) * self.graph.in_no_comm(node) * _EXCLUDED
        return Measure(seconds * work * runs, comm, 0.0, sent, 0.0).times(node.times)

    def _comm_per_byte(self, node: Node, rows: Any) -> tuple[Any, Any]:
        """The communication of an op along each axis, forward and backward, and its work, for each row.

        If it is not the sum over the axes, all of it is along the slowest one: at least the most along one axis, until
        it is priced. Where ops choose for themselves, it is infinite for what sends more forward than a gather.
        """
        options = self._options[node.leader.id]
        per_axis = np.stack([o.sent[rows[:, a]] for a, o in enumerate(options)])
        work = np.max([o.work[rows[:, a]] for a, o in enumerate(options)], 0)  # fixed parts are not done twice
        row_comm = self._row_comm.setdefault(node.leader.id, {})
        if not row_comm and not any(o.across.any() for o in options):
            return per_axis, work
        not_sums = (per_axis[:, :, 0] > 0).sum(0) > 1
        not_sums |= np.any([o.unpriced[rows[:, a]] for a, o in enumerate(options)], 0)
        if row_comm:
            not_sums |= np.array([tuple(row) in row_comm for row in rows.tolist()])
        slowest = min(range(len(self.sizes)), key=lambda a: (self.sizes[a] == 1, self.prices.links[a][0]))
        for k in np.flatnonzero(not_sums):
            row = tuple(rows[k].tolist())
            across = self._across(node, row)
            comm = row_comm.get(row) or self._across_comm.get((node.leader.id, *across))
            comm = comm or CommPerByte(*per_axis[:, k].max(0))
            per_axis[:, k] = 0.0
            per_axis[across[0][0] if len(across) == 1 else slowest, k], work[k] = comm[:2], max(work[k], comm.work)
        if self.graph.is_implicit and per_axis.any():
            local = node.results[0].nbytes / parts(self.result_states(node, rows, 0), self.sizes)
            sent = per_axis[:, :, 0].sum(0) * local
            per_axis[slowest, sent > self._gathered(node, rows) + _ROUNDED] = FORBIDDEN[:2]
        return per_axis, work

    def _across(self, node: Node, row: Sequence[int]) -> list[tuple[int, int]]:
        """The axes with their options across shards: the states along the other axes matter little."""
        every = enumerate(zip(row, self._options[node.leader.id], strict=True))
        return [(a, k) for a, (k, options) in every if options.across[k]]

    def price_across(self, assignment: Assignment, domains: Domains) -> set[int]:
        """Prices the ops that an assignment has across shards by a way or along several axes.

        With all rows of their domains across as many axes, or fewer. Returns the nodes with new prices.
        """
        changed = set()
        for node in self.graph.decisions:
            row = assignment[node.id]
            if row in self._row_comm.get(node.id, ()) or not self._is_unpriced(node, taken := self._across(node, row)):
                continue
            rows = {tuple(self._across(node, each)): each for each in map(tuple, domains[node.id].tolist())}
            for across, of in rows.items():
                if len(across) <= len(taken) and self._is_unpriced(node, across):
                    comm = self.graph.comm_per_byte(node, self.chosen(node, of), [a for a, _ in across])
                    self._across_comm[node.id, *across] = comm or FORBIDDEN
            changed.add(node.id)
        factors = self._factor_cache.items()
        self._factor_cache = {k: f for k, f in factors if k[0] == "use" or changed.isdisjoint(f.ids)}
        return changed

    def _is_unpriced(self, node: Node, across: Sequence[tuple[int, int]]) -> bool:
        """Whether options across shards have no price yet."""
        by_way = any(self._options[node.id][a].unpriced[k] for a, k in across)
        return (by_way or len(across) > 1) and (node.id, *across) not in self._across_comm

    def _gathered(self, node: Node, rows: Any) -> Table:
        """The bytes that each device sends to gather the operands along the axes with an option across shards."""
        across = np.stack([o.across[rows[:, a]] for a, o in enumerate(self._options[node.leader.id])], -1)
        total = np.zeros(len(rows))
        for i, x in {x.id: (i, x) for i, x in enumerate(node.operands) if is_value(x)}.values():
            states = self.operand_states(node, rows, i)
            total += x.nbytes / parts(np.where(across, REDUCED, states), self.sizes)
            total -= x.nbytes / parts(states, self.sizes)
        return total

    def correct(self, assignment: Assignment, *, types: bool) -> bool:
        """Corrects the costs of an assignment to those of the typed ops; returns whether any changed.

        Forbids rows whose results differ from those of the typed op. Unless the plan ``types``, it also
        forbids the rows and options that an op refuses.
        """
        changed = False
        for node in self.graph.decisions:
            row = assignment[node.id]
            row_comm = self._row_comm.setdefault(node.id, {})
            if node.op is None or is_annotation(node.op.eqn) or row in row_comm:
                continue
            sent = self.graph.comm_per_byte(node, self.chosen(node, row))
            if sent is None and types:
                continue
            if sent is None or sent == FORBIDDEN:
                row_comm[row] = FORBIDDEN
                self._disallow_refused(node)
                changed = True
            elif not np.allclose(sent[:2], self._comm_per_byte(node, np.array([row]))[0][:, 0].sum(0), rtol=1e-3):
                row_comm[row] = sent
                changed = True
        if changed:
            self._factor_cache.clear()
        return changed

    def _disallow_refused(self, node: Node) -> None:
        """Disallows the options along one axis that an op refuses even if it is replicated along the others."""
        limits = [*self.allowed.get(node.id, [None] * len(self.sizes))]
        for a, limit in enumerate(limits):
            every = range(len(node.options[a])) if limit is None else limit
            rows = [tuple([k * (b == a) for b in range(len(limits))]) for k in every]
            limits[a] = [
                k
                for k, row in zip(every, rows, strict=True)
                if self.graph.comm_per_byte(node, self.chosen(node, row)) not in (None, FORBIDDEN)
            ]
            if not limits[a]:
                return
        self.allowed[node.id] = limits

    def _reshard_cost(self, v: Value, src: States, dst: States, times: tuple[float, float], price: Price) -> Measure:
        """The cost of a reshard, for each pair of rows, that runs so often forward and again in the backward pass."""
        (forward_weight, backward_weight), (first, reruns), cost = self.weights, times, price(src, dst)
        seconds = (forward_weight * first + backward_weight * reruns) * (cost.seconds * v.nbytes + cost.latency)
        return FREE._replace(comm=seconds, sent=(first + reruns) * cost.sent * v.nbytes)

    def _cotangent_cost(self, v: Value, src: States, dst: States, price: Price, may_fuse: bool = True) -> Measure:
        """The cost of the reshard of the cotangent.

        That of an argument and that of the gradient to the argument's type are one if it ``may_fuse``.
        """
        cost = true = price(cotangents(dst), cotangents(src))
        if not self.graph.is_implicit and self.graph.is_argument(v):
            cast = cotangents(unlabelled(src))
            first, second = price(cotangents(dst), cast), price(cast, cotangents(src))
            # A replicated gradient sends nothing; at that price each device would do all of the work.
            replicated = (src == INVARIANT) & np.isin(dst, (INVARIANT, UNREDUCED))
            true = _gradient_cost(cost, first, second, may_fuse)
            cost = _gradient_cost(cost, first, second, may_fuse & ~replicated.any(-1))
        return FREE._replace(comm=self.weights[1] * (cost.seconds * v.nbytes + cost.latency), sent=true.sent * v.nbytes)

    # binary factors

    def transfer_cost(self, use: Use, src: States, dst: States) -> Measure:
        """The cost of the reshard of a use, forward and backward, from each row of ``src`` to each of ``dst``."""
        (one, src_index), (other, dst_index) = distinct(src), distinct(dst)
        backward = self.graph.use_has_cotangent(use)
        key = (
            use.value.nbytes,
            self.graph.is_argument(use.value),
            one.tobytes(),
            other.tobytes(),
            backward,
            self.graph.reshard_runs(use),
            self.graph.fuses_cotangent(use),
        )
        if key not in self._pair_cache:
            self._pair_cache[key] = self._pair_costs(use, np.repeat(one, len(other), 0), np.tile(other, (len(one), 1)))
        seconds, sent, moved = (
            t.reshape(len(one), len(other))[np.ix_(src_index, dst_index)] for t in self._pair_cache[key]
        )
        if use.node.op is not None and is_annotation(use.node.op.eqn):  # a reshard's operand is not resharded for it
            seconds = seconds + moved * _EXCLUDED
        elif self.graph.in_no_comm(use.node):
            seconds = seconds + (sent > 0) * _EXCLUDED
        return self._use_measure(use, seconds, sent, moved, dst)

    def _use_measure(self, use: Use, seconds: Any, sent: Any, moved: Any, dst: States) -> Measure:
        memory = moved * self._saved_bytes(use) / parts(dst, self.sizes)
        return Measure(0.0 * seconds, seconds * use.times, memory, sent * use.times, moved * (sent > 0))

    def _pair_costs(self, use: Use, src: States, dst: States, planned: bool = False) -> tuple[Table, Table, Table]:
        """Seconds and bytes of a run for each pair of rows, and whether the states differ."""
        v = use.value
        cost = self._reshard_cost(v, src, dst, self.graph.reshard_runs(use), self._price(v, planned))
        cost += self._use_cotangent(use, src, dst, planned)
        if self.by_bytes:
            penalty = self._replication_penalty(src, dst, self.graph.use_has_cotangent(use))
            cost = cost._replace(comm=cost.comm + penalty * v.nbytes)
        return cost.comm, cost.sent, (unlabelled(src) != unlabelled(dst)).any(-1).astype(float)

    def _use_cotangent(self, use: Use, src: States, dst: States, planned: bool = False) -> Measure:
        """The cost of the reshard of the cotangent of a use, per run."""
        if not self.graph.use_has_cotangent(use):
            return FREE
        v = use.value
        return self._cotangent_cost(v, src, dst, self._price(v, planned), self.graph.fuses_cotangent(use))

    def _price(self, v: Value, planned: bool) -> Price:
        """The prices of patterns of pairs, or those of the ``planned`` reshards of a value."""
        return functools.partial(self.prices.planned, v.dtype, v.shape) if planned else self.prices.pairs

    def _replication_penalty(self, src: States, dst: States, backward: bool) -> Any:
        """The penalty per byte of a free reshard that gives each device a full array: the price of an all-gather.

        To unreduced, the array is padded with zeros, forward and backward. To invariant, each device computes the full
        cotangent; this counts slightly less, as a tie-breaker.
        """
        forward_weight, backward_weight = self.weights
        total = np.zeros(len(src))
        for a in range(src.shape[-1]):
            gathered = src.copy()
            gathered[:, a] = REDUCED
            weight = (dst[:, a] == UNREDUCED) * (forward_weight + backward * backward_weight)
            weight = weight + (dst[:, a] == INVARIANT) * backward * backward_weight * (1 - _TIE_BREAKER)
            total += weight * (src[:, a] >= SHARDED) * self.prices.pairs(src, gathered).seconds
        return total

    def _saved_bytes(self, use: Use) -> float:
        """Bytes of the global array after a reshard, if it is a residual or sliced by a loop; else 0."""
        v, node = use.value, use.node
        if node.kind == "slice":
            return v.nbytes * use.times * (2 if self.graph.has_cotangent(v) else 1)
        needed = v.id in self.graph.saved if node.op is None else (node.op.id, use.operand) in self.graph.saved_operands
        lives = needed and not (node.reruns or node.checkpointed)
        return v.nbytes * use.times if lives else 0.0

    def _finish_cost(self, use: Use, states: States) -> Measure:
        """The cost of resharding a pending result along its pending axes to its cheapest type without pending sums."""
        places = [REDUCED, *(SHARDED + d for d in range(len(use.value.shape)))]
        every = np.array([*itertools.product(places, repeat=len(self.sizes))])
        rows, which = distinct(states)
        comm = np.zeros(len(rows))
        for k in np.flatnonzero((rows == UNREDUCED).any(-1)):
            dst = np.unique(np.where(rows[k] == UNREDUCED, every, rows[k]), axis=0)
            comm[k] = self.transfer_cost(use, rows[[k]], dst[self.graph.fits(use.value, dst)]).comm.min()
        return FREE._replace(comm=comm[which])

    # all factors

    def _group_repeated(self) -> tuple[list[list[Node]], list[list[Use]]]:
        """Groups nodes and uses with equal costs in all assignments: those of repeated layers."""
        graph = self.graph
        nodes: dict[Any, list[Node]] = {}
        for node in graph.nodes:
            attributes = tuple(
                (v.id in graph.saved, v.id in graph.repeats.needed, v.id in graph.sliced, v.differentiated)
                for v in node.results
            )
            nodes.setdefault((node.leader.id, attributes, node.reruns), []).append(node)
        uses: dict[Any, list[Use]] = {}
        for use in [*(Use(n, 0, n.operands[0], n.times) for n in graph.shared.values()), *graph.uses()]:
            source, k = graph.source[use.value.id]
            copy = graph.shared.get(use.value.id)
            same = (self._saved_bytes(use), graph.reshard_runs(use), use.times, graph.use_has_cotangent(use))
            ids = (source.leader.id, k, None if copy is None else copy.leader.id, use.node.leader.id, use.operand)
            uses.setdefault((ids, same), []).append(use)
        return list(nodes.values()), list(uses.values())

    def factors(
        self, domains: Domains, before: Sequence[Factor] = (), changed: Collection[int] = ()
    ) -> Iterator[Factor]:
        """All factors of the objective; repeated ones are one, multiplied.

        Those ``before`` are returned again but where decisions have ``changed``.
        """
        rows, old = {i: d.tobytes() for i, d in domains.items()}, iter(before)

        def factor_of(ids: tuple[int, ...], key: Any, costs: Callable[[], list[Measure]], count: int) -> Factor:
            if (one := next(old, None)) is not None and not any(i in changed for i in ids):
                return one
            key = *key, *(rows[i] for i in ids)
            if (factor := self._factor_cache.get(key)) is None:
                factor = Factor(ids, [cost.times(count, reshards=1) for cost in costs()])
                if factor.alternatives[0].seconds.size <= _MOST_CACHED:
                    self._factor_cache[key] = factor
            return factor

        for i, nodes in enumerate(self.nodes):
            alone = functools.partial(self._alone, nodes[0], domains)
            yield factor_of((nodes[0].leader.id,), ("node", i), alone, len(nodes))
        for i, uses in enumerate(self.uses):
            ids = (*(n.leader.id for n, _ in self._sources(uses[0])), uses[0].node.leader.id)
            yield factor_of(ids, ("use", i), functools.partial(self._alternatives, uses[0], domains), len(uses))
        for use in self.free_results:
            source, k = self.graph.source[use.value.id]
            states = self.result_states(source, domains[source.leader.id], k)
            yield Factor((source.leader.id,), [self._finish_cost(use, states)])

    def _sources(self, use: Use) -> list[tuple[Node, Callable[[Any], States]]]:
        """The nodes from which a use may take its value, each with a function from rows to its states."""
        source, k = self.graph.source[use.value.id]
        copy = self.graph.shared.get(use.value.id)
        sources: list[tuple[Node, Callable[[Any], States]]]
        sources = [(source, functools.partial(self.result_states, source, i=k))]
        if copy is not None and copy is not use.node:
            sources.append((copy, functools.partial(self.operand_states, copy, i=0)))
        return sources

    def _alone(self, node: Node, domains: Domains) -> list[Measure]:
        return [self.node_cost(node, domains[node.leader.id])]

    def _alternatives(self, use: Use, domains: Domains) -> list[Measure]:
        """The cost of a use from each of its sources, by the decision variables of these and of its node."""
        sources, dst = self._sources(use), self.operand_states(use.node, domains[use.node.leader.id], use.operand)
        costs = [self.transfer_cost(use, states(domains[n.leader.id]), dst) for n, states in sources]
        if len(costs) > 1:
            costs = [Measure(*(np.expand_dims(x, 1 - i) for x in cost)) for i, cost in enumerate(costs)]
        return costs

    # of one assignment

    def transfers(self, assignment: Assignment, byte: float = 0.0) -> list[Transfer]:
        """The transfers of all uses and shared copies in an assignment, with the costs of their reshard plans."""
        return [t for group in self._transfer_groups(assignment, byte) for t in group]

    def _transfer_groups(self, assignment: Assignment, byte: float) -> list[list[Transfer]]:
        """The transfers, with those of repeated layers together."""

        def counted_once() -> list[list[Transfer]]:
            groups = [(some, self._cached_transfer(some[0], assignment, byte)) for some in self.uses]
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
        nodes = (*(n for n, _ in sources), use.node)
        costs = self._alternatives(use, {n.leader.id: self.row(n, assignment) for n in nodes})
        best = min(range(len(costs)), key=lambda i: (float(np.ravel(costs[i].weighted(byte, 1e-12))[0]), i))
        source, states = sources[best]
        src = states(self.row(source, assignment))
        dst = self.operand_states(use.node, self.row(use.node, assignment), use.operand)
        stays = (src == dst).all() and source.kind != "argument"
        types = self.typed(source, v, src), self.typed(use.node, v, dst)
        if stays:
            return Transfer(use, *types, bool(best), FREE)
        cost = self._use_measure(use, *self._pair_costs(use, src, dst, planned=True), dst)
        cotangent = self._use_cotangent(use, src, dst, planned=True).times(use.times)
        return Transfer(use, *types, bool(best), cost.scalars, cotangent.scalars)

    def typed(self, node: Node, v: Value, states: States) -> ShType:
        """The type of a result or operand of a node. Arguments are reduced: their gradients are summed at the end."""
        row = (unlabelled(states) if node.kind == "argument" else states)[0]
        return typed(self.graph.mesh, v.dtype, v.shape, row.tolist())

    def price(self, assignment: Assignment, byte: float = 0.0) -> Measure:
        """The cost of an assignment, with the costs of reshard plans."""
        total = FREE
        for node, *others in self.nodes:
            cost = self.node_cost(node, self.row(node, assignment))
            total += cost.scalars.times(1 + len(others), reshards=1)
        for group in self._transfer_groups(assignment, byte):
            costs = [t.cost for t in group]
            total += sum(costs, FREE)._replace(reshards=max(cost.reshards for cost in costs))
        for use in self.free_results:
            source, k = self.graph.source[use.value.id]
            total += self._finish_cost(use, self.result_states(source, self.row(source, assignment), k)).scalars
        return total
