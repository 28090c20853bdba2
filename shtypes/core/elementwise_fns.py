"""Elementwise shard functions: constants, JAX's functions, arithmetic, and Python numbers as operands.

A Python number is a field and part of the function's key. Eager calls pass it as an operand instead (`number_apart`),
so that ``x * 2.0`` and ``x * 3.0`` share a compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes._compat.jaxprs import result_type
from shtypes.core.derived_fns import Wrapped
from shtypes.core.shard_fn import Linear, ShardFn, static_params, tell_apart
from shtypes.types import ShType, dtypes


@dataclass(frozen=True)
class OfNumber(ShardFn):
    """A shard function of one operand and a Python number, which is the field ``name`` of ``fn``."""

    fn: ShardFn
    name: str

    def __call__(self, x: Any, number: Any) -> Any:
        return _with_number(self.fn, self.name, number)(x)


def extract_number(fn: ShardFn, name: str, operands: Sequence[ShType]) -> tuple[ShardFn, Any] | None:
    """Extracts the number in a field of ``fn``, in the dtype to which JAX promotes it; see `number_apart`."""
    field: Any = getattr(fn, name)
    number: Any = next(n for n in field if n is not None) if isinstance(field, tuple) else field
    dtype: Any = operands[0].dtype
    if type(number) not in (int, float) or result_type(dtype, number) != dtype or not _rounds_as_in_xla(number, dtype):
        return None
    value = np.asarray(number, np.float32 if type(number) is float and dtype.itemsize < 4 else None).astype(dtype)
    return OfNumber(_with_number(fn, name, 0), name), value


def _with_number(fn: Any, name: str, number: Any) -> ShardFn:
    """The function with another number in a field; in a tuple, such as ``(None, 2.0)``, None stands for the array."""
    field = getattr(fn, name)
    value = tuple(None if n is None else number for n in field) if isinstance(field, tuple) else number
    replaced: ShardFn = replace(fn, **{name: value})
    return replaced


def _rounds_as_in_xla(number: Any, dtype: Any) -> bool:
    """Whether numpy rounds a number to a dtype as XLA does: no overflow, subnormal or complex number."""
    untyped_jnp: Any = jnp  # mypy has no types for finfo
    if jnp.issubdtype(dtype, jnp.integer):
        return bool(untyped_jnp.iinfo(dtype).min <= number <= untyped_jnp.iinfo(dtype).max)
    if not jnp.issubdtype(dtype, jnp.floating):
        return False
    limits = untyped_jnp.finfo(dtype)
    fits = abs(number) <= (float(limits.max) if type(number) is float else 1 << 24)
    return bool(fits and (number == 0 or abs(number) >= limits.tiny))


@dataclass(frozen=True)
class Identity(ShardFn):
    """The operand; ``label`` marks it (names for checkpoint policies, stop_gradient, constants)."""

    label: str = "identity"
    constant: bool = False
    linear = Linear.JOINTLY
    per_element = True
    is_differentiable = True

    def __str__(self) -> str:
        return self.label

    def __call__(self, x: Any) -> Any:
        return lax.stop_gradient(x) if self.constant else x

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        return IDENTITY

    @property
    def linear_part(self) -> ShardFn | None:
        """The identity without a label: tangents and cotangents are neither named nor saved."""
        return IDENTITY

    @property
    def stops_gradient(self) -> bool:
        return self.constant


IDENTITY = Identity()
#: The operand as a constant for derivatives.
STOP_GRADIENT = Identity("stop_gradient", constant=True)


@dataclass(frozen=True)
class Full(ShardFn):
    """A constant array without operands, so its local shape is a field."""

    value: Any = field(compare=False)
    shape: tuple[int, ...]
    dtype: str
    same: Any = field(init=False, repr=False)
    linear = Linear.JOINTLY
    is_differentiable = True

    def __post_init__(self) -> None:
        tell_apart(self, self.value)

    def __str__(self) -> str:
        return f"full[{self.value}]"

    def __call__(self) -> Any:
        if self.dtype == "float0":
            return np.zeros(self.shape, jax.dtypes.float0)
        return jnp.full(self.shape, self.value, dtypes.to_numpy(self.dtype))


@dataclass(frozen=True)
class NamedFn(ShardFn):
    """A JAX function, or a function of shards, with its static parameters."""

    name: str  # in jaxprs and messages
    fn: Callable[..., Any]  # compared by identity
    params: tuple[tuple[str, Any], ...] = field(compare=False, default=())  # static, by keyword
    linear: Linear = Linear.NO
    #: For MULTILINEAR: the operands in which it is nonlinear, such as positions and counts.
    nonlinear: frozenset[int] = frozenset()
    #: If some operands are Python numbers: these, with None for arrays.
    numbers: tuple[Any, ...] = field(compare=False, default=())
    per_element: bool = False
    keeps_dtype: bool = False
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
        return _unjitted(self.fn)(*operands, **dict(self.params))

    def linear_in(self, index: int) -> bool:
        return index not in self.nonlinear

    def number_apart(self, operands: Sequence[ShType]) -> tuple[ShardFn, Any] | None:
        if self.name not in _NUMBER_IS_AN_OPERAND or len(self.numbers) != 2:
            return None
        return extract_number(self, "numbers", operands)


_Jitted: Final = type(jax.jit(lambda: None))


def _unjitted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that JAX's `jit` compiles, which is quicker to trace; or a function itself."""
    return getattr(fn, "__wrapped__", fn) if isinstance(fn, _Jitted) else fn


#: Functions of two operands for which a number acts like an array of one element.
_NUMBER_IS_AN_OPERAND = {
    *("maximum", "minimum", "fmax", "fmin", "mod", "remainder", "fmod", "floor_divide", "arctan2", "hypot"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logaddexp", "copysign"),
}


@dataclass(frozen=True)
class Permute(ShardFn):
    """Transposes dims."""

    perm: tuple[int, ...]
    linear = Linear.JOINTLY
    is_differentiable = True

    def __str__(self) -> str:
        return f"transpose[{','.join(map(str, self.perm))}]"

    def __call__(self, x: Any) -> Any:
        return lax.transpose(x, self.perm)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        return Permute(tuple(int(i) for i in np.argsort(self.perm)))

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> ShardFn | None:
        return Permute((0, *(p + 1 for p in self.perm))) if dims[0] == 0 else None


@dataclass(frozen=True)
class Cast(ShardFn):
    """Casts to another dtype."""

    dtype: str

    per_element = True
    is_differentiable = True

    @property
    def linear(self) -> Linear:  # type: ignore[override]  # a cast between floats is linear
        return Linear.JOINTLY if dtypes.differentiable(self.dtype) else Linear.NO

    def __str__(self) -> str:
        return f"astype[{self.dtype}]"

    def __call__(self, x: Any) -> Any:
        return x.astype(dtypes.to_numpy(self.dtype))

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        real = operands[0].dtype_name[0] != "c" != result.dtype_name[0]
        return Cast(operands[0].dtype_name) if operands[0].differentiable and real else None


@dataclass(frozen=True)
class Add(ShardFn):
    """``x + y``, or ``x - y``, with broadcasting."""

    minus: bool = False
    linear = Linear.JOINTLY
    per_element = True
    keeps_dtype = True
    is_differentiable = True

    def __str__(self) -> str:
        return "sub" if self.minus else "add"

    def __call__(self, x: Any, y: Any) -> Any:
        return x - y if self.minus else x + y

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        if operands[index].dtype_name != result.dtype_name:
            return None
        sign = Scale(-1) if self.minus and index == 1 else IDENTITY
        return unbroadcast(sign, operands[index].local_shape, result.local_shape)

    def restricted(self, nonzero: Sequence[bool], operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        t = operands[list(nonzero).index(True)]
        if t.local_shape != result.local_shape or t.dtype_name != result.dtype_name:
            return None
        return Scale(-1) if self.minus and nonzero[1] else IDENTITY


@dataclass(frozen=True)
class WithNumber(ShardFn):
    """A function of one operand and a Python number."""

    number: Any = field(compare=False)
    same: Any = field(init=False, repr=False)
    per_element = True
    is_differentiable = True

    def __post_init__(self) -> None:
        tell_apart(self, self.number)

    @property
    def keeps_dtype(self) -> bool:
        return type(self.number) is float or (type(self.number) is int and abs(self.number) < 1 << 31)

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        return self if operands[0].dtype_name == result.dtype_name else None  # called for linear functions only

    def number_apart(self, operands: Sequence[ShType]) -> tuple[ShardFn, Any] | None:
        return extract_number(self, "number", operands)


@dataclass(frozen=True)
class Scale(WithNumber):
    """The operand times a Python number."""

    linear = Linear.JOINTLY

    @property
    def negates(self) -> bool:
        """Whether this is the negation; times -1.0 is not, since it converts integers to floats."""
        return isinstance(self.number, int) and self.number == -1

    def __str__(self) -> str:
        return "neg" if self.negates else f"scale[{self.number:g}]"

    def __call__(self, x: Any) -> Any:
        return -x if self.negates else x * self.number

    def number_apart(self, operands: Sequence[ShType]) -> tuple[ShardFn, Any] | None:
        return None if self.negates else super().number_apart(operands)


@dataclass(frozen=True)
class DivideBy(WithNumber):
    """The operand divided by a Python number."""

    linear = Linear.JOINTLY

    def __str__(self) -> str:
        return f"div[{self.number:g}]"

    def __call__(self, x: Any) -> Any:
        return x / self.number


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
    def linear_part(self) -> ShardFn | None:
        if isinstance(self.number, complex):  # the result may be complex and the operand real
            return Scale(-1 + 0j if self.reverse else 1 + 0j)
        return Scale(-1) if self.reverse else IDENTITY


@dataclass(frozen=True)
class Divide(ShardFn):
    """``x / y``: linear in the numerator."""

    linear = Linear.MULTILINEAR
    per_element = True
    keeps_dtype = True
    is_differentiable = True

    def __str__(self) -> str:
        return "div"

    def __call__(self, x: Any, y: Any) -> Any:
        return x / y

    def linear_in(self, index: int) -> bool:
        return index == 0

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        if index != 0 or {t.dtype_name for t in operands} != {result.dtype_name}:
            return None
        return unbroadcast(self, operands[0].local_shape, result.local_shape)


@dataclass(frozen=True)
class Mul(ShardFn):
    """``x * y``, with broadcasting."""

    linear = Linear.MULTILINEAR
    per_element = True
    keeps_dtype = True
    is_differentiable = True

    def __str__(self) -> str:
        return "mul"

    def __call__(self, x: Any, y: Any) -> Any:
        return x * y

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        if {t.dtype_name for t in operands} != {result.dtype_name}:
            return None
        return unbroadcast(self, operands[index].local_shape, result.local_shape)


def unbroadcast(fn: ShardFn, shape: tuple[int, ...], result: tuple[int, ...]) -> ShardFn:
    """``fn`` followed by the local sum over the dims along which ``shape`` was broadcast."""
    if shape == result:
        return fn
    extra = len(result) - len(shape)
    dims = tuple(range(extra)) + tuple(extra + i for i, n in enumerate(shape) if n != result[extra + i])
    return SumTo(fn, dims, shape)


@dataclass(frozen=True)
class SumTo(Wrapped):
    """A shard function followed by a sum over ``dims`` to ``shape``."""

    dims: tuple[int, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        dims = ",".join(map(str, self.dims))
        return f"sum[{dims}]" if self.fn == IDENTITY else f"{self.fn}_sum[{dims}]"

    def __call__(self, *xs: Any) -> Any:
        return self.fn(*xs).sum(self.dims).reshape(self.shape)
