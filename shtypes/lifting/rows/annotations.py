"""What plain programs say about shardings: constraints and ``out_sharding``, as reshards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from shtypes._compat.symbolic_specs import Wanted, resolved
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.frames import current
from shtypes.evaluation.table import body_row
from shtypes.evaluation.value_info import is_constant, typed_constant
from shtypes.lifting.public_ops import op
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.policy import replicated


def spec_of(t: ShType) -> Any:
    """What `jax.typeof` of an argument says in a program: as far as a spec can, the type."""
    other = State.REDUCED if replicated() is State.INVARIANT else None
    reduced = t.axes(other) if other is not None and t.differentiable else ()
    dims = [dim.axes[0] if len(dim.axes) == 1 else dim.axes or None for dim in t.dims]
    return jax.P(*dims, unreduced=frozenset(t.axes(State.UNREDUCED)), reduced=frozenset(reduced))


def meant(t: ShType, spec: Any, given: Mapping[str, State]) -> ShType:
    """The type that a spec means: sharded as it says, replicated elsewhere; `UNCONSTRAINED` dims are as they are.

    Of axes that shard nothing, the states may be ``given``.
    """
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
    states |= {axis: state for axis, state in given.items() if axis in states}
    return ShType(t.mesh, t.dtype_name, dims, states)


@body_row("sharding_annotation")
def _annotation(eqn: Any, operands: list[Any]) -> list[Any]:
    """A reshard; of a constant, which lies as what it meets, where the annotation names axes."""
    (x, *likes), (spec, mapped) = operands, (eqn.params["spec"], eqn.params["mapped"])
    states: dict[str, State] = {}
    if isinstance(spec, Wanted):
        types = [_type_of(like) for like in likes]
        axes = [_unmapped(t, like, m) for t, like, m in zip(types, likes, mapped[1:], strict=True)]
        if spec.is_whole:
            (t,), (its,) = types, axes
            if t is None:
                return [x]  # as what has no type lies
            if len(its) != len(x.shape) - len(mapped[0]):
                raise ShardingTypeError(
                    f"an annotation gives a value of {len(x.shape)} dims the sharding of one of {t.ndim}",
                    hints=["jax.P(...) says how the result is to lie"],
                )
            states = {a: t.state(a) for a in t.axes(State.UNREDUCED, State.REDUCED, State.INVARIANT)}
        spec = resolved(spec, [(), *axes])
    if not is_typed(x):
        mesh = _mesh_of(likes)
        if mesh is None:
            return [x]
        x = typed_constant(x, mesh)
    if is_constant(x) and not states and all(e is None for e in spec) and not getattr(spec, "unreduced", ()):
        return operands[:1]
    entries = [*spec, *[None] * (x.type.ndim - len(mapped[0]) - len(spec))]
    for dim in sorted(mapped[0]):
        entries.insert(dim, x.type.dims[dim].axes)
    unreduced, reduced = (getattr(spec, name, None) or frozenset() for name in ("unreduced", "reduced"))
    return [op("reshard")(x, meant(x.type, jax.P(*entries, unreduced=unreduced, reduced=reduced), states))]


def _mesh_of(likes: Sequence[Any]) -> Mesh | None:
    step = current()
    return next((x.type.mesh for x in likes if is_typed(x)), None if step is None else step.body.mesh)


def _type_of(like: Any) -> ShType | None:
    """The type of a value of whose dims an annotation speaks; None of a constant that lies as what it meets."""
    if not is_typed(like) or (is_constant(like) and not like.type.axes(State.SHARDED)):
        return None
    t: ShType = like.type
    return t


def _unmapped(t: ShType | None, like: Any, mapped: Sequence[int]) -> list[tuple[str, ...]]:
    """The axes of the dims of which a program knows, inside of `jax.vmap`."""
    dims = [()] * len(like.shape) if t is None else [dim.axes for dim in t.dims]
    return [axes for d, axes in enumerate(dims) if d not in mapped]
