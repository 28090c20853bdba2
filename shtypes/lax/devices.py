"""Where a device is, and how many there are."""

from __future__ import annotations

from typing import Any

from shtypes.collective import AxisIndex
from shtypes.hitype import hi
from shtypes.lax.arguments import Axes, axes_of
from shtypes.mesh import Mesh, current_mesh
from shtypes.primitives import local
from shtypes.types import ShType, State
from shtypes.where import public

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


@public
def axis_index(axis_name: Axes) -> Any:
    """The index of each device along mesh axes, major to minor: ``i32[]``, varying; `jax.lax.axis_index`."""
    mesh, axes = current_mesh(), axes_of(axis_name)
    for axis in axes:
        mesh.index(axis)
    states = {a: VARYING if a in axes else REDUCED for a in mesh.axis_names}
    return local(AxisIndex(axes), out=hi(ShType(mesh, "i32", [], states)))


@public
def axis_size(axis_name: Axes) -> int:
    """The number of devices along mesh axes; `jax.lax.axis_size`."""
    mesh: Mesh = current_mesh()
    axes = axes_of(axis_name)
    for axis in axes:
        mesh.index(axis)
    return mesh.product(axes)


__all__ = ["axis_index", "axis_size"]
