"""Indices that count 0, 1, 2, ... along a dim, in order or not, followed through equations.

``x[jnp.arange(n), labels]`` and `jnp.put_along_axis` index rows by counting; such a dim is a batch dim of the lookup,
and each device looks up in its rows. What a sort takes along counts in another order, as `jnp.argsort` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat.jaxprs import Scan, captured, control, is_literal, jaxpr_of, literal_value
from shtypes.dispatch.apply import is_number, is_typed
from shtypes.evaluation.value_info import PLACES, WIDENED, note, note_of, number

# indices that count along a dim

#: Concrete arrays larger than this are not compared with a count.
_MOST: Final = 1 << 20


class Count(NamedTuple):
    """The note on an array that counts 0, 1, 2, ... along ``dim``, perhaps in another order."""

    dim: int
    in_order: bool = True


class Counts(NamedTuple):
    """The note on indices (..., k): pairs of a component and the dim along which it counts."""

    dims: tuple[tuple[int, int], ...]


class Never(NamedTuple):
    """The note on a bool array that is False everywhere."""


def place_of(x: Any) -> Any:
    """What a value counts: its note, or for a concrete array what its elements show."""
    if hasattr(x, "place"):  # a value of the solver
        return x.place
    if isinstance(x, jax.core.Tracer) or is_typed(x):
        return note_of(x, PLACES)
    if not isinstance(x, (np.ndarray, jax.Array)) or not 1 < x.size <= _MOST:
        return None
    if x.dtype == np.dtype(bool):
        return None if np.asarray(x).any() else Never()
    return _count_in(np.asarray(x)) if np.issubdtype(x.dtype, np.integer) else None


def _count_in(x: Any) -> Count | None:
    for d, n in enumerate(x.shape):
        if n > 1:
            count = np.arange(n).reshape([n if e == d else 1 for e in range(x.ndim)])
            return Count(d) if np.array_equal(x, np.broadcast_to(count, x.shape)) else None
    return None


def counted(ids: Any) -> dict[int, int]:
    """For the components of indices (..., k) that count along a dim, that dim."""
    about = place_of(ids)
    last = len(ids.shape) - 1
    if isinstance(about, Counts):
        return dict(about.dims)
    if isinstance(about, Count) and about.in_order and about.dim != last:
        return dict.fromkeys(range(ids.shape[last]), about.dim)
    is_plain = isinstance(ids, (np.ndarray, jax.Array)) and not isinstance(ids, jax.core.Tracer)
    if about is None and is_plain and not is_typed(ids):  # a typed value may differ on each device
        parts = [_count_in(np.asarray(ids[..., j])) if 1 < ids.size <= _MOST else None for j in range(ids.shape[last])]
        return {j: part.dim for j, part in enumerate(parts) if part is not None}
    return {}


# the notes on results


def _lt(eqn: Any, xs: Sequence[Any]) -> Any:
    x, least = xs
    return Never() if _is_zero(least) and isinstance(place_of(x), Count) else None


def _is_zero(x: Any) -> bool:
    """Whether a value is a concrete zero; by NumPy's `==`, since JAX's returns a tracer inside a trace."""
    return not isinstance(x, jax.core.Tracer) and not is_typed(x) and np.ndim(x) == 0 and bool(np.asarray(x) == 0)


def _broadcast(eqn: Any, xs: Sequence[Any]) -> Any:
    about, shape = place_of(xs[0]), eqn.params["shape"]
    if isinstance(about, Never):
        return about
    if isinstance(about, Count):
        dim = int(eqn.params["broadcast_dimensions"][about.dim])
        return about._replace(dim=dim) if shape[dim] == xs[0].shape[about.dim] else None
    return None


def _reshape(eqn: Any, xs: Sequence[Any]) -> Any:
    """The note after a reshape that only adds or drops dims of size 1."""
    about, src, dst = place_of(xs[0]), xs[0].shape, eqn.outvars[0].aval.shape
    if isinstance(about, Never):
        return about
    if not isinstance(about, Count) or (eqn.params.get("dimensions") is not None and eqn.primitive.name == "reshape"):
        return None
    src_dims, dst_dims = ([d for d, n in enumerate(shape) if n != 1] for shape in (src, dst))
    if [src[d] for d in src_dims] != [dst[d] for d in dst_dims] or about.dim not in src_dims:
        return None
    return about._replace(dim=dst_dims[src_dims.index(about.dim)])


def _concatenate(eqn: Any, xs: Sequence[Any]) -> Any:
    last = len(xs[0].shape) - 1
    if eqn.params["dimension"] != last:
        return None
    counts, at = [], 0
    for x in xs:
        counts += [(at + j, dim) for j, dim in counted(x).items()]
        at += x.shape[last]
    return Counts(tuple(counts)) if counts else None


def _same(eqn: Any, xs: Sequence[Any]) -> Any:
    return place_of(xs[0]) if np.issubdtype(eqn.outvars[0].aval.dtype, np.integer) else None


@dataclass(eq=False)
class Placed:
    """A value of a program that is not evaluated."""

    shape: tuple[int, ...]
    place: Any = None


def positions_in(jaxpr: Any, known: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """What the variables of a program count: a function to values as `place_of` takes them.

    Args:
        jaxpr: The program.
        known: Values of arguments and constants.
    """
    env = dict(known)

    def read(v: Any) -> Any:
        return literal_value(v) if is_literal(v) else env[v] if v in env else Placed(v.aval.shape)

    for eqn in jaxpr.eqns:
        places = zip(eqn.outvars, positions(eqn, list(map(read, eqn.invars))), strict=False)
        env.update((v, Placed(v.aval.shape, place)) for v, place in places)
    return read


def _call(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    body = jaxpr_of(eqn.params["jaxpr"])
    known = zip((*body.invars, *body.constvars), (*xs, *captured(eqn.params["jaxpr"])), strict=True)
    return [place_of(v) for v in map(positions_in(body, dict(known)), body.outvars)]


def inside(eqn: Any, about: Sequence[Any]) -> list[Any]:
    """What the arguments of the body of a call or loop count, from what its operands do; a carry is not known."""
    loop = control(eqn)
    if not isinstance(loop, Scan):
        return [*about]
    of_steps = about[loop.consts + loop.carry :]
    return [*about[: loop.consts], *[None] * loop.carry, *(_moved(each, -1) for each in of_steps)]


def _moved(about: Any, by: int) -> Any:
    """The note on all steps of a loop, or on one of them, by that on the other."""
    return about._replace(dim=about.dim + by) if isinstance(about, Count) and about.dim + by >= 0 else None


def _scan(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    """The notes on the results that a scan stacks; its carries have none."""
    loop = control(eqn)
    assert isinstance(loop, Scan)
    body, carries = jaxpr_of(loop.body), loop.carry
    args = (Placed(v.aval.shape, a) for v, a in zip(body.invars, inside(eqn, [*map(place_of, xs)]), strict=True))
    value = positions_in(body, dict(zip(body.invars, args, strict=True)))
    return [*[None] * carries, *(_moved(place_of(value(v)), 1) for v in body.outvars[carries:])]


def _sort(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    """What counts along the dim of a sort counts in another order after it."""
    about, dim = list(map(place_of, xs)), int(eqn.params["dimension"])
    return [Count(dim, in_order=False) if isinstance(a, Count) and a.dim == dim else None for a in about]


_FOLLOWED: Final[dict[str, Callable[[Any, Sequence[Any]], Any]]] = {
    "iota": lambda eqn, xs: Count(int(eqn.params["dimension"])),
    "lt": _lt,
    "select_n": lambda eqn, xs: place_of(xs[1]) if isinstance(place_of(xs[0]), Never) else None,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "concatenate": _concatenate,
    "convert_element_type": _same,
    "copy": _same,
}


#: Linear primitives through which the note on a widened value passes.
_PASSED: Final = frozenset(("reduce_sum", "broadcast_in_dim", "reshape", "squeeze", "transpose"))
#: Primitives through which it passes if the other operand is a number.
_SCALED: Final = frozenset(("div", "mul"))


def note_results(eqn: Any, operands: Sequence[Any], outs: Sequence[Any]) -> None:
    """Notes what an equation's results count, and the first one's dtype before it was widened."""
    name = eqn.primitive.name
    if name == "convert_element_type":
        _note_widening(eqn.invars[0].aval.dtype, outs[0])
    elif name in _PASSED or (name in _SCALED and any(is_number(number(x)) for x in operands)):
        narrow = next((note_of(x, WIDENED) for x in operands if is_typed(x)), None)
        if narrow is not None:
            note(outs[0], WIDENED, narrow)
    for out, about in zip(outs, positions(eqn, operands), strict=False):
        if about is not None:
            note(out, PLACES, about)


def positions(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """What the results of an equation count, from its operands; None if unknown, as it is of those beyond the last."""
    several = {"jit": _call, "scan": _scan, "sort": _sort}.get(eqn.primitive.name)
    if several is not None:
        are = [_is_of_positions(v.aval) for v in eqn.outvars]
        notes = several(eqn, operands) if any(are) else []
        return [about if counts else None for about, counts in zip(notes, are, strict=False)]
    follows = _FOLLOWED.get(eqn.primitive.name)
    return (follows(eqn, operands),) if follows is not None and _is_of_positions(eqn.outvars[0].aval) else ()


def _note_widening(src: Any, out: Any) -> None:
    floats = is_typed(out) and jnp.issubdtype(src, jnp.floating) and jnp.issubdtype(out.type.dtype, jnp.floating)
    if floats and src.itemsize < out.type.dtype.itemsize:
        note(out, WIDENED, src)


def _is_of_positions(aval: Any) -> bool:
    """Whether an array has bools, or integers that can count along its dims."""
    dtype = aval.dtype
    if not isinstance(dtype, np.dtype) or math.prod(aval.shape) <= 1:
        return False
    return dtype == np.dtype(bool) or (
        bool(np.issubdtype(dtype, np.integer)) and np.iinfo(dtype).max >= max(aval.shape) - 1
    )


def copy_position_notes(name: str, operands: Sequence[Any], typed: Sequence[Any]) -> None:
    """Copies the notes on a lookup's indices, and on what a sort takes along, to their typed form."""
    if name == "sort":
        for x, y in zip(operands, typed, strict=True):
            if (about := place_of(x)) is not None:
                note(y, PLACES, about)
    if name != "gather" and not name.startswith("scatter"):
        return
    counts = counted(operands[1])
    if counts:
        note(typed[1], PLACES, Counts(tuple(counts.items())))
