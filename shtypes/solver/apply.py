"""A plan written into the function that it is of: the same operations, with reshards at their operands."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shtypes._compat.in_force import InForce, set_at, settings
from shtypes._compat.jaxprs import bound
from shtypes._compat.plain_programs import as_written
from shtypes.core.array import Array
from shtypes.core.conversion import array
from shtypes.errors import ShardingTypeError
from shtypes.lifting.lift import lift
from shtypes.lifting.recorded_calls import inserted_cast, recorded_op
from shtypes.scopes.comm import in_force, rules_in_force
from shtypes.solver.axis_states import REDUCED, typed
from shtypes.solver.items import Checkpoint, Item, Loop, Op, Operand, Value, is_value
from shtypes.solver.options import across
from shtypes.solver.program import Function, Program
from shtypes.solver.tables import Assignment, Costs, Way
from shtypes.traced.equations import SourceLine
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.target import target_text


class Written(NamedTuple):
    """What is written at a place of a program."""

    to: ShType | None = None  # the type that the value is brought to; None where it stays as it is
    second: bool = False  # whether it is brought there from its second form


class Decisions(NamedTuple):
    """All that a plan decides."""

    mesh: Mesh
    arguments: tuple[ShType, ...]  # the types of all arguments that are arrays
    #: What is written at each place: ``12.0`` is operand 0 of item 12, ``second.7`` the second form of value 7; and
    #: ``result.0``.
    places: Mapping[str, Written] = {}
    #: The numbers of the equations along a sharded dim that communicate, and the ways in which they do.
    joined: Mapping[int, int | None] = {}


class Taken(NamedTuple):
    """A value that a line takes: the place, the line, what the value is called there, what takes it, and the value."""

    place: str
    line: SourceLine
    name: str
    op: str
    value: Value

    def fits(self, at: str) -> bool:
        """Whether ``model.py:48 <- up`` or ``model.py:48 <- up in add`` says it; ``*`` is anything in the name."""
        line, _, name = at.partition(" <- ")
        here = f"/{self.line.file}:{self.line.line}".endswith("/" + line.lstrip("/"))
        pattern = name.replace("[", "[[]")
        return here and any(fnmatch.fnmatchcase(n, pattern) for n in (self.name, f"{self.name} in {self.op}"))


def taken(program: Program) -> list[Taken]:
    """What all lines of a program take."""
    found = []
    for op in program.ops:
        found += [Taken(f"{op.id}.{i}", op.place, x.name, op.name, x) for i, x in enumerate(op.operands) if is_value(x)]
    for loop in program.loops:
        for i, (first, _, after, _) in enumerate(loop.carries()):
            uses = [(j, x) for j, x in enumerate((first, after)) if is_value(x)]
            found += [Taken(f"{loop.id}.carry.{i}.{j}", loop.place, f"carry[{i}]", "scan", x) for j, x in uses]
        for kind, each in (("slice", loop.slices()), ("stack", loop.stacks())):
            uses = [(i, x) for i, (x, _) in enumerate(each) if is_value(x)]
            found += [Taken(f"{loop.id}.{kind}.{i}.0", loop.place, x.name, "scan", x) for i, x in uses]
    return found


def names_of(found: Sequence[Taken]) -> dict[str, str]:
    """What `at=` calls each place: the line and the value, and what takes it where several on the line do."""
    ops: dict[tuple[SourceLine, str], set[str]] = {}
    for t in found:
        ops.setdefault((t.line, t.name), set()).add(t.op)
    return {
        t.place: f"{t.line} <- {t.name}" + (f" in {t.op}" if len(ops[t.line, t.name]) > 1 else "")
        for t in found
        if t.line.file
    }


def unknown(at: str, found: Sequence[Taken]) -> ShardingTypeError:
    """Says that no line takes such a value, and which are like it."""
    names = list(dict.fromkeys(names_of(found).values()))
    here = [name for name in names if name.partition(" <- ")[0] == at.partition(" <- ")[0]]
    near = here[:5] or difflib.get_close_matches(at, names, n=3, cutoff=0.3) or names[:3]
    return ShardingTypeError(
        f"no line takes a value as `{at}` says",
        why="it is a line, and the value that it takes: the path of an argument, what made it, or a carry",
        hints=[f'at={{"{name}": ...}}' for name in near],
    )


def with_types_at(decisions: Decisions, program: Program, at: Mapping[str, Any]) -> Decisions:
    """The decisions, with other types of what lines take; an error where none does, or one does not fit."""
    every, mesh = taken(program), decisions.mesh
    places = dict(decisions.places)
    for name, said in at.items():
        fitting = [t for t in every if t.fits(name)]
        if not fitting:
            raise unknown(name, every)
        for t in fitting:
            like = typed(mesh, t.value.dtype, t.value.shape, [REDUCED] * len(mesh.axis_names))
            places[t.place] = Written(said if isinstance(said, ShType) else ShType.parse(said, mesh, like=like))
    second = {f"second.{t.value.id}" for t in every if places.get(t.place, Written()).second}
    second |= {
        f"second.{v.id}"
        for i, v in enumerate(program.outputs)
        if isinstance(v, Value) and places.get(f"result.{i}", Written()).second
    }
    kept = {place: w for place, w in places.items() if not place.startswith("second.") or place in second}
    return decisions._replace(places=kept)


def decided(costs: Costs, now: Assignment, ways: Sequence[Way]) -> Decisions:
    """The decisions of an assignment."""
    graph = costs.graph
    arguments = []
    for v in graph.program.inputs:
        if v.id in graph.source:
            node, k = graph.source[v.id]
            arguments.append(costs.typed(node, v, costs.made(node, costs.row(node, now), k)))
    places = {
        way.use.place: Written(way.dst if way.src != way.dst else None, way.second)
        for way in ways
        if way.src != way.dst or way.second
    }
    joined: dict[int, int | None] = {}
    for node in graph.nodes:
        ways_of_op = (
            {o.way for o in costs.chosen(node, now[node.first.id]) if o.joins} if node.op is not None else set()
        )
        if node.op is not None and ways_of_op:
            joined[node.op.id] = ways_of_op.pop() if len(ways_of_op) == 1 else None
    return Decisions(graph.mesh, tuple(arguments), places, joined)


def typed_function(program: Function, decisions: Decisions) -> Callable[..., Any]:
    """The function of typed values; plain arrays are given the types of the plan, others must have them."""
    run = _Run(program, decisions, lambda x, t, **_: recorded_op("reshard", x, target_text(t)))

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
        return lifted(*map(_given, arrays, program.inputs, decisions.arguments))

    of_arrays.__name__ = of_arrays.__qualname__ = f.__name__ = f.__qualname__ = program.name
    lifted = lift(of_arrays)
    return f


def _given(x: Any, v: Value, t: ShType) -> Any:
    """An argument in the type of a plan."""
    if not isinstance(x, Array):
        return array(x, t)
    if x.type != t:
        raise ShardingTypeError(
            f"argument `{v.name}` is {x.type}, and the plan has it as {t}", hints=[f'sh.reshard(x, "{target_text(t)}")']
        )
    return x


def evaluation(program: Program, decisions: Decisions) -> Callable[..., list[Any]]:
    """A program of flat inputs with the reshards in it, which nobody wrote, as a plain function that `lift` types."""
    run = _Run(program, decisions, inserted_cast)
    return lambda *arrays: run(arrays)


class _Run:
    """One evaluation of a program, with what is written into it."""

    def __init__(self, program: Program, decisions: Decisions, reshard: Callable[..., Any]) -> None:
        self.program, self.decisions, self.reshard = program, decisions, reshard

    def _resharded(self, x: Any, t: ShType | None, **options: bool) -> Any:
        return x if t is None else self.reshard(x, t, **options)

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        env: dict[Any, Any] = {}
        uses = {x.id: op.eqn for op in reversed(self.program.ops) for x in op.operands if isinstance(x, Value)}
        for v, x in zip(self.program.inputs, arrays, strict=True):
            eqn = uses.get(v.id)  # its second form is written where it is used first
            with contextlib.nullcontext() if eqn is None else as_written(eqn, eqn.source_info.traceback):
                self._put(env, v, x)
        self._items(self.program.items, env)
        return [self._get(env, v, f"result.{i}") for i, v in enumerate(self.program.outputs)]

    def _put(self, env: dict[Any, Any], v: Value, x: Any) -> None:
        env[v.id] = x
        if v.id not in self.program.entering:
            self._second(env, v.id)

    def _second(self, env: dict[Any, Any], v: int) -> None:
        """Makes the second form of a value, if it has one."""
        second = self.decisions.places.get(f"second.{v}")
        if second is not None:
            env["second", v] = self._resharded(env[v], second.to)

    def _get(self, env: dict[Any, Any], x: Operand, place: str, **options: bool) -> Any:
        if not isinstance(x, Value):
            return x
        if x.id not in env:
            return x.number
        written = self.decisions.places.get(place, Written())
        value = env.get(("second", x.id), env[x.id]) if written.second else env[x.id]
        return self._resharded(value, written.to, **options)

    def _items(self, items: Sequence[Item], env: dict[Any, Any]) -> None:
        for item in items:
            if isinstance(item, Op):
                self._op(item, env)
            elif isinstance(item, Loop):
                self._loop(item, env)
            else:
                self._checkpoint(item, env)

    def _op(self, op: Op, env: dict[Any, Any]) -> None:
        constant = not any(dtypes.differentiable(v.dtype) for v in op.results)
        joined = across([self.decisions.joined[op.id]] if op.id in self.decisions.joined else ())
        with as_written(op.eqn, op.eqn.source_info.traceback):
            own = set_at(op.eqn) or InForce()
            with settings(own), in_force((*rules_in_force(), *own.rules)), joined:
                xs = [self._get(env, x, f"{op.id}.{i}", constant=constant) for i, x in enumerate(op.operands)]
                outs = bound(op.eqn, xs)
            for v, x in zip(op.results, outs, strict=True):
                self._put(env, v, x)

    def _loop(self, loop: Loop, env: dict[Any, Any]) -> None:
        carries, slices, stacks = list(loop.carries()), list(loop.slices()), list(loop.stacks())

        def body(carry: Any, xs: Any) -> Any:
            inner = dict(env)
            for v, x in zip(loop.inputs, (*carry, *xs), strict=True):
                self._put(inner, v, x)
            self._items(loop.items, inner)
            after = [self._get(inner, x, f"{loop.id}.carry.{i}.1") for i, (_, _, x, _) in enumerate(carries)]
            return after, [self._get(inner, y, f"{loop.id}.stack.{i}.0") for i, (y, _) in enumerate(stacks)]

        with as_written(loop.eqn, loop.eqn.source_info.traceback):
            first = [
                _array(self._get(env, x, f"{loop.id}.carry.{i}.0"), loop.eqn.outvars[i].aval.dtype)
                for i, (x, *_) in enumerate(carries)
            ]
            xs = [self._get(env, x, f"{loop.id}.slice.{i}.0") for i, (x, _) in enumerate(slices)]
            scan = loop.scan
            last, stacked = jax.lax.scan(body, first, xs, length=scan.length, reverse=scan.reverse, unroll=scan.unroll)
            for v, x in zip(loop.results, (*last, *stacked), strict=True):
                self._put(env, v, x)

    def _checkpoint(self, item: Checkpoint, env: dict[Any, Any]) -> None:
        before, made = list(env), list[Any]()

        def body(values: list[Any]) -> Any:
            inner = dict(zip(before, values, strict=True))
            for v, place in self.program.entering.items():
                if place == item.id:
                    self._second(inner, v)
            self._items(item.items, inner)
            forms = (key for v in item.results for key in (v.id, ("second", v.id)))
            made[:] = [key for key in forms if key in inner and key not in env]  # the others pass through
            return [inner[key] for key in made]

        params = {} if item.eqn is None else item.eqn.params  # in a scan nothing is merged with the forward pass
        run = jax.checkpoint(body, policy=params.get("policy"), prevent_cse=params.get("prevent_cse", False))
        outs = run([env[key] for key in before])
        env.update(zip(made, outs, strict=True))


def _array(x: Any, dtype: Any) -> Any:
    """A number as the first value of a carry, which has a dtype."""
    return x if isinstance(x, jax.Array) else jnp.asarray(x, dtype)
