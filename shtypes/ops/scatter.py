"""Indexed updates, ``x.at[...].add(...)`` and its kind, and sums of rows by segment. Nothing here communicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.context.calls import check_function, refuse_unknown
from shtypes.core.array import Array, install
from shtypes.core.localfn import Linear, LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.arithmetic import astype
from shtypes.ops.dispatch import apply, is_number, lift
from shtypes.ops.index import CLIP, DROP, GET_MODES, bound_of, get
from shtypes.ops.positions import Bound, LocalEntry, Window, local_entries, local_index, shown, windows
from shtypes.ops.read_index import parse_index
from shtypes.ops.reshard import finished
from shtypes.rules.index import Slice, result_labels
from shtypes.rules.index import update as _update_rule
from shtypes.types import ShType, dtypes

_SET_MODES = {"none": DROP, "promise_in_bounds": DROP, "clip": CLIP, "fill": DROP, "drop": DROP, "fill_or_drop": DROP}

#: What each change makes of a row and its update.
_CHANGES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "set": lambda row, update: update,
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "power": jnp.power,
    "min": jnp.minimum,
    "max": jnp.maximum,
}


@dataclass(frozen=True)
class Scatter(LocalFn):
    """``x.at[...].add(updates)`` or another change; each device changes the rows that it has.

    ``once``: no row is changed twice. Then setting is linear; else JAX finds out which update of a row is the last.
    """

    how: str
    entries: tuple[LocalEntry, ...]
    bound: Bound
    once: bool
    windows: tuple[tuple[Window, Slice], ...] = ()

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it depends on the change
        adds = self.how in ("add", "subtract") or (self.how == "set" and self.once)
        return Linear.BESIDE if adds else Linear.NO

    def no_derivative(self, active: Sequence[bool]) -> str:
        if self.once or not active[-1] or self.how not in ("multiply", "divide", "power"):
            return ""
        return "its positions may name an element twice: unique_indices=True promises that they do not"

    def __str__(self) -> str:
        return f"at_{self.how}[{shown(self.entries)}]"

    def __call__(self, x: Any, *rest: Any) -> Any:
        *ids, updates = rest
        if not self.windows:
            return self._changed(x, ids, updates)
        if not all(span.size for _, span in self.windows):
            return x
        kept = jnp.bool_(True)
        for window, span in self.windows:
            updates, inside = window.own(x, updates, *span)
            kept = kept & inside
        return jnp.where(kept, self._changed(self._harmless(kept, x), ids, updates), x)

    def _harmless(self, kept: Any, x: Any) -> Any:
        """Ones where a change that is not linear is not kept: its derivative there may be NaN, and so zero times it."""
        return x if self.linear is Linear.BESIDE else jnp.where(kept, x, jnp.ones((), x.dtype))

    def _changed(self, x: Any, ids: Sequence[Any], updates: Any) -> Any:
        single = all(i.size == 1 for i in ids)
        index, present = local_index(self.entries, ids, self.bound, past_end=not single)
        if single and present is not None:
            # Read, choose and write: XLA before JAX 0.12 writes to a wrong row where a scatter to one row drops it.
            row = x[index]
            present = present.reshape(present.shape + (1,) * (row.ndim - present.ndim))
            changed = _CHANGES[self.how](self._harmless(present, row), updates)
            updates, change = jnp.where(present, changed, row), "set"
        else:
            change = self.how
        options = {"mode": "drop", "unique_indices": self.once or single, "wrap_negative_indices": False}
        return getattr(x.at[index], change)(updates, **options)


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
    """What all methods of ``x.at[key]`` take.

    Attributes:
        mode: What becomes of positions out of range: ``"drop"``, ``"clip"``, ``"promise_in_bounds"``; ``"fill"``.
        unique_indices: Promises that no element is named twice.
        indices_are_sorted: Accepted for compatibility; ignored.
        wrap_negative_indices: Must be true.
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
    Where a dim that is indexed by positions or sliced is sharded, each device changes its own rows. Added updates that
    are sharded like their positions make the result unreduced; any other change needs all positions on every device.
    `min`, `max` and `power` are nonlinear; `multiply` and `divide` are linear in ``x`` only.

    Positions out of range are dropped (``mode="clip"`` brings them to the nearest end); negative ones count from the
    end. All take the `Options`: only ``out`` communicates, what a reshard to that type does.
    """

    __slots__ = ("key", "value")

    def __init__(self, value: Any, key: Any) -> None:
        self.value, self.key = value, key

    def __repr__(self) -> str:
        return f"Updates({self.value!r}, {self.key!r})"

    @public
    def get(self, *, fill_value: Any = None, **options: Unpack[Options]) -> Array:
        """``x[key]``; positions out of range are clipped, or with ``mode="fill"`` give ``fill_value`` (NaN)."""
        _check_options("get", options, "fill_value")
        y = get(self.value, self.key, bound_of(options.get("mode"), GET_MODES), fill_value, "at_get")
        return finished(y, options.get("out"))

    @public
    def set(self, values: Any, **options: Unpack[Options]) -> Array:
        """The part replaced. Transpose: the cotangent with zeros there, and that part of it."""
        return _changed("set", self, values, options)

    @public
    def add(self, values: Any, **options: Unpack[Options]) -> Array:
        """Values added to the part, once for each time that it is named. Transpose: the part of the cotangent."""
        return _changed("add", self, values, options)

    @public
    def subtract(self, values: Any, **options: Unpack[Options]) -> Array:
        """Values subtracted from the part."""
        return _changed("subtract", self, values, options)

    @public
    def multiply(self, values: Any, **options: Unpack[Options]) -> Array:
        """The part times values; by the values differentiated only where no element is named twice.

        That is known of one position and of constant ones; of others ``unique_indices=True`` promises it.
        """
        return _changed("multiply", self, values, options)

    mul = multiply

    @public
    def divide(self, values: Any, **options: Unpack[Options]) -> Array:
        """The part divided by values; differentiated as `multiply` is."""
        return _changed("divide", self, values, options)

    @public
    def power(self, values: Any, **options: Unpack[Options]) -> Array:
        """The part to the power of values; differentiated as `multiply` is."""
        return _changed("power", self, values, options)

    @public
    def min(self, values: Any, **options: Unpack[Options]) -> Array:
        """The smaller of the part and values; where several are the smallest, they share the cotangent as in JAX."""
        return _changed("min", self, values, options)

    @public
    def max(self, values: Any, **options: Unpack[Options]) -> Array:
        """The greater of the part and values; where several are the greatest, they share the cotangent as in JAX."""
        return _changed("max", self, values, options)

    @public
    def apply(self, func: Any, **options: Unpack[Options]) -> Array:
        """The part given to a function of typed values, and what that makes put in its place.

        JAX applies the function once for each time that an element is named; here no element may be named twice.
        """
        _check_options("apply", options)
        check_function("at[...].apply", func)
        x = lift([self.value])[0][0]
        arrays = parse_index(jax.typeof(x), self.key, clip=True)[1]
        if arrays and not options.get("unique_indices"):
            raise ShardingTypeError(
                "`at[...].apply` needs positions that differ",
                why="the function would be applied to an element as often as it is named",
                hints=["unique_indices=True, if they do"],
            )
        found = get(x, self.key, bound_of(options.get("mode"), GET_MODES), name="at_get")
        return self.set(func(found), **options)


def _check_options(how: str, options: Options, *more: str) -> None:
    refuse_unknown(f"at[...].{how}", options, (*more, *Options.__annotations__))
    if not options.get("wrap_negative_indices", True):
        raise ShardingTypeError(
            f"`at[...].{how}` counts negative positions from the end",
            hints=["sh.where(index < 0, size, index) puts them out of range"],
        )


def _changed(how: str, at: Updates, values: Any, options: Options) -> Array:
    _check_options(how, options)
    ((x,), _) = lift([at.value])
    t = jax.typeof(x)
    bound = bound_of(options.get("mode"), _SET_MODES)
    entries, arrays = parse_index(t, at.key, clip=bound.clip)
    if is_number(values):
        values = _number(values, t, how)
    operands, constants = lift([x, *arrays, values])
    operands[-1] = _of_dtype(operands[-1], t, how)
    once = (
        bool(options.get("unique_indices", False))
        or all(jax.typeof(i).size == 1 for i in operands[1:-1])
        or _differ(arrays, bound)
    )
    ndim = max((jax.typeof(i).ndim for i in operands[1:-1]), default=0)
    labels = result_labels(entries, [("dim", d) for d in range(t.ndim)], ndim)
    name = f"at_{how}"

    def local(types: tuple[ShType, ...]) -> Scatter:
        own = types[0]
        return Scatter(how, local_entries(entries, own), bound, once, windows(entries, own, labels))

    y = apply(name, local, lambda types: _update_rule(name, how, types, entries, constants), *operands)
    return finished(y, options.get("out"))


def _differ(arrays: list[Any], bound: Bound) -> bool:
    """Whether positions are known, and name no element twice."""
    if bound.clip or bound.modulo or not all(isinstance(i, np.ndarray) for i in arrays):
        return False
    if any((i < 0).any() for i in arrays):
        return False  # they count from the end
    places = np.stack([i.ravel() for i in np.broadcast_arrays(*arrays)], axis=1)
    return len(np.unique(places, axis=0)) == len(places)


def _number(value: Any, t: ShType, how: str) -> Any:
    """A number in the dtype of what it changes."""
    if np.result_type(np.asarray(value).dtype, np.int8).kind in "fc" and not t.differentiable:
        raise _does_not_fit(how, repr(value), t)
    if isinstance(value, complex) and t.dtype_name[0] != "c":
        raise _does_not_fit(how, repr(value), t)
    return np.asarray(value).astype(t.dtype)


def _of_dtype(values: Any, t: ShType, how: str) -> Any:
    """Updates in the dtype of what they change, which must be as wide."""
    own = jax.typeof(values)
    if own.dtype_name == t.dtype_name:
        return values
    if dtypes.from_numpy(jnp.promote_types(own.dtype, t.dtype)) != t.dtype_name:
        raise _does_not_fit(how, f"of dtype {own.dtype_name}", t)
    return astype(values, t.dtype_name)


def _does_not_fit(how: str, what: str, t: ShType) -> ShardingTypeError:
    return ShardingTypeError(
        f"`at_{how}` of {t} cannot take updates {what}", why="the result has the dtype of x", hints=["sh.astype first"]
    )


# For errors: the operands of an update are the value, positions, and what is written.
jax.tree_util.register_pytree_node(Updates, lambda x: ((x.value, x.key), None), lambda _, parts: Updates(*parts))
install({}, {}, {"at": IndexUpdate})
