"""`Array`: a value with a sharding type, and the ways in and out of the typed world."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Annotated, Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from shtypes import dtypes
from shtypes._compat import aval_method, aval_property, no_trace_is_running, register_hitype
from shtypes.analysis.judging import judge, judge_leaving
from shtypes.analysis.scopes import allows_implicit, rules_in_force
from shtypes.calls import refuse_unknown
from shtypes.errors import ShardingTypeError
from shtypes.foreign import (
    OF_ARRAYS,
    as_jax_array,
    as_numpy_ufunc,
    refuse_native,
    refuse_setting,
    refused_attribute,
)
from shtypes.hitype import HiShType, equip, hi
from shtypes.host import canonical, check_width, converted, here, host_array, host_value, put, refuse_hidden
from shtypes.lowering.carrier import carrier_sharding, hidden_axes
from shtypes.policy import changed, current_ambient
from shtypes.scope import Scope
from shtypes.types import REPLICATED, ShType, State
from shtypes.where import placed, public

if TYPE_CHECKING:  # a base without anything that is set at run time
    from shtypes.array_methods import Methods as _Base

    _Meta = type
else:  # libraries ask by `isinstance(x, jax.Array)` which leaves of a tree are arrays
    _Base = jax.Array
    _Meta = type(jax.Array)


class _ArrayMeta(_Meta):
    """Lets ``isinstance(x, Array)`` hold for tracers of typed values as well."""

    def __instancecheck__(cls, x: Any) -> bool:  # noqa: N805  # of a metaclass, which ruff cannot see here
        return type(x) is Array or (isinstance(x, jax.core.Tracer) and type(jax.typeof(x)) is HiShType)


class Array(_Base, metaclass=_ArrayMeta):
    """A typed value: a type, and the global `jax.Array` that carries it.

    Made by `shtypes.array` and `shtypes.from_jax`, never directly. Tracers of typed values have the same attributes,
    methods and operators, and are instances of this class. To `isinstance` they are instances of `jax.Array` too; what
    JAX itself has for plain arrays only refuses them.

    Attributes:
        type: The sharding type.
        data: The carrier (see `shtypes.lowering.carrier`), or None for a value that has only a type.
    """

    __slots__ = ("data", "type")
    __array_ufunc__ = as_numpy_ufunc
    __jax_array__ = as_jax_array
    __setitem__ = refuse_setting
    __hash__ = None  # as of a jax.Array: equality is element by element

    type: HiShType
    data: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        error = ShardingTypeError(
            "a typed value is not made by `Array(...)`",
            hints=["sh.array(x, type) for a host array", "sh.from_jax(x) for a jax.Array"],
        )
        raise placed(error, "Array")

    def __class_getitem__(cls, text: str) -> Any:
        """``Array["f32[8@x]"]``, an annotation for `shtypes.typed`: short for ``Annotated[Array, "f32[8@x]"]``."""
        return Annotated[cls, text]

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self.type.shape

    @property
    def dtype(self) -> Any:
        """The numpy dtype."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.type.dims)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.type.size

    def block_until_ready(self) -> Array:
        """Waits until the value is computed."""
        if self.data is not None:
            self.data.block_until_ready()
        return self

    def copy_to_host_async(self) -> None:
        """Starts copying the carrier to the host."""
        self.data.copy_to_host_async()

    def delete(self) -> None:
        """Frees the carrier's memory on the devices."""
        self.data.delete()

    weak_type = False

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process can reach all of the carrier."""
        return self.data is None or bool(self.data.is_fully_addressable)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device has the whole value."""
        return all(state in REPLICATED for state in self.type.states)

    def is_ready(self) -> bool:
        """Whether the value is computed."""
        return self.data is None or bool(self.data.is_ready())

    def is_deleted(self) -> bool:
        """Whether the carrier was freed, for example by donation."""
        return bool(self.data.is_deleted())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The global value on the host; see `shtypes.host.host_value`."""
        return np.asarray(host_value(self, "np.asarray"), dtype=dtype)

    def __float__(self) -> float:
        return float(host_value(self, "float"))

    def __int__(self) -> int:
        return int(host_value(self, "int"))

    def __bool__(self) -> bool:
        return bool(host_value(self, "bool"))

    def __complex__(self) -> complex:
        return complex(host_value(self, "complex"))

    def __index__(self) -> int:
        return operator.index(host_value(self, "operator.index"))

    def tolist(self) -> Any:
        """The elements, as Python numbers in nested lists."""
        return host_value(self, "tolist").tolist()

    def item(self) -> Any:
        """The one element, as a Python number."""
        return host_value(self, "item").item()

    def __contains__(self, item: Any) -> bool:
        return bool((host_value(self, "in") == np.asarray(item)).any())

    def __len__(self) -> int:
        return _length(self)

    def __format__(self, spec: str) -> str:
        return format(str(self) if self.type.dims or not spec else host_value(self, "format").item(), spec)

    def __repr__(self) -> str:
        hidden = hidden_axes(self.type) or dtypes.is_key(self.type.dtype_name)
        if self.data is None or self.data.is_deleted() or not self.data.is_fully_addressable:
            return f"Array({self.type})"
        if hidden:
            from shtypes.local_mode.show import per_device

            return per_device(self) or f"Array({self.type})"
        return f"Array({self.type}, {np.array2string(host_value(self, 'repr'), prefix='Array(', threshold=100)})"

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            host = None if self.data is None else _key_data(np.asarray, here(self))
        except ShardingTypeError as error:
            raise placed(error, f"pickle({self.type})") from None
        return _unpickle, (self.type, host)

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: object) -> Array:
        return wrap(self.type, None if self.data is None else self.data.copy())


def wrap(t: HiShType, data: Any) -> Array:
    """A typed value from its carrier, or from nothing."""
    self = object.__new__(Array)
    self.type = t
    self.data = data
    return self


register_hitype(Array, lambda value: value.type)


def _key_data(convert: Any, data: Any) -> Any:
    """Host data of a carrier; keys travel as their words."""
    return convert(jax.random.key_data(data) if dtypes.is_key(str(data.dtype)) else data)


def _unpickle(t: HiShType, host: Any) -> Array:
    equip()
    if host is None:
        return wrap(t, None)
    if dtypes.is_key(t.dtype_name):
        host = jax.random.wrap_key_data(host, impl=dtypes.key_impl(t.dtype_name))
    return wrap(t, jax.device_put(host, carrier_sharding(t)))


def _length(x: Any) -> int:
    dims = jax.typeof(x).dims
    if not dims:
        raise TypeError("len() of a value without dims")
    size: int = dims[0].size
    return size


def _concrete_only(what: str) -> Any:
    """What a traced value answers where Python asks for a number."""

    def refuse(tracer: Any, *_: Any) -> Any:
        error = ShardingTypeError(
            f"a traced value, {jax.typeof(tracer)}, has no {what} while it is traced",
            hints=["sh.where, sh.cond and the loops take it as it is"],
        )
        raise placed(error, what)

    return refuse


# in


@public
def abstract_array(type: Any, mesh: Any = None, **options: Any) -> Array:
    """A value that has only a type: for `jax.eval_shape`, `jax.make_jaxpr`, ``.lower()`` and checks without devices.

    Args:
        type: A type, or its text.
        mesh: The mesh of a text; by default the one in context.
        **options: As for `ShType.parse`: ``dims``, ``dtype``, ``like``, ``policy``, ``shape``.
    """
    refuse_unknown("abstract_array", options, ("dims", "dtype", "like", "policy", "shape"))
    return wrap(hi(_as_type(type, mesh, **options)), None)


@public
def array(x: Any, type: Any = None, *, mesh: Any = None) -> Any:
    """A typed value from a host array, a number or a plain `jax.Array`.

    Args:
        x (...): The global value. Every process gives the same one.
        type: A text such as ``"f32[seq, batch@dp, hidden]"``, a `ShType` or a `jax.P`; by default replicated on every
            axis, as the policy says.
        mesh: The mesh of a text; by default the one in context.

    Returns:
        (...): The value with that type. An unreduced axis holds the value on index 0 and zeros elsewhere.

    Raises:
        ShardingTypeError: the type does not fit the array, or is varying.

    Communicates: nothing (each device is sent its own part).
    """
    if isinstance(x, jax.core.Tracer):
        return from_jax(x, type, mesh=mesh)
    if isinstance(x, Array):
        raise ShardingTypeError(f"the value has a type already, {x.type}", hints=["sh.reshard(x, type)"])
    host = x if isinstance(x, jax.Array) else host_array(x)
    own = dtypes.from_numpy(host.dtype)
    target = "[...]" if type is None else type
    says_dtype = isinstance(target, ShType) or (isinstance(target, str) and target.lstrip()[:1] not in ("[", "{", ""))
    default = None if says_dtype else own if dtypes.is_key(own) else dtypes.from_numpy(canonical(host.dtype))
    t = hi(_as_type(target, mesh, shape=tuple(host.shape), dtype=default))
    if _lies_somewhere(host) and (rules_in_force() or not no_trace_is_running()):
        return from_jax(host, t)  # what that sends is to be seen
    same = own == t.dtype_name and (dtypes.is_key(own) or host.dtype == t.dtype)  # not of the other byte order
    return _placed(host if same else converted(host, own, t), t)


def _lies_somewhere(x: Any) -> bool:
    """Whether an array is on several devices, and not the same on each."""
    return isinstance(x, jax.Array) and isinstance(x.sharding, NamedSharding) and not x.sharding.is_fully_replicated


def without_data() -> Scope:
    """Makes values that have only types of host arrays, so that a program that makes its arguments needs no devices."""
    return changed(lambda now: now._replace(only_types=True))


def _placed(host: Any, t: HiShType) -> Array:
    """A host value as a typed one: pending sums by a reshard of the replicated value."""
    from shtypes.primitives import from_concrete_p, move

    if t.axes(State.VARYING):
        refuse_hidden(t, "be made from one global value")
    check_width(t)
    if current_ambient().only_types:
        return wrap(t, None)
    unreduced = t.axes(State.UNREDUCED)
    rest = {a: State.REDUCED if a in unreduced else t.state(a) for a in t.mesh.axis_names if t.dim_of(a) is None}
    start = t.replace(states=rest)
    if no_trace_is_running():
        value = wrap(start, put(host, start, carrier_sharding(start)))
    else:  # here device_put would be traced, and its result no value
        value = from_concrete_p.bind(host, ty=start)
    moved: Array = move(value, t)
    return moved


def _as_type(target: Any, mesh: Any = None, **options: Any) -> ShType:
    from shtypes import notation
    from shtypes.mesh import current_mesh
    from shtypes.meshes import to_mesh

    if isinstance(target, ShType):
        return notation.as_type(target, target.mesh, **options)
    return notation.as_type(target, current_mesh() if mesh is None else to_mesh(mesh), **options)


@public
def from_jax(x: Any, type: Any = None, *, mesh: Any = None) -> Any:
    """A typed value from a plain `jax.Array`, concrete or traced.

    Args:
        x (...): The array. Its own type is JAX's: sharded where JAX says so, reduced, unreduced, else invariant.
        type: The type to give it, where that differs: reached from JAX's meaning by a visible reshard.
        mesh: The mesh, where neither the array nor the context has one.

    Returns:
        (...): The typed value.

    Raises:
        ShardingTypeError: an axis of the mesh is of JAX's auto kind and no type is given; the type does not fit.

    Communicates: what the reshard from the array's own type does; nothing without ``type``.
    Transpose: `to_jax`.
    """
    from shtypes.native import from_jax as convert

    return convert(x, type, mesh=mesh)


@public
def to_jax(x: Any) -> Any:
    """A typed value as a plain `jax.Array`, which any JAX function takes.

    Args:
        x (...): Sharded, reduced or invariant on each axis. Reduced axes become invariant, free in both directions.

    Returns:
        (...): The same global array, sharded in the same way; no copy.

    Raises:
        ShardingTypeError: the value is unreduced or varying.

    Communicates: nothing. Transpose: `from_jax`.
    """
    from shtypes.primitives import move, to_jax_p

    t = typeof(x)
    pending = t.axes(State.UNREDUCED)
    if pending and allows_implicit():
        whole = t
        for axis in pending:
            whole = whole.with_axis(axis, State.INVARIANT)
        judge("to_jax", t, whole, inserted=True)
        x, t = move(x, whole, inserted=True), whole
    refuse_hidden(t, "become a plain array")
    judge_leaving(t)
    if type(x) is Array and no_trace_is_running():
        if x.data is None:
            raise ShardingTypeError(f"a value that has only a type, {t}, has no data")
        return x.data
    return to_jax_p.bind(
        move(x, t.replace(states=tuple(State.INVARIANT if s is State.REDUCED else s for s in t.states)))
    )


@public
def typeof(x: Any) -> HiShType:
    """The sharding type of a typed value or tracer; equal to `jax.typeof`.

    Raises:
        ShardingTypeError: ``x`` has none.
    """
    if type(x) is Array:
        found: HiShType = x.type
        return found
    t = jax.typeof(x) if isinstance(x, jax.core.Tracer) else None
    if type(t) is not HiShType:
        raise ShardingTypeError(
            f"a value without a sharding type was given: {_describe(x)}",
            hints=["sh.array(x, type) for a host array", "sh.from_jax(x) for a jax.Array"],
        )
    return t


def _describe(x: Any) -> str:
    if isinstance(x, (jax.Array, jax.core.Tracer)):
        return f"a plain array of type {jax.typeof(x)}"
    if isinstance(x, np.ndarray):
        return f"a numpy array of shape {x.shape}"
    return f"{x!r:.60} ({type(x).__name__})"


# methods and operators, on values and on tracers


def install(operators: dict[str, Any], methods: dict[str, Any], properties: dict[str, Any]) -> None:
    """Gives values and tracers their operators (``add`` for ``__add__``), methods and properties."""
    for name, fn in operators.items():
        setattr(Array, f"__{name}__", _method(fn))
        setattr(HiShType, f"_{name}", staticmethod(fn))
    for name, fn in methods.items():
        setattr(Array, name, _method(fn))
        setattr(HiShType, name, aval_method(fn))
    for name, fn in properties.items():
        setattr(Array, name, property(fn))
        setattr(HiShType, name, aval_property(fn))


def _method(fn: Any) -> Any:
    @functools.wraps(fn)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(self, *args, **kwargs)

    return method


def _no_data(tracer: Any) -> Any:
    raise placed(ShardingTypeError(f"a traced value, {jax.typeof(tracer)}, has no data while it is traced"), "data")


install({}, {"to_jax": to_jax}, {})
for _name, _attribute in {
    "__jax_array__": aval_method(as_jax_array),
    "type": aval_property(jax.typeof),
    "data": aval_property(_no_data),
    **{name: aval_method(_concrete_only(name)) for name in ("item", "tolist")},
}.items():
    setattr(HiShType, _name, _attribute)
for _name, _answer in {
    **{name: staticmethod(_concrete_only(name)) for name in ("bool", "int", "float", "complex", "index")},
    "len": staticmethod(_length),
    "setitem": staticmethod(refuse_setting),
}.items():
    setattr(HiShType, f"_{_name}", _answer)
# What JAX reaches for only after it took a value for a plain array. Functions that ask for no more than a shape and a
# dtype (zeros_like) would make one without a word; primitives that know no types (stop_gradient) fail in other words.
for _name in ("aval", "val"):
    setattr(Array, _name, property(refuse_native))
for _name in OF_ARRAYS:
    setattr(Array, _name, refused_attribute(_name))
