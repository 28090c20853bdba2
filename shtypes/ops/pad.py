"""Padding: something put around a value. Nothing here communicates."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.context.calls import refuse_unknown
from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import Linear, LocalFn, tell_apart
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.arithmetic import add, astype
from shtypes.ops.create import masked
from shtypes.ops.dispatch import is_number, is_typed, lift
from shtypes.ops.select import where
from shtypes.ops.whole import apply_whole, function, settled_whole
from shtypes.types import ShType, State, dtypes

Widths = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Pad(LocalFn):
    """The operand with ``value`` around it; ``widths`` are before and after each dim, ``between`` its elements.

    A negative width takes elements away, as in `jax.lax.pad`.
    """

    widths: Widths
    value: Any = field(default=0, compare=False)
    between: tuple[int, ...] = ()
    same: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tell_apart(self, self.value)

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it depends on the value
        return Linear.JOINTLY if not self.value else Linear.NO

    @property
    def linear_part(self) -> LocalFn | None:
        return Pad(self.widths, between=self.between)

    def __str__(self) -> str:
        value = f", {self.value}" if self.value else ""
        shown = [f"{a}:{b}:{n}" if n else f"{a}:{b}" for a, b, n in self.config]
        return f"pad[{','.join(shown)}{value}]"

    @property
    def config(self) -> list[tuple[int, int, int]]:
        """What `jax.lax.pad` calls the widths."""
        between = self.between or (0,) * len(self.widths)
        return [(a, b, n) for (a, b), n in zip(self.widths, between, strict=True)]

    def __call__(self, x: Any) -> Any:
        if isinstance(self.value, tuple):
            return jnp.pad(x, self.widths, constant_values=self.value)
        return lax.pad(x, jnp.asarray(self.value, x.dtype), self.config)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        grows = not any(self.between) and all(n >= 0 for pair in self.widths for n in pair)
        return Crop(self.widths) if grows else None  # JAX transposes the others

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        plain = dims[0] == 0 and not isinstance(self.value, tuple) and not self.between
        return Pad(((0, 0), *self.widths), self.value) if plain else None


@dataclass(frozen=True)
class Crop(LocalFn):
    """The transpose of `Pad`: the operand without what is around it."""

    widths: Widths
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"crop[{','.join(f'{a}:{b}' for a, b in self.widths)}]"

    def __call__(self, x: Any) -> Any:
        ends = [n - after for n, (_, after) in zip(x.shape, self.widths, strict=True)]
        return lax.slice(x, [before for before, _ in self.widths], ends)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return Pad(self.widths)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return Crop(((0, 0), *self.widths)) if dims[0] == 0 else None


@dataclass(frozen=True)
class Frame(LocalFn):
    """What `Pad` puts around an operand, and zeros in its place."""

    pad: Pad
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"frame[{self.pad.value}]"

    def __call__(self) -> Any:
        return self.pad(jnp.zeros(self.shape, dtypes.to_numpy(self.dtype)))


#: Modes in which what is put around is linear in the operand.
_LINEAR_MODES = frozenset({"edge", "empty", "linear_ramp", "mean", "reflect", "symmetric", "wrap"})


_PARAMETERS: Final = ("constant_values", "end_values", "stat_length", "reflect_type")


@public
def pad(array: ArrayLike, pad_width: Any, mode: str | Sequence[Sequence[int]] = "constant", **kwargs: Any) -> Array:
    """The value with something around it, as `jax.numpy.pad`; or as `jax.lax.pad`, ``pad(x, value, config)``.

    Per axis: every state is kept; a dim that is padded must be whole. A non-zero constant around an unreduced value is
    masked, so that it counts once. The modes ``maximum``, ``minimum`` and ``median`` are nonlinear.

    Args:
        array (...): A value.
        pad_width: How much before and after each dim: a number, a pair, or a pair for each dim. As in `jax.lax`, the
            number to put there.
        mode: What to put there, as in `jax.numpy`. As in `jax.lax`, for each dim how much before, after and between
            its elements; what is negative takes elements away.
        **kwargs: As in `jax.numpy`: ``constant_values`` (numbers, or a scalar value, which is a term of the result),
            ``end_values``, ``stat_length``, ``reflect_type``.

    Raises:
        ShardingTypeError: a dim that is padded is sharded; a nonlinear mode meets an unreduced value.

    Transpose: the part of the cotangent without what was put around. Communicates: nothing.
    """
    refuse_unknown("pad", kwargs, _PARAMETERS)
    ((x,), _) = lift([array])
    t = jax.typeof(x)
    if isinstance(mode, (list, tuple)):
        widths, between = _config(mode, t)
        along = [d for d, (a, b) in enumerate(widths) if a or b or (between and between[d])]
        return _pad_constant(x, widths, along, _constant_values(pad_width, t.ndim, kwargs), between)
    widths = _widths(pad_width, t.ndim)
    along = [d for d, (before, after) in enumerate(widths) if before or after]
    if mode == "constant":
        return _pad_constant(x, widths, along, _constant_values(kwargs.pop("constant_values", 0), t.ndim, kwargs))
    if not isinstance(mode, str):
        raise ShardingTypeError("`pad` takes a mode by name, not a function")
    params = {k: _static(v) for k, v in kwargs.items()}
    linear = mode in _LINEAR_MODES and not np.any(kwargs.get("end_values", 0))
    fn = function("pad", jnp.pad, linear=linear, pad_width=widths, mode=mode, **params)
    return apply_whole("pad", fn, x, along)


def _pad_constant(x: Any, widths: Widths, along: Sequence[int], value: Any, between: tuple[int, ...] = ()) -> Array:
    x = settled_whole("pad", x, along)
    t = jax.typeof(x)
    at_run_time = is_typed(value) or isinstance(value, jax.core.Tracer)
    if not along or not (at_run_time or (value and State.UNREDUCED in t.states)):
        fn = Pad(widths, 0 if at_run_time else value, between)
        return apply_whole("pad", fn, x, along, linear=True)  # an unreduced operand would be taken
    padded = apply_whole("pad", Pad(widths, between=between), x, along)
    around: Any = jax.typeof(padded)
    if not at_run_time:
        return add(padded, masked(Frame(Pad(widths, value, between), t.local_shape, t.dtype_name), around))
    whole = {a: State.REDUCED for a, s in zip(t.mesh.axis_names, t.states, strict=True) if s is not State.SHARDED}
    outside = masked(
        Frame(Pad(widths, True, between), t.local_shape, "bool"), around.replace(dtype="bool", states=whole)
    )
    return where(outside, _scalar(value, x), padded)


def _scalar(value: Any, x: Any) -> Array:
    """A scalar value in the dtype of what it is put around."""
    (value, x), _ = lift([value, x])
    if jax.typeof(value).ndim:
        what = f"`pad` puts numbers that are known or one scalar around a value, not {jax.typeof(value)}"
        raise ShardingTypeError(what, hints=["sh.where(inside, sh.pad(x, n), value)"])
    return astype(value, jax.typeof(x).dtype_name)


def _config(config: Any, t: ShType) -> tuple[Widths, tuple[int, ...]]:
    """A padding configuration of `jax.lax.pad` as widths, and what is between elements where something is."""
    try:
        rows = [tuple(map(operator.index, row)) for row in config]
    except TypeError:
        rows = []
    sizes = (
        [a + n + b + max(n - 1, 0) * i for n, (a, b, i) in zip(t.shape, rows, strict=False)] if _triples(rows) else []
    )
    if len(rows) != t.ndim or len(sizes) != t.ndim or min(sizes, default=0) < 0 or any(r[2] < 0 for r in rows):
        raise ShardingTypeError(f"`pad` of {t} cannot use padding_config={config!r:.60}")
    between = tuple(row[2] for row in rows)
    return tuple((row[0], row[1]) for row in rows), between if any(between) else ()


def _triples(rows: Sequence[Sequence[int]]) -> bool:
    return all(len(row) == 3 for row in rows)


def _widths(pad_width: Any, ndim: int) -> Widths:
    try:
        table = np.broadcast_to(np.asarray(pad_width, dtype=np.int64), (ndim, 2))
        exact = np.array_equal(table, np.broadcast_to(np.asarray(pad_width), (ndim, 2)))
    except (TypeError, ValueError):
        exact = False
    if not exact or (table < 0).any():
        raise ShardingTypeError(f"`pad` of {ndim} dims cannot use pad_width={pad_width!r:.60}")
    return tuple((int(a), int(b)) for a, b in table)


def _constant_values(values: Any, ndim: int, others: dict[str, Any]) -> Any:
    """One number, or a pair of them for each dim."""
    if others:
        raise ShardingTypeError(f"`pad` with mode='constant' has no parameter {', '.join(map(repr, others))}")
    if is_number(values):
        return values
    if is_typed(values) or isinstance(values, jax.core.Tracer):
        return values
    table = np.asarray(values)
    if table.ndim == 0:
        return table.item()
    pairs = tuple(map(tuple, np.broadcast_to(table, (ndim, 2)).tolist()))
    return pairs if np.any(table) else 0


def _static(value: Any) -> Any:
    """A parameter that can be hashed."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(_static(v) for v in (value.tolist() if isinstance(value, np.ndarray) else value))
    return value
