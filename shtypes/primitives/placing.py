"""Host values as typed ones, in the type that a target names."""

from __future__ import annotations

from typing import Any

from shtypes._compat import no_trace_is_running
from shtypes.context.settings import current_settings
from shtypes.core.array import Array, wrap
from shtypes.core.carrier import carrier_sharding
from shtypes.core.hitype import HiShType
from shtypes.core.host import check_width, put, refuse_hidden
from shtypes.core.meshes import to_mesh
from shtypes.primitives.doors import from_concrete_p
from shtypes.primitives.moving import move
from shtypes.types import ShType, State
from shtypes.types.mesh import current_mesh
from shtypes.types.target import as_type


def place(host: Any, t: HiShType) -> Array:
    """A host value as a typed one: pending sums by a reshard of the replicated value."""
    if t.axes(State.VARYING):
        refuse_hidden(t, "be made from one global value")
    check_width(t)
    if current_settings().only_types:
        return wrap(t, None)
    unreduced = t.axes(State.UNREDUCED)
    rest = {a: State.REDUCED if a in unreduced else t.state(a) for a in t.mesh.axis_names if t.dim_of(a) is None}
    start = t.replace(states=rest)
    if no_trace_is_running():
        value = wrap(start, put(host, start, carrier_sharding(start)))
    else:  # here device_put would be traced, and its result no value
        value = from_concrete_p.bind(host, ty=start)
    moved: Array = move(value, t)
    return moved


def type_of(target: Any, mesh: Any = None, **options: Any) -> ShType:
    """The type that a target names, over the mesh that is given or in context."""
    if isinstance(target, ShType):
        return as_type(target, target.mesh, **options)
    return as_type(target, current_mesh() if mesh is None else to_mesh(mesh), **options)
