"""`Mesh`: named axes with sizes, without devices."""

from __future__ import annotations

import difflib
import math
import operator
import re
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from shtypes.errors import NoMeshError, ShardingTypeError, quoted

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PART = re.compile(r"(\w+):\(\d+\)(\d+)")


@runtime_checkable
class NamedAxes(Protocol):
    """An object with named axes and sizes, such as JAX's meshes."""

    @property
    def axis_names(self) -> tuple[Any, ...]:
        """The names, major to minor."""

    @property
    def axis_sizes(self) -> tuple[int, ...]:
        """Their sizes."""


class Mesh:
    """Named mesh axes and their sizes, major to minor; interned, so ``is`` is ``==``.

    JAX meshes with the same axes and sizes are one `Mesh`: a type depends neither on the devices nor on their kind, nor
    on JAX's axis types.
    """

    __slots__ = ("__weakref__", "_index", "axis_names", "axis_sizes", "shape")

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    shape: Mapping[str, int]
    _index: Mapping[str, int]
    _interned: ClassVar[weakref.WeakValueDictionary[Any, Mesh]] = weakref.WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __new__(cls, axes: Mapping[str, int] | Iterable[tuple[str, int]] | NamedAxes) -> Mesh:
        """The mesh with these axes and sizes, major to minor, or with the axes of a JAX mesh."""
        if isinstance(axes, Mesh):
            return axes
        if hasattr(axes, "axis_names") and hasattr(axes, "axis_sizes"):  # `isinstance` takes longer
            axes = zip(axes.axis_names, axes.axis_sizes, strict=True)
        pairs: Any = axes.items() if isinstance(axes, Mapping) else axes
        items: tuple[Any, ...] = tuple(pairs if isinstance(pairs, Iterable) else [pairs])
        if not all(isinstance(item, tuple) and len(item) == 2 for item in items):
            raise ShardingTypeError(
                f"the axes of a mesh are given by name, with their sizes, not {axes!r:.60}", hints=['{"x": 2, "y": 4}']
            )
        interned = cls._interned.get(items)
        if interned is not None:
            return interned
        items = tuple(_axis(name, size) for name, size in items)
        if len({name for name, _ in items}) != len(items):
            raise ShardingTypeError(f"mesh axis names must differ: {', '.join(n for n, _ in items)}")
        return cls._of_checked(items)

    @classmethod
    def _of_checked(cls, items: tuple[tuple[str, int], ...]) -> Mesh:
        interned = cls._interned.get(items)
        if interned is not None:
            return interned
        self = super().__new__(cls)
        self.axis_names = tuple(name for name, _ in items)
        self.axis_sizes = tuple(size for _, size in items)
        self.shape = dict(items)
        self._index = {name: i for i, name in enumerate(self.axis_names)}
        with cls._lock:
            return cls._interned.setdefault(items, self)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.axis_sizes)

    def index(self, axis: str) -> int:
        """The position of ``axis``, major to minor."""
        try:
            return self._index[axis]
        except KeyError:
            names = quoted(self.axis_names) or "no axes"
            similar = difflib.get_close_matches(str(axis), self.axis_names, n=1, cutoff=0.5)
            hints = [f"`{name}`" for name in similar]
            raise ShardingTypeError(f"the mesh has no axis `{axis}`; it has {names}", hints=hints) from None

    def product(self, axes: Iterable[str]) -> int:
        """The number of devices along ``axes``, or parts of axes."""
        return math.prod(self.size_of(axis) for axis in axes)

    def size_of(self, axis: str) -> int:
        """The number of devices along an axis, or a part of one."""
        size = self.shape.get(axis)
        if size is not None:
            return size
        part = _PART.fullmatch(str(axis))
        return int(part[2]) if part and part[1] in self.shape else self.axis_sizes[self.index(axis)]

    def cut(self, parts: Mapping[str, tuple[int, ...]]) -> Mesh:
        """The same devices with some axes cut into parts of these sizes, major to minor; see `part_names`."""
        items: list[tuple[str, int]] = []
        for name, size in self.shape.items():
            sizes = parts.get(name, (size,))
            items += zip(part_names(name, sizes), sizes, strict=True)
        return Mesh._of_checked(tuple(items))

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.shape.items())

    def __repr__(self) -> str:
        return f"Mesh({self})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Mesh, (tuple(self.shape.items()),)


def _axis(name: object, size: Any) -> tuple[str, int]:
    """A checked axis; its size may be a numpy integer."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise ShardingTypeError(f"a mesh axis needs a name like `dp`, not `{name!r}`")
    return name, as_size(size, 1, f"mesh axis `{name}`")


def part_names(axis: str, sizes: tuple[int, ...]) -> tuple[str, ...]:
    """The names of the parts of an axis, as Shardy writes them: ``x:(2)4`` is of size 4, minor to parts of size 2."""
    if len(sizes) == 1:
        return (axis,)
    return tuple(f"{axis}:({math.prod(sizes[:i])}){n}" for i, n in enumerate(sizes))


def part_of(name: str) -> tuple[str, int]:
    """The axis of a part's name, and the product of the sizes of the parts before it (1 for an uncut axis)."""
    axis, _, part = name.partition(":(")
    return axis, int(part.partition(")")[0] or 1)


def whole_axes(names: Iterable[str]) -> tuple[str, ...]:
    """The axes of these names, which may be parts of axes."""
    return tuple(dict.fromkeys(part_of(name)[0] for name in names))


def as_size(size: Any, least: int, what: str) -> int:
    """A checked size as an int; shapes may contain numpy integers."""
    try:
        n = int(operator.index(size))
        if n < least:
            raise TypeError
    except TypeError:
        raise ShardingTypeError(f"{what} needs a size of at least {least}, not `{size!r}`") from None
    return n


def context() -> Mesh | None:
    """The mesh in JAX's context; None without one or without JAX, and while tracing a plain program."""
    jax = sys.modules.get("jax")
    mesh = None if jax is None else jax.sharding.get_abstract_mesh()
    return None if mesh is None or mesh.empty or hasattr(mesh, "is_of_program") else Mesh(mesh)


def current_mesh() -> Mesh:
    """The mesh in context; an error if none is set."""
    mesh = context()
    if mesh is None:
        raise NoMeshError(
            "no mesh is set",
            why="a type says how an array lies on each mesh axis, so it needs a mesh",
            hints=['sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 4}))', "with sh.use_mesh(mesh): ..."],
        )
    return mesh
