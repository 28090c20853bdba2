"""Ops that put elements elsewhere or repeat them. All are linear; none communicates."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import rules
from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import Linear, LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public
from shtypes.ops.dispatch import apply, is_typed, lift
from shtypes.ops.lookup import as_positions
from shtypes.ops.reduce import normalize_dims
from shtypes.ops.reshard import finished
from shtypes.ops.shape import expand_dims, ravel, swapaxes
from shtypes.ops.whole import apply_whole, function, one_dim
from shtypes.types import ShType


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
def flip(m: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
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
def fliplr(m: ArrayLike) -> Array:
    """Dim 1 backwards; see `flip`."""
    return flip(m, 1)


@public
def flipud(m: ArrayLike) -> Array:
    """Dim 0 backwards; see `flip`."""
    return flip(m, 0)


@public
def rot90(m: ArrayLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
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


@dataclass(frozen=True)
class RollBy(LocalFn):
    """`Roll` by a shift that is known at run time."""

    dims: tuple[int, ...]
    linear = Linear.EACH

    def __str__(self) -> str:
        return f"roll[{','.join(map(str, self.dims))}]"

    def linear_in(self, index: int) -> bool:
        return index == 0

    def __call__(self, x: Any, shift: Any) -> Any:
        return jnp.roll(x, shift, self.dims)


@public
def roll(a: ArrayLike, shift: Any, axis: int | Sequence[int] | None = None) -> Array:
    """Elements moved on along dims, around the end, as in `jax.numpy.roll`.

    Per axis: every state is kept; a dim that is rolled must be whole.

    Args:
        a (...): A value; an unreduced one stays unreduced.
        shift: By how much: a number, or one for each dim of ``axis``; or integers known at run time, replicated.
        axis: The dims; by default the value is rolled as one dim.

    Raises:
        ShardingTypeError: one of the dims is sharded; the shift does not fit them.

    Transpose: the roll back. Communicates: nothing.
    """
    ((x,), _) = lift([a])
    if axis is None:
        return roll(ravel(x), shift, 0).reshape(jax.typeof(x).shape)
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    if _at_run_time(shift):
        return _roll_by(x, shift, tuple(one_dim("roll", x, d) for d in given))
    shifts = [int(n) for n in np.atleast_1d(np.asarray(shift))]
    if not shifts or not given:
        return x
    if len(shifts) not in (1, len(given)) and len(given) != 1:
        raise ShardingTypeError(f"`roll` needs one shift for each of the dims {given}, not {shift}")
    count = max(len(shifts), len(given))
    dims = tuple(one_dim("roll", x, d) for d in given) * (count // len(given))
    pairs = list(zip(dims, shifts * (count // len(shifts)), strict=True))
    sizes = jax.typeof(x).shape
    moving = [(d, n) for d, n in pairs if sizes[d] and n % sizes[d]]  # all the way around is where it was
    if not moving:
        return x
    fn = Roll(tuple(n for _, n in moving), tuple(d for d, _ in moving))
    return apply_whole("roll", fn, x, fn.dims)


def _at_run_time(x: Any) -> bool:
    return is_typed(x) or isinstance(x, jax.core.Tracer)


def _moved(name: str, fn: LocalFn, x: Any, by: Any, dims: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    """Elements moved along ``dims`` to where integers say that are known at run time."""
    operands, constants = lift([x, as_positions(by, name)])
    return apply(name, fn, lambda types: rules.moved(name, types, dims, sizes, constants), *operands)


def _roll_by(x: Any, shift: Any, dims: tuple[int, ...]) -> Array:
    shape = jax.typeof(shift).shape
    if shape not in ((), (1,), (len(dims),)):
        raise ShardingTypeError(f"`roll` needs one shift for each of the dims {dims}, not {jax.typeof(shift)}")
    return _moved("roll", RollBy(dims), x, shift, dims, jax.typeof(x).shape)


@dataclass(frozen=True)
class RepeatBy(LocalFn):
    """Each element of a dim as often as an operand says, ``total`` in all."""

    dim: int
    total: int
    linear = Linear.EACH

    def __str__(self) -> str:
        return f"repeat[{self.dim}, {self.total}]"

    def linear_in(self, index: int) -> bool:
        return index == 0

    def __call__(self, x: Any, counts: Any) -> Any:
        return jnp.repeat(x, counts, self.dim, total_repeat_length=self.total)


def _repeat_by(x: Any, counts: Any, axis: int, total: Any) -> Array:
    if total is None:
        raise ShardingTypeError(
            "`repeat` needs `total_repeat_length` for counts that are known at run time",
            why="the size of the result must be known when types are checked",
        )
    dim, t, own = one_dim("repeat", x, axis), jax.typeof(x), jax.typeof(counts)
    if own.shape not in ((), (1,), (t.shape[dim],)):
        raise ShardingTypeError(
            f"`repeat` needs a count for each of the {t.shape[dim]} elements of dim {dim}, not {own}"
        )
    sizes = tuple(operator.index(total) if d == dim else n for d, n in enumerate(t.shape))
    return _moved("repeat", RepeatBy(dim, sizes[dim]), x, counts, (dim,), sizes)


@public
def repeat(
    a: ArrayLike, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None, out: Any = None
) -> Array:
    """Each element several times in a row, as in `jax.numpy.repeat`.

    Per axis: every state is kept, and so is the sharding of the dim itself, if each element is repeated as often: the
    copies of a device's slice are its slice of the copies.

    Args:
        a (...): A value; an unreduced one stays unreduced.
        repeats: How often: a number for all elements, or an array with one for each; or integers known at run time,
            replicated.
        axis: The dim; by default the value is taken as one dim.
        total_repeat_length: The new size of the dim, where ``repeats`` is an array; needed where it is not known.
        out: A type to reshard the result to.

    Raises:
        ShardingTypeError: ``repeats`` differ along a sharded dim, or are known at run time without the new size.

    Transpose: the sum over the copies. Communicates: nothing but what ``out`` asks for.
    """
    ((x,), _) = lift([a])
    if axis is None:
        x, axis = ravel(x), 0
    by = _repeat_by if _at_run_time(repeats) else _repeat_as_known
    y = by(x, repeats, axis, total_repeat_length)
    return finished(y, out)


def _repeat_as_known(x: Any, repeats: Any, axis: int, total_repeat_length: int | None) -> Array:
    """Elements repeated as often as is known when it is traced."""
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
