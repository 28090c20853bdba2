"""Typing of lookups that are not written ``x[...]``: take_along_axis, one_hot, segment sums. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.index import check_ids, check_summable, join_lookup
from shtypes.rules.tables import FACTOR, MULTILINEAR, NONLINEAR, SUM, TERM, Role
from shtypes.rules.typing import NO_CONSTANTS, Label, Meeting, Typing, build, made_of, rule
from shtypes.types import REPLICATED, Dim, ShType, State
from shtypes.types.dim import check_divides


@rule
def take_along(name: str, operands: Sequence[ShType], dim: int, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """``take_along_axis``: along ``dim`` a lookup; all other dims of the operand and of the positions run together."""
    operand, ids = operands
    shape = _along_shape(name, operand, ids, dim)
    names: list[Label] = [("dim", d) for d in range(operand.ndim)]
    own: list[Label | None] = [n if m == k else None for n, m, k in zip(names, operand.shape, shape, strict=True)]
    of_ids: list[Label | None] = [n if m == k else None for n, m, k in zip(names, ids.shape, shape, strict=True)]
    own[dim], of_ids[dim] = ("at", dim), names[dim]
    met = Meeting(name, operands, [own, of_ids], join_lookup, [FACTOR] * 2, operand.dtype_name, constants)
    looked = set(operand.dims[dim].axes)
    check_summable(name, operand, looked)
    return met.typing([met.dim(label, n) for label, n in zip(names, shape, strict=True)], looked)


def _along_shape(name: str, operand: ShType, ids: ShType, dim: int) -> tuple[int, ...]:
    """The shape of the result: the dims broadcast together, but for the one that is looked up."""
    if operand.ndim != ids.ndim:
        raise ShardingTypeError(f"`{name}` needs {operand.ndim} dims of positions, as the operand has, not {ids.ndim}")
    shape = []
    for d, (n, m) in enumerate(zip(operand.shape, ids.shape, strict=True)):
        if d != dim and n != m and 1 not in (n, m):
            raise ShardingTypeError(f"`{name}` cannot broadcast dim {d}: the operand has {n}, the positions {m}")
        shape.append(m if d == dim or n == 1 else n)
    return tuple(shape)


@rule
def one_hot(name: str, ids: ShType, count: int, dim: int, dtype: str, over: Sequence[str]) -> Typing:
    """A new dim of ``count`` classes, sharded over ``over``, on which the positions must be replicated.

    A dim of positions that is sharded on one of these axes is an error: a device would have some classes of some rows.
    """
    check_divides(ids.mesh, Dim(count, tuple(over)), dim)
    states = []
    for axis, state in zip(ids.mesh.axis_names, ids.states, strict=True):
        check_ids(name, axis, state, "the operand")
        if axis in over and state is not State.REDUCED:
            raise ShardingTypeError(
                f"`{name}` cannot shard the classes on {reasons.on([axis])}, where the operand is "
                f"{reasons.state_word(state)}",
                why="each device would have its own classes of its own rows only",
                axes=[axis],
            )
        states.append(State.SHARDED if axis in over else state)
    dims = list(ids.dims)
    dims.insert(dim, Dim(count, tuple(over)))
    return Typing((ids,), (made_of(ids, dtype, dims, states),))


@rule
def segment_sum(
    name: str, operands: Sequence[ShType], count: int, over: Sequence[str], constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """Sums of rows by their segment; ``operands`` are the rows and the segments' numbers, both along the first dims.

    Rows that are sharded along the summed dims give a pending sum. ``over`` are axes that shard the segments: each
    device sums all rows of its own ones, so the rows must be replicated there.
    """
    data, ids = operands
    check_divides(ids.mesh, Dim(count, tuple(over)), 0)
    if data.shape[: ids.ndim] != ids.shape:
        raise ShardingTypeError(f"`{name}` needs a number for each row: the rows are {data}, their numbers {ids}")
    names: list[Label] = [("ids" if d < ids.ndim else "dim", d) for d in range(data.ndim)]
    labels = [names, names[: ids.ndim]]
    met = Meeting(name, operands, labels, _join_sum, [TERM, FACTOR], data.dtype_name, constants)
    summed = {axis for label in labels[1] for axis in met.axes.get(label, ())}
    states = {axis: SUM[Role.ALONG if axis in summed else state] for axis, state in met.states.items()}
    dims = [Dim(count), *(met.dim(names[d], data.shape[d]) for d in range(ids.ndim, data.ndim))]
    rows, numbers = met.operands
    for axis in over:
        if states[axis] not in REPLICATED:
            raise ShardingTypeError(
                f"`{name}` cannot shard the segments on {reasons.on([axis])}, where the rows are "
                f"{reasons.state_word(states[axis])}",
                why="each device sums the rows that it has, and a segment can have rows everywhere",
                hints=["leave `over` out: the pending sum can be reduced and scattered"],
                axes=[axis],
            )
        rows, states[axis] = rows.with_axis(axis, State.REDUCED), State.SHARDED  # some of the gradient on each device
    dims[0] = Dim(count, tuple(over))
    return Typing((rows, numbers), (build(met.mesh, data.dtype_name, dims, states),))


def _join_sum(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
    data, ids = states
    check_ids(meeting.name, axis, ids, meeting.word(1))
    return meeting.fold(MULTILINEAR, axis, [data, ids])


@rule
def sort(
    name: str, operands: Sequence[ShType], dim: int, keys: int, constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """The first ``keys`` operands in order along ``dim``, which must be whole, and the others with them.

    Linear in the others, each of which meets the keys alone; one that is sharded along ``dim`` is looked up.
    """
    for t in operands[:keys]:
        reasons.check_whole(name, t, (dim,))
    types, results = list(operands), list(operands)
    for i in (*range(len(operands)), *range(len(operands))):  # what one takes the keys to, the others meet
        chosen = [*range(keys), *([i] if i >= keys else [])]
        of_chosen = frozenset(j for j, k in enumerate(chosen) if k in constants)
        met = _sorted(name, [types[k] for k in chosen], dim, keys, of_chosen)
        for k, t in zip(chosen, met.operands, strict=True):
            types[k] = t
        results[i] = met.results[0].replace(dtype=operands[i].dtype_name)
    return Typing(tuple(types), tuple(results))


def _sorted(name: str, operands: Sequence[ShType], dim: int, keys: int, constants: frozenset[int]) -> Typing:
    """The keys, and one of what goes with them."""
    labels: list[Label] = [("dim", d) for d in range(operands[0].ndim)]
    last = operands[-1]
    looked = set(last.dims[dim].axes)
    own: list[Label] = [("at", d) if d == dim and looked else label for d, label in enumerate(labels)]
    check_summable(name, last, looked)

    def join(meeting: Meeting, axis: str, states: Sequence[State | None]) -> State | None:
        for i, state in enumerate(states[:keys]):
            if state is not None and state not in NONLINEAR:
                raise reasons.nonlinear(name, axis, meeting.word(i))
        return meeting.fold(MULTILINEAR, axis, states)

    each = [own if i == len(operands) - 1 else labels for i in range(len(operands))]
    met = Meeting(name, operands, each, join, [FACTOR] * len(operands), last.dtype_name, constants)
    return met.typing([met.dim(label, n) for label, n in zip(labels, last.shape, strict=True)], looked)
