"""Where control flow joins values: the types of a carry, of a loop's start and of the results of branches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat.tracing import arguments_of
from shtypes.ops.dispatch import constant, constant_of, is_number, is_typed
from shtypes.primitives.moving import move
from shtypes.types import REPLICATED, ShType, State


class TypesDiffer(Exception):  # noqa: N818  # a signal, not an error
    """Leaves the trace of a body whose types differ; ``types`` are the joined ones, leaf by leaf, None for plain.

    One that is raised for a loop around names it.
    """

    def __init__(self, types: list[ShType | None], loop: OpenLoop | None = None) -> None:
        self.types, self.loop = types, loop


class OpenLoop:
    """A loop whose body is being traced: the leaves of its carry in the body, and of what it starts from."""

    def __init__(self, carry: list[Any], starts: list[Any]) -> None:
        self.carry, self.starts = carry, starts


class _Thread(threading.local):
    """The loops whose bodies this thread is tracing, outermost first."""

    def __init__(self) -> None:
        self.loops: list[OpenLoop] = []


_thread: Final = _Thread()


@contextlib.contextmanager
def tracing_body(loop: OpenLoop) -> Iterator[None]:
    """Around the body of a loop."""
    _thread.loops.append(loop)
    try:
        yield
    finally:
        _thread.loops.pop()


def start_otherwise(x: Any, t: ShType) -> None:
    """Has a loop around start its carry so that ``x``, which is made of nothing else, can have a type for free.

    What it is made of starts in that type where it can, else it varies where that does.

    Raises:
        TypesDiffer: there is one, whose carry starts as a constant.
    """
    made_of = arguments_of(x)
    for loop in reversed(_thread.loops):
        places = {id(leaf): i for i, leaf in enumerate(loop.carry)}
        if not made_of or any(id(v) not in places for v in made_of):
            continue
        types = leaf_types(loop.carry)
        for i in (places[id(v)] for v in made_of):
            for goal in (t, _varying_as(types[i], t)):
                if goal is not None and goal != types[i] and becomes(loop.starts[i], goal):
                    types[i] = goal
                    break
        if types != leaf_types(loop.carry):
            raise TypesDiffer(types, loop)


def _varying_as(own: ShType | None, t: ShType) -> ShType | None:
    """A type, varying where ``t`` does."""
    return None if own is None else own.with_axes(t.axes(State.VARYING), State.VARYING)


def leaf_types(tree: Any) -> list[ShType | None]:
    """The sharding types of the leaves; None for plain ones."""
    return [jax.typeof(leaf) if is_typed(leaf) else None for leaf in jax.tree.leaves(tree)]


def types_differ(a: ShType | None, b: ShType | None) -> bool:
    """Whether two leaves have different types; plain ones have none."""
    return a != b and (a is not None or b is not None)


def can_reshard(src: ShType, dst: ShType) -> bool:
    """Whether `implicit_comm` may take a value from one type to another."""
    same = src.mesh is dst.mesh and src.shape == dst.shape and src.dtype_name == dst.dtype_name
    return same and State.VARYING not in (*src.states, *dst.states)


def is_constant(x: Any) -> bool:
    """Whether no gradient comes back to a value, so that its casts from a replicated state are free."""
    return arguments_of(x) == [] or (is_typed(x) and not x.type.differentiable)


def becomes(x: Any, t: ShType) -> bool:
    """Whether a constant can have a type for free: it is replicated, or plain, where the type says something else."""
    if not is_constant(x):
        return False
    if not is_typed(x):
        weak = is_number(x) or getattr(x, "weak_type", False)
        same = weak or np.dtype(x.dtype) == t.dtype if hasattr(x, "dtype") and not _is_key(x) else is_number(x)
        return jnp.shape(x) == t.shape and same
    own = x.type
    if own.mesh is not t.mesh or own.shape != t.shape or own.dtype_name != t.dtype_name:
        return False
    kept = all(d.axes == e.axes[: len(d.axes)] for d, e in zip(own.dims, t.dims, strict=True))
    return kept and all(s in REPLICATED or s is o for s, o in zip(own.states, t.states, strict=True))


def _is_key(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.extended))


def cast_leaves(tree: Any, types: Sequence[ShType | None]) -> Any:
    """The tree with its leaves cast to these types; None leaves one as it is."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [x if t is None else _cast(x, t) for x, t in zip(leaves, types, strict=True)])


def _cast(x: Any, t: ShType) -> Any:
    if not is_typed(x):
        x = jnp.asarray(x, t.dtype)
        x = constant_of(x, t.mesh) if isinstance(x, jax.core.Tracer) else constant(x, t.mesh)
    return x if x.type == t else move(x, t, inserted=True, constant=is_constant(x))
