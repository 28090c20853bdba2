"""Sums, products and quotients of shards and numbers, and their adjoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shtypes.core.functions.basics import IDENTITY
from shtypes.core.functions.numbers import apart
from shtypes.core.localfn import Linear, LocalFn, tell_apart
from shtypes.types import ShType


@dataclass(frozen=True)
class Add(LocalFn):
    """``x + y``, or ``x - y``, with broadcasting."""

    minus: bool = False
    linear = Linear.JOINTLY
    per_element = True

    def __str__(self) -> str:
        return "sub" if self.minus else "add"

    def __call__(self, x: Any, y: Any) -> Any:
        return x - y if self.minus else x + y

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        if operands[index].dtype_name != result.dtype_name:
            return None
        sign = Scale(-1) if self.minus and index == 1 else IDENTITY
        return unbroadcast(sign, operands[index].local_shape, result.local_shape)

    def restricted(self, kept: Sequence[bool], operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        t = operands[list(kept).index(True)]
        if t.local_shape != result.local_shape or t.dtype_name != result.dtype_name:
            return None
        return Scale(-1) if self.minus and kept[1] else IDENTITY


@dataclass(frozen=True)
class WithNumber(LocalFn):
    """A function of one operand and a Python number."""

    number: Any = field(compare=False)
    same: Any = field(init=False, repr=False)
    per_element = True

    def __post_init__(self) -> None:
        tell_apart(self, self.number)

    def number_apart(self, operands: Sequence[ShType]) -> tuple[LocalFn, Any] | None:
        return apart(self, "number", operands)


@dataclass(frozen=True)
class Scale(WithNumber):
    """The operand times a Python number."""

    linear = Linear.JOINTLY

    @property
    def negates(self) -> bool:
        """Whether this is the negation; times -1.0 is not, since it makes floats of integers."""
        return isinstance(self.number, int) and self.number == -1

    def __str__(self) -> str:
        return "neg" if self.negates else f"scale[{self.number:g}]"

    def __call__(self, x: Any) -> Any:
        return -x if self.negates else x * self.number

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return self if operands[0].dtype_name == result.dtype_name else None

    def number_apart(self, operands: Sequence[ShType]) -> tuple[LocalFn, Any] | None:
        return None if self.negates else super().number_apart(operands)


@dataclass(frozen=True)
class DivideBy(WithNumber):
    """The operand over a Python number."""

    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"div[{self.number:g}]"

    def __call__(self, x: Any) -> Any:
        return x / self.number

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return self if operands[0].dtype_name == result.dtype_name else None


@dataclass(frozen=True)
class AddNumber(WithNumber):
    """``x + number``, ``x - number`` or, reversed, ``number - x``."""

    minus: bool = False
    reverse: bool = False

    def __str__(self) -> str:
        return f"{'r' * self.reverse}{'sub' if self.minus else 'add'}[{self.number:g}]"

    def __call__(self, x: Any) -> Any:
        if self.reverse:
            return self.number - x
        return x - self.number if self.minus else x + self.number

    @property
    def linear_part(self) -> LocalFn | None:
        if isinstance(self.number, complex):  # the result may be complex where the operand is not
            return Scale(-1 + 0j if self.reverse else 1 + 0j)
        return Scale(-1) if self.reverse else IDENTITY


@dataclass(frozen=True)
class Divide(LocalFn):
    """``x / y``: linear in the numerator."""

    linear = Linear.EACH
    per_element = True

    def __str__(self) -> str:
        return "div"

    def __call__(self, x: Any, y: Any) -> Any:
        return x / y

    def linear_in(self, index: int) -> bool:
        return index == 0

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        if index != 0 or {t.dtype_name for t in operands} != {result.dtype_name}:
            return None
        return unbroadcast(self, operands[0].local_shape, result.local_shape)


@dataclass(frozen=True)
class Mul(LocalFn):
    """``x * y``, with broadcasting."""

    linear = Linear.EACH
    per_element = True

    def __str__(self) -> str:
        return "mul"

    def __call__(self, x: Any, y: Any) -> Any:
        return x * y

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        if {t.dtype_name for t in operands} != {result.dtype_name}:
            return None
        return unbroadcast(self, operands[index].local_shape, result.local_shape)


def unbroadcast(fn: LocalFn, shape: tuple[int, ...], result: tuple[int, ...]) -> LocalFn:
    """``fn`` followed by the local sum over the dims that ``shape`` was broadcast along."""
    if shape == result:
        return fn
    extra = len(result) - len(shape)
    dims = tuple(range(extra)) + tuple(extra + i for i, n in enumerate(shape) if n != result[extra + i])
    return SumTo(fn, dims, shape)


@dataclass(frozen=True)
class SumTo(LocalFn):
    """A local function followed by a sum over ``dims`` that gives ``shape``."""

    fn: LocalFn
    dims: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # as that of the wrapped function
        return self.fn.linear

    def __str__(self) -> str:
        dims = ",".join(map(str, self.dims))
        return f"sum[{dims}]" if self.fn == IDENTITY else f"{self.fn}_sum[{dims}]"

    def linear_in(self, index: int) -> bool:
        return self.fn.linear_in(index)

    def __call__(self, *xs: Any) -> Any:
        return self.fn(*xs).sum(self.dims).reshape(self.shape)
