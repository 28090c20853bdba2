"""Primitives that convert between plain arrays, host values and typed values, without communication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from shtypes._compat import HiPrimitive, Zero, no_trace_is_running
from shtypes.context.settings import current_settings
from shtypes.core.array import Array, wrap
from shtypes.core.host import check_width, put, refuse_hidden
from shtypes.core.jax_type import HiShType
from shtypes.core.local import moved_to_front, repeated
from shtypes.core.meshes import jax_mesh, to_mesh
from shtypes.core.operation import check_tangents
from shtypes.core.physical import explicit_spec, physical_sharding
from shtypes.core.reshard import move
from shtypes.types import ShType, State
from shtypes.types.mesh import current_mesh
from shtypes.types.target import as_type


class _Conversion(HiPrimitive):
    """A linear conversion between typed values and plain arrays, without communication."""

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        check_tangents(primals, tangents)
        (x,), (t,) = primals, tangents
        out = self.bind(x, **params)
        if isinstance(t, Zero) or jax.typeof(t).dtype == jax.dtypes.float0:
            return out, Zero(jax.typeof(out).to_tangent_aval())
        return out, self.bind(t, **params)

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        raised = {name: t.inc_rank(axis_data.size, dims[0]) for name, t in params.items()}
        return self.bind(*operands, **raised), dims[0]


class FromJax(_Conversion):
    """Converts a plain array to a typed value, sharded or invariant on every axis, by JAX's sharding."""

    def abstract_eval(self, x: Any, *, ty: HiShType) -> tuple[HiShType, set[Any]]:
        return ty, set()

    def to_lojax(self, x: Any, *, ty: HiShType) -> Array:
        return wrap(ty, placed(x, ty))

    def transpose(self, ct: Any, x: Any, *, ty: HiShType) -> list[Any]:
        return [Zero(x.aval) if isinstance(ct, Zero) else to_jax_p.bind(ct)]


class ToJax(_Conversion):
    """Converts a typed value, sharded or invariant on every axis, to a plain array."""

    def abstract_eval(self, t: Any) -> tuple[Any, set[Any]]:
        return t.lo_ty()[0], set()

    def to_lojax(self, x: Any) -> Any:
        return x.data

    def transpose(self, ct: Any, x: Any) -> list[Any]:
        return [Zero(x.aval) if isinstance(ct, Zero) else from_jax_p.bind(ct, ty=x.aval)]


class Raise(_Conversion):
    """Converts a physical array to a typed value, where JAX returns one in a trace."""

    def abstract_eval(self, x: Any, *, ty: HiShType) -> tuple[HiShType, set[Any]]:
        return ty, set()

    def to_lojax(self, x: Any, *, ty: HiShType) -> Array:
        return wrap(ty, x)


class EnsureMapped(HiPrimitive):
    """Makes a result of `vmap` mapped over dim 0, whether or not it depends on what is mapped."""

    def abstract_eval(self, x: Any) -> tuple[Any, set[Any]]:
        return x, set()

    def to_lojax(self, x: Any) -> Any:
        return x

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (t,) = tangents
        return self.bind(*primals), t if isinstance(t, Zero) else self.bind(t)

    def transpose(self, ct: Any, x: Any) -> list[Any]:
        return [ct]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (d,) = operands, dims
        return (repeated(x, axis_data.size) if d is None else moved_to_front(x, d)), 0


def placed(x: Any, t: ShType) -> Any:
    """A plain array with the sharding of a type's physical array, as far as JAX tracks it."""
    mesh = jax_mesh(t.mesh)
    spec = explicit_spec(t, mesh)
    x = jax.numpy.asarray(x)
    sharding = jax.typeof(x).sharding
    if any(kind == jax.sharding.AxisType.Explicit for kind in mesh.axis_types) and (
        sharding.mesh.empty or sharding.spec != spec
    ):
        return jax.reshard(x, NamedSharding(mesh, spec))
    return x


from_jax_p, to_jax_p, raise_p = FromJax("from_jax"), ToJax("to_jax"), Raise("raise")
#: For concrete arrays, which have the type's sharding already or are sent to devices as needed.
from_concrete_p = FromJax("from_jax")
ensure_mapped_p = EnsureMapped("ensure_mapped")


def place(host: Any, t: HiShType) -> Array:
    """Puts a host value on the devices as a typed one: pending sums by a reshard of the replicated value."""
    if t.axes(State.VARYING):
        refuse_hidden(t, "be made from one global value")
    check_width(t)
    if current_settings().only_types:
        return wrap(t, None)
    unreduced = t.axes(State.UNREDUCED)
    rest = {a: State.REDUCED if a in unreduced else t.state(a) for a in t.mesh.axis_names if t.dim_of(a) is None}
    start = t.replace(states=rest)
    if no_trace_is_running():
        value = wrap(start, put(host, start, physical_sharding(start)))
    else:  # device_put would be traced
        value = from_concrete_p.bind(host, ty=start)
    moved: Array = move(value, t)
    return moved


def type_of(target: Any, mesh: Any = None, **options: Any) -> ShType:
    """The type for a target, on ``mesh`` or the mesh in context."""
    if isinstance(target, ShType):
        return as_type(target, target.mesh, **options)
    return as_type(target, current_mesh() if mesh is None else to_mesh(mesh), **options)
