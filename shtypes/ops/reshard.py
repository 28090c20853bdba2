"""`reshard` and its named forms: the only functions that communicate."""

from __future__ import annotations

from typing import Any, Final, TypeVar, overload

import jax

from shtypes.core.array import Array, ArrayLike
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import as_ints, lift, located
from shtypes.ops.trees import all_reduce_tree, is_tree
from shtypes.plans.transport import Asked
from shtypes.primitives.placing import type_of
from shtypes.primitives.reshard import resharded
from shtypes.scopes.judging import judge
from shtypes.types import ShType, State
from shtypes.types.policy import replicated

Tree = TypeVar("Tree")


def _sent(name: str, x: Any, dst: ShType, asked: Asked, written: str = "") -> Array:
    """A value in another type, once the scopes around have judged that; ``written`` as of `_named`."""
    t, call = jax.typeof(x), ""
    transport = asked._replace(shared=name == "reshard").transport(name, t, dst)
    if name != "reshard":
        call = f"sh.{name}(x{written}{asked.written})"
    elif asked.written:
        call = f'sh.reshard(x, "{str(dst).removeprefix(dst.dtype_name)}"{asked.written})'
    judge(name, t, dst, call=call, transport=transport)
    return resharded(x, dst, transport=transport)


@public
def reshard(
    x: ArrayLike,
    target: Any = None,
    /,
    *,
    comm_dtype: Any = None,
    ct_comm_dtype: Any = None,
    narrow_sums: Any = False,  # a bool; types leave `**{axis: dim}` to the states
    **states: Any,
) -> Array:
    """The same value in another type.

    Args:
        x (...): A typed value.
        target: The type: a text, a `ShType` or a `jax.P`. In a text such as ``"[seq@tp, _@..., _]"`` a dim ``_`` is
            whole, ``_@tp`` sharded over ``tp`` and ``_@...`` kept as it is; of all dims that are left, ``...`` keeps
            each as it is and ``_...`` makes each whole. An axis that is not written, and that no dim keeps, is
            replicated by policy: ``"[...]"`` finishes what is pending and moves no dim, ``"[_...]"`` makes everything
            whole. Inside `vmap` over a sharded dim, the axes that shard it are left alone.
        comm_dtype: A narrower float to send the value in: it is cast before the first collective and back after the
            last. By default the value's own dtype.
        ct_comm_dtype: The same of its cotangent, in the backward pass; by default the cotangent's own dtype.
        narrow_sums: Whether sums over devices may be added in the narrower dtype, too.
        **states: Instead of ``target``, the new place of some axes by name: a dim (int), or ``"R"``, ``"I"``, ``"U"``;
            the others stay.

    Returns:
        (...): The value with that type, in its own dtype.

    Raises:
        ShardingTypeError: the target has another shape or dtype, or goes to or from a varying axis; a dtype to send in
            is no narrower float, or terms would be added in one without ``narrow_sums``.

    Communicates: what the cheapest plan from one type to the other needs (docs: resharding), and backward what the plan
    between the cotangent types needs. Transpose: the reshard between the cotangent types, with the two dtypes to send
    in exchanged.
    """
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    try:
        dst = _target(t, target, states)
        _check_varying(t, dst)
        return _sent("reshard", x, dst, Asked(comm_dtype, ct_comm_dtype, narrow_sums))
    except ShardingTypeError as error:
        raise located(error, "reshard", [t]).with_traceback(None) from None


def finished(y: Any, out: Any) -> Array:
    """The result of an op in the type that ``out=`` asks for, if it does."""
    return y if out is None else reshard(y, out)


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


def _check_varying(src: ShType, dst: ShType) -> None:
    """Refuses to make a value of a family of values, or one of it: rules may cast to varying, users say it."""
    for axis, before, after in zip(src.mesh.axis_names, src.states, dst.states, strict=True):
        if (before is State.VARYING) != (after is State.VARYING):
            hints = _TO_VARYING[before] if after is State.VARYING else _FROM_VARYING[after]
            raise ShardingTypeError(
                f"cannot reshard {src} to {dst}: only one of them varies over mesh axis `{axis}`",
                why="a varying value is a family of values without a global meaning, so no move keeps what it denotes",
                hints=[hint.format(axis=axis) for hint in hints],
            )


def _target(t: ShType, target: Any, states: dict[str, Any]) -> ShType:
    if (target is None) == (not states):
        raise ShardingTypeError(
            "`reshard` needs a target type or axes by name",
            hints=['sh.reshard(x, "[_, ...]{U:tp}")', 'sh.reshard(x, tp="R")'],
        )
    if target is not None:
        return type_of(target, t.mesh, like=t)
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
    return State.SHARDED, normalize_dim(place, t)


def normalize_dim(dim: int, t: ShType) -> int:
    """A dim from the front."""
    (dim,) = as_ints(dim, "a dim")[:1]
    if not -t.ndim <= dim < t.ndim:
        raise ShardingTypeError(f"{t} has no dim {dim}")
    return dim % t.ndim


def _named(
    name: str,
    x: Any,
    axes: tuple[str, ...],
    needs: State,
    change: Any,
    written: str = "",
    asked: Asked = Asked(),  # noqa: B008  # immutable
) -> Array:
    """A reshard of some axes; ``written`` are the arguments after ``x``, as the user gave them."""
    ((x,), _) = lift([x])
    t = dst = jax.typeof(x)
    try:
        for axis in axes:
            if t.state(axis) is not needs:
                raise ShardingTypeError(
                    f"`{name}` needs mesh axis `{axis}` {needs.name.lower()}",
                    why=f"it is {t.state(axis).name.lower()} in {t}",
                    hints=[_from(name, t.state(axis), axis)],
                )
            dst = change(dst, axis)
        return _sent(name, x, dst, asked, written)
    except ShardingTypeError as error:
        raise located(error, name, [t]).with_traceback(None) from None


def _sharded(t: ShType, axis: str, dim: int) -> ShType:
    return t.with_axis(axis, State.SHARDED, normalize_dim(dim, t))


def _written(axes: tuple[str, ...], *, dim: Any = None, to: Any = None) -> str:
    """The arguments of a named form after the first, as in a call."""
    given = [f'"{axis}"' for axis in axes]
    if dim is not None:
        given.append(f"{dim}")
    if to is not None:
        given.append(f'to="{to.value if isinstance(to, State) else to}"')
    return "".join(f", {argument}" for argument in given)


#: What the named forms are called in local mode, for a value that varies.
_OF_VARYING: Final = {"all_reduce": "psum", "reduce_scatter": "psum_scatter", "shard": "pscatter"}


def _from(name: str, state: State, axis: str) -> str:
    """What goes from a state where a named form does not."""
    if state is State.VARYING:
        return f'sh.lax.{_OF_VARYING.get(name, name)}(x, "{axis}"), in local mode'
    return "sh.reshard(x, type) goes from any type to any other"


def _replicated(to: Any) -> State:
    if to is None:
        return replicated()
    found = {"R": State.REDUCED, "I": State.INVARIANT}.get(to, to)
    if found not in (State.REDUCED, State.INVARIANT):
        raise ShardingTypeError(f"`to` is the replicated state to end in, not {to!r}", hints=['to="R"', 'to="I"'])
    state: State = found
    return state


@overload
def all_reduce(
    x: ArrayLike,
    *axes: str,
    to: Any = None,
    comm_dtype: Any = None,
    ct_comm_dtype: Any = None,
    narrow_sums: bool = False,
) -> Array: ...
@overload
def all_reduce(x: Tree, *axes: str, to: Any = None) -> Tree: ...
@public
def all_reduce(
    x: Any,
    *axes: str,
    to: Any = None,
    comm_dtype: Any = None,
    ct_comm_dtype: Any = None,
    narrow_sums: bool = False,
) -> Any:
    """Sums the partial values of unreduced axes, everywhere.

    Args:
        x (...): Unreduced on each of ``axes``. Or a tree, such as the gradients of a step: what is pending in it is
            finished, and other leaves stay; its values are put one behind the other for the collective.
        *axes: Mesh axes; all unreduced ones by default.
        to: ``"R"`` or ``"I"``; the policy's replicated state by default.
        comm_dtype: The dtype to send, as of `reshard`.
        ct_comm_dtype: That of the cotangent.
        narrow_sums: Whether sums may be narrow, too.

    Returns:
        (...): Replicated on ``axes``; of a tree, the tree.

    Raises:
        ShardingTypeError: an axis is not unreduced (of a tree, in none of its values), or terms would be added in a
            narrower dtype unasked; a narrower dtype for a tree.

    Communicates: an all-reduce, of a tree one for each group of axes and each dtype; backward, an all-reduce for each
    value (to R) or nothing (to I). Transpose: U to R, or I to R.
    """
    asked = Asked(comm_dtype, ct_comm_dtype, narrow_sums)
    if is_tree(x):
        if asked != Asked():
            error = ShardingTypeError(
                "`all_reduce` sends the values of a tree in their own dtypes",
                why="they go in one collective for each dtype",
                hints=[f"jax.tree.map(lambda x: sh.all_reduce(x{asked.written}), tree)"],
            )
            raise located(error, "all_reduce", [])
        return all_reduce_tree(x, axes, _replicated(to))
    ((x,), _) = lift([x])
    chosen = axes or jax.typeof(x).axes(State.UNREDUCED)
    state = _replicated(to)
    written = _written(axes, to=to)
    return _named("all_reduce", x, chosen, State.UNREDUCED, lambda t, a: t.with_axis(a, state), written, asked)


@public
def reduce_scatter(
    x: ArrayLike, axis: str, dim: int, *, comm_dtype: Any = None, ct_comm_dtype: Any = None, narrow_sums: bool = False
) -> Array:
    """Sums the partial values of an unreduced axis and keeps, on each device, its own slice of ``dim``.

    Args:
        x (..., n, ...): Unreduced on ``axis``; ``n`` is dim ``dim``.
        axis: A mesh axis.
        dim: The dim to shard, minor to the axes that shard it already.
        comm_dtype: The dtype to send, as of `reshard`.
        ct_comm_dtype: That of the cotangent.
        narrow_sums: Whether sums may be narrow, too.

    Returns:
        (..., n, ...): Sharded on ``dim``.

    Raises:
        ShardingTypeError: the axis is not unreduced, or does not divide the dim.

    Communicates: a reduce-scatter; backward, an all-gather. Transpose: S to R.
    """
    return _named(
        "reduce_scatter",
        x,
        (axis,),
        State.UNREDUCED,
        lambda t, a: _sharded(t, a, dim),
        _written((axis,), dim=dim),
        Asked(comm_dtype, ct_comm_dtype, narrow_sums),
    )


@public
def all_gather(
    x: ArrayLike,
    *axes: str,
    to: Any = None,
    comm_dtype: Any = None,
    ct_comm_dtype: Any = None,
    narrow_sums: bool = False,
) -> Array:
    """Gathers sharded dims, everywhere.

    Args:
        x (...): Sharded on each of ``axes``.
        *axes: Mesh axes.
        to: ``"R"`` or ``"I"``; the policy's replicated state by default.
        comm_dtype: The dtype to send, as of `reshard`.
        ct_comm_dtype: That of the cotangent.
        narrow_sums: Whether sums may be narrow, too.

    Returns:
        (...): Replicated on ``axes``.

    Raises:
        ShardingTypeError: an axis is not sharded.

    Communicates: an all-gather; backward, a reduce-scatter (to R) or nothing (to I). Transpose: U to S, or I to S.
    """
    state = _replicated(to)
    if not axes:
        raise ShardingTypeError("`all_gather` needs the mesh axes to gather", hints=['sh.all_gather(x, "tp")'])
    return _named(
        "all_gather",
        x,
        axes,
        State.SHARDED,
        lambda t, a: t.with_axis(a, state),
        _written(axes, to=to),
        Asked(comm_dtype, ct_comm_dtype, narrow_sums),
    )


@public
def all_to_all(
    x: ArrayLike, axis: str, dim: int, *, comm_dtype: Any = None, ct_comm_dtype: Any = None, narrow_sums: bool = False
) -> Array:
    """Moves a mesh axis from the dim it shards to another.

    Args:
        x (..., n, ...): Sharded on ``axis``; ``n`` is dim ``dim``.
        axis: A mesh axis.
        dim: The dim to shard instead.
        comm_dtype: The dtype to send, as of `reshard`.
        ct_comm_dtype: That of the cotangent.
        narrow_sums: Whether sums may be narrow, too.

    Returns:
        (..., n, ...): Sharded on ``dim``.

    Raises:
        ShardingTypeError: the axis is not sharded, or does not divide the dim.

    Communicates: an all-to-all, forward and backward. Transpose: the all-to-all back.
    """
    return _named(
        "all_to_all",
        x,
        (axis,),
        State.SHARDED,
        lambda t, a: _sharded(t, a, dim),
        _written((axis,), dim=dim),
        Asked(comm_dtype, ct_comm_dtype, narrow_sums),
    )


@public
def shard(x: ArrayLike, axis: str, dim: int) -> Array:
    """Keeps, on each device, its own slice of a replicated value.

    Args:
        x (..., n, ...): Replicated on ``axis``; ``n`` is dim ``dim``.
        axis: A mesh axis.
        dim: The dim to shard, minor to the axes that shard it already.

    Returns:
        (..., n, ...): Sharded on ``dim``.

    Raises:
        ShardingTypeError: the axis is not replicated, or does not divide the dim.

    Communicates: nothing; backward, nothing (from R) or an all-gather (from I). Transpose: S to U, or S to I.
    """
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    needs = t.state(axis) if t.state(axis) in (State.REDUCED, State.INVARIANT) else State.REDUCED
    return _named("shard", x, (axis,), needs, lambda t, a: _sharded(t, a, dim), _written((axis,), dim=dim))
