"""The collectives of local mode, by `shtypes.rules.local`. Pure."""

from __future__ import annotations

from shtypes.editor.call import Call, Move
from shtypes.editor.ops.registry import op
from shtypes.editor.ops.shapes import ints, one_dim
from shtypes.editor.space import Unknown
from shtypes.rules.local import Op, result
from shtypes.types import REPLICATED, ShType, State
from shtypes.types.policy import replicated


def _axes(call: Call) -> tuple[str, ...]:
    given = call.static("axis_name")
    axes = (given,) if isinstance(given, str) else tuple(given)
    if not axes or not all(isinstance(a, str) for a in axes):
        raise Unknown
    return axes


def _collected(call: Call, x: ShType, collective: Op) -> ShType:
    dst = result(collective, x)
    call.moves.append(Move(call.name.removeprefix("lax."), x, dst))
    return dst


@op("lax.psum", "lax.pmean", "lax.pmax", "lax.pmin")
def _summed(call: Call) -> ShType:
    x, axes, to = call.array("x"), _axes(call), call.static("to", None)
    call.only("x", "axis_name", "to")
    state = {None: replicated(), "reduced": State.REDUCED, "invariant": State.INVARIANT}.get(to)
    if state not in REPLICATED:
        raise Unknown
    name = call.name.removeprefix("lax.")
    if name == "pmean" and not x.differentiable:
        raise Unknown
    return _collected(call, x, Op("psum" if name == "pmean" else name, axes, State.VARYING, state))


@op("lax.ppermute")
def _permuted(call: Call) -> ShType:
    x, axes = call.array("x"), _axes(call)
    for axis in axes:
        if x.state(axis) is not State.VARYING:
            return _collected(call, x, Op("ppermute", axes))
    return x


@op("lax.psum_scatter")
def _scattered(call: Call) -> ShType:
    x, axes = call.array("x"), _axes(call)
    dim, tiled = one_dim("psum_scatter", x, call.static("scatter_dimension", 0)), bool(call.static("tiled", False))
    return _of_size(call, x, Op("psum_scatter", axes, dim=dim, tiled=tiled))


@op("lax.all_gather")
def _gathered(call: Call) -> ShType:
    x, axes = call.array("x"), _axes(call)
    call.only("x", "axis_name", "axis", "tiled")
    tiled, axis = bool(call.static("tiled", False)), call.static("axis", 0)
    rank = x.ndim if tiled else x.ndim + 1
    (dim,) = ints(axis)
    if not -rank <= dim < rank:
        raise Unknown
    return _of_size(call, x, Op("all_gather", axes, dim=dim % rank, tiled=tiled))


def _of_size(call: Call, x: ShType, collective: Op) -> ShType:
    """The type of a collective whose result has other sizes: where these are not known only its states are checked."""
    if all(x.state(a) is collective.src for a in collective.axes) and not call.knows(collective.axes):
        raise Unknown
    return _collected(call, x, collective)


@op("lax.axis_index")
def _index(call: Call) -> ShType:
    axes = _axes(call)
    for axis in axes:
        call.mesh.index(axis)
    states = {a: State.VARYING if a in axes else State.REDUCED for a in call.mesh.axis_names}
    if not call.space.config.mesh and replicated() is not State.REDUCED:
        raise Unknown  # reduced on every other axis, and not all are known
    return ShType(call.mesh, "i32", [], states)


@op("lax.pvary")
def _varied(call: Call) -> ShType:
    x, axes = call.array("x"), _axes(call)
    if any(x.state(a) not in REPLICATED for a in axes):
        raise Unknown
    return x.with_axes(axes, State.VARYING)
