"""Prints and calls back from running programs: `print` and `callback`.

Each device prints its shard, prefixed with its mesh indices; copies are printed once. A shard goes only to its device's
host, so scopes allow it and no ledger lists it. For a global value, `shtypes.reshard` it first, which both check.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shtypes._compat import no_trace_is_running
from shtypes.context.signature_errors import check_function, refuse_unsupported
from shtypes.context.user_line import public
from shtypes.core.callbacks import AxisIndices, HostCall
from shtypes.core.callbacks import call as _call
from shtypes.dispatch.apply import as_operands, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.traced.program import split
from shtypes.types import ShType, State


@public
def print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Prints values when the program runs, as `jax.debug.print`: eagerly, in jit, in loops, under derivatives and vmap.

    Each device prints a line with its shard of each value, after its mesh indices, such as ``[dp=0, tp=1]``. Equal
    lines are printed once; a replicated value is printed once, without indices. A shard of a pending sum is printed as
    a term of its type. Lines of several devices come in any order.

    Args:
        fmt: A format string, as for `str.format`.
        *args: Positional values of the format: typed values, plain arrays, anything that prints.
        ordered: Whether lines are in program order. Eagerly they always are; in traced code only on a mesh of one
            device.
        **kwargs: Named values of the format.

    Raises:
        ShardingTypeError: the format does not fit the arguments; ``ordered`` on several devices in traced code.

    Communicates: nothing; each device sends its shard to its host. Under `vmap` there is one line for each step.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     x = sh.array([1.0, 2.0], "f32[2@x]")
        ...     sh.debug.print("x = {}", x)
        ...     sh.debug.print("{total:.1f} in all", total=sh.all_reduce(sh.sum(x)))
        ...     sh.debug.print("{}", sh.sum(x))
        [x=0] x = [1.]
        [x=1] x = [2.]
        3.0 in all
        [x=0] 1.0 (a term of f32[]{U:x})
        [x=1] 2.0 (a term of f32[]{U:x})
    """
    refuse_unsupported("print", kwargs, ("fmt", "ordered"))
    _check_format(fmt, args, kwargs)

    def show(place: AxisIndices, values: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        where = ", ".join(f"{axis}={i}" for axis, i in place.items())
        text = fmt.format(*values[0], **values[1])
        builtins.print(f"[{where}] {text}\n" if where else f"{text}\n", end="", flush=True)  # one write

    def printed(part: np.ndarray[Any, Any], t: ShType) -> Any:
        return _Term(part, t) if t.axes(State.UNREDUCED) else part[()]

    _on_each_device("debug.print", show, args, kwargs, ordered, printed)


@public
def callback(
    callback: Callable[..., Any], *args: Any, ordered: bool = False, places: bool = False, **kwargs: Any
) -> None:
    """Calls a Python function when the program runs, as `jax.debug.callback`; see `print` for where it works.

    Each device calls it with its shard of each value, a numpy array. Equal calls run once.

    Args:
        callback: The function; its result is ignored.
        *args: Typed values, plain arrays, anything else that it takes.
        ordered: As for `print`.
        places: Whether its first argument is the device's position: a dict from each mesh axis along which the values
            differ to its index.
        **kwargs: More arguments by name.

    Communicates: nothing; each device sends its shard to its host.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     x = sh.array([1.0, 2.0], "f32[2@x]")
        ...     seen = []
        ...     sh.debug.callback(lambda place, part: seen.append((place, part.tolist())), x, places=True)
        >>> seen
        [({'x': 0}, [1.0]), ({'x': 1}, [2.0])]
    """
    check_function("debug.callback", callback)
    refuse_unsupported("callback", kwargs, ("callback", "ordered", "places"))

    def run(place: AxisIndices, values: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        callback(*([dict(place)] if places else []), *values[0], **values[1])

    _on_each_device("debug.callback", run, args, kwargs, ordered, lambda part, t: part)


def _on_each_device(
    name: str,
    run: Callable[[AxisIndices, Any], None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    ordered: bool,
    of_part: Callable[[np.ndarray[Any, Any], ShType], Any],
) -> None:
    """Calls ``run(axis_indices, (args, kwargs))`` on each device, with shards for values."""
    arrays, filled = split((args, kwargs), lambda x: is_typed(x) or isinstance(x, jax.core.Tracer))

    if any(map(is_typed, arrays)):
        values, _ = as_operands(arrays)
        types = _of_one_mesh(name, values, ordered)
        _call(HostCall(name, lambda place, parts: run(place, filled(map(of_part, parts, types))), ordered), values)
    elif arrays or not no_trace_is_running():  # a plain program, or indistinguishable from one
        jax.debug.callback(lambda *parts: run({}, filled(map(np.asarray, parts))), *arrays, ordered=ordered)
    else:
        run({}, (args, kwargs))


def _of_one_mesh(name: str, values: Sequence[Any], ordered: bool) -> list[ShType]:
    """The types of the values, checked to have one mesh."""
    types = [jax.typeof(x) for x in values]
    mesh = types[0].mesh
    if any(t.mesh is not mesh for t in types):
        raise ShardingTypeError(f"`{name}` was given values over two meshes, {mesh} and {types[-1].mesh}")
    if ordered and mesh.size > 1 and any(isinstance(x, jax.core.Tracer) for x in values):
        raise ShardingTypeError(
            f"`{name}` cannot be ordered in traced code on {mesh.size} devices",
            why="each device calls its host by itself, and none waits for another",
            hints=["without ordered=: the lines of each device name its place", f"sh.{name}(...) outside of jit"],
        )
    return types


class _Term:
    """A shard of a pending sum, printed as a term of it."""

    def __init__(self, part: np.ndarray[Any, Any], t: ShType) -> None:
        self._part, self._type = part, t

    def __format__(self, spec: str) -> str:
        return f"{format(self._part[()], spec)} (a term of {self._type})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def __getitem__(self, key: Any) -> Any:
        return _Term(np.asarray(self._part[key]), self._type)


class _Anything:
    """A stand-in for a runtime value, with any attribute, item and format."""

    def __format__(self, spec: str) -> str:
        return ""

    def __getattr__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: Any) -> _Anything:
        return self


def _check_format(fmt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses a bad format while tracing: at run time the error would come from a callback."""
    if not isinstance(fmt, str):
        raise ShardingTypeError(f"`debug.print` takes a format string first, not {type(fmt).__name__}", hints=['"{}"'])
    stand_ins: Any = _Anything()
    try:
        fmt.format(*[stand_ins for _ in args], **dict.fromkeys(kwargs, stand_ins))
    except (IndexError, KeyError, ValueError) as error:
        raise ShardingTypeError(
            f"`debug.print` cannot write {len(args) + len(kwargs)} values into {fmt!r:.60}",
            why=f"there is no value named {error}" if isinstance(error, KeyError) else str(error),
        ) from None


__all__ = ["callback", "print"]


def __dir__() -> list[str]:
    return __all__
