"""Random samples of a key and a type, which determine a global array.

Each device computes only its shard of samplers that work elementwise on bits (`sample`), and otherwise the full array,
of which it keeps its shard (`sample_replicated`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shtypes import rules
from shtypes.caches import CACHE_SIZE
from shtypes.core.array import Array
from shtypes.core.conversion import convert
from shtypes.core.local import local
from shtypes.core.reshard import move
from shtypes.core.shard_fn import ShardFn
from shtypes.dispatch.apply import apply, as_operands, constant, is_number, is_typed
from shtypes.dispatch.reshard import reshard
from shtypes.errors import ShardingTypeError
from shtypes.numerics.random.global_bits import part_key
from shtypes.ops import create
from shtypes.rules import messages
from shtypes.rules.random import check_key
from shtypes.rules.random import sample as _sample_rule
from shtypes.types import Dim, ShType, State, dtypes
from shtypes.types.mesh import current_mesh

#: The global size and mesh axes of each dim.
Layout = tuple[tuple[int, tuple[str, ...]], ...]
Sampler = Callable[..., Any]


def _variance_scaling(key: Any, shape: Any, dtype: Any, distribution: str, variance: float) -> Any:
    scale = jnp.array(variance, dtype)
    if distribution == "truncated_normal":
        # the standard deviation of a standard normal truncated to [-2, 2]
        stddev = jnp.sqrt(scale) / jnp.array(0.87962566103423978, dtype)
        return jax.random.truncated_normal(key, -2, 2, shape, dtype) * stddev
    if distribution == "normal":
        return jax.random.normal(key, shape, dtype) * jnp.sqrt(scale)
    return jax.random.uniform(key, shape, dtype, -1) * jnp.sqrt(3 * scale)


def _scalable(native: Sampler) -> Sampler:
    """A sampler with a ``scale``, by which an initializer multiplies its samples."""

    def sampler(key: Any, shape: Any, dtype: Any, scale: float | None = None, **params: Any) -> Any:
        samples = native(key, **params, shape=shape, dtype=dtype)
        return samples if scale is None else samples * jnp.array(scale, dtype)

    return sampler


def _with_parameters(native: Sampler) -> Sampler:
    return lambda key, shape, dtype, **params: native(key, **params, shape=shape, dtype=dtype)


#: Elementwise samplers of a key, a shape and a dtype, for which a shard's samples are those of the global array.
SAMPLERS: Final[dict[str, Sampler]] = {
    "uniform": _scalable(jax.random.uniform),
    "normal": _scalable(jax.random.normal),
    "truncated_normal": _scalable(jax.random.truncated_normal),
    "bernoulli": lambda key, shape, dtype, p, mode: jax.random.bernoulli(key, p, shape, mode=mode),
    "randint": _with_parameters(jax.random.randint),
    "bits": jax.random.bits,
    "exponential": jax.random.exponential,
    "gumbel": jax.random.gumbel,
    "laplace": jax.random.laplace,
    "logistic": jax.random.logistic,
    "cauchy": jax.random.cauchy,
    "rademacher": jax.random.rademacher,
    "lognormal": _with_parameters(jax.random.lognormal),
    "rayleigh": _with_parameters(jax.random.rayleigh),
    "pareto": _with_parameters(jax.random.pareto),
    "weibull_min": _with_parameters(jax.random.weibull_min),
    "triangular": _with_parameters(jax.random.triangular),
    "geometric": _with_parameters(jax.random.geometric),
    "variance_scaling": _variance_scaling,
}


def shard_key(key: Any, layout: Layout, local_shape: Sequence[int], folded: Sequence[str]) -> Any:
    """The key of a device's shard of a global array; devices along ``folded`` axes have different keys."""
    for axis in folded:
        key = jax.random.fold_in(key, lax.axis_index(axis))
    if not any(axes for _, axes in layout):
        return key
    starts = [lax.axis_index(axes) * n if axes else 0 for (_, axes), n in zip(layout, local_shape, strict=True)]
    return part_key(key, tuple(size for size, _ in layout), starts)


@dataclass(frozen=True)
class Sample(ShardFn):
    """A device's shard of a sample.

    ``same`` distinguishes equal parameters of different classes.
    """

    name: str
    params: tuple[tuple[str, Any], ...]
    dtype: str
    shape: tuple[int, ...]
    layout: Layout
    folded: tuple[str, ...]
    same: str

    def __str__(self) -> str:
        return f"random_{self.name}[{','.join(map(str, self.shape))}]"

    def __call__(self, key: Any) -> Any:
        key = shard_key(key, self.layout, self.shape, self.folded)
        return SAMPLERS[self.name](key, self.shape, dtypes.to_numpy(self.dtype), **dict(self.params))


def type_or_shape(type: Any, shape: Any) -> Any:
    """The type, or the shape by name, as in JAX; not both."""
    if shape is None:
        return type
    if type is not None and type != ():
        raise ShardingTypeError(f"a type and a shape are given, {type!r:.60} and {shape!r:.60}", hints=["type="])
    return shape


def as_key(name: str, key: Any) -> Array:
    """One key as a typed value."""
    if not is_typed(key):
        if not isinstance(key, jax.Array):
            raise ShardingTypeError(f"`{name}` needs a key, not {key!r:.40}", hints=["sh.random.key(seed)"])
        key = convert(key) if isinstance(key, jax.core.Tracer) else constant(key, current_mesh())
    typed_key: Array = key
    check_key(name, jax.typeof(typed_key))
    return typed_key


def layout_of(t: ShType) -> Layout:
    """The sizes and axes of a type's dims."""
    return tuple((d.size, d.axes) for d in t.dims)


def folded_axes(key: ShType, sampled: ShType) -> tuple[str, ...]:
    """The axes along which devices sample different numbers from one key."""
    return tuple(a for a in sampled.axes(State.VARYING) if key.state(a) is not State.VARYING)


def check_parts(name: str, key: ShType, sampled: ShType) -> None:
    """Checks that the key's generator can compute a shard alone, if a dim is sharded."""
    if not any(d.axes for d in sampled.dims):
        return
    if key.dtype_name != "key<fry>":
        why = f"the generator of {key.dtype_name} makes all numbers at once: no device can make its own ones alone"
    elif not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        why = "with jax_threefry_partitionable=False all numbers are made at once"
    else:
        return
    hints = ["draw it replicated and reshard it: each device makes all of it and keeps its slice"]
    raise ShardingTypeError(f"`{name}` cannot make a part of {sampled}", why=why, hints=hints)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _check_dtype(name: str, dtype: str, params: tuple[tuple[str, Any], ...]) -> None:
    """Refuses a dtype without JAX samples."""
    try:
        jax.eval_shape(lambda: SAMPLERS[name](jax.random.key(0), (), dtypes.to_numpy(dtype), **dict(params)))
    except (TypeError, ValueError) as error:
        raise ShardingTypeError(f"`{name}` draws no `{dtype}` values", why=str(error).strip().split("\n")[0]) from None


def sample(
    name: str, key: Any, type: Any, dtype: Any, mesh: Any, default: str, *, shape: Any = None, **params: Any
) -> Array:
    """A sample of the type in the arguments; ``name`` is in `SAMPLERS`."""
    key = as_key(name, key)
    t = sample_type(jax.typeof(key), type_or_shape(type, shape), dtype, mesh, default)
    items = tuple(sorted(params.items()))
    _check_dtype(name, t.dtype_name, items)

    def fn(types: tuple[ShType, ...]) -> Sample:
        sampled = _sample_rule(name, types[0], t).results[0]
        check_parts(name, types[0], sampled)
        places = layout_of(sampled), folded_axes(types[0], sampled)
        return Sample(name, items, sampled.dtype_name, sampled.local_shape, *places, repr(items))

    return move(apply(name, fn, lambda types: _sample_rule(name, types[0], t), key), t)


def sample_type(key: ShType, type: Any, dtype: Any, mesh: Any, default: str) -> ShType:
    """The type of a sample; for a shape, it varies where the key does."""
    t = create.type_of_arguments(type, dtype, key.mesh if mesh is None else mesh, default)
    text = isinstance(type, (str, ShType)) or type is None
    varying = () if text else key.axes(State.VARYING)
    return t.with_axes([a for a in varying if t.state(a) is not State.SHARDED], State.VARYING)


def default_int() -> str:
    """JAX's default integer."""
    return dtypes.from_numpy(jax.dtypes.canonicalize_dtype(np.int64))


@dataclass(frozen=True)
class KeyFromSeed(ShardFn):
    """A key from a seed."""

    seed: int
    impl: str | None

    def __str__(self) -> str:
        return f"random_key[{self.seed}]"

    def __call__(self) -> Any:
        return jax.random.key(self.seed, impl=self.impl)


def key_of_seed(seed: int, impl: str | None, out: ShType) -> Array:
    """A key from a static seed."""
    return local(KeyFromSeed(seed, impl), out=out)


@dataclass(frozen=True)
class KeyFn(ShardFn):
    """A replicated function of keys and integers."""

    name: str
    fn: Callable[..., Any]
    params: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        values = ",".join(str(v) for _, v in self.params)
        return f"random_{self.name}[{values}]" if values else f"random_{self.name}"

    def __call__(self, *operands: Any) -> Any:
        return self.fn(*operands, **dict(self.params))


@dataclass(frozen=True)
class Categorical(ShardFn):
    """The maximum of logits with the device's shard of the noise."""

    dim: int
    layout: Layout
    folded: tuple[str, ...]
    more: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"random_categorical[{self.dim}]"

    def __call__(self, key: Any, logits: Any) -> Any:
        key = shard_key(key, self.layout, logits.shape, self.folded)
        shape = (*self.more, *logits.shape[: self.dim], *logits.shape[self.dim + 1 :])
        return jax.random.categorical(key, logits, self.dim, shape).astype(jnp.int32)


# samples that each device computes in full, of which it keeps its shard


@dataclass(frozen=True)
class ReplicatedSample(ShardFn):
    """A function of `jax.random` with typed parameters; with different keys along ``folded`` axes."""

    name: str
    fn: Callable[..., Any]
    params: tuple[tuple[str, Any], ...]
    shape: tuple[int, ...]
    dtype: str
    folded: tuple[str, ...]
    numbers: tuple[float | None, ...]  # the operands that are Python numbers; None for arrays

    def __str__(self) -> str:
        return f"random_{self.name}"

    def __call__(self, key: Any, *operands: Any) -> Any:
        key = shard_key(key, (), (), self.folded)
        rest = iter(operands)
        merged = [next(rest) if n is None else n for n in self.numbers]
        return self.fn(key, *merged, shape=self.shape, dtype=dtypes.to_numpy(self.dtype), **dict(self.params))


#: Samples that need a matrix decomposition.
_DECOMPOSED = frozenset({"orthogonal", "delta_orthogonal", "multivariate_normal"})


def sample_replicated(
    name: str,
    key: Any,
    operands: Sequence[Any],
    type: Any,
    dtype: Any = None,
    mesh: Any = None,
    *,
    shape: Any = None,
    default: str | None = None,
    native: Callable[..., Any] | None = None,
    event: Sequence[int] = (),
    batch: Sequence[int] | None = None,
    **params: Any,
) -> Array:
    """Samples of the type in the arguments, computed in full and then resharded, for free.

    Args:
        name: The op.
        key (): A key.
        operands: Parameters, typed or not.
        type: The type, or the shape of the batch; None for the broadcast shape of the operands.
        dtype: The default dtype, if the type has none.
        mesh: The mesh of a type as a string, or of a shape.
        shape: A shape by name, instead of ``type``.
        default: The dtype otherwise; by default JAX's float.
        native: A function with the signature of those of `jax.random`; by default the one with this name.
        event: The last dims of the result, not in ``shape=``.
        batch: The batch of the operands, if it is not their broadcast shape.
        **params: More of JAX's parameters.
    """
    numbers = tuple(float(x) if is_number(x) else None for x in operands)
    (key, *operands), _ = as_operands([as_key(name, key), *(x for x in operands if not is_number(x))])
    k = jax.typeof(key)
    type = type_or_shape(type, shape)
    of_operands = jnp.broadcast_shapes(*(jax.typeof(x).shape for x in operands)) if batch is None else tuple(batch)
    if type is None:
        type = of_operands
    if isinstance(type, (int, np.integer)):
        type = (type,)
    if isinstance(type, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in type):
        type = (*type, *event)
    t = sample_type(k, type, dtype, mesh, default or create.default_float())
    if name in _DECOMPOSED and t.dtype.itemsize < 4:
        raise ShardingTypeError(
            f"`{name}` draws no `{t.dtype_name}` values",
            why="it decomposes a matrix, which is done in 32 or 64 bits",
            hints=[f'draw it as f32, and then x.astype("{t.dtype_name}")'],
        )
    drawn = t.shape[: t.ndim - len(event)]
    if t.shape[len(drawn) :] != tuple(event) or not _broadcasts(of_operands, drawn):
        raise ShardingTypeError(f"`{name}` of parameters of shape {[*of_operands, *event]} cannot make {t}")
    native = native or getattr(jax.random, name)
    fn = ReplicatedSample(name, native, tuple(sorted(params.items())), drawn, t.dtype_name, folded_axes(k, t), numbers)

    def rule(types: tuple[ShType, ...]) -> rules.Typing:
        return unsharded_rule(name, types, t)

    return reshard(apply(name, fn, rule, key, *operands), t)


def _broadcasts(of_operands: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    pairs = zip(of_operands[::-1], shape[::-1], strict=False)
    return len(of_operands) <= len(shape) and all(m in (1, n) for m, n in pairs)


def unsharded_rule(name: str, types: Sequence[ShType], target: ShType) -> rules.Typing:
    """The rule of samples computed in full: key, parameters and result are unsharded; the result is then resharded."""
    _sample_rule(name, types[0], target)
    for i, t in enumerate(types):
        for axis in t.axes(State.SHARDED):
            raise messages.along(name, t, axis)
        for axis in t.axes(State.UNREDUCED):
            raise messages.nonlinear(name, axis, messages.operand_word(i, len(types)))
    bare = tuple(t.replace(dims=[]) for t in types)
    joined = rules.nonlinear(name, bare, target.dtype_name)
    (result,) = joined.results
    varying = target.axes(State.VARYING)
    states = {a: State.VARYING if a in varying else result.state(a) for a in target.mesh.axis_names}
    operands = tuple(t.replace(states=list(m.states)) for t, m in zip(types, joined.operands, strict=True))
    full = ShType(target.mesh, target.dtype_name, [Dim(n) for n in target.shape], states)
    return rules.Typing(operands, (full,))
