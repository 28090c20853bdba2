"""Predicates that vary: each device goes its own way, where it need not wait for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shtypes.core.conversion import to_jax
from shtypes.core.local import local
from shtypes.core.shard_fn import ShardFn
from shtypes.dispatch.apply import is_typed
from shtypes.types import REPLICATED, ShType, State, dtypes


@dataclass(frozen=True)
class _OwnValue(ShardFn):
    """What each device has, as the value by which it goes on."""

    compared = False

    def __str__(self) -> str:
        return "own"

    def __call__(self, x: Any) -> Any:
        return x


def own_value(x: Any) -> Any:
    """A scalar that varies as the plain one that each device goes by; whatever follows from it varies as it does."""
    t: ShType = jax.typeof(x)
    return to_jax(local(_OwnValue(), x, out=t.with_axes(t.axes(State.VARYING), State.INVARIANT)))


def varying_type(x: Any, as_: ShType) -> ShType:
    """The type of a value, typed or plain, that varies along the axes along which another one does."""
    axes = as_.axes(State.VARYING)
    if is_typed(x):
        t: ShType = jax.typeof(x)
        return t.with_axes([a for a in axes if t.state(a) in REPLICATED], State.VARYING)
    states = {a: State.VARYING if a in axes else State.REDUCED for a in as_.mesh.axis_names}
    return ShType(as_.mesh, dtypes.from_numpy(jnp.result_type(x)), list(jnp.shape(x)), states)
