"""The user's line: the innermost one outside shtypes, JAX and installed libraries."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, Final, ParamSpec, TypeGuard, TypeVar

from shtypes.context.eqn_source import eqn_source, plain_trace
from shtypes.context.frames import PROGRAMS, Owner, called_in, frames, owner_of_file, owner_of_frame
from shtypes.context.signature_errors import (
    argument_error,
    dim_by_name_error,
    internal_error,
    jax_error,
    signature_error,
)
from shtypes.errors import NoMeshError, ShardingTypeError

P = ParamSpec("P")
T = TypeVar("T")


def user_line() -> str:
    """The user's line that called into shtypes, as ``file.py:12 in loss``, or empty.

    A call through an installed library also names its function: ``train.py:9 in step (in optax.update)``.
    """
    source = eqn_source()
    if source is None:
        return _calling_line()
    line = source.line or _calling_line().partition(" (in ")[0]
    return f"{line} (in {source.library})" if line and source.library else line


def _calling_line() -> str:
    library: FrameType | None = None
    inmost = ""
    for frame in frames(1):
        kind = owner_of_frame(frame)
        if kind is Owner.USERS:
            return _line_text(frame, frame.f_lineno) + _library_suffix(library)
        if kind is Owner.INSTALLED:
            inmost = inmost or _line_text(frame, frame.f_lineno)
            library = frame
    return inmost


def calling_library(running: Iterable[FrameType] | None = None) -> FrameType | None:
    """The frame of the installed library's function that the user's line called, and that called shtypes or JAX.

    ``running`` are the frames to search, innermost first; by default those that run.
    """
    running = frames(1) if running is None else running
    inside = itertools.takewhile(lambda frame: owner_of_frame(frame) is not Owner.USERS, running)
    library = [frame for frame in inside if owner_of_frame(frame) is Owner.INSTALLED]
    return library[-1] if library else None


def is_users_call() -> bool:
    """Whether a line of the user's code is running."""
    return any(owner_of_frame(frame) is Owner.USERS for frame in frames(1))


def frames_of_call() -> list[FrameType]:
    """The frames between the caller and the user's or a library's line, outermost first."""
    return list(_inside(frames(2)))[::-1]


def _inside(running: Iterable[FrameType]) -> Iterator[FrameType]:
    """The frames inside the innermost one of the user or an installed library."""
    return itertools.takewhile(lambda frame: owner_of_frame(frame) not in (Owner.USERS, Owner.INSTALLED), running)


def line_of(traceback: TracebackType | None) -> str:
    """The user's line in a traceback, formatted as by `user_line`, or empty."""
    outer = inmost = ""
    library: FrameType | None = None
    while traceback is not None:
        frame, line = traceback.tb_frame, traceback.tb_lineno
        kind = owner_of_frame(frame)
        if kind is Owner.USERS:
            outer, library = _line_text(frame, line), None
        elif kind is Owner.INSTALLED:
            inmost, library = _line_text(frame, line), library or frame
        traceback = traceback.tb_next
    return outer + _library_suffix(library) if outer else inmost


def _line_text(frame: FrameType, line: int) -> str:
    function = frame.f_code.co_name
    place = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
    return place if function == "<module>" else f"{place} in {function}"


def _library_suffix(library: FrameType | None) -> str:
    return f" (in {called_in(library)})" if library is not None else ""


def placed(error: ShardingTypeError, call: str) -> ShardingTypeError:
    """Adds the user's line and the call to an error, unless it has one, in place."""
    if not error.placed:
        line, called = user_line(), _called()
        call = f"{called}, by {call}" if called else call
        place = f"{line}: {call}" if line else call
        error.where = f"{place}\n{error.where}" if error.where else place
        error.placed = True
    return error


def _called() -> str:
    """The op that the user called, if an op inside it fails; else empty."""
    source = eqn_source()
    if source is not None:
        return source.called
    called = (frame.f_locals["fn"] for frame in _inside(frames(2)) if frame.f_code is _PUBLIC_CALL)
    names = [fn.__name__ for fn in called if not _takes_programs(fn)]
    return names[-1] if names and names[-1] != names[0] else ""


#: The classes of errors that Python, numpy and JAX raise about arguments; not those of devices and value checks.
ARGUMENT_ERRORS: Final = (
    *(TypeError, ValueError, NotImplementedError, OverflowError),
    *(ZeroDivisionError, LookupError, AttributeError, AssertionError),
)


def public(fn: Callable[P, T]) -> Callable[P, T]:
    """Decorates a public function so that its errors name the user's line.

    Errors of Python and JAX inside it are converted to errors about its arguments, unless the user's functions raise
    them, or code that transforms programs already traced (`PROGRAMS`).
    """

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if plain_trace.depth:
            result = _without_mesh(call, args, kwargs, needs_mesh=False)
            if result is not None:
                return result  # type: ignore[no-any-return]
        try:
            return fn(*args, **kwargs)
        except NoMeshError as error:
            result = _without_mesh(call, args, kwargs, needs_mesh=True)
            if result is not None:
                return result  # type: ignore[no-any-return]
            raise placed(error, fn.__name__) from None
        except ShardingTypeError as error:
            by_name = dim_by_name_error(_display_name(fn), fn, args, kwargs)
            if by_name is not None:
                raise placed(by_name, _display_name(fn)) from None
            if error.operands is not None or error.may_have_fixes:
                _rewrite_error(error, fn, args, kwargs)
            raise placed(error, _display_name(fn)) from error.__cause__
        except ARGUMENT_ERRORS as error:
            on_purpose = type(error) is AssertionError and _raising(error) is fn.__code__  # as `assert_comm` does
            if not on_purpose:
                refuse(error, fn, args, kwargs)
            raise

    return call


def refuse(error: Exception, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = "") -> None:
    """Converts and raises an error of Python or JAX about a call's arguments; returns if the user's code raised it."""
    name = name or _display_name(fn)
    if _is_signature_error(error):
        raise placed(signature_error(name, fn, error), name) from None
    if isinstance(error, ShardingTypeError) or line_of(error.__traceback__):
        return
    if any(each.tb_frame.f_code.co_filename.startswith(PROGRAMS) for each in frames_through(error)):
        raise placed(internal_error(name, error), name) from error
    by_name = dim_by_name_error(name, fn, args, kwargs)
    raise placed(by_name or argument_error(name, fn, args, kwargs, error), name) from shortened(error)


def _display_name(fn: Any) -> str:
    """The name of a function in messages; the class for ``__init__`` and ``__call__``."""
    return str(fn.__qualname__.split(".")[-2] if fn.__name__ in ("__init__", "__call__") else fn.__name__)


def shortened(error: Exception) -> Exception:
    """Removes frames of JAX and shtypes from an error's traceback, in place, for use as the cause of another."""
    rest = None
    for each in reversed(frames_through(error)):
        if owner_of_frame(each.tb_frame) in (Owner.USERS, Owner.INSTALLED):
            rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return error.with_traceback(rest)


def named(
    fn: Callable[P, T], name: str, doc: str, module: str = "", signature: inspect.Signature | None = None
) -> Callable[P, T]:
    """Sets the name, docstring and signature of a generated function."""
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    fn.__module__ = module or fn.__module__
    if signature is not None:
        fn.__signature__ = signature  # type: ignore[attr-defined]  # for `inspect.signature`
    return fn


#: Functions that pass a call's arguments on unchanged.
_FORWARDING: Final = frozenset({"public.<locals>.call", "cached_eagerly.<locals>.call", "maker.<locals>.make"})


def _is_signature_error(error: Exception) -> TypeGuard[TypeError]:
    """Whether a `TypeError` is Python's about the arguments of a call of ours."""
    # An error with notes is JAX's, which has removed its frames.
    code = _raising(error) if isinstance(error, TypeError) and not hasattr(error, "__notes__") else None
    return code is not None and code.co_qualname in _FORWARDING and owner_of_file(code.co_filename) is Owner.OURS


def _raising(error: Exception) -> CodeType | None:
    """The code of the function that raised an error."""
    return next((each.tb_frame.f_code for each in reversed(frames_through(error))), None)


def frames_through(error: Exception) -> list[TracebackType]:
    """The traceback entries of an error; the last is that which raised it."""
    frames, rest = [], error.__traceback__
    while rest is not None:
        frames.append(rest)
        rest = rest.tb_next
    return frames


def _rewrite_error(error: ShardingTypeError, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Rewrites an error's fixes for the operands of the user's call, and drops those that scopes forbid."""
    if _takes_programs(fn):
        return
    if _is_inner_call():
        error.inner = True
    elif _rewrite_fixes:
        _rewrite_fixes[0](error, fn, args, kwargs)


#: `dispatch.call_fixes.rewrite_fixes`, set on import, because it needs JAX.
_rewrite_fixes: list[Callable[[ShardingTypeError, Any, tuple[Any, ...], dict[str, Any]], None]] = []


#: `lifting.typed_calls.without_mesh`, set on import, because it needs JAX.
_on_one_device: list[Callable[..., Any]] = []


def _without_mesh(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, needs_mesh: bool) -> Any:
    """The result of a public function without a mesh; None if it needs one, or within another op that calls it."""
    is_argument = plain_trace.depth and owner_of_frame(next(frames(2))) is Owner.MACHINERY  # JAX calls it
    if not _on_one_device or (_is_inner_call() and not is_argument):
        return None
    return _on_one_device[0](call, args, kwargs, needs_mesh=needs_mesh)


def connect_one_device(run: Callable[..., Any]) -> None:
    """Sets the function that runs public functions on untyped values without a mesh."""
    _on_one_device[:] = [run]


def connect_fix_rewriter(rewrite: Callable[[ShardingTypeError, Any, tuple[Any, ...], dict[str, Any]], None]) -> None:
    """Sets the function that rewrites fixes for the operands of the user's call."""
    _rewrite_fixes[:] = [rewrite]


@contextlib.contextmanager
def wrap_jax_errors(name: str, what: str = "does not take these arguments") -> Iterator[None]:
    """A scope around a call of JAX for ``name``, which converts JAX's errors about arguments.

    Errors of the user's functions are unchanged.
    """
    try:
        yield
    except ShardingTypeError:
        raise
    except (TypeError, ValueError) as error:
        if line_of(error.__traceback__):
            raise
        raise jax_error(name, what, error) from shortened(error)


def maker(fn: Callable[P, T]) -> Callable[P, T]:
    """Like `public`, for a function that returns a function: errors of the result name the user's line too."""

    @functools.wraps(fn)
    def make(*args: P.args, **kwargs: P.kwargs) -> Any:
        function = fn(*args, **kwargs)
        return public(function) if isinstance(function, FunctionType) and not is_public(function) else function

    return public(make)


def is_public(fn: Callable[..., Any]) -> bool:
    """Whether a function is decorated by `public`."""
    return getattr(fn, "__code__", None) is _PUBLIC_CALL


def _takes_programs(fn: Any) -> bool:
    """Whether a function of shtypes takes programs, and so is not an op."""
    return str(fn.__module__).startswith("shtypes.analysis.")


def _is_inner_call() -> bool:
    """Whether another op called the caller's caller, only through shtypes."""
    outer = next((frame for frame in _inside(frames(3)) if frame.f_code is _PUBLIC_CALL), None)
    return outer is not None and not _takes_programs(outer.f_locals["fn"])


_PUBLIC_CALL: Final = public(_line_text).__code__  # the shared code of all calls of `public`
