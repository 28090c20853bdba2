"""Constants, named functions of `jax.numpy`, and the linear basics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import dtypes
from shtypes.functions.numbers import apart
from shtypes.localfn import Linear, LocalFn, tell_apart
from shtypes.types import ShType


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
class Elementwise(LocalFn):
    """A function of `jax.numpy` or `jax.nn` applied element by element to operands of one shape (or broadcast)."""

    name: str
    fn: Callable[..., Any]
    params: tuple[tuple[str, Any], ...] = field(compare=False, default=())
    same: Any = field(init=False, repr=False)
    per_element = True

    def __post_init__(self) -> None:
        tell_apart(self, *self.params)

    def __str__(self) -> str:
        return self.name

    def __call__(self, *xs: Any) -> Any:
        return self.fn(*xs, **dict(self.params))


@dataclass(frozen=True)
class WithNumbers(LocalFn):
    """An elementwise function some of whose operands are Python numbers; ``None`` marks the places of arrays."""

    name: str
    fn: Callable[..., Any]
    numbers: tuple[Any, ...] = field(compare=False)
    params: tuple[tuple[str, Any], ...] = field(compare=False, default=())
    same: Any = field(init=False, repr=False)
    per_element = True

    def __post_init__(self) -> None:
        tell_apart(self, *self.numbers, *self.params)

    def __str__(self) -> str:
        return f"{self.name}[{', '.join('_' if n is None else f'{n:g}' for n in self.numbers)}]"

    def __call__(self, *xs: Any) -> Any:
        rest = iter(xs)
        return self.fn(*[next(rest) if n is None else n for n in self.numbers], **dict(self.params))

    def number_apart(self, operands: Sequence[ShType]) -> tuple[LocalFn, Any] | None:
        if self.name not in _NUMBER_IS_AN_OPERAND or len(self.numbers) != 2:
            return None
        first = self.numbers[1] is None
        return apart(OneNumber(self.name, self.fn, self.numbers[1 - first], first, self.params), "number", operands)


#: Functions of two operands for which a number is what an array of one element is.
_NUMBER_IS_AN_OPERAND = {
    *("maximum", "minimum", "fmax", "fmin", "mod", "remainder", "fmod", "floor_divide", "arctan2", "hypot"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logaddexp", "copysign"),
}


@dataclass(frozen=True)
class OneNumber(LocalFn):
    """A function of two operands on a number and an array, in this order if ``first``."""

    name: str
    fn: Callable[..., Any]
    number: Any = field(compare=False)
    first: bool
    params: tuple[tuple[str, Any], ...] = ()

    def __call__(self, x: Any) -> Any:
        pair = (self.number, x) if self.first else (x, self.number)
        return self.fn(*pair, **dict(self.params))


@dataclass(frozen=True)
class LinearFn(LocalFn):
    """A named jointly linear function with static parameters (transpose, reshape, slices, …)."""

    name: str
    fn: Callable[..., Any]
    params: tuple[tuple[str, Any], ...] = field(compare=False, default=())
    same: Any = field(init=False, repr=False)
    linear = Linear.JOINTLY

    def __post_init__(self) -> None:
        tell_apart(self, *self.params)

    def __str__(self) -> str:
        return self.name

    def __call__(self, *xs: Any) -> Any:
        return self.fn(*xs, **dict(self.params))


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
