"""The decisions of a program: what each argument, equation, carry and second form of a value may do along each axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from shtypes.analysis.flops import is_convolution
from shtypes.errors import ShardingTypeError
from shtypes.solver import options as options_
from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED, UNREDUCED
from shtypes.solver.options import Option
from shtypes.solver.program import Checkpoint, Item, Loop, Op, Operand, Program, Value, is_value
from shtypes.types import dtypes
from shtypes.types.mesh import Mesh

#: The shortest layer that is looked for, in equations.
_LEAST_LAYER: Final = 4
#: Primitives whose operands the backward pass needs, and those whose results it does.
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
    """A decision: an option along each mesh axis.

    Attributes:
        id: Its number.
        kind: ``argument``, ``op``, ``shared`` (a second form of a value that several uses take), ``carry``, ``slice``,
            ``stack`` or ``result``.
        options: For each mesh axis, what it may do.
        operands: The values that it takes.
        results: The values that it makes.
        times: How often it runs.
        item: The equation or the loop that it is of.
        operand_times: How often each operand is brought to it.
        again: Whether it runs again in the backward pass.
        among: Its number among those of its kind of the loop, or among the results.
        first: The node that it is decided with: itself, or that of the first of the layers that repeat.
    """

    id: int
    kind: str
    options: tuple[tuple[Option, ...], ...]
    operands: list[Operand]
    results: list[Value]
    times: int
    item: Op | Loop | None = None
    operand_times: list[int] = field(default_factory=list)
    again: bool = False
    among: int = 0
    first: Node = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.first = self
        self.operand_times = self.operand_times or [self.times] * len(self.operands)

    @property
    def op(self) -> Op | None:
        """Its equation."""
        return self.item if isinstance(self.item, Op) else None


class Use(NamedTuple):
    """A value that a node takes."""

    node: Node
    operand: int
    value: Value
    times: int


class Graph:
    """The decisions of a program on a mesh.

    Args:
        program: The program.
        mesh: The mesh.
        grad: Whether its backward pass counts.
    """

    def __init__(self, program: Program, mesh: Mesh, *, grad: bool) -> None:
        self.program, self.mesh, self.grad = program, mesh, grad
        self.sizes = mesh.axis_sizes
        self.nodes: list[Node] = []
        self.source: dict[int, tuple[Node, int]] = {}  # what makes a value, and as which result
        self.shared: dict[int, Node] = {}  # the second forms of values
        self.saved: set[int] = set()  # values that the backward pass needs
        self.sliced: set[int] = set()  # stacks that a loop takes apart
        for v in program.inputs:
            self._node("argument", self._states(v, pending=False), [], [v], 1)
        self._items(program.items)
        self.results: dict[int, Node] = {}
        for i, v in enumerate(program.outputs):
            if is_value(v):
                self.results[i] = self._node("result", self._states(v, pending=False, to=True), [v], [], 1, among=i)
        self._second_forms()
        self.layers = self._fold()
        self.decisions = [n for n in self.nodes if n.first is n]

    def has_cotangent(self, v: Value) -> bool:
        """Whether a value has a cotangent in the program that is priced."""
        return self.grad and v.differentiated

    # nodes

    def _node(
        self,
        kind: str,
        options: Sequence[Option] | tuple[tuple[Option, ...], ...],
        operands: list[Operand],
        results: list[Value],
        times: int,
        **more: Any,
    ) -> Node:
        per_axis = options if options and not isinstance(options[0], Option) else (tuple(options),) * len(self.sizes)
        node = Node(len(self.nodes), kind, per_axis, operands, results, times, **more)  # type: ignore[arg-type]
        self.nodes.append(node)
        for i, v in enumerate(results):
            self.source[v.id] = node, i
        return node

    def _states(self, v: Value, *, pending: bool, to: bool = False, shift: int = 0) -> tuple[Option, ...]:
        """An option for each state: of a value that a node makes, or with ``to`` brings its operand to."""
        found = [REDUCED, *(SHARDED + d for d, n in enumerate(v.shape) if n > 1)]
        found += [UNREDUCED] if pending and dtypes.summable(v.dtype) and dtypes.differentiable(v.dtype) else []
        # Arguments, and what several take, are replicated with pending cotangents: these are summed once.
        found += [INVARIANT] if pending is not to and self.has_cotangent(v) else []
        return tuple(Option((s,), ()) if to else Option((), (s,)) for s in found)

    def _items(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Op):
                if any(map(is_value, item.operands)):
                    node = self._node("op", self._options(item), item.operands, item.results, item.times, item=item)
                    node.again = item.checkpointed
                    self._note_saved(item)
            elif isinstance(item, Checkpoint):
                self._items(item.items)
                inside = {v.id for op in _ops(item.items) for v in op.results}
                for op in _ops(item.items):
                    self.saved.update(x.id for x in op.operands if is_value(x) and x.id not in inside and self.grad)
            else:
                self._loop(item)

    def _loop(self, loop: Loop) -> None:
        inner = loop.times * loop.scan.length
        carries = []
        for i, (x0, v, x1, r) in enumerate(loop.carries()):
            node = self._node("carry", (), [], [v], inner, item=loop, among=i, again=loop.checkpointed)
            states = [o.results[0] for o in self._states(v, pending=True)]
            node.options = (tuple(Option((s, s), (s,)) for s in states),) * len(self.sizes)
            self.source[r.id] = node, 0
            carries.append((node, x0, x1))
            if self.has_cotangent(v) and not loop.checkpointed:
                self.saved.add(v.id)
        for i, (x, v) in enumerate(loop.slices()):
            if is_value(x):
                self.sliced.add(x.id)
                states = [o.results[0] for o in self._states(v, pending=True)]
                options = [Option((s + (s >= SHARDED),), (s,)) for s in states]
                self._node(
                    "slice",
                    options,
                    [x],
                    [v],
                    inner,
                    item=loop,
                    operand_times=[loop.times],
                    among=i,
                    again=loop.checkpointed,
                )
        self._items(loop.items)
        for node, x0, x1 in carries:
            node.operands, node.operand_times = [x0, x1], [loop.times, inner]
        for i, (y, r) in enumerate(loop.stacks()):
            if is_value(y):
                states = [o.results[0] for o in self._states(y, pending=True)]
                options = [Option((s,), (s + (s >= SHARDED),)) for s in states]
                self._node("stack", options, [y], [r], inner, item=loop, among=i)

    def _options(self, op: Op) -> tuple[tuple[Option, ...], ...]:
        """What an equation may do along each axis: asked of axes as small as can be, which say it for larger ones."""
        known = [options_.Operand(x.shape, x.dtype, x.constant) if isinstance(x, Value) else None for x in op.operands]
        found, live = [], any(map(self.has_cotangent, op.results))
        for n in self.sizes:
            small = next((p for p in range(2, n + 1) if n % p == 0), 1)
            try:
                asked = options_.options(op.eqn, small, known)
            except ShardingTypeError as error:
                error.what = f"nothing is known of `{op.name}` at {str(op.place) or 'a line of JAX'}: {error.what}"
                raise error.with_traceback(None) from None
            scale = (n - 1) / n / ((small - 1) / small) if n > 1 else 0.0
            found.append(tuple(_scaled(o, scale) for o in asked if live or INVARIANT not in o.operands))
        return tuple(found)

    def _note_saved(self, op: Op) -> None:
        """Notes what the backward pass needs: operands of products, and of what is not linear."""
        if not self.grad or op.checkpointed or not any(v.differentiated for v in op.results):
            return
        if op.name in _PRODUCTS or is_convolution(op.eqn):
            for i, x in enumerate(op.operands):
                others = [y for j, y in enumerate(op.operands) if j != i or op.name == "div"]
                if is_value(x) and any(isinstance(y, Value) and y.differentiated for y in others):
                    self.saved.add(x.id)
        elif op.name in _NEEDS_RESULTS:
            self.saved.update(v.id for v in op.results)
        elif op.name in _NEEDS_OPERANDS:
            self.saved.update(x.id for x in op.operands if is_value(x))
        elif op.name == "select_n":
            self.saved.update(x.id for x in op.operands[:1] if is_value(x))

    def _second_forms(self) -> None:
        """A second form for each value that is used several times, or in a loop that it is not made in."""
        uses: dict[int, list[Use]] = {}
        for use in self.uses():
            uses.setdefault(use.value.id, []).append(use)
        for found in uses.values():
            v = found[0].value
            times = self.source[v.id][0].times if self.source[v.id][0].kind != "carry" else found[0].times
            source = self.source[v.id][0]
            if source.kind == "carry" and v not in source.results:
                times = source.item.times  # type: ignore[union-attr]
            inside = max(use.times for use in found) > times
            if math.prod(v.shape) > 1 and (len({use.node.id for use in found}) > 1 or inside):
                node = self._node("shared", self._states(v, pending=True, to=True), [v], [], times)
                node.again = source.again or v.id in self.program.entering
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
        operands = tuple((x.shape, x.dtype, x.constant) if isinstance(x, Value) else str(x) for x in op.operands)
        return op.name, node.options[0], operands, node.times, node.again

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
                product = np.where(states[:, a] == SHARDED + d, product * size, product)
            ok &= (n % product == 0) & ((n > 0) | (product == 1))
        return ok


def _scaled(o: Option, scale: float) -> Option:
    return (
        o if not (o.sent or o.sent_backward) else o._replace(sent=o.sent * scale, sent_backward=o.sent_backward * scale)
    )


def _ops(items: Sequence[Item]) -> Iterator[Op]:
    for item in items:
        if isinstance(item, Op):
            yield item
        else:
            yield from _ops(item.items)


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
