"""Types the arrays of an optimizer's state, and keeps their types from step to step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat import no_trace_is_running
from shtypes.core.array import Array
from shtypes.core.combined_collectives import move_together
from shtypes.core.device_put import place, type_of
from shtypes.core.jax_type import as_jax_type
from shtypes.core.reshard import move
from shtypes.dispatch.apply import finished_type, is_number, is_typed
from shtypes.dispatch.casts import versions
from shtypes.errors import ShardingTypeError
from shtypes.evaluation import value_info
from shtypes.resharding import plan
from shtypes.resharding.transport import reshard_fix
from shtypes.scopes.check_comm import check_comm
from shtypes.scopes.scope_rules import allows_implicit, finishes_scalars
from shtypes.types import ShType, State, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.policy import replicated

Tree: TypeAlias = Any
Path: TypeAlias = tuple[str, ...]


def typed_state(state: Tree, params: Tree) -> Tree:
    """Types each array, number and key in the state; other leaves are unchanged.

    A plain array is sharded like the parameter whose path is in its path, in the dims that both have, such as a history
    of a parameter, with one more leading dim, or a factored moment, which lacks one.
    """
    leaves, structure = jax.tree.flatten_with_path(state)
    if all(is_typed(x) or not _is_array(x) for _, x in leaves):
        return state
    types = [(_path(path), x.type) for path, x in jax.tree.leaves_with_path(params) if is_typed(x)]
    return jax.tree.unflatten(structure, [_typed(x, _path(path), types, types[0][1].mesh) for path, x in leaves])


def _path(path: Sequence[Any]) -> Path:
    return tuple(map(str, path))


def _is_array(x: Any) -> bool:
    return hasattr(x, "dtype") or is_number(x)


def _typed(x: Any, path: Path, params: Sequence[tuple[Path, ShType]], mesh: Mesh) -> Any:
    if is_typed(x) or not _is_array(x):
        return x
    if not hasattr(x, "shape"):  # a Python number, or one with an extended dtype
        x = np.asarray(x, getattr(x, "dtype", jnp.result_type(x)))
    t = ShType(mesh, dtypes.from_numpy(x.dtype), list(x.shape), dict.fromkeys(mesh.axis_names, replicated()))
    if jnp.issubdtype(x.dtype, jnp.inexact):
        parts = {path[i:j] for i in range(len(path) + 1) for j in range(i, len(path) + 1)}
        candidates = [_with_dims_of(p, t) for at, p in params if at in parts]
        types = list(dict.fromkeys(c for c in candidates if c is not None))
        t = types[0] if len(types) == 1 else t
    return placed(x, t)


def placed(x: Any, t: ShType) -> Any:
    """Converts a plain array to a type of its shape and dtype."""
    if isinstance(x, jax.core.Tracer) or not no_trace_is_running():
        return value_info.cast_to_type(x, t)
    return place(np.asarray(x, t.dtype) if is_number(x) else x, as_jax_type(t))


def _with_dims_of(p: ShType, t: ShType) -> ShType | None:
    """``t`` with the dims of a parameter's type, if it has them after others, or some of them; else None."""
    more = t.ndim - p.ndim
    if more >= 0:
        candidates = [(*t.dims[:more], *p.dims)] if t.shape[more:] == p.shape and p.ndim else []
    else:
        candidates = [dims for dims in itertools.combinations(p.dims, t.ndim) if tuple(d.size for d in dims) == t.shape]
    if len({tuple(d.axes for d in dims) for dims in candidates}) != 1:
        return t if p.shape == t.shape else None  # dims of equal size are ambiguous
    taken = {a for d in candidates[0] for a in d.axes}
    states = {a: p.state(a) if more == 0 else replicated() for a in p.mesh.axis_names if a not in taken}
    return ShType(p.mesh, t.dtype_name, candidates[0], states)


# the next state


def first_state(state: Tree, params: Tree) -> Tree:
    """The first state, fully typed and without pending sums: it can be saved, and later states have its types."""
    return _as_before(typed_state(state, params), {}, "init")


def like_state(new: Tree, state: Tree, params: Tree) -> Tree:
    """Casts the next state to the types of the previous one, so that a loop and a compiled step carry it.

    New leaves, such as a measurement that the first step adds, are typed as in a first state. An error if a leaf has
    another shape or a wider dtype than before, or its cast would communicate more than a scalar.
    """
    before = {_path(path): x for path, x in jax.tree.leaves_with_path(state)}
    return _as_before(typed_state(new, params), before, "update")


def _as_before(state: Tree, before: Mapping[Path, Any], called: str) -> Tree:
    return jax.tree.map_with_path(lambda path, x: _leaf_as_before(x, before.get(_path(path)), path, called), state)


def _leaf_as_before(x: Any, before: Any, path: Sequence[Any], called: str) -> Any:
    if not is_typed(x):
        return x
    t = before.type if is_typed(before) else finished_type(x.type)
    if x.type == t:
        return x
    what = f"`{called}` gives the state at {jax.tree_util.keystr(tuple(path)) or 'the root'} the type {x.type}"
    what += f", and it had {t}" if is_typed(before) else ", a pending sum"
    if x.type.shape != t.shape or not _widens(x.type.dtype, t.dtype):
        raise ShardingTypeError(
            what,
            why="a state keeps its shapes and dtypes: a compiled step is traced once, and a loop carries it",
            hints=["update's gradients in the dtype of the parameters", *_first_state_in(x.type, t)],
        )
    if x.type.dtype_name != t.dtype_name:
        x = x.astype(t.dtype)
    x = min((x, *versions(x, t)), key=lambda y: plan(y.type, t).bytes)
    sent = plan(x.type, t)
    if sent.communicates and not (allows_implicit() or (finishes_scalars() and t.size == 1)):
        raise ShardingTypeError(
            what,
            why=f"to keep {t} takes {sent.words}, {sent.bytes} B/device",
            hints=[f"sh.implicit_comm() around `{called}` allows it"],
        )
    check_comm(called, x.type, t, inserted=True)
    return move(x, t, inserted=True)


def _widens(src: Any, dst: Any) -> bool:
    """Whether ``dst`` holds every value of ``src``."""
    kinds = (jnp.unsignedinteger, jnp.signedinteger, jnp.floating, jnp.complexfloating)
    same_kind = any(jnp.issubdtype(src, kind) and jnp.issubdtype(dst, kind) for kind in kinds)
    return src == dst or (same_kind and jnp.promote_types(src, dst) == dst)


def _first_state_in(wider: ShType, t: ShType) -> list[str]:
    """The hint to initialize from wider parameters, where that helps."""
    if wider.shape != t.shape or not _widens(t.dtype, wider.dtype):
        return []
    return [f'optimizer.init(jax.tree.map(lambda p: p.astype("{wider.dtype_name}"), params))']


def same_structure(tree: Tree, other: Tree) -> bool:
    """Whether two pytrees have the same structure."""
    one: Any = jax.tree.structure(tree)
    return bool(one == jax.tree.structure(other))


# layouts

#: A pytree of types or strings, a function from a type to one, or None for the values' types.
Layout = Any | Callable[[ShType], Any] | None


def layout_of(layout: Layout, params: Tree) -> list[ShType | None]:
    """The layout's type for each leaf of the parameters; None for an untyped leaf."""
    leaves, structure = jax.tree.flatten(params)
    if layout is None or callable(layout):
        specs = [(x.type if layout is None else layout(x.type)) if is_typed(x) else None for x in leaves]
    else:
        specs, other = jax.tree.flatten(layout)
        if not same_structure(layout, params):
            raise ShardingTypeError(
                f"`types` has another structure, {other}, than the parameters, {structure}",
                hints=["a function from a parameter's type to the type that is meant"],
            )
    types = [type_of(t, x.type.mesh, like=x.type) if is_typed(x) else None for x, t in zip(leaves, specs, strict=True)]
    for x, t in zip(leaves, types, strict=True):
        if t is not None and t.axes(State.UNREDUCED):
            raise ShardingTypeError(f"an optimizer's state cannot be a pending sum, as {t} is, for {x.type}")
    return types


def in_types(tree: Tree, goals: Sequence[ShType | None]) -> Tree:
    """Reshards typed values to a layout, keeping dtypes; gathers over the same axes share one collective."""
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


# updates


def like_values(tree: Tree, others: Tree) -> Tree:
    """Casts values to the types of others, where that is free or communication is allowed; types plain ones."""
    return jax.tree.map(_cast_like, tree, others) if same_structure(tree, others) else tree


def like_value(x: Any, other: Any) -> Any:
    """Casts an update to the type of its parameter, where that does not communicate or is allowed to."""
    x = _cast_like(x, other)
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


def _cast_like(x: Any, other: Any) -> Any:
    if not isinstance(other, Array) or np.shape(x) != other.type.shape:
        return x
    if not is_typed(x):
        return placed(x, other.type.replace(dtype=dtypes.from_numpy(jnp.result_type(x))))
    t = other.type.replace(dtype=x.type.dtype_name)
    if x.type == t or (plan(x.type, t).communicates and not allows_implicit()):
        return x
    check_comm("update", x.type, t, inserted=True)
    return move(x, t, inserted=True)
