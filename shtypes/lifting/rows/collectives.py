"""Rows of the collectives of `jax.shard_map`, in programs of one device: those of `shtypes.lax`.

JAX tracks which values vary as types do. Only constants differ: here they take any state for free, and what each device
has of one, each knows of the others too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np

from shtypes._compat.jaxprs import jaxpr_of
from shtypes.context.scope import local_axes
from shtypes.core.collective import collect
from shtypes.core.meshes import use_mesh
from shtypes.dispatch.apply import cast, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.branch_types import placed
from shtypes.evaluation.frames import current
from shtypes.evaluation.interpreter import evaluate
from shtypes.evaluation.rows.families import all_whole
from shtypes.evaluation.rows.generic import Row
from shtypes.evaluation.table import EQUATIONS, OF_ONE_DEVICE, body_row
from shtypes.evaluation.unsupported import REASONS
from shtypes.evaluation.value_info import beside_others, is_constant, typed_constant
from shtypes.lifting.public_ops import op
from shtypes.lifting.rows.annotations import meant
from shtypes.local_mode import lax
from shtypes.local_mode.shard_map import mapped_over
from shtypes.rules.local import Op
from shtypes.scopes.check_comm import check_comm
from shtypes.types import REPLICATED, ShType, State
from shtypes.types.mesh import Mesh, context, current_mesh

#: From an operand, the mesh axes and the parameters of the equation to the result.
_Collective = Callable[[Any, tuple[str, ...], Any], Any]

#: Those whose operands vary over the axes.
_OF_VARYING: Final[dict[str, _Collective]] = {
    "all_gather": lambda x, axes, p: lax.all_gather(x, axes, axis=p["all_gather_dimension"], tiled=p["tiled"]),
    "all_gather_invariant": lambda x, axes, p: lax.all_gather_invariant(
        x, axes, axis=p["all_gather_dimension"], tiled=p["tiled"]
    ),
    "all_gather_reduced": lambda x, axes, p: lax.all_gather(
        x, axes, axis=p["all_gather_dimension"], tiled=p["tiled"], to="reduced"
    ),
    # The primitive has both dims, whether or not the function of this name makes and drops one.
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
#: Those of pending sums.
_OF_SUMS: Final[dict[str, _Collective]] = {
    "unreduced_psum": lambda x, axes, p: op("all_reduce")(x, *axes),
    "unreduced_reduce_scatter": lambda x, axes, p: collect(
        Op("psum_scatter", axes, State.UNREDUCED, dim=p["scatter_dimension"], tiled=p["tiled"]), x
    ),
}


def _along(eqn: Any) -> tuple[str | int, ...]:
    """The mesh axes that an equation goes along, by name, and the dims that `jax.vmap` has named, by place."""
    params = eqn.params
    named = params["axes"] if "axes" in params else params["axis_name"]
    axes = tuple(named) if isinstance(named, (tuple, list)) else (named,)
    if params.get("axis_index_groups") is not None:
        raise ShardingTypeError(
            f"`{eqn.primitive.name}` goes along whole mesh axes; there are no `axis_index_groups`",
            hints=['split the axis in two in the mesh: sh.make_mesh({"outer": 2, "inner": 4})'],
            axes=[str(a) for a in axes],
        )
    return axes


def _axes(eqn: Any) -> tuple[str, ...]:
    """The mesh axes that an equation goes along."""
    return tuple(map(str, _along(eqn)))


def _mesh(operands: Sequence[Any]) -> Mesh:
    return next((x.type.mesh for x in operands if is_typed(x)), None) or current_mesh()


def _whole(x: Any, axes: Sequence[str]) -> list[str]:
    """The axes along which a value is the same on all devices, as far as is known."""
    return [a for a in axes if not is_typed(x) or x.type.state(a) in REPLICATED]


def _varying(x: Any, axes: Sequence[str]) -> Any:
    """A value that varies over mesh axes; it is cast once for all that ask for it."""
    if not is_typed(x):
        x = typed_constant(x, current_mesh()) if is_constant(x) else placed(x, typed_constant(x, current_mesh()).type)
    t = x.type.with_axes(_whole(x, axes), State.VARYING)
    if t == x.type:
        return x
    constant = is_constant(x)
    check_comm("pvary", x.type, t, inserted=True, has_gradient=not constant)
    return cast(x, t, constant=constant)


@body_row(*_OF_VARYING)
def _of_varying(eqn: Any, operands: list[Any]) -> list[Any]:
    axes, (x,) = _axes(eqn), operands
    return [_OF_VARYING[eqn.primitive.name](_varying(x, axes), axes, eqn.params)]


@body_row(*_OF_SUMS)
def _of_sums(eqn: Any, operands: list[Any]) -> list[Any]:
    return [_OF_SUMS[eqn.primitive.name](operands[0], _axes(eqn), eqn.params)]


_TO_VARYING: Final = ("pvary", "reduced_vary_cast", "reduced_vary_cast_p")


@body_row(*_TO_VARYING)
def _pvary(eqn: Any, operands: list[Any]) -> list[Any]:
    """A constant stays as it is, and so does a plain value: what they meet decides."""
    (x,) = operands
    return [_varying(x, _axes(eqn)) if is_typed(x) and not is_constant(x) else x]


@body_row("preduced")
def _preduced(eqn: Any, operands: list[Any]) -> list[Any]:
    (x,) = operands
    axes = [a for a in _axes(eqn) if not is_constant(x) and x.type.state(a) is State.INVARIANT]
    return [lax.pcast(x, axes, to="reduced") if axes else x]


#: What reduces the dims that `jax.vmap` has named, before the axes of the mesh.
_OVER_DIMS: Final = {"psum": jax.lax.reduce_sum_p, "pmax": jax.lax.reduce_max_p, "pmin": jax.lax.reduce_min_p}


@body_row("psum", "psum_invariant", "pmax", "pmin")
def _in_one_value(eqn: Any, operands: list[Any]) -> list[Any]:
    name = eqn.primitive.name.removesuffix("_invariant")
    axes = [a for a in _along(eqn) if isinstance(a, str)]
    dims = tuple(a for a in _along(eqn) if not isinstance(a, str))
    reduction = _OVER_DIMS[name]
    reduced = [_over_dims(reduction, eqn, i, x, dims) if dims else x for i, x in enumerate(operands)]
    return [_over_axes(name, x, axes) for x in reduced]


def _over_dims(reduction: Any, eqn: Any, i: int, x: Any, dims: tuple[int, ...]) -> Any:
    """The reduction of dims of one of a collective's operands."""
    params = {"axes": dims, "out_sharding": None}
    if not is_typed(x):
        return reduction.bind(x, **params)
    one = eqn.replace(primitive=reduction, invars=[eqn.invars[i]], outvars=[eqn.outvars[i]], params=params)
    return EQUATIONS[reduction.name](one, [x])[0]


def _over_axes(name: str, x: Any, axes: Sequence[str]) -> Any:
    """The collective along the axes over which a value varies; along the others all devices have the same."""
    whole = _whole(x, axes)
    live = [a for a in axes if a not in whole]
    if live:
        x = getattr(lax, name)(x, live)
    count = math.prod(map(lax.axis_size, whole)) if name == "psum" else 1
    if count == 1:
        return x
    return op("multiply")(x, count) if is_typed(x) else x * np.asarray(count, x.dtype)


@body_row("axis_index")
def _axis_index(eqn: Any, operands: list[Any]) -> list[Any]:
    return [lax.axis_index(_axes(eqn))]


@body_row("pbroadcast_dynamic")
def _pbroadcast_dynamic(eqn: Any, operands: list[Any]) -> list[Any]:
    """The value of the device that another value names."""
    axes, (x, source) = _axes(eqn), operands
    x = _varying(x, axes)
    here = op("equal")(lax.axis_index(axes), source)
    return [lax.psum(op("where")(here, x, 0), axes)]


@body_row("ragged_all_to_all")
def _ragged_all_to_all(eqn: Any, operands: list[Any]) -> list[Any]:
    axes = _axes(eqn)
    return [lax.ragged_all_to_all(*[_varying(x, axes) for x in operands], axis_name=axes)]


@body_row("shard_map")
def _shard_map(eqn: Any, operands: list[Any]) -> list[Any]:
    """A function of what one device has, in local mode; ``in_specs`` are reshards, as JAX makes them."""
    p, step = eqn.params, current()
    mesh = next((x.type.mesh for x in operands if is_typed(x)), None) or (step.body.mesh if step is not None else None)
    mesh = mesh or current_mesh()
    axes = tuple([a for a in mesh.axis_names if a in p["newly_manual_axes"]])

    def body(*xs: Any) -> list[Any]:
        return evaluate(jaxpr_of(p["jaxpr"]), (), xs)

    with contextlib.nullcontext() if context() is mesh else use_mesh(mesh):
        pairs = zip(operands, p["in_specs"], strict=True)
        args = tuple([_brought(x, spec, axes, mesh) for x, spec in pairs])
        return list(mapped_over(axes, mesh, body, args, tuple(p["in_specs"]), list(p["out_specs"])))


def _brought(x: Any, spec: Any, axes: Sequence[str], mesh: Mesh) -> Any:
    """An operand as a spec says along the axes that are mapped, and along the others as it is."""
    x = x if is_typed(x) else typed_constant(x, mesh)
    t: ShType = x.type
    said = [(e,) if isinstance(e, str) else tuple(e or ()) for e in spec]
    said += [()] * (t.ndim - len(said))
    entries = [(*s, *[a for a in d.axes if a not in axes]) for s, d in zip(said, t.dims, strict=True)]
    beside = {a: state for a, state in t.beside_dims.items() if a not in axes}
    return op("reshard")(x, meant(t, jax.P(*entries, unreduced=spec.unreduced, reduced=spec.reduced), beside))


# what has no row


def _of_one_device(eqn: Any, operands: list[Any]) -> list[Any] | None:
    """A kernel, or a call of foreign code: what one device makes of its values, each of which it has whole."""
    known = REASONS.get(eqn.primitive.name)
    if not local_axes() or eqn.effects or (known is not None and "sh.local_map" not in known):
        return None
    if not all(hasattr(v.aval, "shape") and hasattr(v.aval, "dtype") for v in (*eqn.invars, *eqn.outvars)):
        return None
    name = eqn.primitive.name
    return Row(name, all_whole(name))(eqn, beside_others(operands))


OF_ONE_DEVICE[:] = [_of_one_device]
