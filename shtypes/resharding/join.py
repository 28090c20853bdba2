"""The type of values joined by control flow. Only free moves are inserted."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Final

from shtypes.errors import ShardingTypeError
from shtypes.resharding.moves import Grade
from shtypes.resharding.planner import grade_of, plan
from shtypes.types import Dim, ShType, State

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State

#: The join of two different states on one axis; symmetric. Each is reached by free moves; an absent pair is an error.
JOIN: Final[Mapping[frozenset[State], State]] = {
    frozenset({REDUCED, INVARIANT}): INVARIANT,
    frozenset({REDUCED, UNREDUCED}): UNREDUCED,
    frozenset({INVARIANT, UNREDUCED}): UNREDUCED,
    frozenset({REDUCED, SHARDED}): SHARDED,
    frozenset({REDUCED, VARYING}): VARYING,
}
# Not (SHARDED, UNREDUCED): S to U is free, but holds n times the memory. Not (INVARIANT, SHARDED) and
# (INVARIANT, VARYING): free forward only.


def join(types: Iterable[ShType], what: str = "values") -> ShType:
    """The type to which values of all these types cast for free; errors call the values ``what``."""
    distinct = list(dict.fromkeys(types))
    joined = functools.reduce(lambda a, b: _pair(a, b, what), distinct)
    for t in distinct:
        varying = (a for a in joined.axes(VARYING) if t.state(a) is REDUCED)  # free, but not in the table of moves
        if grade_of(plan(t, joined.with_axes(varying, REDUCED))) is not Grade.FREE:
            raise _no_join(t, joined, what)
    return joined


def _pair(a: ShType, b: ShType, what: str) -> ShType:
    if a.mesh is not b.mesh or a.dtype_name != b.dtype_name or a.shape != b.shape:
        raise _no_join(a, b, what)
    states = {}
    for axis, x, y in zip(a.mesh.axis_names, a.states, b.states, strict=True):
        state = x if x is y else JOIN.get(frozenset({x, y}))
        if state is None:
            raise _no_join(a, b, what)
        if state is not SHARDED:
            states[axis] = state
    dims = []
    for x_dim, y_dim in zip(a.dims, b.dims, strict=True):
        short, long = sorted((x_dim.axes, y_dim.axes), key=len)
        if long[: len(short)] != short:  # a free slice adds only minor axes
            raise _no_join(a, b, what)
        dims.append(Dim(x_dim.size, long, x_dim.name if x_dim.name == y_dim.name else None))
    if sum(len(d.axes) for d in dims) + len(states) != len(a.mesh.axis_names):
        raise _no_join(a, b, what)  # one axis shards two dims
    return a.replace(dims=dims, states=states)


def _no_join(a: ShType, b: ShType, what: str) -> ShardingTypeError:
    why, hints = "what is inserted at a join is free in both directions: R->I, R->U, I->U, R->S, R->V", []
    if a.shape != b.shape:
        why = "nothing that is inserted changes a shape"
    elif a.dtype_name != b.dtype_name:
        why, hints = "nothing that is inserted changes a dtype", [f'.astype("{a.dtype_name}") of the other']
    return ShardingTypeError(f"{what} need one type: {a} and {b} differ", why=why, hints=hints)
