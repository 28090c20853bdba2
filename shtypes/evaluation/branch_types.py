"""Where plain and typed values meet in one place: carries, results of branches, tangents and cotangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shtypes._compat.local_axes import struct
from shtypes.core.conversion import convert
from shtypes.core.reshard import move
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.value_info import is_constant, typed_constant
from shtypes.resharding import plan
from shtypes.resharding.join import join
from shtypes.scopes.check_comm import check_comm
from shtypes.types import ShType
from shtypes.types.mesh import Mesh, context


def type_of(x: Any) -> ShType | None:
    """The sharding type of a value; None of a plain one."""
    return x.type if is_typed(x) else None


def mesh_of(xs: Sequence[Any]) -> Mesh | None:
    """The mesh of typed values among others; that of the context where none is typed."""
    return next((x.type.mesh for x in xs if is_typed(x)), None) or context()


def aval_of(x: Any, like: Any = None) -> Any:
    """What stands for a value in the trace of a plain program: its global shape and dtype.

    Args:
        x: The value.
        like: JAX's type of the value in a program around, if it was in one.
    """
    if is_typed(x):
        return struct(x.type.shape, x.type.dtype, x.type, like=like)
    aval = jax.typeof(x)
    return struct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False), like=like)


def of_some(f: Callable[[list[Any]], Any], xs: Sequence[Any], chosen: Sequence[int]) -> Callable[..., Any]:
    """A function of all of ``xs`` as one of those that are chosen, by their places; the others are held."""

    def of_chosen(*some: Any) -> Any:
        full = list(xs)
        for i, x in zip(chosen, some, strict=True):
            full[i] = x
        return f(full)

    return of_chosen


def placed(x: Any, t: ShType, name: str = "placed") -> Any:
    """A plain or typed value in a type."""
    if is_typed(x):
        if x.type == t:
            return x
        check_comm(name, x.type, t, inserted=True)
        return move(x, t, inserted=True)
    if is_constant(x):
        return move(typed_constant(jnp.asarray(x, t.dtype), t.mesh), t, inserted=True, constant=True)
    return move(convert(x, mesh=t.mesh), t, inserted=True)


def is_free(src: ShType, dst: ShType) -> bool:
    """Whether a value gets from one type to another without communication, forward and backward."""
    if (src.mesh, src.shape, src.dtype_name) != (dst.mesh, dst.shape, dst.dtype_name):
        return False
    try:
        there = plan(src, dst)
        back = plan(dst.cotangent(), src.cotangent()) if src.differentiable else there
    except ShardingTypeError:
        return False
    return not there.bytes and not back.bytes


def joined(types: list[ShType | None]) -> ShType | None:
    """The type that values in one place can have for free; the first typed one where there is none; None if plain."""
    typed = [t for t in types if t is not None]
    if not typed or all(t == typed[0] for t in typed):
        return typed[0] if typed else None
    try:
        return join(typed)
    except ShardingTypeError:
        return next((t for t in typed if all(is_free(s, t) for s in typed)), typed[0])
