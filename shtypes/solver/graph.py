"""The decision variables of a program: an option along each axis for each argument, op, carry and shared copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes._compat.derivative_rules import Residuals
from shtypes._compat.jaxprs import is_literal
from shtypes.analysis.flops import is_convolution
from shtypes.core.repeated import repeats
from shtypes.errors import ShardingTypeError
from shtypes.solver import options as options_
from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED, UNREDUCED, axis_states
from shtypes.solver.items import Checkpoint, Item, Loop, Op, Operand, Value, is_value, trip_count, walk
from shtypes.solver.options import Option
from shtypes.solver.program import Program
from shtypes.solver.repeats import Repeats
from shtypes.solver.reshard_prices import dims_of
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh

#: The types of some values; None of plain ones.
Types = Sequence[ShType | None]
#: The most axes that a mesh has.
_MOST_AXES: Final = 64
#: Primitives that may name mesh axes.
_NAME_AXES: Final = frozenset({"typed_call", "sharding_annotation"})
#: The most axes of which the order on a dim is a decision.
_MOST_ORDERED: Final = 3
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


@dataclass(eq=False)
class Node:
    """A decision variable, whose values are one option for each mesh axis."""

    id: int
    #: ``argument``, ``op``, ``carry``, ``slice``, ``stack``, ``result``, ``barrier``: an operand of an op that returns
    #: its operands, or ``shared``: a resharded copy of a value for several of its uses.
    kind: str
    options: tuple[tuple[Option, ...], ...]  # for each mesh axis
    operands: list[Operand]
    results: list[Value]
    times: int  # how often it runs
    item: Op | Loop | None = None  # its op or loop
    operand_times: list[int] = field(default_factory=list)  # how often each operand is resharded for it
    reruns: int = 0  # how often the backward pass recomputes it
    index: int = 0  # among the operands of the barrier, the carries, slices or stacks of the loop, or the results
    #: The node that decides for it: itself, or its counterpart in the first of repeated layers.
    leader: Node = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.leader = self
        self.operand_times = self.operand_times or [self.times] * len(self.operands)

    @property
    def checkpointed(self) -> bool:
        """Whether a checkpoint recomputes its op or loop."""
        return self.item is not None and self.item.checkpointed

    @property
    def op(self) -> Op | None:
        """Its op, if it is one."""
        return self.item if isinstance(self.item, Op) and self.kind == "op" else None

    def place(self, i: int) -> str:
        """The key of an operand in `Decisions.casts`."""
        if self.item is None:
            return f"second.{self.operands[i].id}" if self.kind == "shared" else f"result.{self.index}"
        if isinstance(self.item, Op):
            return f"{self.item.id}.{self.index + i}"
        return f"{self.item.id}.{self.kind}.{self.index}.{i}"


class Use(NamedTuple):
    """An operand of a node."""

    node: Node
    operand: int
    value: Value
    times: int

    @property
    def place(self) -> str:
        """Its key in `Decisions.casts`."""
        return self.node.place(self.operand)


class Graph:
    """The decision variables of a program on a mesh.

    Args:
        program: The program.
        mesh: The mesh.
        grad: Whether to price a backward pass.
        types: The types of its inputs, for `implicit_comm`; by default they are decision variables.
        results: With ``types``, the types of the results; None for free ones.
        seen: The types of an op where each op chooses greedily; the fallback of ops without known options.
        fixed: Types of arguments from the user, as strings; layers with other ones are not tied.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        *,
        grad: bool,
        types: Sequence[ShType | None] | None = None,
        results: Sequence[ShType | None] = (),
        seen: Callable[[Op], tuple[Types, Types] | None] = lambda op: None,
        fixed: Mapping[Value, str] | None = None,
    ) -> None:
        self.program, self.mesh, self.grad = program, mesh, grad
        self._seen, self._fixed = seen, {v.id: text for v, text in (fixed or {}).items()}
        self.is_implicit = types is not None
        self.sizes = mesh.axis_sizes
        self.nodes: list[Node] = []
        self.source: dict[int, tuple[Node, int]] = {}  # by value: its node, and the index of the result
        self.shared: dict[int, Node] = {}  # by value: its shared copy
        self.saved: set[int] = set()  # values that are residuals of the backward pass
        self.saved_operands: set[tuple[int, int]] = set()  # operands of ops that are residuals, as resharded
        self.repeats = Repeats(program.items, self._residuals_of)
        self.checkpoints = 0
        self._options_by_code: dict[Any, tuple[tuple[Option, ...], ...]] = {}
        self._bodies: dict[int, int] = {}  # by item: the loop or checkpoint whose body it is in
        self.sliced: set[int] = set()  # values that a loop slices
        for v, t in zip(program.inputs, types or [None] * len(program.inputs), strict=True):
            if not v.constant:
                free = [Option((), (s,)) for s in self._states(v, pending=False)]
                self._add("argument", free if t is None else self._single_option([], [t]), [], [v], 1)
        self._add_items(program.items)
        self.results: dict[int, Node] = {}
        for i, v in enumerate(program.outputs):
            t = results[i] if results else None
            if is_value(v) and (t is not None or not self.is_implicit):
                free = [Option((s,), ()) for s in self._states(v, pending=False)]
                options = free if t is None else self._single_option([t], [])
                self.results[i] = self._add("result", options, [v], [], 1, index=i)
        self._add_shared_copies()
        self.layers = self._tie_layers()
        self.decisions = [n for n in self.nodes if n.leader is n]

    def has_cotangent(self, v: Value) -> bool:
        """Whether a value has a cotangent in the program that is priced."""
        return self.grad and v.differentiated

    def is_argument(self, v: Value) -> bool:
        """Whether a value is an argument of the program."""
        return self.source[v.id][0].kind == "argument"

    def use_has_cotangent(self, use: Use) -> bool:
        """Whether the backward pass computes a cotangent of this use."""
        op = use.node.op
        live = op is None or any(map(self.has_cotangent, op.results))
        return self.has_cotangent(use.value) and live and self._reads(use)

    def is_live(self, node: Node) -> bool:
        """Whether results of the program depend on the values of a node, not only on their types."""
        results = node.item.results if isinstance(node.item, Op) else node.results  # one of a barrier makes all live
        return not self.program.live.isdisjoint(v.id for v in results or node.operands if isinstance(v, Value))

    def _reads(self, use: Use) -> bool:
        return self.is_live(use.node) and (use.node.op is None or use.node.op.reads[use.operand])

    def reshard_runs(self, use: Use) -> tuple[float, float]:
        """How often a value is resharded forward, and again in the backward pass, per run of its use.

        JAX hoists loop-invariant reshards out of a differentiated scan; a checkpoint repeats them in each run.
        """
        if not self._reads(use):
            return 0.0, 0.0
        item, reruns = use.node.item, self._reshard_reruns(use)
        within = item.within if item else frozenset()
        first = min(use.times, trip_count(use.value.within, within))
        if item is None or item.id not in self.repeats.around:
            return first / use.times, float(reruns)
        run = min(use.times, trip_count(use.value.within, within, self.repeats.around[item.id]))
        return first / use.times, reruns * run / use.times

    def _reshard_reruns(self, use: Use) -> int:
        """How often the backward pass repeats the reshard of a use."""
        op = use.node.op
        return use.node.reruns + (op is not None and (op.id, use.operand) in self.repeats.resharded)

    def fuses_cotangent(self, use: Use) -> bool:
        """Whether summing and resharding the cotangent of a use may be one reshard: no checkpoint is between."""
        if use.node.kind == "shared":
            return use.value.id not in self.program.entering
        return use.node.item is None or use.node.item.id not in self.repeats.around

    def body(self, use: Use) -> int:
        """The id of the loop or checkpoint in whose body a value is resharded for a use; 0 for none."""
        node = use.node
        if node.kind == "shared":
            source, entered = self.source[use.value.id][0], self.program.entering.get(use.value.id)
            inside = source.kind in ("carry", "slice") and use.value in source.results
            return entered or (0 if source.item is None else source.item.id if inside else self._bodies[source.item.id])
        if isinstance(node.item, Loop) and (node.kind == "stack" or use.operand == 1):
            return node.item.id
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
        times: int,
        **more: Any,
    ) -> Node:
        per_axis = options if isinstance(options, tuple) else self._with_orders([options] * len(self.sizes))
        node = Node(len(self.nodes), kind, per_axis, operands, results, times, **more)
        node.reruns = self.repeats.counts[results[0].id] if results else 0
        self.nodes.append(node)
        for i, v in enumerate(results):
            self.source[v.id] = node, i
        return node

    def _with_orders(self, per_axis: Sequence[Sequence[Option]]) -> tuple[tuple[Option, ...], ...]:
        """Adds the options in which an axis is more major than those before it in the mesh."""
        large = [a for a, n in enumerate(self.sizes) if n > 1]
        large = large[1:] if len(large) <= _MOST_ORDERED else []
        majors = [[o.as_major() for o in each if o.divides] if a in large else [] for a, each in enumerate(per_axis)]
        return tuple((*each, *more) for each, more in zip(per_axis, majors, strict=True))

    def _states(self, v: Value, *, pending: bool = True, copy: bool = False) -> list[int]:
        """The possible states of a value. A shared ``copy`` is invariant only for `implicit_comm`.

        Otherwise the cotangents of its uses stay pending, so that they are summed once.
        """
        states = [REDUCED, *(SHARDED + d for d, n in enumerate(v.shape) if n > 1)]
        states += [UNREDUCED] if pending and dtypes.summable(v.dtype) and dtypes.differentiable(v.dtype) else []
        return states + ([INVARIANT] if (self.is_implicit or not copy) and self.has_cotangent(v) else [])

    def _add_items(self, items: Sequence[Item], body: int = 0) -> None:
        for item in items:
            self._bodies[item.id] = body
            if isinstance(item, Op):
                if not item.results or not any(map(is_value, item.operands)):
                    continue
                if item.name == _BARRIER:
                    self._add_barrier(item)
                else:
                    self._add("op", self._options_once(item), item.operands, item.results, item.times, item=item)
                    self._add_residuals(item)
            elif isinstance(item, Checkpoint):
                self.checkpoints += 1
                self._add_items(item.items, item.id)
                ops = [op for op, _ in walk(item.items) if isinstance(op, Op)]
                inside = {v.id for op in ops for v in op.results}
                for op in ops:
                    self.saved.update(x.id for x in op.operands if is_value(x) and x.id not in inside and self.grad)
            else:
                self._add_loop(item)

    def _add_barrier(self, op: Op) -> None:
        """Adds a node for each operand: they are returned as they are, whatever the others are."""
        for i, (x, v) in enumerate(zip(op.operands, op.results, strict=True)):
            options = [Option((s,), (s,)) for s in (self._states(v) if is_value(x) else [REDUCED])]
            self._add("barrier", options, [x], [v], op.times, item=op, index=i)

    def _add_loop(self, loop: Loop) -> None:
        inner = loop.times * loop.scan.length
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

    def _options_once(self, op: Op) -> tuple[tuple[Option, ...], ...]:
        """The options of an op along each axis; equal ops of one line share them."""
        if self.is_implicit:  # they depend on the types that are seen
            return self._options(op)
        key = self.program.codes[op.id], tuple(self._operands(op)), *map(self.has_cotangent, op.results)
        return self._options_by_code.get(key) or self._options_by_code.setdefault(key, self._options(op))

    def _options(self, op: Op) -> tuple[tuple[Option, ...], ...]:
        """The options of an op along each axis, from a mesh axis of the smallest size that divides the axis's."""
        if self.is_implicit and _is_of_user(op.eqn):
            return self._seen_option(op)
        operands = self._operands(op)
        per_axis, live = [], any(map(self.has_cotangent, op.results))
        axes = self.mesh.axis_names
        for axis, n in zip(axes, self.sizes, strict=True):
            names = [axis, *(a for a in axes if a != axis)] if op.name in _NAME_AXES else ["axis"]
            small = next((p for p in range(2, n + 1) if n % p == 0), 1)
            try:
                rule_options = options_.options(op.eqn, small, operands, names)
            except ShardingTypeError as error:
                if self._seen(op) is not None:
                    return self._seen_option(op)
                error.what = f"nothing is known of `{op.name}` at {str(op.place) or 'a line of JAX'}: {error.what}"
                raise error.with_traceback(None) from error.__cause__
            scale = (n - 1) / n / ((small - 1) / small) if n > 1 else 0.0
            scaled = [o._replace(sent=o.sent * scale, sent_backward=o.sent_backward * scale) for o in rule_options]
            across = options_.way_options(op.eqn, n, operands, assuming=self.is_implicit)
            distinct: dict[Any, Option] = {}
            for o in (*scaled, *across):
                distinct.setdefault((o.operands, o.results), o)
            per_axis.append(tuple(o for o in distinct.values() if live or INVARIANT not in o.operands))
        return tuple(per_axis) if op.name in _NAME_AXES else self._with_orders(per_axis)

    def comm_per_byte(
        self, node: Node, options: Sequence[Option], axes: Sequence[int] = ()
    ) -> options_.CommPerByte | None:
        """The communication of an op with one option for each axis; see `options.comm_per_byte`.

        If ``axes`` are given, the op is replicated along the others, and axes of one size have one price.
        """
        op, mesh = node.op, self.mesh
        assert op is not None
        if axes and op.name not in _NAME_AXES:
            options = [options[a] for a in axes]
            mesh = Mesh({f"axis{i}": self.sizes[a] for i, a in enumerate(axes)})
        return options_.comm_per_byte(op.eqn, mesh, self._operands(op), options, implicit=self.is_implicit)

    def _operands(self, op: Op) -> list[options_.Operand | None]:
        """The operands of an op for `options`; None for literals."""
        live = any(map(self.has_cotangent, op.results))
        operands: list[options_.Operand | None] = []
        for x, var in zip(op.operands, op.eqn.invars, strict=True):
            if isinstance(x, Value):
                operands.append(options_.Operand(x.shape, x.dtype, x.constant, live and self.has_cotangent(x), x.place))
            else:  # an outer literal is a constant
                operands.append(None if is_literal(var) else options_.operand(var.aval, constant=True))
        return operands

    def _seen_option(self, op: Op) -> tuple[tuple[Option, ...], ...]:
        """The single option of an op with its greedy types."""
        if (types := self._seen(op)) is None:
            raise ShardingTypeError(f"nothing is known of the types of `{op.name}`")
        of_values = iter(types[0])
        return self._single_option([next(of_values) if isinstance(x, Value) else None for x in op.operands], types[1])

    def _single_option(self, operands: Types, results: Types) -> tuple[tuple[Option, ...], ...]:
        """The single option for each axis with these types."""
        sources, targets = ([_states_of(t) for t in types] for types in (operands, results))
        return tuple(
            (Option(tuple([x[a] for x in sources]), tuple([x[a] for x in targets])),) for a in range(len(self.sizes))
        )

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
                self.saved.add(op.operands[i].id)
                self.saved_operands.add((op.id, i))

    def _residuals_of(self, op: Op) -> Residuals:
        live = tuple(i for i, x in enumerate(op.operands) if isinstance(x, Value) and self.has_cotangent(x))
        if not live or not any(map(self.has_cotangent, op.results)):
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

    # repeated layers

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
            leader = node.leader = ops[i % period]
            for x, y in zip(node.operands, leader.operands, strict=True):
                if is_value(x) and is_value(y) and x is not y:
                    a, b = self.source[x.id][0], self.source[y.id][0]
                    if a.kind == b.kind == "argument" and a is not b:
                        a.leader = b.leader
                        self._tie_copies(x, y)
            for v, w in zip(node.results, leader.results, strict=True):
                self._tie_copies(v, w)

    def _tie_copies(self, v: Value, w: Value) -> None:
        if v.id in self.shared and w.id in self.shared:
            self.shared[v.id].leader = self.shared[w.id].leader

    # sizes

    def fits(self, v: Value, states: Any) -> Any:
        """Mask of the rows of states that a value can have: the axes on each dim divide it."""
        ok = np.ones(len(states), bool)
        for d, n in enumerate(v.shape):
            product = np.ones(len(states), np.int64)
            for a, size in enumerate(self.sizes):
                product = np.where(dims_of(states[:, a]) == d, product * size, product)
            ok &= (n % product == 0) & ((n > 0) | (product == 1))
        return ok


def _is_of_user(eqn: Any) -> bool:
    """Whether an equation calls a typed function of the user, whose types have no options along single axes."""
    call = eqn.params.get("call")
    while hasattr(call, "call"):
        call = call.call
    return getattr(call, "fn", None) is not None


def _states_of(t: ShType | None) -> list[int]:
    """The states of a type for each axis; reduced for a plain value."""
    if t is None:
        return [REDUCED] * _MOST_AXES
    if (states := axis_states(t)) is None:
        raise ShardingTypeError(
            f"a value is {t}: it varies, or its axes on one dim are in another order than plans have"
        )
    return states
