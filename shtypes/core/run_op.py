"""Lowers one operation to one `jax.shard_map`: eagerly, in an outer `jax.jit`, or outside of regions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from shtypes._compat import no_trace_is_running
from shtypes._compat.in_force import all_traced
from shtypes._compat.jaxprs import WIDE, wide_enough
from shtypes.caches import COMPILED
from shtypes.core.array import Array, wrap
from shtypes.core.checks import check_terms, check_values, checks_are_on
from shtypes.core.eager_cache import current_recorder
from shtypes.core.jax_type import HiShType
from shtypes.core.meshes import concrete_mesh, context_mesh, manual_mesh
from shtypes.core.physical import from_shard, physical_shape, physical_sharding, physical_spec, to_shard
from shtypes.core.run_plan import run_plan
from shtypes.core.shard_fn import ShardFn, as_tuple
from shtypes.errors import ShardingTypeError
from shtypes.resharding import plan
from shtypes.resharding.moves import Kind
from shtypes.resharding.transport import AS_IT_IS, Transport
from shtypes.types import ShType


def apply_local(fn: Callable[..., Any], shards: Sequence[Any], results: Sequence[ShType]) -> list[Any]:
    """Applies a shard function to one device's shards, in both lowerings, and checks the results' types."""
    # it may be traced here first, outside of a program's x64 scope
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
    """``fn`` on shards, and then numbers, jitted for physical arrays; ``context`` is only part of the key."""
    mesh = (*ins, *outs)[0].mesh
    over, options = manual_mesh(mesh)
    # XLA drops operands without elements, which its partitioner then misses, so they are created inside
    nonempty = [t for t in ins if t.size]
    if not nonempty and context is None:
        over = concrete_mesh(mesh)  # without operands, nothing else says which devices

    def body(*arrays: Any) -> tuple[Any, ...]:
        rest = iter(arrays)
        with all_traced():
            shards = [to_shard(t, next(rest)) if t.size else jnp.zeros(t.local_shape, t.dtype) for t in ins]
            return tuple(from_shard(t, r) for t, r in zip(outs, fn(*shards, *rest), strict=True))

    body.__name__ = name
    in_specs = (*map(physical_spec, nonempty), *[jax.P()] * numbers)
    out_specs = tuple(map(physical_spec, outs))
    mapped = jax.jit(
        jax.shard_map(body, mesh=over, in_specs=in_specs, out_specs=out_specs, check_vma=False, **options), inline=True
    )
    call = mapped if all(t.size for t in (*ins, *outs)) else _around_empty(mapped, ins, outs)
    dtypes = [t.dtype_name for t in (*ins, *outs)]
    if WIDE.isdisjoint(dtypes):
        return call

    def in_wide(*arrays: Any) -> Sequence[Any]:
        with wide_enough(*dtypes):  # JAX would convert a jitted function's arguments to 32 bits
            return call(*arrays)

    return in_wide


def _around_empty(
    mapped: Callable[..., Any], ins: tuple[ShType, ...], outs: tuple[ShType, ...]
) -> Callable[..., Sequence[Any]]:
    """A compiled function without the physical arrays that have no elements, for which XLA returns wrong shards."""
    nonempty = [bool(t.size) for t in ins]

    def call(*arrays: Any) -> Sequence[Any]:
        results = mapped(*itertools.compress(arrays, nonempty), *arrays[len(nonempty) :])
        if not no_trace_is_running():
            return tuple(results)
        return tuple(
            x if t.size else jax.device_put(jnp.zeros(physical_shape(t), t.dtype), physical_sharding(t))
            for t, x in zip(outs, results, strict=True)
        )

    return call


def run(fn: ShardFn, operands: Sequence[Any], results: tuple[HiShType, ...]) -> list[Array]:
    """Applies a shard function to typed values; abstract values give abstract values."""
    if any(x.data is None for x in operands) or (not operands and only_types()):
        return [wrap(t, None) for t in results]
    if all(t.dtype_name == "float0" for t in results):
        return [wrap(t, jax.numpy.zeros(physical_shape(t), jax.dtypes.float0)) for t in results]
    name = str(fn)
    compiled = _compiled_fn(fn, name.split("[")[0], tuple(x.type for x in operands), results)
    return _call(name, compiled, operands, results, local=fn.compared)


def _compiled_fn(fn: ShardFn, name: str, ins: tuple[ShType, ...], outs: tuple[HiShType, ...]) -> Callable[..., Any]:
    """A compiled shard function; if it runs eagerly, one for all Python numbers in it."""
    fn_and_number = fn.number_apart(ins) if no_trace_is_running() else None
    if fn_and_number is None:
        return _compiled(_checked(fn, outs), name, ins, outs, context_mesh())
    of_number, number = fn_and_number
    compiled = _compiled(_checked(of_number, outs), name, ins, outs, context_mesh(), 1)
    return lambda *arrays: compiled(*arrays, number)


@functools.lru_cache(maxsize=COMPILED)
def _checked(fn: ShardFn, results: tuple[ShType, ...]) -> Callable[..., Any]:
    return lambda *shards: apply_local(fn, shards, results)


def only_types() -> bool:
    """Whether the mesh in context has no devices, so that values created without operands are abstract."""
    return no_trace_is_running() and context_mesh() is not None and jax.sharding.get_mesh().empty


def _call(
    name: str, compiled: Callable[..., Any], operands: Sequence[Array], results: Sequence[HiShType], local: bool = False
) -> list[Array]:
    """Runs a compiled function on typed values, recorded for the eager cache; checks the results of a ``local`` one."""
    checks = checks_are_on()
    if checks:
        check_values(name, operands, inputs=True)
    outs = [wrap(t, c) for t, c in zip(results, compiled(*[x.data for x in operands]), strict=True)]
    if checks and local:
        check_values(name, outs)
        check_terms(name, operands, outs)
        return outs  # not recorded, because each call is checked
    recorder = current_recorder()
    if recorder is not None:
        recorder.ran(compiled, operands, outs)
    return outs


@functools.lru_cache(maxsize=COMPILED)
def reshard_on_shards(src: ShType, dst: ShType, transport: Transport = AS_IT_IS) -> Callable[[Any], list[Any]]:
    """A reshard of one device's shard."""
    steps = transport.plan(src, dst)

    def reshard(shard: Any) -> list[Any]:
        return [run_plan(steps, shard)]

    return reshard


def run_reshard(x: Array, dst: HiShType, transport: Transport = AS_IT_IS) -> Array:
    """Reshards a typed value."""
    if x.data is None:
        plan(x.type, dst)
        return wrap(dst, None)
    if _only_relabels(x.type, dst):
        y = wrap(dst, x.data)
        recorder = current_recorder()
        if recorder is not None:
            recorder.relabelled(x, y)
        return y
    return run_on_shards(reshard_on_shards(x.type, dst, transport), "reshard", [x], (dst,))[0]


@functools.lru_cache(maxsize=COMPILED)
def _only_relabels(src: ShType, dst: ShType) -> bool:
    """Whether a reshard keeps the physical array, as between the two replicated states."""
    same = physical_shape(src) == physical_shape(dst) and physical_spec(src) == physical_spec(dst)
    return same and all(s.kind is Kind.RELABEL for s in plan(src, dst).steps if s.live)


def run_on_shards(
    fn: Callable[..., Any], name: str, operands: Sequence[Any], results: tuple[HiShType, ...]
) -> list[Array]:
    """Applies a function of shards that may communicate to typed values; compiled once for equal functions."""
    if any(x.data is None for x in operands):
        return [wrap(t, None) for t in results]
    return _call(name, _compiled(fn, name, tuple(x.type for x in operands), results, context_mesh()), operands, results)
