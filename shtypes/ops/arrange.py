"""Ops that put elements elsewhere, repeat them, or keep a part of them. All are linear; none communicates."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import dtypes
from shtypes.errors import ShardingTypeError
from shtypes.localfn import Linear, LocalFn, tell_apart
from shtypes.lowering.replay import public
from shtypes.ops import rules
from shtypes.ops.dispatch import apply, is_number, lift
from shtypes.ops.einsum import einsum
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.shape import expand_dims, ravel, swapaxes
from shtypes.ops.whole import apply_whole, function, one_dim
from shtypes.types import ShType, State

Widths = tuple[tuple[int, int], ...]


# pad


@dataclass(frozen=True)
class Pad(LocalFn):
    """The operand with ``value`` around it; ``widths`` are before and after each dim."""

    widths: Widths
    value: Any = field(default=0, compare=False)
    same: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tell_apart(self, self.value)

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it depends on the value
        return Linear.JOINTLY if not self.value else Linear.NO

    @property
    def linear_part(self) -> LocalFn | None:
        return Pad(self.widths)

    def __str__(self) -> str:
        value = f", {self.value}" if self.value else ""
        return f"pad[{','.join(f'{a}:{b}' for a, b in self.widths)}{value}]"

    def __call__(self, x: Any) -> Any:
        if isinstance(self.value, tuple):
            return jnp.pad(x, self.widths, constant_values=self.value)
        return lax.pad(x, jnp.asarray(self.value, x.dtype), [(a, b, 0) for a, b in self.widths])

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return Crop(self.widths)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        plain = dims[0] == 0 and not isinstance(self.value, tuple)
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


@public
def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Any:
    """The value with something around it, as `jax.numpy.pad`.

    Per axis: every state is kept; a dim that grows must be whole. A non-zero constant around an unreduced value is
    masked, so that it counts once. The modes ``maximum``, ``minimum`` and ``median`` are nonlinear.

    Args:
        array (...): A value.
        pad_width: How much before and after each dim: a number, a pair, or a pair for each dim.
        mode: What to put there, as in `jax.numpy`.
        **kwargs: As in `jax.numpy`: ``constant_values`` (numbers), ``end_values``, ``stat_length``, ``reflect_type``.

    Raises:
        ShardingTypeError: a dim that grows is sharded; a nonlinear mode meets an unreduced value.

    Transpose: the part of the cotangent without what was put around. Communicates: nothing.
    """
    ((x,), _) = lift([array])
    t = jax.typeof(x)
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


def _pad_constant(x: Any, widths: Widths, along: Sequence[int], value: Any) -> Any:
    t = jax.typeof(x)
    if value and State.UNREDUCED in t.states:
        from shtypes.ops.create import _masked
        from shtypes.ops.elementwise import add

        padded = apply_whole("pad", Pad(widths), x, along)
        around: Any = jax.typeof(padded)
        inner = [n - a - b for n, (a, b) in zip(around.local_shape, widths, strict=True)]
        return add(padded, _masked(Frame(Pad(widths, value), tuple(inner), t.dtype_name), around))
    return apply_whole("pad", Pad(widths, value), x, along)


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
    if isinstance(values, jax.core.Tracer) or type(values).__module__.startswith("shtypes"):
        raise ShardingTypeError(
            "`pad` puts numbers around a value, not a traced array", hints=["sh.where(inside, sh.pad(x, n), value)"]
        )
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


# flip and roll


@dataclass(frozen=True)
class Flip(LocalFn):
    """Some dims backwards."""

    dims: tuple[int, ...]
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"flip[{','.join(map(str, self.dims))}]"

    def __call__(self, x: Any) -> Any:
        return lax.rev(x, self.dims)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return self

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return Flip(tuple(d + 1 for d in self.dims)) if dims[0] == 0 else None


@public
def flip(m: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Dims backwards, as in `jax.numpy.flip`; all by default.

    Per axis: every state is kept; a dim that is turned must be whole.

    Args:
        m (...): A value; an unreduced one stays unreduced.
        axis: The dims.

    Raises:
        ShardingTypeError: one of the dims is sharded.

    Transpose: the same flip. Communicates: nothing.
    """
    ((x,), _) = lift([m])
    dims = normalize_dims(axis, jax.typeof(x).ndim, "flip")
    return apply_whole("flip", Flip(dims), x, dims)


@public
def fliplr(m: Any) -> Any:
    """Dim 1 backwards; see `flip`."""
    return flip(m, 1)


@public
def flipud(m: Any) -> Any:
    """Dim 0 backwards; see `flip`."""
    return flip(m, 0)


@public
def rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    """Turned by ``k`` quarters in the plane of two dims, as in `jax.numpy.rot90`; typed as `flip` and `swapaxes`."""
    ((x,), _) = lift([m])
    a, b = (one_dim("rot90", x, d) for d in axes)
    turns = operator.index(k) % 4
    if a == b:
        raise ShardingTypeError(f"`rot90` needs two different dims, not {axes}")
    if turns == 2:
        return flip(x, (a, b))
    return x if not turns else swapaxes(flip(x, b), a, b) if turns == 1 else flip(swapaxes(x, a, b), b)


@dataclass(frozen=True)
class Roll(LocalFn):
    """Elements moved on along dims, those that fall off put in at the start."""

    shifts: tuple[int, ...]
    dims: tuple[int, ...]
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"roll[{','.join(f'{d}:{n}' for d, n in zip(self.dims, self.shifts, strict=True))}]"

    def __call__(self, x: Any) -> Any:
        return jnp.roll(x, self.shifts, self.dims)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return Roll(tuple(-n for n in self.shifts), self.dims)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return Roll(self.shifts, tuple(d + 1 for d in self.dims)) if dims[0] == 0 else None


@public
def roll(a: Any, shift: Any, axis: int | Sequence[int] | None = None) -> Any:
    """Elements moved on along dims, around the end, as in `jax.numpy.roll`.

    Per axis: every state is kept; a dim that is rolled must be whole.

    Args:
        a (...): A value; an unreduced one stays unreduced.
        shift: By how much: a number, or one for each dim of ``axis``.
        axis: The dims; by default the value is rolled as one dim.

    Raises:
        ShardingTypeError: one of the dims is sharded; the shift is traced.

    Transpose: the roll back. Communicates: nothing.
    """
    ((x,), _) = lift([a])
    if isinstance(shift, jax.core.Tracer):
        raise ShardingTypeError("`roll` takes a shift that is known when it is traced")
    if axis is None:
        return roll(ravel(x), shift, 0).reshape(jax.typeof(x).shape)
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = [int(n) for n in np.atleast_1d(np.asarray(shift))]
    if len(shifts) not in (1, len(given)) and len(given) != 1:
        raise ShardingTypeError(f"`roll` needs one shift for each of the dims {given}, not {shift}")
    count = max(len(shifts), len(given))
    dims = tuple(one_dim("roll", x, d) for d in given) * (count // len(given))
    return apply_whole("roll", Roll(tuple(shifts * (count // len(shifts))), dims), x, dims)


# repeat and tile


@public
def repeat(a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Any:
    """Each element several times in a row, as in `jax.numpy.repeat`.

    Per axis: every state is kept, and so is the sharding of the dim itself, if each element is repeated as often: the
    copies of a device's slice are its slice of the copies.

    Args:
        a (...): A value; an unreduced one stays unreduced.
        repeats: How often: a number for all elements, or an array with one for each.
        axis: The dim; by default the value is taken as one dim.
        total_repeat_length: The new size of the dim, where ``repeats`` is an array.

    Raises:
        ShardingTypeError: ``repeats`` differ along a sharded dim, or are traced.

    Transpose: the sum over the copies. Communicates: nothing.
    """
    ((x,), _) = lift([a])
    if axis is None:
        x, axis = ravel(x), 0
    if isinstance(repeats, jax.core.Tracer):
        raise ShardingTypeError("`repeat` takes counts that are known when it is traced")
    counts, dim = np.asarray(repeats), one_dim("repeat", x, axis)
    if counts.size == 1 and total_repeat_length is None:
        count = int(counts.reshape(()))
        fn = function("repeat", jnp.repeat, linear=True, axis=dim, repeats=count)
        return apply("repeat", fn, lambda types: rules.repeat(types[0], dim, count), x)
    known = tuple(counts.tolist()) if counts.ndim else counts.item()
    fn = function("repeat", _repeat, linear=True, axis=dim, repeats=known, total_repeat_length=total_repeat_length)
    return apply_whole("repeat", fn, x, [dim])


def _repeat(x: Any, repeats: Any, axis: int, total_repeat_length: int | None) -> Any:
    return jnp.repeat(x, np.asarray(repeats), axis, total_repeat_length=total_repeat_length)


@public
def tile(A: Any, reps: int | Sequence[int]) -> Any:  # noqa: N803  # the name that JAX gives it
    """The whole value several times side by side, as in `jax.numpy.tile`.

    Per axis: every state is kept; a dim that is tiled must be whole. New leading dims are not sharded.

    Args:
        A (...): A value; an unreduced one stays unreduced.
        reps: How often along each dim, aligned from the right.

    Raises:
        ShardingTypeError: a dim that is tiled is sharded.

    Transpose: the sum over the copies. Communicates: nothing.
    """
    ((x,), _) = lift([A])
    counts = (int(reps),) if isinstance(reps, (int, np.integer)) else tuple(int(n) for n in reps)
    ndim = jax.typeof(x).ndim
    if len(counts) > ndim:
        x = expand_dims(x, tuple(range(len(counts) - ndim)))
    counts = (1,) * (ndim - len(counts)) + counts
    along = [d for d, n in enumerate(counts) if n != 1]
    return apply_whole("tile", function("tile", jnp.tile, linear=True, reps=counts), x, along) if along else x


# triangles and diagonals: by the global index


@dataclass(frozen=True)
class Span:
    """Which indices of a global dim a device holds: ``size`` of them, as ``axes`` share them out."""

    axes: tuple[str, ...]
    size: int

    def indices(self) -> Any:
        """The global indices."""
        own = jnp.arange(self.size)
        return own + lax.axis_index(self.axes) * self.size if self.axes else own


def span(t: ShType, dim: int) -> Span:
    """The indices of one dim that each device holds."""
    return Span(t.dims[dim].axes, t.local_shape[dim])


@dataclass(frozen=True)
class Triangle(LocalFn):
    """The elements on one side of diagonal ``k`` of the last two dims, zeros elsewhere."""

    lower: bool
    k: int
    rows: Span
    columns: Span
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        name = "tril" if self.lower else "triu"
        return f"{name}[{self.k}]" if self.k else name

    def __call__(self, x: Any) -> Any:
        behind = self.columns.indices() - self.rows.indices()[:, None]
        return jnp.where(behind <= self.k if self.lower else behind >= self.k, x, jnp.zeros((), x.dtype))

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return self

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return self if dims[0] == 0 else None


def _triangle(name: str, m: Any, k: int) -> Any:
    ((x,), _) = lift([m])
    t = jax.typeof(x)
    if t.ndim < 2:
        raise ShardingTypeError(f"`{name}` takes at least two dims, not {t}")
    fn = Triangle(name == "tril", operator.index(k), span(t, t.ndim - 2), span(t, t.ndim - 1))
    return apply(name, fn, lambda types: rules.linear_unary(name, types[0], t.dtype_name), x)


@public
def tril(m: Any, k: int = 0) -> Any:
    """The elements on and below diagonal ``k`` of the last two dims, zeros elsewhere, as in `jax.numpy.tril`.

    Every state is kept, and any dim may be sharded: which elements stay is asked of their global index.

    Args:
        m (..., n, m): A value; an unreduced one stays unreduced.
        k: How far above the main diagonal.

    Transpose: the same triangle. Communicates: nothing.
    """
    return _triangle("tril", m, k)


@public
def triu(m: Any, k: int = 0) -> Any:
    """The elements on and above diagonal ``k`` of the last two dims, zeros elsewhere; typed as `tril`."""
    return _triangle("triu", m, k)


@dataclass(frozen=True)
class DiagMatrix(LocalFn):
    """The own rows of the matrix that has a vector on its diagonal."""

    rows: Span
    size: int
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return "diag"

    def __call__(self, v: Any) -> Any:
        on = jnp.arange(self.size) == self.rows.indices()[:, None]
        return jnp.where(on, v[:, None], jnp.zeros((), v.dtype))


@public
def diag(v: Any, k: int = 0) -> Any:
    """The matrix with a vector on diagonal ``k``, or diagonal ``k`` of a matrix, as in `jax.numpy.diag`.

    Args:
        v (n) or (n, m): A vector, of which every state is kept; where it is sharded, the rows of the matrix are. Or a
            matrix, typed as `diagonal`.
        k: How far above the main diagonal.

    Raises:
        ShardingTypeError: the vector is sharded and ``k`` is not 0; or as for `diagonal`.

    Communicates: nothing.
    """
    ((x,), _) = lift([v])
    t = jax.typeof(x)
    if t.ndim not in (1, 2):
        raise ShardingTypeError(f"`diag` takes a vector or a matrix, not {t}")
    if t.ndim == 2:
        return diagonal(x, k)
    if operator.index(k) == 0:
        return apply("diag", DiagMatrix(span(t, 0), t.shape[0]), lambda types: rules.diag(types[0]), x)
    return apply_whole("diag", function("diag", jnp.diag, linear=True, k=k), x, [0], [(None, None)])


@public
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements at equal indices of two dims, as one last dim, as in `jax.numpy.diagonal`.

    Per axis: every state is kept. On the main diagonal of a square one of the two dims may be sharded, and the result
    is sharded like it; elsewhere both must be whole.

    Args:
        a (..., n, m): A value; an unreduced one stays unreduced.
        offset: How far above the main diagonal.
        axis1: The rows.
        axis2: The columns.

    Raises:
        ShardingTypeError: both dims are sharded, or one of them where the diagonal is not the main one of a square.

    Transpose: the cotangent on the diagonal, zeros elsewhere. Communicates: nothing.
    """
    ((x,), _) = lift([a])
    t, rows, columns = _matrix("diagonal", x, axis1, axis2)
    if not offset and t.shape[rows] == t.shape[columns] and (t.dims[rows].axes or t.dims[columns].axes):
        labels = [chr(ord("a") + d) for d in range(t.ndim)]
        labels[columns] = labels[rows]
        rest = [c for d, c in enumerate(labels) if d not in (rows, columns)]
        return einsum(f"{''.join(labels)}->{''.join([*rest, labels[rows]])}", x)
    kept = [d for d in range(t.ndim) if d not in (rows, columns)]
    fn = function("diagonal", jnp.diagonal, linear=True, offset=operator.index(offset), axis1=rows, axis2=columns)
    return apply_whole("diagonal", fn, x, [rows, columns], [(*kept, None)])


@dataclass(frozen=True)
class Trace(LocalFn):
    """The sum over the own elements of a diagonal."""

    dims: tuple[int, int]
    offset: int
    rows: Span
    columns: Span
    dtype: str
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"trace[{self.offset}]" if self.offset else "trace"

    def __call__(self, x: Any) -> Any:
        moved = jnp.moveaxis(x, self.dims, (-2, -1))
        on = self.columns.indices() - self.rows.indices()[:, None] == self.offset
        kept = jnp.where(on, moved, jnp.zeros((), x.dtype))
        return jnp.sum(kept, (-2, -1), dtype=dtypes.to_numpy(self.dtype))


@public
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    """The sum over a diagonal of two dims, as in `jax.numpy.trace`.

    Per axis: sharded on one of the two dims becomes unreduced, as for `sum`; every other state is kept.

    Args:
        a (..., n, m): A value; an unreduced one stays unreduced.
        offset: How far above the main diagonal.
        axis1: The rows.
        axis2: The columns.
        dtype: The dtype to sum in.

    Transpose: the cotangent on the diagonal, zeros elsewhere. Communicates: nothing.
    """
    ((x,), _) = lift([a])
    t, rows, columns = _matrix("trace", x, axis1, axis2)
    struct = jax.ShapeDtypeStruct((1, 1), t.dtype)
    found = dtypes.from_numpy(jax.eval_shape(lambda m: jnp.trace(m, dtype=dtype), struct).dtype)
    fn = Trace((rows, columns), operator.index(offset), span(t, rows), span(t, columns), found)
    return apply("trace", fn, lambda types: rules.reduce_sum(types[0], (rows, columns), False, found, "trace"), x)


def _matrix(name: str, x: Any, axis1: int, axis2: int) -> tuple[ShType, int, int]:
    """The type, the dim of the rows and that of the columns."""
    rows, columns = one_dim(name, x, axis1), one_dim(name, x, axis2)
    if rows == columns:
        raise ShardingTypeError(f"`{name}` needs two different dims, not {axis1} and {axis2}")
    return jax.typeof(x), rows, columns
