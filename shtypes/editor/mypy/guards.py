"""Guards around hooks: an error of the plugin never ends a run of mypy."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar

C = TypeVar("C")
T = TypeVar("T")

#: Whether errors of the plugin propagate, for its tests.
STRICT: Final = bool(os.environ.get("SHTYPES_STRICT_PLUGIN"))


class guarding:  # noqa: N801  # used like a function
    """Context manager that suppresses errors, as if the hook had not run."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        return isinstance(error, Exception) and not STRICT


def _guarded(default: str) -> Callable[[Callable[[C], T]], Callable[[C], T]]:
    """Decorates a hook to return mypy's default, an attribute of the hook's context, if it fails."""

    def guard(hook: Callable[[C], T]) -> Callable[[C], T]:
        def guarded(context: C) -> T:
            with guarding():
                return hook(context)
            fallback: Any = getattr(context, default)
            return fallback  # type: ignore[no-any-return]

        return guarded

    return guard


#: Hooks for the type of a result, for that of an attribute, and for a signature.
result: Final = _guarded("default_return_type")
attribute: Final = _guarded("default_attr_type")
signature: Final = _guarded("default_signature")
