"""Public conversions between typed values, host arrays and `jax.Array`s."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shtypes._compat import no_trace_is_running
from shtypes._compat.tracing import refuse_escaped
from shtypes.context.eqn_source import is_tracing_plain
from shtypes.context.scope import Scope, changed
from shtypes.context.signature_errors import refuse_unknown
from shtypes.context.user_line import public
from shtypes.core.array import Array, wrap
from shtypes.core.array import install as install
from shtypes.core.checks import check_values, checks_are_on
from shtypes.core.device_put import from_concrete_p, from_jax_p, place, to_jax_p, type_of
from shtypes.core.host import canonical, converted, host_array, refuse_hidden
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.meshes import to_mesh
from shtypes.core.physical import physical_sharding
from shtypes.core.reshard import move
from shtypes.errors import ShardingTypeError
from shtypes.scopes.check_comm import check_comm, check_leaving, check_now
from shtypes.scopes.scope_rules import allows_implicit, rules_in_force
from shtypes.types import Dim, ShType, State, dtypes
from shtypes.types.mesh import current_mesh


def type_by_jax(x: Any, mesh: Any = None) -> HiShType:
    """The type of an array by JAX's sharding: S where sharded, R where reduced, U where unreduced, else I."""
    aval = jax.typeof(x)
    refuse_escaped(x)
    sharding = aval.sharding
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and isinstance(x.sharding, jax.NamedSharding):
        sharding = x.sharding
    jax_mesh = sharding.mesh
    spec: Any = sharding.spec
    if jax_mesh.empty:
        typed_mesh = to_mesh(mesh) if mesh is not None else current_mesh()
        spec = ()
    else:
        typed_mesh = to_mesh(jax_mesh)
        _refuse_auto(x, aval, jax_mesh)
    dims = [Dim(n) for n in aval.shape]
    for i, entry in enumerate(getattr(spec, "partitions", ())):
        dims[i] = Dim(aval.shape[i], (entry,) if isinstance(entry, str) else tuple(entry or ()))
    sharded = {a for d in dims for a in d.axes}
    reduced, unreduced = _reduced_and_unreduced(spec)
    states = {
        a: State.REDUCED if a in reduced else State.UNREDUCED if a in unreduced else State.INVARIANT
        for a in typed_mesh.axis_names
        if a not in sharded
    }
    return as_jax_type(ShType(typed_mesh, dtypes.from_numpy(aval.dtype), dims, states))


def _reduced_and_unreduced(spec: Any) -> tuple[frozenset[str], frozenset[str]]:
    """The reduced and unreduced axes of a spec."""
    kind = str(getattr(spec, "unreduced_kind", None) or "sum").lower()
    unreduced = frozenset(getattr(spec, "unreduced", ()) or ())
    if unreduced and "sum" not in kind and "add" not in kind:
        raise ShardingTypeError(
            f"an array that is unreduced by {kind} cannot be typed",
            why="`U` denotes a pending sum",
            hints=["reshard it first"],
        )
    return frozenset(getattr(spec, "reduced", ()) or ()), unreduced


def _refuse_auto(x: Any, aval: Any, mesh: Any) -> None:
    concrete = isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)
    auto = [a for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == jax.sharding.AxisType.Auto]
    if auto and not concrete:
        error = ShardingTypeError(
            f"{aval} says nothing about mesh axis `{auto[0]}`: JAX's automatic mode owns it",
            hints=["give the type: sh.from_jax(x, type)", "use a mesh of explicit axes: sh.make_mesh(...)"],
        )
        error.of_plain = True  # the function is a plain program
        raise error


def _type_or_target(x: Any, target: ShType | None, mesh: Any) -> HiShType:
    """The array's type by JAX; if JAX does not track it, the sharded dims of ``target``, invariant elsewhere."""
    tracked = any(kind == jax.sharding.AxisType.Explicit for kind in jax.typeof(x).sharding.mesh.axis_types)
    if target is None or tracked:
        return type_by_jax(x, mesh)
    rest = {a: State.INVARIANT for a in target.mesh.axis_names if target.dim_of(a) is None}
    return as_jax_type(target.replace(states=rest))


def convert(x: Any, type: Any = None, *, mesh: Any = None) -> Array:
    """`from_jax`, for other modules: errors point to the user's call of those."""
    if isinstance(x, Array):
        raise ShardingTypeError(f"the value has a type already, {jax.typeof(x)}", hints=["sh.reshard(x, type)"])
    if not isinstance(x, (jax.Array, jax.core.Tracer)):
        raise ShardingTypeError(
            f"`from_jax` takes a jax.Array, not {x.__class__.__name__}", hints=["sh.array(x, type)"]
        )
    target = None
    if type is not None:
        jax_mesh, dtype = jax.typeof(x).sharding.mesh, dtypes.from_numpy(x.dtype)
        target_mesh = to_mesh(mesh) if mesh is not None else None if jax_mesh.empty else to_mesh(jax_mesh)
        target = as_jax_type(type_of(type, target_mesh, shape=tuple(x.shape), dtype=dtype))
        if target.dtype_name != dtype:
            raise ShardingTypeError(f"an array of dtype {dtype} is not of type {target}", hints=["x.astype(...) first"])
    traced = isinstance(x, jax.core.Tracer)
    if traced and is_tracing_plain():
        current_mesh()  # without a mesh, evaluation gives it a type, by the program's typed values
    if not traced and no_trace_is_running():
        value = _concrete(x, target, mesh)
        if checks_are_on():
            check_values("from_jax", [value], inputs=True)
    else:
        has_sharding = not traced and isinstance(x.sharding, jax.NamedSharding)
        t = type_by_jax(x, mesh) if has_sharding else _type_or_target(x, target, mesh)
        _refuse_pending(t)
        value = (from_jax_p if traced else from_concrete_p).bind(x, ty=t)
        check_now()
    if target is None:
        return value
    check_comm("from_jax", jax.typeof(value), target, has_gradient=traced)
    return move(value, target, constant=not traced)


def _refuse_pending(t: ShType) -> None:
    for state in (State.UNREDUCED, State.REDUCED):
        if t.axes(state) and (t.differentiable or state is State.UNREDUCED):  # for integers, reduced equals invariant
            raise ShardingTypeError(
                f"a plain array of type {t} cannot be typed inside a traced function",
                why="JAX's own reduced and unreduced arrays have no form that both sides share",
                hints=[
                    "convert it outside: sh.from_jax on the concrete array",
                    "jax.reshard it to a replicated or sharded type first",
                ],
            )


def _concrete(x: Any, target: HiShType | None, mesh: Any) -> Array:
    """A concrete array as a value of its sharding's type, with the same buffers if possible."""
    if isinstance(x.sharding, jax.NamedSharding):
        t = type_by_jax(x, mesh)
        if t.axes(State.UNREDUCED):
            return _unreduced(x, t)
        devices: Any = x.sharding.mesh
        return wrap(t, jax.device_put(x, physical_sharding(t, devices)))
    typed_mesh = target.mesh if target is not None else to_mesh(mesh) if mesh is not None else current_mesh()
    states = dict.fromkeys(typed_mesh.axis_names, State.INVARIANT)
    return place(x, as_jax_type(ShType(typed_mesh, dtypes.from_numpy(x.dtype), list(x.shape), states)))


def _unreduced(x: Any, t: HiShType) -> Array:
    """Converts JAX's unreduced array: a device's partial sum is its slice along one more dim per axis."""
    shape = tuple(t.mesh.shape[a] for a in t.axes(State.UNREDUCED))
    # via the host: an op on one device's shard would use the mesh in context
    parts = [
        jax.device_put(np.asarray(s.data).reshape(s.data.shape + (1,) * len(shape)), s.device)
        for s in x.addressable_shards
    ]
    data = jax.make_array_from_single_device_arrays(t.shape + shape, physical_sharding(t, x.sharding.mesh), parts)
    return wrap(t, data)


# conversions to typed values


@public
def abstract_array(type: Any, mesh: Any = None, **options: Any) -> Array:
    """An abstract value: for `jax.eval_shape`, `jax.make_jaxpr`, ``.lower()`` and checks without devices.

    Args:
        type: A type, also as a string.
        mesh: The mesh of a string; by default the one in context.
        **options: As for `ShType.parse`: ``dims``, ``dtype``, ``like``, ``policy``, ``shape``.
    """
    refuse_unknown("abstract_array", options, ("dims", "dtype", "like", "policy", "shape"))
    return wrap(as_jax_type(type_of(type, mesh, **options)), None)


def abstract(x: Any) -> Any:
    """A type, also as a string, as an abstract value; anything else is unchanged."""
    return wrap(as_jax_type(type_of(x)), None) if isinstance(x, (str, ShType)) else x


@public
def array(x: Any, type: Any = None, *, mesh: Any = None) -> Array:
    """A typed value from a host array, which is copied, a number or a plain `jax.Array`.

    Args:
        x (...): The global value, the same in every process.
        type: A string such as ``"f32[seq, batch@dp, hidden]"``, a `ShType` or a `jax.P`; by default replicated on every
            axis, by policy.
        mesh: The mesh of a string; by default the one in context.

    Returns:
        (...): The value with that type. An unreduced axis holds the value on index 0 and zeros elsewhere.

    Raises:
        ShardingTypeError: the type does not fit the array, or is varying.

    Communicates: nothing (each device is sent its shard).
    """
    if isinstance(x, jax.core.Tracer):
        return from_jax(x, type, mesh=mesh)
    if isinstance(x, Array):
        raise ShardingTypeError(f"the value has a type already, {x.type}", hints=["sh.reshard(x, type)"])
    host = x if isinstance(x, jax.Array) else host_array(x)
    host_dtype, t = dtypes.from_numpy(host.dtype), type_for(host, type, mesh)
    if _is_sharded(host) and (rules_in_force() or not no_trace_is_running()):
        return from_jax(host, t)  # checks the communication
    return place(converted(host, host_dtype, t), t)


def type_for(x: Any, type: Any = None, mesh: Any = None) -> HiShType:
    """The type that `array` gives to an object with a shape and a dtype."""
    dtype = dtypes.from_numpy(x.dtype)
    target = "[...]" if type is None else type
    says_dtype = isinstance(target, ShType) or (isinstance(target, str) and target.lstrip()[:1] not in ("[", "{", ""))
    default = None if says_dtype else dtype if dtypes.is_key(dtype) else dtypes.from_numpy(canonical(x.dtype))
    return as_jax_type(type_of(target, mesh, shape=tuple(x.shape), dtype=default))


def _is_sharded(x: Any) -> bool:
    """Whether an array is sharded over several devices."""
    return isinstance(x, jax.Array) and isinstance(x.sharding, NamedSharding) and not x.sharding.is_fully_replicated


def without_data() -> Scope:
    """A scope in which host arrays become abstract values, so that a program can make its arguments without devices."""
    return changed(lambda s: s._replace(only_types=True))


@public
def from_jax(x: Any, type: Any = None, *, mesh: Any = None) -> Array:
    """A typed value from a plain `jax.Array`, concrete or traced.

    Args:
        x (...): The array. Its type is by JAX's sharding: sharded, reduced, unreduced, or else invariant.
        type: Another type, to which it is resharded from that one.
        mesh: The mesh, if neither the array nor the context has one.

    Returns:
        (...): The typed value.

    Raises:
        ShardingTypeError: a mesh axis is of JAX's auto type and there is no ``type``; the type does not fit.

    Communicates: the reshard to ``type``; nothing without it.
    Transpose: `to_jax`.
    """
    return convert(x, type, mesh=mesh)


@public
def to_jax(x: Array) -> Any:
    """A typed value as a plain `jax.Array`, for any JAX function.

    Args:
        x (...): Sharded, reduced or invariant on each axis. Reduced axes become invariant, free in both directions.

    Returns:
        (...): The same global array with the same sharding; no copy.

    Raises:
        ShardingTypeError: the value is unreduced or varying.

    Communicates: nothing. Transpose: `from_jax`.
    """
    t = typeof(x)
    pending = t.axes(State.UNREDUCED)
    if pending and allows_implicit():
        target = t.with_axes(pending, State.INVARIANT)
        check_comm("to_jax", t, target, inserted=True)
        x, t = move(x, target, inserted=True), target
    refuse_hidden(t, "become a plain array", returns=True)
    check_leaving(t)
    if type(x) is Array and no_trace_is_running():
        if x.data is None:
            raise ShardingTypeError(f"a value that has only a type, {t}, has no data")
        return x.data
    return to_jax_p.bind(
        move(x, t.replace(states=tuple(State.INVARIANT if s is State.REDUCED else s for s in t.states)))
    )


@public
def typeof(x: Any) -> HiShType:
    """The sharding type of a typed value or tracer; equal to `jax.typeof`.

    Raises:
        ShardingTypeError: ``x`` has none.
    """
    if type(x) is Array:
        array_type: HiShType = x.type
        return array_type
    t = jax.typeof(x) if isinstance(x, jax.core.Tracer) else None
    if type(t) is not HiShType:
        raise ShardingTypeError(
            f"a value without a sharding type was given: {_describe(x)}",
            hints=["sh.array(x, type) for a host array", "sh.from_jax(x) for a jax.Array"],
        )
    return t


def _describe(x: Any) -> str:
    if isinstance(x, (jax.Array, jax.core.Tracer)):
        return f"a plain array of type {jax.typeof(x)}"
    if isinstance(x, np.ndarray):
        return f"a numpy array of shape {x.shape}"
    return f"{x!r:.60} ({type(x).__name__})"


install({}, {"to_jax": to_jax}, {})
