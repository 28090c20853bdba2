"""`reshard` and its named forms, and what makes values of a type that is written. Pure."""

from __future__ import annotations

from typing import Any

from shtypes.editor.call import Call, Move
from shtypes.editor.dtypes import OF_NUMBER
from shtypes.editor.ops.elementwise import dtype_of
from shtypes.editor.ops.registry import op
from shtypes.editor.space import Unknown
from shtypes.rules.moves import check_varying, named_form, target_of
from shtypes.types import ShType, State
from shtypes.types.policy import replicated

OPTIONS = ("comm_dtype", "ct_comm_dtype", "narrow_sums")


def _resharded(x: ShType, target: Any, states: dict[str, Any]) -> ShType:
    """The type that a reshard goes to; dims keep their names, which are those of the annotations."""
    if target is not None and not isinstance(target, str):
        raise Unknown
    found = target_of(x.named([None] * x.ndim), target, states)
    check_varying(x, found)
    return found.named(x.names)


def finished(call: Call, y: ShType) -> ShType:
    """The result in the type that ``out=`` asks for, if it does."""
    out = call.static("out", None)
    if out is None:
        return y
    dst = _resharded(y, out, {})
    call.moves.append(Move("reshard", y, dst))
    return dst


@op("reshard", parameters="x target")
def _reshard(call: Call) -> ShType:
    x = call.array("x")
    states = {name: a.static() for name, a in call.keywords.items() if name not in OPTIONS}
    dst = _resharded(x, call.static("target", None), states)
    call.moves.append(Move("reshard", x, dst))
    return dst


@op("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "shard")
def _named(call: Call) -> ShType:
    x = call.array("x")
    axes = call.statics("axes") or call.statics("axis")
    dim = call.static("dim", None)
    if dim is None and call.name in ("reduce_scatter", "all_to_all", "shard"):
        raise Unknown  # Python refuses the call
    dst = named_form(call.name, x, axes, dim=dim, to=call.static("to", None))
    call.moves.append(Move(call.name, x, dst))
    return dst


@op("constant")
def _constant(call: Call) -> ShType:
    x = call.array("x")
    to = call.static("to", None)
    state = replicated() if to is None else {"R": State.REDUCED, "I": State.INVARIANT}.get(to)
    if state is None:
        raise Unknown
    if state is not replicated() and not call.space.config.mesh:
        raise Unknown  # on every axis, and not all are known
    both = (State.REDUCED, State.INVARIANT)
    return x.replace(states=tuple(state if s in both else s for s in x.states))


@op("checkpoint_name")
def _named_for_policies(call: Call) -> ShType:
    return call.array("x")


# made from nothing


def _made(call: Call, given: Any, dtype: str) -> ShType:
    """The type that a constructor is asked for: a text, or a shape that is replicated by policy."""
    if call.has("mesh") and call.static("mesh") is not None:
        raise Unknown
    asked = call.static("dtype", None)
    dtype = dtype if asked is None else dtype_of(asked)
    if isinstance(given, int):
        given = (given,)
    if isinstance(given, (tuple, list)) and all(isinstance(n, int) for n in given):
        return ShType(call.mesh, dtype, list(given), dict.fromkeys(call.mesh.axis_names, replicated()))
    if not isinstance(given, str):
        raise Unknown
    found = call.closed(given)
    if asked is not None and found.dtype_name != dtype:
        raise Unknown
    return found


def _asked(call: Call) -> Any:
    return call.static("shape") if call.has("shape") else call.static("type")


@op("zeros", "ones")
def _filled(call: Call) -> ShType:
    return _made(call, _asked(call), "f32")


@op("full")
def _full(call: Call) -> ShType:
    value = call.static("fill_value")
    kind = type(value).__name__
    if kind not in OF_NUMBER:
        raise Unknown
    return _made(call, _asked(call), OF_NUMBER[kind])


@op("zeros_like", "ones_like", "full_like", "empty_like")
def _like(call: Call) -> ShType:
    if call.static("shape", None) is not None:
        raise Unknown
    x = call.array("a", "prototype")
    if call.name == "full_like":
        call.operand("fill_value")
    dtype = call.static("dtype", None)
    if dtype is None:
        return x
    if dtype_of(dtype) == x.dtype_name:
        return x
    raise Unknown


@op("array")
def _array(call: Call) -> ShType:
    """A host array: its text says all that is known of it."""
    given = call.static("type", None)
    if not isinstance(given, str) or (call.has("mesh") and call.static("mesh") is not None):
        raise Unknown
    return call.closed(given)
