"""`Array`: a value with a sharding type; and the attributes that values and their tracers share."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import jax
import jax.typing
import numpy as np
from jax.sharding import NamedSharding

from shtypes._compat import aval_method, aval_property, no_trace_is_running
from shtypes._compat.plain_programs import closed_over
from shtypes._compat.program_mesh import sees_plain
from shtypes._compat.tracing import escaped_error
from shtypes._compat.typed import register
from shtypes.context.eqn_source import plain_trace
from shtypes.context.user_line import placed
from shtypes.core.checkpoints import sharding_for_orbax
from shtypes.core.host import addressable_array, host_value
from shtypes.core.interop_errors import (
    FOR_PLAIN,
    OF_ARRAYS,
    OF_PHYSICAL,
    as_jax_array,
    as_numpy_ufunc,
    attribute,
    reading_package,
    refuse_attribute,
    refuse_lowering,
    refuse_setting,
    refused_attribute,
    sharding_of_value,
)
from shtypes.core.jax_errors import concretization_error
from shtypes.core.jax_type import HiShType
from shtypes.core.physical import hidden_axes, physical_sharding, with_key_data
from shtypes.errors import ShardingTypeError
from shtypes.types import REPLICATED, State, dtypes

if TYPE_CHECKING:  # a base without runtime attributes
    from shtypes.core.array_methods import Methods as _Base

    _Meta = type
else:  # libraries use `isinstance(x, jax.Array)` to find arrays among leaves
    _Base = jax.Array
    _Meta = type(jax.Array)


class _ArrayMeta(_Meta):
    """Makes tracers of typed values instances of `Array`."""

    def __instancecheck__(cls, x: Any) -> bool:  # noqa: N805  # of a metaclass, which ruff cannot see here
        if type(x) is Array or not isinstance(x, jax.core.Tracer):
            return type(x) is Array
        typed = type(jax.typeof(x)) is HiShType
        if not typed and plain_trace.typed:
            raise ShardingTypeError("it asks whether a value is typed, for which plain ones stand while it is traced")
        return typed


class Array(_Base, metaclass=_ArrayMeta):
    """A typed value: a type, and its physical `jax.Array`.

    Created by `shtypes.array` and `shtypes.from_jax`, never directly. Tracers of typed values have the same attributes,
    methods and operators, and are instances of this class. All are instances of `jax.Array`, but JAX's functions of
    plain arrays refuse them.

    Attributes:
        type: The sharding type.
        data: The physical array (see `shtypes.core.physical`), or None for an abstract value.
    """

    __slots__ = ("__weakref__", "data", "type")
    __array_ufunc__ = as_numpy_ufunc
    __jax_array__ = as_jax_array
    __setitem__ = refuse_setting
    __hash__ = None  # as for jax.Array: equality is elementwise

    type: HiShType
    data: Any
    # attributes of the physical array, for an unsharded value
    addressable_data: Callable[[int], jax.Array]
    addressable_shards: Sequence[jax.Shard]
    committed: bool
    devices: Callable[[], set[jax.Device]]
    global_shards: Sequence[jax.Shard]
    on_device_size_in_bytes: Callable[[], int]

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

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of the value: each dim over its axes; on an abstract mesh without data and devices.

        Missing in traces, as for plain arrays, and for JAX's functions, which take plain arrays.

        Raises:
            ShardingTypeError: the value is unreduced or varying, which no sharding represents.
        """
        package = reading_package()
        if package in FOR_PLAIN:
            refuse_attribute(self, "sharding")
        return sharding_for_orbax(self) if package == "orbax" else sharding_of_value(self)

    def block_until_ready(self) -> Array:
        """Waits until the value is computed."""
        if self.data is not None:
            self.data.block_until_ready()
        return self

    def copy_to_host_async(self) -> None:
        """Starts copying the physical array to the host, as `jax.device_get` does first; refused for keys."""
        if dtypes.is_key(self.type.dtype_name):
            host_value(self, "copy_to_host_async")
        self.data.copy_to_host_async()

    def delete(self) -> None:
        """Frees the physical array's memory on the devices."""
        self.data.delete()

    weak_type = False

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process can access all of the physical array."""
        return self.data is None or bool(self.data.is_fully_addressable)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device has the full value."""
        return all(state in REPLICATED for state in self.type.states)

    def is_ready(self) -> bool:
        """Whether the value is computed."""
        return self.data is None or bool(self.data.is_ready())

    def is_deleted(self) -> bool:
        """Whether the physical array was freed, such as by donation."""
        return bool(self.data.is_deleted())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The global value on the host, see `shtypes.core.host.host_value`; copied if numpy asks for that."""
        options: dict[str, Any] = {} if copy is None else {"copy": copy}
        return np.asarray(host_value(self, "np.asarray"), dtype=dtype, **options)

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
        if not isinstance(self.data, jax.Array) or self.data.is_deleted() or not self.data.is_fully_addressable:
            return f"Array({self.type})"
        if hidden:
            return _per_device(self) or f"Array({self.type})"
        return f"Array({self.type}, {np.array2string(host_value(self, 'repr'), prefix='Array(', threshold=100)})"

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            host = None if self.data is None else np.asarray(with_key_data(self.type, addressable_array(self)))
        except ShardingTypeError as error:
            raise placed(error, f"pickle({self.type})") from None
        return unpickled, (self.type, host)

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: object) -> Array:
        return wrap(self.type, None if self.data is None else self.data.copy())


#: Operands of ops: typed values, and arguments that `as_operands` converts.
ArrayLike: TypeAlias = Array | jax.typing.ArrayLike


def wrap(t: HiShType, data: Any) -> Array:
    """A typed value from its physical array, or None."""
    self = object.__new__(Array)
    self.type = t
    self.data = data
    return self


def wrap_all(types: Sequence[HiShType | None], data: Iterable[Any]) -> list[Any]:
    """`wrap` for several values, without a call for each."""
    values: list[Any] = [*map(object.__new__, itertools.repeat(Array, len(types)))]
    for value, t, x in zip(values, types, data, strict=True):
        value.type = t
        value.data = x
    return values


register(Array, "type")


#: The maximum number of devices in the repr of a varying value.
_MOST_SHOWN = 16


def _per_device(x: Any) -> str:
    """``Array(f32[2]{V:x})`` and a line for each device along the varying axes; empty for other types."""
    t = x.type
    varying = t.axes(State.VARYING)
    if hidden_axes(t) != varying or not varying or dtypes.is_key(t.dtype_name):
        return ""
    data = np.asarray(x.data)
    sizes = [t.mesh.shape[a] for a in varying]
    lines = [f"Array({t})"]
    for place in itertools.islice(itertools.product(*map(range, sizes)), _MOST_SHOWN):
        at = ", ".join(f"{axis}={i}" for axis, i in zip(varying, place, strict=True))
        text = np.array2string(
            np.moveaxis(data, range(-len(sizes), 0), range(len(sizes)))[place], prefix=f"  {at}: ", threshold=100
        )
        lines.append(f"  {at}: {text}")
    rest = t.mesh.product(varying) - _MOST_SHOWN
    return "\n".join([*lines, f"  and {rest} more"] if rest > 0 else lines)


def unpickled(t: HiShType, host: Any) -> Array:
    """The value of a type with host data, or without data."""
    if host is None:
        return wrap(t, None)
    if dtypes.is_key(t.dtype_name):
        host = jax.random.wrap_key_data(host, impl=dtypes.key_impl(t.dtype_name))
    return wrap(t, jax.device_put(host, physical_sharding(t)))


def _length(x: Any) -> int:
    dims = jax.typeof(x).dims
    if not dims:
        raise TypeError("len() of a value without dims")
    size: int = dims[0].size
    return size


def _concrete_only(what: str) -> Any:
    """A method of tracers that refuses, for Python's conversions to numbers."""

    def refuse(tracer: Any, *_: Any) -> Any:
        raise placed(
            concretization_error(jax.typeof(tracer), what, ["sh.where, sh.cond and the loops take it as it is"]), what
        )

    return refuse


# methods and operators of values and tracers


def install(operators: dict[str, Any], methods: dict[str, Any], properties: dict[str, Any]) -> None:
    """Sets the operators (``add`` for ``__add__``), methods and properties of values and tracers."""
    for name, fn in operators.items():
        method = _method(f"__{name}__", fn)
        setattr(Array, f"__{name}__", method)
        setattr(HiShType, f"_{name}", staticmethod(method))
    for name, fn in methods.items():
        method = _method(name, fn)
        setattr(Array, name, method)
        setattr(HiShType, name, aval_method(method))
    for name, fn in properties.items():
        get = _getter(name, fn)
        setattr(Array, name, property(get))
        setattr(HiShType, name, aval_property(get))


def _method(name: str, fn: Any) -> Any:
    plain = hasattr(jax.Array, name)

    @functools.wraps(fn)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if plain and sees_plain():
            return getattr(closed_over(self), name)(*args, **kwargs)
        return fn(self, *args, **kwargs)

    return method


def _getter(name: str, fn: Any) -> Any:
    plain = hasattr(jax.Array, name)

    @functools.wraps(fn)
    def get(self: Any) -> Any:
        return getattr(closed_over(self), name) if plain and sees_plain() else fn(self)

    return get


def _no_data(tracer: Any) -> Any:
    if no_trace_is_running():
        error = escaped_error(jax.typeof(tracer))
    else:
        error = ShardingTypeError(f"a traced value, {jax.typeof(tracer)}, has no data while it is traced")
    raise placed(error, "data")


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
# Attributes that JAX uses after it took a value for a plain array. Functions that need only a shape and a dtype
# (zeros_like) would silently return one; primitives without typed rules (stop_gradient) fail with other messages.
for _name in ("aval", "val"):
    setattr(Array, _name, property(refuse_lowering))
for _name in OF_ARRAYS:
    setattr(Array, _name, refused_attribute(_name))
for _name in OF_PHYSICAL:
    setattr(Array, _name, attribute(_name))
