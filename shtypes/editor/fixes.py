"""Fixes in words, and the types that they are priced on. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shtypes.editor.space import Space
from shtypes.errors import Fix
from shtypes.resharding.transport import reshard_fix
from shtypes.types import Dim, ShType
from shtypes.types.mesh import Mesh

_BYTES = re.compile(r", \d+ B/device")


def priced(t: ShType, space: Space, devices: int = 2, *, scaled: bool = True) -> ShType:
    """A type whose moves have prices: an axis of unknown size is one of two devices, and every dim divides by it.

    Its dims have names, so that what is printed is what was written.
    """
    mesh = mesh_of_prices(t.mesh, space, devices)
    times = mesh.size // t.mesh.size if scaled else 1
    named = space.named(t)
    dims = [Dim(d.size * times, d.axes, d.name or (str(d.size) if times > 1 else None)) for d in named.dims]
    return ShType(mesh, t.dtype_name, dims, t.states)


def mesh_of_prices(mesh: Mesh, space: Space, devices: int = 2) -> Mesh:
    """A mesh whose axes of unknown size have some devices."""
    return Mesh({axis: n if space.knows([axis]) else devices for axis, n in mesh.shape.items()})


def reshard_in_words(src: ShType, dst: ShType, name: str, space: Space) -> str:
    """A reshard as a fix."""
    return in_words(reshard_fix(priced(src, space), priced(dst, space), name), (src, dst), space)


def in_words(fix: Fix, types: Sequence[ShType], space: Space) -> str:
    """A fix; its price in bytes, where every size is known."""
    known = all(space.knows(t.mesh.axis_names) and all(space.sizes.is_known(d.size) for d in t.dims) for t in types)
    return str(fix) if known else _BYTES.sub("", str(fix))
