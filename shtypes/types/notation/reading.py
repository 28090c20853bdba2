"""Parses types in their context: mesh, policy, sizes of dim names, and the value that they describe."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shtypes.context.scope import mapped_axes
from shtypes.context.settings import DimAxes, Sizes, check_policy
from shtypes.errors import ShardingTypeError
from shtypes.types import dtypes
from shtypes.types.mesh import Mesh, NamedAxes, current_mesh
from shtypes.types.notation.dim_names import current_dim_axes, current_dims, in_scope, sorted_sizes
from shtypes.types.notation.syntax import DimText, Syntax, caret, error_at, expand_ellipsis
from shtypes.types.parts import Dim, State, TypeParts, check_divides
from shtypes.types.policy import REPLICATED_STATE, current_policy


class ValueInfo(NamedTuple):
    """What the caller says of the value that a type describes; None where unspecified."""

    dims: tuple[Dim, ...] | None
    dtype: str | None
    what: str  # "the value" or "the array", for messages
    typed: bool = False  # whether its dims have axes

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dims."""
        return tuple(d.size for d in self.dims or ())


def common_mesh(mesh: Mesh | NamedAxes | None, like: TypeParts | None) -> Mesh | None:
    """The mesh of the caller or the value; raises if they differ."""
    mesh = None if mesh is None else Mesh(mesh)  # may be a JAX mesh
    if like is None:
        return mesh
    if mesh is not None and mesh is not like.mesh:
        raise ShardingTypeError(f"the value lies on the mesh {like.mesh}, and the type is to be over {mesh}")
    return like.mesh


def describe(like: TypeParts | None, shape: Sequence[int] | None, dtype: Any) -> ValueInfo:
    """The `ValueInfo` of ``like``, ``shape`` and ``dtype``; raises if they contradict each other."""
    name = None if dtype is None else dtypes.from_any(dtype)
    sizes = None if shape is None else tuple(operator.index(n) for n in shape)
    if like is None:
        return ValueInfo(None if sizes is None else tuple(map(Dim, sizes)), name, "the array")
    if sizes is not None and sizes != like.shape:
        raise ShardingTypeError(f"a value of type {like} has shape {like.shape}, not {sizes}")
    if name is not None and name != like.dtype_name:
        raise ShardingTypeError(f"a value of type {like} has dtype `{like.dtype_name}`, not `{name}`")
    return ValueInfo(like.dims, like.dtype_name, "the value", typed=True)


class ReadingContext(NamedTuple):
    """All that a parsed type depends on besides its text; hashable, as a cache key."""

    mesh: Mesh
    value: ValueInfo
    replicated: State  # the policy's state of unmentioned axes
    sizes: Sizes
    dim_axes: DimAxes
    mapped: tuple[str, ...]  # axes over which `vmap` maps the value, so that it varies over them


class Parts(NamedTuple):
    """The arguments of `ShType`."""

    mesh: Mesh
    dtype: str
    dims: tuple[Dim, ...]
    states: dict[str, State]


def reading_context(
    text: str,
    mesh: Mesh | NamedAxes | None,
    like: TypeParts | None,
    dims: Mapping[str, int] | None,
    shape: Sequence[int] | None,
    dtype: Any,
    policy: str | None,
) -> ReadingContext:
    """The context of a call of `ShType.parse`, with its arguments."""
    if not isinstance(text, str):
        raise ShardingTypeError(f"a type is read from text, not from `{text!r}`")
    sizes = current_dims() if dims is None else sorted_sizes({**dict(current_dims()), **dims})
    replicated = REPLICATED_STATE[check_policy(policy or current_policy())]
    value = describe(like, shape, dtype)
    over = common_mesh(mesh, like) or current_mesh()
    mapped = () if like is None else tuple(a for a in mapped_axes() if like.state(a) is State.VARYING)
    return ReadingContext(over, value, replicated, sizes, current_dim_axes(), mapped)


def read(text: str, context: ReadingContext) -> Parts:
    """Parses a type."""
    mesh, value, replicated, sizes, dim_axes, mapped = context
    text, syntax = in_scope(text, mesh, dim_axes)
    dtype = _dtype(text, syntax, value)
    states = _states(text, syntax, mesh, dtype)
    dims = _Dims(text, syntax, mesh, value, sizes).read(mentioned=states)
    sharding = {a for d in dims for a in d.axes}
    states = dict.fromkeys(mesh.axis_names, replicated) | dict.fromkeys(mapped, State.VARYING) | states
    return Parts(mesh, dtype, dims, {a: state for a, state in states.items() if a not in sharding})


def check_axes_and_dtype(text: str, t: TypeParts) -> None:
    """Raises if a text has an axis that a type's mesh lacks, or a wrong dtype; ignores its dims."""
    text, syntax = in_scope(text, t.mesh)
    _states(text, syntax, t.mesh, _dtype(text, syntax, ValueInfo(None, None if syntax.dtype else t.dtype_name, "")))


@contextlib.contextmanager
def _pointing_at(text: str, at: int) -> Iterator[None]:
    """Makes errors raised inside point at a column of the text."""
    try:
        yield
    except ShardingTypeError as error:
        error.where = error.where or caret(text, at)
        raise


def _dtype(text: str, syntax: Syntax, value: ValueInfo) -> str:
    if syntax.dtype is None:
        if value.dtype is None:
            raise error_at(text, 0, "the type has no dtype", hints=[f"f32{text.strip()}"])
        return value.dtype
    with _pointing_at(text, syntax.dtype.at):
        name = dtypes.short_name(syntax.dtype.text)
    if value.dtype not in (None, name):
        raise error_at(
            text,
            syntax.dtype.at,
            f"the type has dtype `{name}`, and {value.what} has dtype `{value.dtype}`",
            "giving a value a type never casts it",
            ["leave the dtype out of the type", f'cast first: astype("{name}")'],
        )
    return name


def _states(text: str, syntax: Syntax, mesh: Mesh, dtype: str) -> dict[str, State]:
    """The state of each axis that the text mentions."""
    states: dict[str, State] = {}
    for state, axes in (*((State.SHARDED, d.axes) for d in syntax.dims or ()), *syntax.states):
        for axis in axes:
            with _pointing_at(text, axis.at):
                mesh.index(axis.text)
            if axis.text in states:
                why = "a mesh axis shards one dim or is in one other state"
                raise error_at(text, axis.at, f"mesh axis `{axis.text}` is written twice", why)
            if state is State.UNREDUCED and not dtypes.summable(dtype):
                why = f"an unreduced array is a pending sum, and `{dtype}` values cannot be summed"
                raise error_at(text, axis.at, f"a `{dtype}` array cannot be unreduced over `{axis.text}`", why)
            states[axis.text] = state
    return states


class _Dims:
    """Evaluates the dims of one text."""

    def __init__(self, text: str, syntax: Syntax, mesh: Mesh, value: ValueInfo, sizes: Sizes) -> None:
        self.text, self.mesh, self.value = text, mesh, value
        self.bracketed = syntax.dims is not None
        self.dim_texts = (DimText("...", None, (), 0),) if syntax.dims is None else syntax.dims
        self.sizes_in_scope = dict(sizes)
        #: The column of each axis in the text.
        self.axis_columns = {a.text: a.at for d in self.dim_texts for a in d.axes}
        self.axis_columns |= {a.text: a.at for _, axes in syntax.states for a in axes}
        #: The sizes of each dim name so far, with their sources.
        self.sizes_by_name: dict[str, list[tuple[int, str]]] = {}
        for d in self.dim_texts:
            if d.head and d.size is not None:
                self.sizes_by_name.setdefault(d.head, []).append((d.size, "in the type"))

    def read(self, mentioned: Mapping[str, State]) -> tuple[Dim, ...]:
        """The dims. Those under ``...`` are the value's, without the axes that the text mentions elsewhere."""
        dims = []
        for i, (d, old) in enumerate(self.aligned()):
            if d.head == "..." and old is not None:
                dims.append(old._replace(axes=tuple(a for a in old.axes if a not in mentioned)))
                continue
            size, name = self.dim_by_size(d, i, old) if d.head in ("", "_") else self.dim_by_name(d, i, old)
            axes = (
                self.copied_axes(d, i, old, mentioned)
                if d.keeps_axes and old is not None
                else tuple(a.text for a in d.axes)
            )
            dim = Dim(size, axes, name)
            with _pointing_at(self.text, d.at):
                check_divides(self.mesh, dim, i)
            dims.append(dim)
        return tuple(dims)

    def aligned(self) -> list[tuple[DimText, Dim | None]]:
        """Pairs each dim of the text, ``...`` expanded, with the value's dim at that position."""
        written, value = self.dim_texts, self.value
        for d in written:
            if (value.dims is None and (d.open_ended or d.head == "_")) or (d.keeps_axes and not value.typed):
                raise self.cannot_fill_in(d)
        if value.dims is None:
            return [(d, None) for d in written]
        full = expand_ellipsis(written, len(value.dims))
        if full is None:
            besides = "".join(f" besides `{d}`" for d in written if d.open_ended)
            count = sum(not d.open_ended for d in written)
            what = f"the type has {count} dims{besides}, and {value.what} has {len(value.dims)}"
            raise error_at(self.text, written[0].at if count else 0, what, self.has_shape)
        return list(zip(full, value.dims, strict=True))

    def copied_axes(self, d: DimText, index: int, old: Dim, mentioned: Mapping[str, State]) -> tuple[str, ...]:
        """The value's axes for ``_@...``; raises if the text uses one of them elsewhere."""
        for axis in old.axes:
            if axis in mentioned:
                at = self.axis_columns[axis]
                what = f"mesh axis `{axis}` is written here, and dim {index} keeps it"
                why = f"`{d}` keeps the axes of a dim, and dim {index} of {self.value.what} is sharded over `{axis}`"
                hints = [f"`{str(d).removesuffix('@...')}` in its place makes dim {index} whole"]
                raise error_at(self.text, at, what, why, [*hints, f"leave `{axis}` out elsewhere"])
        return old.axes

    def dim_by_size(self, d: DimText, index: int, old: Dim | None) -> tuple[int, str | None]:
        """Size and name of a dim written as a size or as ``_``."""
        if old is None:
            return d.size or 0, None  # `aligned` checked that there is a size
        if d.size not in (None, old.size):
            what = f"dim {index} has size {d.size} in the type and {old.size} in {self.value.what}"
            raise error_at(self.text, d.at, what, self.has_shape, ["`_` keeps the size of a dim"])
        return old.size, old.name

    def dim_by_name(self, d: DimText, index: int, old: Dim | None) -> tuple[int, str]:
        """Size and name of a dim written as a name; raises if it has no size, or two."""
        sizes = self.sizes_by_name.setdefault(d.head, [])
        if old is not None:
            if old.name not in (None, d.head):
                what = f"dim {index} is named `{d.head}` in the type and `{old.name}` in {self.value.what}"
                why = "a type given to a value neither reorders its dims nor names them anew"
                raise error_at(self.text, d.at, what, why, ["`_` keeps the name and the size of a dim"])
            sizes.append((old.size, f"in dim {index} of {self.value.what}"))
        scoped = [(self.sizes_in_scope[d.head], "by the dim names in scope")] if d.head in self.sizes_in_scope else []
        candidates = [*sizes, *scoped]
        if not candidates:
            why = "a dim name stands for a size, and nothing gives it one here"
            hints = [f"write it in the type: `{d.head}=8`", f"with sh.dims({d.head}=8): ..."]
            raise error_at(self.text, d.at, f"dim `{d.head}` has no size", why, hints)
        size, source = candidates[0]
        for other, where in candidates:
            if other != size:
                what = f"dim `{d.head}` has two sizes: {size} {source} and {other} {where}"
                raise error_at(self.text, d.at, what)
        return size, d.head

    def cannot_fill_in(self, d: DimText) -> ShardingTypeError:
        """The error for an omission without a value to fill it in."""
        if d.keeps_axes and self.value.dims is not None:
            what = f"nothing says which axes `{d}` keeps"
            return error_at(
                self.text, d.at, what, f"{self.value.what} has a shape, and no type yet", ["write the axes"]
            )
        return error_at(
            self.text,
            d.at,
            f"nothing says what `{d if d.keeps_axes else d.head}` stands for"
            if self.bracketed
            else "the type has no dims",
            "what a text leaves out is taken from a value, and none is given",
            ["write each dim's size or name: `f32[8@x,4]`", "pass like= (a type), or shape="],
        )

    @property
    def has_shape(self) -> str:
        return f"{self.value.what} has shape {self.value.shape}"
