"""Shard functions derived from another one: its JVP, its transpose, its `vmap`.

A backward program has the transpose of a JVP, ``transpose(jvp(f))``, unless ``f`` has a simpler `ShardFn.adjoint`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shtypes.core.shard_fn import Linear, ShardFn, as_tuple, is_inexact
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class Jvp(ShardFn):
    """(operands, tangents of the ``active`` ones) -> tangents of the ``nonzero`` results."""

    fn: ShardFn
    active: tuple[bool, ...]
    nonzero: tuple[bool, ...]

    def __str__(self) -> str:
        return f"jvp({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        n = len(self.active)
        primals, tangents = shards[:n], shards[n:]

        def of_active(*values: Any) -> tuple[Any, ...]:
            rest = iter(values)
            merged = [next(rest) if a else p for p, a in zip(primals, self.active, strict=True)]
            outs = as_tuple(self.fn(*merged))
            return tuple(o for o, k in zip(outs, self.nonzero, strict=True) if k)

        active = tuple(p for p, a in zip(primals, self.active, strict=True) if a)
        return jax.jvp(of_active, active, tangents)[1]

    def primal(self, operands: Sequence[ShType]) -> tuple[ShardFn, Sequence[ShType]]:
        return self.fn.primal(operands[: len(self.active)])

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        # the Jacobian of a real elementwise function is diagonal, hence equal to its transpose
        alone = len(self.active) == 1 and index == 1
        real = result.dtype_name[0] != "c" != operands[0].dtype_name[0]
        return self if alone and self.fn.per_element and real and result.dtype_name == operands[0].dtype_name else None

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> ShardFn | None:
        return self if self.fn.per_element and len(set(dims)) == 1 == len(set(ranks)) and dims[0] == 0 else None


@dataclass(frozen=True)
class Transpose(ShardFn):
    """(nonlinear operands, cotangents of the ``nonzero`` results) -> cotangents of the linear operands."""

    fn: ShardFn
    linear_operands: tuple[tuple[tuple[int, ...], str] | None, ...]  # local shape and dtype, or None for nonlinear
    nonzero: tuple[bool, ...]
    results: tuple[tuple[tuple[int, ...], str], ...]

    def __str__(self) -> str:
        return f"transpose({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        n = sum(op is None for op in self.linear_operands)
        nonlinear, nonzero = iter(shards[:n]), iter(shards[n:])
        operands = [
            next(nonlinear) if op is None else jax.ShapeDtypeStruct(op[0], dtypes.to_numpy(op[1]))
            for op in self.linear_operands
        ]
        # JAX's rules of primitives that are linear in their operands jointly transpose all of them, and no subset.
        jointly = self.fn.linear is Linear.JOINTLY
        transposed = [
            op is not None or (jointly and is_inexact(x)) for op, x in zip(self.linear_operands, operands, strict=True)
        ]

        def of_transposed(*values: Any) -> tuple[Any, ...]:
            rest = iter(values)
            return as_tuple(self.fn(*[next(rest) if t else x for x, t in zip(operands, transposed, strict=True)]))

        cts = tuple(
            next(nonzero) if is_nonzero else jnp.zeros(shape, dtypes.to_numpy(dtype))
            for is_nonzero, (shape, dtype) in zip(self.nonzero, self.results, strict=True)
        )
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x, t in zip(operands, transposed, strict=True) if t]
        operand_cts = iter(jax.linear_transpose(of_transposed, *structs)(cts))
        by_operand = [next(operand_cts) if t else None for t in transposed]
        return tuple(ct for ct, op in zip(by_operand, self.linear_operands, strict=True) if op is not None)


@dataclass(frozen=True)
class Wrapped(ShardFn):
    """A shard function with the derivatives of another."""

    fn: ShardFn

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere; here the wrapped function's
        return self.fn.linear

    def linear_in(self, index: int) -> bool:
        return self.fn.linear_in(index)

    @property
    def stops_gradient(self) -> bool:
        return self.fn.stops_gradient

    def no_derivative(self, active: Sequence[bool]) -> str:
        return self.fn.no_derivative(active)


@dataclass(frozen=True)
class Vmap(Wrapped):
    """A shard function mapped over ``dims`` of its operands."""

    dims: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"vmap({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        return jax.vmap(self.fn, in_axes=self.dims)(*shards)
