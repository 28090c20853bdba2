"""Collectives that gather, scatter or exchange shards."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeVar

import jax

from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.collective import collect
from shtypes.core.combined_collectives import Ragged
from shtypes.core.operation import sent_by
from shtypes.core.reshard import move
from shtypes.dispatch.apply import as_operands, located
from shtypes.errors import ShardingTypeError
from shtypes.local_mode.lax.arguments import (
    Axes,
    axes_of,
    axis_size,
    dim_from_front,
    on_each_leaf,
    refuse_groups,
    state_of,
)
from shtypes.rules.local import Op
from shtypes.scopes.check_comm import check_sent
from shtypes.scopes.scope_rules import rules_in_force
from shtypes.types import ShType, State

T = TypeVar("T")

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


@public
def all_gather(
    x: T,
    axis_name: Axes,
    *,
    axis_index_groups: Any = None,
    axis: int = 0,
    tiled: bool = False,
    to: Any = "varying",
) -> T:
    """Gathers the devices' values on each device; `jax.lax.all_gather`.

    Args:
        x (...): Varying over the mesh axes.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        axis: The dim along which the values are stacked, or concatenated.
        tiled: Whether they are concatenated along an existing dim; else stacked along a new one.
        to: ``"varying"``, ``"reduced"`` or ``"invariant"``: the state of the result, and so of its gradient.

    Returns:
        (..., size, ...): The same on each device.

    Communicates: an all-gather; backward, a reduce-scatter, or nothing if invariant. Transpose: `psum_scatter`, or
    `pscatter` if invariant.
    """
    refuse_groups(axis_index_groups)
    state = state_of(to, (VARYING, REDUCED, INVARIANT), "all_gather")
    name = "all_gather_invariant" if state is INVARIANT else "all_gather"

    def make(leaf: Any, t: ShType) -> Array:
        dim = dim_from_front(axis, t.ndim + (not tiled))
        return collect(Op(name, axes_of(axis_name), VARYING, state, dim=dim, tiled=tiled), leaf)

    return on_each_leaf(name, x, make)


@public
def all_gather_invariant(x: T, axis_name: Axes, *, axis: int = 0, tiled: bool = False) -> T:
    """`all_gather` to an invariant value, whose transpose `pscatter` sends nothing."""
    return all_gather(x, axis_name, axis=axis, tiled=tiled, to=INVARIANT)


@public
def pscatter(x: T, axis_name: Axes, *, scatter_dimension: int = 0, tiled: bool = False) -> T:
    """Keeps, on each device, its part of a replicated value.

    Args:
        x (..., n, ...): Invariant or reduced over the axes.
        axis_name: A mesh axis or several.
        scatter_dimension: The dim to keep a part of.
        tiled: As in `psum_scatter`.

    Returns:
        (..., n / size, ...): or without the dim. Varying.

    Communicates: nothing; backward, an all-gather if invariant, nothing if reduced. Transpose: `all_gather_invariant`,
    or the part placed in zeros.
    """
    axes = axes_of(axis_name)

    def make(leaf: Any, t: ShType) -> Array:
        states = {t.state(a) for a in axes}
        if states == {REDUCED, INVARIANT}:  # one collective for all axes: reduced to invariant is free
            leaf, states = move(leaf, t.with_axes(axes, INVARIANT)), {INVARIANT}
        src = REDUCED if states == {REDUCED} else INVARIANT
        return collect(
            Op("pscatter", axes, src, VARYING, dim=dim_from_front(scatter_dimension, t.ndim), tiled=tiled), leaf
        )

    return on_each_leaf("pscatter", x, make)


@public
def ppermute(x: T, axis_name: Axes, perm: Sequence[tuple[int, int]]) -> T:
    """Sends values from device to device; `jax.lax.ppermute`.

    Args:
        x (...): Varying over the axes.
        axis_name: A mesh axis or several.
        perm: Pairs (source, destination) of indices; each source and each destination at most once.

    Returns:
        (...): Varying; zero on devices that are no destination.

    Communicates: a permutation, forward and backward. Transpose: the inverse permutation.
    """
    pairs = tuple((operator.index(a), operator.index(b)) for a, b in perm)
    return on_each_leaf("ppermute", x, lambda leaf, t: collect(Op("ppermute", axes_of(axis_name), perm=pairs), leaf))


@public
def pshuffle(x: T, axis_name: Axes, perm: Sequence[int]) -> T:
    """Permutes the devices' values: device ``i`` gets that of device ``perm[i]``; `jax.lax.pshuffle`."""
    n = axis_size(axis_name)
    if sorted(perm) != list(range(n)):
        raise ShardingTypeError(f"`pshuffle` needs each of the {n} indices once, not {perm!r}")
    return ppermute(x, axis_name, [(source, i) for i, source in enumerate(perm)])


@public
def all_to_all(
    x: T,
    axis_name: Axes,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Any = None,
    tiled: bool = False,
) -> T:
    """Splits each device's value, and exchanges the pieces; `jax.lax.all_to_all`.

    Args:
        x (...): Varying over the mesh axes.
        axis_name: A mesh axis or several.
        split_axis: The dim whose pieces go to the devices.
        concat_axis: The dim along which the pieces from the devices are stacked, or concatenated.
        axis_index_groups: None.
        tiled: Whether pieces are equal slices, concatenated along an existing dim; else ``split_axis`` has one
            element per device and is dropped, and ``concat_axis`` is a new dim.

    Returns:
        (...): Varying.

    Communicates: an all-to-all, forward and backward. Transpose: the same with the two dims swapped.
    """
    refuse_groups(axis_index_groups)

    def make(leaf: Any, t: ShType) -> Array:
        split, concat = dim_from_front(split_axis, t.ndim), dim_from_front(concat_axis, t.ndim)
        return collect(Op("all_to_all", axes_of(axis_name), dim=split, concat=concat, tiled=tiled), leaf)

    return on_each_leaf("all_to_all", x, make)


@public
def pswapaxes(x: T, axis_name: Axes, axis: int, *, axis_index_groups: Any = None) -> T:
    """Swaps a dim and a mesh axis; `jax.lax.pswapaxes`: `all_to_all` that splits and stacks the same dim."""
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


_OFFSETS = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


@public
def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Axes,
    axis_index_groups: Any = None,
    disjoint: bool = False,
) -> Array:
    """Exchanges slices of leading rows, of any sizes; `jax.lax.ragged_all_to_all`.

    Args:
        operand (n, ...): The value to send; varying over the axes.
        output (m, ...): The value to write into; varying, of the same dtype and other dims.
        input_offsets (k,): Where each slice begins; ``k`` is a multiple of the number of devices. Varying integers.
        send_sizes (k,): The number of rows of each slice.
        output_offsets (k,): The row at which the receiver writes each slice.
        recv_sizes (k,): The number of rows that arrive.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        disjoint: A promise that no two slices of ``operand`` overlap. Without it, the backward pass stores them apart
            before it adds them, which needs memory for all that the receivers can hold.

    Returns:
        (m, ...): ``output`` with the received rows. Varying.

    Raises:
        ShardingTypeError: an argument is not varying; shapes or dtypes do not fit.

    Communicates: an all-to-all, forward and backward; the bytes depend on values, so the ledger counts all of the
    operand. On CPU, where XLA has no such collective, operands are all-gathered. Transpose: the rows are sent back.
    """
    refuse_groups(axis_index_groups)
    axes = axes_of(axis_name)
    values, _ = as_operands([operand, output, input_offsets, send_sizes, output_offsets, recv_sizes])
    types = [jax.typeof(x) for x in values]
    operation = Ragged(axes, bool(disjoint), tuple(types))
    try:
        _check(types, axes)
        if rules_in_force():
            sent = (
                sent_by(way, "a ragged all-to-all") for way in (operation.forward_comm(), operation.backward_comm())
            )
            check_sent("ragged_all_to_all", *operation.change, *sent)
    except ShardingTypeError as error:
        raise located(error, "ragged_all_to_all", types).with_traceback(None) from None
    exchanged: Array = operation.applied(*values)[0]
    return exchanged


def _check(types: list[ShType], axes: tuple[str, ...]) -> None:
    names = ("operand", "output", *_OFFSETS)
    for name, t in zip(names, types, strict=True):
        for axis in axes:
            if t.state(axis) is not State.VARYING:
                raise ShardingTypeError(
                    f"`ragged_all_to_all` over mesh axis `{axis}` needs a varying `{name}`, and {t} is "
                    f"{t.state(axis).name.lower()}",
                    hints=[f'sh.lax.pvary({name}, "{axis}")'],
                    axes=[axis],
                )
        if t.states != types[0].states or any(d.axes for d in t.dims):
            raise ShardingTypeError(f"`{name}`, {t}, is not on the devices as `operand`, {types[0]}, is")
    operand, output, *offsets = types
    if not operand.ndim or operand.shape[1:] != output.shape[1:] or operand.dtype_name != output.dtype_name:
        raise ShardingTypeError(
            f"`operand` and `output` differ in more than their rows: {operand} and {output}",
        )
    n = operand.mesh.product(axes)
    for name, t in zip(_OFFSETS, offsets, strict=True):
        if t.ndim != 1 or t.dtype_name[0] not in "iu" or t.shape != offsets[0].shape or t.shape[0] % n:
            raise ShardingTypeError(
                f"`{name}` cannot be {t}",
                why=f"it has an integer for each slice, and each of the {n} devices is sent as many slices",
            )


__all__ = [
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "ppermute",
    "pscatter",
    "pshuffle",
    "pswapaxes",
    "ragged_all_to_all",
]
