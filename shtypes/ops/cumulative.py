"""Running sums, products and extremes along a dim that every device holds whole, and differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes.core.array import Array, ArrayLike
from shtypes.core.localfn import Linear, LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.lowering.replay import public, published
from shtypes.ops.dispatch import beside, dtype_name, lift
from shtypes.ops.joins import concatenate
from shtypes.ops.shape import broadcast_to, ravel
from shtypes.ops.whole import apply_whole, function, one_dim
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class CumSum(LocalFn):
    """The sum of the elements up to each one, or from each one on."""

    dim: int
    dtype: str
    reverse: bool = False
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"cumsum[{self.dim}{', reverse' if self.reverse else ''}]"

    def __call__(self, x: Any) -> Any:
        return lax.cumsum(x.astype(dtypes.to_numpy(self.dtype)), self.dim, self.reverse)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        if operands[0].dtype_name != self.dtype:
            return None
        return CumSum(self.dim, self.dtype, not self.reverse)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return CumSum(self.dim + 1, self.dtype, self.reverse) if dims[0] == 0 else None


def _flat(x: Any, axis: int | None) -> tuple[Any, int]:
    return (ravel(x), 0) if axis is None else (x, axis)


@public
def cumsum(a: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """The sum of the elements up to each one, as in `jax.numpy.cumsum`.

    Per axis: every state is kept, unreduced too; the dim must be whole.

    Args:
        a (...): A value.
        axis: The dim; None takes the value as one dim.
        dtype: The dtype to sum in.

    Raises:
        ShardingTypeError: the dim is sharded.

    Transpose: the same from the other end. Communicates: nothing.
    """
    ((x,), _) = lift([a])
    x, axis = _flat(x, axis)
    dim, struct = one_dim("cumsum", x, axis), jax.ShapeDtypeStruct((1,), jax.typeof(x).dtype)
    wanted = None if dtype is None else dtypes.to_numpy(dtype_name(dtype))
    found = dtypes.from_numpy(jax.eval_shape(lambda v: jnp.cumsum(v, dtype=wanted), struct).dtype)
    return apply_whole("cumsum", CumSum(dim, found), x, [dim])


@public
def cumprod(a: ArrayLike, axis: int | None = None, dtype: Any = None) -> Array:
    """The product of the elements up to each one, as in `jax.numpy.cumprod`.

    Per axis: every state but unreduced is kept; the dim must be whole.

    Args:
        a (...): A value.
        axis: The dim; None takes the value as one dim.
        dtype: The dtype to multiply in.

    Raises:
        ShardingTypeError: the dim is sharded, or the value is unreduced.

    Communicates: nothing.
    """
    ((x,), _) = lift([a])
    x, axis = _flat(x, axis)
    dim = one_dim("cumprod", x, axis)
    wanted = None if dtype is None else dtypes.to_numpy(dtype_name(dtype))
    return apply_whole("cumprod", function("cumprod", jnp.cumprod, axis=dim, dtype=wanted), x, [dim])


def _running(name: str) -> Callable[..., Array]:
    native = getattr(lax, name)

    def op(operand: Any, axis: int = 0, reverse: bool = False) -> Array:
        ((x,), _) = lift([operand])
        dim = one_dim(name, x, axis)
        return apply_whole(name, function(name, native, axis=dim, reverse=reverse), x, [dim])

    return published(
        op,
        name,
        f"""`jax.lax.{name}`: typed as `cumprod`.

    Args:
        operand (...): A value.
        axis: The dim.
        reverse: From the other end.

    Communicates: nothing.
    """,
    )


cummax, cummin, cumlogsumexp = map(_running, ("cummax", "cummin", "cumlogsumexp"))


@public
def diff(a: ArrayLike, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Array:
    """Differences of neighbours along a dim, ``n`` times, as in `jax.numpy.diff`.

    Per axis: every state is kept, unreduced too; the dim must be whole.

    Args:
        a (...): A value.
        n: How many times.
        axis: The dim.
        prepend: Put before the value first; see `concatenate`.
        append: Put behind it.

    Raises:
        ShardingTypeError: the dim is sharded.

    Communicates: nothing.
    """
    ((x,), _) = lift([a])
    if not jax.typeof(x).ndim or n < 0:
        raise ShardingTypeError(f"`diff` of {jax.typeof(x)} cannot be taken {n} times")
    dim = one_dim("diff", x, axis)
    parts = [_edge(part, x, dim) for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        x = concatenate(parts, dim)
    if not n:
        return x
    linear = jax.typeof(x).dtype_name != "bool"
    return apply_whole("diff", function("diff", jnp.diff, linear=linear, n=n, axis=dim), x, [dim])


def _edge(part: Any, x: Any, dim: int) -> Any:
    """A number as one element along the dim."""
    if part is x:
        return x
    ((value, _), held) = lift([part, x])  # together, so that a number takes the dtype of the value
    value = beside(value, x) if 0 in held else value
    if jax.typeof(value).ndim:
        return value
    shape = list(jax.typeof(x).shape)
    shape[dim] = 1
    return broadcast_to(value, shape)
