"""The decisions of a program: what each argument, equation, carry and second form of a value may do along each axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes._compat.derivative_rules import Residuals
from shtypes._compat.jaxprs import is_literal
from shtypes.analysis.flops import is_convolution
from shtypes.errors import ShardingTypeError
from shtypes.solver import options as options_
from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED, UNREDUCED, axis_states
from shtypes.solver.items import Checkpoint, Item, Loop, Op, Operand, Value, is_value, trip_count, walked
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
#: Equations that may name axes of the mesh.
_NAME_AXES: Final = frozenset({"typed_call", "sharding_annotation"})
#: On so many axes their order on a dim is a decision.
_ORDERED: Final = 3
#: The shortest layer that is looked for, in equations.
_LEAST_LAYER: Final = 4
#: Primitives whose operands live until the backward pass at the peak of a step, and those whose results do.
_NEEDS_OPERANDS: Final = frozenset(
    (
        *("square", "integer_pow", "pow", "log", "log1p", "sin", "cos", "max", "min", "abs"),
        *("gather", "sort", "cumprod", "custom_jvp_call", "custom_vjp_call"),
    )
)
_NEEDS_RESULTS: Final = frozenset(("exp", "exp2", "expm1", "tanh", "logistic", "rsqrt", "sqrt", "cbrt", "erf_inv"))
_PRODUCTS: Final = frozenset(("dot_general", "mul", "div"))


@dataclass(eq=False)
class Node:
    """A decision: an option along each mesh axis."""

    id: int
    #: ``argument``, ``op``, ``carry``, ``slice``, ``stack``, ``result``, or ``shared``: a second form of a value that
    #: several uses take.
    kind: str
    options: tuple[tuple[Option, ...], ...]  # for each mesh axis
    operands: list[Operand]
    results: list[Value]
    times: int  # how often it runs
    item: Op | Loop | None = None  # what it is of
    operand_times: list[int] = field(default_factory=list)  # how often each operand is brought to it
    again: int = 0  # how often it runs again in the backward pass
    among: int = 0  # its number among those of its kind of the loop, or among the results
    #: The node that it is decided with: itself, or that of the first of the layers that repeat.
    first: Node = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.first = self
        self.operand_times = self.operand_times or [self.times] * len(self.operands)

    @property
    def checkpointed(self) -> bool:
        """Whether what it is of is in a checkpoint that does not keep it."""
        return self.item is not None and self.item.checkpointed

    @property
    def op(self) -> Op | None:
        """Its equation."""
        return self.item if isinstance(self.item, Op) else None

    def place(self, i: int) -> str:
        """What `Decisions` calls the place of an operand."""
        if self.item is None:
            return f"second.{self.operands[i].id}" if self.kind == "shared" else f"result.{self.among}"
        return f"{self.item.id}.{i}" if self.op else f"{self.item.id}.{self.kind}.{self.among}.{i}"


class Use(NamedTuple):
    """A value that a node takes."""

    node: Node
    operand: int
    value: Value
    times: int

    @property
    def place(self) -> str:
        """What `Decisions` calls it."""
        return self.node.place(self.operand)


class Graph:
    """The decisions of a program on a mesh; with those of its backward pass, if ``grad``.

    With ``types`` of its inputs these are not to be found, and of its results only those are held to a type that have
    one in ``results``; ``seen`` says the types of an operation where each chooses for itself, which it keeps where
    nothing is known of it along one axis. Layers are not alike whose arguments have other texts in ``said``.
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
        said: Mapping[Value, str] | None = None,
    ) -> None:
        self.program, self.mesh, self.grad = program, mesh, grad
        self._seen, self._said = seen, {v.id: text for v, text in (said or {}).items()}
        self.completes = types is not None
        self.sizes = mesh.axis_sizes
        self.nodes: list[Node] = []
        self.source: dict[int, tuple[Node, int]] = {}  # what makes a value, and as which result
        self.shared: dict[int, Node] = {}  # the second forms of values
        self.saved: set[int] = set()  # values that the backward pass needs
        self.kept: set[tuple[int, int]] = set()  # operands of operations that it needs as they are taken
        self.repeats = Repeats(program.items, self._residuals_of)
        self.checkpoints = 0
        self._bodies: dict[int, int] = {}  # by an item, the number of the loop or checkpoint whose body it is in
        self.sliced: set[int] = set()  # stacks that a loop takes apart
        for v, t in zip(program.inputs, types or [None] * len(program.inputs), strict=True):
            if not v.constant:
                free = [Option((), (s,)) for s in self._states(v, pending=False)]
                self._node("argument", free if t is None else self._kept([], [t]), [], [v], 1)
        self._items(program.items)
        self.results: dict[int, Node] = {}
        for i, v in enumerate(program.outputs):
            t = results[i] if results else None
            if is_value(v) and (t is not None or not self.completes):
                free = [Option((s,), ()) for s in self._states(v, pending=False)]
                self.results[i] = self._node("result", free if t is None else self._kept([t], []), [v], [], 1, among=i)
        self._second_forms()
        self.layers = self._fold()
        self.decisions = [n for n in self.nodes if n.first is n]

    def has_cotangent(self, v: Value) -> bool:
        """Whether a value has a cotangent in the program that is priced."""
        return self.grad and v.differentiated

    def is_argument(self, v: Value) -> bool:
        """Whether a value is an argument of the program."""
        return self.source[v.id][0].kind == "argument"

    def returns(self, use: Use) -> bool:
        """Whether a cotangent comes back from a use of a value."""
        op = use.node.op
        comes = op is None or any(map(self.has_cotangent, op.results))
        return self.has_cotangent(use.value) and comes and self._reads(use)

    def is_live(self, node: Node) -> bool:
        """Whether results of the program depend on those of a node, and not on their types alone."""
        return not self.program.live.isdisjoint(v.id for v in node.results or node.operands if isinstance(v, Value))

    def _reads(self, use: Use) -> bool:
        return self.is_live(use.node) and (use.node.op is None or use.node.op.reads[use.operand])

    def runs(self, use: Use) -> tuple[float, float]:
        """How often a value is brought to a use forward, and again in the backward pass, for each run of the use.

        Out of a scan that is differentiated JAX hoists what no step changes; a checkpoint brings it again in each run.
        """
        if not self._reads(use):
            return 0.0, 0.0
        item, again = use.node.item, self._again(use)
        within = item.within if item else frozenset()
        first = min(use.times, trip_count(use.value.within, within))
        if item is None or item.id not in self.repeats.around:
            return first / use.times, float(again)
        run = min(use.times, trip_count(use.value.within, within, self.repeats.around[item.id]))
        return first / use.times, again * run / use.times

    def _again(self, use: Use) -> int:
        """How often a value is brought to a use in the backward pass, where what it is brought as is needed again."""
        op = use.node.op
        return use.node.again + (op is not None and (op.id, use.operand) in self.repeats.brought)

    def joins(self, use: Use) -> bool:
        """Whether the cotangent of a use is summed and moved at once: no checkpoint is between."""
        if use.node.kind == "shared":
            return use.value.id not in self.program.entering
        return use.node.item is None or use.node.item.id not in self.repeats.around

    def body(self, use: Use) -> int:
        """The number of the loop or checkpoint in whose body a value is brought to a use."""
        node = use.node
        if node.kind == "shared":
            made, entered = self.source[use.value.id][0], self.program.entering.get(use.value.id)
            inside = made.kind in ("carry", "slice") and use.value in made.results
            return entered or (0 if made.item is None else made.item.id if inside else self._bodies[made.item.id])
        if isinstance(node.item, Loop) and (node.kind == "stack" or use.operand == 1):
            return node.item.id
        return 0 if node.item is None else self._bodies[node.item.id]

    def is_silent(self, node: Node) -> bool:
        """Whether a scope of the program around a node, or around what makes its value, forbids communication."""
        if node.kind == "shared":
            node = self.source[node.operands[0].id][0]
        return node.op is not None and node.op.silent

    # nodes

    def _node(
        self,
        kind: str,
        options: list[Option] | tuple[tuple[Option, ...], ...],
        operands: list[Operand],
        results: list[Value],
        times: int,
        **more: Any,
    ) -> Node:
        per_axis = options if isinstance(options, tuple) else self._in_orders([options] * len(self.sizes))
        node = Node(len(self.nodes), kind, per_axis, operands, results, times, **more)
        node.again = self.repeats.counts[results[0].id] if results else 0
        self.nodes.append(node)
        for i, v in enumerate(results):
            self.source[v.id] = node, i
        return node

    def _in_orders(self, per_axis: Sequence[Sequence[Option]]) -> tuple[tuple[Option, ...], ...]:
        """Options with those in which an axis is before the ones that come before it in the mesh."""
        large = [a for a, n in enumerate(self.sizes) if n > 1]
        large = large[1:] if len(large) <= _ORDERED else []
        fronts = [[o.in_front() for o in each if o.divides] if a in large else [] for a, each in enumerate(per_axis)]
        return tuple((*each, *more) for each, more in zip(per_axis, fronts, strict=True))

    def _states(self, v: Value, *, pending: bool = True, once: bool = False) -> list[int]:
        """The states of a value; where cotangents are summed ``once``, they are pending while it is replicated."""
        found = [REDUCED, *(SHARDED + d for d, n in enumerate(v.shape) if n > 1)]
        found += [UNREDUCED] if pending and dtypes.summable(v.dtype) and dtypes.differentiable(v.dtype) else []
        return found + ([INVARIANT] if (self.completes or not once) and self.has_cotangent(v) else [])

    def _items(self, items: Sequence[Item], body: int = 0) -> None:
        for item in items:
            self._bodies[item.id] = body
            if isinstance(item, Op):
                if any(map(is_value, item.operands)):
                    self._node("op", self._options(item), item.operands, item.results, item.times, item=item)
                    self._note_saved(item)
            elif isinstance(item, Checkpoint):
                self.checkpoints += 1
                self._items(item.items, item.id)
                ops = [op for op, _ in walked(item.items) if isinstance(op, Op)]
                inside = {v.id for op in ops for v in op.results}
                for op in ops:
                    self.saved.update(x.id for x in op.operands if is_value(x) and x.id not in inside and self.grad)
            else:
                self._loop(item)

    def _loop(self, loop: Loop) -> None:
        inner = loop.times * loop.scan.length
        carries = []
        for i, (x0, v, x1, r) in enumerate(loop.carries()):
            options = [Option((s, s), (s,)) for s in self._states(v)]
            node = self._node("carry", options, [], [v], inner, item=loop, among=i)
            self.source[r.id] = node, 0
            carries.append((node, x0, x1))
            if self.has_cotangent(v) and not loop.checkpointed:
                self.saved.add(v.id)
        for i, (x, v) in enumerate(loop.slices()):
            if is_value(x):
                self.sliced.add(x.id)
                options = [Option((s + (s >= SHARDED),), (s,)) for s in self._states(v)]
                node = self._node("slice", options, [x], [v], inner, item=loop, among=i)
                node.operand_times = [loop.times]
        self._items(loop.items, loop.id)
        for node, x0, x1 in carries:
            node.operands, node.operand_times = [x0, x1], [loop.times, inner]
        for i, (y, r) in enumerate(loop.stacks()):
            if is_value(y):
                options = [Option((s,), (s + (s >= SHARDED),)) for s in self._states(y)]
                self._node("stack", options, [y], [r], inner, item=loop, among=i)

    def _options(self, op: Op) -> tuple[tuple[Option, ...], ...]:
        """What an equation may do along each axis: asked of axes as small as can be, which say it for larger ones."""
        if self.completes and _is_of_user(op.eqn):
            return self._kept_as_seen(op)
        known = self._known(op)
        found, live = [], any(map(self.has_cotangent, op.results))
        axes = self.mesh.axis_names
        for axis, n in zip(axes, self.sizes, strict=True):
            names = [axis, *(a for a in axes if a != axis)] if op.name in _NAME_AXES else ["axis"]
            small = next((p for p in range(2, n + 1) if n % p == 0), 1)
            try:
                asked = options_.options(op.eqn, small, known, names)
            except ShardingTypeError as error:
                if self._seen(op) is not None:
                    return self._kept_as_seen(op)
                error.what = f"nothing is known of `{op.name}` at {str(op.place) or 'a line of JAX'}: {error.what}"
                raise error.with_traceback(None) from error.__cause__
            scale = (n - 1) / n / ((small - 1) / small) if n > 1 else 0.0
            # What ways send depends on the number of devices.
            ways = options_.way_options(op.eqn, n, known, names, assuming=self.completes)
            kinds: dict[Any, Option] = {}
            for o in (*(o._replace(sent=o.sent * scale, sent_backward=o.sent_backward * scale) for o in asked), *ways):
                before = kinds.setdefault((o.operands, o.results), o)
                if o.sent + o.sent_backward < before.sent + before.sent_backward:
                    kinds[o.operands, o.results] = o
            found.append(tuple(o for o in kinds.values() if live or INVARIANT not in o.operands))
        return tuple(found) if op.name in _NAME_AXES else self._in_orders(found)

    def together(self, node: Node, some: Sequence[Option]) -> options_.Sent | None:
        """What the equation of a node sends that takes an option along each axis; None where it does not type so."""
        assert node.op is not None
        return options_.together(node.op.eqn, self.mesh, self._known(node.op), some, implicit=self.completes)

    def _known(self, op: Op) -> list[options_.Operand | None]:
        """What is known of the operands of an equation; None of a number that it has."""
        live = any(map(self.has_cotangent, op.results))
        found: list[options_.Operand | None] = []
        for x, var in zip(op.operands, op.eqn.invars, strict=True):
            if isinstance(x, Value):
                found.append(options_.Operand(x.shape, x.dtype, x.constant, live and self.has_cotangent(x), x.place))
            else:  # a number around it is a constant
                found.append(None if is_literal(var) else options_.operand(var.aval, constant=True))
        return found

    def _kept_as_seen(self, op: Op) -> tuple[tuple[Option, ...], ...]:
        """The one option of an operation that keeps the types that it was seen with."""
        if (types := self._seen(op)) is None:
            raise ShardingTypeError(f"nothing is known of the types of `{op.name}`")
        of_values = iter(types[0])
        return self._kept([next(of_values) if isinstance(x, Value) else None for x in op.operands], types[1])

    def _kept(self, operands: Types, results: Types) -> tuple[tuple[Option, ...], ...]:
        """The one option for each axis by which operands and results have types."""
        taken, made = ([_states_of(t) for t in types] for types in (operands, results))
        return tuple(
            (Option(tuple([x[a] for x in taken]), tuple([x[a] for x in made])),) for a in range(len(self.sizes))
        )

    def _note_saved(self, op: Op) -> None:
        """Notes what lives until the backward pass: operands of products, and of what is not linear."""
        if op.checkpointed or not any(map(self.has_cotangent, op.results)):
            return
        kept: list[int] = []
        if op.name in _PRODUCTS or is_convolution(op.eqn):
            for i in range(len(op.operands)):
                others = [y for j, y in enumerate(op.operands) if j != i or op.name == "div"]
                kept += [i] * any(isinstance(y, Value) and y.differentiated for y in others)
        elif op.name in _NEEDS_RESULTS:
            self.saved.update(v.id for v in op.results)
        elif op.name in _NEEDS_OPERANDS:
            kept += range(len(op.operands))
        elif op.name == "select_n":
            kept += [0]
        for i in kept:
            if is_value(op.operands[i]):
                self.saved.add(op.operands[i].id)
                self.kept.add((op.id, i))

    def _residuals_of(self, op: Op) -> Residuals:
        live = tuple(i for i, x in enumerate(op.operands) if isinstance(x, Value) and self.has_cotangent(x))
        if not live or not any(map(self.has_cotangent, op.results)):
            return Residuals((False,) * len(op.operands), results=False)
        return options_.residuals(op.eqn, live)

    def _second_forms(self) -> None:
        """A second form for each value that is used several times, or in a loop that it is not made in."""
        uses: dict[int, list[Use]] = {}
        for use in self.uses():
            uses.setdefault(use.value.id, []).append(use)
        for found in uses.values():
            v, source = found[0].value, self.source[found[0].value.id][0]
            times = source.times if source.kind != "carry" else found[0].times
            if source.kind == "carry" and v not in source.results:
                times = source.item.times  # type: ignore[union-attr]
            inside = max(use.times for use in found) > times
            if math.prod(v.shape) > 1 and (len({use.node.id for use in found}) > 1 or inside):
                options = [Option((s,), ()) for s in self._states(v, once=True)]
                node = self._node("shared", options, [v], [], times)
                if source.checkpointed or v.id in self.program.entering:
                    node.again = max(map(self._again, found))
                self.shared[v.id] = node

    def uses(self) -> Iterator[Use]:
        """All values that nodes take, but for those that have a second form of them."""
        for node in self.nodes:
            if node.kind != "shared":
                for i, x in enumerate(node.operands):
                    if is_value(x):
                        yield Use(node, i, x, node.operand_times[i])

    # repeated layers

    def _fold(self) -> list[tuple[int, int]]:
        """Ties layers that repeat to the first of them; how often each repeats, and of how many equations it is."""
        ops = [n for n in self.nodes if n.kind == "op"]
        codes: dict[Any, int] = {}
        sequence = np.array([codes.setdefault(self._signature(n), len(codes)) for n in ops], np.int64)
        found, left = [], [(0, len(ops))]
        while left:
            start, end = left.pop()
            covered, at, period = _repeat(sequence[start:end])
            if covered:
                self._tie(ops[start + at : start + at + covered], period)
                found.append((covered // period, period))
                left += [(start, start + at), (start + at + covered, end)]
        return found

    def _signature(self, node: Node) -> Any:
        op = node.op
        assert op is not None
        operands = tuple(
            (x.shape, x.dtype, x.constant, self._said.get(x.id)) if isinstance(x, Value) else str(x)
            for x in op.operands
        )
        return op.name, node.options, operands, node.times, node.again

    def _tie(self, ops: Sequence[Node], period: int) -> None:
        for i, node in enumerate(ops[period:]):
            first = ops[i % period]
            node.first = first
            for x, y in zip(node.operands, first.operands, strict=True):
                if is_value(x) and is_value(y) and x is not y:
                    a, b = self.source[x.id][0], self.source[y.id][0]
                    if a.kind == b.kind == "argument" and a is not b:
                        a.first = b.first
                        self._tie_second_forms(x, y)
            for v, w in zip(node.results, first.results, strict=True):
                self._tie_second_forms(v, w)

    def _tie_second_forms(self, v: Value, w: Value) -> None:
        if v.id in self.shared and w.id in self.shared:
            self.shared[v.id].first = self.shared[w.id].first

    # sizes

    def fits(self, v: Value, states: Any) -> Any:
        """Which rows of states a value can have: the axes on each dim divide it together."""
        ok = np.ones(len(states), bool)
        for d, n in enumerate(v.shape):
            product = np.ones(len(states), np.int64)
            for a, size in enumerate(self.sizes):
                product = np.where(dims_of(states[:, a]) == d, product * size, product)
            ok &= (n % product == 0) & ((n > 0) | (product == 1))
        return ok


def _is_of_user(eqn: Any) -> bool:
    """Whether an equation is a function of typed values that the user gave: what it makes follows from all types."""
    call = eqn.params.get("call")
    while hasattr(call, "call"):
        call = call.call
    return getattr(call, "fn", None) is not None


def _states_of(t: ShType | None) -> list[int]:
    """The states of a type for each axis; of a plain value it is reduced."""
    if t is None:
        return [REDUCED] * _MOST_AXES
    if (states := axis_states(t)) is None:
        raise ShardingTypeError(
            f"a value is {t}: it varies, or its axes on one dim are in another order than plans have"
        )
    return states


def _repeat(sequence: Any) -> tuple[int, int, int]:
    """The longest tandem repeat of a sequence: how much it covers, where it begins, and its period; zeros for none."""
    best = (0, 0, 0)
    for period in range(_LEAST_LAYER, len(sequence) // 2 + 1):
        same = np.concatenate(([False], sequence[:-period] == sequence[period:], [False]))
        edges = np.flatnonzero(np.diff(same.astype(np.int8)))
        for a, b in zip(edges[::2], edges[1::2], strict=True):
            covered = (b - a) // period * period + period
            if b - a >= period and covered > best[0]:
                best = (int(covered), int(a), period)
    return best
