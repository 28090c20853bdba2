"""Lowers one operation as one `jax.shard_map`: eager code, an outer `jax.jit`, and whatever a region cannot hold."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from shtypes._compat import no_trace_is_running
from shtypes.caches import COMPILED
from shtypes.core.array import Array, wrap
from shtypes.core.checks import check_terms, check_values, checks_are_on
from shtypes.core.eager_cache import recording
from shtypes.core.jax_type import HiShType
from shtypes.core.meshes import concrete_mesh, context_mesh, manual_mesh
from shtypes.core.physical import carrier_shape, carrier_sharding, carrier_spec, from_shard, to_shard
from shtypes.core.run_plan import run_plan
from shtypes.core.shard_fn import WIDE, LocalFn, as_tuple, wide_enough
from shtypes.errors import ShardingTypeError
from shtypes.resharding import plan
from shtypes.resharding.moves import Kind
from shtypes.resharding.transport import AS_IT_IS, Transport
from shtypes.types import ShType


def apply_local(fn: Callable[..., Any], shards: Sequence[Any], results: Sequence[ShType]) -> list[Any]:
    """A local function on one device's shards; both lowerings go through it.

    It may be traced here first, outside of the scope in which a program enabled 64 bits.
    """
    with wide_enough(*[x.dtype for x in shards], *[t.dtype_name for t in results]):
        outs = as_tuple(fn(*shards))
    for out, t in zip(outs, results, strict=True):
        if out.shape != t.local_shape or out.dtype != t.dtype:
            name = getattr(fn, "__name__", fn)
            raise ShardingTypeError(
                f"`{name}` made a shard {out.dtype}{list(out.shape)} where its type {t} says {list(t.local_shape)}",
                why="this is a mistake in shtypes; please report it",
            )
    return list(outs)


@functools.lru_cache(maxsize=COMPILED)
def _compiled(
    fn: Callable[..., Any],
    name: str,
    ins: tuple[ShType, ...],
    outs: tuple[ShType, ...],
    context: AbstractMesh | None,
    numbers: int = 0,
) -> Callable[..., Any]:
    """``fn`` on shards, and then numbers, as a jitted function of carriers; ``context`` is only a part of the key."""
    mesh = (*ins, *outs)[0].mesh
    over, options = manual_mesh(mesh)
    # XLA drops operands without elements, and then finds none where its partitioner wants one: they are made inside.
    given = [t for t in ins if t.size]
    if not given and context is None:
        over = concrete_mesh(mesh)  # without operands nothing else says which devices

    def body(*carriers: Any) -> tuple[Any, ...]:
        rest = iter(carriers)
        shards = [to_shard(t, next(rest)) if t.size else jnp.zeros(t.local_shape, t.dtype) for t in ins]
        return tuple(from_shard(t, r) for t, r in zip(outs, fn(*shards, *rest), strict=True))

    body.__name__ = name
    in_specs = (*map(carrier_spec, given), *[jax.P()] * numbers)
    out_specs = tuple(map(carrier_spec, outs))
    mapped = jax.jit(
        jax.shard_map(body, mesh=over, in_specs=in_specs, out_specs=out_specs, check_vma=False, **options), inline=True
    )
    call = mapped if all(t.size for t in (*ins, *outs)) else _around_empty(mapped, ins, outs)
    dtypes = [t.dtype_name for t in (*ins, *outs)]
    if WIDE.isdisjoint(dtypes):
        return call

    def in_wide(*carriers: Any) -> Sequence[Any]:
        with wide_enough(*dtypes):  # JAX would make 32 bits of what a jitted function is given
            return call(*carriers)

    return in_wide


def _around_empty(
    mapped: Callable[..., Any], ins: tuple[ShType, ...], outs: tuple[ShType, ...]
) -> Callable[..., Sequence[Any]]:
    """A compiled function that takes no carriers without elements, and whose own XLA gives wrong shards."""
    kept = [bool(t.size) for t in ins]

    def call(*carriers: Any) -> Sequence[Any]:
        found = mapped(*itertools.compress(carriers, kept), *carriers[len(kept) :])
        if not no_trace_is_running():
            return tuple(found)
        return tuple(c if t.size else _empty(t) for t, c in zip(outs, found, strict=True))

    return call


def _empty(t: ShType) -> Any:
    return jax.device_put(jnp.zeros(carrier_shape(t), t.dtype), carrier_sharding(t))


@functools.lru_cache(maxsize=COMPILED)
def _local_body(fn: LocalFn, results: tuple[ShType, ...]) -> Callable[..., Any]:
    return lambda *shards: apply_local(fn, shards, results)


def run(fn: LocalFn, operands: Sequence[Any], results: tuple[HiShType, ...]) -> list[Array]:
    """A local function on typed values; values that have only types give values that have only types."""
    if any(x.data is None for x in operands) or (not operands and only_types()):
        return [wrap(t, None) for t in results]
    if all(t.dtype_name == "float0" for t in results):
        return [wrap(t, jax.numpy.zeros(carrier_shape(t), jax.dtypes.float0)) for t in results]
    name = str(fn)
    compiled = _compiled_local(fn, name.split("[")[0], tuple(x.type for x in operands), results)
    return _noted(name, compiled, operands, results, local=fn.compared)


def _compiled_local(fn: LocalFn, name: str, ins: tuple[ShType, ...], outs: tuple[HiShType, ...]) -> Callable[..., Any]:
    """A local function compiled; where it runs at once, for all Python numbers that it could hold."""
    apart = fn.number_apart(ins) if no_trace_is_running() else None
    if apart is None:
        return _compiled(_local_body(fn, outs), name, ins, outs, context_mesh())
    of_number, number = apart
    compiled = _compiled(_local_body(of_number, outs), name, ins, outs, context_mesh(), 1)
    return lambda *carriers: compiled(*carriers, number)


def only_types() -> bool:
    """Whether the mesh in context has no devices, so that what is made of nothing has only a type."""
    return no_trace_is_running() and context_mesh() is not None and jax.sharding.get_mesh().empty


def _noted(
    name: str, compiled: Callable[..., Any], operands: Sequence[Array], results: Sequence[HiShType], local: bool = False
) -> list[Array]:
    """A compiled function on typed values, noted for the op that runs it; results of a ``local`` one can be checked."""
    checks = checks_are_on()
    if checks:
        check_values(name, operands, given=True)
    outs = [wrap(t, c) for t, c in zip(results, compiled(*[x.data for x in operands]), strict=True)]
    if checks and local:
        check_values(name, outs)
        check_terms(name, operands, outs)
        return outs  # not noted: each call is checked
    noted = recording()
    if noted is not None:
        noted.ran(compiled, operands, outs)
    return outs


@functools.lru_cache(maxsize=COMPILED)
def _reshard_body(src: ShType, dst: ShType, transport: Transport) -> Callable[..., Any]:
    steps = transport.plan(src, dst)
    return lambda shard: [run_plan(steps, shard)]


def run_reshard(x: Array, dst: HiShType, transport: Transport = AS_IT_IS) -> Array:
    """A reshard of a typed value."""
    if x.data is None:
        plan(x.type, dst)
        return wrap(dst, None)
    if _only_relabels(x.type, dst):
        y = wrap(dst, x.data)
        noted = recording()
        if noted is not None:
            noted.relabelled(x, y)
        return y
    compiled = _compiled(_reshard_body(x.type, dst, transport), "reshard", (x.type,), (dst,), context_mesh())
    return _noted("reshard", compiled, [x], [dst])[0]


def run_collective(fn: Callable[[Any], Any], name: str, x: Array, dst: HiShType) -> Array:
    """A collective of local mode on a typed value; ``fn`` is what it does on shards."""
    return run_on_shards(_one_result(fn), name, [x], (dst,))[0]


def run_on_shards(
    fn: Callable[..., Any], name: str, operands: Sequence[Any], results: tuple[HiShType, ...]
) -> list[Array]:
    """A function of shards that may communicate, on typed values; equal functions are compiled once."""
    if any(x.data is None for x in operands):
        return [wrap(t, None) for t in results]
    compiled = _compiled(fn, name, tuple(x.type for x in operands), results, context_mesh())
    return _noted(name, compiled, operands, results)


@functools.lru_cache(maxsize=COMPILED)
def _one_result(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda shard: [fn(shard)]


@functools.lru_cache(maxsize=COMPILED)
def _only_relabels(src: ShType, dst: ShType) -> bool:
    """Whether a reshard says something else about the same carrier: between the two replicated states."""
    same = carrier_shape(src) == carrier_shape(dst) and carrier_spec(src) == carrier_spec(dst)
    return same and all(s.kind is Kind.RELABEL for s in plan(src, dst).steps if s.live)
