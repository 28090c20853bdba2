"""Evaluates types as strings in the checker: with the configured mesh, policy and sizes, or else stand-ins."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Final

from shtypes.editor.config import Config
from shtypes.editor.stand_in_sizes import StandInSizes
from shtypes.editor.templates import Templates
from shtypes.errors import ShardingTypeError
from shtypes.signatures.matching import instance
from shtypes.signatures.pattern import Pattern, names_in_arithmetic, pattern
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.notation.printing import show
from shtypes.types.policy import REPLICATED_STATE

#: The only axis of a mesh without mentioned axes, since the runtime takes no empty mesh.
_NO_AXIS: Final = "devices"


class Undetermined(Exception):  # noqa: N818  # not an error: nothing is reported
    """Raised if the answer depends on values, or on unknown types."""


class TextEvaluator:
    """The context in which the checker evaluates types: mesh, policy, sizes of dim names.

    Without a configured mesh, it has the axes that the types mention, of size 1, because rules use the size of an axis
    only to divide by it.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.sizes = StandInSizes(config.dims, Mesh(config.mesh).size)
        self.templates = Templates(config.dims)
        self._type_of = functools.lru_cache(maxsize=8192)(self._read)
        self._texts: dict[object, str | None] = {}
        self._meshes: dict[frozenset[str], Mesh] = {}
        self._of_texts: dict[tuple[str, Mesh], ShType] = {}  # types by their printed strings

    def mesh(self, axes: Iterable[str]) -> Mesh:
        """The mesh of values whose types mention some axes."""
        key = frozenset() if self.config.mesh else frozenset(axes)
        mesh = self._meshes.get(key)
        if mesh is None:
            mesh = self._meshes[key] = Mesh(self.config.mesh or dict.fromkeys(sorted(key) or [_NO_AXIS], 1))
        return mesh

    def knows(self, axes: Iterable[str]) -> bool:
        """Whether the sizes of mesh axes are configured."""
        return all(axis in self.config.mesh for axis in axes)

    def type_of(self, text: str, mesh: Mesh, policy: str = "") -> ShType:
        """The type of a string that is not a pattern, under the project's policy or another; or raises."""
        if policy in ("", self.config.policy):
            cached = self._of_texts.get((text, mesh))
            if cached is not None:
                return cached
        t = self._type_of(text, mesh, policy or self.config.policy)
        if t is None:
            raise Undetermined
        return t

    def _read(self, text: str, mesh: Mesh, policy: str) -> ShType | None:
        read = pattern(text)
        if is_open(read):
            return None
        for d in read.dims or ():
            self.sizes.add_written(d.size or 0)
        sizes = {d.head: d.size for d in read.dims or () if d.head and d.size is not None}
        for name in names_of(read):
            sizes.setdefault(name, self.sizes.of(name))
        return instance(read, mesh, REPLICATED_STATE[policy], sizes)

    def number(self, number: int, *of: int) -> int:
        """A number that the program writes, or computes from others; actual if all of these are.

        `Undetermined` if it is computed from stand-ins and may be an actual size.
        """
        if all(self.sizes.is_actual(abs(n)) for n in of):
            self.sizes.add_written(number)
        elif self.sizes.is_actual(abs(number)):
            raise Undetermined
        return number

    def text(self, t: ShType) -> str:
        """A printed type under the project's policy; raises if a size cannot be recovered."""
        if t.exact not in self._texts:
            self._texts[t.exact] = self._written(t)
        text = self._texts[t.exact]
        if text is None:
            raise Undetermined
        if all(
            self.sizes.is_actual(d.size) or d.name == self.sizes.text(d.size) for d in t.dims
        ):  # else it is called otherwise
            self._of_texts.setdefault((text, t.mesh), t)
        return text

    def _written(self, t: ShType) -> str | None:
        names: list[str | None] = []
        for d in t.dims:
            if self.sizes.is_actual(d.size):
                plain = d.name is None or self.config.dims.get(d.name) == d.size
                names.append(d.name if plain else f"{d.name}={d.size}")
                continue
            text = self.sizes.text(d.size)
            if text is None:
                return None
            names.append(text)
        return show(t.named(names), self.config.policy)

    def named(self, t: ShType) -> ShType:
        """The type with dim names for stand-ins, for messages."""
        names = (d.name if self.sizes.is_actual(d.size) else self.sizes.text(d.size) for d in t.dims)
        return t.named(names)

    def words(self, error: ShardingTypeError) -> list[str]:
        """The message and reason of an error, with dim names for stand-ins."""
        texts = [self.sizes.with_names(text) for text in (error.what, error.why)]
        if None in texts:
            raise Undetermined
        return [text for text in texts if text]


def is_open(read: Pattern) -> bool:
    """Whether a pattern allows more than one type."""
    if read.dtypes is None or len(read.dtypes) != 1 or read.dims is None or read.any_state:
        return True
    return any(d.open_ended or d.head == "_" or d.keeps_axes for d in read.dims)


@functools.lru_cache(maxsize=8192)
def axes_of(text: str) -> tuple[str, ...]:
    """The mesh axes in a type."""
    return tuple(pattern(text).axes)


def names_of(read: Pattern) -> list[str]:
    """The dim names in a pattern."""
    names: list[str] = []
    for d in read.dims or ():
        if d.form == "=":
            names += names_in_arithmetic(d.head)
        elif d.head and not d.open_ended and d.head != "_":
            names.append(d.head)
    return names
