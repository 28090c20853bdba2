"""Filters mypy's own comparisons: of returned, assigned and collected values, and arguments without a hook.

mypy compares strings, so ``f32[8@dp]`` differs from ``f32[n@dp]``, and so do functions that differ in dim names. Types
that may be equal pass: a literal size may equal any name, and a called or passed function's names stand for any size.
An error that follows from a sharding error is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from mypy.errorcodes import ARG_TYPE, NO_ANY_RETURN
from mypy.errors import ErrorWatcher

from shtypes.editor.guards import guarding
from shtypes.editor.mypy.report import CODE
from shtypes.editor.text_evaluator import TextEvaluator, Undetermined, axes_of
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType

#: The beginning of an array type with a string.
_TYPED: Final = "Array[Literal["
#: mypy's errors that can follow from a sharding error: from the unknown or changed result type.
_FOLLOWING: Final = (ARG_TYPE, NO_ANY_RETURN)
_ARRAY: Final = re.compile(r"Array\[(?:Any|Literal\['([^']*)'\])\]")
#: mypy's messages, with the actual and the expected type.
_SAYS: Final = (
    re.compile(r'incompatible type (".*"); expected (".*")$'),
    re.compile(r'\(got (".*"), expected (".*")\)$'),
    re.compile(r'\(expression has type (".*"), [^"]*(?:"[^"]*" )?(?:has|as) type (".*")\)$'),
)


class Leniency:
    """A filter for mypy's errors about types that may be equal."""

    def __init__(self, evaluator: TextEvaluator) -> None:
        self.evaluator = evaluator
        self._errors: Any = None
        self._watcher: ErrorWatcher | None = None
        self._passed: tuple[object, ...] = ()
        self._refused: tuple[str, Iterable[int]] = "", ()

    def watch(self, errors: Any) -> None:
        """Filters the errors of a run."""
        watchers = getattr(errors, "_watchers", None)
        if watchers is None or self._watcher in watchers:
            return
        self._errors = errors
        self._watcher = ErrorWatcher(errors, filter_errors=self._passes)
        watchers.insert(0, self._watcher)

    def _passes(self, file: str, info: Any) -> bool:
        """Whether to drop an error, with its notes."""
        with guarding():
            place = (file, info.line, info.code)
            if info.severity == "note":
                return self._passed == place
            if info.code is CODE:
                self._refused = file, info.origin_span
                self._take_back(file, info.origin_span)
            passes = self._follows(file, info) or self.may_be_none(info.message)
            self._passed = place if passes else ()
            return passes
        return False

    def _follows(self, file: str, info: Any) -> bool:
        """Whether an error follows from one of the plugin on its line."""
        refused, lines = self._refused
        return file == refused and info.line in lines and info.code in _FOLLOWING and _TYPED in info.message

    def _take_back(self, file: str, lines: Iterable[int]) -> None:
        """Removes mypy's errors about the arguments of a call before the hook for its result."""
        infos = self._errors.error_info_map.get(file, [])
        infos[:] = [info for info in infos if not (info.line in lines and _is_of_argument(info))]

    def may_be_none(self, message: str) -> bool:
        """Whether an error is about types that may be equal."""
        if _TYPED not in message:
            return False
        types = next((m for m in (says.search(message) for says in _SAYS) if m is not None), None)
        if types is None:
            return False
        actual, expected = types.groups()
        renames = message.startswith("Argument ") or "Callable[" in actual
        return any(self._fit(each, renames) for each in _pairings(actual, expected))

    def _fit(self, texts: list[tuple[str, str]], renames: bool) -> bool:
        names: tuple[dict[int, int], dict[int, int]] = ({}, {})
        fits = [True, True]  # renaming in either direction
        for actual, expected in texts:
            pairs = self._sizes(actual, expected)
            if pairs is None:
                return False
            for a, b in pairs:
                if a == b or self.evaluator.sizes.is_actual(a) != self.evaluator.sizes.is_actual(b):
                    continue
                if not renames or self.evaluator.sizes.is_actual(a):
                    return False
                for i, (x, y) in enumerate(((a, b), (b, a))):
                    fits[i] &= names[i].setdefault(x, y) == y
        return any(fits)

    def _sizes(self, actual: str, expected: str) -> list[tuple[int, int]] | None:
        """Pairs of sizes in two types; None if anything else differs."""
        try:
            mesh = self.evaluator.mesh((*axes_of(actual), *axes_of(expected)))
            a, b = self.evaluator.type_of(actual, mesh), self.evaluator.type_of(expected, mesh)
        except (ShardingTypeError, Undetermined):
            return None
        return list(zip(a.shape, b.shape, strict=True)) if _lies(a) == _lies(b) else None


def _is_of_argument(info: Any) -> bool:
    if info.severity == "note":
        return info.code is ARG_TYPE or f'"{ARG_TYPE.code}"' in info.message  # without an ignore comment
    return info.code is ARG_TYPE and _TYPED in info.message


def _lies(t: ShType) -> object:
    """A type without its sizes."""
    return t.dtype_name, t.states, [d.axes for d in t.dims]


def _pairings(actual: str, expected: str) -> Iterator[list[tuple[str, str]]]:
    """Pairs of strings in the actual and the expected type."""
    if _ARRAY.sub("Array", actual) == _ARRAY.sub("Array", expected):
        pairs = zip(_ARRAY.findall(actual), _ARRAY.findall(expected), strict=True)
        yield [(a, b) for a, b in pairs if a and b]  # unknown types fit
