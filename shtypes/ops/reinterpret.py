"""`stop_gradient`, `constant` and `reinterpret`: functions that JAX lacks, or cannot apply to typed values."""

from __future__ import annotations

from typing import Any, Final

import jax
from jax import lax

from shtypes.core.array import Array
from shtypes.core.collective import reinterpreted, vary
from shtypes.core.device_put import type_of
from shtypes.core.eager_cache import public
from shtypes.core.elementwise_fns import STOP_GRADIENT, Identity
from shtypes.core.local import local
from shtypes.dispatch.apply import as_operands, is_typed, located
from shtypes.dispatch.reshard import normalize_dim
from shtypes.errors import ShardingTypeError
from shtypes.resharding.moves import REINTERPRETATIONS
from shtypes.scopes.check_comm import check_comm
from shtypes.types import Dim, ShType, State
from shtypes.types.policy import replicated


@public
def stop_gradient(x: Any) -> Any:
    """The value, a constant to derivatives, as `jax.lax.stop_gradient`; types stay.

    Args:
        x: A tree of typed values and plain arrays.

    Communicates: nothing.
    """

    def stopped(leaf: Any) -> Any:
        if not is_typed(leaf):
            return lax.stop_gradient(leaf)
        return local(STOP_GRADIENT, leaf, out=jax.typeof(leaf))

    return jax.tree.map(stopped, x)


@public
def constant(x: Any, *, to: str | State | None = None) -> Any:
    """The value without a gradient, ready to meet others: what casts it communicates in neither direction.

    For a learning rate or a mask that is traced: a plain traced array counts as invariant, and its gradient would be
    summed wherever it meets a reduced value.

    Args:
        x: A tree of typed values and plain arrays.
        to: ``"R"`` or ``"I"``, the replicated state that replicated axes get; the policy's by default.

    Returns:
        (...): The typed value; reduced and invariant axes are in that state, the others stay.

    Communicates: nothing, in either direction.
    """
    letters = {"R": State.REDUCED, "I": State.INVARIANT}
    state = replicated() if to is None else letters.get(to) if isinstance(to, str) else to
    if state not in (State.REDUCED, State.INVARIANT):
        raise ShardingTypeError(f"a constant is replicated as `R` or `I`, not {to!r}")

    def fixed(leaf: Any) -> Any:
        ((value,), _) = as_operands([leaf])
        t = jax.typeof(value)
        out = t.replace(states=tuple(state if s in (State.REDUCED, State.INVARIANT) else s for s in t.states))
        return local(Identity("constant", constant=True), value, out=out)

    return jax.tree.map(fixed, x)


_LETTERS: Final = frozenset({*State, *(s.value for s in State)}) - {State.SHARDED, State.SHARDED.value}


@public
def reinterpret(x: Any, target: Any = None, /, **states: Any) -> Array:
    """The same shards under another type, which changes what they denote: the door to varying values and back.

    Per axis: sharded to varying and back, reduced or invariant to varying, varying to unreduced ("these are partial
    sums").

    Args:
        x (...): A typed value.
        target: The new type, with its sizes; along varying axes they are those of one device.
        **states: Instead, the new place of some axes by name: ``"V"``, ``"U"``, or the dim that a varying axis shards.

    Returns:
        (...): The shards of ``x`` with that type.

    Raises:
        ShardingTypeError: an axis would change in another way, which needs a reshard; the shards have another shape.

    Communicates: nothing; backward, invariant to varying is summed. Transpose: the reinterpretation between the
    cotangent types.
    """
    ((x,), _) = as_operands([x])
    t = jax.typeof(x)
    try:
        dst = _reinterpreted(t, states) if target is None else type_of(target, t.mesh, dtype=t.dtype_name)
        return _reinterpret(x, t, dst)
    except ShardingTypeError as error:
        raise located(error, "reinterpret", [t]) from None


def _reinterpret(x: Any, t: ShType, dst: ShType) -> Array:
    if t.dtype_name != dst.dtype_name or t.local_shape != dst.local_shape:
        raise ShardingTypeError(
            f"{t} cannot be read as {dst}",
            why=f"the shards are {t.dtype_name}{list(t.local_shape)} and {dst.dtype_name}{list(dst.local_shape)}",
            hints=["along a varying axis, the size of a dim is that of one device"],
        )
    invariant = []
    summed = t  # for the checks of scopes: to varying sends as much as to reduced
    for axis, before, after in zip(t.mesh.axis_names, t.states, dst.states, strict=True):
        if before is after:
            if t.dim_of(axis) != dst.dim_of(axis):
                raise ShardingTypeError(
                    f"mesh axis `{axis}` shards another dim in {dst}", hints=["sh.reshard moves it"]
                )
            continue
        if (before, after) not in REINTERPRETATIONS:
            raise ShardingTypeError(
                f"mesh axis `{axis}` cannot be reinterpreted from {before.name.lower()} to {after.name.lower()}",
                why="the shards of the one do not say what the other denotes" if after is State.VARYING else "",
                hints=[] if State.VARYING in (before, after) else ["sh.reshard changes the state and keeps the value"],
            )
        if before is State.INVARIANT:
            invariant.append(axis)
            summed = summed.with_axis(axis, State.REDUCED)
    check_comm("reinterpret", t, summed, inserted=True)
    return reinterpreted(vary(x, invariant), dst)


def _reinterpreted(t: ShType, states: dict[str, Any]) -> ShType:
    """The type with some axes in another state and the same shards."""
    if not states:
        raise ShardingTypeError("`reinterpret` needs a type or axes by name", hints=['sh.reinterpret(x, tp="V")'])
    sharding = [d.axes for d in t.dims]
    rest = t.beside_dims
    for axis, place in states.items():
        t.mesh.index(axis)
        sharding = [tuple(a for a in axes if a != axis) for axes in sharding]
        rest.pop(axis, None)
        if isinstance(place, int):
            sharding[normalize_dim(place, t)] += (axis,)
        else:
            if place not in _LETTERS:
                what = f"mesh axis `{axis}` cannot be reinterpreted as {place!r}"
                raise ShardingTypeError(what, hints=['"V", "U" or a dim'])
            rest[axis] = State(place)
    dims = [
        Dim(n * t.mesh.product(axes), axes, d.name) for n, axes, d in zip(t.local_shape, sharding, t.dims, strict=True)
    ]
    return t.replace(dims=dims, states=rest)
