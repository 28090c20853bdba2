"""An optimizer's state: every array in it is typed when it is made, and keeps its type for ever."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat import no_trace_is_running
from shtypes.core.device_put import place
from shtypes.core.jax_type import as_jax_type
from shtypes.core.reshard import move
from shtypes.dispatch.apply import finished_type, is_number, is_typed, versions
from shtypes.errors import ShardingTypeError
from shtypes.evaluation import branch_types
from shtypes.resharding import plan
from shtypes.scopes.comm import allows_implicit, finishes_scalars
from shtypes.scopes.judging import judge
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.policy import replicated

Tree: TypeAlias = Any
Path: TypeAlias = tuple[str, ...]


def typed_state(state: Tree, params: Tree) -> Tree:
    """The state with each array, number and key in it typed; what is none of these stays as it is.

    A plain array lies like the parameter whose path its own path contains: in the dims that it has of it. So a history
    of a parameter, with one dim before the parameter's, is sharded as that is, and a factored moment, which lacks one.
    """
    leaves, structure = jax.tree.flatten_with_path(state)
    if all(is_typed(x) or not _is_array(x) for _, x in leaves):
        return state
    known = [(_path(path), x.type) for path, x in jax.tree.leaves_with_path(params) if is_typed(x)]
    return jax.tree.unflatten(structure, [_typed(x, _path(path), known, known[0][1].mesh) for path, x in leaves])


def _path(path: Sequence[Any]) -> Path:
    return tuple(map(str, path))


def _is_array(x: Any) -> bool:
    return hasattr(x, "dtype") or is_number(x)


def _typed(x: Any, path: Path, known: Sequence[tuple[Path, ShType]], mesh: Mesh) -> Any:
    if is_typed(x) or not _is_array(x):
        return x
    if not hasattr(x, "shape"):  # a Python number, or one that JAX knows the dtype of
        x = np.asarray(x, getattr(x, "dtype", jnp.result_type(x)))
    t = ShType(mesh, dtypes.from_numpy(x.dtype), list(x.shape), dict.fromkeys(mesh.axis_names, replicated()))
    if jnp.issubdtype(x.dtype, jnp.inexact):
        ways = [_with_dims_of(p, t) for at, p in known if _contains(path, at)]
        found = list(dict.fromkeys(way for way in ways if way is not None))
        t = found[0] if len(found) == 1 else t
    return placed(x, t)


def placed(x: Any, t: ShType) -> Any:
    """A plain array in a type of its shape and dtype."""
    if isinstance(x, jax.core.Tracer) or not no_trace_is_running():
        return branch_types.placed(x, t)
    return place(np.asarray(x, t.dtype) if is_number(x) else x, as_jax_type(t))


def _contains(path: Path, part: Path) -> bool:
    return any(path[i : i + len(part)] == part for i in range(len(path) - len(part), -1, -1))


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


# the next state


def first_state(state: Tree, params: Tree) -> Tree:
    """A first state in which all is typed and no sum is pending: it can be saved, and is what later ones are like.

    Raises:
        ShardingTypeError: to finish a sum would communicate more than a scalar.
    """
    return _like(typed_state(state, params), {}, "init")


def like_state(new: Tree, state: Tree, params: Tree) -> Tree:
    """The next state in the types of the one before, so that a loop and a compiled step carry it.

    What the one before has not, as a measurement that the first step adds, is typed as in a first state.

    Raises:
        ShardingTypeError: a part has another shape or a wider dtype than before, or to give it its type would
            communicate more than a scalar.
    """
    before = {_path(path): x for path, x in jax.tree.leaves_with_path(state)}
    return _like(typed_state(new, params), before, "update")


def _like(state: Tree, before: Mapping[Path, Any], called: str) -> Tree:
    leaves, structure = jax.tree.flatten_with_path(state)
    return jax.tree.unflatten(structure, [_kept(x, before.get(_path(path)), path, called) for path, x in leaves])


def _kept(x: Any, before: Any, path: Sequence[Any], called: str) -> Any:
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
    judge(called, x.type, t, inserted=True)
    return move(x, t, inserted=True)


def _widens(src: Any, dst: Any) -> bool:
    """Whether each value of a dtype is one of another."""
    kinds = (jnp.unsignedinteger, jnp.signedinteger, jnp.floating, jnp.complexfloating)
    alike = any(jnp.issubdtype(src, kind) and jnp.issubdtype(dst, kind) for kind in kinds)
    return src == dst or (alike and jnp.promote_types(src, dst) == dst)


def _first_state_in(wider: ShType, t: ShType) -> list[str]:
    """The hint to start from wider parameters, where that is what is missing."""
    if wider.shape != t.shape or not _widens(t.dtype, wider.dtype):
        return []
    return [f'optimizer.init(jax.tree.map(lambda p: p.astype("{wider.dtype_name}"), params))']


__all__ = ["first_state", "like_state", "placed", "typed_state"]
