"""The program that all reports are of: what `jax.jit` compiles of a function, or `sh.jit` of one that it made."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from shtypes.context.signature_errors import name_of
from shtypes.traced.gradient import is_array, split
from shtypes.traced.merging import merged


class Jitted:
    """The base of what `sh.jit` makes."""

    @property
    def merges(self) -> bool:
        """Whether its reshards are merged when it is compiled."""
        raise NotImplementedError


def is_merged(f: Any) -> bool:
    """Whether a call of a function is a program of `sh.jit`, which merges reshards; of a method or a partial too."""
    while isinstance(f, (types.MethodType, functools.partial)):
        f = f.__func__ if isinstance(f, types.MethodType) else f.func
    return isinstance(f, Jitted) and f.merges


def program_of(f: Callable[..., Any], args: Any, kwargs: Any, *, merges: bool = False) -> tuple[Any, Any]:
    """The typed program of a call as it is compiled, with its inputs in the order of the arguments, and its results.

    What is no array (numbers, texts, None) is as it is where Python runs the function.

    Args:
        f: The function.
        args: Its arguments.
        kwargs: More of them.
        merges: Whether `sh.jit` compiles it; else `jax.jit` does.

    Returns:
        The closed jaxpr, and the results as types in their tree.
    """
    arrays, again = split((args, kwargs), is_array)
    results: list[Any] = []

    def run(*values: Any) -> Any:
        args, kwargs = again(values)
        found, *results[:] = split(f(*args, **kwargs), is_array)
        return found

    run.__name__ = run.__qualname__ = name_of(f) or "f"
    program = jax.make_jaxpr(run)(*arrays)
    return merged(program) if merges else program, results[0](program.out_avals)
