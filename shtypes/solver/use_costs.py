"""What the reshards of uses cost: forward, backward, and where pending results are finished."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED, UNREDUCED
from shtypes.solver.factors import FREE, Measure
from shtypes.solver.graph import Graph
from shtypes.solver.items import Value
from shtypes.solver.nodes import Use
from shtypes.solver.op_comm import OpComm
from shtypes.solver.options import is_annotation
from shtypes.solver.reshard_prices import Cost, Prices, States, cotangents, distinct, parts, unlabelled
from shtypes.solver.rows import fits
from shtypes.solver.terms import Table

#: The prices of reshards from each row to the same row.
Price = Callable[[States, States], Cost]
#: Seconds that exclude an option.
EXCLUDED: Final = 1e9
#: A relative cost below that of any work, as a tie-breaker.
_TIE_BREAKER: Final = 1e-10


class UseCosts(OpComm):
    """The costs of the uses of a graph.

    Args:
        graph: The decision variables.
        prices: Of reshards.
        weights: Of communication, forward and backward.
        by_bytes: Whether the objective is bytes sent, with computing as a tie-breaker.
    """

    def __init__(self, graph: Graph, prices: Prices, weights: tuple[float, float], *, by_bytes: bool) -> None:
        super().__init__(graph, prices)
        self.weights, self.by_bytes = weights, by_bytes
        self._pair_cache: dict[Any, tuple[Table, Table, Table]] = {}

    def _reshard_cost(self, v: Value, src: States, dst: States, times: tuple[float, float], price: Price) -> Measure:
        """The cost of a reshard, for each pair of rows, that runs so often forward and again in the backward pass."""
        (forward_weight, backward_weight), (first, reruns), cost = self.weights, times, price(src, dst)
        seconds = (forward_weight * first + backward_weight * reruns) * (cost.seconds * v.nbytes + cost.latency)
        return FREE._replace(comm=seconds, sent=(first + reruns) * cost.sent * v.nbytes)

    def _cotangent_cost(self, v: Value, src: States, dst: States, price: Price, may_fuse: Any = True) -> Measure:
        """The cost of the reshard of the cotangent.

        That of an argument and that of the gradient to the argument's type are one if it ``may_fuse``, and the
        cotangent takes no more memory than its cast.
        """
        cost = true = price(cotangents(dst), cotangents(src))
        if self.graph.sums_gradient(v):
            cast = cotangents(unlabelled(src))
            first, second = price(cotangents(dst), cast), price(cast, cotangents(src))
            # A replicated gradient sends nothing; at that price each device would do all of the work.
            may_fuse = may_fuse & (parts(cotangents(dst), self.sizes) >= parts(cast, self.sizes))
            replicated = (src == INVARIANT) & np.isin(dst, (INVARIANT, UNREDUCED))
            true = _gradient_cost(cost, first, second, may_fuse)
            cost = _gradient_cost(cost, first, second, may_fuse & ~replicated.any(-1))
        return FREE._replace(comm=self.weights[1] * (cost.seconds * v.nbytes + cost.latency), sent=true.sent * v.nbytes)

    def transfer_cost(self, use: Use, src: States, dst: States, *, from_copy: bool = False) -> Measure:
        """The cost of the reshard of a use, forward and backward, from each row of ``src`` to each of ``dst``.

        ``from_copy`` says whether it starts from a shared copy. Without the bytes sent, which are those of the planned
        reshard.
        """
        (one, src_index), (other, dst_index) = distinct(src), distinct(dst)
        key = (
            use.value.nbytes,
            self.graph.sums_gradient(use.value),
            one.tobytes(),
            other.tobytes(),
            self.graph.use_has_cotangent(use),
            self.graph.reshard_runs(use),
            self.graph.fuses_cotangent(use),
        )
        if key not in self._pair_cache:
            pairs = self._pair_costs(use, np.repeat(one, len(other), 0), np.tile(other, (len(one), 1)))
            self._pair_cache[key] = tuple([t.reshape(len(one), len(other)) for t in pairs])  # type: ignore[assignment]
        seconds, sent, moved = self._pair_cache[key]
        if use.node.op is not None and is_annotation(use.node.op.eqn):  # a reshard's operand is not resharded for it
            seconds = seconds + moved * EXCLUDED
        elif self.graph.in_no_comm(use.node):
            seconds = seconds + (sent > 0) * EXCLUDED
        cost = self._use_measure(use, seconds, sent, moved, other, from_copy=from_copy)._replace(sent=0.0)
        return cost.map(lambda t: t.take(src_index, 0).take(dst_index, 1))

    def _use_measure(self, use: Use, seconds: Any, sent: Any, moved: Any, dst: States, *, from_copy: bool) -> Measure:
        resharded, *unchanged = self._saved_bytes(use)
        saved = np.where(moved, resharded, unchanged[from_copy])
        memory = saved / parts(dst, self.sizes) if resharded else 0.0
        return Measure(0.0, seconds * use.times, memory, sent * use.times, moved * (sent > 0))

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

    def _saved_bytes(self, use: Use) -> tuple[float, float, float]:
        """Bytes of the global array for the backward pass: of a reshard's result, the value, and its shared copy.

        A residual of several uses counts in each by its share. A copy that is read in a loop lives as long as that.
        """
        v, node, graph = use.value, use.node, self.graph
        if node.kind == "slice":
            return v.nbytes * use.times * (2 if graph.has_cotangent(v) else 1), 0.0, 0.0
        if node.kind == "shared" and v.id in graph.hoisted and not graph.times_saved[v.id]:
            return v.nbytes * use.times, 0.0, 0.0
        if node.op is None or (node.op.id, use.operand) not in graph.saved_operands or node.reruns:
            return 0.0, 0.0, 0.0
        n = v.nbytes * use.times
        share = n / graph.times_saved[v.id]
        return n, 0.0 if graph.is_residual(v) else share, share

    def _finish_cost(self, use: Use, states: States) -> Measure:
        """The cost of resharding a pending result along its pending axes to its cheapest type without pending sums."""
        places = [REDUCED, *(SHARDED + d for d in range(len(use.value.shape)))]
        every = np.array([*itertools.product(places, repeat=len(self.sizes))])
        rows, which = distinct(states)
        comm = np.zeros(len(rows))
        for k in np.flatnonzero((rows == UNREDUCED).any(-1)):
            dst = np.unique(np.where(rows[k] == UNREDUCED, every, rows[k]), axis=0)
            comm[k] = self.transfer_cost(use, rows[[k]], dst[fits(use.value, dst, self.sizes)]).comm.min()
        return FREE._replace(comm=comm[which])


def _gradient_cost(fused: Cost, first: Cost, second: Cost, may_fuse: Any) -> Cost:
    """The cost of two reshards of a gradient: to the cotangent's type, then to the argument's.

    They are one ``fused`` reshard if the first sends nothing and the fused one is no more expensive.
    """
    one = may_fuse & (first.sent == 0) & (fused.sent <= second.sent) & (fused.launches <= second.launches)
    return Cost(*(np.where(one, f, a + b) for f, a, b in zip(fused, first, second, strict=True)))
