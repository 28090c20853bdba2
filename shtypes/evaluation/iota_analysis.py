"""Positions that count 0, 1, 2, ... along a dim: a lookup at them and others runs together with that dim.

``x[jnp.arange(n), labels]`` and `jnp.put_along_axis` name each row by its number. As positions these may be any of any
device's; known as what they are, the dim is a batch dim, and each device looks up in its own rows. Of floats that the
program has widened to sum them it is noted from which dtype: a pending sum is narrowed term by term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.dispatch.apply import is_number, is_typed
from shtypes.evaluation.value_info import PLACES, WIDENED, known, note, number

#: More positions than this are not looked through for a count.
_MOST: Final = 1 << 20


class Count(NamedTuple):
    """A value whose elements are their own position along ``dim``."""

    dim: int


class Counts(NamedTuple):
    """Positions of several components, in the last dim: the dims along which some count, by component."""

    dims: tuple[tuple[int, int], ...]


class Never(NamedTuple):
    """A truth value that is false everywhere."""


def place_of(x: Any) -> Any:
    """What is known of a value; of one that is concrete, what can be seen."""
    if isinstance(x, jax.core.Tracer) or is_typed(x):
        return known(x, PLACES)
    if not isinstance(x, (np.ndarray, jax.Array)) or not 1 < x.size <= _MOST:
        return None
    if x.dtype == np.dtype(bool):
        return None if np.asarray(x).any() else Never()
    return _seen(np.asarray(x)) if np.issubdtype(x.dtype, np.integer) else None


def _seen(x: Any) -> Count | None:
    for d, n in enumerate(x.shape):
        if n > 1:
            count = np.arange(n).reshape([n if e == d else 1 for e in range(x.ndim)])
            return Count(d) if np.array_equal(x, np.broadcast_to(count, x.shape)) else None
    return None


def counted(ids: Any) -> dict[int, int]:
    """Of positions (..., k): along which dim each component counts, of those that do."""
    found = place_of(ids)
    last = len(ids.shape) - 1
    if isinstance(found, Counts):
        return dict(found.dims)
    if isinstance(found, Count) and found.dim != last:
        return dict.fromkeys(range(ids.shape[last]), found.dim)
    if found is None and isinstance(ids, (np.ndarray, jax.Array)) and not isinstance(ids, jax.core.Tracer):
        parts = [_seen(np.asarray(ids[..., j])) if 1 < ids.size <= _MOST else None for j in range(ids.shape[last])]
        return {j: part.dim for j, part in enumerate(parts) if part is not None}
    return {}


# how it is handed on


def _iota(eqn: Any, xs: Sequence[Any]) -> Any:
    return Count(int(eqn.params["dimension"])) if np.issubdtype(eqn.params["dtype"], np.integer) else None


def _lt(eqn: Any, xs: Sequence[Any]) -> Any:
    x, least = xs
    return Never() if _is_zero(least) and isinstance(place_of(x), Count) else None


def _is_zero(x: Any) -> bool:
    """Whether a value is known to be zero; not asked with JAX's `==`, which gives a tracer inside a trace."""
    return not isinstance(x, jax.core.Tracer) and not is_typed(x) and np.ndim(x) == 0 and bool(np.asarray(x) == 0)


def _select(eqn: Any, xs: Sequence[Any]) -> Any:
    if isinstance(place_of(xs[0]), Never):
        return place_of(xs[1])
    return None


def _broadcast(eqn: Any, xs: Sequence[Any]) -> Any:
    found, shape = place_of(xs[0]), eqn.params["shape"]
    if isinstance(found, Never):
        return found
    if isinstance(found, Count):
        dim = int(eqn.params["broadcast_dimensions"][found.dim])
        return Count(dim) if shape[dim] == xs[0].shape[found.dim] else None
    return None


def _reshape(eqn: Any, xs: Sequence[Any]) -> Any:
    """Where only dims of size 1 come and go."""
    found, src, dst = place_of(xs[0]), xs[0].shape, eqn.outvars[0].aval.shape
    if isinstance(found, Never):
        return found
    if not isinstance(found, Count) or (eqn.params.get("dimensions") is not None and eqn.primitive.name == "reshape"):
        return None
    kept, made = ([d for d, n in enumerate(shape) if n != 1] for shape in (src, dst))
    if [src[d] for d in kept] != [dst[d] for d in made] or found.dim not in kept:
        return None
    return Count(made[kept.index(found.dim)])


def _concatenate(eqn: Any, xs: Sequence[Any]) -> Any:
    last = len(xs[0].shape) - 1
    if eqn.params["dimension"] != last:
        return None
    found, at = [], 0
    for x in xs:
        found += [(at + j, dim) for j, dim in counted(x).items()]
        at += x.shape[last]
    return Counts(tuple(found)) if found else None


def _same(eqn: Any, xs: Sequence[Any]) -> Any:
    return place_of(xs[0]) if np.issubdtype(eqn.outvars[0].aval.dtype, np.integer) else None


_FOLLOWED: Final[dict[str, Callable[[Any, Sequence[Any]], Any]]] = {
    "iota": _iota,
    "lt": _lt,
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "concatenate": _concatenate,
    "convert_element_type": _same,
    "copy": _same,
}


#: What keeps the terms of a pending sum in the wide dtype that they were cast to: sums of them, and elements moved.
_KEPT: Final = frozenset(("reduce_sum", "broadcast_in_dim", "reshape", "squeeze", "transpose"))
#: What scales them, by a number.
_SCALED: Final = frozenset(("div", "mul"))


def follow(eqn: Any, operands: Sequence[Any], outs: Sequence[Any]) -> None:
    """Notes of an equation's result what follows from its operands: its dtype before it was widened, what it counts."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        _note_widening(eqn.invars[0].aval.dtype, outs[0])
    elif name in _KEPT or (name in _SCALED and any(is_number(number(x)) for x in operands)):
        narrow = next((known(x, WIDENED) for x in operands if is_typed(x)), None)
        if narrow is not None:
            note(outs[0], WIDENED, narrow)
    positions = _FOLLOWED.get(name)
    if positions is not None and _is_of_positions(eqn.outvars[0].aval):
        found = positions(eqn, operands)
        if found is not None:
            note(outs[0], PLACES, found)


def _note_widening(src: Any, out: Any) -> None:
    floats = is_typed(out) and jnp.issubdtype(src, jnp.floating) and jnp.issubdtype(out.type.dtype, jnp.floating)
    if floats and src.itemsize < out.type.dtype.itemsize:
        note(out, WIDENED, src)


def _is_of_positions(aval: Any) -> bool:
    """Truth values, or integers wide enough for each position."""
    dtype = aval.dtype
    if not isinstance(dtype, np.dtype) or math.prod(aval.shape) <= 1:
        return False
    return dtype == np.dtype(bool) or (bool(np.issubdtype(dtype, np.integer)) and dtype.itemsize >= 4)


def carry(name: str, operands: Sequence[Any], given: Sequence[Any]) -> None:
    """Notes of a lookup's typed positions what is known of them as they were, perhaps plain."""
    if name != "gather" and not name.startswith("scatter"):
        return
    found = counted(operands[1])
    if found:
        note(given[1], PLACES, Counts(tuple(found.items())))
