"""The state of a value along one mesh axis, as a small integer: what tables of costs are indexed by. Pure.

``REDUCED``, ``INVARIANT`` and ``UNREDUCED`` are the states of that name, ``SHARDED + d`` is sharded on dim ``d``.
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

_CODES: Final = {State.REDUCED: REDUCED, State.INVARIANT: INVARIANT, State.UNREDUCED: UNREDUCED}
_STATES: Final = {code: state for state, code in _CODES.items()}
#: The state of the cotangent, for those that shard no dim.
COTANGENTS: Final = (UNREDUCED, INVARIANT, REDUCED)


def axis_state(t: ShType, axis: str) -> int | None:
    """The state of a type along an axis; None for a varying one."""
    d = t.dim_of(axis)
    return SHARDED + d if d is not None else _CODES.get(t.state(axis))


def typed(mesh: Mesh, dtype: str, shape: Sequence[int], states: Sequence[int]) -> ShType:
    """The type with these states along the axes of a mesh, which shard dims in the order of the mesh."""
    axes = mesh.axis_names
    dims = [
        Dim(n, tuple(a for a, s in zip(axes, states, strict=True) if s == SHARDED + d)) for d, n in enumerate(shape)
    ]
    return ShType(mesh, dtype, dims, [_STATES.get(s, State.SHARDED) for s in states])


def cotangent(state: int) -> int:
    """The state of the cotangent along the axis."""
    return COTANGENTS[state] if state < SHARDED else state


def shown(state: int) -> str:
    """``R``, ``I``, ``U`` or ``S(1)``."""
    return "RIU"[state] if state < SHARDED else f"S({state - SHARDED})"
