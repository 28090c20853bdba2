"""How often what is in checkpoints runs again in the backward pass, by JAX's rules and the checkpoints' policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from shtypes._compat.derivative_rules import Residuals
from shtypes.solver.items import Checkpoint, Item, Loop, Op, demand, is_value, walked


class Repeats:
    """What the checkpoints of a program compute again; ``residuals`` says what the derivative of an equation needs."""

    def __init__(self, items: Sequence[Item], residuals: Callable[[Op], Residuals]) -> None:
        self._residuals = residuals
        self.counts: Counter[int] = Counter()  # by a value, how often what makes it runs again
        self.needed: set[int] = set()  # the values that derivatives in checkpoints need
        #: Operands that a derivative needs as they were brought to an operation that its checkpoint does not run again.
        self.brought: set[tuple[int, int]] = set()
        #: By what is in a checkpoint, the loops around the innermost that it is in.
        self.around: dict[int, frozenset[Loop]] = {}
        self._of: dict[int, set[int]] = {}  # by operations, the values that their derivatives need
        self._entering: dict[int, set[int]] = {}  # by checkpoints, the values from outside that they run again with
        self._seen: set[int] = set()  # what is in a checkpoint that was looked at
        self._checkpoints: list[Checkpoint] = []  # around what is looked at
        self._enter(items, frozenset())

    def _enter(self, items: Sequence[Item], loops: frozenset[Loop]) -> None:
        for item in items:
            if isinstance(item, Loop):
                self._enter(item.items, loops | {item})
            elif isinstance(item, Checkpoint):
                self.around.update((one.id, loops) for one, _ in walked(item.items))
                self._checkpoints.append(item)
                self._enter(item.items, loops)
                if not item.keeps_all:
                    self._run_again(item)
                self._checkpoints.pop()

    def _run_again(self, checkpoint: Checkpoint) -> None:
        """Counts what one checkpoint runs again by itself."""
        needed, run = set[int](), set[int]()
        self._repeat(checkpoint.items, needed, run, own=True)
        self.counts.update(run)
        inside = set[int]()
        for one, _ in walked(checkpoint.items):
            made = [v.id for v in (*one.results, *(one.inputs if isinstance(one, Loop) else ()))]
            inside.update(v for v in made if v in run or isinstance(one, Loop))
            if isinstance(one, Op) and one.id not in self._seen and run.isdisjoint(made):
                of_it = self._of.get(one.id, ())
                self.brought.update((one.id, i) for i, x in enumerate(one.operands) if is_value(x) and x.id in of_it)
            self._seen.add(one.id)
        self._entering[checkpoint.id] = needed - inside

    def _repeat(self, items: Sequence[Item], needed: set[int], run: set[int], *, own: bool) -> None:
        """Finds what runs again for the values that are needed, and for its ``own`` derivatives."""

        def take(item: Op | Checkpoint) -> None:
            if isinstance(item, Checkpoint):
                if own and not item.keeps_all:
                    needed.update(self._entering[item.id])
                self._repeat(item.items, needed, run, own=own and item.keeps_all)
                return
            if own:
                needed.update(self._of_op(item))
            made = [v.id for v in item.results]
            if not needed.isdisjoint(made) and not any(c.keeps(item.eqn) for c in self._checkpoints):
                needed.update(x.id for x in item.operands if is_value(x))
                run.update(made)

        demand(items, needed, take)
        loops = (one for one, _ in walked(items) if isinstance(one, Loop))
        run.update(v.id for loop in loops for v in loop.inputs if v.id in needed)

    def _of_op(self, op: Op) -> set[int]:
        if op.id not in self._of:
            kept = self._residuals(op)
            found = {x.id for x, k in zip(op.operands, kept.operands, strict=True) if k and is_value(x)}
            self._of[op.id] = found | {v.id for v in op.results if kept.results}
            self.needed |= self._of[op.id]
        return self._of[op.id]
