"""The derivatives of local functions, by JAX: forward, transposed, mapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shtypes.core.localfn import Linear, LocalFn, as_tuple
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class Jvp(LocalFn):
    """(operands, tangents of the ``active`` ones) -> tangents of the ``kept`` results."""

    fn: LocalFn
    active: tuple[bool, ...]
    kept: tuple[bool, ...]

    def __str__(self) -> str:
        return f"jvp({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        n = len(self.active)
        primals, tangents = shards[:n], shards[n:]

        def of_active(*values: Any) -> tuple[Any, ...]:
            rest = iter(values)
            merged = [next(rest) if a else p for p, a in zip(primals, self.active, strict=True)]
            outs = as_tuple(self.fn(*merged))
            return tuple(o for o, k in zip(outs, self.kept, strict=True) if k)

        active = tuple(p for p, a in zip(primals, self.active, strict=True) if a)
        return jax.jvp(of_active, active, tangents)[1]

    def primal(self, operands: Sequence[ShType]) -> tuple[LocalFn, Sequence[ShType]]:
        return self.fn.primal(operands[: len(self.active)])

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        # The derivative of a real elementwise function is diagonal, so it is its own transpose.
        alone = len(self.active) == 1 and index == 1
        real = result.dtype_name[0] != "c" != operands[0].dtype_name[0]
        return self if alone and self.fn.per_element and real and result.dtype_name == operands[0].dtype_name else None

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return self if self.fn.per_element and len(set(dims)) == 1 == len(set(ranks)) and dims[0] == 0 else None


@dataclass(frozen=True)
class Transpose(LocalFn):
    """(nonlinear operands, cotangents of the ``given`` results) -> cotangents of the linear operands."""

    fn: LocalFn
    linear_operands: tuple[tuple[tuple[int, ...], str] | None, ...]  # local shape and dtype, or None for nonlinear
    given: tuple[bool, ...]
    results: tuple[tuple[tuple[int, ...], str], ...]

    def __str__(self) -> str:
        return f"transpose({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        n = sum(op is None for op in self.linear_operands)
        others, given = iter(shards[:n]), iter(shards[n:])
        operands = [next(others) if op is None else _struct(*op) for op in self.linear_operands]
        # A function that is linear in all of them together is transposed in all of them: what the others are is nothing
        # to it, and JAX's rules for such primitives know no others.
        jointly = self.fn.linear is Linear.JOINTLY
        chosen = [
            op is not None or (jointly and _is_inexact(x)) for op, x in zip(self.linear_operands, operands, strict=True)
        ]

        def of_chosen(*values: Any) -> tuple[Any, ...]:
            rest = iter(values)
            return as_tuple(self.fn(*[next(rest) if c else x for x, c in zip(operands, chosen, strict=True)]))

        cts = tuple(
            next(given) if g else jnp.zeros(shape, dtypes.to_numpy(dtype))
            for g, (shape, dtype) in zip(self.given, self.results, strict=True)
        )
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x, c in zip(operands, chosen, strict=True) if c]
        found = iter(jax.linear_transpose(of_chosen, *structs)(cts))
        moved = [next(found) if c else None for c in chosen]
        return tuple(ct for ct, op in zip(moved, self.linear_operands, strict=True) if op is not None)


def _struct(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype))


def _is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


@dataclass(frozen=True)
class Vmap(LocalFn):
    """A local function mapped over ``dims`` of its operands."""

    fn: LocalFn
    dims: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"vmap({self.fn})"

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it is the wrapped one's
        return self.fn.linear

    def linear_in(self, index: int) -> bool:
        return self.fn.linear_in(index)

    @property
    def stops_gradient(self) -> bool:
        return self.fn.stops_gradient

    def no_derivative(self, active: Sequence[bool]) -> str:
        return self.fn.no_derivative(active)

    def __call__(self, *shards: Any) -> Any:
        return jax.vmap(self.fn, in_axes=self.dims)(*shards)
