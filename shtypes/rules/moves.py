"""The destination types of `reshard` and of its named forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from shtypes.errors import ShardingTypeError
from shtypes.types import REPLICATED, ShType, State
from shtypes.types.policy import replicated
from shtypes.types.target import as_type


def target_of(t: ShType, target: Any, states: Mapping[str, Any], named: Callable[..., ShType] = as_type) -> ShType:
    """The destination of `reshard`: ``target`` as a type, or else with axes at other dims or in other ``states``."""
    if (target is None) == (not states):
        raise ShardingTypeError(
            "`reshard` needs a target type or axes by name",
            hints=['sh.reshard(x, "[_, ...]{U:tp}")', 'sh.reshard(x, tp="R")'],
        )
    if isinstance(target, Mapping):
        target = _of_type(t, target)
    if target is not None:
        return named(target, t.mesh, like=t)
    for axis, place in states.items():
        t = t.with_axis(axis, *_place(t, axis, place))
    return t


def _of_type(t: ShType, targets: Mapping[Any, Any]) -> Any:
    """The target of the values of a type in a mapping of types to targets; the type itself if it is not in it."""
    if (wrong := next((of for of in targets if not isinstance(of, (str, ShType))), None)) is not None:
        hints = ['sh.reshard(x, {"[_@tp, _]": "[_, _]"})']
        raise ShardingTypeError(f"`reshard` has a target for `{wrong!r}`, which is no type", hints=hints)
    of_type = [target for of, target in targets.items() if t == of]  # which reads the text of each
    return of_type[0] if of_type else t


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
    """A non-negative dim."""
    if not -t.ndim <= dim < t.ndim:
        raise ShardingTypeError(f"{t} has no dim {dim}")
    return dim % t.ndim


def replicated_state(to: Any) -> State:
    """The replicated state of ``to=``; by default that of the policy."""
    if to is None:
        return replicated()
    parsed = {"R": State.REDUCED, "I": State.INVARIANT}.get(to, to)
    if parsed not in REPLICATED:
        raise ShardingTypeError(f"`to` is the replicated state to end in, not {to!r}", hints=['to="R"', 'to="I"'])
    state: State = parsed
    return state


#: The collectives of local mode that correspond to named forms.
_OF_VARYING: Final = {"all_reduce": "psum", "reduce_scatter": "psum_scatter", "shard": "pscatter"}


def _from(name: str, state: State, axis: str) -> str:
    """The hint for a named form that does not start from a state."""
    if state is State.VARYING:
        return f'sh.lax.{_OF_VARYING.get(name, name)}(x, "{axis}"), in local mode'
    return "sh.reshard(x, type) goes from any type to any other"


class Form(NamedTuple):
    """A named form of `reshard`."""

    needs: State | None  # the state before; None for either replicated one
    shards: bool  # whether it shards a dim, instead of replicating


FORMS: Final[Mapping[str, Form]] = {
    "all_reduce": Form(State.UNREDUCED, shards=False),
    "reduce_scatter": Form(State.UNREDUCED, shards=True),
    "all_gather": Form(State.SHARDED, shards=False),
    "all_to_all": Form(State.SHARDED, shards=True),
    "shard": Form(None, shards=True),
}


def named_form(name: str, t: ShType, axes: Sequence[str], *, dim: int | None, to: Any) -> ShType:
    """The destination of a named form of `reshard`, by default of `all_reduce` over all unreduced axes."""
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
