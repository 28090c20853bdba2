"""Types slices, gathers and scatters, one-hot and segment sums, and sorts.

A dim that is indexed by positions is *looked up*. If it is sharded, each device takes the rows that it holds and zeros
for the others, so the result is UNREDUCED; a partial slice of a sharded dim is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.rules import messages
from shtypes.rules.along_dims import ResultDims, unary_along
from shtypes.rules.einsum_like import ProductDims, contraction
from shtypes.rules.tables import ADDITIVE, FACTOR, MULTILINEAR, TERM, Role
from shtypes.rules.typing import NO_CONSTANTS, POSITIONS, CastTable, JointTyping, Label, Typing, rule
from shtypes.types import REPLICATED, Dim, ShType, State, dtypes
from shtypes.types.parts import check_divides


def _kind(label: Label | None) -> str:
    """The kind of a label such as ``("dim", 0)``."""
    return label[0] if isinstance(label, tuple) else ""


def _check_summable(name: str, operand: ShType, dims: Iterable[int]) -> None:
    """Refuses a lookup of sharded dims in an array whose dtype cannot be summed."""
    axes = {axis for d in dims for axis in operand.dims[d].axes}
    if axes and not dtypes.summable(operand.dtype_name):
        ordered = [axis for axis in operand.mesh.axis_names if axis in axes]
        raise ShardingTypeError(
            f"`{name}` looks up a dim of a `{operand.dtype_name}` array that is sharded on {messages.on(ordered)}",
            why="each device finds its own rows only; they would be a pending sum, and this dtype cannot be summed",
            axes=ordered,
        )


# slices


class Slice(NamedTuple):
    """A slice of a dim: ``size`` elements from ``start``, ``step`` apart; with step 0 the start is a runtime value."""

    start: int
    size: int
    step: int = 1


def _in_place(span: Slice, operand: ShType, dim: int) -> bool:
    """Whether a strided slice of a sharded dim is a slice of each shard: ``step`` divides the shards."""
    strided = span.size * span.step == operand.shape[dim] and 0 <= span.start < span.step
    return bool(operand.dims[dim].axes and strided and operand.local_shape[dim] % span.step == 0)


def is_lookup(span: Slice, operand: ShType, dim: int) -> bool:
    """Whether a slice takes one element of a sharded dim, which only one device holds."""
    return span.size == 1 < operand.shape[dim] and bool(operand.dims[dim].axes) and not _in_place(span, operand, dim)


@rule
def slices(
    name: str, operands: Sequence[ShType], spans: Sequence[Slice], constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """A slice of each dim; ``operands`` are the array and scalar positions.

    Full dims keep their axes. One element of a sharded dim is looked up.
    """
    operand = operands[0]
    of_dims: list[Label] = []
    for d, span in enumerate(spans):
        if span == (0, operand.shape[d], 1) or _in_place(span, operand, d):
            of_dims.append(("dim", d))
        elif is_lookup(span, operand, d):
            of_dims.append(("at", d))
        elif operand.dims[d].axes:
            raise messages.along(name, operand, operand.dims[d].axes[0])
        else:
            of_dims.append(("part", d))
    looked_up = [d for d, label in enumerate(of_dims) if _kind(label) == "at"]
    _check_summable(name, operand, looked_up)
    labels: list[Sequence[Label | None]] = [of_dims, *(() for _ in operands[1:])]
    positions = dict.fromkeys(range(1, len(operands)), POSITIONS)
    joint = JointTyping(name, operands, labels, operand.dtype_name, constants, nonlinear=positions)
    dims = [(label if _kind(label) == "dim" else None, span.size) for label, span in zip(of_dims, spans, strict=True)]
    return joint.typing(dims, [of_dims[d] for d in looked_up])


# gather and scatter


class DimensionNumbers(NamedTuple):
    """The dimension numbers of a gather or scatter.

    A full window keeps the axes of its dim, a window of one element is a lookup, and any other window must be of a dim
    that is not sharded.
    """

    window: tuple[int, ...]  # the window dims of the result (or of the updates)
    collapsed: tuple[int, ...]  # the dims of the array with windows of one element that the result lacks
    indexed: tuple[int, ...]  # for each component of a position, the dim of the array that it indexes
    batch: tuple[int, ...] = ()  # the batch dims of the array
    ids_batch: tuple[int, ...] = ()  # the batch dims of the positions, in the same order

    @classmethod
    def of_gather(cls, p: Any) -> DimensionNumbers:
        """From the parameters of JAX's gather."""
        parts = p.offset_dims, p.collapsed_slice_dims, p.start_index_map
        return cls(
            *(tuple(map(int, part)) for part in (*parts, p.operand_batching_dims, p.start_indices_batching_dims))
        )

    @classmethod
    def of_scatter(cls, p: Any) -> DimensionNumbers:
        """From the parameters of JAX's scatter."""
        parts = p.update_window_dims, p.inserted_window_dims, p.scatter_dims_to_operand_dims, p.operand_batching_dims
        return cls(*(tuple(map(int, part)) for part in (*parts, p.scatter_indices_batching_dims)))

    def windowed(self, ndim: int) -> list[int]:
        """The window dims of an array of ``ndim`` dims, in order."""
        return [d for d in range(ndim) if d not in self.collapsed and d not in self.batch]

    def looked_up(self, sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
        """The indexed dims that may be sharded, since their windows (of ``sizes``) have one element."""
        return [d for d in self.indexed if sizes[d] == 1 and d not in self.batch and shape[d]]


def _gather_labels(
    name: str, operand: ShType, ids: ShType, numbers: DimensionNumbers, sizes: Sequence[int]
) -> tuple[list[Label], list[Label], list[Label]]:
    """The labels of the array, the positions, and the result (or the updates)."""
    of_operand: list[Label] = []
    looked_up = numbers.looked_up(sizes, operand.shape)
    for d, n in enumerate(sizes):
        if d in numbers.batch:
            of_operand.append(("batch", numbers.ids_batch[numbers.batch.index(d)]))
        elif d in looked_up:
            of_operand.append(("at", d))
        elif n == operand.shape[d] and d not in numbers.collapsed:
            of_operand.append(("dim", d))
        elif operand.dims[d].axes:
            raise messages.along(name, operand, operand.dims[d].axes[0])
        else:
            of_operand.append(("part", d))
    last = ids.ndim - 1
    messages.check_unsharded(name, ids, (last,))  # the components of a position
    rows: list[Label] = [("batch" if j in numbers.ids_batch else "ids", j) for j in range(last)]
    of_windows = iter(
        [of_operand[d] if _kind(of_operand[d]) == "dim" else ("part", d) for d in numbers.windowed(len(of_operand))]
    )
    of_rows = iter(rows)
    ndim = len(numbers.window) + len(rows)
    result = [next(of_windows) if d in numbers.window else next(of_rows) for d in range(ndim)]
    return of_operand, [*rows, ("components",)], result


@rule
def gather(
    name: str,
    operands: Sequence[ShType],
    numbers: DimensionNumbers,
    sizes: Sequence[int],
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """A gather; ``operands`` are the array and the positions.

    Axes of looked-up dims become UNREDUCED; the positions' dims keep theirs.
    """
    operand, ids = operands
    of_operand, of_ids, of_result = _gather_labels(name, operand, ids, numbers, sizes)
    joint = JointTyping(name, operands, [of_operand, of_ids], operand.dtype_name, constants, nonlinear={1: POSITIONS})
    looked_up = [d for d, label in enumerate(of_operand) if _kind(label) == "at"]
    _check_summable(name, operand, looked_up)
    windows = iter([sizes[d] for d in numbers.windowed(operand.ndim)])
    rows = iter(ids.shape)
    shape = [next(windows) if d in numbers.window else next(rows) for d in range(len(of_result))]
    dims = [None if _kind(label) == "part" else label for label in of_result]
    return joint.typing(zip(dims, shape, strict=True), [of_operand[d] for d in looked_up])


@rule
def scatter(
    name: str,
    how: str,
    operands: Sequence[ShType],
    numbers: DimensionNumbers,
    sizes: Sequence[int],
    constants: frozenset[int] = NO_CONSTANTS,
) -> Typing:
    """A scatter; ``operands`` are the array, the positions and the updates.

    Each device updates its rows of a sharded looked-up dim. If the positions are sharded, scatter-add makes the result
    a pending sum; other scatters need all positions on every device.
    """
    array, ids, _ = operands
    of_operand, of_ids, of_update = _gather_labels(name, array, ids, numbers, sizes)
    return _changed(name, how, operands, [of_operand, of_ids, of_update], 2, constants)


@rule
def dynamic_update_slice(name: str, operands: Sequence[ShType], constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """A dynamic update slice; ``operands`` are the array, the update and the start positions.

    Each device updates its part of a sharded dim.
    """
    array, update, *starts = operands
    replaced = [n == m for n, m in zip(update.shape, array.shape, strict=True)]
    of_array: list[Label] = [("dim" if full else "at", d) for d, full in enumerate(replaced)]
    parts: list[Label] = [("dim" if full else "part", d) for d, full in enumerate(replaced)]
    return _changed(name, "set", operands, [of_array, parts, *([] for _ in starts)], 1, constants)


#: The cast of the array of a scatter-add: it is masked if the updates are a pending sum.
SCATTERED: Final[CastTable] = {
    **TERM,
    (State.REDUCED, Role.LACKS): State.UNREDUCED,
    (State.INVARIANT, Role.LACKS): State.UNREDUCED,
    (State.UNREDUCED, Role.LACKS): State.UNREDUCED,
}

#: By kind of scatter: the casts of array and updates, and whether it is nonlinear in each.
_CHANGES: Final[dict[str, tuple[CastTable, CastTable, bool, bool]]] = {
    "add": (SCATTERED, TERM, False, False),
    "subtract": (SCATTERED, TERM, False, False),
    "set": (TERM, TERM, False, False),
    "multiply": (FACTOR, FACTOR, False, True),  # elements without updates stay
    "min": (FACTOR, FACTOR, True, True),
    "max": (FACTOR, FACTOR, True, True),
}


def _changed(
    name: str,
    how: str,
    operands: Sequence[ShType],
    labels: Sequence[Sequence[Label]],
    update: int,
    constants: frozenset[int],
) -> Typing:
    """Types an update of operand 0 by operand ``update``; the other operands are positions.

    The kinds of labels are ``at`` (looked up), ``ids`` (of positions, which the result lacks) and ``part`` (unsharded,
    since each device updates its part of the dim); any other label is a dim of the result.
    """
    parts = [d for d, label in enumerate(labels[update]) if _kind(label) == "part"]
    messages.check_unsharded(name, operands[update], parts)
    of_array, of_update, *nonlinear_in = _CHANGES[how]
    casts = [of_array, *(FACTOR for _ in operands[1:])]
    casts[update] = of_update
    nonlinear = {i: POSITIONS for i in range(1, len(operands)) if i != update}
    nonlinear |= {i: "" for i, is_nonlinear in zip((0, update), nonlinear_in, strict=True) if is_nonlinear}

    def join(joint: JointTyping, axis: str, states: Sequence[State | None]) -> State | None:
        def total(updates: State | None) -> State | None:
            terms = [updates if i == update else state if i == 0 else None for i, state in enumerate(states)]
            return joint.fold(ADDITIVE, axis, terms)

        sharded_ids = any(axis in axes for label, axes in joint.axes.items() if _kind(label) == "ids")
        if of_array is SCATTERED:  # the positions are a factor of the updates
            updates = joint.fold(MULTILINEAR, axis, [None, *states[1:]])
            return State.SHARDED if sharded_ids and total(State.UNREDUCED) else total(updates)
        if sharded_ids:
            raise ShardingTypeError(
                f"`{name}` has positions that are sharded on {messages.on([axis])}",
                why="each device would change its own positions only, and leave the others as they were",
                axes=[axis],
            )
        if how == "set":  # the positions are a factor of the masked array and of the updates
            states = [total(states[update]), *(None if i == update else s for i, s in enumerate(states[1:], 1))]
        return joint.fold(MULTILINEAR, axis, states)

    joint = JointTyping(
        name, operands, labels, operands[0].dtype_name, constants, nonlinear=nonlinear, join=join, casts=casts
    )
    dims = zip(labels[0], operands[0].shape, strict=True)
    return joint.typing(dims, [label for label in joint.axes if _kind(label) == "ids"])


# classes and segments


@rule
def one_hot(name: str, ids: ShType, count: int, dim: int, dtype: str, over: Sequence[str]) -> Typing:
    """Inserts a dim of ``count`` classes, sharded over ``over``; the positions must be replicated on these axes."""
    check_divides(ids.mesh, Dim(count, tuple(over)), dim)
    dims: list[tuple[int, int | None]] = list(zip(ids.shape, range(ids.ndim), strict=True))
    dims.insert(dim, (count, None))
    (result,) = unary_along(name, ids, (), (ResultDims(dtype, tuple(dims)),), False).results
    for axis in over:
        if ids.state(axis) is not State.REDUCED:
            raise ShardingTypeError(
                f"`{name}` cannot shard the classes on {messages.on([axis])}, where the operand is "
                f"{messages.state_word(ids.state(axis))}",
                why="each device would have its own classes of its own rows only",
                axes=[axis],
            )
        result = result.with_axis(axis, State.SHARDED, dim)
    return Typing((ids,), (result,))


@rule
def segment_sum(
    name: str, operands: Sequence[ShType], count: int, over: Sequence[str], constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """Sums rows by segment; ``operands`` are the rows and the segment ids of their first dims.

    Rows that are sharded along the summed dims give a pending sum. The axes ``over`` shard the segments, so the rows
    must be replicated there.
    """
    data, ids = operands
    check_divides(ids.mesh, Dim(count, tuple(over)), 0)
    if data.shape[: ids.ndim] != ids.shape:
        raise ShardingTypeError(f"`{name}` needs a number for each row: the rows are {data}, their numbers {ids}")
    dims = tuple(range(data.ndim))
    rest_dims = tuple(zip(dims[ids.ndim :], data.shape[ids.ndim :], strict=True))
    plan = ProductDims((dims, dims[: ids.ndim]), (("segments", count), *rest_dims), ids=frozenset({1}))
    (rows, segments), (result,), _ = contraction(name, operands, plan, data.dtype_name, constants)
    for axis in over:
        if result.state(axis) not in REPLICATED:
            raise ShardingTypeError(
                f"`{name}` cannot shard the segments on {messages.on([axis])}, where the rows are "
                f"{messages.state_word(result.state(axis))}",
                why="each device sums the rows that it has, and a segment can have rows everywhere",
                hints=["leave `over` out: the pending sum can be reduced and scattered"],
                axes=[axis],
            )
        rows, result = rows.with_axis(axis, State.REDUCED), result.with_axis(axis, State.SHARDED, 0)
    return Typing((rows, segments), (result,))


# sorting


@rule
def sort(
    name: str, operands: Sequence[ShType], dim: int, keys: int, constants: frozenset[int] = NO_CONSTANTS
) -> Typing:
    """Sorts operands along ``dim`` by the first ``keys`` of them, whose ``dim`` must not be sharded.

    It is linear in the others; one that is sharded along ``dim`` is looked up.
    """
    types, results = list(operands), list(operands)
    labels: tuple[Label, ...] = tuple(range(operands[0].ndim))
    shape = tuple(zip(labels, operands[0].shape, strict=True))
    for i in (*range(len(operands)), *range(len(operands))):  # twice, since each may cast the keys
        joined, each = list(range(keys)), [labels] * keys
        if i >= keys:
            _check_summable(name, types[i], (dim,))
            joined.append(i)
            each.append(tuple(("at", d) if d == dim and types[i].dims[d].axes else d for d in labels))
        plan = ProductDims(tuple(each), shape, frozenset({dim}), nonlinear=frozenset(range(keys)))
        joined_constants = frozenset(j for j, k in enumerate(joined) if k in constants)
        dtype = types[i].dtype_name  # integers have one replicated state
        typing = contraction(name, [types[k] for k in joined], plan, dtype, joined_constants)
        (results[i],) = typing.results
        for k, t in zip(joined, typing.operands, strict=True):
            types[k] = t
    return Typing(tuple(types), tuple(results))
