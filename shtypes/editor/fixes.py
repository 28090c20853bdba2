"""The cheapest fix of what a rule refuses, in words. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shtypes.editor.call import Refused
from shtypes.editor.space import Space
from shtypes.errors import Fix
from shtypes.resharding.transport import reshard_fix
from shtypes.rules.suggest_fixes import fixes
from shtypes.types import Dim, ShType
from shtypes.types.mesh import Mesh

_BYTES = re.compile(r", \d+ B/device")


def priced(t: ShType, space: Space) -> ShType:
    """A type whose moves have prices: an axis of unknown size is one of two devices, and every dim divides by it.

    Its dims have names, so that what is printed is what was written.
    """
    unknown = [a for a in t.mesh.axis_names if not space.knows([a])]
    mesh = Mesh({a: 2 if a in unknown else n for a, n in t.mesh.shape.items()})
    times = 2 ** len(unknown)
    named = space.named(t)
    dims = [Dim(d.size * times, d.axes, d.name or (str(d.size) if times > 1 else None)) for d in named.dims]
    return ShType(mesh, t.dtype_name, dims, t.states)


def cheapest(refused: Refused, names: Sequence[str], space: Space) -> str | None:
    """The cheapest fix; None where there is none."""
    types = tuple(priced(t, space) for t in refused.types)
    found = fixes(refused.rule, types, names)
    return None if not found else in_words(found[0], refused.types, space)


def reshard_in_words(src: ShType, dst: ShType, name: str, space: Space) -> str:
    """A reshard as a fix."""
    return in_words(reshard_fix(priced(src, space), priced(dst, space), name), (src, dst), space)


def in_words(fix: Fix, types: Sequence[ShType], space: Space) -> str:
    """A fix; its price in bytes, where every size is known."""
    known = all(space.knows(t.mesh.axis_names) and all(space.sizes.is_known(d.size) for d in t.dims) for t in types)
    return str(fix) if known else _BYTES.sub("", str(fix))
