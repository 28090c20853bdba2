"""How an optimizer's trees lie: the types that it works in, and those of its state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat import no_trace_is_running
from shtypes.core.hitype import hi
from shtypes.errors import ShardingTypeError
from shtypes.lifting.joins import placed
from shtypes.ops.dispatch import is_typed, versions
from shtypes.plans import plan
from shtypes.plans.transport import reshard_fix
from shtypes.primitives.moving import move
from shtypes.primitives.placing import place, type_of
from shtypes.primitives.together import move_together
from shtypes.scopes.comm import allows_implicit, finishes_scalars
from shtypes.scopes.judging import judge
from shtypes.types import ShType, State, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.policy import replicated

#: A tree of types or texts, a function from a type to one, or None for the types that values have.
Layout = Any | Callable[[ShType], Any] | None
Tree = Any


def layout_of(layout: Layout, params: Tree) -> list[ShType | None]:
    """For each leaf of the parameters the type that is meant; None for one that has no type.

    Raises:
        ShardingTypeError: the layout has another structure than the parameters, or does not fit them.
    """
    leaves, structure = jax.tree.flatten(params)
    if layout is None or callable(layout):
        given = [x.type if is_typed(x) else None for x in leaves]
        given = [layout(t) if callable(layout) and t is not None else t for t in given]
    else:
        given = _leaves_like(layout, structure)
    found = [type_of(t, x.type.mesh, like=x.type) if is_typed(x) else None for x, t in zip(leaves, given, strict=True)]
    for x, t in zip(leaves, found, strict=True):
        if t is not None and t.axes(State.UNREDUCED):
            raise ShardingTypeError(f"an optimizer's state cannot be a pending sum, as {t} is, for {x.type}")
    return found


def _leaves_like(layout: Tree, structure: Any) -> list[Any]:
    found: Any = jax.tree.structure(layout)
    if found != structure:
        raise ShardingTypeError(
            f"`types` has another structure, {found}, than the parameters, {structure}",
            hints=["a function from a parameter's type to the type that is meant"],
        )
    return jax.tree.leaves(layout)


def in_types(tree: Tree, goals: Sequence[ShType | None]) -> Tree:
    """Typed values in the types of a layout, in their own dtypes; gathers over the same axes go in one collective."""
    leaves, structure = jax.tree.flatten(tree)
    moving = [
        (i, goal.replace(dtype=x.type.dtype_name))
        for i, (x, goal) in enumerate(zip(leaves, goals, strict=True))
        if is_typed(x) and goal is not None
    ]
    moved = move_together([leaves[i] for i, _ in moving], [goal for _, goal in moving])
    for (i, _), x in zip(moving, moved, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves)


# states


def typed_state(state: Tree, params: Tree) -> Tree:
    """A first state in which each array is typed.

    A plain one lies like the parameter whose path its own path contains: in the dims that it has of it. So a history of
    a parameter, with one dim before the parameter's, is sharded as that is, and a factored moment, which lacks one.
    """
    known = [(tuple(map(str, path)), x.type) for path, x in jax.tree.leaves_with_path(params) if is_typed(x)]
    mesh = known[0][1].mesh
    leaves, structure = jax.tree.flatten_with_path(state)
    return jax.tree.unflatten(structure, [_typed(x, tuple(map(str, path)), known, mesh) for path, x in leaves])


def _typed(x: Any, path: Sequence[str], known: Sequence[tuple[tuple[str, ...], ShType]], mesh: Mesh) -> Any:
    if is_typed(x) or not hasattr(x, "dtype"):
        return x
    x = x if hasattr(x, "shape") else np.asarray(x, x.dtype)  # a number that JAX knows the dtype of
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return x
    t = ShType(mesh, dtypes.from_numpy(x.dtype), list(x.shape), dict.fromkeys(mesh.axis_names, replicated()))
    if jnp.issubdtype(x.dtype, jnp.inexact):
        ways = [_with_dims_of(p, t) for at, p in known if _contains(path, at)]
        found = list(dict.fromkeys(way for way in ways if way is not None))
        t = found[0] if len(found) == 1 else t
    if isinstance(x, jax.core.Tracer) or not no_trace_is_running():
        return placed(x, t)
    return place(x, hi(t))


def _contains(path: Sequence[str], part: Sequence[str]) -> bool:
    return any(tuple(path[i : i + len(part)]) == part for i in range(len(path) - len(part), -1, -1))


def _with_dims_of(p: ShType, t: ShType) -> ShType | None:
    """A replicated type with the dims of a parameter's, if it has more before them, or some of them; else None."""
    more = t.ndim - p.ndim
    if more >= 0:
        ways = [(*t.dims[:more], *p.dims)] if t.shape[more:] == p.shape and p.ndim else []
    else:
        ways = [dims for dims in itertools.combinations(p.dims, t.ndim) if tuple(d.size for d in dims) == t.shape]
    if len({tuple(d.axes for d in dims) for dims in ways}) != 1:
        return t if p.shape == t.shape else None  # two dims of one size: either may be meant
    taken = {a for d in ways[0] for a in d.axes}
    states = {a: p.state(a) if more == 0 else replicated() for a in p.mesh.axis_names if a not in taken}
    return ShType(p.mesh, t.dtype_name, ways[0], states)


def like_state(new: Tree, state: Tree) -> Tree:
    """The next state in the types of the one before, so that a loop and a compiled step carry it.

    Raises:
        ShardingTypeError: one has another type, and to get from it would communicate more than a scalar.
    """
    if not _alike(new, state):
        return new
    return jax.tree.map(_kept, new, state)


def _kept(x: Any, before: Any) -> Any:
    if not is_typed(before) or (is_typed(x) and x.type == before.type):
        return x
    t = before.type
    if not is_typed(x):
        fits = getattr(x, "dtype", None) == t.dtype and np.shape(x) == t.shape
        return placed(x, t) if fits else x
    if (x.type.shape, x.type.dtype_name) != (t.shape, t.dtype_name):
        return x
    x = min((x, *versions(x, t)), key=lambda y: plan(y.type, t).bytes)
    sent = plan(x.type, t)
    if sent.communicates and not (allows_implicit() or (finishes_scalars() and t.size == 1)):
        raise ShardingTypeError(
            f"`update` gives a part of the state the type {x.type}, and it had {t}",
            why=f"to keep its type takes {sent.words}, {sent.bytes} B/device",
            hints=["sh.implicit_comm() around `update` allows it"],
        )
    judge("update", x.type, t, inserted=True)
    return move(x, t, inserted=True)


def like_values(tree: Tree, others: Tree) -> Tree:
    """Values in the types of others, where they have these for free, or may communicate."""
    return jax.tree.map(_like, tree, others) if _alike(tree, others) else tree


def like_value(x: Any, other: Any) -> Any:
    """An update in the type of its parameter.

    Raises:
        ShardingTypeError: that would communicate, and may not.
    """
    x = _like(x, other)
    if is_typed(x) and is_typed(other) and x.type.shape == other.type.shape:
        t = other.type.replace(dtype=x.type.dtype_name)
        if x.type != t:
            raise ShardingTypeError(
                f"`apply_updates` is given an update of type {x.type} for a parameter of type {other.type}",
                why="parameters keep their types, and this one would not",
                fixes=[reshard_fix(x.type, t, "update")],
                hints=["sh.implicit_comm() around the call allows it"],
            )
    return x


def _like(x: Any, other: Any) -> Any:
    if not is_typed(x) or not is_typed(other) or x.type.shape != other.type.shape:
        return x
    t = other.type.replace(dtype=x.type.dtype_name)
    if x.type == t or (plan(x.type, t).communicates and not allows_implicit()):
        return x
    judge("update", x.type, t, inserted=True)
    return move(x, t, inserted=True)


def _alike(tree: Tree, other: Tree) -> bool:
    one: Any = jax.tree.structure(tree)
    return bool(one == jax.tree.structure(other))


__all__ = ["Layout", "in_types", "layout_of", "like_state", "like_value", "like_values", "typed_state"]
