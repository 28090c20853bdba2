"""What plain programs say about shardings: constraints and ``out_sharding``, as reshards."""

from __future__ import annotations

from typing import Any

import jax

from shtypes.errors import ShardingTypeError
from shtypes.lifting.registry import op, row
from shtypes.types import ShType, State
from shtypes.types.policy import replicated


def annotated(x: Any, sharding: Any) -> Any:
    """A typed value as an annotation of JAX wants it; None wants nothing. A pending sum stays where none is named."""
    spec = getattr(sharding, "spec", sharding)
    if spec is None or not isinstance(spec, jax.P):
        return x
    return op("reshard")(x, _meant(x.type, spec))


def _meant(t: ShType, spec: Any) -> ShType:
    """The type that a spec means: sharded as it says, replicated elsewhere; `UNCONSTRAINED` dims are as they are."""
    entries = [*spec, *[None] * (t.ndim - len(spec))]
    dims, taken = [], set()
    for dim, entry in zip(t.dims, entries, strict=True):
        axes = dim.axes if entry is jax.P.UNCONSTRAINED else (entry,) if isinstance(entry, str) else tuple(entry or ())
        known = tuple(a for a in axes if a in t.mesh.axis_names)
        if len(known) < len(axes):
            missing = next(a for a in axes if a not in t.mesh.axis_names)
            raise ShardingTypeError(f"the annotation {spec} names `{missing}`, which is no axis of the mesh")
        dims.append(dim._replace(axes=known))
        taken |= set(known)
    unreduced = frozenset(getattr(spec, "unreduced", ()) or ())
    reduced = frozenset(getattr(spec, "reduced", ()) or ())
    states = {}
    for axis in t.mesh.axis_names:
        if axis in taken:
            continue
        keeps = any(e is jax.P.UNCONSTRAINED for e in entries) and t.state(axis) is State.UNREDUCED
        states[axis] = (
            State.UNREDUCED if axis in unreduced or keeps else State.REDUCED if axis in reduced else replicated()
        )
    return ShType(t.mesh, t.dtype_name, dims, states)


@row("sharding_annotation")
def _annotation(x: Any, *, spec: Any, mapped: tuple[int, ...]) -> Any:
    entries = [*spec, *[None] * (x.type.ndim - len(mapped) - len(spec))]
    for dim in sorted(mapped):
        entries.insert(dim, x.type.dims[dim].axes)
    unreduced, reduced = (getattr(spec, name, None) or frozenset() for name in ("unreduced", "reduced"))
    return annotated(x, jax.P(*entries, unreduced=unreduced, reduced=reduced))


@row("sharding_constraint")
def _sharding_constraint(x: Any, *, sharding: Any, **_: Any) -> Any:
    return annotated(x, sharding)


@row("reshard")
def _reshard(x: Any, *, dst_sharding: Any, concrete_mesh: Any = None, **_: Any) -> Any:
    return annotated(x, dst_sharding)


@row("device_put")
def _device_put(*xs: Any, devices: Any, srcs: Any, copy_semantics: Any) -> list[Any]:
    return [annotated(x, d) if hasattr(x, "type") else x for x, d in zip(xs, devices, strict=True)]
