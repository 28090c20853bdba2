"""The same shards in another state."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

import jax

from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.collective import reinterpreted, vary
from shtypes.core.reshard import move
from shtypes.errors import ShardingTypeError
from shtypes.local_mode.lax.arguments import Axes, axes_of, each, state_of
from shtypes.local_mode.lax.devices import axis_index, axis_size
from shtypes.local_mode.lax.sums import psum
from shtypes.ops.functions import where
from shtypes.scopes.check_comm import check_comm
from shtypes.types import ShType, State

T = TypeVar("T")

SHARDED, REDUCED, INVARIANT, UNREDUCED, VARYING = State


@public
def pcast(x: T, axis_name: Axes, *, to: Any) -> T:
    """The same shards in another state; `jax.lax.pcast`.

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

    return each("pcast", x, make)


def _cannot_cast(t: ShType, axis: str, state: State) -> ShardingTypeError:
    found, wanted = t.state(axis).name.lower(), state.name.lower()
    hints = {
        VARYING: [f'sh.lax.psum(x, "{axis}") makes one value of it'] if state in (REDUCED, INVARIANT) else [],
        UNREDUCED: [f'sh.all_reduce(x, "{axis}")'],
        SHARDED: [f'sh.reinterpret(x, {axis}="V") takes the slices as values'],
    }
    return ShardingTypeError(
        f"mesh axis `{axis}` cannot be cast from {found} to {wanted}",
        why=f"the value has type {t}" if found != wanted else f"it is {found} already in {t}",
        hints=hints.get(t.state(axis), []),
        axes=[axis],
    )


@public
def pvary(x: T, axis_name: Axes) -> T:
    """A replicated value as a varying one: ``pcast(x, axis_name, to="varying")``."""
    return pcast(x, axis_name, to=VARYING)


@public
def pbroadcast(x: T, axis_name: Axes, source: int | None = None) -> T:
    """A replicated value as a varying one, as in the design of efficient transposition; or one device's value on all.

    Args:
        x (...): Without ``source``, reduced or invariant. With it, varying.
        axis_name: A mesh axis or several.
        source: The index of the device whose value all get, as in `jax.lax.pbroadcast`.

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
    own: T = jax.tree.map(lambda leaf: where(axis_index(axis_name) == source, leaf, 0), x)
    return psum(own, axis_name)


__all__ = ["pbroadcast", "pcast", "pvary"]
