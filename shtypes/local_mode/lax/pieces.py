"""What devices have, put together, shared out, or exchanged."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeVar

from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.collective import collect
from shtypes.core.reshard import move
from shtypes.errors import ShardingTypeError
from shtypes.local_mode.lax.arguments import Axes, axes_of, dim_from_front, each, no_groups, state_of
from shtypes.local_mode.lax.devices import axis_size
from shtypes.rules.local import Op
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
    """The devices' values together, on each of them; `jax.lax.all_gather`.

    Args:
        x (...): Varying over the mesh axes.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        axis: The dim along which the values are stacked, or concatenated.
        tiled: Whether they are concatenated along a dim that is there; else stacked along a new one.
        to: ``"varying"``, ``"reduced"`` or ``"invariant"``: the state of the result, and so of its gradient.

    Returns:
        (..., size, ...): The same on each device.

    Communicates: an all-gather; backward, a reduce-scatter, or nothing if invariant. Transpose: `psum_scatter`, or
    `pscatter` if invariant.
    """
    no_groups(axis_index_groups)
    state = state_of(to, (VARYING, REDUCED, INVARIANT), "all_gather")
    name = "all_gather_invariant" if state is INVARIANT else "all_gather"

    def make(leaf: Any, t: ShType) -> Array:
        dim = dim_from_front(axis, t.ndim + (not tiled))
        return collect(Op(name, axes_of(axis_name), VARYING, state, dim=dim, tiled=tiled), leaf)

    return each(name, x, make)


@public
def all_gather_invariant(x: T, axis_name: Axes, *, axis: int = 0, tiled: bool = False) -> T:
    """`all_gather` to an invariant value, whose transpose `pscatter` sends nothing."""
    return all_gather(x, axis_name, axis=axis, tiled=tiled, to=INVARIANT)


@public
def pscatter(x: T, axis_name: Axes, *, scatter_dimension: int = 0, tiled: bool = False) -> T:
    """Each device's own part of a replicated value.

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

    return each("pscatter", x, make)


@public
def ppermute(x: T, axis_name: Axes, perm: Sequence[tuple[int, int]]) -> T:
    """Values sent from device to device; `jax.lax.ppermute`.

    Args:
        x (...): Varying over the axes.
        axis_name: A mesh axis or several.
        perm: Pairs (source, destination) of indices; each source and each destination at most once.

    Returns:
        (...): Varying; zero on devices that are no destination.

    Communicates: a permutation, forward and backward. Transpose: the inverse permutation.
    """
    pairs = tuple((operator.index(a), operator.index(b)) for a, b in perm)
    return each("ppermute", x, lambda leaf, t: collect(Op("ppermute", axes_of(axis_name), perm=pairs), leaf))


@public
def pshuffle(x: T, axis_name: Axes, perm: Sequence[int]) -> T:
    """Values taken from other devices; `jax.lax.pshuffle`: device ``i`` gets that of device ``perm[i]``."""
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
    """The pieces of each device's value exchanged; `jax.lax.all_to_all`.

    Args:
        x (...): Varying over the mesh axes.
        axis_name: A mesh axis or several.
        split_axis: The dim whose pieces go to the devices.
        concat_axis: The dim along which the pieces from the devices are stacked, or concatenated.
        axis_index_groups: None.
        tiled: Whether pieces are equal slices, concatenated along a dim that is there; else ``split_axis`` has one
            element per device and is dropped, and ``concat_axis`` is a new dim.

    Returns:
        (...): Varying.

    Communicates: an all-to-all, forward and backward. Transpose: the same with the two dims swapped.
    """
    no_groups(axis_index_groups)

    def make(leaf: Any, t: ShType) -> Array:
        split, concat = dim_from_front(split_axis, t.ndim), dim_from_front(concat_axis, t.ndim)
        return collect(Op("all_to_all", axes_of(axis_name), dim=split, concat=concat, tiled=tiled), leaf)

    return each("all_to_all", x, make)


@public
def pswapaxes(x: T, axis_name: Axes, axis: int, *, axis_index_groups: Any = None) -> T:
    """A dim and a mesh axis swapped; `jax.lax.pswapaxes`: `all_to_all` that splits and stacks the same dim."""
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


__all__ = ["all_gather", "all_gather_invariant", "all_to_all", "ppermute", "pscatter", "pshuffle", "pswapaxes"]
