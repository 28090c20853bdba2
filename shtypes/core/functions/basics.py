"""Constants, named functions of `jax.numpy`, and the linear basics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes.core.functions.numbers import apart
from shtypes.core.localfn import Linear, LocalFn, static_params, tell_apart
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class Identity(LocalFn):
    """The operand; ``label`` marks it (names for checkpoint policies, stop_gradient, constants)."""

    label: str = "identity"
    constant: bool = False
    linear = Linear.JOINTLY
    per_element = True

    def __str__(self) -> str:
        return self.label

    def __call__(self, x: Any) -> Any:
        return x

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return IDENTITY

    @property
    def stops_gradient(self) -> bool:
        return self.constant


IDENTITY = Identity()


@dataclass(frozen=True)
class Full(LocalFn):
    """One value everywhere: no operands, so it holds its own local shape."""

    value: Any = field(compare=False)
    shape: tuple[int, ...]
    dtype: str
    same: Any = field(init=False, repr=False)
    linear = Linear.JOINTLY

    def __post_init__(self) -> None:
        tell_apart(self, self.value)

    def __str__(self) -> str:
        return f"full[{self.value}]"

    def __call__(self) -> Any:
        if self.dtype == "float0":
            return np.zeros(self.shape, jax.dtypes.float0)
        return jnp.full(self.shape, self.value, dtypes.to_numpy(self.dtype))


@dataclass(frozen=True)
class NamedFn(LocalFn):
    """A function of JAX's, or of shards as it is, with its static parameters."""

    name: str  # what jaxprs and messages call it
    fn: Callable[..., Any]  # the function; equal ones are one local function
    params: tuple[tuple[str, Any], ...] = field(compare=False, default=())  # its static parameters, by keyword
    linear: Linear = Linear.NO
    held: frozenset[int] = frozenset()  # for EACH, the operands in which it is not linear: positions, counts
    #: Where some of its operands are Python numbers: these, and None in the places of arrays.
    numbers: tuple[Any, ...] = field(compare=False, default=())
    per_element: bool = False
    same: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", static_params(self.name, self.params))
        tell_apart(self, *self.numbers, *self.params)

    def __str__(self) -> str:
        numbers = ", ".join("_" if n is None else f"{n:g}" for n in self.numbers)
        return f"{self.name}[{numbers}]" if numbers else self.name

    def __call__(self, *xs: Any) -> Any:
        rest = iter(xs)
        operands = [next(rest) if n is None else n for n in self.numbers] if self.numbers else xs
        return self.fn(*operands, **dict(self.params))

    def linear_in(self, index: int) -> bool:
        return index not in self.held

    def number_apart(self, operands: Sequence[ShType]) -> tuple[LocalFn, Any] | None:
        if self.name not in _NUMBER_IS_AN_OPERAND or len(self.numbers) != 2:
            return None
        return apart(self, "numbers", operands)


#: Functions of two operands for which a number is what an array of one element is.
_NUMBER_IS_AN_OPERAND = {
    *("maximum", "minimum", "fmax", "fmin", "mod", "remainder", "fmod", "floor_divide", "arctan2", "hypot"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logaddexp", "copysign"),
}


@dataclass(frozen=True)
class Permute(LocalFn):
    """Dims in another order."""

    perm: tuple[int, ...]
    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"transpose[{','.join(map(str, self.perm))}]"

    def __call__(self, x: Any) -> Any:
        return lax.transpose(x, self.perm)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return Permute(tuple(int(i) for i in np.argsort(self.perm)))

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        return Permute((0, *(p + 1 for p in self.perm))) if dims[0] == 0 else None


@dataclass(frozen=True)
class Cast(LocalFn):
    """Another dtype."""

    dtype: str

    per_element = True

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a cast between floats is linear
        return Linear.JOINTLY if dtypes.differentiable(self.dtype) else Linear.NO

    def __str__(self) -> str:
        return f"astype[{self.dtype}]"

    def __call__(self, x: Any) -> Any:
        return x.astype(dtypes.to_numpy(self.dtype))

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        real = operands[0].dtype_name[0] != "c" != result.dtype_name[0]
        return Cast(operands[0].dtype_name) if operands[0].differentiable and real else None
