"""What plain programs say about shardings: constraints and ``out_sharding``, as reshards."""

from __future__ import annotations

from typing import Any

import jax

from shtypes.errors import ShardingTypeError
from shtypes.lifting.constants import is_constant, typed_constant
from shtypes.lifting.registry import body_row, op
from shtypes.lifting.steps import current
from shtypes.ops.dispatch import is_typed
from shtypes.types import ShType, State
from shtypes.types.policy import replicated


def annotated(x: Any, sharding: Any) -> Any:
    """The value: what a program says of shardings is in equations of their own, the rest is JAX's."""
    del sharding
    return x


def spec_of(t: ShType) -> Any:
    """What `jax.typeof` of an argument says in a program: as far as a spec can, the type."""
    other = State.REDUCED if replicated() is State.INVARIANT else None
    reduced = t.axes(other) if other is not None and t.differentiable else ()
    dims = [dim.axes[0] if len(dim.axes) == 1 else dim.axes or None for dim in t.dims]
    return jax.P(*dims, unreduced=frozenset(t.axes(State.UNREDUCED)), reduced=frozenset(reduced))


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


@body_row("sharding_annotation")
def _annotation(eqn: Any, operands: list[Any]) -> list[Any]:
    """A reshard; of a constant, which lies as what it meets, where the annotation names axes."""
    (x,), (spec, mapped) = operands, (eqn.params["spec"], sorted(eqn.params["mapped"]))
    named = any(entry is not None for entry in spec) or bool(getattr(spec, "unreduced", ()))
    if is_constant(x):
        step = current()
        mesh = x.type.mesh if is_typed(x) else step.body.mesh if step is not None else None
        if not named or mesh is None:
            return [x]
        x = x if is_typed(x) else typed_constant(x, mesh)
    entries = [*spec, *[None] * (x.type.ndim - len(mapped) - len(spec))]
    for dim in mapped:
        entries.insert(dim, x.type.dims[dim].axes)
    unreduced, reduced = (getattr(spec, name, None) or frozenset() for name in ("unreduced", "reduced"))
    return [op("reshard")(x, _meant(x.type, jax.P(*entries, unreduced=unreduced, reduced=reduced)))]


@body_row("same_sharding")
def _same_sharding(eqn: Any, operands: list[Any]) -> list[Any]:
    """A reshard to how another value lies; of what has no type, nothing."""
    x, like = operands
    if not is_typed(like) or (is_constant(like) and not like.type.axes(State.SHARDED)):
        return [x]
    x = x if is_typed(x) else typed_constant(x, like.type.mesh)
    (mine, its), t = eqn.params["mapped"], like.type
    left = iter([dim.axes for d, dim in enumerate(t.dims) if d not in its])
    axes = [x.type.dims[d].axes if d in mine else next(left, ()) for d in range(x.type.ndim)]
    if next(left, None) is not None:
        raise ShardingTypeError(
            f"an annotation gives a value of {x.type.ndim} dims the sharding of one of {t.ndim}",
            hints=["jax.P(...) says how the result is to lie"],
        )
    taken = {axis for of_dim in axes for axis in of_dim}
    states = {a: t.state(a) for a in t.mesh.axis_names if a not in taken}
    states = {a: replicated() if s is State.SHARDED else s for a, s in states.items()}
    dims = [dim._replace(axes=of_dim) for dim, of_dim in zip(x.type.dims, axes, strict=True)]
    return [op("reshard")(x, ShType(t.mesh, x.type.dtype_name, dims, states))]
