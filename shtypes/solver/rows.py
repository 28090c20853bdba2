"""The rows of options that decisions may take, one option for each mesh axis, and the states of values for each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.caches import Bounded
from shtypes.solver.axis_states import FRONT, INVARIANT, REDUCED, UNREDUCED
from shtypes.solver.graph import Graph
from shtypes.solver.items import Value
from shtypes.solver.nodes import Node
from shtypes.solver.option import Option
from shtypes.solver.reshard_prices import States, dims_of, in_order

#: The most tables of states, and of the rows that fit some shapes, that are remembered.
_MOST_STATES: Final = 8192

#: For each decision variable, the index of an option for each mesh axis.
Assignment = dict[int, tuple[int, ...]]
#: For each decision variable, the rows of option indices that it may take.
Domains = dict[int, Any]


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


class Rows:
    """The rows of the decisions of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.sizes = graph, graph.sizes
        arrays = {id(each): each for n in graph.decisions for each in n.options}  # many nodes share options
        by_options = {key: _OptionArrays.of(each) for key, each in arrays.items()}
        self._options = {n.id: [by_options[id(each)] for each in n.options] for n in graph.decisions}
        self._states_cache: Bounded[States] = Bounded(_MOST_STATES)
        self._rows_cache: Bounded[Any] = Bounded(_MOST_STATES)
        #: By node: the options that the user allows, for each axis.
        self.allowed: dict[int, list[Sequence[int]]] = {}

    def domain(self, node: Node, axes: Sequence[int], fixed: Assignment) -> Any:
        """The valid rows of options: all options along ``axes``, those of ``fixed`` along the others."""
        ranges = [
            every if a in axes else self._alike(node, a, fixed[node.id][a], every)
            for a, every in enumerate(self._allowed(node))
        ]
        shapes = tuple([isinstance(x, Value) and x.shape for x in (*node.results, *node.operands)])
        key = node.kind, self._sums_gradient(node), id(node.options), shapes, *map(tuple, ranges)
        return self._rows_cache.get_or_create(key, lambda: self._fitting(node, ranges))

    def _fitting(self, node: Node, ranges: Sequence[Sequence[int]]) -> Any:
        """The rows of these options whose states values can have together."""
        rows = np.array([*itertools.product(*ranges)], np.int64).reshape(-1, len(self.sizes))
        ok, fronts = np.ones(len(rows), bool), np.zeros(rows.shape, bool)
        states = [(v, self.result_states(node, rows, i)) for i, v in enumerate(node.results)]
        states += [(x, self.operand_states(node, rows, i)) for i, x in enumerate(node.operands) if isinstance(x, Value)]
        for v, each in states:
            ok &= fits(v, each, self.sizes)
            fronts |= each >= FRONT
        if node.op is not None:
            ok &= _shards_align([each for _, each in states], len(rows))
        for a, options in enumerate(node.options):  # to be the major axis of only one is the same option
            ok &= fronts[:, a] | ~np.array([o.is_major for o in options])[rows[:, a]]
        if node.kind == "result" and self.graph.is_implicit:  # in the given type, or pending
            ok &= (rows == 0).all(-1) | ((rows > 0).all(-1) & (states[0][1] == UNREDUCED).any(-1))
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
        return tuple([every[0] for every in self._allowed(node)])

    def _allowed(self, node: Node) -> Sequence[Sequence[int]]:
        return self.allowed.get(node.id) or [range(len(each)) for each in node.options]

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

        return self._states_cache.get_or_create((id(node.leader.options), i, of_operands, rows.tobytes()), states)

    @staticmethod
    def row(node: Node, assignment: Assignment) -> Any:
        """The row of a node in an assignment."""
        return np.array([assignment[node.leader.id]])

    @staticmethod
    def chosen(node: Node, row: Sequence[int]) -> list[Option]:
        """The options of a row, one for each axis."""
        return [each[i] for each, i in zip(node.leader.options, row, strict=True)]


def fits(v: Value, states: States, sizes: Sequence[int]) -> Any:
    """Mask of the rows of states that a value can have: the axes on each dim divide it."""
    ok = np.ones(len(states), bool)
    for d, n in enumerate(v.shape):
        product = np.ones(len(states), np.int64)
        for a, size in enumerate(sizes):
            product = np.where(dims_of(states[:, a]) == d, product * size, product)
        ok &= (n % product == 0) & ((n > 0) | (product == 1))
    return ok


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
