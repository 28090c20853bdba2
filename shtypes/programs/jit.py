"""`jit`: one region (one `jax.shard_map`) for a typed program, and calls as fast as those of plain arrays.

A call passes the physical arrays to a `jax.jit` of plain arrays, so that JAX's fast path runs it. JAX's trace cache has
mesh, policy and configuration in its key; the cache here has structure, types and static arguments.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar, get_args, overload

import jax
from jax.tree_util import tree_flatten

from shtypes._compat import JAX_ERRORS, no_trace_is_running
from shtypes._compat.jaxprs import jaxpr_of
from shtypes.caches import PROGRAMS, Bounded
from shtypes.context import settings
from shtypes.context.settings import Settings, current, current_settings
from shtypes.context.signature_errors import check_function, name_of, parameters, refuse_unknown
from shtypes.context.user_line import refuse
from shtypes.core.array import Array
from shtypes.core.checks import raise_failures
from shtypes.core.jax_type import HiShType
from shtypes.core.region_plan import UnsupportedError
from shtypes.errors import ShardingTypeError
from shtypes.programs.program import Indices, Names, Program, Roles
from shtypes.programs.stages import Lowered, Traced
from shtypes.scopes.comm import open_trackers
from shtypes.traced.comm_tracker import counted
from shtypes.traced.program import Jitted

P = ParamSpec("P")
T = TypeVar("T")
Region = Literal["auto", "off", "require"]


def set_region(mode: Region) -> None:
    """Sets how `jit` lowers programs without a ``region`` argument.

    Args:
        mode: ``"auto"``: in one region, or in several if operations of JAX on global arrays are between. ``"off"``:
            each operation by itself, as under `jax.jit`. ``"require"``: more than one region is an error.
    """
    settings.set_base(settings.outermost()._replace(region=_checked_mode(mode)))


def _checked_mode(mode: Any) -> Region:
    if mode not in get_args(Region):
        raise ShardingTypeError(f"there is no region mode {mode!r}; it is {', '.join(map(repr, get_args(Region)))}")
    region: Region = mode
    return region


class JitFunction(Jitted, Generic[P, T]):
    """A function compiled by `jit`, with the methods of one of `jax.jit`."""

    __name__: str

    def __init__(
        self, f: Callable[P, T], region: Region | None, roles: dict[str, Any], options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, f)
        self.__wrapped__, self.__name__ = f, name_of(f) or "f"
        self._roles, self._role_options = Roles(f, **roles), roles
        self._jax_jit: Any = jax.jit(f, **roles, **options)
        self._options = {k: v for k, v in options.items() if k in ("keep_unused", "compiler_options")}
        self._has_sharding_options = "in_shardings" in options or "out_shardings" in options
        self._region = region
        self._programs: Bounded[Program] = Bounded(PROGRAMS)
        self._last: Program | None = None
        #: The program and settings of the last call, if it ran without scopes, checks and static arguments.
        self._fast_path: tuple[Program | None, Settings | None] = None, None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the function."""
        program, last_settings = self._fast_path
        if program is not None and last_settings is current.value and no_trace_is_running() and not program.left_to_jax:
            data = program.physical_arrays((args, kwargs))
            if data is not None:
                try:
                    out: T = program(data)
                except UnsupportedError as why:
                    program.leave_to_jax(why)
                else:
                    return out
        try:
            if not no_trace_is_running():  # the outermost jit makes the region
                results: T = self._jax_jit(*args, **kwargs)
                return results
            if not open_trackers():
                return self._run(args, kwargs)
            with counted() as count:  # each call is counted
                count(self._jax_jit.trace(*args, **kwargs).jaxpr)
                return self._run(args, kwargs)
        except JAX_ERRORS as error:
            refuse(error, self.__wrapped__, args, kwargs, self.__name__)
            raise

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        program, data = self._program(args, kwargs)
        if program.left_to_jax:
            results: T = self._jax_jit(*args, **kwargs)
            return results
        try:
            results = program(data)
        except UnsupportedError as why:
            program.leave_to_jax(why)
            results = self._jax_jit(*args, **kwargs)
        settings_now = current.value
        if settings_now.checks:
            raise_failures()
        slow = settings_now.scopes or settings_now.checks or self._roles.any_static or program.left_to_jax
        self._fast_path = (None, None) if slow else (program, settings_now)
        return results

    @property
    def merges(self) -> bool:
        """Whether its reshards are merged; not in mode ``"off"``."""
        return (self._region or current_settings().region) != "off"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<sh.jit of {self.__wrapped__!r}>"

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Traced:
        """Traces the function for these arguments, which may be typed values without data."""
        try:
            program, data = self._program(args, kwargs)
            with counted() as count:
                traced = self._jax_jit.trace(*args, **kwargs)
                count(traced.jaxpr)
        except JAX_ERRORS as error:
            refuse(error, self.__wrapped__, args, kwargs, self.__name__)
            raise
        return Traced(program, traced, data)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Lowers the function for these arguments: ``.trace(...).lower()``."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The results as typed values without data, and JAX's shapes for plain arrays."""
        structs: T = self.trace(*args, **kwargs).out_info
        return structs

    def clear_cache(self) -> None:
        """Clears all traces and compilations."""
        self._programs.clear()
        self._last, self._fast_path = None, (None, None)
        self._jax_jit.clear_cache()

    def _program(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Program, list[Any]]:
        """The program for a call, and its physical and plain arrays."""
        static: tuple[Any, ...] = ()
        dynamic = (args, kwargs)
        if self._roles.any_static:
            dynamic, static = self._roles.split(args, kwargs)
        mode: Any = self._region or current_settings().region
        last = self._last
        if last is not None and mode == last.mode and static == last.static:
            physical_arrays = last.physical_arrays(dynamic)
            if physical_arrays is not None:
                return last, physical_arrays
        leaves, tree = tree_flatten(dynamic)
        try:  # most calls have typed leaves only
            leaf_types = [x.type for x in leaves]
            data = [x.data for x in leaves]
        except AttributeError:
            leaf_types, data = _types_and_data(leaves)
        if last is not None and last.matches(tree, leaf_types, static, mode):
            return last, data
        if not {*map(type, leaf_types)} <= {HiShType, type(None)}:  # leaves of other classes with `type` and `data`
            leaf_types, data = _types_and_data(leaves)
        if any(t is None and not _is_jax_array(x) for x, t in zip(leaves, leaf_types, strict=True)):
            self._jax_jit.trace(*args, **kwargs)  # raises JAX's error for what is no array
        try:
            program = self._program_for(tree, leaf_types, static, mode)
        except TypeError:
            self._jax_jit.trace(*args, **kwargs)  # raises JAX's error for an unhashable static argument
            raise
        if self._has_sharding_options and not program.left_to_jax:
            self._check_shardings(program, args, kwargs)
        self._last = program
        return program, data

    def _program_for(self, tree: Any, leaf_types: list[Any], static: tuple[Any, ...], mode: Region) -> Program:
        """The cached or a new program for a structure and types."""
        key = (tree, tuple(None if t is None else t.uid for t in leaf_types), static, mode)
        program = self._programs.get(key)
        if program is None:
            new = Program(self.__wrapped__, self._jax_jit, self._roles, self._options, tree, leaf_types, static, mode)
            program = self._programs.put(key, new)
        return program

    def _check_shardings(self, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuses ``in_shardings`` and ``out_shardings`` of typed values; leaves plain programs to JAX."""
        traced = jax.jit(self.__wrapped__, **self._role_options).trace(*args, **kwargs)
        results = [v.aval for v in jaxpr_of(traced.jaxpr).outvars]
        typed = next((t for t in (*program.leaf_types, *results) if type(t) is HiShType), None)
        if typed is None:
            program.left_to_jax = True
        else:
            typed.refuse_sharding(True)


def _types_and_data(leaves: list[Any]) -> tuple[list[HiShType | None], list[Any]]:
    """The type of each leaf, None if it is plain, and its array; None for a type, which is a value without data."""
    data = [x.data if type(x) is Array else None if type(x) is HiShType else x for x in leaves]
    return [x.type if type(x) is Array else x if type(x) is HiShType else None for x in leaves], data


def _is_jax_array(x: Any) -> bool:
    """Whether a leaf is an array to JAX, or a `ShapeDtypeStruct`."""
    try:
        jax.typeof(x)
    except TypeError:
        return isinstance(x, jax.ShapeDtypeStruct)
    return True


_OPTIONS: Final = parameters(jax.jit, 1)


@overload
def jit(
    f: Callable[P, T],
    /,
    *,
    static_argnums: Indices = None,
    static_argnames: Names = None,
    donate_argnums: Indices = None,
    donate_argnames: Names = None,
    region: Region | None = None,
    **options: Any,
) -> JitFunction[P, T]: ...
@overload
def jit(
    f: None = None,
    /,
    *,
    static_argnums: Indices = None,
    static_argnames: Names = None,
    donate_argnums: Indices = None,
    donate_argnames: Names = None,
    region: Region | None = None,
    **options: Any,
) -> Callable[[Callable[P, T]], JitFunction[P, T]]: ...
def jit(
    f: Callable[..., Any] | None = None,
    /,
    *,
    static_argnums: Indices = None,
    static_argnames: Names = None,
    donate_argnums: Indices = None,
    donate_argnames: Names = None,
    region: Region | None = None,
    **options: Any,
) -> Any:
    """`jax.jit` for typed functions: one region for the program, and calls as fast as those of plain arrays.

    Under another transformation (`jax.grad`, `jax.vmap`, another `jit`) it is `jax.jit`, and the outermost `jit` makes
    the region. A program that no region can contain is lowered op by op, as `jax.jit` does.

    Args:
        f: The function. Without it, a decorator is returned.
        static_argnums: The positions of arguments that are compile-time constants.
        static_argnames: Their names.
        donate_argnums: The positions of arguments whose memory may be reused for results.
        donate_argnames: Their names.
        region: The mode of `set_region`, for this function.
        **options: Options of `jax.jit`: ``keep_unused``, ``inline``, ``compiler_options``, …. Its ``in_shardings`` and
            ``out_shardings`` are for functions without typed values.

    Returns:
        The compiled function, with ``.trace``, ``.lower``, ``.eval_shape`` and ``.clear_cache``.

    Raises:
        ShardingTypeError: with ``region="require"``, the program needs more than one region; shardings are passed for
            typed values.
    """
    roles = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    refuse_unknown("jit", options, _OPTIONS)
    mode = None if region is None else _checked_mode(region)
    jax_options = {k: v for k, v in options.items() if v is not None}

    def decorate(function: Callable[P, T]) -> JitFunction[P, T]:
        check_function("jit", function)
        return JitFunction(function, mode, roles, jax_options)

    return decorate if f is None else decorate(f)
