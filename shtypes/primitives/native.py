"""Plain JAX arrays as typed values: what JAX's own types mean in ours."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from shtypes._compat import no_trace_is_running
from shtypes.context.eqn_source import is_tracing_plain
from shtypes.core.array import Array, wrap
from shtypes.core.carrier import carrier_sharding
from shtypes.core.checks import check_values, checks_are_on
from shtypes.core.hitype import HiShType, hi
from shtypes.core.meshes import to_mesh
from shtypes.errors import ShardingTypeError
from shtypes.primitives.doors import from_concrete_p, from_jax_p
from shtypes.primitives.moving import move
from shtypes.primitives.placing import place, type_of
from shtypes.scopes.check_comm import check_comm, check_now
from shtypes.types import Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh, current_mesh


def own_type(x: Any, mesh: Any = None) -> HiShType:
    """The type that JAX's own type of an array means: S where sharded, R where reduced, U where unreduced, else I."""
    aval = jax.typeof(x)
    sharding = aval.sharding
    if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and isinstance(x.sharding, jax.NamedSharding):
        sharding = x.sharding
    found = sharding.mesh
    spec: Any = sharding.spec
    if found.empty:
        where = to_mesh(mesh) if mesh is not None else current_mesh()
        spec = ()
    else:
        where = to_mesh(found)
        _refuse_auto(x, aval, found)
    dims = [Dim(n) for n in aval.shape]
    for i, entry in enumerate(getattr(spec, "partitions", ())):
        dims[i] = Dim(aval.shape[i], (entry,) if isinstance(entry, str) else tuple(entry or ()))
    sharded = {a for d in dims for a in d.axes}
    reduced, unreduced = _pending(spec)
    states = {
        a: State.REDUCED if a in reduced else State.UNREDUCED if a in unreduced else State.INVARIANT
        for a in where.axis_names
        if a not in sharded
    }
    return hi(ShType(where, dtypes.from_numpy(aval.dtype), dims, states))


def _pending(spec: Any) -> tuple[frozenset[str], frozenset[str]]:
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
        error.of_plain = True  # a function that makes such arrays is a plain program
        raise error


def _as_own(x: Any, wanted: ShType | None, mesh: Any) -> HiShType:
    """The array's own type; where JAX cannot say, the sharded dims of the wanted one, invariant elsewhere."""
    tracked = any(kind == jax.sharding.AxisType.Explicit for kind in jax.typeof(x).sharding.mesh.axis_types)
    if wanted is None or tracked:
        return own_type(x, mesh)
    rest = {a: State.INVARIANT for a in wanted.mesh.axis_names if wanted.dim_of(a) is None}
    return hi(wanted.replace(states=rest))


def from_jax(x: Any, type: Any = None, *, mesh: Any = None) -> Array:
    """See `shtypes.from_jax`."""
    if isinstance(x, Array):
        raise ShardingTypeError(f"the value has a type already, {jax.typeof(x)}", hints=["sh.reshard(x, type)"])
    if not isinstance(x, (jax.Array, jax.core.Tracer)):
        raise ShardingTypeError(
            f"`from_jax` takes a jax.Array, not {x.__class__.__name__}", hints=["sh.array(x, type)"]
        )
    where: Mesh | None = None
    if type is not None:
        known = jax.typeof(x).sharding.mesh
        where = to_mesh(mesh) if mesh is not None else None if known.empty else to_mesh(known)
    dtype = dtypes.from_numpy(x.dtype)
    wanted = None if type is None else hi(type_of(type, where, shape=tuple(x.shape), dtype=dtype))
    if wanted is not None and wanted.dtype_name != dtype:
        raise ShardingTypeError(f"an array of dtype {dtype} is not of type {wanted}", hints=["x.astype(...) first"])
    if isinstance(x, jax.core.Tracer) and is_tracing_plain():
        current_mesh()  # without one it gets its type where the program is evaluated, beside whatever typed value
    if not isinstance(x, jax.core.Tracer) and no_trace_is_running():
        own = _concrete(x, wanted, mesh)
        if checks_are_on():
            check_values("from_jax", [own], given=True)
    else:
        traced = isinstance(x, jax.core.Tracer)
        known = not traced and isinstance(x.sharding, jax.NamedSharding)
        t = own_type(x, mesh) if known else _as_own(x, wanted, mesh)
        _refuse_pending(t)
        own = (from_jax_p if traced else from_concrete_p).bind(x, ty=t)
        check_now()
    if wanted is None:
        return own
    constant = not isinstance(x, jax.core.Tracer)
    check_comm("from_jax", jax.typeof(own), wanted, has_gradient=not constant)
    return move(own, wanted, constant=constant)


def _refuse_pending(t: ShType) -> None:
    for state in (State.UNREDUCED, State.REDUCED):
        if t.axes(state) and (t.differentiable or state is State.UNREDUCED):  # integers: reduced is invariant
            raise ShardingTypeError(
                f"a plain array of type {t} cannot be typed inside a traced function",
                why="JAX's own reduced and unreduced arrays have no form that both sides share",
                hints=[
                    "convert it outside: sh.from_jax on the concrete array",
                    "jax.reshard it to a replicated or sharded type first",
                ],
            )


def _concrete(x: Any, wanted: HiShType | None, mesh: Any) -> Array:
    """A concrete array as a value of its own type: the same buffers where they lie right."""
    if isinstance(x.sharding, jax.NamedSharding):
        t = own_type(x, mesh)
        if t.axes(State.UNREDUCED):
            return _unreduced(x, t)
        devices: Any = x.sharding.mesh
        return wrap(t, jax.device_put(x, carrier_sharding(t, devices)))
    where = wanted.mesh if wanted is not None else to_mesh(mesh) if mesh is not None else current_mesh()
    states = dict.fromkeys(where.axis_names, State.INVARIANT)
    t = hi(ShType(where, dtypes.from_numpy(x.dtype), list(x.shape), states))
    return place(x, t)


def _unreduced(x: Any, t: HiShType) -> Array:
    """JAX's unreduced array: the partial sums that its devices hold, behind hidden dims."""
    shape = tuple(t.mesh.shape[a] for a in t.axes(State.UNREDUCED))
    # By way of the host: an op on one device's part would meet the mesh in context.
    parts = [
        jax.device_put(np.asarray(s.data).reshape(s.data.shape + (1,) * len(shape)), s.device)
        for s in x.addressable_shards
    ]
    data = jax.make_array_from_single_device_arrays(t.shape + shape, carrier_sharding(t, x.sharding.mesh), parts)
    return wrap(t, data)
