"""Rows of the collectives of `jax.shard_map`, evaluated by the functions of `shtypes.lax`.

JAX tracks varying values as sharding types do, except for constants: here these take any state for free.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from shtypes._compat.jaxprs import jaxpr_of
from shtypes._compat.symbolic_specs import SymbolicSpec, resolved
from shtypes.context.scope import local_axes
from shtypes.core.collective import collect
from shtypes.core.meshes import use_mesh
from shtypes.dispatch.apply import is_typed
from shtypes.dispatch.casts import cast
from shtypes.dispatch.reshard import all_reduce, reshard
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.frames import mesh_here
from shtypes.evaluation.interpreter import evaluate
from shtypes.evaluation.rows.families import Row, all_unsharded
from shtypes.evaluation.table import FALLBACKS, ROWS, WITHOUT_ROW, body_row
from shtypes.evaluation.value_info import cast_to_type, is_constant, type_constants, typed_constant
from shtypes.local_mode import lax
from shtypes.local_mode.lax.arguments import refuse_groups
from shtypes.local_mode.lax.sums import broadcast_from
from shtypes.local_mode.shard_map import mapped_over
from shtypes.ops.arithmetic import multiply
from shtypes.ops.elementwise import equal
from shtypes.rules.local import Op
from shtypes.scopes.check_comm import check_comm
from shtypes.types import REPLICATED, ShType, State
from shtypes.types.mesh import Mesh, context, current_mesh
from shtypes.types.policy import replicated


def spec_of(t: ShType) -> Any:
    """The `PartitionSpec` of a type, which `jax.typeof` of an argument shows; it omits what a spec cannot express."""
    other = State.REDUCED if replicated() is State.INVARIANT else None
    reduced = t.axes(other) if other is not None and t.differentiable else ()
    dims = [dim.axes[0] if len(dim.axes) == 1 else dim.axes or None for dim in t.dims]
    return jax.P(*dims, unreduced=frozenset(t.axes(State.UNREDUCED)), reduced=frozenset(reduced))


def type_from_spec(t: ShType, spec: Any, states_of: Mapping[str, State]) -> ShType:
    """The type of a spec: sharded as it says, elsewhere replicated or in ``states_of``.

    `UNCONSTRAINED` dims keep the axes that they have in ``t``.
    """
    entries = [*spec, *[None] * (t.ndim - len(spec))]
    dims, used = [], set()
    for dim, entry in zip(t.dims, entries, strict=True):
        axes = dim.axes if entry is jax.P.UNCONSTRAINED else (entry,) if isinstance(entry, str) else tuple(entry or ())
        on_mesh = tuple(a for a in axes if a in t.mesh.axis_names)
        if len(on_mesh) < len(axes):
            missing = next(a for a in axes if a not in t.mesh.axis_names)
            raise ShardingTypeError(f"the annotation {spec} names `{missing}`, which is no axis of the mesh")
        dims.append(dim._replace(axes=on_mesh))
        used |= set(on_mesh)
    unreduced = frozenset(getattr(spec, "unreduced", ()) or ())
    reduced = frozenset(getattr(spec, "reduced", ()) or ())
    states = {}
    for axis in t.mesh.axis_names:
        if axis in used:
            continue
        keeps = any(e is jax.P.UNCONSTRAINED for e in entries) and t.state(axis) is State.UNREDUCED
        states[axis] = (
            State.UNREDUCED if axis in unreduced or keeps else State.REDUCED if axis in reduced else replicated()
        )
    states |= {axis: state for axis, state in states_of.items() if axis in states}
    return ShType(t.mesh, t.dtype_name, dims, states)


@body_row("sharding_annotation")
def _annotation(eqn: Any, operands: list[Any]) -> list[Any]:
    """Reshards to an annotation; a constant only if the annotation names axes."""
    (x, *likes), (spec, mapped) = operands, (eqn.params["spec"], eqn.params["mapped"])
    states: dict[str, State] = {}
    if isinstance(spec, SymbolicSpec):
        types = [_type_of(like) for like in likes]
        axes = [_unmapped(t, like, m) for t, like, m in zip(types, likes, mapped[1:], strict=True)]
        if spec.is_spec_of_operand:
            (t,), (like_axes,) = types, axes
            if t is None:
                return [x]
            if len(like_axes) != len(x.shape) - len(mapped[0]):
                raise ShardingTypeError(
                    f"an annotation gives a value of {len(x.shape)} dims the sharding of one of {t.ndim}",
                    hints=["jax.P(...) says how the result is to lie"],
                )
            states = {a: t.state(a) for a in t.axes(State.UNREDUCED, State.REDUCED, State.INVARIANT)}
        spec = resolved(spec, [(), *axes])
    if not is_typed(x):
        mesh = mesh_here(likes)
        if mesh is None:
            return [x]
        x = typed_constant(x, mesh)
    if is_constant(x) and not states and all(e is None for e in spec) and not getattr(spec, "unreduced", ()):
        return operands[:1]
    entries = [*spec, *[None] * (x.type.ndim - len(mapped[0]) - len(spec))]
    for dim in sorted(mapped[0]):
        entries.insert(dim, x.type.dims[dim].axes)
    unreduced, reduced = (getattr(spec, name, None) or frozenset() for name in ("unreduced", "reduced"))
    return [reshard(x, type_from_spec(x.type, jax.P(*entries, unreduced=unreduced, reduced=reduced), states))]


def _type_of(like: Any) -> ShType | None:
    """The type of a value that an annotation refers to; None of an unsharded constant."""
    if not is_typed(like) or (is_constant(like) and not like.type.axes(State.SHARDED)):
        return None
    t: ShType = like.type
    return t


def _unmapped(t: ShType | None, like: Any, mapped: Sequence[int]) -> list[tuple[str, ...]]:
    """The mesh axes of each dim that is not mapped by `jax.vmap`."""
    dims = [()] * len(like.shape) if t is None else [dim.axes for dim in t.dims]
    return [axes for d, axes in enumerate(dims) if d not in mapped]


#: From an operand, the mesh axes and the parameters of the equation to the result.
_Collective = Callable[[Any, tuple[str, ...], Any], Any]

#: The collectives of varying operands.
_ON_VARYING: Final[dict[str, _Collective]] = {
    "all_gather": lambda x, axes, p: lax.all_gather(x, axes, axis=p["all_gather_dimension"], tiled=p["tiled"]),
    "all_gather_invariant": lambda x, axes, p: lax.all_gather_invariant(
        x, axes, axis=p["all_gather_dimension"], tiled=p["tiled"]
    ),
    "all_gather_reduced": lambda x, axes, p: lax.all_gather(
        x, axes, axis=p["all_gather_dimension"], tiled=p["tiled"], to="reduced"
    ),
    # The primitive is the tiled form, whatever ``tiled`` was in `jax.lax.all_to_all`.
    "all_to_all": lambda x, axes, p: lax.all_to_all(x, axes, p["split_axis"], p["concat_axis"], tiled=True),
    "pbroadcast": lambda x, axes, p: lax.pbroadcast(x, axes, p["source"]),
    "ppermute": lambda x, axes, p: lax.ppermute(x, axes, p["perm"]),
    "reduce_scatter": lambda x, axes, p: lax.psum_scatter(
        x, axes, scatter_dimension=p["scatter_dimension"], tiled=p["tiled"]
    ),
    **dict.fromkeys(
        ("vary_unreduced_cast", "vary_unreduced_cast_p"), lambda x, axes, p: lax.pcast(x, axes, to="unreduced")
    ),
}
#: The collectives of pending sums.
_ON_SUMS: Final[dict[str, _Collective]] = {
    "unreduced_psum": lambda x, axes, p: all_reduce(x, *axes),
    "unreduced_reduce_scatter": lambda x, axes, p: collect(
        Op("psum_scatter", axes, State.UNREDUCED, dim=p["scatter_dimension"], tiled=p["tiled"]), x
    ),
}


def _along(eqn: Any) -> tuple[str | int, ...]:
    """The mesh axes of a collective by name, and the dims that `jax.vmap` has named by index."""
    named = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
    refuse_groups(eqn.params.get("axis_index_groups"))
    return tuple(named) if isinstance(named, (tuple, list)) else (named,)


def _axes(eqn: Any) -> tuple[str, ...]:
    """The mesh axes of a collective."""
    return tuple(map(str, _along(eqn)))


def _replicated_along(x: Any, axes: Sequence[str]) -> list[str]:
    return [a for a in axes if not is_typed(x) or x.type.state(a) in REPLICATED]


def _varying(x: Any, axes: Sequence[str]) -> Any:
    """Casts a value to varying over mesh axes; several uses share one cast."""
    if not is_typed(x):
        x = (
            typed_constant(x, current_mesh())
            if is_constant(x)
            else cast_to_type(x, typed_constant(x, current_mesh()).type)
        )
    t = x.type.with_axes(_replicated_along(x, axes), State.VARYING)
    if t == x.type:
        return x
    constant = is_constant(x)
    check_comm("pvary", x.type, t, inserted=True, has_gradient=not constant)
    return cast(x, t, constant=constant)


@body_row(*_ON_VARYING)
def _of_varying(eqn: Any, operands: list[Any]) -> list[Any]:
    axes, (x,) = _axes(eqn), operands
    return [_ON_VARYING[eqn.primitive.name](_varying(x, axes), axes, eqn.params)]


@body_row(*_ON_SUMS)
def _of_sums(eqn: Any, operands: list[Any]) -> list[Any]:
    return [_ON_SUMS[eqn.primitive.name](operands[0], _axes(eqn), eqn.params)]


_TO_VARYING: Final = ("pvary", "reduced_vary_cast", "reduced_vary_cast_p")


@body_row(*_TO_VARYING)
def _pvary(eqn: Any, operands: list[Any]) -> list[Any]:
    """`pvary`; constants and plain values are unchanged, since they take the states of other operands."""
    (x,) = operands
    return [_varying(x, _axes(eqn)) if is_typed(x) and not is_constant(x) else x]


@body_row("preduced")
def _preduced(eqn: Any, operands: list[Any]) -> list[Any]:
    (x,) = operands
    axes = [a for a in _axes(eqn) if not is_constant(x) and x.type.state(a) is State.INVARIANT]
    return [lax.pcast(x, axes, to="reduced") if axes else x]


#: The reductions over dims that `jax.vmap` has named, which precede those over mesh axes.
_OVER_DIMS: Final = {"psum": jax.lax.reduce_sum_p, "pmax": jax.lax.reduce_max_p, "pmin": jax.lax.reduce_min_p}


@body_row("psum", "psum_invariant", "pmax", "pmin")
def _all_reduction(eqn: Any, operands: list[Any]) -> list[Any]:
    name = eqn.primitive.name.removesuffix("_invariant")
    axes = [a for a in _along(eqn) if isinstance(a, str)]
    dims = tuple(a for a in _along(eqn) if not isinstance(a, str))
    reduction = _OVER_DIMS[name]
    reduced = [_over_dims(reduction, eqn, i, x, dims) if dims else x for i, x in enumerate(operands)]
    return [_over_axes(name, x, axes) for x in reduced]


def _over_dims(reduction: Any, eqn: Any, i: int, x: Any, dims: tuple[int, ...]) -> Any:
    """Reduces dims of one operand of a collective."""
    params = {"axes": dims, "out_sharding": None}
    if not is_typed(x):
        return reduction.bind(x, **params)
    one = eqn.replace(primitive=reduction, invars=[eqn.invars[i]], outvars=[eqn.outvars[i]], params=params)
    return ROWS[reduction.name](one, [x])[0]


def _over_axes(name: str, x: Any, axes: Sequence[str]) -> Any:
    """Applies a collective over the axes along which a value varies; a `psum` over the others multiplies."""
    replicated_axes = _replicated_along(x, axes)
    live = [a for a in axes if a not in replicated_axes]
    if live:
        x = getattr(lax, name)(x, live)
    count = math.prod(map(lax.axis_size, replicated_axes)) if name == "psum" else 1
    if count == 1:
        return x
    return multiply(x, count) if is_typed(x) else x * np.asarray(count, x.dtype)


@body_row("axis_index")
def _axis_index(eqn: Any, operands: list[Any]) -> list[Any]:
    return [lax.axis_index(_axes(eqn))]


@body_row("pbroadcast_dynamic")
def _pbroadcast_dynamic(eqn: Any, operands: list[Any]) -> list[Any]:
    """The shard of the device with index ``source``."""
    axes, (x, source) = _axes(eqn), operands
    return [broadcast_from(_varying(x, axes), axes, equal(lax.axis_index(axes), source))]


@body_row("ragged_all_to_all")
def _ragged_all_to_all(eqn: Any, operands: list[Any]) -> list[Any]:
    axes = _axes(eqn)
    return [lax.ragged_all_to_all(*[_varying(x, axes) for x in operands], axis_name=axes)]


@body_row("shard_map")
def _shard_map(eqn: Any, operands: list[Any]) -> list[Any]:
    """Evaluates the body in local mode; ``in_specs`` are reshards, as in JAX."""
    p, mesh = eqn.params, mesh_here(operands) or current_mesh()
    axes = tuple([a for a in mesh.axis_names if a in p["newly_manual_axes"]])

    def body(*xs: Any) -> list[Any]:
        return evaluate(jaxpr_of(p["jaxpr"]), (), xs)

    with contextlib.nullcontext() if context() is mesh else use_mesh(mesh):
        args = tuple([_reshard_input(x, spec, axes, mesh) for x, spec in zip(operands, p["in_specs"], strict=True)])
        return list(mapped_over(axes, mesh, body, args, tuple(p["in_specs"]), list(p["out_specs"])))


def _reshard_input(x: Any, spec: Any, axes: Sequence[str], mesh: Mesh) -> Any:
    """Reshards an operand to a spec along the mapped axes; other axes are unchanged."""
    x = x if is_typed(x) else typed_constant(x, mesh)
    t: ShType = x.type
    spec_axes = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
    spec_axes += [()] * (t.ndim - len(spec_axes))
    entries = [(*s, *[a for a in d.axes if a not in axes]) for s, d in zip(spec_axes, t.dims, strict=True)]
    beside = {a: state for a, state in t.beside_dims.items() if a not in axes}
    return reshard(x, type_from_spec(t, jax.P(*entries, unreduced=spec.unreduced, reduced=spec.reduced), beside))


def _on_full_values(eqn: Any, operands: list[Any]) -> list[Any] | None:
    """Evaluates a kernel or foreign call in local mode: each device calls it with the full values."""
    why = WITHOUT_ROW.get(eqn.primitive.name)
    if not local_axes() or eqn.effects or (why is not None and "sh.local_map" not in why):
        return None
    if not all(hasattr(v.aval, "shape") and hasattr(v.aval, "dtype") for v in (*eqn.invars, *eqn.outvars)):
        return None
    return Row(all_unsharded)(eqn, type_constants(operands))


FALLBACKS.append(_on_full_values)
