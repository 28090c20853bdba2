"""The collectives of `shtypes.lax` in plain programs that are traced for local mode: those of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp

from shtypes.errors import ShardingTypeError
from shtypes.local_mode import lax
from shtypes.local_mode.lax.arguments import axes_of, replicated_state, state_of
from shtypes.types import State
from shtypes.types.policy import replicated

#: What JAX calls the states that `to=` names.
_JAX: Final = {State.VARYING: "varying", State.REDUCED: "reduced", State.UNREDUCED: "unreduced"}


def _not_jaxs(name: str, state: State) -> ShardingTypeError:
    return ShardingTypeError(
        f"`{name}` of a plain array cannot end in `{state.name.lower()}`",
        why="in a plain program it is the collective of jax.lax, which ends in the replicated state of the policy",
        hints=[
            "typed ops alone in the function given to sh.shard_map",
            f"sh.lift of its parts, and sh.lax.{name} between",
        ],
    )


def _in_one_value(name: str) -> Callable[..., Any]:
    def call(x: Any, axis_name: Any, *, axis_index_groups: Any = None, to: Any = None) -> Any:
        state, axes = replicated_state(to, name), axes_of(axis_name)
        made = getattr(jax.lax, name)(x, axes, axis_index_groups=axis_index_groups)
        if state is replicated():
            return made
        if state is State.INVARIANT:
            raise _not_jaxs(name, state)
        return jax.lax.pcast(made, axes, to=_JAX[state])

    return call


def _all_gather(x: Any, axis_name: Any, *, to: Any = "varying", **options: Any) -> Any:
    state = state_of(to, (State.VARYING, State.REDUCED, State.INVARIANT), "all_gather")
    return jax.lax.all_gather(x, axes_of(axis_name), to=_JAX.get(state, "invarying"), **options)


def _pcast(x: Any, axis_name: Any, *, to: Any) -> Any:
    state = state_of(to, (*_JAX, State.INVARIANT), "pcast")
    if state is State.INVARIANT:
        raise _not_jaxs("pcast", state)
    return jax.lax.pcast(x, axes_of(axis_name), to=_JAX[state])


def _pbroadcast(x: Any, axis_name: Any, source: int | None = None) -> Any:
    if source is None:
        return _pcast(x, axis_name, to="varying")
    own = jax.tree.map(lambda leaf: jnp.where(jax.lax.axis_index(axes_of(axis_name)) == source, leaf, 0), x)
    return jax.lax.psum(own, axes_of(axis_name))


def _pscatter(x: Any, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    index, n = jax.lax.axis_index(axes_of(axis_name)), jax.lax.axis_size(axes_of(axis_name))

    def part(leaf: Any) -> Any:
        if not tiled:
            return jax.lax.dynamic_index_in_dim(leaf, index, scatter_dimension, keepdims=False)
        size = leaf.shape[scatter_dimension] // n
        return jax.lax.dynamic_slice_in_dim(leaf, index * size, size, scatter_dimension)

    return jax.tree.map(part, x)


def _ragged_all_to_all(*operands: Any, disjoint: bool = False, axis_name: Any, **options: Any) -> Any:
    return jax.lax.ragged_all_to_all(*operands, axis_name=axes_of(axis_name), **options)


def _of_jax(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(jax.lax, name)(*args, **kwargs)

    return call


_FORMS: Final[dict[str, Callable[..., Any]]] = {
    **{name: _in_one_value(name) for name in ("pmax", "pmean", "pmin", "psum")},
    **{
        name: _of_jax(name)
        for name in ("axis_index", "axis_size", "all_to_all", "ppermute", "pshuffle", "psum_scatter")
    },
    "all_gather": _all_gather,
    "all_gather_invariant": lambda x, axis_name, **options: _all_gather(x, axis_name, to="invariant", **options),
    "pbroadcast": _pbroadcast,
    "pcast": _pcast,
    "pscatter": _pscatter,
    "pswapaxes": _of_jax("pswapaxes"),
    "pvary": lambda x, axis_name: _pcast(x, axis_name, to="varying"),
    "ragged_all_to_all": _ragged_all_to_all,
}
#: By the function of `shtypes.lax`.
PLAIN_FORMS: Final = {getattr(lax, name): _FORMS[name] for name in lax.__all__}
