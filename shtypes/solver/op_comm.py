"""What ops send by themselves: along each mesh axis, or priced together where that is not the sum over the axes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from shtypes.analysis.flops import is_convolution
from shtypes.caches import Bounded
from shtypes.solver.axis_states import REDUCED
from shtypes.solver.graph import Graph
from shtypes.solver.items import is_value
from shtypes.solver.nodes import Node
from shtypes.solver.option import FORBIDDEN, CommPerByte
from shtypes.solver.options import is_annotation
from shtypes.solver.reshard_prices import Prices, parts
from shtypes.solver.rows import Assignment, Domains, Rows
from shtypes.solver.terms import Table

#: The indices of options along one axis or several, each with the axis.
Part = tuple[tuple[int, int], ...]
#: The tolerance of bytes, which are rounded.
_ROUNDED: Final = 0.5


class OpComm(Rows):
    """The communication of the ops of a graph, by their rows; ``prices`` has the links."""

    def __init__(self, graph: Graph, prices: Prices) -> None:
        super().__init__(graph)
        self.prices = prices
        #: By decision and row: the communication of ops that is not the sum over the axes.
        self._row_comm: dict[int, dict[tuple[int, ...], CommPerByte]] = {}
        #: The same by the ways, or the options across shards along several axes, of those that an assignment had.
        self._across_comm: dict[Any, CommPerByte] = {}
        #: By decision: what an op refuses, whatever its options along the other axes.
        self._refused: dict[int, set[Part]] = {}
        self._changes: Counter[int] = Counter()  # by decision: of its prices
        self._comm_cache: Bounded[tuple[Any, Any]] = Bounded()

    def form(self, node: Node) -> Any:
        """What the communication of a node depends on: the same for ops that differ in the values that they take."""
        values, leader = [*map(id, node.operands)], node.leader
        changes = self._changes[leader.id]
        return id(leader.options), *map(values.index, values), changes and (leader.id, changes)

    def domain(self, node: Node, axes: Sequence[int], fixed: Assignment) -> Any:
        """The valid rows that an op can compute; see `Rows.domain`."""
        rows = super().domain(node, axes, fixed)
        if node.op is None or is_annotation(node.op.eqn):
            return rows
        allowed = np.isfinite(self.comm_per_byte(node, rows)[0][:, :, 0]).all(0)
        return rows[allowed] if allowed.any() else rows

    def comm_per_byte(self, node: Node, rows: Any) -> tuple[Any, Any]:
        """The communication of an op along each axis, forward and backward, and its work, for each row.

        If it is not the sum over the axes, all of it is along the slowest one: at least the most along one axis, until
        it is priced. Where ops choose for themselves, it is infinite for what sends more forward than a gather.
        """
        key = self.form(node), rows.tobytes()
        return self._comm_cache.get_or_create(key, lambda: self._new_comm(node, rows))

    def _new_comm(self, node: Node, rows: Any) -> tuple[Any, Any]:
        options = self._options[node.leader.id]
        per_axis = np.stack([o.sent[rows[:, a]] for a, o in enumerate(options)])
        work = np.max([o.work[rows[:, a]] for a, o in enumerate(options)], 0)  # fixed parts are not done twice
        row_comm = self._row_comm.get(node.leader.id, {})
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
            sent = per_axis[:, :, 0].sum(0) * self.local_bytes(node, rows)
            per_axis[slowest, sent > self._gathered(node, rows) + _ROUNDED] = FORBIDDEN[:2]
        for part in self._refused.get(node.leader.id, ()):
            per_axis[slowest, np.all([rows[:, a] == k for a, k in part], 0)] = FORBIDDEN[:2]
        return per_axis, work

    def local_bytes(self, node: Node, rows: Any) -> Table:
        """The bytes on each device to which what an op sends is in proportion: of the first result.

        Of a convolution those of its first operand, of which it sends borders: a sharded kernel cuts the result alone.
        """
        v, states = node.results[0], self.result_states(node, rows, 0)
        if node.op is not None and is_convolution(node.op.eqn) and is_value(x := node.operands[0]):
            v, states = x, self.operand_states(node, rows, 0)
        return v.nbytes / parts(states, self.sizes)

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
        self._changes.update(changed)
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
        changed = set()
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
                self._note_refused(node, row)
                changed.add(node.id)
            elif not np.allclose(sent[:2], self.comm_per_byte(node, np.array([row]))[0][:, 0].sum(0), rtol=1e-3):
                row_comm[row] = sent
                changed.add(node.id)
        self._changes.update(changed)
        return bool(changed)

    def _note_refused(self, node: Node, row: Sequence[int]) -> None:
        """Notes the options along one axis, and the pairs of a row, that an op refuses with no others."""
        parts: list[Part] = [((a, k),) for a, options in enumerate(node.options) for k in range(1, len(options))]
        parts += itertools.combinations([(a, k) for a, k in enumerate(row) if k], 2)
        for part in parts:
            alone = [dict(part).get(a, 0) for a in range(len(row))]
            if self.graph.comm_per_byte(node, self.chosen(node, alone)) in (None, FORBIDDEN):
                self._refused.setdefault(node.id, set()).add(part)
