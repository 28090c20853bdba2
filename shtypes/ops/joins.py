"""Values side by side, and apart again. Joins are typed as sums: each operand with zeros where the others are."""

from __future__ import annotations

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
from shtypes.ops.dispatch import apply, is_typed, lift, meeting
from shtypes.ops.pad import Crop, Pad
from shtypes.ops.reshard import finished
from shtypes.ops.shape import expand_dims, ravel, reshape
from shtypes.ops.whole import apply_whole_tree, one_dim
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class Concatenate(LocalFn):
    """Operands one behind the other along ``dim``."""

    dim: int
    dtype: str
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"concatenate[{self.dim}]"

    def __call__(self, *xs: Any) -> Any:
        return jnp.concatenate(xs, self.dim, dtype=dtypes.to_numpy(self.dtype))

    def _around(self, index: int, operands: Sequence[ShType], result: ShType) -> tuple[tuple[int, int], ...] | None:
        """How much of the result is before and behind one operand; None if that has another dtype."""
        if operands[index].dtype_name != result.dtype_name:
            return None
        sizes = [t.local_shape[self.dim] for t in operands]
        around = (sum(sizes[:index]), sum(sizes[index + 1 :]))
        return tuple(around if d == self.dim else (0, 0) for d in range(len(result.local_shape)))

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        around = self._around(index, operands, result)
        return None if around is None else Crop(around)

    def restricted(self, kept: Sequence[bool], operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        if sum(kept) > 1:
            return None
        around = self._around(list(kept).index(True), operands, result)
        return None if around is None else Pad(around)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return Concatenate(self.dim + 1, self.dtype) if set(dims) == {0} else None


@dataclass(frozen=True)
class Stack(LocalFn):
    """Operands side by side along a new ``dim``."""

    dim: int
    dtype: str
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"stack[{self.dim}]"

    def __call__(self, *xs: Any) -> Any:
        return jnp.stack(xs, self.dim, dtype=dtypes.to_numpy(self.dtype))

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return Take(self.dim, index) if operands[index].dtype_name == result.dtype_name else None

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return Stack(self.dim + 1, self.dtype) if set(dims) == {0} else None


@dataclass(frozen=True)
class Take(LocalFn):
    """One index of a dim, which is dropped."""

    dim: int
    index: int
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"take[{self.dim}:{self.index}]"

    def __call__(self, x: Any) -> Any:
        return lax.index_in_dim(x, self.index, self.dim, keepdims=False)


def _all(name: str, arrays: Any) -> list[Array]:
    """The operands of a join: a sequence of them, or a value that is taken apart along dim 0."""
    if is_typed(arrays):
        return list(unstack(arrays))
    given = list(arrays)
    if not given:
        raise ShardingTypeError(f"`{name}` needs at least one operand")
    return given


def _dtype(values: Sequence[Any], dtype: Any) -> str:
    if dtype is None:
        return dtypes.from_numpy(jnp.result_type(*(jax.typeof(x).dtype for x in values)))
    return dtypes.from_any(dtype) if isinstance(dtype, str) else dtypes.from_numpy(jax.dtypes.canonicalize_dtype(dtype))


@public
def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Array:
    """Values one behind the other along a dim, as in `jax.numpy.concatenate`.

    Per axis: the operands meet as in `add`: unreduced with replicated gives unreduced (the replicated one is kept on
    index 0), sharded with replicated gives sharded. The dim along which they are joined must be whole in all of them.

    Args:
        arrays: The operands, of equal sizes but along that dim.
        axis: The dim; None takes each operand as one dim.
        dtype: The dtype of the result.

    Returns:
        (...): The joined value.

    Raises:
        ShardingTypeError: the dim is sharded in an operand, or the operands' states do not meet.

    Transpose: each operand's part of the cotangent. Communicates: nothing; the cast of an invariant operand
    communicates backward.
    """
    values, constants = lift(_all("concatenate", arrays))
    if axis is None:
        values, axis = [ravel(x) for x in values], 0
    if not all(jax.typeof(x).ndim for x in values):
        raise ShardingTypeError("`concatenate` takes arrays of at least one dim", hints=["sh.stack joins scalars"])
    name, dim = _dtype(values, dtype), one_dim("concatenate", values[0], axis)
    return apply(
        "concatenate", Concatenate(dim, name), lambda types: rules.concatenate(types, dim, name, constants), *values
    )


concat = concatenate


@public
def stack(arrays: Any, axis: int = 0, out: Any = None, dtype: Any = None) -> Array:
    """Values of one shape side by side along a new dim, which is not sharded, as in `jax.numpy.stack`.

    Per axis: the operands meet as in `add`; see `concatenate`.

    Args:
        arrays: The operands.
        axis: The place of the new dim in the result.
        out: A type to reshard the result to.
        dtype: The dtype of the result.

    Raises:
        ShardingTypeError: the operands' states do not meet.

    Transpose: each operand's part of the cotangent. Communicates: nothing but what ``out`` asks for; the cast of an
    invariant operand communicates backward.
    """
    values, constants = lift(_all("stack", arrays))
    name, ndim = _dtype(values, dtype), jax.typeof(values[0]).ndim + 1
    dim = axis + ndim if -ndim <= axis < 0 else axis
    made = apply("stack", Stack(dim, name), lambda types: rules.stack(types, dim, name, constants), *values)
    return finished(made, out)


def _at_least(x: Any, ndim: int) -> Any:
    """A value with dims of size 1 around it, as `jax.numpy.atleast_1d` and its family put them."""
    have = jax.typeof(x).ndim
    if have >= ndim:
        return x
    if ndim == 3:  # a vector lies along dim 1
        return expand_dims(x, {0: (0, 1, 2), 1: (0, 2), 2: (2,)}[have])
    return expand_dims(x, tuple(range(ndim - have)))


@public
def hstack(tup: Any, dtype: Any = None) -> Array:
    """Values joined along dim 1, vectors along dim 0; see `concatenate`."""
    values = [_at_least(x, 1) for x in meeting(_all("hstack", tup))]
    return concatenate(values, 0 if jax.typeof(values[0]).ndim == 1 else 1, dtype)


@public
def vstack(tup: Any, dtype: Any = None) -> Array:
    """Values joined along dim 0, vectors as rows; see `concatenate`."""
    return concatenate([_at_least(x, 2) for x in meeting(_all("vstack", tup))], 0, dtype)


@public
def dstack(tup: Any, dtype: Any = None) -> Array:
    """Values joined along dim 2; see `concatenate`."""
    return concatenate([_at_least(x, 3) for x in meeting(_all("dstack", tup))], 2, dtype)


@public
def column_stack(tup: Any) -> Array:
    """Values joined along dim 1, vectors as columns; see `concatenate`."""
    values = meeting(_all("column_stack", tup))
    columns = [reshape(x, (-1, 1)) if jax.typeof(x).ndim < 2 else x for x in values]
    return concatenate(columns, 1)


# apart


@dataclass(frozen=True)
class Split(LocalFn):
    """The parts of a dim that begin at ``starts``."""

    dim: int
    starts: tuple[int, ...]
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"split[{self.dim}: {','.join(map(str, self.starts))}]"

    def __call__(self, x: Any) -> Any:
        return tuple(jnp.split(x, self.starts[1:], self.dim))


def _split(name: str, ary: Any, sections: Any, axis: int, *, equal: bool) -> list[Array]:
    ((x,), _) = lift([ary])
    dim = one_dim(name, x, axis)
    size = jax.typeof(x).shape[dim]
    if isinstance(sections, jax.core.Tracer):
        raise ShardingTypeError(f"`{name}` takes parts that are known when it is traced")
    if isinstance(sections, (int, np.integer)):
        if sections < 1 or (equal and size % sections):
            raise ShardingTypeError(f"`{name}` cannot make {sections} equal parts of dim {dim}, of size {size}")
        small, more = divmod(size, int(sections))
        ends = np.cumsum([small + (i < more) for i in range(int(sections))])
        starts = (0, *(int(n) for n in ends[:-1]))
    else:
        starts = (0, *(int(n) for n in np.asarray(sections)))
    found: Sequence[Any] = apply_whole_tree(name, Split(dim, starts), x, [dim])
    return list(found)


@public
def split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """The parts of a dim, as in `jax.numpy.split`.

    Per axis: every state is kept; the dim must be whole.

    Args:
        ary (...): A value; the parts of an unreduced one are unreduced.
        indices_or_sections: How many equal parts, or where the parts but the first begin.
        axis: The dim.

    Raises:
        ShardingTypeError: the dim is sharded, or is not so many equal parts.

    Transpose: the cotangents joined. Communicates: nothing.
    """
    return _split("split", ary, indices_or_sections, axis, equal=True)


@public
def array_split(ary: ArrayLike, indices_or_sections: Any, axis: int = 0) -> list[Array]:
    """The parts of a dim, which may differ in size by one; see `split`."""
    return _split("array_split", ary, indices_or_sections, axis, equal=False)


@public
def hsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """The parts of dim 1, of a vector of dim 0; see `split`."""
    ((x,), _) = lift([ary])
    return split(x, indices_or_sections, 0 if jax.typeof(x).ndim == 1 else 1)


@public
def vsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """The parts of dim 0; see `split`."""
    return split(ary, indices_or_sections, 0)


@public
def dsplit(ary: ArrayLike, indices_or_sections: Any) -> list[Array]:
    """The parts of dim 2; see `split`."""
    return split(ary, indices_or_sections, 2)


@dataclass(frozen=True)
class Unstack(LocalFn):
    """Each index of a dim, which is dropped."""

    dim: int
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"unstack[{self.dim}]"

    def __call__(self, x: Any) -> Any:
        return tuple(lax.index_in_dim(x, i, self.dim, keepdims=False) for i in range(x.shape[self.dim]))


@public
def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The value at each index of a dim, which must be whole, as in `jax.numpy.unstack`.

    Args:
        x (...): A value; every state is kept.
        axis: The dim, which is dropped.

    Raises:
        ShardingTypeError: the dim is sharded.

    Transpose: the cotangents stacked. Communicates: nothing.
    """
    ((x,), _) = lift([x])
    t = jax.typeof(x)
    if not t.ndim:
        raise ShardingTypeError("`unstack` takes a value of at least one dim")
    dim = one_dim("unstack", x, axis)
    kept = [d for d in range(t.ndim) if d != dim]
    if not t.shape[dim]:
        return ()
    return tuple(apply_whole_tree("unstack", Unstack(dim), x, [dim], [kept] * t.shape[dim]))
