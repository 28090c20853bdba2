"""Counts what checkpoints recompute in the backward pass, by JAX's rules and the checkpoints' policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from shtypes._compat.derivative_rules import Residuals
from shtypes.solver.items import Branches, Checkpoint, Item, Loop, Op, demand, is_value, walk


class Repeats:
    """The values that the checkpoints of a program recompute; ``residuals`` returns those of an op."""

    def __init__(self, items: Sequence[Item], residuals: Callable[[Op], Residuals]) -> None:
        self._residuals = residuals
        self.counts: Counter[int] = Counter()  # by value: how often it is recomputed
        self.needed: set[int] = set()  # residuals of ops in checkpoints
        #: Operands that are residuals, as resharded, of ops that their checkpoint does not recompute.
        self.resharded: set[tuple[int, int]] = set()
        #: By item in a checkpoint: the loops around the innermost checkpoint.
        self.around: dict[int, frozenset[Loop]] = {}
        self._residuals_by_op: dict[int, set[int]] = {}
        self._entering: dict[int, set[int]] = {}  # by checkpoint: the outer values that its recomputation needs
        self._seen: set[int] = set()  # items of visited checkpoints
        self._checkpoints: list[Checkpoint] = []  # around the current item
        self._enter(items, frozenset())

    def _enter(self, items: Sequence[Item], loops: frozenset[Loop]) -> None:
        for item in items:
            if isinstance(item, Branches):
                self._enter(item.items, loops)
            elif isinstance(item, Loop):
                self._enter(item.items, loops | {item})
            elif isinstance(item, Checkpoint):
                self.around.update((one.id, loops) for one, _ in walk(item.items))
                self._checkpoints.append(item)
                self._enter(item.items, loops)
                if not item.saves_all:
                    self._add_recomputed(item)
                self._checkpoints.pop()

    def _add_recomputed(self, checkpoint: Checkpoint) -> None:
        """Counts the values that one checkpoint recomputes."""
        needed, run = set[int](), set[int]()
        self._visit(checkpoint.items, needed, run, residuals=True)
        self.counts.update(run)
        inside = set[int]()
        for item, _ in walk(checkpoint.items):
            values = [v.id for v in (*item.results, *(item.inputs if isinstance(item, Loop) else ()))]
            inside.update(v for v in values if v in run or isinstance(item, Loop))
            if isinstance(item, Op) and item.id not in self._seen and run.isdisjoint(values):
                residuals = self._residuals_by_op.get(item.id, ())
                operands = enumerate(item.operands)
                self.resharded.update((item.id, i) for i, x in operands if is_value(x) and x.id in residuals)
            self._seen.add(item.id)
        self._entering[checkpoint.id] = needed - inside

    def _visit(self, items: Sequence[Item], needed: set[int], run: set[int], *, residuals: bool) -> None:
        """Adds to ``run`` the values recomputed for ``needed`` ones, and for the ``residuals`` of the items."""

        def take(item: Op | Checkpoint) -> None:
            if isinstance(item, Checkpoint):
                if residuals and not item.saves_all:
                    needed.update(self._entering[item.id])
                self._visit(item.items, needed, run, residuals=residuals and item.saves_all)
                return
            if residuals:
                needed.update(self._residuals_of(item))
            results = [v.id for v in item.results]
            if not needed.isdisjoint(results) and not any(c.saves(item.eqn) for c in self._checkpoints):
                needed.update(x.id for x in item.operands if is_value(x))
                run.update(results)

        demand(items, needed, take)
        nested = (one for one, _ in walk(items) if not isinstance(one, Op))
        run.update(v.id for one in nested for v in (*getattr(one, "inputs", ()), *one.results) if v.id in needed)

    def _residuals_of(self, op: Op) -> set[int]:
        if op.id not in self._residuals_by_op:
            saved = self._residuals(op)
            operands = {x.id for x, s in zip(op.operands, saved.operands, strict=True) if s and is_value(x)}
            self._residuals_by_op[op.id] = operands | {v.id for v in op.results if saved.results}
            self.needed |= self._residuals_by_op[op.id]
        return self._residuals_by_op[op.id]
