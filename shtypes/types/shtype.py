"""`ShType`: dtype, dims and the state of each mesh axis. Needs no JAX and no arrays."""

from __future__ import annotations

import functools
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from shtypes.errors import ShardingTypeError
from shtypes.types import dtypes
from shtypes.types.mesh import Mesh, NamedAxes, as_size
from shtypes.types.notation.printing import canonical, show
from shtypes.types.notation.reading import ReadingContext, check_axes_and_dtype, read, reading_context
from shtypes.types.parts import COTANGENT, Dim, State, check_divides
from shtypes.types.tables import Table, notebook

T = TypeVar("T", bound="ShType")


class _Identity:
    """The identity that equal types share."""

    __slots__ = ("__weakref__", "uid")

    def __init__(self, uid: int) -> None:
        self.uid = uid


class ShType:
    """A sharding type ``dtype[dims]{states}`` over a mesh.

    Every mesh axis is in exactly one `State`; an axis is ``SHARDED`` exactly when a dim lists it. Types are hashable,
    and interned while referenced. Dim names print and are propagated by the rules, but equal types may differ in them.
    A type equals a string that names it under the current policy; sets and dicts distinguish the two, since their
    hashes differ.
    """

    __slots__ = (
        *("_cotangent", "_hi", "_identity", "__weakref__"),
        *("differentiable", "dims", "dtype_name", "exact", "local_shape", "mesh", "ndim", "serial", "shape", "size"),
        *("states", "uid"),
    )

    mesh: Mesh
    dtype_name: str
    dims: tuple[Dim, ...]
    states: tuple[State, ...]  # in mesh order
    ndim: int
    shape: tuple[int, ...]  # of the global array
    size: int  # the number of its elements
    local_shape: tuple[int, ...]  # of each device's shard
    differentiable: bool  # whether values of this type have gradients
    exact: tuple[Any, ...]  # the compared parts, and dim names: a cache key where names matter
    uid: int  # shared by equal types, and unique while one of them is alive
    serial: int  # unique to this object, names included; never reused
    _identity: _Identity
    _hi: Any  # the JAX type, see `core.jax_type`
    _cotangent: Any  # the type of its gradients, computed on first use
    placed: ClassVar[Callable[[ShType], Any]]  # computes `sharding`; set by `core.meshes`

    _interned: ClassVar[weakref.WeakValueDictionary[Any, ShType]] = weakref.WeakValueDictionary()
    _identities: ClassVar[weakref.WeakValueDictionary[Any, _Identity]] = weakref.WeakValueDictionary()
    _numbers: ClassVar[Iterator[int]] = itertools.count()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __new__(
        cls: type[T], mesh: Mesh, dtype: Any, dims: Iterable[Dim | int], states: Mapping[str, State] | Sequence[State]
    ) -> T:
        """Returns the interned type.

        Args:
            mesh: The mesh.
            dtype: A dtype name, short (``f32``) or long (``float32``), or a numpy dtype.
            dims: One `Dim` per array dim; an int is an unsharded dim.
            states: The state of each axis, in mesh order, or of the axes that no dim lists, by name.

        Raises:
            ShardingTypeError: an axis is in two states or in none, a size does not divide, a bool or key is unreduced.
        """
        name = dtypes.from_any(dtype)
        full = tuple([d if isinstance(d, Dim) else Dim(d) for d in dims])
        all_states = _states(mesh, full, states) if isinstance(states, Mapping) else tuple(states)
        if not dtypes.differentiable(name):  # R and I are equal without a gradient
            all_states = tuple([State.REDUCED if s is State.INVARIANT else s for s in all_states])
        exact = (cls, mesh, name, full, all_states)
        interned = cls._interned.get(exact)
        if interned is not None:
            return interned  # type: ignore[return-value]
        odd = any(type(d.size) is not int or d.size < 0 for d in full)  # shapes may contain numpy integers
        if odd:
            full = tuple([d._replace(size=as_size(d.size, 0, f"dim {i}")) for i, d in enumerate(full)])
        _check(mesh, name, full, all_states)
        return cls._of_checked(mesh, name, full, all_states)

    @classmethod
    def _of_checked(cls: type[T], mesh: Mesh, name: str, dims: tuple[Dim, ...], states: tuple[State, ...]) -> T:
        self = object.__new__(cls)
        self.mesh, self.dtype_name, self.dims, self.states = self.exact = mesh, name, dims, states
        self.shape = tuple([d.size for d in dims])
        self.ndim, self.size = len(dims), math.prod(self.shape)
        self.local_shape = tuple([d.size // math.prod([mesh.shape[a] for a in d.axes]) for d in dims])
        self.differentiable = dtypes.differentiable(name)
        self._hi = self._cotangent = None
        identity = (mesh, name, tuple([(d.size, d.axes) for d in dims]), states)
        with cls._lock:
            self._identity = cls._identities.setdefault(identity, _Identity(next(cls._numbers)))
            self.uid, self.serial = self._identity.uid, next(cls._numbers)
            # another thread may have been first
            return cls._interned.setdefault((cls, *self.exact), self)  # type: ignore[return-value]

    def of_class(self, other: type[T]) -> T:
        """The same type as an object of another class."""
        return other._of_checked(self.mesh, self.dtype_name, self.dims, self.states)

    def __eq__(self, other: object) -> bool:
        """Whether two types are equal up to dim names; a string is parsed as by `reshard`.

        Raises:
            ShardingTypeError: the string names no type over this mesh.
        """
        if isinstance(other, str):
            return self._is_named(other)
        return self is other or (isinstance(other, ShType) and self.uid == other.uid)

    def __hash__(self) -> int:
        return hash(self.uid)

    # properties

    @property
    def local_bytes(self) -> int:
        """Bytes of each device's shard."""
        return math.prod(self.local_shape) * dtypes.itemsize(self.dtype_name)

    @property
    def dtype(self) -> Any:
        """The numpy dtype (JAX's extended dtype for keys)."""
        return dtypes.to_numpy(self.dtype_name)

    @property
    def names(self) -> tuple[str | None, ...]:
        """The dim names."""
        return tuple(d.name for d in self.dims)

    @property
    def sharding(self) -> Any:
        """The `jax.sharding.NamedSharding` of values of this type: each dim over its axes.

        It is on the devices of the mesh in context, else on those last used with the type's mesh, else on an abstract
        mesh.

        Raises:
            ShardingTypeError: the type is unreduced or varying, which no sharding represents.
        """
        return type(self).placed(self)

    def state(self, axis: str) -> State:
        """The state of one mesh axis."""
        return self.states[self.mesh.index(axis)]

    def axes(self, *states: State) -> tuple[str, ...]:
        """The mesh axes in any of ``states``, in mesh order."""
        return tuple(a for a, s in zip(self.mesh.axis_names, self.states, strict=True) if s in states)

    @property
    def beside_dims(self) -> dict[str, State]:
        """The states of the axes that shard no dim, by name."""
        return {a: s for a, s in zip(self.mesh.axis_names, self.states, strict=True) if s is not State.SHARDED}

    def dim_of(self, axis: str) -> int | None:
        """The dim that ``axis`` shards, or None."""
        return next((i for i, d in enumerate(self.dims) if axis in d.axes), None)

    # derived types

    def replace(
        self: T,
        *,
        dtype: str | None = None,
        dims: Iterable[Dim | int] | None = None,
        states: Mapping[str, State] | Sequence[State] | None = None,
    ) -> T:
        """A copy with another dtype, other dims or other states.

        With ``dims`` alone, the states of axes that no longer shard a dim must be in ``states``.
        """
        if states is None:
            states = self.states if dims is None else self.beside_dims
        return type(self)(self.mesh, dtype or self.dtype_name, self.dims if dims is None else dims, states)

    def with_axis(self: T, axis: str, state: State, dim: int | None = None) -> T:
        """A copy with ``axis`` in ``state`` (minor-most on ``dim`` if sharded); dims keep their sizes."""
        if state is not State.SHARDED:
            return self.with_axes((axis,), state)
        if dim is None:
            raise ValueError("a sharded axis needs its dim")
        dims = [d._replace(axes=tuple(a for a in d.axes if a != axis)) for d in self.dims]
        dims[dim] = dims[dim]._replace(axes=(*dims[dim].axes, axis))
        return self.replace(dims=dims, states={a: s for a, s in self.beside_dims.items() if a != axis})

    def like(self: T, dtype: str) -> T:
        """A copy with another dtype; without pending sums if its values cannot be summed."""
        t = self if dtypes.summable(dtype) else self.with_axes(self.axes(State.UNREDUCED), State.REDUCED)
        return t.replace(dtype=dtype)

    def with_axes(self: T, axes: Iterable[str], state: State) -> T:
        """A copy with all ``axes`` in ``state``, which is not sharded; dims keep their sizes."""
        before = self.beside_dims
        changed = {a: state for a in axes if before.get(a) is not state}
        if not changed:
            return self
        dims = [d._replace(axes=tuple(a for a in d.axes if a not in changed)) for d in self.dims]
        return self.replace(dims=dims, states=before | changed)

    def cotangent(self: T) -> T:
        """The type of the gradients of values of this type."""
        if self._cotangent is None:
            states = tuple(COTANGENT[s] for s in self.states)
            self._cotangent = self.replace(states=states) if self.differentiable else self.tangent()
        return self._cotangent  # type: ignore[no-any-return]

    def tangent(self: T) -> T:
        """The type of tangents: the type itself, or ``float0`` without gradients."""
        return self if self.differentiable else self.replace(dtype="float0")

    def named(self: T, names: Iterable[str | None]) -> T:
        """A copy with other dim names; equal to this type."""
        return self.replace(dims=[d._replace(name=n) for d, n in zip(self.dims, names, strict=True)])

    # notation

    @classmethod
    def parse(
        cls,
        text: str,
        mesh: Mesh | NamedAxes | None = None,
        *,
        like: ShType | None = None,
        dims: Mapping[str, int] | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        policy: str | None = None,
    ) -> ShType:
        """Parses a type.

        If ``like``, or ``shape`` and ``dtype``, describe the value, a text may omit: the dtype; a dim's size (``_`` or
        ``_@x``) and axes (``_@...``); the other dims, unchanged (``...``, or no brackets at all) or unsharded
        (``_...``). An axis that is not mentioned, and that no dim keeps, is replicated, by policy. A name takes its
        size from the text (``seq=4``), the value, ``dims`` or a `dims` scope; contradictions are errors.

        Args:
            text: The text, such as ``f32[seq, 8@(x,y)]{U:z}``.
            mesh: The mesh; by default that of ``like``, or the one in context.
            like: The type of the value that gets the new type.
            dims: Sizes of dim names, which override the scope's.
            shape: The shape of the value.
            dtype: The dtype of the value, as a name or a numpy dtype.
            policy: The policy; the current one by default.

        Raises:
            ShardingTypeError: the text is not a type, has unknown names, or does not fit the value.
        """
        return _parsed(text, reading_context(text, mesh, like, dims, shape, dtype, policy))

    def _is_named(self, text: str) -> bool:
        """Whether a text names this type up to dim names; its omissions are filled in from the type."""
        try:
            return self.parse(text, like=self.named([None] * self.ndim)) == self
        except ShardingTypeError:
            check_axes_and_dtype(text, self)
            return False  # another shape or dtype

    def canonical(self) -> str:
        """The text that means this type under every policy: each R and I is written, names are not."""
        return canonical(self)

    def __str__(self) -> str:
        return show(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        dims = [
            (f"dim {i}{f' ({d.name})' if d.name else ''}", str(d.size), ", ".join(d.axes), str(n))
            for i, (d, n) in enumerate(zip(self.dims, self.local_shape, strict=True))
        ]
        states = [
            (axis, str(n), f"sharded, dim {i}" if (i := self.dim_of(axis)) is not None else s.name.lower())
            for (axis, n), s in zip(self.mesh.shape.items(), self.states, strict=True)
        ]
        note = f"{self.local_bytes} B on each device" + (
            f"; the gradient is {self.cotangent()}" if self.differentiable else ""
        )
        return notebook(
            Table(str(self), ("", "size", "mesh axes", "on each device"), tuple(dims), frozenset({"size"})),
            Table("", ("mesh axis", "devices", "state"), tuple(states), frozenset({"devices"}), note),
        )

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        states = tuple(s.value for s in self.states)
        return _unpickle, (type(self), self.mesh, self.dtype_name, tuple(tuple(d) for d in self.dims), states)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str, context: ReadingContext) -> ShType:
    return ShType(*read(text, context))


def _unpickle(cls: type[T], mesh: Mesh, dtype: Any, dims: Sequence[Any], states: Sequence[str]) -> T:
    return cls(mesh, dtype, [Dim(*d) for d in dims], tuple(State(s) for s in states))


def _states(mesh: Mesh, dims: tuple[Dim, ...], rest: Mapping[str, State]) -> tuple[State, ...]:
    """The state of each axis, in mesh order, from the axes on dims and the others' states."""
    sharding = {a for d in dims for a in d.axes}
    for axis in rest:
        mesh.index(axis)
        if axis in sharding:
            raise ShardingTypeError(f"mesh axis `{axis}` shards a dim and is also in state {rest[axis].value}")
    missing = [a for a in mesh.axis_names if a not in sharding and a not in rest]
    if missing:
        raise ShardingTypeError(f"mesh axis `{missing[0]}` has no state")
    return tuple(State.SHARDED if a in sharding else rest[a] for a in mesh.axis_names)


def _check(mesh: Mesh, dtype: str, dims: tuple[Dim, ...], states: tuple[State, ...]) -> None:
    if len(states) != len(mesh.axis_names):
        raise ShardingTypeError(f"a type over the mesh {mesh} needs {len(mesh.axis_names)} states, not {len(states)}")
    seen: set[str] = set()
    for d in dims:
        for axis in d.axes:
            if axis not in mesh.shape:
                mesh.index(axis)  # raises
            if axis in seen:
                raise ShardingTypeError(f"mesh axis `{axis}` shards two dims")
            seen.add(axis)
    for axis, state in zip(mesh.axis_names, states, strict=True):
        if (state is State.SHARDED) != (axis in seen):
            raise ShardingTypeError(f"mesh axis `{axis}` is in state {state.value}, which does not fit the dims")
        if state is State.UNREDUCED and not dtypes.summable(dtype):
            raise ShardingTypeError(f"a `{dtype}` array cannot be unreduced over `{axis}`: it cannot be summed")
    for i, d in enumerate(dims):
        if d.axes:
            check_divides(mesh, d, i)
