"""Encodes the state of a value along one mesh axis as a small integer, the index of cost tables.

``REDUCED``, ``INVARIANT`` and ``UNREDUCED`` are the states of that name, ``SHARDED + d`` is sharded on dim ``d``. Axes
on one dim are in mesh order, except that those with ``FRONT + SHARDED + d`` are the most major.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shtypes.types import Dim, ShType, State
from shtypes.types.mesh import Mesh

REDUCED: Final = 0
INVARIANT: Final = 1
UNREDUCED: Final = 2
SHARDED: Final = 3
FRONT: Final = 32

_CODES: Final = {State.REDUCED: REDUCED, State.INVARIANT: INVARIANT, State.UNREDUCED: UNREDUCED}
_STATES: Final = {code: state for state, code in _CODES.items()}
#: The cotangent's state, indexed by the state of the primal (of those that shard no dim).
COTANGENTS: Final = (UNREDUCED, INVARIANT, REDUCED)


def axis_state(t: ShType, axis: str) -> int | None:
    """The state of a type along an axis, without ``FRONT``; None if it varies."""
    d = t.dim_of(axis)
    return SHARDED + d if d is not None else _CODES.get(t.state(axis))


def axis_states(t: ShType) -> list[int] | None:
    """The states of a type along all axes; None if one varies or the axes of a dim have another order."""
    axes, states = t.mesh.axis_names, [axis_state(t, a) for a in t.mesh.axis_names]
    for dim in t.dims:
        order = [axes.index(a) for a in dim.axes]
        for i, k in enumerate(order):
            if any(later < k for later in order[i:]):
                states[k] = FRONT + (states[k] or 0)
    encoded = [s for s in states if s is not None]
    return encoded if len(encoded) == len(states) and typed(t.mesh, t.dtype_name, t.shape, encoded) == t else None


def typed(mesh: Mesh, dtype: str, shape: Sequence[int], states: Sequence[int]) -> ShType:
    """The type with the given states along the axes of a mesh."""
    on: list[list[str]] = [[] for _ in shape]
    for front in (True, False):
        for a, s in zip(mesh.axis_names, states, strict=True):
            if s >= SHARDED and (s >= FRONT) is front:
                on[(s - SHARDED) % FRONT].append(a)
    dims = [Dim(n, tuple(axes)) for n, axes in zip(shape, on, strict=True)]
    return ShType(mesh, dtype, dims, [_STATES.get(s, State.SHARDED) for s in states])
