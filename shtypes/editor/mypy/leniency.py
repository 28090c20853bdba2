"""Filters mypy's comparisons: of returned, assigned and collected values, and arguments without a hook.

mypy compares strings, so ``f32[8@dp]`` differs from ``f32[n@dp]``, and so do functions that differ in dim names. Types
that may be equal pass: a literal size may equal any name, and a called or passed function's names stand for any size.
An error that follows from a sharding error is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
_CONSEQUENCES: Final = (ARG_TYPE, NO_ANY_RETURN)
_ARRAY: Final = re.compile(r"Array\[(?:Any|Literal\['([^']*)'\])\]")
#: mypy's messages about an actual and an expected type.
_ACTUAL_AND_EXPECTED: Final = (
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
        self._dropped: tuple[object, ...] = ()  # the file, line and code of the last error, if dropped
        self._sharding_error: tuple[str, Iterable[int]] = "", ()  # the file and lines of the last one of the plugin

    def watch(self, errors: Any) -> None:
        """Filters the errors of a run."""
        watchers = getattr(errors, "_watchers", None)
        if watchers is None or self._watcher in watchers:
            return
        self._errors = errors
        self._watcher = ErrorWatcher(errors, filter_errors=self._drops)
        watchers.insert(0, self._watcher)

    def _drops(self, file: str, info: Any) -> bool:
        """Whether to drop an error, or a note of a dropped one."""
        with guarding():
            place = (file, info.line, info.code)
            if info.severity == "note":
                return self._dropped == place
            if info.code is CODE:
                self._sharding_error = file, info.origin_span
                self._remove_argument_errors(file, info.origin_span)
            drops = self._is_consequence(file, info) or self._is_about_equal_types(info.message)
            self._dropped = place if drops else ()
            return drops
        return False

    def _is_consequence(self, file: str, info: Any) -> bool:
        """Whether an error follows from one of the plugin on its line."""
        refused_file, lines = self._sharding_error
        return file == refused_file and info.line in lines and info.code in _CONSEQUENCES and _TYPED in info.message

    def _remove_argument_errors(self, file: str, lines: Iterable[int]) -> None:
        """Removes what mypy said of a call's arguments before the plugin refused the call."""
        infos = self._errors.error_info_map.get(file, [])
        infos[:] = [info for info in infos if not (info.line in lines and _is_of_argument(info))]

    def _is_about_equal_types(self, message: str) -> bool:
        """Whether an error is about types that may be equal."""
        if _TYPED not in message:
            return False
        types = next((m for m in (pattern.search(message) for pattern in _ACTUAL_AND_EXPECTED) if m is not None), None)
        if types is None:
            return False
        actual, expected = types.groups()
        renames = message.startswith("Argument ") or "Callable[" in actual
        pairs = _array_types(actual, expected)
        return pairs is not None and self._may_be_equal(pairs, renames)

    def _may_be_equal(self, texts: list[tuple[str, str]], renames: bool) -> bool:
        """Whether the actual and the expected type of each pair may be equal, all at once.

        With ``renames``, a name may also stand for another one, the same for all pairs.
        """
        names: tuple[dict[int, int], dict[int, int]] = ({}, {})
        fits = [True, True]  # renaming the actual names, or the expected ones
        for actual, expected in texts:
            sizes = self._paired_sizes(actual, expected)
            if sizes is None:
                return False
            for a, b in sizes:
                is_number = self.evaluator.sizes.is_actual(a)
                if is_number != self.evaluator.sizes.is_actual(b):
                    continue
                if a != b and (is_number or not renames):
                    return False
                for i, (x, y) in enumerate(((a, b), (b, a))):
                    fits[i] &= names[i].setdefault(x, y) == y
        return any(fits)

    def _paired_sizes(self, actual: str, expected: str) -> list[tuple[int, int]] | None:
        """Pairs of sizes in two types; None if anything else differs."""
        try:
            mesh = self.evaluator.mesh((*axes_of(actual), *axes_of(expected)))
            a, b = self.evaluator.type_of(actual, mesh), self.evaluator.type_of(expected, mesh)
        except (ShardingTypeError, Undetermined):
            return None
        return list(zip(a.shape, b.shape, strict=True)) if _layout(a) == _layout(b) else None


def _is_of_argument(info: Any) -> bool:
    """Whether an error, or a note, is about the type of an argument."""
    if info.severity == "note":
        return info.code is ARG_TYPE or f'"{ARG_TYPE.code}"' in info.message  # without an ignore comment
    return info.code is ARG_TYPE and _TYPED in info.message


def _layout(t: ShType) -> object:
    """A type without its sizes."""
    return t.dtype_name, t.states, [d.axes for d in t.dims]


def _array_types(actual: str, expected: str) -> list[tuple[str, str]] | None:
    """Pairs of array types in the actual and the expected type; None if the types differ elsewhere."""
    if _ARRAY.sub("Array", actual) != _ARRAY.sub("Array", expected):
        return None
    pairs = zip(_ARRAY.findall(actual), _ARRAY.findall(expected), strict=True)
    return [(a, b) for a, b in pairs if a and b]  # an unknown type may be equal to any
