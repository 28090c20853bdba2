"""Typing of ``x[...]`` and of ``x.at[...]``: slices, positions and arrays of positions. Pure.

A dim that is indexed by a position is *looked up*. Where it is sharded each device finds the rows that it holds and has
zero for the others, so the result is UNREDUCED; a partial slice of a sharded dim is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.elementwise import aligned, broadcast_shapes
from shtypes.rules.tables import ADDITIVE, FACTOR, MULTILINEAR, NONLINEAR, TERM, Role
from shtypes.rules.typing import NO_CONSTANTS, CastTable, Label, Meeting, Typing, rule
from shtypes.types import Dim, ShType, State, dtypes


class Slice(NamedTuple):
    """A slice of a dim: ``size`` positions from ``start``, ``step`` apart."""

    start: int
    size: int
    step: int = 1


class Position(NamedTuple):
    """One position of a dim, or the positions in an operand."""

    position: int = 0
    operand: int | None = None  # among the arrays of positions


class New(NamedTuple):
    """A new dim of size 1."""


IndexEntry = Slice | Position | New

#: What the terms of a scatter become of the array that they are added to: where they are a pending sum, so is it.
SCATTERED: Final[CastTable] = {
    **TERM,
    (State.REDUCED, Role.LACKS): State.UNREDUCED,
    (State.INVARIANT, Role.LACKS): State.UNREDUCED,
    (State.UNREDUCED, Role.LACKS): State.UNREDUCED,
}


def is_whole(span: Slice, size: int) -> bool:
    """Whether a slice is all of a dim, in order."""
    return span == (0, size, 1)


def in_place(span: Slice, operand: ShType, dim: int) -> bool:
    """Whether a slice of a sharded dim takes as many elements of each device, and leaves them where they are.

    One of every ``step`` elements, where each device has a multiple of so many: a step of one device's slice.
    """
    whole = span.size * span.step == operand.shape[dim] and 0 <= span.start < span.step
    return bool(operand.dims[dim].axes and whole and operand.local_shape[dim] % span.step == 0)


def result_labels(entries: Sequence[IndexEntry], own: Sequence[Label], ids_ndim: int) -> list[Label]:
    """Where each dim of ``x[...]`` comes from, as numpy orders them.

    A dim of the operand has its label in ``own``, ``("ids", j)`` is a dim of the positions broadcast together and
    ``("new", i)`` a new one. The dims of positions stand where these stood if they stood together, else in front.
    """
    arrays = any(isinstance(e, Position) and e.operand is not None for e in entries)
    places = [i for i, e in enumerate(entries) if isinstance(e, Position)] if arrays else []
    together = bool(places) and places[-1] - places[0] == len(places) - 1
    ids = _ids_labels(range(ids_ndim))
    labels: list[Label] = [] if together or not places else list(ids)
    dims = iter(own)
    for i, entry in enumerate(entries):
        if together and i == places[0]:
            labels += ids
        if isinstance(entry, New):
            labels.append(("new", i))
            continue
        label = next(dims)
        if isinstance(entry, Slice):
            labels.append(label)
    return labels


def _of_dims(entries: Sequence[IndexEntry]) -> list[Slice | Position]:
    """The entry of each dim of the operand."""
    return [e for e in entries if not isinstance(e, New)]


def _ids_labels(shape: Sequence[int]) -> list[Label]:
    """The label of each dim of the positions."""
    return [("ids", j) for j in range(len(shape))]


def ids_shape(name: str, ids: Sequence[ShType]) -> tuple[int, ...]:
    """The shape of arrays of positions broadcast together."""
    return broadcast_shapes(name, ids) if ids else ()


def _operand_labels(name: str, operand: ShType, entries: Sequence[IndexEntry], changes: bool = False) -> list[Label]:
    """The label of each dim of the indexed operand; a slice must be whole, in place, or of a dim that is not sharded.

    Where the slice ``changes``, each device changes its own part of it: as if it were looked up.
    """
    labels: list[Label] = []
    for d, entry in enumerate(_of_dims(entries)):
        if isinstance(entry, Position):
            labels.append(("at", d))
        elif is_whole(entry, operand.shape[d]) or in_place(entry, operand, d):
            labels.append(("dim", d))
        elif changes and operand.dims[d].axes:
            labels.append(("at", d))
        elif operand.dims[d].axes:
            raise reasons.along(name, operand, operand.dims[d].axes[0])
        else:
            labels.append(("part", d))
    return labels


def check_ids(name: str, axis: str, state: State | None, word: str) -> None:
    """Positions are no terms of a sum."""
    if state is not None and state not in NONLINEAR:
        raise reasons.nonlinear(name, axis, word, "a sum of positions is another position")


def _check_ids(meeting: Meeting, axis: str, ids: Sequence[State | None]) -> None:
    for i, state in enumerate(ids, 1):
        check_ids(meeting.name, axis, state, meeting.word(i))


def join_lookup(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    """What is looked up and the positions are factors."""
    _check_ids(meeting, axis, states[1:])
    return meeting.fold(MULTILINEAR, axis, states)


def kind_of(label: Label | None) -> str:
    """The kind of a label such as ``("dim", 0)``."""
    return label[0] if isinstance(label, tuple) else ""


def _result_shape(entries: Sequence[IndexEntry], labels: Sequence[Label], shape: Sequence[int]) -> tuple[int, ...]:
    spans = {d: e.size for d, e in enumerate(_of_dims(entries)) if isinstance(e, Slice)}
    sizes: dict[Label, int] = {(kind, d): n for d, n in spans.items() for kind in ("dim", "part")}
    sizes |= {("ids", j): n for j, n in enumerate(shape)}
    return tuple(sizes.get(label, 1) for label in labels)


@rule
def index(
    name: str,
    operands: Sequence[ShType],
    entries: Sequence[IndexEntry],
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """``x[...]``: one entry for each dim of ``x`` and each new one; ``operands`` are ``x`` and arrays of positions.

    Dims that are sliced whole keep their axes and the positions' dims theirs. An axis that shards a dim that is looked
    up becomes UNREDUCED.
    """
    operand, *ids = operands
    shape = ids_shape(name, ids)
    own = _operand_labels(name, operand, entries)
    labels: list[Sequence[Label | None]] = [own]
    labels += [aligned(t.shape, shape, _ids_labels(shape)) for t in ids]
    met = Meeting(name, operands, labels, join_lookup, [FACTOR] * len(operands), operand.dtype_name, constants)
    looked = {axis for d, e in enumerate(_of_dims(entries)) if isinstance(e, Position) for axis in operand.dims[d].axes}
    check_summable(name, operand, looked)
    found = result_labels(entries, own, len(shape))
    sizes = zip(found, _result_shape(entries, found, shape), strict=True)
    dims = [met.dim(label, n) if kind_of(label) in ("dim", "ids") else Dim(n) for label, n in sizes]
    return met.typing(dims, looked)


def check_summable(name: str, operand: ShType, looked: set[str]) -> None:
    """Refuses to make a pending sum of what cannot be summed."""
    if looked and not dtypes.summable(operand.dtype_name):
        axes = [a for a in operand.mesh.axis_names if a in looked]
        raise ShardingTypeError(
            f"`{name}` looks up a dim of a `{operand.dtype_name}` array that is sharded on {reasons.on(axes)}",
            why="each device finds its own rows only; they would be a pending sum, and this dtype cannot be summed",
            axes=axes,
        )


# dynamic slices


@rule
def dynamic_slice(
    name: str, operands: Sequence[ShType], sizes: Sequence[int], constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A slice of given sizes from positions known at run time; ``operands`` are ``x`` and scalar positions."""
    operand = operands[0]
    spans = [Slice(0, n) if n == m else Slice(0, n, 0) for n, m in zip(sizes, operand.shape, strict=True)]
    labels: list[Sequence[Label | None]] = [_operand_labels(name, operand, spans), *(() for _ in operands[1:])]
    met = Meeting(name, operands, labels, join_lookup, [FACTOR] * len(operands), operand.dtype_name, constants)
    dims = [dim if dim.size == n else Dim(n) for dim, n in zip(operand.dims, sizes, strict=True)]
    return met.typing(dims)


@rule
def dynamic_update_slice(name: str, operands: Sequence[ShType], constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """A slice replaced from positions known at run time; ``operands`` are ``x``, scalar positions and the new slice."""
    operand, *starts, update = operands
    replaced = [n == m for n, m in zip(update.shape, operand.shape, strict=True)]
    # Of a sharded dim that is not replaced whole, each device replaces its own part.
    own: list[Label] = [("dim" if whole else "at", d) for d, whole in enumerate(replaced)]
    parts: list[Label] = [("dim" if whole else "part", d) for d, whole in enumerate(replaced)]
    _check_parts(name, update, parts)
    labels: list[Sequence[Label | None]] = [own, *(() for _ in starts), parts]
    casts = [TERM, *(FACTOR for _ in starts), TERM]
    met = Meeting(name, operands, labels, _join_set, casts, operand.dtype_name, constants)
    dims = [met.dim(label, n) for label, n in zip(own, operand.shape, strict=True)]
    return met.typing(dims)


@rule
def moved(
    name: str,
    operands: Sequence[ShType],
    along: Sequence[int],
    sizes: Sequence[int],
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """Elements moved along dims to where other operands say; these dims, and those of these operands, are whole."""
    operand, *by = operands
    for t, dims in ((operand, along), *((t, range(t.ndim)) for t in by)):
        reasons.check_whole(name, t, dims)
    labels: list[Sequence[Label | None]] = [[("dim", d) for d in range(operand.ndim)]]
    labels += [[("by", i, d) for d in range(t.ndim)] for i, t in enumerate(by)]
    met = Meeting(name, operands, labels, join_lookup, [FACTOR] * len(operands), operand.dtype_name, constants)
    return met.typing(met.dim(("dim", d), n) if n == operand.shape[d] else Dim(n) for d, n in enumerate(sizes))


# scatter


def _check_parts(name: str, update: ShType, labels: Sequence[Label | None]) -> None:
    """A partial slice of a dim is on every device, so what it is replaced by must be."""
    for d, label in enumerate(labels):
        if kind_of(label) in ("part", "new"):
            reasons.check_whole(name, update, (d,))


def _kind_on(meeting: Meeting, axis: str) -> str:
    return next((kind_of(label) for label, axes in meeting.axes.items() if axis in axes), "")


def _whole_ids(meeting: Meeting, axis: str, states: Sequence[State | None]) -> None:
    if _kind_on(meeting, axis) == "ids":
        raise ShardingTypeError(
            f"`{meeting.name}` has positions that are sharded on {reasons.on([axis])}",
            why="each device would change its own positions only, and leave the others as they were",
            axes=[axis],
        )
    _check_ids(meeting, axis, states[1:-1])


def _join_add(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    """The sum of x and the scattered updates. The positions are a factor of these; sharded together: a pending sum."""
    operand, *ids, updates = states
    none = [None] * len(ids)
    _check_ids(meeting, axis, ids)
    added = meeting.fold(MULTILINEAR, axis, [None, *ids, updates])
    if _kind_on(meeting, axis) == "ids":
        meeting.fold(ADDITIVE, axis, [operand, *none, State.UNREDUCED])
        return State.SHARDED
    return meeting.fold(ADDITIVE, axis, [operand, *none, added])


def _join_set(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    """The sum of x, zero at the positions, and the scattered updates: the positions are a factor of both."""
    operand, *ids, updates = states
    _whole_ids(meeting, axis, states)
    none = [None] * len(ids)
    total = meeting.fold(ADDITIVE, axis, [operand, *none, updates])
    return meeting.fold(MULTILINEAR, axis, [total, *ids, None])


def _join_multiply(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    """Linear in x, not in the updates: where nothing is updated they do not count."""
    _whole_ids(meeting, axis, states)
    _check_update(meeting, axis, len(states) - 1, states[-1])
    return meeting.fold(MULTILINEAR, axis, states)


def _join_nonlinear(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    _check_update(meeting, axis, 0, states[0])
    return _join_multiply(meeting, axis, states)


def _check_update(meeting: Meeting, axis: str, index: int, state: State | None) -> None:
    if state is State.UNREDUCED:
        raise reasons.nonlinear(meeting.name, axis, meeting.word(index))


_SCATTERS: Final = {
    "add": (_join_add, SCATTERED, TERM),
    "subtract": (_join_add, SCATTERED, TERM),
    "set": (_join_set, TERM, TERM),
    "multiply": (_join_multiply, FACTOR, FACTOR),
    "divide": (_join_multiply, FACTOR, FACTOR),
    "power": (_join_nonlinear, FACTOR, FACTOR),
    "min": (_join_nonlinear, FACTOR, FACTOR),
    "max": (_join_nonlinear, FACTOR, FACTOR),
}


@rule
def update(
    name: str,
    how: str,
    operands: Sequence[ShType],
    entries: Sequence[IndexEntry],
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """``x.at[...].add(updates)`` and its kind; ``operands`` are ``x``, arrays of positions, and the updates.

    Where x is sharded along a dim that is looked up, each device changes its own rows. Updates that are added and are
    sharded as their positions are make x a pending sum; any other change needs all positions on every device.
    """
    operand, *ids, update = operands
    shape = ids_shape(name, ids)
    own = _operand_labels(name, operand, entries, changes=True)
    slices = [isinstance(e, Slice) for e in _of_dims(entries)]
    parts: list[Label] = [("part", d) if kind_of(label) == "at" and slices[d] else label for d, label in enumerate(own)]
    found = result_labels(entries, parts, len(shape))
    target = _result_shape(entries, found, shape)
    _check_update_shape(name, update, target)
    ids_labels = [aligned(t.shape, shape, _ids_labels(shape)) for t in ids]
    labels: list[Sequence[Label | None]] = [own, *ids_labels, aligned(update.shape, target, found)]
    return scattered(name, how, operands, labels, constants)


def scattered(
    name: str,
    how: str,
    operands: Sequence[ShType],
    labels: Sequence[Sequence[Label | None]],
    constants: frozenset[int],
) -> Typing:
    """A change of an array: ``operands`` are it, positions and updates, whose dims are labelled.

    The kinds of labels are ``at`` (looked up), ``ids`` (of positions, which the result lacks), ``part`` and ``new``
    (not sharded); dims with any other one are kept.
    """
    operand, *ids, update = operands
    own = labels[0]
    _check_parts(name, update, labels[-1])
    join, of_operand, of_update = _SCATTERS[how]
    casts = [of_operand, *(FACTOR for _ in ids), of_update]
    met = Meeting(name, operands, labels, join, casts, operand.dtype_name, constants)
    summed = {axis for label, axes in met.axes.items() if kind_of(label) == "ids" for axis in axes}
    return met.typing([met.dim(label, n) for label, n in zip(own, operand.shape, strict=True)], summed)


def _check_update_shape(name: str, update: ShType, target: tuple[int, ...]) -> None:
    ahead = len(target) - update.ndim
    if ahead < 0 or any(n not in (1, target[ahead + d]) for d, n in enumerate(update.shape)):
        raise ShardingTypeError(f"`{name}` cannot broadcast updates of shape {update.shape} to {target}")
