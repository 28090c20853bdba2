"""Dim names: their sizes, and the mesh axes that shard them by default."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from shtypes.context.scope import Scope, changed
from shtypes.context.settings import DimAxes, Sizes, current_settings
from shtypes.errors import ShardingTypeError, quoted, short
from shtypes.types.mesh import Mesh, as_size
from shtypes.types.notation.printing import show_dim
from shtypes.types.notation.syntax import DimText, Syntax, caret, read_syntax

#: A size with few enough digits for an array.
_SIZE: Final = re.compile(r"[0-9]{1,18}")
#: The axes of one dim name: an axis, several (major to minor), or None.
AxesOfName: TypeAlias = "str | Sequence[str] | None"

_WORD: Final = re.compile(r"\w+(\s*=\s*[0-9]+)?")


# sizes


def dims(**sizes: int) -> Scope:
    """A scope that sets the sizes of dim names; nests, the inner one wins, and applies to this thread.

    A context manager or a decorator.

    Examples:
        >>> from shtypes.types.mesh import Mesh
        >>> from shtypes.types.target import parse
        >>> with dims(seq=4, batch=8):
        ...     parse("f32[seq, batch@dp]", Mesh({"dp": 2})).shape
        (4, 8)
    """
    inner = sorted_sizes(sizes)
    return changed(lambda s: s._replace(dims=tuple(sorted({**dict(s.dims), **dict(inner)}.items()))))


def current_dims() -> Sizes:
    """The dim names in scope and their sizes, sorted by name."""
    return current_settings().dims


def read_sizes(text: str) -> dict[str, int]:
    """Parses names and sizes such as ``dp=2,tp=4``, in order."""
    sizes: dict[str, int] = {}
    for part in text.replace(",", " ").split():
        name, equals, size = part.partition("=")
        if not name or not equals:
            raise ShardingTypeError(f"`{short(part)}` is not like `{short(name) if name.isidentifier() else 'dp'}=2`")
        if not _SIZE.fullmatch(size):
            raise ShardingTypeError(
                f"the size of `{short(name)}` is a whole number, as in `{short(name)}=2`, not `{short(size)}`"
            )
        if name in sizes:
            raise ShardingTypeError(f"`{short(name)}` is given twice")
        sizes[name] = int(size)
    return sizes


def sorted_sizes(sizes: Mapping[str, int]) -> Sizes:
    """The checked sizes, sorted by name."""
    for name in sizes:
        if not name.isidentifier() or name == "_":
            raise ShardingTypeError(f"a dim needs a name like `batch`, not `{name}`")
    return tuple(sorted((name, as_size(size, 0, f"dim `{name}`")) for name, size in sizes.items()))


# axes


def dim_axes(axes: Mapping[str, AxesOfName] | Iterable[tuple[str, AxesOfName]]) -> Scope:
    """A scope in which dims with these names are sharded over these mesh axes by default.

    So ``f32[embed, mlp]`` is one model on every mesh. It applies where a type is parsed: in `sh.array`, `reshard`,
    ``out=``, specs, comparisons, and in signatures, which are parsed at the call. Axes in the type take precedence:
    ``mlp@dp`` has only these axes, ``mlp@()`` has none, and ``mlp@...`` keeps those of the value. In the scope, an
    unsharded dim whose name has axes prints as ``mlp@()``, so that printed types parse back.

    A context manager or a decorator, for this thread. It nests: the inner one wins, name by name.

    Args:
        axes: For each dim name a mesh axis, several (major to minor), or None. Pairs are accepted, as in Flax's rules,
            if no name is repeated.

    Raises:
        ShardingTypeError: a name or an axis is invalid; (when a type is parsed) the mesh has no such axis, or the type
            uses the axis elsewhere too.

    Communicates: nothing.

    Examples:
        >>> from shtypes.types.mesh import Mesh
        >>> from shtypes.types.target import parse
        >>> with dim_axes({"batch": "dp", "mlp": "tp", "embed": None}):
        ...     parse("f32[embed=8, mlp=16]", Mesh({"dp": 2, "tp": 4})).local_shape
        (8, 4)
    """
    inner = _checked(axes)
    return changed(lambda s: s._replace(dim_axes=tuple(sorted({**dict(s.dim_axes), **inner}.items()))))


def current_dim_axes() -> DimAxes:
    """The axes of dim names in scope (empty for unsharded), sorted by name."""
    return current_settings().dim_axes


def _checked(mapping: Mapping[str, AxesOfName] | Iterable[tuple[str, AxesOfName]]) -> dict[str, tuple[str, ...]]:
    try:
        pairs = [(name, axes) for name, axes in (mapping.items() if isinstance(mapping, Mapping) else mapping)]
    except (TypeError, ValueError):
        raise ShardingTypeError(
            f"`dim_axes` takes a mapping of dim names to mesh axes, not {mapping!r:.60}",
            hints=['sh.dim_axes({"batch": "dp", "embed": None})'],
        ) from None
    axes_by_name: dict[str, tuple[str, ...]] = {}
    for name, axes in pairs:
        if not _is_name(name):
            raise ShardingTypeError(f"a dim needs a name like `batch`, not `{name!r:.60}`")
        several = (axes,) if isinstance(axes, str) else () if axes is None else axes
        if not isinstance(several, (tuple, list)) or not all(map(_is_name, several)):
            raise ShardingTypeError(
                f"the axes of dim `{name}` are a mesh axis, a tuple of them or None, not `{axes!r:.60}`"
            )
        if len(set(several)) < len(several):
            raise ShardingTypeError(f"dim `{name}` has a mesh axis twice: {quoted(several)}")
        if name in axes_by_name:
            why = "a dim name has one place on every mesh; no rule steps in for another one whose axis is taken"
            raise ShardingTypeError(f"`dim_axes` is given dim `{name}` twice", why=why)
        axes_by_name[name] = tuple(several)
    return axes_by_name


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and name != "_"


def in_scope(
    text: str, mesh: Mesh, scope: DimAxes | None = None, read: Callable[[str], Syntax] = read_syntax
) -> tuple[str, Syntax]:
    """A type, spec or pattern with the axes of dim names written out, by default those in scope, and its syntax."""
    scope = current_dim_axes() if scope is None else scope
    return _in_scope(text, mesh, scope, read) if scope else (text, read(text))


@functools.lru_cache(maxsize=4096)
def _in_scope(text: str, mesh: Mesh, scope: DimAxes, read: Callable[[str], Syntax]) -> tuple[str, Syntax]:
    syntax, of_names = read(text), dict(scope)
    #: The owner of each axis, in words.
    taken = {a.text: f"dim `{d.head or d.size}` has" for d in syntax.dims or () for a in d.axes}
    taken |= {a.text: "the braces have" for _, axes in syntax.states for a in axes}
    pieces, last = [], 0
    for d in syntax.dims or ():
        axes = of_names.get(d.head, ()) if not (d.axes or d.keeps_axes or d.unsharded or d.form) else ()
        if not axes:
            continue
        for axis in axes:
            if axis not in mesh.shape:
                raise _not_there(text, d, axis, mesh)
            if axis in taken:
                raise _taken(text, d, axis, taken[axis])
            taken[axis] = f"dim `{d.head}` has"
        word = _WORD.match(text, d.at)
        end = word.end() if word else d.at
        pieces += [text[last:end], show_dim("", axes)]
        last = end
    if not pieces:
        return text, syntax
    spelled = "".join([*pieces, text[last:]])
    return spelled, read(spelled)


def _not_there(text: str, d: DimText, axis: str, mesh: Mesh) -> ShardingTypeError:
    names = quoted(mesh.axis_names) or "no axes"
    similar = difflib.get_close_matches(axis, mesh.axis_names, n=1, cutoff=0.5)
    return ShardingTypeError(
        f"`sh.dim_axes` shards dim `{d.head}` over `{axis}`, and the mesh has no axis `{axis}`; it has {names}",
        where=caret(text, d.at),
        hints=[
            *(f"`{name}`" for name in similar),
            f"a mesh on which `{axis}` has size 1: such an axis shards nothing",
            f"`{d.head}@()` has no axes, whatever the scope says",
        ],
    )


def _taken(text: str, d: DimText, axis: str, who: str) -> ShardingTypeError:
    return ShardingTypeError(
        f"`sh.dim_axes` shards dim `{d.head}` over `{axis}`, and {who} it already",
        where=caret(text, d.at),
        why="a mesh axis shards one dim or is in one other state",
        hints=[f"`{d.head}@()` has no axes, whatever the scope says", f"`{d.head}@axis` has the axes that are written"],
    )
