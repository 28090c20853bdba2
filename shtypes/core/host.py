"""Conversions between host arrays and typed values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np

from shtypes.context.user_line import placed
from shtypes.core.call_expressions import expressions_of
from shtypes.core.jax_context import suggest_when_read
from shtypes.errors import ShardingTypeError, quoted
from shtypes.rules.typing import Typing
from shtypes.types import ShType, State, dtypes

# to the host

#: Callbacks for reads of a typed value's data.
READ: Final[list[Callable[[], None]]] = []


def host_value(x: Any, read_by: str) -> np.ndarray[Any, Any]:
    """The global value of a typed value on the host; an error, for the user's call ``read_by``, if no value is there.

    That is if it is traced, abstract, unreduced or varying, or partly on devices of another process.
    """
    try:
        return np.asarray(readable(x))
    except ShardingTypeError as error:
        error.expressions = expressions_of(read_by.rpartition(".")[2], (x,), {})
        raise placed(error, f"{read_by}({x.type})") from None


def readable(x: Any) -> Any:
    """The physical array of a typed value, if this process can read all of it."""
    t = x.type
    for callback in READ:
        callback()
    if x.data is None:
        raise without_data(t)
    refuse_hidden(t, "be read on the host")
    if dtypes.is_key(t.dtype_name):
        raise ShardingTypeError(f"{t} cannot be read on the host: numpy has no keys", hints=["sh.random.key_data(x)"])
    return addressable_array(x)


def without_data(t: ShType) -> ShardingTypeError:
    """The error for reading the data of an abstract value."""
    return ShardingTypeError(f"a value that has only a type, {t}, has no data")


def addressable_array(x: Any) -> Any:
    """The physical array of a typed value with data; refused if partly on another process."""
    if not (x.data.is_fully_addressable or x.data.is_fully_replicated):
        raise ShardingTypeError(
            f"{x.type} cannot be read on the host: a part of it is on devices of another process",
            why="each process reads its own devices only",
            hints=[
                "sh.reshard(x, type) to a replicated type first, in all processes",
                "x.to_jax().addressable_shards has the parts of this process",
            ],
        )
    return x.data


def refuse_hidden(t: ShType, what: str, *, returns: bool = False) -> None:
    """Refuses a type whose physical array is not the global value; ``returns`` says whether a cotangent comes back."""
    unreduced, varying = t.axes(State.UNREDUCED), t.axes(State.VARYING)
    if unreduced:
        error = ShardingTypeError(
            f"{t} cannot {what}: it is unreduced over {quoted(unreduced)}",
            why="each device holds one term of a sum that is still pending",
        )
        raise suggest_when_read(error, functools.partial(_finished, returns), (t,))
    if varying:
        raise ShardingTypeError(
            f"{t} cannot {what}: it varies over {quoted(varying)}",
            why="each device holds a value of its own, and none of them is the value",
        )


def _finished(returns: bool, types: tuple[ShType, ...]) -> Typing:
    """A rule that refuses pending sums, which cannot be read; as a plain array, a reduced value is invariant."""
    pending = types[0].axes(State.UNREDUCED)
    if pending:
        raise ShardingTypeError("a sum is pending", axes=pending)
    plain = (types[0].with_axes(types[0].axes(State.REDUCED), State.INVARIANT),)
    return Typing(plain, plain) if returns else Typing(types, plain, frozenset({0}))


# from the host


def host_array(x: Any) -> np.ndarray[Any, Any]:
    """A user's host array: numbers, lists of them, numpy arrays; may share the user's memory."""
    try:
        array = np.asarray(x)
    except ValueError as error:  # ragged nested lists
        raise _no_array(x, str(error).split(". ")[0]) from None
    if array.dtype.kind in "OSTUMm":
        raise _no_array(x, f"numpy makes an array of dtype `{array.dtype}` of it")
    return array


def _no_array(x: Any, why: str) -> ShardingTypeError:
    trees = isinstance(x, (dict, list, tuple)) and any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(x))
    hints = ["jax.tree.map(sh.array, tree, types) for a tree of arrays"] if trees else []
    what = "None" if x is None else f"the {type(x).__name__} {x!r:.60}"
    return ShardingTypeError(f"an array or a number was expected, not {what}", why=why, hints=hints)


def canonical(dtype: Any) -> Any:
    """JAX's dtype for a numpy dtype: 64 bits only in x64 mode."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _kind(name: str) -> str:
    """``b``, ``i``, ``f``, ``c`` or ``k``: bools, integers, floats, complex numbers, keys."""
    return (
        "k" if dtypes.is_key(name) else "b" if name == "bool" else "f" if name == "bf16" else name[0].replace("u", "i")
    )


def converted(host: Any, src_dtype: str, t: ShType) -> Any:
    """A copy of host data in a type's dtype: rounded if necessary, but never truncated.

    Always a copy, because CPU devices may alias memory that loaders reuse.
    """
    if src_dtype == t.dtype_name and (dtypes.is_key(src_dtype) or host.dtype == t.dtype):  # same byte order
        return host if isinstance(host, jax.Array) else np.array(host)
    src, dst = "bifck".index(_kind(src_dtype)), "bifck".index(_kind(t.dtype_name))
    out = host.astype(t.dtype) if src <= dst < 4 else None
    if out is None or (src == dst == 1 and not bool((out == host).all())):
        raise ShardingTypeError(
            f"an array of dtype `{src_dtype}` cannot become {t}",
            why="that would lose its values",
            hints=["x.astype(...) first"],
        )
    return out


def check_width(t: ShType) -> None:
    """Refuses 64-bit data if JAX does not support it."""
    if not dtypes.is_key(t.dtype_name) and canonical(t.dtype) != t.dtype:
        raise ShardingTypeError(
            f"JAX makes no `{t.dtype_name}` data here",
            why=f"x64 mode is off, and there it makes `{dtypes.from_numpy(canonical(t.dtype))}` of it",
            hints=['jax.config.update("jax_enable_x64", True)'],
        )


def put(host: Any, t: ShType, sharding: Any) -> Any:
    """Puts each device's shard of host data on it; an error if the processes of a program pass different data."""
    try:
        return jax.device_put(host, sharding)
    except AssertionError:  # JAX compares the data of the processes
        raise ShardingTypeError(
            f"the processes give different data for one value of type {t}",
            why="each process gives the whole global value, and the same one",
            hints=["sh.array_from_process(part, type), where each process has its own part"],
        ) from None
