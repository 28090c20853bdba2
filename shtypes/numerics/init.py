"""`sh.init`: initializers of weights, as in `jax.nn.initializers`, by the global shape.

Each function returns an initializer ``init(key, type, dtype=None)``. The type sets the sharding; the values depend only
on the key and the global shape, and each device computes its shard.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shtypes.caches import CACHE_SIZE
from shtypes.context.user_line import maker
from shtypes.core.array import Array
from shtypes.core.eager_cache import public
from shtypes.errors import ShardingTypeError
from shtypes.numerics.random.draw import as_key, sample, sample_replicated, sample_type, type_or_shape
from shtypes.ops import create
from shtypes.rules.along_dims import normal_dims
from shtypes.types import ShType

Initializer = Callable[..., Array]
Dims = int | Sequence[int]


def _initializer(name: str, make: Callable[[Any, ShType], Array], default_dtype: Any) -> Initializer:
    """An initializer from a function of a key and the weights' type."""

    def init(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
        key, dtype = as_key(name, key), default_dtype if dtype is None else dtype
        return make(key, sample_type(jax.typeof(key), type_or_shape(type, shape), dtype, mesh, create.default_float()))

    init.__name__ = name
    return init


@maker
def constant(value: Any, dtype: Any = None) -> Initializer:
    """One number everywhere."""
    return _initializer("constant", lambda key, t: create.full(t, value), dtype)


@public
def zeros(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """Zeros; an initializer itself."""
    return constant(0)(key, type, dtype, shape=shape, mesh=mesh)


@public
def ones(key: Any, type: Any = None, dtype: Any = None, *, shape: Any = None, mesh: Any = None) -> Array:
    """Ones; an initializer itself."""
    return constant(1)(key, type, dtype, shape=shape, mesh=mesh)


def _sampled(name: str, dtype: Any, **params: Any) -> Initializer:
    """An initializer by a sampler of which each device computes its shard."""

    def make(key: Any, t: ShType) -> Array:
        return sample(name, key, t, None, None, t.dtype_name, **params)

    return _initializer(name, make, dtype)


@maker
def uniform(scale: float = 1e-2, dtype: Any = None) -> Initializer:
    """Numbers between 0 and ``scale``."""
    return _sampled("uniform", dtype, scale=float(scale))


@maker
def normal(stddev: float = 1e-2, dtype: Any = None) -> Initializer:
    """Normal numbers."""
    return _sampled("normal", dtype, scale=float(stddev))


@maker
def truncated_normal(stddev: float = 1e-2, dtype: Any = None, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """Normal numbers between ``lower`` and ``upper`` standard deviations."""
    return _sampled("truncated_normal", dtype, scale=float(stddev), lower=float(lower), upper=float(upper))


_DENOMINATORS: dict[str, Callable[[float, float], float]] = {
    "fan_in": lambda fan_in, fan_out: fan_in,
    "fan_out": lambda fan_in, fan_out: fan_out,
    "fan_avg": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
    "fan_geo_avg": lambda fan_in, fan_out: (fan_in * fan_out) ** 0.5,
}


@maker
def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: Dims = -2,
    out_axis: Dims = -1,
    batch_axis: Dims = (),
    dtype: Any = None,
) -> Initializer:
    """Numbers whose variance is ``scale`` over the global number of inputs or outputs.

    Args:
        scale: The factor.
        mode: The denominator: ``"fan_in"``, ``"fan_out"``, ``"fan_avg"`` or ``"fan_geo_avg"``.
        distribution: ``"truncated_normal"``, ``"normal"`` or ``"uniform"``.
        in_axis: Dims of the inputs.
        out_axis: Dims of the outputs.
        batch_axis: Dims that do not count.
        dtype: The default dtype, if the type has none.
    """
    if mode not in _DENOMINATORS:
        raise ShardingTypeError(f"there is no mode {mode!r}", hints=[", ".join(_DENOMINATORS)])
    names = ("truncated_normal", "normal", "uniform")
    if distribution not in names:
        raise ShardingTypeError(f"there is no distribution {distribution!r}", hints=[", ".join(names)])
    scale = float(scale)

    def make(key: Any, t: ShType) -> Array:
        if t.dtype_name[0] == "c":
            raise ShardingTypeError(f"`variance_scaling` makes real numbers, not {t}")
        variance = scale / _DENOMINATORS[mode](*_fans(t, in_axis, out_axis, batch_axis))
        return sample(
            "variance_scaling", key, t, None, None, t.dtype_name, distribution=distribution, variance=variance
        )

    return _initializer("variance_scaling", make, dtype)


def _fans(t: ShType, in_axis: Dims, out_axis: Dims, batch_axis: Dims) -> tuple[float, float]:
    """The global numbers of inputs and outputs of weights."""
    if t.ndim < 2 and in_axis == -2:
        raise ShardingTypeError(
            f"{t} has too few dims to tell inputs from outputs", hints=["give `in_axis`", "sh.init.normal(stddev)"]
        )

    def size(dims: Dims) -> int:
        return math.prod(t.shape[d] for d in normal_dims("variance_scaling", t, dims))

    inputs, outputs = size(in_axis), size(out_axis)
    field = t.size / inputs / outputs / size(batch_axis)
    return inputs * field, outputs * field


glorot_uniform = functools.partial(variance_scaling, 1.0, "fan_avg", "uniform")
glorot_normal = functools.partial(variance_scaling, 1.0, "fan_avg", "truncated_normal")
lecun_uniform = functools.partial(variance_scaling, 1.0, "fan_in", "uniform")
lecun_normal = functools.partial(variance_scaling, 1.0, "fan_in", "truncated_normal")
he_uniform = functools.partial(variance_scaling, 2.0, "fan_in", "uniform")
he_normal = functools.partial(variance_scaling, 2.0, "fan_in", "truncated_normal")
xavier_uniform, xavier_normal = glorot_uniform, glorot_normal
kaiming_uniform, kaiming_normal = he_uniform, he_normal


@maker
def orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """Orthogonal rows or columns, whichever are fewer.

    Each device computes all of the weights, which the decomposition needs, and keeps its shard.

    Args:
        scale: The factor.
        column_axis: The dim of the columns; the others together are rows.
        dtype: The default dtype, if the type has none.
    """
    return _decomposed("orthogonal", dtype, scale=float(scale), column_axis=column_axis)


@maker
def delta_orthogonal(scale: float = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """Orthogonal matrices in the middle of convolution kernels, zero elsewhere; computed as in `orthogonal`."""
    return _decomposed("delta_orthogonal", dtype, scale=float(scale), column_axis=column_axis)


def _decomposed(name: str, dtype: Any, **params: Any) -> Initializer:
    """An initializer by JAX's, of which each device computes all of the weights."""

    def make(key: Any, t: ShType) -> Array:
        return sample_replicated(name, key, [], t, native=_native(name), **params)

    return _initializer(name, make, dtype)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _native(name: str) -> Callable[..., Any]:
    """JAX's initializer with the signature of functions of `jax.random`; one function per name."""

    def sampler(key: Any, *, shape: Any, dtype: Any, **params: Any) -> Any:
        return getattr(jax.nn.initializers, name)(**params)(key, shape, dtype)

    return sampler
