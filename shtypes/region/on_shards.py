"""One equation on this device's shards, inside a region."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp

from shtypes._compat import HiPrimitive
from shtypes._compat.jaxprs import bound, dtypes_of, inner_jaxprs, jaxpr_of
from shtypes.caches import COMPILED
from shtypes.core.carrier import carrier_spec, to_shard
from shtypes.core.checks import check_shards, check_terms_of_shards, checks_are_on
from shtypes.core.hitype import hi
from shtypes.core.host_errors import keeping
from shtypes.core.localfn import wide_enough
from shtypes.core.operation import Operation, applied_by
from shtypes.lowering.collectives import run_plan
from shtypes.lowering.per_op import apply_local
from shtypes.primitives.callbacks import Callback, call_on_shards
from shtypes.primitives.collective import Collective
from shtypes.primitives.collective import on_shards as collective_on_shards
from shtypes.primitives.doors import EnsureMapped, FromJax, Raise, ToJax
from shtypes.primitives.joint import Joint
from shtypes.primitives.local import Local
from shtypes.primitives.reshard import Reshard
from shtypes.region.planning import same_spec, spec_of
from shtypes.resharding.transport import AS_IT_IS, Transport
from shtypes.types import ShType, State


@functools.lru_cache(maxsize=COMPILED)
def _traced_once(applied: Local) -> Callable[..., Any]:
    """A local function that JAX traces once for each set of shapes, however often programs use it.

    By its types too: functions of 1 and of 1.0 are equal, and differ by their results' types.
    """

    def local(*shards: Any) -> Any:
        with keeping() if applied.fn.calls_host else contextlib.nullcontext():
            return applied.fn(*shards)

    local.__name__ = str(applied.fn).split("[")[0]
    return jax.jit(local, inline=True)


@functools.lru_cache(maxsize=COMPILED)
def _moved_once(src: ShType, dst: ShType, transport: Transport = AS_IT_IS) -> Callable[[Any], Any]:
    steps = transport.plan(src, dst)

    def reshard(shard: Any) -> Any:
        return run_plan(steps, shard)

    return jax.jit(reshard, inline=True)


def _local(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    applied = applied_by(eqn)
    outs = apply_local(_traced_once(applied), shards, applied.results)
    if checks_are_on() and applied.fn.compared:
        check_shards(str(applied.fn), outs, applied.results)
        check_terms_of_shards(str(applied.fn), applied.operands, shards, applied.results, outs)
    return outs


@functools.lru_cache(maxsize=COMPILED)
def _joint_once(applied: Joint) -> Callable[..., Any]:
    return jax.jit(applied.on_shards, inline=True)


def _reshard(applied: Reshard, shards: Sequence[Any]) -> list[Any]:
    return [_moved_once(applied.src, applied.dst, applied.transport)(*shards)]


def _from_jax(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    (x,), (v,), t = shards, eqn.invars, eqn.params["ty"]
    with wide_enough(v.aval.dtype):
        x = jnp.asarray(x, v.aval.dtype)
    if same_spec(spec_of(v.aval), carrier_spec(t)):
        if checks_are_on():
            check_shards("from_jax", [x], [t], given=True)
        return [x]
    whole = hi(ShType(t.mesh, t.dtype_name, list(t.shape), dict.fromkeys(t.mesh.axis_names, State.INVARIANT)))
    return [_moved_once(whole, t)(x)]


def _callback(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    with keeping():
        call_on_shards(eqn.params["call"], tuple(v.aval for v in eqn.invars), shards)
    return []


def calls_host(equations: Sequence[Any]) -> bool:
    """Whether something in a region calls a function of the host, whose errors are kept."""
    return any(
        isinstance(eqn.primitive, Callback)
        or getattr(getattr(applied_by(eqn), "fn", None), "calls_host", False)
        or any(calls_host(jaxpr_of(body).eqns) for body, _ in inner_jaxprs(eqn))
        for eqn in equations
    )


#: What each of our operations and primitives does to shards.
ON_SHARDS: Final[dict[type[Operation | HiPrimitive], Callable[[Any, Sequence[Any]], list[Any]]]] = {
    Local: _local,
    Reshard: lambda eqn, xs: _reshard(applied_by(eqn), xs),
    Collective: lambda eqn, xs: [collective_on_shards(applied_by(eqn).op, applied_by(eqn).src)(*xs)],
    Joint: lambda eqn, xs: list(_joint_once(applied_by(eqn))(*xs)),
    FromJax: _from_jax,
    Raise: lambda eqn, xs: [to_shard(eqn.params["ty"], *xs)],
    ToJax: lambda eqn, xs: list(xs),
    EnsureMapped: lambda eqn, xs: list(xs),
    Callback: _callback,
}


def on_shards(eqn: Any, shards: Sequence[Any]) -> list[Any]:
    """An equation without bodies on shards."""
    rule = next((ON_SHARDS[kind] for kind in type(applied_by(eqn)).__mro__ if kind in ON_SHARDS), None)
    return _plain(eqn, shards) if rule is None else rule(eqn, shards)


def _plain(eqn: Any, xs: Sequence[Any]) -> list[Any]:
    """One of JAX's own equations, the same on every device: nothing in it is about placement any more."""
    if eqn.primitive.name == "reshard":
        return list(xs)
    unplaced: dict[str, Any] = {k: None for k, v in eqn.params.items() if isinstance(v, jax.sharding.Sharding)}
    if eqn.primitive.name == "broadcast_in_dim" and not eqn.invars[0].aval.shape:
        aval = eqn.outvars[0].aval
        unplaced["shape"] = aval.sharding.shard_shape(aval.shape) if len(aval.sharding.spec) else aval.shape
    with wide_enough(*dtypes_of(eqn)):
        return bound(eqn, xs, **unplaced)
