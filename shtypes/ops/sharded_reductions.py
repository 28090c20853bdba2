"""Reductions of sharded dims: each device reduces its shard, then a collective joins the results.

One number is sent for each row. Every collective is a reshard or a collective of local mode, by its types: a
device's shard is a varying value. All keep the reduced dims, with size 1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import rules
from shtypes.core.array import Array
from shtypes.core.collective import collect, once, reinterpreted, vary
from shtypes.core.elementwise_fns import NamedFn
from shtypes.core.reshard import move
from shtypes.dispatch.apply import apply, apply_all
from shtypes.dispatch.reshard import reshard
from shtypes.ops.along_dims import function, reduced
from shtypes.ops.arithmetic import astype, divide, multiply
from shtypes.ops.cross_shard import sharding
from shtypes.ops.elementwise import equal, isfinite
from shtypes.ops.functions import sum as sum_
from shtypes.ops.functions import where
from shtypes.ops.reinterpret import stop_gradient
from shtypes.ops.shards import least_or_most, sharded
from shtypes.rules.local import Op
from shtypes.types import ShType, State, dtypes

REDUCED, INVARIANT, VARYING = State.REDUCED, State.INVARIANT, State.VARYING


def as_varying(x: Any, axes: Sequence[str]) -> Array:
    """The shards along these axes as a varying value, with dims of the local size."""
    t = jax.typeof(x)
    dims = [d._replace(size=d.size // t.mesh.product(d.axes), axes=()) if set(d.axes) & {*axes} else d for d in t.dims]
    goal = t.replace(dims=dims, states=t.beside_dims | dict.fromkeys(axes, VARYING))
    varying: Array = once(lambda: reinterpreted(x, goal), x, key=goal.serial)
    return varying


def shard_of(x: Any, dim: int, axes: Sequence[str]) -> Array:
    """The shards of a dim as a varying value, and of what these axes do not shard the slice of each device."""
    return as_varying(x if jax.typeof(x).dims[dim].axes else sharded(x, dim, tuple(axes)), axes)


def total(pending: Any, axes: Sequence[str], state: State = INVARIANT) -> Array:
    """A pending sum, reduced: by one all-reduce."""
    return reshard(pending, jax.typeof(pending).with_axes(axes, state))


def constant(x: Any) -> Any:
    """The value without its gradient, for ways, which call no public function."""
    return stop_gradient(x)


def matching(x: Any, t: ShType) -> Array:
    """A value without a gradient, invariant on the axes where ``t`` is, so that neither is cast when they meet."""
    src = jax.typeof(x)
    axes = [a for a in t.axes(INVARIANT) if src.state(a) is REDUCED]
    return move(x, src.with_axes(axes, INVARIANT), inserted=True, constant=True)


def bound(name: str, x: Any, dims: tuple[int, ...]) -> Array:
    """The maximum or minimum over dims, reduced and without a gradient, to keep exponentials in range.

    Communicates: an all-reduce of one number for each row.
    """
    return _best(name, constant(x), dims, REDUCED, has_gradient=False)


def _best(name: str, x: Any, dims: tuple[int, ...], state: State, *, has_gradient: bool = True) -> Array:
    """The extreme over dims; of no elements the identity."""
    t = jax.typeof(x)
    axes = sharding(t, dims)
    options = {} if t.size else {"initial": least_or_most(t.dtype, most=name == "min")}
    best = reduced(name, getattr(jnp, name), as_varying(x, axes), dims, True, **options)
    return _winner(name, best, axes, state, has_gradient) if axes else best


def _winner(name: str, varying: Any, axes: tuple[str, ...], state: State, has_gradient: bool) -> Any:
    """The greatest or least of the devices' values; a NaN wins, as on one device.

    Collectives do not define the result for a NaN. So floats are sent as integers of the same order.
    """
    t = jax.typeof(varying)
    op = Op(f"p{name}", axes, VARYING, state)
    if not t.differentiable or t.dtype_name[0] == "c":
        return collect(op, varying)
    integers = "i64" if t.dtype_name == "f64" else "i32"
    fn, back = (
        function(n, f, least=name == "min", dtype=t.dtype_name) for n, f in (("ordered", _ordered), ("value", _value))
    )
    sent = apply("ordered", fn, lambda types: rules.nonlinear(name, types, integers), constant(varying))
    best = collect(op, sent, has_gradient=has_gradient)
    value = apply("value", back, lambda types: rules.nonlinear(name, types, t.dtype_name), best)
    # Integers have one replicated state, and no gradient.
    return move(value, t.with_axes(axes, state), inserted=True, constant=True)


def _ordered(x: Any, least: bool, dtype: str) -> Any:
    """Floats as integers in the same order; NaN is first for a minimum, last for a maximum."""
    x = x if x.dtype.itemsize == 8 else x.astype(np.float32)
    kind = np.int64 if x.dtype.itemsize == 8 else np.int32
    bits, limits = lax.bitcast_convert_type(x, kind), np.iinfo(kind)
    order = jnp.where(bits < 0, bits ^ kind(limits.max), bits)
    return jnp.where(jnp.isnan(x), kind(limits.min if least else limits.max), order)


def _value(order: Any, least: bool, dtype: str) -> Any:
    """The float of an integer from `_ordered`."""
    bits = jnp.where(order < 0, order ^ np.iinfo(order.dtype).max, order)
    wide = lax.bitcast_convert_type(bits, np.float64 if order.dtype.itemsize == 8 else np.float32)
    return wide.astype(dtypes.to_numpy(dtype))


def finite_bound(x: Any, dims: tuple[int, ...]) -> Array:
    """The maximum over dims, or zero where it is not finite; no gradient."""
    most = bound("max", x, dims)
    return matching(constant(where(isfinite(most), most, 0)), jax.typeof(x))


def wide(dtype: str) -> str:
    """The dtype that statistics are computed in: at least 32 bits."""
    return "f32" if dtype in ("bf16", "f16") or dtype.startswith("f8") else dtype


def extreme(name: str, x: Any, dims: tuple[int, ...]) -> Array:
    """The maximum or minimum over dims; invariant.

    Communicates: an all-reduce of one number for each row; where it is differentiated, one more that counts the equal
    elements, which share the gradient.
    """
    t = jax.typeof(x)
    if t.dtype_name == "bool":
        return astype(_best(name, astype(x, "u8"), dims, INVARIANT), "bool")
    return _differentiated(name, dims, x) if t.differentiable else _best(name, x, dims, INVARIANT)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _differentiated(name: str, dims: tuple[int, ...], x: Any) -> Array:
    return _best(name, x, dims, INVARIANT)


@_differentiated.defjvp
def _shared_by_winners(name: str, dims: tuple[int, ...], primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    t = jax.typeof(x)
    axes = sharding(t, dims)
    if t.size and t.dtype_name[0] != "c":
        y, won = winners(name, dims, x)
    else:
        y = _differentiated(name, dims, x)
        won = astype(equal(constant(x), constant(y)), t.dtype_name)
    won = matching(won, t)
    count = total(sum_(won, dims, keepdims=True), axes, REDUCED)
    return y, total(divide(sum_(multiply(dx, won), dims, keepdims=True), count), axes)


def _shard_best(name: str, fn: NamedFn, varying: Any, dims: tuple[int, ...], index: str) -> Sequence[Array]:
    """The best element of each shard over dims, and its position, of dtype ``index``."""
    dtype = jax.typeof(varying).dtype_name

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        typings = [rules.reduce_nonlinear(name, types[0], dims, True, n) for n in (dtype, index)]
        return rules.Typing(typings[0].operands, tuple(r.results[0] for r in typings))

    return apply_all(name, fn, rule, [varying])


def winners(name: str, dims: tuple[int, ...], x: Any) -> tuple[Array, Array]:
    """The extreme over dims, and ones where it is, at least one of which is on each device that has it.

    XLA computes a value again in each kernel that reads it, and may round it differently there. So one kernel returns
    each shard's best element together with its position.
    """
    t = jax.typeof(x)
    axes = sharding(t, dims)
    varying = as_varying(constant(x), axes)
    first = NamedFn(f"{name}[first]", _first, (("name", name), ("dims", dims)))
    best, index = _shard_best(name, first, varying, dims, "i32")
    y = _winner(name, best, axes, INVARIANT, True) if axes else best
    won = apply(
        name,
        NamedFn("winners", _won, (("dims", dims),)),
        lambda types: rules.nonlinear(name, types, t.dtype_name),
        varying,
        best,
        index,
        vary(constant(y), axes),
    )
    src = jax.typeof(won)
    states = {a: state for a, state in src.beside_dims.items() if a not in axes}
    return y, reinterpreted(won, src.replace(dims=t.dims, states=states))


def _positions(x: Any, dims: tuple[int, ...]) -> Any:
    """The position of each element of a shard along some dims, as one flat index."""
    place = jnp.zeros((), np.int32)
    for d in dims:
        place = place * x.shape[d] + lax.broadcasted_iota(np.int32, x.shape, d)
    return place


def _first(x: Any, name: str, dims: tuple[int, ...]) -> Any:
    """The best element of a shard along some dims, and its position."""

    def better(a: Any, b: Any) -> Any:
        wins = (a[0] > b[0] if name == "max" else a[0] < b[0]) | (a[0] != a[0])
        first = wins | ((a[0] == b[0]) & (a[1] < b[1]))
        return lax.select(wins, a[0], b[0]), lax.select(first, a[1], b[1])

    inits = np.asarray(least_or_most(x.dtype, most=name == "min"), x.dtype), np.int32(np.iinfo(np.int32).max)
    reduced = lax.reduce((x, jnp.broadcast_to(_positions(x, dims), x.shape)), inits, better, dims)
    return tuple(jnp.expand_dims(y, dims) for y in reduced)


def _won(x: Any, shard_best: Any, index: Any, best: Any, dims: tuple[int, ...]) -> Any:
    """Ones at the elements that are the best of all devices."""
    return (((x == shard_best) | (_positions(x, dims) == index)) & (shard_best == best)).astype(x.dtype)


def product(x: Any, dims: tuple[int, ...], **options: Any) -> Array:
    """The product over dims; invariant.

    Communicates: an all-gather of one number for each row and device; backward nothing.
    """
    axes = sharding(jax.typeof(x), dims)
    varying = reduced("prod", jnp.prod, as_varying(x, axes), dims, True, **options)
    each = collect(Op("all_gather_invariant", axes, VARYING, INVARIANT, dim=0), varying)
    return reduced("prod", jnp.prod, each, 0, False, **options)


def _candidate(
    x: Any, name: str, dims: tuple[int, ...], global_dims: tuple[tuple[int, tuple[str, ...]], ...]
) -> tuple[Any, Any]:
    """The best element of a device's shard along some dims, and its global position, as one flat index."""
    best, at = _first(x, name.removeprefix("arg"), dims)
    at = at.astype(jax.dtypes.canonicalize_dtype(np.int64))
    sizes = [x.shape[d] for d in dims]
    place = jnp.zeros_like(at)
    for n, (size, axes), i in zip(sizes, global_dims, jnp.unravel_index(at, sizes), strict=True):
        start = lax.axis_index(axes).astype(at.dtype) * n if axes else 0
        place = place * size + i.astype(at.dtype) + start
    return best, place


def _earliest(candidate: Any, best: Any, place: Any) -> Any:
    """The position if the device's element is the best of all, else the maximum integer."""
    wins = (candidate == best) | ((candidate != candidate) & (best != best))
    return jnp.where(wins, place, np.iinfo(place.dtype).max)


def position(name: str, x: Any, dims: tuple[int, ...]) -> Array:
    """The flat index of the first best element over dims; invariant, and the same as on one device.

    Communicates: two all-reduces of one number for each row.
    """
    x = constant(x)
    if jax.typeof(x).dtype_name == "bool":
        x = astype(x, "u8")
    t = jax.typeof(x)
    axes = sharding(t, dims)
    index = dtypes.from_numpy(jax.dtypes.canonicalize_dtype(np.int64))
    global_dims = tuple((t.dims[d].size, t.dims[d].axes) for d in dims)
    fn = NamedFn(f"{name}[own]", _candidate, (("name", name), ("dims", dims), ("global_dims", global_dims)))
    candidate, place = _shard_best(name, fn, as_varying(x, axes), dims, index)
    best = vary(_winner(name.removeprefix("arg"), candidate, axes, REDUCED, False), axes)
    wins = function("earliest", _earliest)
    first = apply(name, wins, lambda types: rules.nonlinear(name, types, index), candidate, best, place)
    return collect(Op("pmin", axes, VARYING, INVARIANT), first)
