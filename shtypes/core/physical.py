"""The physical array: the global `jax.Array` of a typed value (hijax: its lo_val)."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from shtypes._compat import no_trace_is_running
from shtypes.caches import CACHE_SIZE
from shtypes.core.meshes import concrete_mesh
from shtypes.types import ShType, State, dtypes


def hidden_axes(t: ShType) -> tuple[str, ...]:
    """The axes along which devices hold different values of one element."""
    return t.axes(State.UNREDUCED, State.VARYING)


@functools.lru_cache(maxsize=CACHE_SIZE)
def physical_shape(t: ShType) -> tuple[int, ...]:
    """The shape of the physical array. The dims of a varying value are local already, and so not multiplied."""
    return t.shape + tuple(t.mesh.shape[a] for a in hidden_axes(t))


@functools.lru_cache(maxsize=CACHE_SIZE)
def physical_spec(t: ShType) -> PartitionSpec:
    """The spec of the physical array."""
    dims = [d.axes[0] if len(d.axes) == 1 else (d.axes or None) for d in t.dims]
    return PartitionSpec(*dims, *hidden_axes(t))


def explicit_spec(t: ShType, mesh: Any) -> PartitionSpec:
    """The physical array's spec without the axes that are not explicit in JAX (auto, manual)."""
    explicit = {a for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}

    def explicit_axes(entry: Any) -> Any:
        axes = tuple(a for a in ((entry,) if isinstance(entry, str) else entry or ()) if a in explicit)
        return axes[0] if len(axes) == 1 else axes or None

    return PartitionSpec(*[explicit_axes(entry) for entry in physical_spec(t)])


def physical_sharding(t: ShType, mesh: JaxMesh | None = None) -> NamedSharding:
    """The physical array's sharding over devices."""
    return NamedSharding(mesh or concrete_mesh(t.mesh), physical_spec(t))


def fix_empty_shards(t: ShType, physical: Any) -> Any:
    """The physical array; if it has no elements, with shards of the shapes that its sharding implies.

    Programs compiled by JAX 0.10.2 return shards as large as the array, which numpy cannot read.
    """
    if t.size or isinstance(physical, jax.core.Tracer) or dtypes.is_key(t.dtype_name) or not no_trace_is_running():
        return physical
    shard_shape = physical.sharding.shard_shape(physical.shape)
    if all(shard.data.shape == shard_shape for shard in physical.addressable_shards):
        return physical
    return jax.device_put(np.zeros(physical.shape, physical.dtype), physical.sharding)


def with_key_data(t: ShType, physical: Any) -> Any:
    """A physical array, or a block of one, for numpy: keys as their integers."""
    return jax.random.key_data(physical) if dtypes.is_key(t.dtype_name) else physical


def to_shard(t: ShType, block: Any) -> Any:
    """Converts one device's block of the physical array to its shard of the value (drops the hidden dims)."""
    return block.reshape(t.local_shape) if hidden_axes(t) else block


def from_shard(t: ShType, shard: Any) -> Any:
    """Converts a shard to one device's block of the physical array."""
    return shard.reshape(t.local_shape + (1,) * len(hidden_axes(t))) if hidden_axes(t) else shard
