"""What mypy compares by itself: a type that is returned, assigned, put in a list, or given where no hook is asked.

It compares texts, so that ``f32[8@dp]`` is not ``f32[n@dp]`` to it, and a function is not one of the same types whose
dims have other names. What may be so passes: a size that is written may be that of any name, and where a function is
called or given, its names stand for any size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from mypy.errors import ErrorWatcher

from shtypes.editor.mypy.guards import guarding
from shtypes.editor.sizes import stands_for_a_name
from shtypes.editor.space import Space, Unknown, axes_of
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType

_ARRAY: Final = re.compile(r"Array\[Literal\['([^']*)'\]\]")
#: How mypy says what there is and what there should be.
_SAYS: Final = (
    re.compile(r'incompatible type (".*"); expected (".*")$'),
    re.compile(r'\(got (".*"), expected (".*")\)$'),
    re.compile(r'\(expression has type (".*"), [^"]*(?:"[^"]*" )?(?:has|as) type (".*")\)$'),
)


class Leniency:
    """What lets errors of mypy's own pass that may be none."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._watcher: ErrorWatcher | None = None
        self._passed: tuple[object, ...] = ()

    def watch(self, errors: Any) -> None:
        """Sees the errors of a run from now on."""
        watchers = getattr(errors, "_watchers", None)
        if watchers is None or self._watcher in watchers:
            return
        self._watcher = ErrorWatcher(errors, filter_errors=self._passes)
        watchers.insert(0, self._watcher)

    def _passes(self, file: str, info: Any) -> bool:
        """Whether an error is none; what mypy adds to it goes with it."""
        with guarding():
            place = (file, info.line, info.code)
            if info.severity == "note":
                return self._passed == place
            passes = self.may_be_none(info.message)
            self._passed = place if passes else ()
            return passes
        return False

    def may_be_none(self, message: str) -> bool:
        """Whether an error of mypy's own speaks of types that may fit."""
        if "Array[Literal[" not in message:
            return False
        found = next((m for m in (says.search(message) for says in _SAYS) if m is not None), None)
        if found is None:
            return False
        given, wanted = found.groups()
        renames = message.startswith("Argument ") or "Callable[" in given
        return any(self._fit(each, renames) for each in _pairings(given, wanted))

    def _fit(self, texts: list[tuple[str, str]], renames: bool) -> bool:
        names: tuple[dict[int, int], dict[int, int]] = ({}, {})
        fits = [True, True]  # names of the one for those of the other, or the other way round
        for given, wanted in texts:
            pairs = self._sizes(given, wanted)
            if pairs is None:
                return False
            for a, b in pairs:
                if a == b or stands_for_a_name(a) != stands_for_a_name(b):
                    continue
                if not renames or not stands_for_a_name(a):
                    return False
                for i, (x, y) in enumerate(((a, b), (b, a))):
                    fits[i] &= names[i].setdefault(x, y) == y
        return any(fits)

    def _sizes(self, given: str, wanted: str) -> list[tuple[int, int]] | None:
        """The sizes of two types; None where anything else is different."""
        try:
            mesh = self.space.mesh((*axes_of(given), *axes_of(wanted)))
            a, b = self.space.closed(given, mesh), self.space.closed(wanted, mesh)
        except (ShardingTypeError, Unknown):
            return None
        return list(zip(a.shape, b.shape, strict=True)) if _lies(a) == _lies(b) else None


def _lies(t: ShType) -> object:
    """All of a type but for its sizes."""
    return t.dtype_name, t.states, [d.axes for d in t.dims]


def _pairings(given: str, wanted: str) -> Iterator[list[tuple[str, str]]]:
    """The texts in what there is, each with that in what there should be."""
    if _ARRAY.sub("Array", given) == _ARRAY.sub("Array", wanted):
        yield list(zip(_ARRAY.findall(given), _ARRAY.findall(wanted), strict=True))
