"""Shard functions: what the `local` primitive applies on each device.

A shard function is hashable (equal ones share traces and compilations), and prints in jaxprs. JAX derives its
derivatives, by `Jvp` and `Transpose`; a class overrides `adjoint` or `restricted` only to keep backward programs
readable.
"""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from shtypes._compat.jaxprs import depends_smoothly, equations, wide_enough
from shtypes._compat.local_axes import axes_bound
from shtypes._compat.tracing import trace_typed
from shtypes.caches import CACHE_SIZE
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType, dtypes


class Linear(enum.Enum):
    """How a shard function is linear."""

    NO = "no"
    JOINTLY = "jointly"  # f(a + b, c + d) = f(a, c) + f(b, d)
    MULTILINEAR = "multilinear"  # in each operand, with the others fixed
    IN_DIFFERENTIABLE = "in_differentiable"  # jointly in the operands that can have a gradient, with the others fixed

    __hash__ = object.__hash__  # faster: shard functions are hashed often


class ShardFn:
    """A function of shards that never communicates."""

    linear: Linear = Linear.NO
    #: Whether it is elementwise, so that mapped over the leading dim of all operands it is itself.
    per_element: bool = False
    #: Whether `debug_checks` compare copies of its results; False if devices may differ.
    compared: bool = True
    #: Whether it calls host functions, whose errors are raised at the end of the program.
    calls_host: bool = False

    def __call__(self, *shards: Any) -> Any:
        """The result's shard, or a tuple of them."""
        raise NotImplementedError

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        """The shard function that transposes operand ``index``.

        It takes only the cotangent; for MULTILINEAR all operands, with the cotangent in place of that one; for
        IN_DIFFERENTIABLE the operands without a gradient and then the cotangent. None: JAX transposes it; `Identity`:
        the cotangent unchanged.
        """
        return None

    def check_transposed(self) -> None:
        """Refuses a transpose that the settings around it forbid; called each time."""

    def restricted(self, nonzero: Sequence[bool], operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        """For JOINTLY: the function of only the ``nonzero`` operands, the others being zero; None if there is none."""
        return None

    def batched(self, dims: Sequence[int | None], ranks: Sequence[int]) -> ShardFn | None:
        """The function mapped over ``dims``, with the mapped dim leading in the result; None for `jax.vmap`."""
        aligned = set(dims) == {0} and len(set(ranks)) == 1
        return self if self.per_element and aligned else None

    def linear_in(self, index: int) -> bool:
        """For MULTILINEAR: whether the function is linear in that operand."""
        return True

    @property
    def linear_part(self) -> ShardFn | None:
        """The function from tangents to tangents that is independent of the differentiable operands, or None."""
        return self if self.linear in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE) else None

    def primal(self, operands: Sequence[ShType]) -> tuple[ShardFn, Sequence[ShType]]:
        """The function of which it is a derivative, or itself; with that function's operands."""
        return self, operands

    def no_derivative(self, active: Sequence[bool]) -> str:
        """Why there is no derivative by the ``active`` operands; empty if there is one."""
        return ""

    @property
    def stops_gradient(self) -> bool:
        """Whether results are constants."""
        return False

    @property
    def keeps_dtype(self) -> bool:
        """Whether the result of floats of one dtype always has that dtype."""
        return False

    @property
    def is_differentiable(self) -> bool:
        """Whether JAX surely has all its derivatives and transposes, so that no trace needs to find out."""
        return False

    def number_apart(self, operands: Sequence[ShType]) -> tuple[ShardFn, Any] | None:
        """The function with its number as one more operand, and the number; None if it has no number.

        Eager calls with different numbers then share a compilation.
        """
        return None


def tell_apart(fn: ShardFn, *numbers: Any) -> None:
    """Makes shard functions equal only if their numbers act the same: 1 is not 1.0, and 0.0 is not -0.0.

    Their number fields are not compared; ``same`` is.
    """
    object.__setattr__(fn, "same", tuple((type(n), repr(n)) for n in numbers))


_PLAIN: Final = frozenset({int, float, complex, bool, str, type(None)})


def static_params(name: str, params: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The static parameters of a JAX function, by keyword; a 0-d array is converted to its number."""
    return tuple((k, v if type(v) in _PLAIN else _static(name, k, v)) for k, v in params)


def _static(name: str, keyword: str, value: Any) -> Any:
    if isinstance(value, jax.core.Tracer) or isinstance(getattr(value, "type", None), ShType):
        raise ShardingTypeError(
            f"`{keyword}` of `{name}` must be known when it is traced", why=f"it is a value of type {jax.typeof(value)}"
        )
    if not isinstance(value, (np.ndarray, jax.Array)):
        return value
    if np.ndim(value):
        raise ShardingTypeError(f"`{keyword}` of `{name}` is one number, not an array of shape {list(np.shape(value))}")
    return np.asarray(value)[()]


def as_tuple(outs: Any) -> tuple[Any, ...]:
    """A shard function's results as a tuple."""
    return tuple(outs) if isinstance(outs, (tuple, list)) else (outs,)


def check_derivative(
    fn: ShardFn, active: Sequence[bool], derivative: ShardFn, primals: Sequence[ShType], tangents: Sequence[ShType]
) -> None:
    """Refuses to differentiate a function without a derivative, before it is lowered."""
    why = fn.no_derivative(active)
    if not why and not _is_differentiable(*fn.primal(primals)):
        why = _no_derivative(derivative, (*primals, *tangents))
    if why:
        error = ShardingTypeError(f"`{fn}` cannot be differentiated", why=why)
        raise placed(error, f"{fn}({', '.join(map(str, primals))})") from NotImplementedError(why)


def check_transpose(fn: ShardFn, types: Sequence[ShType], transpose: ShardFn, operands: Sequence[ShType]) -> None:
    """Refuses to transpose a function that JAX cannot transpose, before it is lowered.

    ``types`` are its operands' types, ``operands`` those of its transpose.
    """
    why = "" if _is_differentiable(*fn.primal(types)) else _no_derivative(transpose, tuple(operands))
    if why:
        error = ShardingTypeError(f"`{fn}` cannot be differentiated", why=why)
        raise placed(error, f"{transpose}") from NotImplementedError(why)


#: Primitives with all derivatives and transposes in JAX, for any parameters.
DIFFERENTIABLE: Final = frozenset({
    *("add", "add_any", "sub", "mul", "div", "neg", "max", "min", "abs", "sign", "square", "integer_pow", "pow"),
    *("sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "tan"),
    *("erf", "erfc", "floor", "ceil", "round", "select_n", "clamp", "stop_gradient", "copy", "copy_p", "is_finite"),
    *("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "convert_element_type", "iota"),
    *("reduce_sum", "reduce_max", "reduce_min", "dot_general", "broadcast_in_dim", "reshape", "squeeze", "expand_dims"),
    *("transpose", "rev", "slice", "concatenate", "pad", "jit", "pjit"),
})  # fmt: skip


def _is_differentiable(fn: ShardFn, operands: Sequence[ShType]) -> bool:
    """Whether a function's primitives guarantee its derivatives; if not, they must be tried."""
    if fn.is_differentiable:
        return True
    jaxpr = program_of(fn, operands)
    return jaxpr is not None and all(eqn.primitive.name in DIFFERENTIABLE for eqn in equations(jaxpr))


def with_derivative(fn: ShardFn, active: Sequence[bool], operands: Sequence[ShType], count: int) -> tuple[bool, ...]:
    """Whether each of ``count`` results may have a nonzero derivative by the ``active`` operands."""
    if fn.linear is Linear.MULTILINEAR and any(a and fn.linear_in(i) for i, a in enumerate(active)):
        return (True,) * count
    jaxpr = program_of(fn, operands)
    return (True,) * count if jaxpr is None else _with_derivative(jaxpr, tuple(active))


@functools.lru_cache(maxsize=CACHE_SIZE)
def _with_derivative(jaxpr: Any, active: tuple[bool, ...]) -> tuple[bool, ...]:
    return tuple(depends_smoothly(jaxpr, [i for i, a in enumerate(active) if a]))


def without_derivative(fn: ShardFn, operands: Sequence[ShType], count: int) -> frozenset[int]:
    """The operands by which the derivative of each of the ``count`` results is zero everywhere."""
    n = range(len(operands))
    return frozenset(i for i in n if not any(with_derivative(fn, [i == j for j in n], operands, count)))


def program_of(fn: ShardFn, operands: Sequence[ShType], *, shards: bool = False) -> Any:
    """The program of a shard function on operands of some types; None if it cannot be traced.

    That of a function of each element is of one element, unless ``shards``.
    """
    shapes = [(1,) if fn.per_element and not shards else t.local_shape for t in operands]
    try:
        return _program(fn, shapes, operands)
    except (NameError, NotImplementedError, TypeError, ValueError):
        return None


def _program(fn: ShardFn, shapes: Iterable[tuple[int, ...]], operands: Sequence[ShType]) -> Any:
    key = fn, tuple(shapes), tuple(t.dtype_name for t in operands), promotion()
    try:
        return _jaxpr(*key)
    except NameError:  # it calls `axis_index`
        return _jaxpr(*key, operands[0].mesh.axis_names if operands else ())


@functools.lru_cache(maxsize=CACHE_SIZE)
def _jaxpr(
    fn: ShardFn,
    shapes: tuple[tuple[int, ...], ...],
    names: tuple[str, ...],
    promotion: tuple[Any, ...],
    axes: tuple[str, ...] = (),
) -> Any:
    """The program of a shard function on shards of some shapes and dtypes."""
    env = axes_bound([(axis, 1) for axis in axes]) if axes else contextlib.nullcontext()
    with wide_enough(*names), jax.sharding.use_abstract_mesh(_NO_MESH), env:
        avals = [ShapedArray(s, dtypes.to_numpy(name)) for s, name in zip(shapes, names, strict=True)]
        return trace_typed(fn, avals)


#: The mesh within a function of shards: no axes.
_NO_MESH: Final = jax.sharding.AbstractMesh((), ())


@functools.lru_cache(maxsize=CACHE_SIZE)
def _no_derivative(fn: ShardFn, operands: tuple[ShType, ...]) -> str:
    """Why JAX has no derivative ``fn`` on such shards; empty if it has one."""
    try:
        _program(fn, [t.local_shape for t in operands], operands)
    except (NotImplementedError, TypeError, ValueError) as error:  # the function itself typed before
        return str(error).strip().split("\n")[0]
    return ""


def promotion() -> tuple[Any, ...]:
    """The settings of JAX's dtype promotion, for cache keys."""
    config: Any = jax.config
    return config.jax_enable_x64, config.jax_numpy_dtype_promotion


def local_dtype(fn: ShardFn, operands: tuple[str, ...], rank: int = 1) -> str:
    """The dtype of a shard function's result on operands of ``rank`` dims, by JAX's promotion."""
    if fn.keeps_dtype and len({*operands}) == 1 and dtypes.differentiable(operands[0]):
        return operands[0]
    shape = (1,) * rank  # not (): a few functions of jax.numpy promote scalars differently
    try:
        return dtypes.from_numpy(_jaxpr(fn, (shape,) * len(operands), operands, promotion()).out_avals[0].dtype)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        what = f"`{fn}` cannot be applied to {' and '.join(operands)}"
        raise ShardingTypeError(what, why=str(error).strip().split("\n")[0]) from None


def is_inexact(x: Any) -> bool:
    """Whether the dtype of a value, typed or plain, or of an aval has gradients."""
    return bool(jnp.issubdtype(x.dtype if hasattr(x, "dtype") else jnp.result_type(x), jnp.inexact))
