"""`reshard` and its named forms: the only functions that communicate."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

import jax

from shtypes.core.array import Array, ArrayLike
from shtypes.core.combined_collectives import move_together
from shtypes.core.device_put import type_of
from shtypes.core.eager_cache import public
from shtypes.core.reshard import resharded
from shtypes.dispatch.apply import as_ints, as_operands, is_typed, located
from shtypes.errors import ShardingTypeError, quoted
from shtypes.resharding.transport import CommArguments, transport_in_force
from shtypes.rules.moves import dim_from_front, named_form, replicated_state, target_of
from shtypes.scopes.check_comm import check_comm
from shtypes.types import ShType, State
from shtypes.types.target import target_text

Tree = TypeVar("Tree")


def _checked_reshard(name: str, x: Any, dst: ShType, options: CommArguments, written: str = "") -> Array:
    """Checks a reshard against the enclosing scopes and applies it; ``written`` has the call's other arguments."""
    t, call = jax.typeof(x), ""
    transport = options._replace(shared=name == "reshard").transport(name, t, dst)
    if name != "reshard":
        call = f"sh.{name}(x{written}{options.written})"
    elif options.written:
        call = f'sh.reshard(x, "{target_text(dst)}"{options.written})'
    check = functools.partial(check_comm, name, t, dst, call=call, transport=transport)
    return resharded(x, dst, transport=transport, check=check)


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
    """Changes the type of a value.

    Args:
        x (...): A typed value.
        target: The type: a string, a `ShType` or a `jax.P`. In a string such as ``"[seq@tp, _@..., _]"`` a dim ``_`` is
            unsharded, ``_@tp`` sharded over ``tp`` and ``_@...`` unchanged; for all remaining dims ``...`` means
            unchanged and ``_...`` unsharded. Axes that are not written, and that no unchanged dim has, are replicated
            by policy: ``"[...]"`` finishes pending sums and moves no dim, ``"[_...]"`` replicates the value. Inside
            `vmap` over a sharded dim, the axes that shard it do not change. Or a mapping from types to targets, such as
            ``{"[_, _]{U:tp}": "[_, _@tp]"}``: that of the value's type is taken; a value of no type in it stays.
        comm_dtype: A narrower float dtype for communication: the value is cast before the first collective and back
            after the last. By default the value's dtype.
        ct_comm_dtype: The same for its cotangent in the backward pass; by default the cotangent's dtype.
        narrow_sums: Whether sums over devices may be computed in the narrower dtype, too.
        **states: Instead of ``target``, the new state of some axes by name: a dim (int), or ``"R"``, ``"I"``, ``"U"``;
            other axes do not change.

    Returns:
        (...): The value with that type and its dtype.

    Raises:
        ShardingTypeError: the target has another shape or dtype, or changes a varying axis; a communication dtype is no
            narrower float, or sums would be computed in one without ``narrow_sums``.

    Communicates: by the cheapest plan between the types (docs: resharding), and backward by that between the cotangent
    types. Transpose: the reshard between the cotangent types, with the two communication dtypes exchanged.
    """
    ((x,), _) = as_operands([x])
    t = jax.typeof(x)
    try:
        dst = target_of(t, target, states, type_of)
        return _checked_reshard("reshard", x, dst, CommArguments(comm_dtype, ct_comm_dtype, narrow_sums))
    except ShardingTypeError as error:
        raise located(error, "reshard", [t]).with_traceback(None) from None


def finished(y: Any, out: Any) -> Array:
    """Reshards the result of an op to its ``out=``, unless that is None."""
    return y if out is None else reshard(y, out)


def normalize_dim(dim: int, t: ShType) -> int:
    """A dim as a nonnegative index."""
    return dim_from_front(as_ints(dim, "a dim")[0], t)


def _named(
    name: str,
    x: Any,
    axes: tuple[str, ...],
    *,
    dim: Any = None,
    to: Any = None,
    options: CommArguments = CommArguments(),  # noqa: B008  # immutable
) -> Array:
    """Applies the named reshard ``name`` (`rules.moves.FORMS` has what each changes along an axis)."""
    plain = not is_typed(x)
    ((x,), _) = as_operands([x])
    t = jax.typeof(x)
    try:
        dst = named_form(name, t, axes, dim=None if dim is None else as_ints(dim, "a dim")[0], to=to)
        return _checked_reshard(name, x, dst, options, _written(axes, dim=dim, to=to))
    except ShardingTypeError as error:
        if plain and not t.axes(State.SHARDED, State.UNREDUCED):
            error.hints = (
                "in a mesh a plain array is replicated: sh.lift of the function around it types all of its values",
                f"`{name}` of a plain array where no mesh is set is the array",
            )
        raise located(error, name, [t]).with_traceback(None) from None


def _written(axes: tuple[str, ...], *, dim: Any = None, to: Any = None) -> str:
    """The arguments of a named form after the first, as in a call."""
    arguments = [f'"{axis}"' for axis in axes]
    if dim is not None:
        arguments.append(f"{dim}")
    if to is not None:
        arguments.append(f'to="{to.value if isinstance(to, State) else to}"')
    return "".join(f", {argument}" for argument in arguments)


def _all_reduce_tree(tree: Any, axes: Sequence[str], state: State) -> Any:
    """Finishes the pending sums of the typed values of a tree, on ``axes`` or on all."""
    leaves, structure = jax.tree.flatten(tree)
    types = {i: jax.typeof(x) for i, x in enumerate(leaves) if is_typed(x)}
    goals = {
        i: t.with_axes({*t.axes(State.UNREDUCED)} & {*(axes or t.mesh.axis_names)}, state) for i, t in types.items()
    }
    moving = [i for i, goal in goals.items() if goal != types[i]]
    pending = {a for i in moving for a in types[i].axes(State.UNREDUCED)}
    if not pending.issuperset(axes):
        error = ShardingTypeError(
            f"`all_reduce` finds no value of the tree that is pending over mesh axis {quoted(set(axes) - pending)}",
            hints=["sh.all_reduce(tree) finishes what is pending, over whichever axes"],
        )
        raise located(error, "all_reduce", list(types.values())[:3])
    transport = replace(transport_in_force(), shared=False)  # only the changing axes, as for one value
    summed = move_together([leaves[i] for i in moving], [goals[i] for i in moving], transport)
    for i, x in zip(moving, summed, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves)


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
    options = CommArguments(comm_dtype, ct_comm_dtype, narrow_sums)
    if type(x) is not Array and x is not None and not jax.tree_util.all_leaves([x]):  # a tree
        if options != CommArguments():
            error = ShardingTypeError(
                "`all_reduce` sends the values of a tree in their own dtypes",
                why="they go in one collective for each dtype",
                hints=[f"jax.tree.map(lambda x: sh.all_reduce(x{options.written}), tree)"],
            )
            raise located(error, "all_reduce", [])
        return _all_reduce_tree(x, axes, replicated_state(to))
    return _named("all_reduce", x, axes, to=to, options=options)


@public
def reduce_scatter(
    x: ArrayLike, axis: str, dim: int, *, comm_dtype: Any = None, ct_comm_dtype: Any = None, narrow_sums: bool = False
) -> Array:
    """Sums the partial values of an unreduced axis and keeps, on each device, its slice of ``dim``.

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
    return _named("reduce_scatter", x, (axis,), dim=dim, options=CommArguments(comm_dtype, ct_comm_dtype, narrow_sums))


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
    return _named("all_gather", x, axes, to=to, options=CommArguments(comm_dtype, ct_comm_dtype, narrow_sums))


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
    return _named("all_to_all", x, (axis,), dim=dim, options=CommArguments(comm_dtype, ct_comm_dtype, narrow_sums))


@public
def shard(x: ArrayLike, axis: str, dim: int) -> Array:
    """Keeps, on each device, its slice of a replicated value.

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
    return _named("shard", x, (axis,), dim=dim)
