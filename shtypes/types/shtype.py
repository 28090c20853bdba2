"""`ShType`: dtype, dims and the state of each mesh axis. Pure: no JAX, no arrays."""

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

    Every mesh axis is in exactly one `State`; an axis is ``SHARDED`` exactly when a dim lists it. Types are interned
    while they are used, and hashable. Dim names print and are carried along by the rules, but equal types may differ in
    them. A type equals a text that names it, under the policy in force; sets and dicts tell the two apart, since their
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
    exact: tuple[Any, ...]  # what equality compares, and dim names: the key for caches that print
    uid: int  # a number that equal types share, and no other while one of them lives
    serial: int  # a number of this object alone, names included: never reused
    _identity: _Identity
    _hi: Any  # this type as a JAX type, see `core.jax_type`
    _cotangent: Any  # the type of its gradients, computed on first use
    placed: ClassVar[Callable[[ShType], Any]]  # what `sharding` is, set by the room that knows devices

    _interned: ClassVar[weakref.WeakValueDictionary[Any, ShType]] = weakref.WeakValueDictionary()
    _identities: ClassVar[weakref.WeakValueDictionary[Any, _Identity]] = weakref.WeakValueDictionary()
    _numbers: ClassVar[Iterator[int]] = itertools.count()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __new__(
        cls: type[T], mesh: Mesh, dtype: Any, dims: Iterable[Dim | int], states: Mapping[str, State] | Sequence[State]
    ) -> T:
        """Makes or finds the type.

        Args:
            mesh: The mesh.
            dtype: A dtype name, short (``f32``) or long (``float32``), or a numpy dtype.
            dims: One `Dim` per array dim; a bare int is an unsharded dim.
            states: The state of each axis, in mesh order, or of the axes that no dim lists, by name.

        Raises:
            ShardingTypeError: an axis is in two states or in none, a size does not divide, a bool or key is unreduced.
        """
        name = dtypes.from_any(dtype)
        full = tuple(d if isinstance(d, Dim) else Dim(d) for d in dims)
        all_states = _states(mesh, full, states) if isinstance(states, Mapping) else tuple(states)
        if not dtypes.differentiable(name):  # without a gradient R and I are one state
            all_states = tuple(State.REDUCED if s is State.INVARIANT else s for s in all_states)
        exact = (cls, mesh, name, full, all_states)
        interned = cls._interned.get(exact)
        if interned is not None:
            return interned  # type: ignore[return-value]
        odd = any(type(d.size) is not int or d.size < 0 for d in full)  # numpy's integers come in with shapes
        if odd:
            full = tuple([d._replace(size=as_size(d.size, 0, f"dim {i}")) for i, d in enumerate(full)])
        _check(mesh, name, full, all_states)
        return cls._of_checked(mesh, name, full, all_states)

    @classmethod
    def _of_checked(cls: type[T], mesh: Mesh, name: str, dims: tuple[Dim, ...], states: tuple[State, ...]) -> T:
        """The type whose parts were checked."""
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
            # A thread may have been quicker.
            return cls._interned.setdefault((cls, *self.exact), self)  # type: ignore[return-value]

    def of_class(self, other: type[T]) -> T:
        """The same type as an object of another class."""
        return other._of_checked(self.mesh, self.dtype_name, self.dims, self.states)

    def __eq__(self, other: object) -> bool:
        """Whether two types are the same but for dim names; a text is read as what `reshard` would make of it.

        Raises:
            ShardingTypeError: the text is none that any type over this mesh has.
        """
        if isinstance(other, str):
            return self._is_named(other)
        return self is other or (isinstance(other, ShType) and self.uid == other.uid)

    def __hash__(self) -> int:
        return hash(self.uid)

    # what it says

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

        It is on the devices of the mesh in context, else on those last seen for the type's mesh, else on an abstract
        mesh.

        Raises:
            ShardingTypeError: the type is unreduced or varying: no sharding says what the devices hold.
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

    # types derived from it

    def replace(
        self: T,
        *,
        dtype: str | None = None,
        dims: Iterable[Dim | int] | None = None,
        states: Mapping[str, State] | Sequence[State] | None = None,
    ) -> T:
        """A copy with another dtype, other dims or other states.

        With ``dims`` alone, an axis that the new dims no longer list must be named in ``states``.
        """
        new = self.dims if dims is None else tuple(d if isinstance(d, Dim) else Dim(d) for d in dims)
        if states is None:
            states = self.beside_dims
        return type(self)(self.mesh, dtype or self.dtype_name, new, states)

    def with_axis(self: T, axis: str, state: State, dim: int | None = None) -> T:
        """A copy in which ``axis`` is in ``state`` (minor-most on ``dim`` if sharded); dims keep their size."""
        if state is not State.SHARDED:
            return self.with_axes((axis,), state)
        if dim is None:
            raise ValueError("a sharded axis needs its dim")
        dims = [d._replace(axes=tuple(a for a in d.axes if a != axis)) for d in self.dims]
        dims[dim] = dims[dim]._replace(axes=(*dims[dim].axes, axis))
        return self.replace(dims=dims, states={a: s for a, s in self.beside_dims.items() if a != axis})

    def like(self: T, dtype: str) -> T:
        """The type of another value that is made like one of this type: without pending sums where none can be."""
        t = self if dtypes.summable(dtype) else self.with_axes(self.axes(State.UNREDUCED), State.REDUCED)
        return t.replace(dtype=dtype)

    def with_axes(self: T, axes: Iterable[str], state: State) -> T:
        """A copy in which ``axes`` are all in ``state``, which is not sharded; dims keep their size."""
        changed = dict.fromkeys(axes, state)
        dims = [d._replace(axes=tuple(a for a in d.axes if a not in changed)) for d in self.dims]
        return self.replace(dims=dims, states=self.beside_dims | changed)

    def cotangent(self: T) -> T:
        """The type of a gradient of a value of this type."""
        if self._cotangent is None:
            states = tuple(COTANGENT[s] for s in self.states)
            self._cotangent = self.replace(states=states) if self.differentiable else self.tangent()
        return self._cotangent  # type: ignore[no-any-return]

    def tangent(self: T) -> T:
        """The type of a tangent: the type itself, or ``float0`` where there is no gradient."""
        return self if self.differentiable else self.replace(dtype="float0")

    def named(self: T, names: Iterable[str | None]) -> T:
        """A copy with other dim names; equal to this type."""
        dims = [d._replace(name=n) for d, n in zip(self.dims, names, strict=True)]
        return self.replace(dims=dims)

    # text

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
        """Reads a type.

        Where ``like``, or ``shape`` and ``dtype``, describe the value, a text may leave things out: the dtype; a dim's
        size (``_`` or ``_@x``) and its axes too (``_@...``); the other dims, as they are (``...``, or no brackets at
        all) or whole (``_...``). An axis that is not mentioned, and that no dim keeps, is replicated, by policy. A name
        takes its size from the text (``seq=4``), the value, ``dims`` or a `dims` scope; where these disagree it is an
        error.

        Args:
            text: The text, such as ``f32[seq, 8@(x,y)]{U:z}``.
            mesh: The mesh; that of ``like``, or the one in context, by default.
            like: The type of the value that gets a new type.
            dims: Sizes of dim names; these go before the scope's.
            shape: The shape of the value.
            dtype: The dtype of the value, as a name or a numpy dtype.
            policy: The policy; the one in force by default.

        Raises:
            ShardingTypeError: the text is no type, names things that are not there, or does not fit the value.
        """
        return _parsed(text, reading_context(text, mesh, like, dims, shape, dtype, policy))

    def _is_named(self, text: str) -> bool:
        """Whether a text names this type, dim names aside; omissions in it are filled from the type."""
        try:
            return self.parse(text, like=self.named([None] * self.ndim)) == self
        except ShardingTypeError:
            check_axes_and_dtype(text, self)
            return False  # of another shape or dtype

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
                mesh.index(axis)  # says which axes there are
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
