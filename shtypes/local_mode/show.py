"""What each device has of a varying value, as text."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from shtypes import dtypes
from shtypes.lowering.carrier import hidden_axes
from shtypes.types import State

#: Values on more devices than this are shown for the first of them only.
_MOST = 16


def per_device(x: Any) -> str:
    """``Array(f32[2]{V:x})`` and a line for each device along the varying axes; empty where it has no such values."""
    t = x.type
    varying = t.axes(State.VARYING)
    if hidden_axes(t) != varying or not varying or dtypes.is_key(t.dtype_name):
        return ""
    data = np.asarray(x.data)
    sizes = [t.mesh.shape[a] for a in varying]
    lines = [f"Array({t})"]
    for place in itertools.islice(itertools.product(*map(range, sizes)), _MOST):
        at = ", ".join(f"{axis}={i}" for axis, i in zip(varying, place, strict=True))
        shown = np.array2string(
            np.moveaxis(data, range(-len(sizes), 0), range(len(sizes)))[place], prefix=f"  {at}: ", threshold=100
        )
        lines.append(f"  {at}: {shown}")
    rest = t.mesh.product(varying) - _MOST
    return "\n".join([*lines, f"  and {rest} more"] if rest > 0 else lines)
