"""The ways in and out of the typed world: values from host arrays and plain ones, and plain arrays from values."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shtypes._compat import no_trace_is_running
from shtypes.context.scope import Scope, changed
from shtypes.context.signature_errors import refuse_unknown
from shtypes.context.user_line import public
from shtypes.core.array import Array as Array
from shtypes.core.array import install as install
from shtypes.core.array import wrap as wrap
from shtypes.core.hitype import HiShType, hi
from shtypes.core.host import canonical, converted, host_array, refuse_hidden
from shtypes.errors import ShardingTypeError
from shtypes.primitives.doors import to_jax_p
from shtypes.primitives.moving import move
from shtypes.primitives.native import from_jax as convert
from shtypes.primitives.placing import place, type_of
from shtypes.scopes.check_comm import check_comm, check_leaving
from shtypes.scopes.comm import allows_implicit, rules_in_force
from shtypes.types import ShType, State, dtypes

# in


@public
def abstract_array(type: Any, mesh: Any = None, **options: Any) -> Array:
    """A value that has only a type: for `jax.eval_shape`, `jax.make_jaxpr`, ``.lower()`` and checks without devices.

    Args:
        type: A type, or its text.
        mesh: The mesh of a text; by default the one in context.
        **options: As for `ShType.parse`: ``dims``, ``dtype``, ``like``, ``policy``, ``shape``.
    """
    refuse_unknown("abstract_array", options, ("dims", "dtype", "like", "policy", "shape"))
    return wrap(hi(type_of(type, mesh, **options)), None)


@public
def array(x: Any, type: Any = None, *, mesh: Any = None) -> Array:
    """A typed value from a host array, which is copied, a number or a plain `jax.Array`.

    Args:
        x (...): The global value. Every process gives the same one.
        type: A text such as ``"f32[seq, batch@dp, hidden]"``, a `ShType` or a `jax.P`; by default replicated on every
            axis, as the policy says.
        mesh: The mesh of a text; by default the one in context.

    Returns:
        (...): The value with that type. An unreduced axis holds the value on index 0 and zeros elsewhere.

    Raises:
        ShardingTypeError: the type does not fit the array, or is varying.

    Communicates: nothing (each device is sent its own part).
    """
    if isinstance(x, jax.core.Tracer):
        return from_jax(x, type, mesh=mesh)
    if isinstance(x, Array):
        raise ShardingTypeError(f"the value has a type already, {x.type}", hints=["sh.reshard(x, type)"])
    host = x if isinstance(x, jax.Array) else host_array(x)
    own, t = dtypes.from_numpy(host.dtype), type_for(host, type, mesh)
    if _lies_somewhere(host) and (rules_in_force() or not no_trace_is_running()):
        return from_jax(host, t)  # what that sends is to be seen
    return place(converted(host, own, t), t)


def type_for(x: Any, type: Any = None, mesh: Any = None) -> HiShType:
    """The type that `array` gives to what has a shape and a dtype."""
    own = dtypes.from_numpy(x.dtype)
    target = "[...]" if type is None else type
    says_dtype = isinstance(target, ShType) or (isinstance(target, str) and target.lstrip()[:1] not in ("[", "{", ""))
    default = None if says_dtype else own if dtypes.is_key(own) else dtypes.from_numpy(canonical(x.dtype))
    return hi(type_of(target, mesh, shape=tuple(x.shape), dtype=default))


def _lies_somewhere(x: Any) -> bool:
    """Whether an array is on several devices, and not the same on each."""
    return isinstance(x, jax.Array) and isinstance(x.sharding, NamedSharding) and not x.sharding.is_fully_replicated


def without_data() -> Scope:
    """Makes values that have only types of host arrays, so that a program that makes its arguments needs no devices."""
    return changed(lambda s: s._replace(only_types=True))


@public
def from_jax(x: Any, type: Any = None, *, mesh: Any = None) -> Array:
    """A typed value from a plain `jax.Array`, concrete or traced.

    Args:
        x (...): The array. Its own type is JAX's: sharded where JAX says so, reduced, unreduced, else invariant.
        type: The type to give it, where that differs: reached from JAX's meaning by a visible reshard.
        mesh: The mesh, where neither the array nor the context has one.

    Returns:
        (...): The typed value.

    Raises:
        ShardingTypeError: an axis of the mesh is of JAX's auto kind and no type is given; the type does not fit.

    Communicates: what the reshard from the array's own type does; nothing without ``type``.
    Transpose: `to_jax`.
    """
    return convert(x, type, mesh=mesh)


@public
def to_jax(x: Array) -> Any:
    """A typed value as a plain `jax.Array`, which any JAX function takes.

    Args:
        x (...): Sharded, reduced or invariant on each axis. Reduced axes become invariant, free in both directions.

    Returns:
        (...): The same global array, sharded in the same way; no copy.

    Raises:
        ShardingTypeError: the value is unreduced or varying.

    Communicates: nothing. Transpose: `from_jax`.
    """
    t = typeof(x)
    pending = t.axes(State.UNREDUCED)
    if pending and allows_implicit():
        whole = t.with_axes(pending, State.INVARIANT)
        check_comm("to_jax", t, whole, inserted=True)
        x, t = move(x, whole, inserted=True), whole
    refuse_hidden(t, "become a plain array")
    check_leaving(t)
    if type(x) is Array and no_trace_is_running():
        if x.data is None:
            raise ShardingTypeError(f"a value that has only a type, {t}, has no data")
        return x.data
    return to_jax_p.bind(
        move(x, t.replace(states=tuple(State.INVARIANT if s is State.REDUCED else s for s in t.states)))
    )


@public
def typeof(x: Any) -> HiShType:
    """The sharding type of a typed value or tracer; equal to `jax.typeof`.

    Raises:
        ShardingTypeError: ``x`` has none.
    """
    if type(x) is Array:
        found: HiShType = x.type
        return found
    t = jax.typeof(x) if isinstance(x, jax.core.Tracer) else None
    if type(t) is not HiShType:
        raise ShardingTypeError(
            f"a value without a sharding type was given: {_describe(x)}",
            hints=["sh.array(x, type) for a host array", "sh.from_jax(x) for a jax.Array"],
        )
    return t


def _describe(x: Any) -> str:
    if isinstance(x, (jax.Array, jax.core.Tracer)):
        return f"a plain array of type {jax.typeof(x)}"
    if isinstance(x, np.ndarray):
        return f"a numpy array of shape {x.shape}"
    return f"{x!r:.60} ({type(x).__name__})"


install({}, {"to_jax": to_jax}, {})
