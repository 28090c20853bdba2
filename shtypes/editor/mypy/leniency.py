"""What mypy compares by itself: a type that is returned, assigned, put in a list, or passed where no hook runs.

It compares texts, so that ``f32[8@dp]`` is not ``f32[n@dp]`` to it, and a function is not one of the same types whose
dims have other names. What may be so passes: a size that is written may be that of any name, and where a function is
called or passed, its names stand for any size. What follows from an error of sharding is not said a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from mypy.errorcodes import ARG_TYPE, NO_ANY_RETURN
from mypy.errors import ErrorWatcher

from shtypes.editor.mypy.guards import guarding
from shtypes.editor.mypy.report import CODE
from shtypes.editor.text_evaluator import TextEvaluator, Undetermined, axes_of
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType

#: The beginning of an array type with a text.
_TYPED: Final = "Array[Literal["
#: Errors of mypy that can follow from an error of sharding: of the unknown result, and of one with another type.
_FOLLOWING: Final = (ARG_TYPE, NO_ANY_RETURN)
_ARRAY: Final = re.compile(r"Array\[(?:Any|Literal\['([^']*)'\])\]")
#: mypy's messages, with the actual and the expected type.
_SAYS: Final = (
    re.compile(r'incompatible type (".*"); expected (".*")$'),
    re.compile(r'\(got (".*"), expected (".*")\)$'),
    re.compile(r'\(expression has type (".*"), [^"]*(?:"[^"]*" )?(?:has|as) type (".*")\)$'),
)


class Leniency:
    """A filter of those errors of mypy that may be none."""

    def __init__(self, evaluator: TextEvaluator) -> None:
        self.evaluator = evaluator
        self._errors: Any = None
        self._watcher: ErrorWatcher | None = None
        self._passed: tuple[object, ...] = ()
        self._refused: tuple[str, Iterable[int]] = "", ()

    def watch(self, errors: Any) -> None:
        """Sees the errors of a run from now on."""
        watchers = getattr(errors, "_watchers", None)
        if watchers is None or self._watcher in watchers:
            return
        self._errors = errors
        self._watcher = ErrorWatcher(errors, filter_errors=self._passes)
        watchers.insert(0, self._watcher)

    def _passes(self, file: str, info: Any) -> bool:
        """Whether an error is none; what mypy adds to it goes with it."""
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
        """Whether an error of mypy is there because the plugin refused what is on its line."""
        refused, lines = self._refused
        return file == refused and info.line in lines and info.code in _FOLLOWING and _TYPED in info.message

    def _take_back(self, file: str, lines: Iterable[int]) -> None:
        """Removes what mypy said of the arguments of a call before the hook for its result ran."""
        infos = self._errors.error_info_map.get(file, [])
        infos[:] = [info for info in infos if not (info.line in lines and _is_of_argument(info))]

    def may_be_none(self, message: str) -> bool:
        """Whether an error of mypy is about types that may fit."""
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
        fits = [True, True]  # names of the one for those of the other, or the other way round
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
        """The sizes of two types; None where anything else is different."""
        try:
            mesh = self.evaluator.mesh((*axes_of(actual), *axes_of(expected)))
            a, b = self.evaluator.type_of(actual, mesh), self.evaluator.type_of(expected, mesh)
        except (ShardingTypeError, Undetermined):
            return None
        return list(zip(a.shape, b.shape, strict=True)) if _lies(a) == _lies(b) else None


def _is_of_argument(info: Any) -> bool:
    if info.severity == "note":
        return info.code is ARG_TYPE or f'"{ARG_TYPE.code}"' in info.message  # that no comment covers it
    return info.code is ARG_TYPE and _TYPED in info.message


def _lies(t: ShType) -> object:
    """All of a type but for its sizes."""
    return t.dtype_name, t.states, [d.axes for d in t.dims]


def _pairings(actual: str, expected: str) -> Iterator[list[tuple[str, str]]]:
    """Pairs of texts in the actual type, each with that in the expected type."""
    if _ARRAY.sub("Array", actual) == _ARRAY.sub("Array", expected):
        pairs = zip(_ARRAY.findall(actual), _ARRAY.findall(expected), strict=True)
        yield [(a, b) for a, b in pairs if a and b]  # what is unknown fits everywhere
