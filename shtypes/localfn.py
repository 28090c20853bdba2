"""Functions of shards, and their derivatives: what the `local` primitive applies on each device.

A local function is hashable (equal ones share traces and compilations) and prints as it should in a jaxpr. Its
derivatives come from JAX: `Jvp`, `Transpose` and `Vmap` wrap the function; a class overrides `adjoint` or `restricted`
only so that backward programs stay readable.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import dtypes
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType


class Linear(enum.Enum):
    """In what sense a local function is linear."""

    NO = "no"
    JOINTLY = "jointly"  # f(a + b, c + d) = f(a, c) + f(b, d)
    EACH = "each"  # in each operand, the others held
    BESIDE = "beside"  # jointly in the operands that have a gradient; the others (masks, positions) are held


class LocalFn:
    """A function of shards that never communicates."""

    linear: ClassVar[Linear] = Linear.NO
    #: Whether it acts on each element alone, so that mapped at the front of all operands it is itself.
    per_element: ClassVar[bool] = False

    def __call__(self, *shards: Any) -> Any:
        """The result's shard, or a tuple of them."""
        raise NotImplementedError

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        """The local function that transposes operand ``index``.

        It takes the cotangent alone or, for EACH, all operands with the cotangent in the place of that one; for BESIDE
        the operands without a gradient and then the cotangent. None asks JAX; `Identity` passes the cotangent on.
        """
        return None

    def restricted(self, kept: Sequence[bool], operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        """For JOINTLY: the function of the kept operands alone, the others being zero; None if there is none."""
        return None

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        """The function mapped over ``dims``, with the mapped dim leading in the result; None asks `jax.vmap`."""
        aligned = set(dims) == {0} and len(set(ranks)) == 1
        return self if self.per_element and aligned else None

    def linear_in(self, index: int) -> bool:
        """For EACH: whether the function is linear in that operand."""
        return True

    @property
    def linear_part(self) -> LocalFn | None:
        """The function that takes tangents to tangents whatever the operands with a gradient are, if there is one."""
        return self if self.linear in (Linear.JOINTLY, Linear.BESIDE) else None

    @property
    def stops_gradient(self) -> bool:
        """Whether results count as constants."""
        return False


def tell_apart(fn: LocalFn, *numbers: Any) -> None:
    """Makes local functions equal only if their numbers do the same: 1 is not 1.0, and 0.0 is not -0.0.

    The numbers' own fields do not compare; ``same`` does.
    """
    object.__setattr__(fn, "same", tuple((type(n), repr(n)) for n in numbers))


def as_tuple(outs: Any) -> tuple[Any, ...]:
    """A local function's results as a tuple."""
    return tuple(outs) if isinstance(outs, (tuple, list)) else (outs,)


# derivatives by JAX


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

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        # The derivative of a real elementwise function is diagonal, so it is its own transpose.
        alone = len(self.active) == 1 and index == 1
        if (
            alone
            and isinstance(self.fn, (Elementwise, WithNumbers))
            and result.dtype_name[0] != "c" != operands[0].dtype_name[0]
        ):
            return self if result.dtype_name == operands[0].dtype_name else None
        return None

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> LocalFn | None:
        if isinstance(self.fn, (Elementwise, WithNumbers)) and len(set(dims)) == 1 == len(set(ranks)) and dims[0] == 0:
            return self
        return None


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
        nonlinear, given = shards[:n], iter(shards[n:])

        def of_linear(*values: Any) -> tuple[Any, ...]:
            rest, others = iter(values), iter(nonlinear)
            return as_tuple(self.fn(*[next(others) if op is None else next(rest) for op in self.linear_operands]))

        cts = tuple(
            next(given) if g else jnp.zeros(shape, dtypes.to_numpy(dtype))
            for g, (shape, dtype) in zip(self.given, self.results, strict=True)
        )
        structs = [jax.ShapeDtypeStruct(op[0], dtypes.to_numpy(op[1])) for op in self.linear_operands if op]
        return jax.linear_transpose(of_linear, *structs)(cts)


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

    @property
    def stops_gradient(self) -> bool:
        return self.fn.stops_gradient

    def __call__(self, *shards: Any) -> Any:
        return jax.vmap(self.fn, in_axes=self.dims)(*shards)


# constants and the linear basics


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
class Scale(LocalFn):
    """The operand times a Python number."""

    factor: Any = field(compare=False)
    same: Any = field(init=False, repr=False)
    linear = Linear.JOINTLY
    per_element = True

    def __post_init__(self) -> None:
        tell_apart(self, self.factor)

    @property
    def negates(self) -> bool:
        """Whether this is the negation; times -1.0 is not, since it makes floats of integers."""
        return isinstance(self.factor, int) and self.factor == -1

    def __str__(self) -> str:
        return "neg" if self.negates else f"scale[{self.factor:g}]"

    def __call__(self, x: Any) -> Any:
        return -x if self.negates else x * self.factor

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return self if operands[0].dtype_name == result.dtype_name else None


@dataclass(frozen=True)
class DivideBy(LocalFn):
    """The operand over a Python number."""

    divisor: Any = field(compare=False)
    same: Any = field(init=False, repr=False)
    linear = Linear.JOINTLY
    per_element = True

    def __post_init__(self) -> None:
        tell_apart(self, self.divisor)

    def __str__(self) -> str:
        return f"div[{self.divisor:g}]"

    def __call__(self, x: Any) -> Any:
        return x / self.divisor

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> LocalFn | None:
        return self if operands[0].dtype_name == result.dtype_name else None


@dataclass(frozen=True)
class AddNumber(LocalFn):
    """``x + number``, ``x - number`` or, reversed, ``number - x``."""

    number: Any = field(compare=False)
    minus: bool = False
    reverse: bool = False
    same: Any = field(init=False, repr=False)
    per_element = True

    def __post_init__(self) -> None:
        tell_apart(self, self.number)

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


@functools.cache
def local_avals(fn: LocalFn, operands: tuple[ShType, ...], results: tuple[ShType, ...]) -> None:
    """Checks that a local function gives the shards that its type says, without running it."""
    structs = [jax.ShapeDtypeStruct(t.local_shape, t.dtype) for t in operands]
    outs = as_tuple(jax.eval_shape(fn, *structs))
    found = [(o.shape, dtypes.from_numpy(o.dtype)) for o in outs]
    wanted = [(t.local_shape, t.dtype_name) for t in results]
    if found != wanted:
        raise AssertionError(f"{fn}: shards {found} do not fit the types {results}; please report this")


@functools.cache
def local_dtype(fn: LocalFn, operands: tuple[str, ...], rank: int = 1) -> str:
    """The dtype of a local function's result on operands of ``rank`` dims, by JAX's promotion.

    Raises:
        ShardingTypeError: JAX refuses these dtypes, or a parameter of the function.
    """
    shape = (1,) * rank  # not (): a few functions of jax.numpy promote scalars otherwise
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(name)) for name in operands]
    try:
        return dtypes.from_numpy(jax.eval_shape(fn, *structs).dtype)
    except (TypeError, ValueError, OverflowError) as error:
        what = f"`{fn}` cannot be applied to {' and '.join(operands)}"
        raise ShardingTypeError(what, why=str(error).strip().split("\n")[0]) from None
