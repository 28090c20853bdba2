"""Types for the operands of a case of a row: replicated, and sharded at random."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import numpy as np

import shtypes as sh
from shtypes.core.jax_type import as_jax_type
from shtypes.types import Dim, ShType, dtypes
from shtypes.types.mesh import current_mesh
from tests.lifting.row_cases.case import Case

MESH: Final = {"x": 2, "y": 4}
#: So many layouts are tried for each that is to type.
_TRIES: Final = 12
#: So large may numbers be that are spread over the terms of a pending sum.
_LARGE: Final = 1e3


def layouts(case: Case, count: int, seed: int) -> Iterator[list[Any]]:
    """Types of the operands of a case: invariant, replicated, and some at random that type."""
    invariant = dict.fromkeys(MESH, sh.State.INVARIANT)
    same = [[_typed(x, [()] * np.ndim(x), states) for x in case.operands] for states in (invariant, {})]
    yield from same
    if case.whole:
        return
    rng = np.random.default_rng([seed, zlib.crc32(case.id.encode())])
    found = {tuple(map(str, types)) for types in same}
    for _ in range(_TRIES * count):
        if len(found) > count + 1:
            return
        types = _random_types(case, rng)
        if tuple(map(str, types)) not in found and _types(case, types):
            found.add(tuple(map(str, types)))
            yield types


def _typed(x: Any, dims: Sequence[Sequence[str]], states: dict[str, Any]) -> Any:
    """A type of an array; axes that shard no dim and have no state are replicated by policy."""
    sizes = [Dim(n, tuple(axes)) for n, axes in zip(np.shape(x), dims, strict=True)]
    taken = {axis for axes in dims for axis in axes}
    others = {axis: sh.State.REDUCED for axis in MESH if axis not in taken}
    return as_jax_type(ShType(current_mesh(), dtypes.from_numpy(np.dtype(x.dtype)), sizes, {**others, **states}))


def _random_types(case: Case, rng: Any) -> list[Any]:
    """Types of the operands: along each axis one dim of all that have it, or one of each, or none."""
    shapes = [np.shape(x) for x in case.operands]
    dims: list[list[list[str]]] = [[[] for _ in shape] for shape in shapes]
    states: list[dict[str, Any]] = [{} for _ in shapes]
    for axis in rng.permutation(list(MESH)):
        how = rng.random()
        common = int(rng.integers(max(map(len, shapes), default=0) or 1))
        replicated = sh.State.INVARIANT if rng.random() < 0.25 else sh.State.REDUCED
        pending = int(rng.integers(len(shapes))) if how > 0.8 else -1
        for i, (x, shape) in enumerate(zip(case.operands, shapes, strict=True)):
            d = common if how < 0.5 else int(rng.integers(len(shape) + 1)) if how < 0.8 else len(shape)
            size = 1
            if d < len(shape):
                size = shape[d] // int(np.prod([MESH[a] for a in dims[i][d]], dtype=int))
            if d < len(shape) and size and size % MESH[axis] == 0:
                dims[i][d].append(str(axis))
            elif i == pending and _can_be_spread(x):
                states[i][str(axis)] = sh.State.UNREDUCED
            else:
                states[i][str(axis)] = replicated
    return [_typed(x, d, s) for x, d, s in zip(case.operands, dims, states, strict=True)]


def _can_be_spread(x: Any) -> bool:
    if x.dtype == np.bool_ or (x.dtype.kind in "iu" and x.dtype.itemsize < 4):
        return False
    wide = np.asarray(x).astype(np.complex128)
    return bool(np.isfinite(wide).all() and np.abs(wide).max(initial=0) < _LARGE)


def _types(case: Case, types: Sequence[Any]) -> bool:
    """Whether a case types."""
    try:
        jax.eval_shape(sh.lift(case.fn), *map(sh.abstract_array, types))
    except sh.ShardingTypeError:
        return False
    except Exception:
        return True  # which is told when it runs
    return True
