"""What goes wrong in a hook must never end a run of mypy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

from mypy.plugin import AttributeContext
from mypy.types import FunctionLike, Type

C = TypeVar("C")

#: Whether errors of the plugin itself leave it, for its own tests.
STRICT: Final = bool(os.environ.get("SHTYPES_STRICT_PLUGIN"))


class guarding:  # noqa: N801  # used as a function is
    """A block in which what goes wrong is as if it had not been asked."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        return isinstance(error, Exception) and not STRICT


def result(hook: Callable[[C], Type]) -> Callable[[C], Type]:
    """A hook for the type of a result; where it fails that is what mypy finds."""

    def guarded(context: C) -> Type:
        with guarding():
            return hook(context)
        default: Type = context.default_return_type  # type: ignore[attr-defined]
        return default

    return guarded


def attribute(hook: Callable[[AttributeContext], Type]) -> Callable[[AttributeContext], Type]:
    """A hook for the type of an attribute."""

    def guarded(context: AttributeContext) -> Type:
        with guarding():
            return hook(context)
        return context.default_attr_type

    return guarded


def signature(hook: Callable[[C], FunctionLike]) -> Callable[[C], FunctionLike]:
    """A hook for a signature."""

    def guarded(context: C) -> FunctionLike:
        with guarding():
            return hook(context)
        default: FunctionLike = context.default_signature  # type: ignore[attr-defined]
        return default

    return guarded
