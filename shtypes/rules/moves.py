"""Which type a reshard, or one of its named forms, goes to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.types import REPLICATED, ShType, State
from shtypes.types.policy import replicated
from shtypes.types.target import as_type

#: What says more than a reshard can, by the state before; for a value that is to vary, and for one that does.
_TO_VARYING: Final = {
    State.SHARDED: ('sh.reinterpret(x, {axis}="V") takes the slices as values',),
    State.REDUCED: ('sh.lax.pvary(x, "{axis}")', 'sh.reinterpret(x, {axis}="V")'),
    State.INVARIANT: ('sh.lax.pvary(x, "{axis}")', 'sh.reinterpret(x, {axis}="V")'),
    State.UNREDUCED: ('sh.lax.pvary(sh.all_reduce(x, "{axis}"), "{axis}")',),
}
_FROM_VARYING: Final = {
    State.SHARDED: ("sh.reinterpret(x, {axis}=dim) puts the values together along a dim",),
    State.REDUCED: ('sh.lax.psum(x, "{axis}", to="reduced") adds the values',),
    State.INVARIANT: ('sh.lax.psum(x, "{axis}", to="invariant") adds the values',),
    State.UNREDUCED: ('sh.reinterpret(x, {axis}="U") takes the values as terms of a sum',),
}


def check_varying(src: ShType, dst: ShType) -> None:
    """Refuses to make a value of a family of values, or one of it: rules may cast to varying, users say it."""
    for axis, before, after in zip(src.mesh.axis_names, src.states, dst.states, strict=True):
        if (before is State.VARYING) != (after is State.VARYING):
            hints = _TO_VARYING[before] if after is State.VARYING else _FROM_VARYING[after]
            raise ShardingTypeError(
                f"cannot reshard {src} to {dst}: only one of them varies over mesh axis `{axis}`",
                why="a varying value is a family of values without a global meaning, so no move keeps what it denotes",
                hints=[hint.format(axis=axis) for hint in hints],
            )


def target_of(t: ShType, target: Any, states: Mapping[str, Any], named: Callable[..., ShType] = as_type) -> ShType:
    """The type that `reshard` goes to: what a target names, or the type with some axes in other places.

    Args:
        t: The type of the value.
        target: A text, a type or a ``jax.P``; or None, and ``states`` says it.
        states: The new place of some axes by name: a dim, or a state that is not sharded.
        named: What reads a target.
    """
    if (target is None) == (not states):
        raise ShardingTypeError(
            "`reshard` needs a target type or axes by name",
            hints=['sh.reshard(x, "[_, ...]{U:tp}")', 'sh.reshard(x, tp="R")'],
        )
    if target is not None:
        return named(target, t.mesh, like=t)
    for axis, place in states.items():
        t = t.with_axis(axis, *_place(t, axis, place))
    return t


def _place(t: ShType, axis: str, place: Any) -> tuple[State, int | None]:
    t.mesh.index(axis)
    if isinstance(place, State) and place is not State.SHARDED:
        return place, None
    by_letter = {"R": State.REDUCED, "I": State.INVARIANT, "U": State.UNREDUCED}
    if isinstance(place, str) and place in by_letter:
        return by_letter[place], None
    if isinstance(place, bool) or not hasattr(place, "__index__"):
        raise ShardingTypeError(
            f"mesh axis `{axis}` cannot be resharded to `{place!r}`", hints=['a dim such as 0, or "R", "I", "U"']
        )
    return State.SHARDED, dim_from_front(place.__index__(), t)


def dim_from_front(dim: int, t: ShType) -> int:
    """A dim counted from the front."""
    if not -t.ndim <= dim < t.ndim:
        raise ShardingTypeError(f"{t} has no dim {dim}")
    return dim % t.ndim


def replicated_state(to: Any) -> State:
    """The replicated state that ``to=`` names; None for that of the policy."""
    if to is None:
        return replicated()
    parsed = {"R": State.REDUCED, "I": State.INVARIANT}.get(to, to)
    if parsed not in REPLICATED:
        raise ShardingTypeError(f"`to` is the replicated state to end in, not {to!r}", hints=['to="R"', 'to="I"'])
    state: State = parsed
    return state


#: The names of the named forms in local mode, for a value that varies.
_OF_VARYING: Final = {"all_reduce": "psum", "reduce_scatter": "psum_scatter", "shard": "pscatter"}


def _from(name: str, state: State, axis: str) -> str:
    """The named form that goes from a state where another one does not."""
    if state is State.VARYING:
        return f'sh.lax.{_OF_VARYING.get(name, name)}(x, "{axis}"), in local mode'
    return "sh.reshard(x, type) goes from any type to any other"


class Form(NamedTuple):
    """A named form of `reshard`."""

    needs: State | None  # the state that it goes from; None for either replicated one
    shards: bool  # whether it goes to a dim; else to a replicated state


FORMS: Final[Mapping[str, Form]] = {
    "all_reduce": Form(State.UNREDUCED, shards=False),
    "reduce_scatter": Form(State.UNREDUCED, shards=True),
    "all_gather": Form(State.SHARDED, shards=False),
    "all_to_all": Form(State.SHARDED, shards=True),
    "shard": Form(None, shards=True),
}


def named_form(name: str, t: ShType, axes: Sequence[str], *, dim: int | None = None, to: Any = None) -> ShType:
    """The type that a named form of `reshard` goes to.

    Args:
        name: A name in `FORMS`.
        t: The type of the value.
        axes: The mesh axes; for `all_reduce` all unreduced ones, if none is given.
        dim: The dim to shard.
        to: The replicated state to end in, as a state or its letter; None for that of the policy.
    """
    form = FORMS[name]
    if not axes and name == "all_reduce":
        axes = t.axes(State.UNREDUCED)
    elif not axes:
        raise ShardingTypeError(f"`{name}` needs the mesh axes to gather", hints=[f'sh.{name}(x, "tp")'])
    state = State.SHARDED if form.shards else replicated_state(to)
    dst = t
    for axis in axes:
        needs = form.needs or (t.state(axis) if t.state(axis) in REPLICATED else State.REDUCED)
        if t.state(axis) is not needs:
            raise ShardingTypeError(
                f"`{name}` needs mesh axis `{axis}` {needs.name.lower()}",
                why=f"it is {t.state(axis).name.lower()} in {t}",
                hints=[_from(name, t.state(axis), axis)],
            )
        dst = dst.with_axis(axis, state, None if dim is None else dim_from_front(dim, dst))
    return dst
