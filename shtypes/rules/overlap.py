"""Chooses the ring that overlaps an einsum with the collective of `out`.

*Gathered*: the shards of an operand go round the ring, and each device multiplies those that arrive. *Scattered*: the
shards of a pending result go round, and each device adds its term. The other mesh axes are typed as in any einsum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.resharding import plan, price
from shtypes.rules.einsum_like import EinsumEquation, einsum, label_sizes, parse_equation
from shtypes.rules.messages import on, operand_word
from shtypes.rules.typing import NO_CONSTANTS, Typing
from shtypes.types import REPLICATED, Dim, ShType, State


class Ring(NamedTuple):
    """An einsum of two operands with an overlapped collective."""

    operands: tuple[ShType, ShType]  # after the casts of the rule
    result: ShType
    moved: ShType  # the type before the collective, of the operand or the pending result
    becomes: ShType  # the type after it
    gathered: int | None  # the operand that goes round; None for the result
    label: str  # of its sharded dim
    axes: tuple[str, ...]  # the mesh axes of the ring, major to minor


def overlap(
    equation: str,
    operands: Sequence[ShType],
    dtype: str,
    target: ShType,
    constants: frozenset[int] = NO_CONSTANTS,
) -> Ring:
    """The ring of an einsum with result type ``target``, up to a reshard on other axes."""
    parsed = parse_equation(equation, tuple(t.ndim for t in operands))
    _check_form(parsed, operands)
    natural: Typing | None = None
    failure: ShardingTypeError | None = None
    try:
        natural = einsum(equation, operands, dtype, constants)
    except ShardingTypeError as error:
        failure = error
    rings = list(_gathers(parsed, operands, dtype, target, constants))
    if natural is not None:
        rings += _scatters(parsed, natural, target)
    if not rings:
        raise _no_ring_error(natural, failure, target)
    return min(rings, key=lambda ring: plan(ring.moved, ring.becomes).bytes + plan(ring.result, target).bytes)


def _check_form(equation: EinsumEquation, operands: Sequence[ShType]) -> None:
    """Raises unless there are two operands and each label is in two terms, so that the transposes are rings as well."""
    if len(operands) != 2:
        raise ShardingTypeError(
            f"`overlap` takes an einsum of two operands, not {len(operands)}",
            why="one of them, or their product, goes round a ring",
            hints=["write it as einsums of two operands, and overlap those that communicate"],
        )
    sizes = label_sizes(equation, operands)
    for i, (labels, t) in enumerate(zip(equation.inputs, operands, strict=True)):
        word = operand_word(i, 2)
        repeated = next((c for c, n in Counter(labels).items() if n > 1), None)
        if repeated is not None:
            raise ShardingTypeError(f"`overlap` cannot take a diagonal: {word} has label `{repeated}` twice")
        for label, size in zip(labels, t.shape, strict=True):
            if size != sizes[label]:
                raise ShardingTypeError(
                    f"`overlap` cannot stretch dim `{label}` of {word} from 1 to {sizes[label]}",
                    hints=["sh.broadcast_to, or leave the dim out with sh.squeeze"],
                )
            if label not in equation.output and label not in equation.inputs[1 - i]:
                raise ShardingTypeError(
                    f"`overlap` cannot sum label `{label}`, which {word} has alone", hints=["sh.sum over it first"]
                )


# all-gathers


def _gathers(
    equation: EinsumEquation, operands: Sequence[ShType], dtype: str, target: ShType, constants: frozenset[int]
) -> Iterator[Ring]:
    """The rings that gather an operand along a dim, over minor axes of it."""
    dims = ((i, d, dim.axes) for i, t in enumerate(operands) for d, dim in enumerate(t.dims))
    for i, d, rest, ring in ((i, d, axes[:cut], axes[cut:]) for i, d, axes in dims for cut in range(len(axes))):
        state = _gathered_state(ring, operands[1 - i], target, 1 - i in constants)
        gathered = [t.with_axes(ring, state) if j == i else t for j, t in enumerate(operands)]
        try:
            typing = einsum(str(equation), gathered, dtype, constants)
        except ShardingTypeError:
            continue
        result, cast = typing.results[0], typing.operands[i]
        fits = cast.dims[d].axes == rest and all(
            cast.state(a) in REPLICATED and _same_place(result, target, a) for a in ring
        )
        if fits and _can_reshard(result, target):
            back = [x._replace(axes=(*rest, *ring)) if j == d else x for j, x in enumerate(cast.dims)]
            moved = cast.replace(dims=back, states={a: s for a, s in cast.beside_dims.items() if a not in ring})
            lhs, rhs = (moved if j == i else t for j, t in enumerate(typing.operands))
            yield Ring((lhs, rhs), result, moved, cast, i, equation.inputs[i][d], ring)


def _gathered_state(ring: Sequence[str], other: ShType, target: ShType, constant: bool) -> State:
    """The state of the gathered operand: invariant if all else is, so that nothing is pending backward."""
    invariant = all(
        target.state(a) is State.INVARIANT
        and (other.state(a) is State.INVARIANT or (constant and other.state(a) in REPLICATED))
        for a in ring
    )
    return State.INVARIANT if invariant else State.REDUCED


def _same_place(result: ShType, target: ShType, axis: str) -> bool:
    """Whether an axis has the target's place; reduced and invariant are equal, since that reshard is free."""
    a, b = result.state(axis), target.state(axis)
    return (a is b and result.dim_of(axis) == target.dim_of(axis)) or (a in REPLICATED and b in REPLICATED)


# reduce-scatters


def _scatters(equation: EinsumEquation, natural: Typing, target: ShType) -> Iterator[Ring]:
    """The rings that scatter a pending result along a dim."""
    pending = natural.results[0]
    for d, (dim, goal) in enumerate(zip(pending.dims, target.dims, strict=True)):
        ring = goal.axes[len(dim.axes) :]
        if not ring or goal.axes[: len(dim.axes)] != dim.axes:
            continue
        if any(pending.state(a) is not State.UNREDUCED for a in ring):
            continue
        dims = [Dim(x.size, goal.axes if j == d else x.axes, x.name) for j, x in enumerate(pending.dims)]
        result = pending.replace(dims=dims, states={a: s for a, s in pending.beside_dims.items() if a not in ring})
        if _can_reshard(result, target):
            lhs, rhs = natural.operands
            yield Ring((lhs, rhs), result, pending, result, None, equation.output[d], ring)


def _can_reshard(result: ShType, target: ShType) -> bool:
    try:
        plan(result, target)
    except ShardingTypeError:
        return False
    return True


# messages


def _no_ring_error(natural: Typing | None, failure: ShardingTypeError | None, target: ShType) -> ShardingTypeError:
    """The error for an einsum without a ring."""
    if natural is None:
        why = f"gathering one operand does not give {target}" + (f", and by itself {failure.what}" if failure else "")
        hints = ["gather an operand first, with sh.reshard; one collective is overlapped"]
        return ShardingTypeError("`overlap` found no operand to gather", why=why, hints=hints)
    result = natural.results[0]
    if result == target:
        return ShardingTypeError(
            "`overlap` has nothing to overlap: the einsum sends nothing", why=f"its result is {result} by itself"
        )
    pending = [a for a in result.axes(State.UNREDUCED) if target.state(a) in REPLICATED]
    hints = []
    if pending:
        hints = [f"shard a dim of `out` on {on(pending)}: a reduce-scatter can be overlapped, an all-reduce cannot"]
    try:
        cost = price(result, target)
    except ShardingTypeError as error:
        return ShardingTypeError("`overlap` found no ring for the einsum", why=error.what)
    return ShardingTypeError(
        "`overlap` has nothing to overlap: `out` asks for no gathered operand and no scattered sum",
        why=f"the einsum gives {result}, and `out` is {target}" + (f": {cost.forward}" if cost.forward else ""),
        fixes=[cost.of("leave `overlap` out")],
        hints=hints,
    )
