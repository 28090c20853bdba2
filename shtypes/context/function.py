"""The type of a transformed function for type checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Function(Generic[P, T]):
    """A function with the parameters of the one that it transforms; at run time a plain function.

    Not a ``Callable``, with which mypy infers no lambdas: ``sh.jit(sh.grad(lambda w: ...))``.
    """

    __name__: str
    __wrapped__: object

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The result for these arguments."""
        raise NotImplementedError


class Decorator:
    """The type of a decorator that preserves parameters and results; at run time a plain function."""

    def __call__(self, f: Callable[P, T], /) -> Function[P, T]:
        """The decorated function."""
        raise NotImplementedError
