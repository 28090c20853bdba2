"""Collectives that reduce over devices, and casts of shards to another state."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

import jax

from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.collective import collect, reinterpreted, vary
from shtypes.core.elementwise_fns import DivideBy
from shtypes.core.local import local
from shtypes.core.reshard import move
from shtypes.core.shard_fn import local_dtype
from shtypes.dispatch.apply import is_number
from shtypes.errors import ShardingTypeError
from shtypes.local_mode.lax.arguments import (
    Axes,
    axes_of,
    axis_index,
    axis_size,
    bools_as_integers,
    dim_from_front,
    on_each_leaf,
    refuse_groups,
    replicated_state,
    state_of,
)
from shtypes.ops.functions import where
from shtypes.rules.local import Op
from shtypes.scopes.check_comm import check_comm
from shtypes.types import ShType, State

T = TypeVar("T")

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


@public
def psum(x: T, axis_name: Axes, *, axis_index_groups: Any = None, to: Any = None) -> T:
    """The sum of the devices' values along mesh axes, on each of them; `jax.lax.psum`.

    Args:
        x (...): Varying over the axes. A Python number is multiplied by their size.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        to: ``"reduced"`` or ``"invariant"``; the policy's replicated state by default.

    Returns:
        (...): One value; reduced or invariant.

    Raises:
        ShardingTypeError: the value is not varying: to sum a replicated one would multiply it by the axis's size.

    Communicates: an all-reduce; backward nothing if invariant, an all-reduce if reduced. Transpose: `pbroadcast` (to
    invariant); the sum of the pending cotangent on each device (to reduced).
    """
    refuse_groups(axis_index_groups)
    axes, state = axes_of(axis_name), replicated_state(to, "psum")

    def total(leaf: Any) -> Any:
        if is_number(leaf):
            return leaf * axis_size(axes)
        return on_each_leaf(
            "psum", leaf, lambda value, t: collect(Op("psum", axes, VARYING, state), bools_as_integers(value))
        )

    totals: T = jax.tree.map(total, x)
    return totals


@public
def pmean(x: T, axis_name: Axes, *, axis_index_groups: Any = None, to: Any = None) -> T:
    """The mean of the devices' values along mesh axes; `jax.lax.pmean`: `psum` over the size of the axes.

    Of integers and bools it is a float, as in JAX.
    """
    axes = axes_of(axis_name)

    def mean(total: Any) -> Any:
        if is_number(total):
            return total / axis_size(axes)
        t = jax.typeof(total)
        by = DivideBy(t.mesh.product(axes))
        out = t.replace(dtype=local_dtype(by, (t.dtype_name,)))
        if not t.differentiable:  # for integers the replicated states are equal
            for axis in (*t.axes(REDUCED), *t.axes(INVARIANT)):
                out = out.with_axis(axis, replicated_state(to if axis in axes else None, "pmean"))
        return local(by, total, out=out)

    means: T = jax.tree.map(mean, psum(x, axes, axis_index_groups=axis_index_groups, to=to))
    return means


@public
def psum_scatter(
    x: T, axis_name: Axes, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> T:
    """Sums the devices' values, and scatters the sum along a dim; `jax.lax.psum_scatter`.

    Args:
        x (..., n, ...): Varying over the axes.
        axis_name: A mesh axis or several.
        scatter_dimension: The dim to scatter.
        axis_index_groups: None.
        tiled: Whether the part is an equal slice of the dim; else the dim has one element per device, and is dropped.

    Returns:
        (..., n / size, ...): or without the dim. Varying.

    Communicates: a reduce-scatter; backward, an all-gather. Transpose: `all_gather`.
    """
    refuse_groups(axis_index_groups)

    def make(leaf: Any, t: ShType) -> Array:
        op = Op("psum_scatter", axes_of(axis_name), dim=dim_from_front(scatter_dimension, t.ndim), tiled=tiled)
        return collect(op, bools_as_integers(leaf))

    return on_each_leaf("psum_scatter", x, make)


@public
def pmax(x: T, axis_name: Axes, *, axis_index_groups: Any = None, to: Any = None) -> T:
    """The largest of the devices' values, element by element; `jax.lax.pmax`.

    Args:
        x (...): Varying over the axes; not unreduced.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        to: As in `psum`.

    Returns:
        (...): One value; reduced or invariant.

    Communicates: an all-reduce; differentiated, one more that counts the winners. Derivative: the mean of the winners'.
    """
    return _extreme("pmax", x, axis_name, axis_index_groups, to)


@public
def pmin(x: T, axis_name: Axes, *, axis_index_groups: Any = None, to: Any = None) -> T:
    """The smallest of the devices' values, element by element; `jax.lax.pmin`. As `pmax`."""
    return _extreme("pmin", x, axis_name, axis_index_groups, to)


def _extreme(name: str, x: T, axis_name: Axes, groups: Any, to: Any) -> T:
    refuse_groups(groups)
    axes, state = axes_of(axis_name), replicated_state(to, name)
    return on_each_leaf(name, x, lambda leaf, t: collect(Op(name, axes, VARYING, state), leaf))


@public
def pcast(x: T, axis_name: Axes, *, to: Any) -> T:
    """Casts shards to another state; `jax.lax.pcast`.

    Args:
        x (...): For ``"varying"``: reduced or invariant. For ``"unreduced"``: varying; the values become the terms of a
            pending sum. For ``"reduced"``: invariant. For ``"invariant"``: reduced.
        axis_name: A mesh axis or several.
        to: The state.

    Communicates: nothing; backward, an all-reduce from invariant to varying or to reduced.
    """
    axes, state = axes_of(axis_name), state_of(to, (VARYING, UNREDUCED, REDUCED, INVARIANT), "pcast")
    allowed = {VARYING: (REDUCED, INVARIANT), UNREDUCED: (VARYING,), REDUCED: (INVARIANT,), INVARIANT: (REDUCED,)}

    def make(leaf: Any, t: ShType) -> Array:
        for axis in axes:
            if t.state(axis) not in allowed[state]:
                raise _cannot_cast(t, axis, state)
        if state is VARYING:
            return vary(leaf, axes)
        dst = t.with_axes(axes, state)
        if state is UNREDUCED:
            return reinterpreted(leaf, dst)
        check_comm("pcast", t, dst)
        return move(leaf, dst)

    return on_each_leaf("pcast", x, make)


def _cannot_cast(t: ShType, axis: str, state: State) -> ShardingTypeError:
    src, dst = t.state(axis).name.lower(), state.name.lower()
    hints = {
        VARYING: [f'sh.lax.psum(x, "{axis}") makes one value of it'] if state in (REDUCED, INVARIANT) else [],
        UNREDUCED: [f'sh.all_reduce(x, "{axis}")'],
        SHARDED: [f'sh.reinterpret(x, {axis}="V") takes the slices as values'],
    }
    return ShardingTypeError(
        f"mesh axis `{axis}` cannot be cast from {src} to {dst}",
        why=f"the value has type {t}" if src != dst else f"it is {src} already in {t}",
        hints=hints.get(t.state(axis), []),
        axes=[axis],
    )


@public
def pvary(x: T, axis_name: Axes) -> T:
    """Casts a replicated value to varying: ``pcast(x, axis_name, to="varying")``."""
    return pcast(x, axis_name, to=VARYING)


@public
def pbroadcast(x: T, axis_name: Axes, source: int | None = None) -> T:
    """Casts a replicated value to varying; or, with ``source``, broadcasts one device's value.

    Args:
        x (...): Without ``source``, reduced or invariant. With it, varying.
        axis_name: A mesh axis or several.
        source: The index of the device that broadcasts its value, as in `jax.lax.pbroadcast`.

    Returns:
        (...): Varying without ``source``, else replicated by policy.

    Communicates: nothing; backward, an all-reduce if invariant. With ``source``, an all-reduce of the masked value.
    Transpose: `psum`.
    """
    if source is None:
        return pvary(x, axis_name)
    n = axis_size(axis_name)
    if not 0 <= operator.index(source) < n:
        raise ShardingTypeError(f"`pbroadcast` has the source {source}, and there are {n} devices")
    return broadcast_from(x, axis_name, axis_index(axis_name) == source)


def broadcast_from(x: T, axis_name: Axes, is_source: Array) -> T:
    """The value of the one device on which ``is_source`` is true, by an all-reduce of the masked values."""

    def broadcast(leaf: Any) -> Any:
        masked = where(is_source, leaf, False)  # of the dtype of the leaf
        return psum(masked, axis_name).astype(masked.dtype)  # the sum of bools is an integer

    values: T = jax.tree.map(broadcast, x)
    return values


__all__ = ["pbroadcast", "pcast", "pmax", "pmean", "pmin", "psum", "psum_scatter", "pvary"]
