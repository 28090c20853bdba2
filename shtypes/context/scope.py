"""`Scope`: a context manager, and a decorator for functions of every kind."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from shtypes.context.settings import Settings, current_settings, scope
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
#: Returns the context manager of a part of a scope's run.
Open = Callable[[], contextlib.AbstractContextManager[Any]]


class Scope:
    """A reusable context manager and decorator.

    A decorated function runs in the scope. A generator or coroutine is in it while it runs, and not while suspended.
    """

    def __init__(self, run: Callable[[], Open]) -> None:
        self._run = run
        self._entered = threading.local()

    def __enter__(self) -> Any:
        part = self._run()()
        entered = part.__enter__()
        self._stack().append(part)
        return entered

    def __exit__(self, *error: Any) -> None:
        self._stack().pop().__exit__(*error)

    def _stack(self) -> list[Any]:
        if not hasattr(self._entered, "parts"):
            self._entered.parts = []
        parts: list[Any] = self._entered.parts
        return parts

    def __call__(self, f: F) -> F:
        """Decorates a function."""
        function: Any = f
        if inspect.isclass(function) or not callable(function):
            raise ShardingTypeError(f"a scope decorates functions, not {function!r:.60}", hints=["with scope: ..."])
        decorated: Any = _decorated(function, self._run)
        return decorated  # type: ignore[no-any-return]


@contextlib.contextmanager
def attribute_set(holder: Any, name: str, value: T) -> Iterator[T]:
    """Context manager that yields a value, and in which it is an attribute's, such as one of a thread's state."""
    outer = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield value
    finally:
        setattr(holder, name, outer)


def simple(make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Scope:
    """A scope whose parts share no state."""
    return Scope(lambda: make)


def changed(change: Callable[[Settings], Settings]) -> Scope:
    """A scope that changes the settings."""
    return simple(lambda: scope(change(current_settings())))


def _decorated(f: Callable[..., Any], run: Callable[[], Open]) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(f):

        @functools.wraps(f)
        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            step, inner = run(), f(*args, **kwargs)
            advance = inner.asend(None)
            while True:
                try:
                    item = await _Awaited(advance, step)
                except StopAsyncIteration:
                    return
                try:
                    advance = inner.asend((yield item))
                except GeneratorExit:
                    await _Awaited(inner.aclose(), step)
                    raise
                except BaseException as error:
                    advance = inner.athrow(error)

        return async_generator
    if inspect.iscoroutinefunction(f):

        @functools.wraps(f)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await _Awaited(f(*args, **kwargs), run())

        return coroutine
    if inspect.isgeneratorfunction(f):

        @functools.wraps(f)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from _steps(f(*args, **kwargs), run()))

        return generator

    @functools.wraps(f)
    def function(*args: Any, **kwargs: Any) -> Any:
        step = run()
        with step():
            result = f(*args, **kwargs)
        if inspect.isgenerator(result):
            return _steps(result, step)
        return _Awaited(result, step) if inspect.iscoroutine(result) else result

    return function


class _Awaited:
    """An awaitable whose steps run in a scope."""

    def __init__(self, inner: Any, step: Open) -> None:
        self._inner, self._step = inner, step

    def __await__(self) -> Generator[Any, Any, Any]:
        return _steps(self._inner if isinstance(self._inner, Coroutine) else self._inner.__await__(), self._step)


def _steps(inner: Any, step: Open) -> Generator[Any, Any, Any]:
    """Runs each step of a generator or coroutine in a scope."""
    advance, sent = inner.send, None
    while True:
        with step():
            try:
                out = advance(sent)
            except StopIteration as stop:
                return stop.value
        try:
            sent, advance = (yield out), inner.send
        except GeneratorExit:
            with step():
                inner.close()
            raise
        except BaseException as error:
            sent, advance = error, inner.throw


def mapped_axes() -> tuple[str, ...]:
    """The axes that shard the dims of enclosing `vmap`s."""
    return current_settings().mapped


def mapped_over(axes: Sequence[str]) -> Scope:
    """A scope for the body of a function that is mapped over a dim sharded over ``axes``."""
    return changed(lambda s: s._replace(mapped=(*s.mapped, *axes)))


def local_axes() -> tuple[tuple[str, int], ...]:
    """The mesh axes that enclosing `shard_map`s map over, and their sizes."""
    return tuple([(axis, n) for axis, n, is_mapped in current_settings().local if is_mapped])


def in_local_mode(axes: Sequence[str], sizes: Mapping[str, int]) -> Scope:
    """A scope for the body of a `shard_map` over some axes of a mesh, with its sizes in mesh order."""

    def mapped(s: Settings) -> Settings:
        mapped = {axis for axis, _, is_mapped in s.local if is_mapped}
        return s._replace(local=tuple([(a, n, a in axes or a in mapped) for a, n in sizes.items()]))

    return changed(mapped)


def check_not_mapped(axes: Sequence[str]) -> None:
    """Refuses to sum a gradient over devices that are at different steps of a `vmap`."""
    axis = next((a for a in axes if a in mapped_axes()), None)
    if axis is not None:
        error = ShardingTypeError(
            f"a gradient inside `vmap` would be summed over mesh axis `{axis}`, over which the mapped dim is sharded",
            why="each device is at steps of its own, and the gradient is that of one step",
            hints=[
                "sh.grad and sh.vjp, of functions that take the value as an argument, give the gradient of each step",
                f'sh.lax.pvary(x, "{axis}") before it is differentiated',
            ],
        )
        raise placed(error, "vmap")
