"""Local functions that sum along dims, and that reshape and repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from shtypes.core.localfn import Linear, LocalFn
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class Sum(LocalFn):
    """The local sum over ``dims``, divided by ``count``."""

    dims: tuple[int, ...]
    keepdims: bool = False
    dtype: str | None = None
    count: int = 1
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        dims = ",".join(map(str, self.dims))
        return f"{'sum' if self.count == 1 else 'mean'}[{dims}]"

    def __call__(self, x: Any) -> Any:
        dtype = dtypes.to_numpy(self.dtype) if self.dtype else None
        if self.count == 1:
            return jnp.sum(x, self.dims, keepdims=self.keepdims, dtype=dtype)
        # Where the terms are narrow, the sum and the count may be too large for them.
        wide = jnp.sum(x, self.dims, keepdims=self.keepdims, dtype=_wide(dtype or x.dtype))
        return (wide / float(self.count)).astype(dtype or x.dtype)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        if operands[0].dtype_name != result.dtype_name:
            return None
        return Spread(operands[0].local_shape, self.dims, self.keepdims, self.count)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        moved = tuple(d + 1 for d in self.dims)
        return Sum(moved, self.keepdims, self.dtype, self.count) if dims[0] == 0 else None


@dataclass(frozen=True)
class Spread(LocalFn):
    """The transpose of `Sum`: the operand repeated along ``dims`` to ``shape``, divided by ``count``."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    keepdims: bool = False
    count: int = 1
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"broadcast[{','.join(map(str, self.dims))}]"

    def __call__(self, x: Any) -> Any:
        x = x if self.keepdims else lax.expand_dims(x, self.dims)
        x = x if self.count == 1 else (x.astype(_wide(x.dtype)) / float(self.count)).astype(x.dtype)
        return jnp.broadcast_to(x, self.shape)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return Sum(self.dims, self.keepdims, None, self.count)


def _wide(dtype: Any) -> Any:
    """The dtype to compute a mean in."""
    narrow = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return jnp.float32 if narrow else dtype  # by width: JAX promotes no floats of eight bits


@dataclass(frozen=True)
class Broadcast(LocalFn):
    """Dim ``i`` of the operand at ``dims[i]`` of the (local) shape; dims of size 1 stretch."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"broadcast[{','.join(map(str, self.shape))}]"

    def __call__(self, x: Any) -> Any:
        return lax.broadcast_in_dim(x, self.shape, self.dims)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        shape = operands[0].local_shape
        new = tuple(d for d in range(len(self.shape)) if d not in self.dims)
        stretched = tuple(d for d, n in zip(self.dims, shape, strict=True) if n != self.shape[d])
        if stretched:
            return None
        return Sum(new)

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return None
