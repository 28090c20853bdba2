"""Where a device is, and how many there are."""

from __future__ import annotations

from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.collective import AxisIndex
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local
from shtypes.local_mode.lax.arguments import Axes, axes_of
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh, current_mesh

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


@public
def axis_index(axis_name: Axes) -> Array:
    """The index of each device along mesh axes, major to minor: ``i32[]``, varying; `jax.lax.axis_index`."""
    mesh, axes = current_mesh(), axes_of(axis_name)
    for axis in axes:
        mesh.index(axis)
    states = {a: VARYING if a in axes else REDUCED for a in mesh.axis_names}
    return local(AxisIndex(axes), out=as_jax_type(ShType(mesh, "i32", [], states)))


@public
def axis_size(axis_name: Axes) -> int:
    """The number of devices along mesh axes; `jax.lax.axis_size`."""
    mesh: Mesh = current_mesh()
    axes = axes_of(axis_name)
    for axis in axes:
        mesh.index(axis)
    return mesh.product(axes)


__all__ = ["axis_index", "axis_size"]
