"""The graph of one device's steps in a lowered program, with the bytes of their results, and bodies inside.

It is the program that `jit` compiles, with shapes of shards. As in the compiler, calls are inlined, dead code is
removed, and common subexpressions are merged.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shtypes._compat.jaxprs import ClosedCall, Cond, Scan, While, is_literal, jaxpr_of
from shtypes.core.local import Local
from shtypes.core.operation import Operation, applied_by, direction_of
from shtypes.core.reshard import Reshard
from shtypes.core.shard_fn import program_of
from shtypes.traced.coverage import control_of
from shtypes.traced.equations import Needs, SourceLine, Walk, place_of
from shtypes.types import ShType, dtypes


class Kind(enum.Enum):
    """How a step uses the memory of its operands and results."""

    VIEW = "its result is its operand in another shape"
    BARRIER = "its results are its operands, and nothing is fused across it"
    MAP = "it computes each element on demand, from few others"
    COSTLY = "the same, but too dear to be done twice"
    FOLD = "it computes its operand as it reads it, and writes its result"
    STORE = "it computes its second operand as it reads it, and writes that into the first"
    SEND = "it adds up over devices; neighbours are done at once"
    KERNEL = "it reads and writes memory"
    LOOP = "it repeats a body"
    BRANCH = "it runs one of its bodies"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VIEWS: Final = _names(
    "reshape squeeze expand_dims stop_gradient copy pvary pcast name bitcast_convert_type sharding_constraint "
    "reduce_precision mesh_cast"
)
_MAPS: Final = _names(
    "add sub mul neg max min select_n and or xor not eq ne lt le gt ge convert_element_type abs sign floor ceil "
    "round clamp iota broadcast_in_dim transpose slice dynamic_slice concatenate pad rev square integer_pow "
    "add_any is_finite shift_left shift_right_logical shift_right_arithmetic real imag complex conj nextafter "
    "axis_index sin cos tan population_count clz"
)
_COSTLY: Final = _names(
    "exp exp2 expm1 log log1p tanh logistic asin acos atan atan2 sinh cosh asinh acosh atanh rsqrt sqrt cbrt div rem "
    "pow gather erf erfc erf_inv lgamma digamma"
)
#: Primitives of both kinds that read their operands at other places than they write.
_MOVES: Final = _names("broadcast_in_dim transpose slice dynamic_slice concatenate pad rev gather")


def kind_of(eqn: Any) -> Kind:
    """The memory use of an equation without bodies, of a plain or a typed program."""
    name, operation = eqn.primitive.name, applied_by(eqn)
    if isinstance(operation, Reshard) and not operation.forward_comm():
        return Kind.VIEW if operation.src.local_shape == operation.dst.local_shape else Kind.MAP
    if name == "optimization_barrier":
        return Kind.BARRIER
    if name in _VIEWS or (name in ("broadcast_in_dim", "convert_element_type") and _same(eqn)):
        return Kind.VIEW
    if name in _MAPS or (name == "div" and _by_a_number(eqn)):
        return Kind.MAP
    if name in _COSTLY:
        return Kind.COSTLY
    if name.startswith("reduce_") and name != "reduce_scatter":
        return Kind.FOLD
    if name == "dynamic_update_slice":
        return Kind.STORE
    return Kind.SEND if name in ("psum", "psum_invariant", "pmax", "pmin") else Kind.KERNEL


def _by_a_number(eqn: Any) -> bool:
    """Whether a division is one of floats by a number, for which XLA multiplies by the reciprocal."""
    divisor = eqn.invars[1].aval
    return not divisor.shape and dtypes.differentiable(dtypes.from_numpy(divisor.dtype))


def _same(eqn: Any) -> bool:
    """Whether the result equals the operand up to its shape."""
    x, y = eqn.invars[0].aval, eqn.outvars[0].aval
    return math.prod(x.shape) == math.prod(y.shape) and bool(x.dtype == y.dtype)


def bytes_of(t: Any) -> int:
    """Bytes of each device's shard of a value, typed or plain."""
    if isinstance(t, ShType):
        return int(t.local_bytes)
    sharding = getattr(t, "sharding", None)
    sizes = getattr(getattr(sharding, "mesh", None), "shape", {})
    entries = (*getattr(sharding, "spec", ()), *(None,) * len(t.shape))
    parts = (math.prod(sizes.get(a, 1) for a in _axes(entry)) for entry in entries)
    return int(math.prod(-(-n // part) for n, part in zip(t.shape, parts, strict=False)) * t.dtype.itemsize)


def _axes(entry: Any) -> tuple[str, ...]:
    """The mesh axes of a `PartitionSpec` entry."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ()) if isinstance(entry, tuple) else ()


def _is_of_axis(effect: Any) -> bool:
    """Whether an effect only marks the use of a mesh axis, as in collectives."""
    return type(effect).__name__ == "NamedAxisEffect"


@dataclass(eq=False)
class Value:
    """A value on one device."""

    bytes: int
    aval: Any = None
    step: Step | None = None  # its producer; None for inputs
    mutable: bool = False  # whether a step may overwrite it, for inputs
    slices: Step | None = None  # the producer of a slice, for a result stacked by a loop

    @property
    def maker(self) -> Step | None:
        """The step that reports name as its producer."""
        return self.slices or self.step


@dataclass(eq=False)
class Step:
    """One step of a device, before fusion."""

    name: str
    kind: Kind
    operands: list[Value]
    order: float  # the position in the program
    eqn: Any = None
    stack: str = ""  # the enclosing name stack
    bodies: tuple[Graph, ...] = ()
    carried: tuple[tuple[int, int], ...] = ()  # for a loop, the initial operand of each result
    results: list[Value] = field(default_factory=list)

    @property
    def direction(self) -> str:
        """``"forward"``, ``"backward"`` or ``"recomputed"``."""
        return direction_of(self.stack)

    @property
    def is_elementwise(self) -> bool:
        """Whether the result may be written over its operands: each element is computed from those at its place."""
        if self.name == "transpose" and len(self.operands[0].aval.shape) == 2:
            producer = self.operands[0].step
            return producer is not None and producer.name == "dot_general"  # the product is computed transposed
        return self.kind in (Kind.MAP, Kind.COSTLY) and self.name not in _MOVES

    @property
    def communicates(self) -> bool:
        """Whether it is a collective."""
        if self.kind is Kind.SEND or self.eqn is None:
            return self.kind is Kind.SEND
        operation = applied_by(self.eqn)
        typed = isinstance(operation, Operation) and bool(operation.forward_comm())
        return typed or any(map(_is_of_axis, self.eqn.effects))

    @property
    def place(self) -> SourceLine:
        """The user's line."""
        return SourceLine() if self.eqn is None else place_of(self.eqn)


@dataclass(eq=False)
class Graph:
    """The steps of a body, in program order."""

    steps: list[Step] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


def graph_of(program: Any, arguments: Sequence[Value], *, barriers: bool = True) -> Graph:
    """The graph of a closed jaxpr of plain arrays for these arguments; ``barriers`` as in `memory`."""
    jaxpr = jaxpr_of(program)
    return _Build(Walk(), barriers, {}).graph(jaxpr, (True,) * len(jaxpr.outvars), arguments, "")


def _values(like: Iterable[Any], used: Iterable[bool] = itertools.repeat(True)) -> list[Value]:
    """Values like variables or other values; unused ones have no bytes."""
    sizes = ((v.bytes if isinstance(v, Value) else bytes_of(v.aval), v.aval) for v in like)
    return [Value(size * u, aval) for (size, aval), u in zip(sizes, used, strict=False)]


class _Build:
    """Builds the graph of one body, with its calls inlined."""

    def __init__(self, walk: Walk, barriers: bool, texts: dict[int, tuple[str, ...]]) -> None:
        self._walk, self._barriers, self._texts = walk, barriers, texts
        self._graph = Graph()
        self._seen: dict[Any, list[Value]] = {}
        self._literals: dict[Any, Value] = {}

    def graph(self, body: Any, used: tuple[bool, ...], inputs: Sequence[Value], stack: str) -> Graph:
        """The graph of a body."""
        self._graph.results = self._inline(body, used, inputs, stack)
        return self._graph

    def _inner(self, body: Any, used: tuple[bool, ...], inputs: Sequence[Value], stack: str) -> Graph:
        return _Build(self._walk, self._barriers, self._texts).graph(body, used, inputs, stack)

    def _inline(self, body: Any, used: tuple[bool, ...], inputs: Sequence[Value], stack: str) -> list[Value]:
        """Adds the steps of a body that runs once; returns its results."""
        jaxpr = jaxpr_of(body)
        env: dict[Any, Value] = dict(zip(jaxpr.constvars, _values(jaxpr.constvars), strict=True))
        env |= dict(zip(jaxpr.invars, inputs, strict=True))
        live = self._walk.live(jaxpr, used)[0]
        needed = {v for v, u in zip(jaxpr.outvars, used, strict=True) if u and not is_literal(v)}
        reads = [v for eqn, use in live for v, u in zip(eqn.invars, use.operands, strict=True) if u]
        needed |= {v for v in reads if not is_literal(v)}
        for eqn, use in live:
            operands = [self._read(env, v) for v in eqn.invars]
            outs = tuple(v in needed for v in eqn.outvars)
            results = self._equation(eqn, use, outs, operands, f"{stack}/{eqn.source_info.name_stack}")
            env.update(zip(eqn.outvars, results, strict=True))
        return [self._read(env, v) for v in jaxpr.outvars]

    def _read(self, env: dict[Any, Value], atom: Any) -> Value:
        if not is_literal(atom):
            return env.get(atom) or Value(0, atom.aval)
        return self._literals.setdefault((str(atom.aval), str(atom.val)), Value(0, atom.aval))

    def _equation(self, eqn: Any, use: Needs, outs: tuple[bool, ...], operands: list[Value], stack: str) -> list[Value]:
        match what := control_of(eqn):
            case ClosedCall():
                behind_barrier = iter(
                    self._barrier(eqn, [v for v, b in zip(operands, what.barrier, strict=False) if b], stack)
                )
                flags = itertools.chain(what.barrier, itertools.repeat(False))
                operands = [next(behind_barrier) if b else v for v, b in zip(operands, flags, strict=False)]
                return self._inline(what.body, use.bodies[0].used, operands, f"{stack}/{what.scope}")
            case Scan():
                return self._scan(eqn, what, use, operands, stack)
            case While():
                return self._while(eqn, what, use, operands, stack)
            case Cond():
                bodies = tuple(self._inner(b.jaxpr, b.used, _values(operands[1:]), stack) for b in use.bodies)
                return self._add(
                    Step("cond", Kind.BRANCH, operands, bodies=bodies, **self._at(eqn, stack)), eqn.outvars, outs
                )
        if kind_of(eqn) is Kind.BARRIER:
            return self._barrier(eqn, operands, stack)
        if eqn.primitive.name == "shard_map":
            return self._inline(eqn.params["jaxpr"], outs, operands, stack)
        operation = applied_by(eqn)
        local = program_of(operation.fn, operation.operands, shards=True) if isinstance(operation, Local) else None
        if local is not None:
            return self._inline(local, outs, operands, stack)
        if len(use.bodies) == 1 and len(use.bodies[0].jaxpr.invars) == len(operands):
            return self._inline(use.bodies[0].jaxpr, use.bodies[0].used, operands, stack)
        return self._plain(eqn, operands, stack)

    def _at(self, eqn: Any, stack: str) -> dict[str, Any]:
        return {"order": len(self._graph.steps), "eqn": eqn, "stack": stack}

    def _add(self, step: Step, like: Sequence[Any], used: Iterable[bool] = itertools.repeat(True)) -> list[Value]:
        """Adds a step with results like variables or values."""
        step.results = _values(like, used)
        for v in step.results:
            v.step = step
        self._graph.steps.append(step)
        return step.results

    def _barrier(self, eqn: Any, values: list[Value], stack: str) -> list[Value]:
        """The values behind a barrier: with barriers all wait for all, else each for itself."""
        groups = ([values] if values else []) if self._barriers else [[v] for v in values]
        steps = [Step("optimization_barrier", Kind.BARRIER, group, **self._at(eqn, stack)) for group in groups]
        return [v for step in steps for v in self._add(step, step.operands)]

    def _plain(self, eqn: Any, operands: list[Value], stack: str) -> list[Value]:
        """Adds an equation without bodies, unless an equal one exists."""
        params = id(eqn.params)  # equations that were traced once share them
        if params not in self._texts:
            self._texts[params] = tuple(map(str, eqn.params.items()))
        key = (eqn.primitive, tuple(map(id, operands)), self._texts[params])
        acts = any(not _is_of_axis(effect) for effect in eqn.effects)
        if acts or key not in self._seen:
            step = Step(eqn.primitive.name, kind_of(eqn), operands, **self._at(eqn, stack))
            self._seen[key] = self._add(step, eqn.outvars)
        return self._seen[key]

    def _scan(self, eqn: Any, scan: Scan, use: Needs, operands: list[Value], stack: str) -> list[Value]:
        body, n, m = jaxpr_of(scan.body), scan.consts, scan.consts + scan.carry
        used = use.bodies[0].used
        inputs = _values(operands, use.operands)
        stacks = _values(eqn.outvars[scan.carry :], used[scan.carry :])
        for v in (*inputs[n:m], *stacks):
            v.mutable = True
        inner = _Build(self._walk, self._barriers, self._texts)
        slices: list[Value] = []
        for xs, v in zip(inputs[m:], body.invars[m:], strict=True):
            slices += inner._add(Step("slice", Kind.MAP, [xs], -1, eqn, stack), [v])
        graph = inner.graph(body, used, [*inputs[:m], *slices], stack)
        ys = graph.results[scan.carry :]
        for stacked, y, u in zip(stacks, ys, used[scan.carry :], strict=True):
            if u:
                order = y.step.order + 0.5 if y.step is not None else -1
                inner._add(Step("store", Kind.STORE, [stacked, y], order), [stacked])
        graph.results = [v for v, u in zip(graph.results[: scan.carry], used, strict=False) if u]
        taken = [v for v, u in zip(operands, use.operands, strict=True) if u]
        place = {id(v): i for i, v in enumerate(taken)}
        carried = tuple((place[id(operands[n + i])], i) for i in range(scan.carry) if used[i])
        step = Step("scan", Kind.LOOP, taken, bodies=(graph,), carried=carried, **self._at(eqn, stack))
        results = self._add(step, eqn.outvars, used)
        for v, y in zip(results[scan.carry :], ys, strict=True):
            v.slices = y.step
        return results

    def _while(self, eqn: Any, loop: While, use: Needs, operands: list[Value], stack: str) -> list[Value]:
        n, m = loop.cond_consts, loop.cond_consts + loop.body_consts
        used = use.bodies[1].used
        carry = _values(operands[m:])
        for v in carry:
            v.mutable = True
        test = self._inner(loop.cond, (True,), _values([*operands[:n], *operands[m:]]), stack)
        body = self._inner(loop.body, used, [*_values(operands[n:m]), *carry], stack)
        body.results = [v for v, u in zip(body.results, used, strict=True) if u]
        carried = tuple((m + i, i) for i in range(len(carry)) if used[i])
        step = Step("while", Kind.LOOP, operands, bodies=(test, body), carried=carried, **self._at(eqn, stack))
        return self._add(step, eqn.outvars, used)
