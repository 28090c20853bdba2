"""`Dim`: one array dim with the mesh axes that shard it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.types.mesh import Mesh


class Dim(NamedTuple):
    """One array dim: its (global) size, the mesh axes that shard it major to minor, and a name that only prints."""

    size: int
    axes: tuple[str, ...] = ()
    name: str | None = None


def check_divides(mesh: Mesh, dim: Dim, index: int) -> None:
    """Checks that the axes of a dim divide its size.

    Raises:
        ShardingTypeError: they do not; names the dim, the axes and the nearest sizes that would work.
    """
    n = mesh.product(dim.axes)
    if dim.size % n == 0:
        return
    below, above = dim.size // n * n, -(-dim.size // n) * n
    axes = " and ".join(f"`{a}` (size {mesh.shape[a]})" for a in dim.axes)
    label = f"dim {index}" + (f" (`{dim.name}`)" if dim.name else "")
    sizes = f"{below} or {above}" if below else str(above)
    raise ShardingTypeError(
        f"{label} of size {dim.size} cannot be sharded in {n} equal parts",
        why=f"it is sharded over {axes}" + (f", {n} devices together" if len(dim.axes) > 1 else ""),
        hints=[f"use a size that {n} divides, such as {sizes}", f"shard {label} over fewer axes"],
    )
