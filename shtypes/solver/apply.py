"""Evaluates a program by a plan: the same operations, with reshards of their operands."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shtypes._compat.derivative_rules import bind_checkpoint
from shtypes._compat.in_force import InForce, set_at, settings
from shtypes._compat.jaxprs import bind_eqn
from shtypes._compat.plain_programs import as_written
from shtypes.core.array import Array
from shtypes.core.conversion import array
from shtypes.core.repeated import Layer
from shtypes.errors import ShardingTypeError
from shtypes.lifting.lift import lift
from shtypes.lifting.recorded_calls import inserted_cast, recorded_op
from shtypes.lifting.typed_once import typed_once
from shtypes.scopes.comm import CommScope
from shtypes.scopes.scope_rules import in_force, objective, rules_in_force
from shtypes.solver.axis_states import REDUCED, typed
from shtypes.solver.items import Branch, Branches, Checkpoint, Item, Loop, Op, Operand, Value, is_value, walk
from shtypes.solver.program import Function, Program
from shtypes.solver.repeated import layers
from shtypes.solver.rows import Assignment
from shtypes.solver.tables import Costs
from shtypes.solver.transfers import Transfer
from shtypes.traced.equations import SourceLine
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.target import target_text


class PlannedCast(NamedTuple):
    """The reshard of a value at one of its uses."""

    to: ShType | None = None  # the destination type; None for no reshard
    from_copy: bool = False  # whether it starts from the value's shared copy


class Decisions(NamedTuple):
    """The decisions of a plan."""

    mesh: Mesh
    arguments: tuple[ShType, ...]  # the types of the array arguments
    #: Casts by place: ``12.0`` is operand 0 of item 12, ``second.7`` the shared copy of value 7; and ``result.0``.
    casts: Mapping[str, PlannedCast] = {}
    #: The algorithm of each op that communicates along a sharded dim; None for an op with only one.
    across_shards: Mapping[int, int | None] = {}


class NamedUse(NamedTuple):
    """A use of a value, with the names by which the user refers to it."""

    place: str  # the key in `Decisions.casts`
    line: SourceLine
    name: str  # of the value
    op: str
    value: Value

    @property
    def item(self) -> str:
        """The id of its op or loop."""
        return self.place.partition(".")[0]

    def matches(self, at: str) -> bool:
        """Whether ``model.py:48 <- up`` or ``model.py:48 <- up in add`` names this use; the name may contain ``*``."""
        line, _, name = at.partition(" <- ")
        here = f"/{self.line.file}:{self.line.line}".endswith("/" + line.lstrip("/"))
        pattern = name.replace("[", "[[]")
        return here and any(fnmatch.fnmatchcase(n, pattern) for n in (self.name, f"{self.name} in {self.op}"))


def named_uses(program: Program) -> list[NamedUse]:
    """Lists the operands of all ops, loops and branches of a program."""
    named = []
    for op in program.ops:
        named += [
            NamedUse(f"{op.id}.{i}", op.place, x.name, op.name, x) for i, x in enumerate(op.operands) if is_value(x)
        ]
    for item in (item for item, _ in walk(program.items) if not isinstance(item, Op)):
        kinds: list[tuple[str, Sequence[tuple[Operand, ...]]]] = (
            [("join", [xs for xs, _ in item.joins()])]
            if isinstance(item, Branches)
            else [
                ("carry", [(first, after) for first, _, after, _ in item.carries()]),
                *(
                    (kind, [(x,) for x, _ in each])
                    for kind, each in (("slice", item.slices()), ("stack", item.stacks()))
                ),
            ]
        )
        named += [
            NamedUse(
                f"{item.id}.{kind}.{i}.{k}",
                item.place,
                f"carry[{i}]" if kind == "carry" else x.name,
                item.eqn.primitive.name,
                x,
            )
            for kind, each in kinds
            for i, xs in enumerate(each)
            for k, x in enumerate(xs)
            if is_value(x)
        ]
    return named


def names_by_place(named: Sequence[NamedUse]) -> dict[str, str]:
    """The name of each place for `at=`: line and value, and the op where several ops on the line use the value."""
    ops: dict[tuple[SourceLine, str], set[str]] = {}
    for t in named:
        ops.setdefault((t.line, t.name), set()).add(t.op)
    return {
        t.place: f"{t.line} <- {t.name}" + (f" in {t.op}" if len(ops[t.line, t.name]) > 1 else "")
        for t in named
        if t.line.file
    }


def no_such_use(at: str, named: Sequence[NamedUse]) -> ShardingTypeError:
    """The error for an `at=` name that matches no use, with similar names as hints."""
    names = list(dict.fromkeys(names_by_place(named).values()))
    here = [name for name in names if name.partition(" <- ")[0] == at.partition(" <- ")[0]]
    near = here[:5] or difflib.get_close_matches(at, names, n=3, cutoff=0.3) or names[:3]
    return ShardingTypeError(
        f"no line takes a value as `{at}` says",
        why="it is a line, and the value that it takes: the path of an argument, what made it, or a carry",
        hints=[f'at={{"{name}": ...}}' for name in near],
    )


def with_types_at(decisions: Decisions, program: Program, at: Mapping[str, Any]) -> Decisions:
    """Replaces the types of the uses that ``at`` names; raises if a name matches none or a type does not parse."""
    every, mesh = named_uses(program), decisions.mesh
    casts = dict(decisions.casts)
    for name, target in at.items():
        matching = [t for t in every if t.matches(name)]
        if not matching:
            raise no_such_use(name, every)
        for t in matching:
            like = typed(mesh, t.value.dtype, t.value.shape, [REDUCED] * len(mesh.axis_names))
            to = target if isinstance(target, ShType) else ShType.parse(target, mesh, like=like)
            casts[t.place] = PlannedCast(to)
    used_copies = {f"second.{t.value.id}" for t in every if casts.get(t.place, PlannedCast()).from_copy}
    used_copies |= {
        f"second.{v.id}"
        for i, v in enumerate(program.outputs)
        if isinstance(v, Value) and casts.get(f"result.{i}", PlannedCast()).from_copy
    }
    used = {place: c for place, c in casts.items() if not place.startswith("second.") or place in used_copies}
    return decisions._replace(casts=used)


def to_decisions(costs: Costs, assignment: Assignment, transfers: Sequence[Transfer]) -> Decisions:
    """The decisions of an assignment."""
    graph = costs.graph
    arguments = []
    for v in graph.program.inputs:
        if v.id in graph.source:
            node, k = graph.source[v.id]
            arguments.append(costs.typed(node, v, costs.result_states(node, costs.row(node, assignment), k)))
    casts = {
        t.use.place: PlannedCast(t.dst if t.src != t.dst else None, t.from_copy)
        for t in transfers
        if t.src != t.dst or t.from_copy
    }
    for node in graph.nodes:
        row = costs.row(node, assignment)
        for i, x in enumerate(node.operands if node.op is not None or node.kind in ("carry", "join") else ()):
            if isinstance(x, Value) and not is_value(x) and (states := costs.operand_states(node, row, i)).any():
                casts[node.place(i)] = PlannedCast(costs.typed(node, x, states))
    ways = {n.id: {o.way for o in costs.chosen(n, assignment[n.id]) if o.across_shards} for n in graph.decisions}
    across_shards = {
        node.op.id: next(iter(some)) if len(some) == 1 else None
        for node in graph.nodes
        if node.op is not None and (some := ways[node.leader.id])
    }
    return Decisions(graph.mesh, tuple(arguments), casts, across_shards)


def typed_function(program: Function, decisions: Decisions, *, folds: bool = False) -> Callable[..., Any]:
    """The typed function of a plan. It casts plain arguments to the plan's types, and typed ones must have them.

    If it ``folds``, equal layers are calls of one program, which is typed once.
    """
    run = _Evaluator(program, decisions, lambda x, t, **_: recorded_op("reshard", x, target_text(t)), folds=folds)

    def of_arrays(*arrays: Any) -> Any:
        return jax.tree.unflatten(program.out_tree, run(arrays))

    def f(*args: Any) -> Any:
        flat: tuple[list[Any], Any] = jax.tree.flatten(args)
        leaves, tree = flat
        if tree != program.tree:
            raise ShardingTypeError(
                f"the plan is for arguments of another structure than `{program.name}` was given",
                why=f"they are {tree}, and were {program.tree}",
            )
        arrays = [x for x, a in zip(leaves, program.is_array, strict=True) if a]
        return lifted(*map(_as_argument, arrays, program.inputs, decisions.arguments))

    of_arrays.__name__ = of_arrays.__qualname__ = f.__name__ = f.__qualname__ = program.name
    lifted = lift(of_arrays)
    return f


def _as_argument(x: Any, v: Value, t: ShType) -> Any:
    """Casts a plain argument to the plan's type; raises if a typed one has another type."""
    if not isinstance(x, Array):
        return array(x, t)
    if x.type != t:
        raise ShardingTypeError(
            f"argument `{v.name}` is {x.type}, and the plan has it as {t}", hints=[f'sh.reshard(x, "{target_text(t)}")']
        )
    return x


def evaluation(program: Program, decisions: Decisions) -> Callable[..., list[Any]]:
    """A function of flat inputs for `lift`, in which the planned reshards count as inserted."""
    run = _Evaluator(program, decisions, inserted_cast)
    return lambda *arrays: run(arrays)


class _Evaluator:
    """Evaluates a program with the planned reshards."""

    def __init__(
        self, program: Program, decisions: Decisions, reshard: Callable[..., Any], *, folds: bool = False
    ) -> None:
        self.program, self.decisions, self.reshard = program, decisions, reshard
        self._layers = layers(program, decisions.casts, decisions.across_shards) if folds else {}
        self._calls: dict[Any, Callable[..., Any]] = {}  # by the form of a layer

    def _resharded(self, x: Any, t: ShType | None, **options: bool) -> Any:
        return x if t is None else self.reshard(x, t, **options)

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        env: dict[Any, Any] = {}
        uses = {x.id: op.eqn for op in reversed(self.program.ops) for x in op.operands if isinstance(x, Value)}
        for v, x in zip(self.program.inputs, arrays, strict=True):
            eqn = uses.get(v.id)  # its shared copy belongs to the line of its first use
            with contextlib.nullcontext() if eqn is None else as_written(eqn, eqn.source_info.traceback):
                self._put(env, v, x)
        items, at = self.program.items, 0
        while at < len(items):
            layer = self._layers.get(at)
            if layer is None:
                self._items(items[at : at + 1], env)
                at += 1
            else:
                if layer.form not in self._calls:
                    self._calls[layer.form] = typed_once(functools.partial(self._layer, layer))
                outs = self._calls[layer.form]([self._input(env, key) for key in layer.inputs])
                env.update(zip(layer.outputs, outs, strict=True))
                at = layer.steps.stop
        return [self._get(env, v, f"result.{i}") for i, v in enumerate(self.program.outputs)]

    def _input(self, env: dict[Any, Any], key: Any) -> Any:
        """An input of a layer, which other layers may take resharded alike."""
        if key not in env:
            value, to = key
            env[key] = self._resharded(env[value], to)
        return env[key]

    def _layer(self, layer: Layer, values: Sequence[Any]) -> list[Any]:
        env = dict(zip(layer.inputs, values, strict=True))
        self._items([self.program.items[i] for i in layer.steps], env)
        return [env[key] for key in layer.outputs]

    def _put(self, env: dict[Any, Any], v: Value, x: Any) -> None:
        env[v.id] = x
        if v.id not in self.program.entering:
            self._add_copy(env, v.id)

    def _add_copy(self, env: dict[Any, Any], v: int) -> None:
        """Adds the shared copy of a value to the environment, if the plan has one."""
        cast = self.decisions.casts.get(f"second.{v}")
        if cast is not None:
            env["copy", v] = self._resharded(env[v], cast.to)

    def _get(self, env: dict[Any, Any], x: Operand, place: str, **options: bool) -> Any:
        if not isinstance(x, Value):
            return x
        cast = self.decisions.casts.get(place, PlannedCast())
        copy = ("copy", x.id)
        key = copy if cast.from_copy and copy in env else x.id
        moved = (key, cast.to)
        return env[moved] if moved in env else self._resharded(env.get(key, x.captured), cast.to, **options)

    def _items(self, items: Sequence[Item], env: dict[Any, Any]) -> None:
        for item in items:
            if isinstance(item, Op):
                self._op(item, env)
            elif isinstance(item, Loop):
                self._loop(item, env)
            elif isinstance(item, Branches):
                self._branches(item, env)
            else:
                self._checkpoint(item, env)

    def _op(self, op: Op, env: dict[Any, Any]) -> None:
        constant = not any(dtypes.differentiable(v.dtype) for v in op.results)
        ways = self.decisions.across_shards
        scope = _across_shards(ways[op.id]) if op.id in ways else contextlib.nullcontext()
        with as_written(op.eqn, op.eqn.source_info.traceback):
            recorded = set_at(op.eqn) or InForce()
            with settings(recorded), in_force((*rules_in_force(), *recorded.rules)), scope:
                xs = [self._get(env, x, f"{op.id}.{i}", constant=constant) for i, x in enumerate(op.operands)]
                outs = bind_eqn(op.eqn, xs)
            for v, x in zip(op.results, outs, strict=True):
                self._put(env, v, x)

    def _loop(self, loop: Loop, env: dict[Any, Any]) -> None:
        carries, slices, stacks = list(loop.carries()), list(loop.slices()), list(loop.stacks())

        def evaluated(items: Sequence[Item], inputs: Sequence[Any]) -> dict[Any, Any]:
            inner = dict(env)
            for v, x in zip(loop.inputs, inputs, strict=True):
                self._put(inner, v, x)
            self._items(items, inner)
            return inner

        def predicate(carry: Any) -> Any:
            return self._get(evaluated(loop.items[: loop.tests], carry), loop.predicate, f"{loop.id}.predicate")

        def body(carry: Any, xs: Any = ()) -> Any:
            inner = evaluated(loop.items[loop.tests :], (*carry, *xs))
            after = [self._get(inner, x, f"{loop.id}.carry.{i}.1") for i, (_, _, x, _) in enumerate(carries)]
            return after, [self._get(inner, y, f"{loop.id}.stack.{i}.0") for i, (y, _) in enumerate(stacks)]

        with as_written(loop.eqn, loop.eqn.source_info.traceback):
            first = [
                _array(self._get(env, x, f"{loop.id}.carry.{i}.0"), loop.eqn.outvars[i].aval.dtype)
                for i, (x, *_) in enumerate(carries)
            ]
            xs = [self._get(env, x, f"{loop.id}.slice.{i}.0") for i, (x, _) in enumerate(slices)]
            if loop.predicate is None:
                scan, how = jax.lax.scan, loop.scan
                last, stacked = scan(body, first, xs, length=how.length, reverse=how.reverse, unroll=how.unroll)
            else:
                last, stacked = jax.lax.while_loop(predicate, lambda carry: body(carry)[0], first), []
            for v, x in zip(loop.results, (*last, *stacked), strict=True):
                self._put(env, v, x)

    def _branches(self, item: Branches, env: dict[Any, Any]) -> None:
        def run(k: int, branch: Branch) -> list[Any]:
            inner = dict(env)
            self._items(branch.items, inner)
            return [
                _array(self._get(inner, x, f"{item.id}.join.{i}.{k}"), item.eqn.outvars[i].aval.dtype)
                for i, x in enumerate(branch.outputs)
            ]

        with as_written(item.eqn, item.eqn.source_info.traceback):
            index = self._get(env, item.operands[0], f"{item.id}.index")
            functions = [functools.partial(run, k, branch) for k, branch in enumerate(item.branches)]
            for v, x in zip(item.results, jax.lax.switch(index, functions), strict=True):
                self._put(env, v, x)

    def _checkpoint(self, item: Checkpoint, env: dict[Any, Any]) -> None:
        before, outputs = list(env), list[Any]()

        def body(*values: Any) -> list[Any]:
            inner = dict(zip(before, values, strict=True))
            for v, place in self.program.entering.items():
                if place == item.id:
                    self._add_copy(inner, v)
            self._items(item.items, inner)
            keys = (key for v in item.results for key in (v.id, ("copy", v.id)))
            outputs[:] = [key for key in keys if key in inner and key not in env]  # the others pass through
            return [inner[key] for key in outputs]

        values = [env[key] for key in before]
        if item.eqn is None:  # in a scan, where XLA merges nothing with the forward pass
            outs = bind_checkpoint(body, values, False, policy=None, differentiated=False)
        else:
            prevent, policy, differentiated = map(item.eqn.params.get, ("prevent_cse", "policy", "differentiated"))
            if not isinstance(prevent, bool):
                of = {x.id: each for x, each in zip(item.operands, prevent, strict=True) if isinstance(x, Value)}
                prevent = [of.get(key[1] if isinstance(key, tuple) else key, False) for key in before]
            with as_written(item.eqn, item.eqn.source_info.traceback):
                outs = bind_checkpoint(body, values, prevent, policy=policy, differentiated=differentiated)
        env.update(zip(outputs, outs, strict=True))


def _across_shards(way: int | None) -> contextlib.AbstractContextManager[Any]:
    """A scope in which an op works across shards, by the given algorithm."""
    return CommScope(replace(objective(), joint=False, way=way))


def _array(x: Any, dtype: Any) -> Any:
    """Converts a Python scalar to an array, as the first value of a carry."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x, dtype)
