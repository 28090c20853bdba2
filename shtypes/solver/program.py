"""Converts a plain function to the solver's IR.

Calls are inlined; the bodies of loops, branches and checkpoints are nested items. Other equations with sub-jaxprs
(functions with custom derivative rules, a `while` under `vmap`) are one op each.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.extend.source_info_util import NameStack

from shtypes._compat.eqn_frames import is_of_a_library, user_frames
from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import (
    Cond,
    Scan,
    While,
    captured,
    control,
    is_literal,
    jaxpr_of,
    literal_value,
    moves_smoothly,
    with_unused,
)
from shtypes._compat.plain_programs import needed, trace_plain
from shtypes._compat.program_keys import key_of_equation
from shtypes.analysis.flops import product_flops
from shtypes.caches import Static
from shtypes.context.frames import Owner, owner_of_file
from shtypes.context.scope import attribute_set
from shtypes.context.user_line import wrap_jax_errors
from shtypes.core.jax_errors import wrap_refusals
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.positions import place_of, positions
from shtypes.evaluation.undo_ravel import undo_ravel
from shtypes.evaluation.value_info import of_some
from shtypes.lifting.ways.choice import ways_of
from shtypes.lifting.ways.grouping import grouped
from shtypes.solver.items import (
    STEPS_OF_WHILE,
    Branch,
    Branches,
    Checkpoint,
    Item,
    Loop,
    Op,
    Operand,
    Path,
    Value,
    demand,
    is_value,
    note_loops,
    saves_reshards,
    walk,
)
from shtypes.solver.options import is_annotation
from shtypes.traced.equations import SourceLine, operands_read
from shtypes.types import dtypes
from shtypes.types.mesh import Mesh

#: The primitives of `jax.jit` and its equivalents.
_INLINED: Final = frozenset({"jit", "pjit", "closed_call", "core_call"})


def path_of(path: Any) -> str:
    """The path of a leaf as a string, like ``layers/0/attn/q``."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path)


def _parameters(f: Callable[..., Any], count: int) -> list[str]:
    """The names of the positional arguments of a function; their indices if it has no signature."""
    try:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [p.name for p in inspect.signature(f).parameters.values() if p.kind in kinds]
    except (TypeError, ValueError):
        names = []
    return [*names[:count], *map(str, range(len(names), count))]


def line_of(eqn: Any) -> SourceLine:
    """The user's line of an equation: of the innermost frame outside installed libraries."""
    frames = user_frames(eqn)
    if not frames:
        return SourceLine()
    frame = next((f for f in frames if owner_of_file(f.file) is Owner.USERS), frames[0])
    return SourceLine(frame.file, frame.line, frame.function)


class Program:
    """A plain program in the solver's IR.

    Args:
        name: The name of the function.
        jaxpr: Its jaxpr.
        consts: The constants of the jaxpr.
        arguments: For each argument its name, whether it is differentiated, and whether it is plain.
        keep_annotations: Whether its sharding annotations are ops; by default they are dropped.
        checkpoint: The scans whose bodies to checkpoint: indices among the outermost scans without a checkpoint.
        sharded: The sizes of the dims that its arguments have sharded, if they are given.
    """

    def __init__(
        self,
        name: str,
        jaxpr: Any,
        consts: Sequence[Any],
        arguments: Sequence[tuple[str, bool, bool]],
        *,
        keep_annotations: bool = False,
        checkpoint: Collection[int] = (),
        sharded: frozenset[int] | None = None,
    ) -> None:
        self._sharded = sharded
        self.name, self._keep_annotations, self.checkpoint = name, keep_annotations, frozenset(checkpoint)
        self.scans: dict[int, SourceLine] = {}  # the lines of the scans that ``checkpoint`` counts
        self._ids = itertools.count()
        self._saves_all = False  # whether the enclosing checkpoints save reshards
        self._calls: list[Any] = []  # the enclosing calls of jitted library functions
        self._scopes = NameStack()  # the name scopes of the enclosing calls, from those of their loop or checkpoint
        self._across: dict[
            Any, list[Value]
        ] = {}  # the results of ops with algorithms across shards in the current body
        #: By result of such an op: that of an equal one before it in its body; across shards they are one when typed.
        self.equal: dict[int, int] = {}
        self.values: list[Value] = []
        env: dict[Any, Any] = {}
        self.inputs = []
        for var, (argument, differentiated, plain) in zip(jaxpr.invars, arguments, strict=True):
            v = env[var] = self._value(var.aval, argument)
            v.differentiated, v.constant = differentiated and dtypes.differentiable(v.dtype), plain
            self.inputs.append(v)
        for var, array in zip(jaxpr.constvars, consts, strict=True):
            env[var] = self._constant(var.aval, array)
        self.items = self._block(jaxpr, env, (), 1, False)
        self.outputs = [_read(env, v) for v in jaxpr.outvars]
        self.ops = [item for item, _ in walk(self.items) if isinstance(item, Op)]
        self.loops = [item for item, _ in walk(self.items) if isinstance(item, Loop)]
        flows = [flow for item, _ in walk(self.items) for flow in item.flows()]
        self._only_differentiated(self.inputs, flows)
        note_loops(self.items)
        self._only_differentiated(self.outputs, [(results, operands) for operands, results in reversed(flows)])
        self.live = self._live()
        #: By value from outside a checkpoint: the checkpoint that all of its uses are in.
        self.entering = self._entering()

    @functools.cached_property
    def codes(self) -> dict[int, int]:
        """A number for each op, equal for ops of one line that differ only in the values that they take."""
        numbers: dict[Any, int] = {}
        return {op.id: numbers.setdefault(_code(op), len(numbers)) for op in self.ops}

    def _value(self, aval: Any, name: str = "") -> Value:
        v = Value(next(self._ids), tuple(map(int, aval.shape)), dtypes.from_numpy(aval.dtype), name=name)
        self.values.append(v)
        return v

    def _constant(self, aval: Any, array: Any) -> Value:
        v = self._value(aval, "constant")
        v.constant, v.captured, v.place = True, array, place_of(array)
        return v

    def _block(self, jaxpr: Any, env: dict[Any, Any], around: Path, times: float, checkpointed: bool) -> list[Item]:
        items: list[Item] = []
        for eqn in grouped(undo_ravel(jaxpr), None, self._sharded).eqns:
            operands = [_read(env, v) for v in eqn.invars]
            name, how, path = eqn.primitive.name, control(eqn), (*around, id(eqn))
            if (called := _called(eqn, how, operands)) is not None:
                body, given = called
                inner, sub = self._body(body, given)
                self._calls += [self._from_call(eqn)] * (in_library := is_of_a_library(body))
                with attribute_set(self, "_scopes", self._scopes + eqn.source_info.name_stack):
                    items += self._block(inner, sub, path, times, checkpointed)
                self._calls = self._calls[: len(self._calls) - in_library]
                env.update((v, _read(sub, w)) for v, w in zip(eqn.outvars, inner.outvars, strict=True))
            elif name == "remat2":
                inner, sub = self._body(eqn.params["jaxpr"], operands)
                outside, self._saves_all = self._saves_all, self._saves_all or saves_reshards(eqn)
                body, outputs = self._nested(inner, sub, path, times, checkpointed or not self._saves_all)
                env.update(zip(eqn.outvars, outputs, strict=True))
                items.append(
                    Checkpoint(next(self._ids), self._from_call(eqn), operands, body, outputs, self._saves_all)
                )
                self._saves_all = outside
            elif name == "closed_over":
                env.update(zip(eqn.outvars, operands, strict=True))
            elif is_annotation(eqn) and not self._keep_annotations:
                env.update(zip(eqn.outvars, operands, strict=False))
            elif isinstance(how, Scan):
                items.append(self._loop(eqn, how, operands, env, path, times, checkpointed))
            elif isinstance(how, While) and not jaxpr_of(how.cond).outvars[0].aval.shape:
                items.append(self._while(eqn, how, operands, env, path, times, checkpointed))
            elif isinstance(how, Cond) and is_value(operands[0]):
                items.append(self._branches(eqn, how, operands, env, path, times, checkpointed))
            else:
                items.append(self._op(eqn, operands, env, path, times, checkpointed))
        return items

    def _nested(
        self, jaxpr: Any, env: dict[Any, Any], path: Path, times: float, checkpointed: bool
    ) -> tuple[list[Item], list[Operand]]:
        """The items of a body that is not inlined, and what it returns."""
        with attribute_set(self, "_scopes", NameStack()), attribute_set(self, "_across", {}):
            items = self._block(jaxpr, env, path, times, checkpointed)
        return items, [_read(env, v) for v in jaxpr.outvars]

    def _line(self, eqn: Any) -> SourceLine:
        return line_of(self._from_call(eqn))

    def _from_call(self, eqn: Any) -> Any:
        """An equation in the name scopes of the enclosing calls, with the stack of that of a library.

        The library was traced once for all calls.
        """
        source = eqn.source_info.replace(name_stack=self._scopes + eqn.source_info.name_stack)
        if self._calls:
            source = source.replace(traceback=self._calls[-1].source_info.traceback)
        return eqn.replace(source_info=source)

    def _body(self, body: Any, operands: Sequence[Any]) -> tuple[Any, dict[Any, Any]]:
        """The jaxpr of a body, and the environment of its inputs and constants."""
        inner = jaxpr_of(body)
        env = dict(zip(inner.invars, operands, strict=True))
        env.update((v, self._constant(v.aval, c)) for v, c in zip(inner.constvars, captured(body), strict=True))
        return inner, env

    def _op(
        self, eqn: Any, operands: list[Any], env: dict[Any, Any], path: Path, times: float, checkpointed: bool
    ) -> Op:
        results = [self._value(v.aval, eqn.primitive.name) for v in eqn.outvars]
        env.update(zip(eqn.outvars, results, strict=True))
        constant = not any(map(is_value, operands)) and not _is_computed_whole(eqn)
        live = [i for i, x in enumerate(operands) if isinstance(x, Value) and x.differentiated]
        moved = moves_smoothly(eqn, live) if live else itertools.repeat(False)
        for v, m in zip(results, moved, strict=False):
            v.constant, v.differentiated = constant, m and dtypes.differentiable(v.dtype)
        for v, place in zip(results, positions(eqn, operands), strict=False):
            v.place = place
        if ways_of(eqn) and not eqn.effects:
            key = key_of_equation(eqn), set_at(eqn), *(x.id if isinstance(x, Value) else Static(x) for x in operands)
            pairs = zip(results, self._across.setdefault(key, results), strict=True)
            self.equal.update((v.id, w.id) for v, w in pairs if v is not w)
        eqn = self._from_call(eqn)
        return Op(next(self._ids), eqn, operands, results, times, line_of(eqn), path, checkpointed)

    def _loop(
        self,
        eqn: Any,
        scan: Scan,
        operands: list[Any],
        env: dict[Any, Any],
        path: Path,
        times: float,
        checkpointed: bool,
    ) -> Loop:
        consts, first = operands[: scan.consts], operands[scan.consts :]
        body = jaxpr_of(scan.body)
        inputs = [self._value(v.aval) for v in body.invars[scan.consts :]]
        inner, sub = self._body(scan.body, [*consts, *inputs])
        for i, (v, x) in enumerate(zip(inputs, first, strict=True)):
            if i < scan.carry:
                v.name, v.differentiated = f"carry[{i}]", dtypes.differentiable(v.dtype)
            else:
                v.name = f"{x.name}[i]" if isinstance(x, Value) and x.name else ""
                v.constant = not is_value(x)
                v.differentiated = isinstance(x, Value) and x.differentiated
        is_remat = len(inner.eqns) == 1 and inner.eqns[0].primitive.name == "remat2"
        within = is_remat or checkpointed or not self.scans.keys().isdisjoint(path[:-1])
        adds = False
        if not within and any(v.differentiated for v in inputs[: scan.carry]):
            adds = len(self.scans) in self.checkpoint
            self.scans[id(eqn)] = self._line(eqn)
        items, outputs = self._nested(inner, sub, path, times * scan.length, checkpointed or adds)
        if adds:
            items = [Checkpoint(next(self._ids), None, [], items, outputs)]
        results = [self._value(v.aval, "scan") for v in eqn.outvars]
        # The last carry has a tangent if the first one has.
        for r, y in zip(results, (*inputs[: scan.carry], *outputs[scan.carry :]), strict=True):
            r.differentiated = isinstance(y, Value) and y.differentiated
        for r, y in zip(results[scan.carry :], outputs[scan.carry :], strict=True):
            r.constant = not is_value(y)
        env.update(zip(eqn.outvars, results, strict=True))
        number, eqn = next(self._ids), self._from_call(eqn)
        return Loop(number, eqn, scan, operands, items, inputs, outputs, results, times, line_of(eqn), checkpointed)

    def _while(
        self,
        eqn: Any,
        loop: While,
        operands: list[Any],
        env: dict[Any, Any],
        path: Path,
        times: float,
        checkpointed: bool,
    ) -> Loop:
        carry = jaxpr_of(loop.body).invars[loop.body_consts :]
        inputs = [self._value(v.aval, f"carry[{i}]") for i, v in enumerate(carry)]
        for v in inputs:
            v.differentiated = dtypes.differentiable(v.dtype)
        results = [self._value(v.aval, "while") for v in eqn.outvars]
        for r, v in zip(results, inputs, strict=True):
            r.differentiated = v.differentiated
        consts = operands[: loop.cond_consts], operands[loop.cond_consts : len(operands) - len(carry)]
        scan = Scan(loop.body, sum(map(len, consts)), len(carry), 1, False, 1)
        number, eqn = next(self._ids), self._from_call(eqn)
        made = Loop(number, eqn, scan, operands, [], inputs, [], results, times, line_of(eqn), checkpointed)
        env.update(zip(eqn.outvars, results, strict=True))
        test, body = (self._body(each, [*of, *inputs]) for each, of in zip((loop.cond, loop.body), consts, strict=True))
        made.items, (made.predicate,) = self._nested(*test, path, times * STEPS_OF_WHILE, checkpointed)
        made.tests = len(made.items)
        items, made.outputs = self._nested(*body, path, times * STEPS_OF_WHILE, checkpointed)
        made.items += items
        return made

    def _branches(
        self,
        eqn: Any,
        cond: Cond,
        operands: list[Any],
        env: dict[Any, Any],
        path: Path,
        times: float,
        checkpointed: bool,
    ) -> Branches:
        branches = []
        for body in cond.branches:
            inner, sub = self._body(body, operands[1:])
            branches.append(Branch(*self._nested(inner, sub, path, times, checkpointed)))
        results = [self._value(v.aval, "cond") for v in eqn.outvars]
        number, eqn = next(self._ids), self._from_call(eqn)
        made = Branches(number, eqn, operands[:1], branches, results, times, line_of(eqn), checkpointed)
        for xs, r in made.joins():
            r.differentiated = any(isinstance(x, Value) and x.differentiated for x in xs)
        env.update(zip(eqn.outvars, results, strict=True))
        return made

    def _only_differentiated(self, roots: Sequence[Operand], flows: Sequence[Any]) -> None:
        """Clears ``differentiated`` on values that are not reachable from a differentiated root along the flows."""
        reached = {v.id for v in roots if isinstance(v, Value) and v.differentiated}
        before = -1
        while len(reached) != before:
            before = len(reached)
            for sources, sinks in flows:
                if any(v.id in reached for v in sources if isinstance(v, Value)):
                    reached.update(x.id for x in sinks if isinstance(x, Value) and x.differentiated)
        for v in self.values:
            v.differentiated = v.differentiated and v.id in reached

    def _live(self) -> set[int]:
        """The values that the results depend on, not only on their types; marks what is unused in ops."""
        live = {v.id for v in self.outputs if isinstance(v, Value)}

        def take(item: Op | Checkpoint) -> None:
            if isinstance(item, Checkpoint):
                demand(item.items, live, take)
            elif item.eqn.effects or not live.isdisjoint(v.id for v in item.results):
                item.reads = operands_read(item.eqn, [v.id in live for v in item.results])
                operands = zip(item.operands, item.reads, strict=True)
                live.update(x.id for x, reads in operands if reads and isinstance(x, Value))

        demand(self.items, live, take)
        for op in self.ops:
            if not live.issuperset(v.id for v in op.results):
                op.eqn = with_unused(op.eqn, [v.id in live for v in op.results])
        return live

    def _entering(self) -> dict[int, int]:
        uses: dict[int, set[Path]] = {v.id: {()} for v in self.outputs if isinstance(v, Value)}
        checkpoints: dict[int, Path] = {}  # around the definition of each value
        for item, inside in walk(self.items):
            inputs = item.inputs if isinstance(item, Loop) else []
            checkpoints.update((v.id, inside) for v in (*item.results, *inputs))
            for x in (*item.operands, *getattr(item, "returned", ())):
                if isinstance(x, Value):
                    uses.setdefault(x.id, set()).add(inside[-1:])
        single = {v: places.pop() for v, places in uses.items() if len(places) == 1}
        return {v: place[0] for v, place in single.items() if place and place[0] not in checkpoints.get(v, ())}


class Function(Program):
    """The program of a plain function for pytrees of arguments; ``mesh`` is for its sharding annotations."""

    def __init__(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        argnums: Sequence[int] = (),
        mesh: Mesh | None = None,
        *,
        checkpoint: Collection[int] = (),
    ) -> None:
        leaves, self.tree = jax.tree.flatten(args)
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]]
        self.is_array = [hasattr(x, "shape") and hasattr(x, "dtype") for x in leaves]
        if not any(self.is_array):
            raise ShardingTypeError(
                "none of the arguments is an array", hints=['sh.suggest(f, jax.ShapeDtypeStruct((8, 16), "float32"))']
            )
        self._leaves = [None if a else x for x, a in zip(leaves, self.is_array, strict=True)]
        arrays = [x for x, a in zip(leaves, self.is_array, strict=True) if a]
        # PRNG keys have an extended dtype.
        avals = [
            jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype, allow_extended_dtype=True))
            for x in arrays
        ]

        def flat(*xs: Any) -> Any:
            with wrap_refusals():
                return f(*self.arguments(xs))

        flat.__name__ = flat.__qualname__ = name = getattr(f, "__name__", "f")
        axes = None if mesh is None else (mesh.axis_sizes, mesh.axis_names)
        with wrap_jax_errors(name):
            closed, tracers, self.out_tree = trace_plain(flat, avals, axes)
        self._traced = flat, avals, axes
        if tracers:
            raise ShardingTypeError(f"`{name}` closes over values that are being traced: pass them as arguments")
        of_arrays = [path for path, a in zip(paths, self.is_array, strict=True) if a]
        names = _parameters(f, len(args))
        paths_of_arrays = ["/".join(filter(None, (names[path[0].idx], path_of(path[1:])))) for path in of_arrays]
        differentiated = [path[0].idx in argnums for path in of_arrays]
        arguments = [(p, d, False) for p, d in zip(paths_of_arrays, differentiated, strict=True)]
        super().__init__(name, *needed(closed), arguments, checkpoint=checkpoint)

    def with_gradient(self) -> Any:
        """The jaxpr of the plain function with the gradients of its differentiated arguments."""
        flat, avals, axes = self._traced
        live = [i for i, v in enumerate(self.inputs) if v.differentiated]

        def leaves(xs: Sequence[Any]) -> list[Any]:
            return [y for y in jax.tree.leaves(flat(*xs)) if jax.numpy.issubdtype(y.dtype, jax.numpy.inexact)]

        def both(*xs: Any) -> Any:
            ys, pull = jax.vjp(of_some(leaves, xs, live), *[xs[i] for i in live])
            return ys, pull([jax.numpy.ones_like(y) for y in ys])

        return trace_plain(both if live else flat, avals, axes)[0]

    def arguments(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments as trees, from their arrays."""
        rest = iter(arrays)
        leaves = [next(rest) if a else x for x, a in zip(self._leaves, self.is_array, strict=True)]
        args: tuple[Any, ...] = jax.tree.unflatten(self.tree, leaves)
        return args


def _called(eqn: Any, how: Any, operands: list[Any]) -> tuple[Any, list[Any]] | None:
    """The body of a call, or the taken branch if that is known, with its operands; None for another equation."""
    if isinstance(how, Cond) and isinstance(operands[0], np.integer):
        return how.branches[int(operands[0])], operands[1:]
    if eqn.primitive.name not in _INLINED or ways_of(eqn):  # an op with algorithms across shards is not inlined
        return None
    return getattr(how, "body", None) or eqn.params["jaxpr"], operands


def _is_computed_whole(eqn: Any) -> bool:
    """Whether XLA computes all results where shares of them are read: constants of these are sharded as values are."""
    return eqn.primitive.name.startswith("scatter") or product_flops(eqn) is not None


def _code(op: Op) -> Any:
    constants = [x.captured if isinstance(x, Value) else x for x in op.operands]
    return key_of_equation(op.eqn), set_at(op.eqn), op.place, *map(Static, constants)


def _read(env: dict[Any, Any], atom: Any) -> Any:
    return literal_value(atom) if is_literal(atom) else env[atom]
