"""A lowered program as what a device computes: flat steps with the bytes of their results, loops and branches inside.

It is the program that `jit` compiles, with the shapes of shards. Calls are opened, what nothing uses is left out, and
what is computed twice from the same operands is one step, as in the compiler.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from shtypes._compat.jaxprs import ClosedCall, Cond, Scan, While, is_literal, jaxpr_of
from shtypes.core.operation import direction_of
from shtypes.traced.equations import Needs, SourceLine, Walk, control_of, place_of
from shtypes.types import ShType


class Kind(enum.Enum):
    """What a step does with the memory of its operands and results."""

    VIEW = "its result is its operand in another shape"
    BARRIER = "its results are its operands, and nothing is fused across it"
    MAP = "it computes each element when that is asked for, from few others"
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
    "round clamp iota broadcast_in_dim transpose slice dynamic_slice gather concatenate pad rev square integer_pow "
    "add_any is_finite shift_left shift_right_logical shift_right_arithmetic real imag complex conj nextafter "
    "axis_index"
)
_COSTLY: Final = _names(
    "exp exp2 expm1 log log1p tanh logistic sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh rsqrt sqrt "
    "cbrt div rem pow erf erfc erf_inv lgamma digamma"
)


def kind_of(eqn: Any) -> Kind:
    """What an equation without bodies does with memory."""
    name = eqn.primitive.name
    if name == "optimization_barrier":
        return Kind.BARRIER
    if name in _VIEWS or (name in ("broadcast_in_dim", "convert_element_type") and _same(eqn)):
        return Kind.VIEW
    if name in _MAPS:
        return Kind.MAP
    if name in _COSTLY:
        return Kind.COSTLY
    if name.startswith("reduce_") and name != "reduce_scatter":
        return Kind.FOLD
    if name == "dynamic_update_slice":
        return Kind.STORE
    return Kind.SEND if name in ("psum", "psum_invariant", "pmax", "pmin") else Kind.KERNEL


def _same(eqn: Any) -> bool:
    """Whether the result is the operand, but for its shape."""
    x, y = eqn.invars[0].aval, eqn.outvars[0].aval
    return math.prod(x.shape) == math.prod(y.shape) and bool(x.dtype == y.dtype)


def bytes_of(t: Any) -> int:
    """Bytes of each device's part of a value, typed or plain."""
    if isinstance(t, ShType):
        return int(t.local_bytes)
    sharding = getattr(t, "sharding", None)
    sizes = getattr(getattr(sharding, "mesh", None), "shape", {})
    entries = (*getattr(sharding, "spec", ()), *(None,) * len(t.shape))
    parts = (math.prod(sizes.get(a, 1) for a in _axes(entry)) for entry in entries)
    return int(math.prod(-(-n // part) for n, part in zip(t.shape, parts, strict=False)) * t.dtype.itemsize)


def _axes(entry: Any) -> tuple[str, ...]:
    """The mesh axes that a dim is split over, by an entry of a `PartitionSpec`."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ()) if isinstance(entry, tuple) else ()


@dataclass(eq=False)
class Value:
    """A value on one device."""

    bytes: int
    aval: Any = None
    step: Step | None = None  # what makes it; None where it is given
    name: str = ""  # of an argument
    mutable: bool = False  # whether a step may write its result over it, though it is given
    slices: Step | None = None  # of what a loop stacks: what makes a slice of it

    @property
    def maker(self) -> Step | None:
        """The step whose line made it."""
        return self.slices or self.step


@dataclass(eq=False)
class Step:
    """What one device does at once, if nothing is fused."""

    name: str
    kind: Kind
    operands: list[Value]
    order: float = 0  # its place in the program
    results: list[Value] = field(default_factory=list)
    eqn: Any = None
    stack: str = ""  # the name stack around it
    bodies: tuple[Graph, ...] = ()
    carried: tuple[tuple[int, int], ...] = ()  # of a loop: which operand each result starts from

    @property
    def direction(self) -> str:
        """``"forward"``, ``"backward"`` or ``"recomputed"``."""
        return direction_of(self.stack)

    @property
    def place(self) -> SourceLine:
        """The user's line."""
        return SourceLine() if self.eqn is None else place_of(self.eqn)


@dataclass(eq=False)
class Graph:
    """The steps of a body, in program order."""

    inputs: list[Value]
    steps: list[Step] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)


def graph_of(program: Any, arguments: Sequence[Value], *, barriers: bool = True) -> Graph:
    """The steps of a closed jaxpr of plain arrays for these arguments; ``barriers`` as in `memory`."""
    jaxpr = jaxpr_of(program)
    graph = Graph(list(arguments))
    constants = [Value(bytes_of(v.aval), v.aval, name="captured") for v in jaxpr.constvars]
    used = (True,) * len(jaxpr.outvars)
    graph.results = _Build(Walk(), graph, barriers).opened(jaxpr, used, [*constants, *arguments], "")
    return graph


class _Build:
    """Writes the equations of one body, and of the calls in it, into one graph."""

    def __init__(self, walk: Walk, graph: Graph, barriers: bool) -> None:
        self._walk, self._graph, self._barriers = walk, graph, barriers
        self._seen: dict[Any, list[Value]] = {}
        self._literals: dict[Any, Value] = {}

    def opened(self, jaxpr: Any, used: tuple[bool, ...], values: Sequence[Value], stack: str) -> list[Value]:
        """The results of a body for the values of its constants and operands."""
        env: dict[Any, Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), values, strict=True))
        live = self._walk.live(jaxpr, used)[0]
        wanted = {v for v, u in zip(jaxpr.outvars, used, strict=True) if u and not is_literal(v)}
        reads = [v for eqn, use in live for v, u in zip(eqn.invars, use.operands, strict=True) if u]
        wanted |= {v for v in reads if not is_literal(v)}
        for eqn, use in live:
            inner = f"{stack}/{eqn.source_info.name_stack}"
            operands = [self._read(env, v) for v in eqn.invars]
            outs = tuple(v in wanted for v in eqn.outvars)
            env.update(zip(eqn.outvars, self._equation(eqn, use, outs, operands, inner), strict=True))
        return [self._read(env, v) for v in jaxpr.outvars]

    def _read(self, env: dict[Any, Value], atom: Any) -> Value:
        if not is_literal(atom):
            return env.get(atom) or Value(0, atom.aval)
        key = (str(atom.aval), str(atom.val))
        return self._literals.setdefault(key, Value(0, atom.aval))

    def _equation(self, eqn: Any, use: Needs, outs: tuple[bool, ...], operands: list[Value], stack: str) -> list[Value]:
        match what := control_of(eqn):
            case ClosedCall():
                behind = [v for v, b in zip(operands, what.barrier, strict=False) if b]
                if behind:
                    fresh = iter(self._barrier(eqn, behind, stack))
                    operands = [next(fresh) if b else v for v, b in zip(operands, what.barrier, strict=True)]
                return self._body(what.body, use.bodies[0].used, operands, f"{stack}/{what.scope}")
            case Scan():
                return self._scan(eqn, what, use, outs, operands, stack)
            case While():
                return self._while(eqn, what, use, operands, stack)
            case Cond():
                bodies = [self._inner(b.jaxpr, b.used, operands[1:], stack) for b in use.bodies]
                step = Step("cond", Kind.BRANCH, operands, stack=stack, bodies=tuple(bodies))
                return self._step(
                    step, eqn, [Value(bytes_of(v.aval) * o) for v, o in zip(eqn.outvars, outs, strict=True)]
                )
        if kind_of(eqn) is Kind.BARRIER:
            return self._barrier(eqn, operands, stack)
        if eqn.primitive.name == "shard_map":
            return self._body(eqn.params["jaxpr"], outs, operands, stack)
        if len(use.bodies) == 1 and len(use.bodies[0].jaxpr.invars) == len(operands):
            return self._body(use.bodies[0].jaxpr, use.bodies[0].used, operands, stack)
        return self._plain(eqn, operands, stack)

    def _barrier(self, eqn: Any, values: list[Value], stack: str) -> list[Value]:
        """The values, where nothing is merged with what is before them: once all are there, or each once it is."""
        groups = [values] if self._barriers else [[v] for v in values]
        steps = [Step("optimization_barrier", Kind.BARRIER, group, stack=stack) for group in groups]
        return [v for step in steps for v in self._step(step, eqn, step.operands)]

    def _plain(self, eqn: Any, operands: list[Value], stack: str) -> list[Value]:
        """An equation without bodies; the same again is what it was."""
        key = (eqn.primitive, tuple(map(id, operands)), tuple(map(str, eqn.params.items())))
        if key in self._seen and not _acts(eqn):
            return self._seen[key]
        kind = kind_of(eqn)
        step = Step(eqn.primitive.name, kind, operands, stack=stack)
        self._seen[key] = self._step(step, eqn, [Value(bytes_of(v.aval)) for v in eqn.outvars])
        return self._seen[key]

    def _step(self, step: Step, eqn: Any, like: Sequence[Value]) -> list[Value]:
        """Adds a step, with results as large as some values."""
        step.eqn, step.order = eqn, len(self._graph.steps)
        avals = [v.aval for v in eqn.outvars] if len(eqn.outvars) == len(like) else [v.aval for v in like]
        step.results = [Value(v.bytes, aval, step) for v, aval in zip(like, avals, strict=True)]
        self._graph.steps.append(step)
        return step.results

    def _body(self, body: Any, used: tuple[bool, ...], operands: Sequence[Value], stack: str) -> list[Value]:
        """The results of a body that runs once, where it is called."""
        jaxpr = jaxpr_of(body)
        constants = [Value(bytes_of(v.aval), v.aval, name="captured") for v in jaxpr.constvars]
        return self.opened(jaxpr, used, [*constants, *operands], stack)

    def _inner(self, jaxpr: Any, used: tuple[bool, ...], operands: Sequence[Value], stack: str) -> Graph:
        """A body that is a graph of its own."""
        jaxpr = jaxpr_of(jaxpr)
        graph = Graph([Value(v.bytes, v.aval, name=v.name) for v in operands])
        graph.results = _Build(self._walk, graph, self._barriers).opened(jaxpr, used, graph.inputs, stack)
        return graph

    def _scan(
        self, eqn: Any, scan: Scan, use: Needs, outs: tuple[bool, ...], operands: list[Value], stack: str
    ) -> list[Value]:
        body, n, m = jaxpr_of(scan.body), scan.consts, scan.consts + scan.carry
        used = use.bodies[0].used
        stacks = [
            Value(bytes_of(v.aval) * u, v.aval)
            for v, u in zip(eqn.outvars[scan.carry :], used[scan.carry :], strict=True)
        ]
        graph = Graph([Value(v.bytes * u, v.aval) for v, u in zip(operands, use.operands, strict=True)] + stacks)
        for v in (*graph.inputs[n:m], *stacks):
            v.mutable = True
        build = _Build(self._walk, graph, self._barriers)
        slices = []
        for xs, v in zip(graph.inputs[m : len(operands)], body.invars[m:], strict=True):
            step = Step("slice", Kind.MAP, [xs], order=-1, eqn=eqn, stack=stack)
            step.results = [Value(bytes_of(v.aval), v.aval, step)]
            graph.steps.append(step)
            slices += step.results
        constants = [Value(bytes_of(v.aval), v.aval, name="captured") for v in body.constvars]
        made = build.opened(body, used, [*constants, *graph.inputs[:m], *slices], stack)
        for i, (stacked, y) in enumerate(zip(stacks, made[scan.carry :], strict=True)):
            if not used[scan.carry + i]:
                continue
            order = y.step.order + 0.5 if y.step is not None else -1
            store = Step("store", Kind.STORE, [stacked, y], order=order)
            store.results = [Value(stacked.bytes, stacked.aval, store)]
            graph.steps.append(store)
        graph.results = [v for v, u in zip(made[: scan.carry], used, strict=False) if u]
        step = Step("scan", Kind.LOOP, [v for v, u in zip(operands, use.operands, strict=True) if u], stack=stack)
        step.bodies = (graph,)
        place = {id(v): i for i, v in enumerate(step.operands)}
        step.carried = tuple((place[id(operands[n + i])], i) for i in range(scan.carry) if used[i])
        found = self._step(step, eqn, [Value(bytes_of(v.aval) * u) for v, u in zip(eqn.outvars, used, strict=True)])
        for v, y in zip(found[scan.carry :], made[scan.carry :], strict=True):
            v.slices = y.step
        return found

    def _while(self, eqn: Any, loop: While, use: Needs, operands: list[Value], stack: str) -> list[Value]:
        n, m = loop.cond_consts, loop.cond_consts + loop.body_consts
        used = use.bodies[1].used
        state = operands[m:]
        bodies = (
            self._inner(loop.cond, (True,), [*operands[:n], *state], stack),
            self._inner(loop.body, used, [*operands[n:m], *state], stack),
        )
        for v in bodies[1].inputs[loop.body_consts :]:
            v.mutable = True
        bodies[1].results = [v for v, u in zip(bodies[1].results, used, strict=True) if u]
        step = Step("while", Kind.LOOP, operands, stack=stack, bodies=bodies)
        step.carried = tuple((m + i, i) for i in range(len(state)) if used[i])
        return self._step(step, eqn, [Value(bytes_of(v.aval) * u) for v, u in zip(eqn.outvars, used, strict=True)])


def _acts(eqn: Any) -> bool:
    """Whether an equation does something each time, and not only communicate."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects)
