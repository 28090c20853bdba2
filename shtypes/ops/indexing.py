"""``x[...]`` and ``x.at[...]``: JAX's indexing, of typed values. Nothing here communicates."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from typing import Any, Final, TypedDict, Unpack

import jax
import numpy as np

from shtypes.context.signature_errors import check_function, refuse_unknown
from shtypes.core.array import Array, ArrayLike, install
from shtypes.core.eager_cache import public
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.ops.jax_functions import JaxFunction

_getitem = JaxFunction("index", operator.getitem, takes_out=False)


@public
def getitem(x: ArrayLike, key: Any) -> Array:
    """``x[key]``, with integers, slices, ``None``, ``...``, integer arrays and constant masks, as in `jax.numpy`.

    Per axis: an axis that shards a dim of which all is taken stays; one that shards a dim indexed by positions makes
    the result unreduced, since each device finds the rows that it has; sharded positions make the result sharded.
    Positions out of range are brought to the nearest end, for the gradient too; negative ones count from the end.

    Args:
        x (...): A value.
        key: The index.

    Raises:
        ShardingTypeError: a partial slice of a sharded dim; positions sharded on an axis that shards a dim of ``x``; a
            mask that is no constant.

    Transpose: a scatter-add of the cotangent. Communicates: nothing.
    """
    part: Array = _getitem(x, key)
    return part


def _iterate(x: Any) -> Iterator[Any]:
    """The rows of a value; an error if its first dim is sharded, where each would be a lookup."""
    if not jax.typeof(x).ndim:
        raise TypeError("iteration over a value without dims")
    return iter([getitem(x, i) for i in range(jax.typeof(x).shape[0])])


class IndexUpdate:
    """``x.at``: index it to name what changes."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: Any) -> Updates:
        return Updates(self.value, key)

    def __repr__(self) -> str:
        return f"At({self.value!r})"


class Options(TypedDict, total=False):
    """The options of all methods of ``x.at[key]``.

    Attributes:
        mode: The treatment of positions out of range: ``"drop"``, ``"clip"``, ``"promise_in_bounds"``, ``"fill"``.
        unique_indices: Promises that no element is indexed twice.
        indices_are_sorted: Promises that the positions are sorted.
        wrap_negative_indices: Whether negative positions count from the end.
        out: A type to reshard the result to.
    """

    mode: Any
    unique_indices: bool
    indices_are_sorted: bool
    wrap_negative_indices: bool
    out: Any


class Updates:
    """``x.at[key]``: methods that give ``x`` with a part of it changed, or the part.

    Per axis: what is added or set is typed as a sum with ``x``: a replicated update of an unreduced value counts once.
    Where a dim that is indexed by positions or sliced is sharded, each device changes its rows. Added updates that
    are sharded like their positions make the result unreduced; any other change needs all positions on every device.
    `min`, `max` and `power` are nonlinear; `multiply` and `divide` are linear in ``x`` only.

    Positions out of range are dropped (``mode="clip"`` brings them to the nearest end); negative ones count from the
    end. All take the `Options`: only ``out`` communicates, what makes the change type and its result that type.
    """

    __slots__ = ("key", "value")

    def __init__(self, value: Any, key: Any) -> None:
        self.value, self.key = value, key

    def __repr__(self) -> str:
        return f"Updates({self.value!r}, {self.key!r})"

    @public
    def get(self, *, fill_value: Any = None, **options: Unpack[Options]) -> Array:
        """``x[key]``; positions out of range are clipped, or with ``mode="fill"`` give ``fill_value`` (NaN)."""
        return _changed("get", self, (), {"mode": "clip", "fill_value": fill_value, **options})

    @public
    def set(self, values: Any, **options: Unpack[Options]) -> Array:
        """The part replaced. Transpose: the cotangent with zeros there, and that part of it."""
        return _changed("set", self, (values,), options)

    @public
    def add(self, values: Any, **options: Unpack[Options]) -> Array:
        """Values added to the part, once for each time that it is named. Transpose: the part of the cotangent."""
        return _changed("add", self, (values,), options)

    @public
    def subtract(self, values: Any, **options: Unpack[Options]) -> Array:
        """Values subtracted from the part."""
        return _changed("subtract", self, (values,), options)

    @public
    def multiply(self, values: Any, **options: Unpack[Options]) -> Array:
        """The part times values; by the values differentiated only where no element is named twice.

        One position and constant ones are checked; of others ``unique_indices=True`` promises it.
        """
        return _changed("multiply", self, (values,), options)

    mul = multiply

    @public
    def divide(self, values: Any, **options: Unpack[Options]) -> Array:
        """The part divided by values; differentiated as `multiply` is."""
        return _changed("divide", self, (values,), options)

    @public
    def power(self, values: Any, **options: Unpack[Options]) -> Array:
        """The part to the power of values; differentiated as `multiply` is."""
        return _changed("power", self, (values,), options)

    @public
    def min(self, values: Any, **options: Unpack[Options]) -> Array:
        """The smaller of the part and values; where several are the smallest, they share the cotangent as in JAX."""
        return _changed("min", self, (values,), options)

    @public
    def max(self, values: Any, **options: Unpack[Options]) -> Array:
        """The greater of the part and values; where several are the greatest, they share the cotangent as in JAX."""
        return _changed("max", self, (values,), options)

    @public
    def apply(self, func: Any, **options: Unpack[Options]) -> Array:
        """Replaces the part by a function of it, which takes and returns typed values.

        JAX applies the function once for each time that an element is named; here no element may be named twice.
        """
        _refuse_unknown("apply", options)
        check_function("at[...].apply", func)
        if any(map(_is_array, jax.tree.leaves(self.key))) and not options.get("unique_indices"):
            raise ShardingTypeError(
                "`at[...].apply` needs positions that differ",
                why="the function would be applied to an element as often as it is named",
                hints=["unique_indices=True, if they do"],
            )
        part = _changed("get", self, (), {"mode": "clip", **{k: v for k, v in options.items() if k != "out"}})
        return self.set(func(part), **options)


def _refuse_unknown(method: str, options: Options, *more: str) -> None:
    refuse_unknown(f"at[...].{method}", options, (*more, *Options.__annotations__))


@functools.cache
def _change(method: str) -> JaxFunction:
    """A method of ``x.at[key]``, as a function of the value, the key, the update, and options."""

    def change(x: Any, key: Any, *values: Any, **options: Any) -> Any:
        return getattr(x.at[key], method)(*values, **options)

    return JaxFunction(f"at_{method}", change, takes_out=False)


def _changed(method: str, at: Updates, values: tuple[Any, ...], options: Any) -> Array:
    _refuse_unknown(method, options, *(("fill_value",) if method == "get" else ()))
    passed = {name: value for name, value in options.items() if name != "out" and value is not None}
    if method != "get" and _differ(at.key):
        passed["unique_indices"] = True
    return _change(method).into(options.get("out"), at.value, at.key, *values, **passed)  # type: ignore[no-any-return]


def _differ(key: Any) -> bool:
    """Whether the positions of a key are constants, and index no element twice."""
    parts = key if isinstance(key, tuple) else (key,)
    arrays = [np.asarray(x) for x in parts if isinstance(x, (np.ndarray, np.generic, list))]
    constants = all(
        isinstance(x, (int, slice, type(None), type(Ellipsis), np.ndarray, np.generic, list)) for x in parts
    )
    if not constants or not arrays or not all(x.dtype.kind in "iu" and (x >= 0).all() for x in arrays):
        return False  # negative ones count from the end; masks are not read
    places = np.stack([x.ravel() for x in np.broadcast_arrays(*arrays)], axis=1)
    return len(np.unique(places, axis=0)) == len(places)


def _is_array(x: Any) -> bool:
    return is_typed(x) or isinstance(x, (jax.Array, jax.core.Tracer, np.ndarray))


# For errors: the operands of an update are the value, the positions and the update.
_PARTS: Final = (jax.tree_util.GetAttrKey("value"), jax.tree_util.GetAttrKey("key"))
jax.tree_util.register_pytree_with_keys(
    Updates, lambda x: (tuple(zip(_PARTS, (x.value, x.key), strict=True)), None), lambda _, parts: Updates(*parts)
)
install({"getitem": getitem, "iter": _iterate}, {}, {"at": IndexUpdate})
