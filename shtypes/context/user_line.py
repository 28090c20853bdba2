"""Where the user's code is: the innermost line outside shtypes, JAX and installed libraries."""

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
from shtypes.context.signature_errors import argument_error, internal_error, signature_error
from shtypes.errors import NoMeshError, ShardingTypeError

P = ParamSpec("P")
T = TypeVar("T")


def user_line() -> str:
    """``file.py:12 in loss`` of the user's line that called into shtypes; empty if there is none.

    Where an installed library made the call, that says which function of it: ``train.py:9 in step (in optax.update)``.
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
            return _words(frame, frame.f_lineno) + _through(library)
        if kind is Owner.INSTALLED:
            inmost = inmost or _words(frame, frame.f_lineno)
            library = frame
    return inmost


def is_users_call() -> bool:
    """Whether a line of the user's is running."""
    return any(owner_of_frame(frame) is Owner.USERS for frame in frames(1))


def frames_of_call() -> list[FrameType]:
    """The frames between the user's (or a library's) line and the caller, outermost first."""
    return list(_inside(frames(2)))[::-1]


def _inside(running: Iterable[FrameType]) -> Iterator[FrameType]:
    """The frames up to the first that is the user's, or of a library that knows nothing of us."""
    return itertools.takewhile(lambda frame: owner_of_frame(frame) not in (Owner.USERS, Owner.INSTALLED), running)


def line_of(traceback: TracebackType | None) -> str:
    """The user's line in a traceback, as `user_line` writes it; empty without one."""
    outer = inmost = ""
    library: FrameType | None = None
    while traceback is not None:
        frame, line = traceback.tb_frame, traceback.tb_lineno
        kind = owner_of_frame(frame)
        if kind is Owner.USERS:
            outer, library = _words(frame, line), None
        elif kind is Owner.INSTALLED:
            inmost, library = _words(frame, line), library or frame
        traceback = traceback.tb_next
    return outer + _through(library) if outer else inmost


def _words(frame: FrameType, line: int) -> str:
    function = frame.f_code.co_name
    place = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
    return place if function == "<module>" else f"{place} in {function}"


def _through(library: FrameType | None) -> str:
    return f" (in {called_in(library)})" if library is not None else ""


def placed(error: ShardingTypeError, call: str) -> ShardingTypeError:
    """The error with the user's line and what was called there, unless it names one already; the same object."""
    if not error.placed:
        line, called = user_line(), _called()
        call = f"{called}, by {call}" if called else call
        place = f"{line}: {call}" if line else call
        error.where = f"{place}\n{error.where}" if error.where else place
        error.placed = True
    return error


def _called() -> str:
    """The op that the user called, where an op inside it is the one that fails; else empty."""
    source = eqn_source()
    if source is not None:
        return source.called
    called = (frame.f_locals["fn"] for frame in _inside(frames(2)) if frame.f_code is _A_CALL)
    names = [fn.__name__ for fn in called if not _asks_about(fn)]
    return names[-1] if names and names[-1] != names[0] else ""


#: What Python, numpy and JAX raise of arguments that they cannot use; what devices and checks of values raise is
#: another thing.
_OF_ARGUMENTS: Final = (
    *(TypeError, ValueError, NotImplementedError, OverflowError),
    *(ZeroDivisionError, LookupError, AttributeError, AssertionError),
)


def public(fn: Callable[P, T]) -> Callable[P, T]:
    """A function of the public surface: its errors leave with the user's line.

    What Python and JAX raise inside it speaks of its arguments, unless it came through the user's functions, or through
    what works on programs, which were traced with the arguments by then.
    """

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if plain_trace.depth:
            noted = _without_mesh(call, args, kwargs, needs_mesh=False)
            if noted is not None:
                return noted  # type: ignore[no-any-return]
        try:
            return fn(*args, **kwargs)
        except NoMeshError as none:
            taken = _without_mesh(call, args, kwargs, needs_mesh=True)
            if taken is not None:
                return taken  # type: ignore[no-any-return]
            raise placed(none, fn.__name__) from None
        except ShardingTypeError as error:
            if error.operands is not None or error.may_have_fixes:
                _in_terms_of_the_call(error, fn, args, kwargs)
            raise placed(error, fn.__name__) from None
        except _OF_ARGUMENTS as error:
            if _asserts(fn, error):
                raise
            if _did_not_fit(error):
                name = fn.__qualname__.split(".")[-2] if fn.__name__ == "__init__" else fn.__name__
                raise placed(signature_error(name, fn, error), name) from None
            if line_of(error.__traceback__):  # what the user's functions raise stays as it is
                raise
            if any(code.co_filename.startswith(PROGRAMS) for code in _codes(error)):
                raise placed(internal_error(fn.__name__, error), fn.__name__) from error
            raise placed(argument_error(fn.__name__, fn, args, kwargs, error), fn.__name__) from None

    return call


def named(
    fn: Callable[P, T], name: str, doc: str, module: str = "", signature: inspect.Signature | None = None
) -> Callable[P, T]:
    """The generated function ``fn``, with this name, docstring and, if any, signature."""
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = doc
    fn.__module__ = module or fn.__module__
    if signature is not None:
        fn.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect.signature` gives
    return fn


#: Functions that pass a call's arguments on as they are.
_HANDING_ON: Final = frozenset({"public.<locals>.call", "cached_eagerly.<locals>.call", "maker.<locals>.make"})


def _did_not_fit(error: Exception) -> TypeGuard[TypeError]:
    """Whether a `TypeError` is Python's about the arguments of a call of ours."""
    code = _raising(error) if isinstance(error, TypeError) else None
    return code is not None and code.co_qualname in _HANDING_ON and owner_of_file(code.co_filename) is Owner.OURS


def _asserts(fn: Any, error: Exception) -> bool:
    """Whether a function raised an `AssertionError` itself, as `assert_comm` does: it is meant."""
    return isinstance(error, AssertionError) and _raising(error) is fn.__code__


def _raising(error: Exception) -> CodeType | None:
    """The code of the function that raised an error."""
    return next(reversed([*_codes(error)]), None)


def _codes(error: Exception) -> Iterator[CodeType]:
    """The code of the functions that an error came through, the one that raised it last."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame.f_code
        traceback = traceback.tb_next


def _in_terms_of_the_call(error: ShardingTypeError, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Rewrites the fixes of an error for the operands of the user's call, and to what the scopes there allow."""
    if _asks_about(fn):
        return
    if _within(_A_CALL):
        error.inner = True
    elif _retold:
        _retold[0](error, fn, args, kwargs)


#: `dispatch.call_fixes.in_terms_of_the_call`, which needs JAX and so comes here itself.
_retold: list[Callable[[ShardingTypeError, Any, tuple[Any, ...], dict[str, Any]], None]] = []


#: `lifting.typed_calls.without_mesh`, which needs JAX and so comes here itself.
_on_one_device: list[Callable[..., Any]] = []


def _without_mesh(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, needs_mesh: bool) -> Any:
    """The result of a public function without a mesh; None if it has none, or within another op."""
    if not _on_one_device or _within(_A_CALL):
        return None
    return _on_one_device[0](call, args, kwargs, needs_mesh=needs_mesh)


def connect_one_device(run: Callable[..., Any]) -> None:
    """Sets the function that runs public functions of values without types where no mesh is set."""
    _on_one_device[:] = [run]


def connect_retelling(retell: Callable[[ShardingTypeError, Any, tuple[Any, ...], dict[str, Any]], None]) -> None:
    """Sets the function that rewrites fixes for the operands of the user's call."""
    _retold[:] = [retell]


@contextlib.contextmanager
def in_our_words(what: str) -> Iterator[None]:
    """A scope around a call of JAX: its errors about arguments become the reason for ``what``, in our one shape.

    An error that came through the user's functions is theirs, and stays as it is.
    """
    try:
        yield
    except ShardingTypeError:
        raise
    except (TypeError, ValueError) as error:
        if line_of(error.__traceback__):
            raise
        raise ShardingTypeError(what, why=str(error).strip()) from None


def maker(fn: Callable[P, T]) -> Callable[P, T]:
    """As `public`, for a function that returns a function: errors of the result have the user's line too."""

    @functools.wraps(fn)
    def make(*args: P.args, **kwargs: P.kwargs) -> Any:
        function = fn(*args, **kwargs)
        return public(function) if isinstance(function, FunctionType) and not is_public(function) else function

    return public(make)


def is_public(fn: Callable[..., Any]) -> bool:
    """Whether a function is a result of `public`."""
    return getattr(fn, "__code__", None) is _A_CALL


def _asks_about(fn: Any) -> bool:
    """Whether a function of ours takes the user's programs, and so is no op."""
    return str(fn.__module__).startswith("shtypes.analysis.")


def _within(code: CodeType) -> bool:
    """Whether the function that asks was called, by way of ours alone, by one with this code: by another op."""
    inside = _inside(frames(3))  # from the caller of that on: the user, or an op
    outer = next((frame for frame in inside if frame.f_code is code), None)
    return outer is not None and not _asks_about(outer.f_locals["fn"])


_A_CALL: Final = public(_words).__code__  # every call of `public` has one code
