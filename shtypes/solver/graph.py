"""The decision variables of a program: an option along each axis for each argument, op, carry and shared copy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from shtypes._compat.derivative_rules import Residuals
from shtypes.analysis.flops import is_convolution
from shtypes.core.repeated import repeats
from shtypes.solver import options as options_
from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED, UNREDUCED
from shtypes.solver.items import (
    Branches,
    Checkpoint,
    Item,
    Loop,
    Op,
    Operand,
    Value,
    is_value,
    lifetimes,
    trip_count,
    walk,
)
from shtypes.solver.nodes import Node, Use
from shtypes.solver.op_options import OpOptions, Types
from shtypes.solver.option import Option
from shtypes.solver.program import Program
from shtypes.solver.repeats import Repeats
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh

#: Primitives whose operands live until the backward pass at the peak of a step, and those whose results do.
_NEEDS_OPERANDS: Final = frozenset(
    (
        *("square", "integer_pow", "pow", "log", "log1p", "sin", "cos", "max", "min", "abs"),
        *("gather", "sort", "cumprod", "custom_jvp_call", "custom_vjp_call"),
    )
)
_NEEDS_RESULTS: Final = frozenset(("exp", "exp2", "expm1", "tanh", "logistic", "rsqrt", "sqrt", "cbrt", "erf_inv"))
_PRODUCTS: Final = frozenset(("dot_general", "mul", "div"))
#: The primitive that returns its operands.
_BARRIER: Final = "optimization_barrier"


class Graph(OpOptions):
    """The decision variables of a program on a mesh.

    Args:
        program: The program.
        mesh: The mesh.
        grad: Whether to price a backward pass.
        types: The types of its inputs, for `implicit_comm`; by default they are decision variables.
        results: With ``types``, of each result its type, or None for any, and whether it may be pending; or None for
            the type that its op gives it.
        seen: The types of an op where each op chooses greedily; the fallback of ops without known options.
        fixed: Types of arguments from the user, as strings. Layers with others, or other ``types``, are not tied.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        *,
        grad: bool,
        types: Sequence[ShType | None] | None = None,
        results: Sequence[tuple[ShType | None, bool] | None] = (),
        seen: Callable[[Op], tuple[Types, Types] | None] = lambda op: None,
        fixed: Mapping[Value, str] | None = None,
    ) -> None:
        super().__init__(program, mesh, grad=grad, is_implicit=types is not None, seen=seen)
        of_inputs: Mapping[Value, Any] = fixed or dict(zip(program.inputs, types or (), strict=False))
        self._fixed = {v.id: t for v, t in of_inputs.items()}
        self.nodes: list[Node] = []
        self._distinct: dict[Any, Any] = {}  # the options of all nodes but ops: equal ones are one object
        self.source: dict[int, tuple[Node, int]] = {}  # by value: its node, and the index of the result
        self.shared: dict[int, Node] = {}  # by value: its shared copy
        self.saved: set[int] = set()  # values that are residuals of the backward pass in the states of their results
        self.saved_operands: set[tuple[int, int]] = set()  # operands of ops that are residuals, as resharded
        self.times_saved: Counter[int] = Counter()  # by value: the number of these operands that it is
        self.lifetimes = lifetimes(program.items)  # by value
        self.hoisted: set[int] = set()  # values with a shared copy that lives as long as a loop
        self.repeats = Repeats(program.items, self._residuals_of)
        self.checkpoints = 0
        self._bodies: dict[int, int] = {}  # by item: the loop, branch or checkpoint whose body it is in
        self.sliced: set[int] = set()  # values that a loop slices
        for v, t in zip(program.inputs, types or [None] * len(program.inputs), strict=True):
            if not v.constant:
                free = [Option((), (s,)) for s in self._states(v, pending=False)]
                self._add("argument", free if t is None else self.single_option([], [t]), [], [v], 1)
        self._add_items(program.items)
        self.results: dict[int, Node] = {}
        for i, v in enumerate(program.outputs):
            given = results[i] if results else None
            t, pending = given or (None, False)
            if is_value(v) and (given is not None or not self.is_implicit):
                free = [Option((s,), ()) for s in self._states(v, pending=pending)]
                options = self.with_orders([free] * len(self.sizes))
                if t is not None:
                    of_type = self.single_option([t], [])
                    options = tuple((*one, *more * pending) for one, more in zip(of_type, options, strict=True))
                self.results[i] = self._add("result", options, [v], [], 1, index=i)
        self._add_shared_copies()
        self.again = self._tie_equal()
        self.layers = self._tie_layers()
        for n in self.nodes:  # one that is tied may have been tied to another since
            while n.leader is not n.leader.leader:
                n.leader = n.leader.leader
        self.decisions = [n for n in self.nodes if n.leader is n]

    def sums_gradient(self, v: Value) -> bool:
        """Whether a value is an argument whose gradient is summed first, and then resharded to its type."""
        return self.source[v.id][0].kind == "argument" and not self.is_implicit

    def is_residual(self, v: Value) -> bool:
        """Whether a value lives until the backward pass whatever its uses, as an argument, or a slice of one."""
        source = self.source[v.id][0]
        operand = source.operands[0] if source.kind == "slice" else None
        of_argument = isinstance(operand, Value) and self.source[operand.id][0].kind == "argument"
        return v.id in self.saved or source.kind == "argument" or of_argument

    def use_has_cotangent(self, use: Use) -> bool:
        """Whether the backward pass computes a cotangent of this use."""
        op = use.node.op
        has = self.has_cotangent(use.value) if op is None else self.operand_has_cotangent(op, use.operand)
        return has and self._reads(use)

    def is_live(self, node: Node) -> bool:
        """Whether results of the program depend on the values of a node, not only on their types."""
        results = node.item.results if isinstance(node.item, Op) else node.results  # one of a barrier makes all live
        return not self.program.live.isdisjoint(v.id for v in results or node.operands if isinstance(v, Value))

    def _reads(self, use: Use) -> bool:
        if use.final is not None:
            return use.final.id in self.program.live
        return self.is_live(use.node) and (use.node.op is None or use.node.op.reads[use.operand])

    def reshard_runs(self, use: Use) -> tuple[float, float]:
        """How often a value is resharded forward, and again in the backward pass, per run of its use.

        JAX hoists loop-invariant reshards out of a differentiated scan; a checkpoint repeats them in each run.
        """
        if not self._reads(use):
            return 0.0, 0.0
        item, reruns = use.node.item, self._reshard_reruns(use)
        within = use.loop.inside if use.loop else item.within if item else frozenset()
        first = min(use.times, trip_count(use.value.within, within))
        if item is None or item.id not in self.repeats.around:
            return first / use.times, float(reruns)
        run = min(use.times, trip_count(use.value.within, within, self.repeats.around[item.id]))
        return first / use.times, reruns * run / use.times

    def _reshard_reruns(self, use: Use) -> int:
        """How often the backward pass repeats the reshard of a use."""
        op, reruns = use.node.op, use.node.reruns if use.final is None else self.repeats.counts[use.final.id]
        return reruns + (op is not None and (op.id, use.operand) in self.repeats.resharded)

    def fuses_cotangent(self, use: Use) -> bool:
        """Whether summing and resharding the cotangent of a use may be one reshard: no checkpoint is between."""
        if use.node.kind == "shared":
            return use.value.id not in self.program.entering
        return use.node.item is None or use.node.item.id not in self.repeats.around

    def body(self, use: Use) -> int:
        """The id of the loop, branch or checkpoint in whose body a value is resharded for a use; 0 for none."""
        node = use.node
        if isinstance(node.item, Branches):
            return id(node.item.branches[use.operand])
        if node.kind == "shared":
            source, entered = self.source[use.value.id][0], self.program.entering.get(use.value.id)
            inside = source.kind in ("carry", "slice") and use.value in source.results
            return entered or (0 if source.item is None else source.item.id if inside else self._bodies[source.item.id])
        if use.loop is not None:
            return use.loop.id
        return 0 if node.item is None else self._bodies[node.item.id]

    def in_no_comm(self, node: Node) -> bool:
        """Whether a node, or the source of a shared copy, is in a `no_comm` scope of the program."""
        if node.kind == "shared":
            node = self.source[node.operands[0].id][0]
        return isinstance(node.item, Op) and node.item.no_comm

    # nodes

    def _add(
        self,
        kind: str,
        options: list[Option] | tuple[tuple[Option, ...], ...],
        operands: list[Operand],
        results: list[Value],
        times: float,
        **more: Any,
    ) -> Node:
        per_axis = options if isinstance(options, tuple) else self.with_orders([options] * len(self.sizes))
        per_axis = per_axis if kind == "op" else self._distinct.setdefault(per_axis, per_axis)
        node = Node(len(self.nodes), kind, per_axis, operands, results, times, **more)
        node.reruns = self.repeats.counts[results[0].id] if results else 0
        self.nodes.append(node)
        for i, v in enumerate(results):
            self.source[v.id] = node, i
        return node

    def _states(self, v: Value, *, pending: bool = True, copy: bool = False) -> list[int]:
        """The possible states of a value. A shared ``copy`` is invariant only for `implicit_comm`.

        Otherwise the cotangents of its uses stay pending, so that they are summed once.
        """
        states = [REDUCED, *(SHARDED + d for d, n in enumerate(v.shape) if n >= min(self.sizes, default=1))]
        states += [UNREDUCED] if pending and dtypes.summable(v.dtype) and dtypes.differentiable(v.dtype) else []
        return states + ([INVARIANT] if (self.is_implicit or not copy) and self.has_cotangent(v) else [])

    def _add_items(self, items: Sequence[Item], body: int = 0) -> None:
        for item in items:
            self._bodies[item.id] = body
            if isinstance(item, Op):
                if not any(map(is_value, item.results)):
                    continue
                if item.name == _BARRIER:
                    self._add_barrier(item)
                else:
                    self._add("op", self.options_of(item), item.operands, item.results, item.times, item=item)
                    self._add_residuals(item)
            elif isinstance(item, Checkpoint):
                self.checkpoints += 1
                self._add_items(item.items, item.id)
                ops = [op for op, _ in walk(item.items) if isinstance(op, Op)]
                inside = {v.id for op in ops for v in op.results}
                for op in ops:
                    self.saved.update(x.id for x in op.operands if is_value(x) and x.id not in inside and self.grad)
            elif isinstance(item, Branches):
                self._add_branches(item)
            else:
                self._add_loop(item)

    def _add_barrier(self, op: Op) -> None:
        """Adds a node for each operand: they are returned as they are, whatever the others are."""
        for i, (x, v) in enumerate(zip(op.operands, op.results, strict=True)):
            options = [Option((s,), (s,)) for s in (self._states(v) if is_value(x) else [REDUCED])]
            self._add("barrier", options, [x], [v], op.times, item=op, index=i)

    def _add_loop(self, loop: Loop) -> None:
        inner = loop.times * loop.steps
        carries = []
        for i, (x0, v, x1, r) in enumerate(loop.carries()):
            options = [Option((s, s), (s,)) for s in self._states(v)]
            node = self._add("carry", options, [], [v], inner, item=loop, index=i)
            self.source[r.id] = node, 0
            carries.append((node, x0, x1))
            if self.has_cotangent(v) and not loop.checkpointed:
                self.saved.add(v.id)
        for i, (x, v) in enumerate(loop.slices()):
            if is_value(x):
                self.sliced.add(x.id)
                options = [Option((s + (s >= SHARDED),), (s,)) for s in self._states(v)]
                node = self._add("slice", options, [x], [v], inner, item=loop, index=i)
                node.operand_times = [loop.times]
        self._add_items(loop.items, loop.id)
        for node, x0, x1 in carries:
            node.operands, node.operand_times = [x0, x1], [loop.times, inner]
        for i, (y, r) in enumerate(loop.stacks()):
            if is_value(y):
                options = [Option((s,), (s + (s >= SHARDED),)) for s in self._states(y)]
                self._add("stack", options, [y], [r], inner, item=loop, index=i)

    def _add_branches(self, item: Branches) -> None:
        for branch in item.branches:
            self._add_items(branch.items, id(branch))
        for i, (xs, r) in enumerate(item.joins()):
            options = [Option((s,) * len(xs), (s,)) for s in self._states(r)]
            self._add("join", options, [*xs], [r], item.times, item=item, index=i)

    def _add_residuals(self, op: Op) -> None:
        """Adds the residuals of an op: operands of products, operands or results of nonlinear ops."""
        if op.checkpointed or not any(map(self.has_cotangent, op.results)):
            return
        residuals: list[int] = []
        if op.name in _PRODUCTS or is_convolution(op.eqn):
            for i in range(len(op.operands)):
                others = [y for j, y in enumerate(op.operands) if j != i or op.name == "div"]
                residuals += [i] * any(isinstance(y, Value) and y.differentiated for y in others)
        elif op.name in _NEEDS_RESULTS:
            self.saved.update(v.id for v in op.results)
        elif op.name in _NEEDS_OPERANDS:
            residuals += range(len(op.operands))
        elif op.name == "select_n":
            residuals += [0]
        for i in residuals:
            if is_value(op.operands[i]):
                self.times_saved[op.operands[i].id] += 1
                self.saved_operands.add((op.id, i))

    def _residuals_of(self, op: Op) -> Residuals:
        live = tuple(i for i in range(len(op.operands)) if self.operand_has_cotangent(op, i))
        if not live:
            return Residuals((False,) * len(op.operands), results=False)
        return options_.residuals(op.eqn, live)

    def _add_shared_copies(self) -> None:
        """Adds a shared copy of each value with several uses, or with a use in an inner loop."""
        uses: dict[int, list[Use]] = {}
        for use in self.uses():
            uses.setdefault(use.value.id, []).append(use)
        for uses_of_v in uses.values():
            v = uses_of_v[0].value
            source = self.source[v.id][0]
            times = source.times if source.kind != "carry" else uses_of_v[0].times
            if source.kind == "carry" and v not in source.results:
                times = source.item.times  # type: ignore[union-attr]
            inside = max(use.times for use in uses_of_v) > times
            if math.prod(v.shape) > 1 and (len({use.node.id for use in uses_of_v}) > 1 or inside):
                self.hoisted.update([v.id] * inside)
                options = [Option((s,), ()) for s in self._states(v, copy=True)]
                node = self._add("shared", options, [v], [], times)
                if source.checkpointed or v.id in self.program.entering:
                    node.reruns = max(map(self._reshard_reruns, uses_of_v))
                self.shared[v.id] = node

    def uses(self) -> Iterator[Use]:
        """All uses of values by nodes other than shared copies."""
        for node in self.nodes:
            if node.kind != "shared":
                for i, x in enumerate(node.operands):
                    if is_value(x):
                        yield Use(node, i, x, node.operand_times[i])

    # equal ops, and repeated layers

    def _tie_equal(self) -> set[int]:
        """Ties ops to the equal ones before them, which alone are evaluated; returns the ids of their nodes."""
        tied = set[int]()
        for node in self.nodes:
            if node.op is not None and (before := self.program.equal.get(node.results[0].id)) is not None:
                first, _ = self.source[before]
                if (node.options, node.reruns) == (first.options, first.reruns):
                    tied.add(node.id)
                    self._tie_to(node, first)
        return tied

    def _tie_layers(self) -> list[tuple[int, int]]:
        """Ties repeated layers to the first of them; returns the count and number of ops of each such layer."""
        ops = [n for n in self.nodes if isinstance(n.item, Op)]
        _, found = repeats([self._signature(n) for n in ops])
        for steps, period in found:
            self._tie([ops[i] for i in steps], period)
        return [(len(steps) // period, period) for steps, period in found]

    def _signature(self, node: Node) -> Any:
        assert isinstance(node.item, Op)
        operands = tuple(
            (x.shape, x.dtype, x.constant, self._fixed.get(x.id)) if isinstance(x, Value) else str(x)
            for x in node.operands
        )
        return node.item.name, node.options, operands, node.times, node.reruns

    def _tie(self, ops: Sequence[Node], period: int) -> None:
        for i, node in enumerate(ops[period:]):
            first = ops[i % period]
            for x, y in zip(node.operands, first.operands, strict=True):
                if is_value(x) and is_value(y) and x is not y:
                    a, b = self.source[x.id][0], self.source[y.id][0]
                    if a.kind == b.kind == "argument" and a is not b:
                        a.leader = b.leader
                        self._tie_copies(x, y)
            self._tie_to(node, first)

    def _tie_to(self, node: Node, first: Node) -> None:
        node.leader = first.leader
        for v, w in zip(node.results, first.results, strict=True):
            self._tie_copies(v, w)

    def _tie_copies(self, v: Value, w: Value) -> None:
        if v.id in self.shared and w.id in self.shared:
            self.shared[v.id].leader = self.shared[w.id].leader
