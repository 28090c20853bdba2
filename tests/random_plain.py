"""Plain JAX under the names that random programs use: what each program means on one device."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

import shtypes as sh
from shtypes.types import dtypes
from tests.end_to_end import Reference


def shape_of(text: str) -> tuple[int, ...]:
    """The shape that a type text writes."""
    inside = text[text.index("[") + 1 : text.index("]")]
    return tuple(int(n) for n in re.findall(r"(?:^|, *)(\d+)", inside))


def _dtype(text: str, given: Any) -> Any:
    name = text[: text.index("[")] or given
    return None if name is None else dtypes.to_numpy(dtypes.from_any(name))


class _Same:
    """The collectives of local mode, on whole values: in random programs, each gives what the value is already."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda x, *args, **kwargs: x


def _sampled(native: Callable[..., Any], default: str) -> Any:
    """A sample of `jax.random` that a key, a shape and a dtype determine, on a type text."""
    return staticmethod(lambda key, text: native(key, shape_of(text), _dtype(text, default)))


class _Random:
    """`jax.random` on type texts; the same keys give the same numbers."""

    @staticmethod
    def key(seed: int) -> Any:
        return jax.random.key(seed)

    @staticmethod
    def bernoulli(key: Any, p: float, text: str) -> Any:
        return jax.random.bernoulli(key, p, shape_of(text))

    @staticmethod
    def randint(key: Any, text: str, minval: int, maxval: int) -> Any:
        return jax.random.randint(key, shape_of(text), minval, maxval, _dtype(text, "i32"))

    @staticmethod
    def truncated_normal(key: Any, lower: float, upper: float, text: str) -> Any:
        return jax.random.truncated_normal(key, lower, upper, shape_of(text), _dtype(text, "f32"))

    normal, uniform = _sampled(jax.random.normal, "f32"), _sampled(jax.random.uniform, "f32")
    exponential, gumbel = _sampled(jax.random.exponential, "f32"), _sampled(jax.random.gumbel, "f32")
    laplace, logistic = _sampled(jax.random.laplace, "f32"), _sampled(jax.random.logistic, "f32")
    rademacher = _sampled(jax.random.rademacher, "i32")
    categorical = staticmethod(jax.random.categorical)
    split, fold_in = staticmethod(jax.random.split), staticmethod(jax.random.fold_in)
    permutation = staticmethod(jax.random.permutation)


class _Networks:
    """`sh.nn` on one device: the functions of `jax.nn`, and by their definitions those that it has not."""

    def __getattr__(self, name: str) -> Any:
        return _without_out(getattr(jax.nn, name))

    @staticmethod
    def rms_norm(x: Any, scale: Any = 1.0, *, axis: Any = -1, epsilon: float, out: Any = None) -> Any:
        wide = x.astype(np.float32)
        return (wide / jnp.sqrt(jnp.mean(wide**2, axis, keepdims=True) + epsilon)).astype(x.dtype) * scale

    @staticmethod
    def layer_norm(
        x: Any, scale: Any = 1.0, bias: Any = 0.0, *, axis: Any = -1, epsilon: float, out: Any = None
    ) -> Any:
        wide = x.astype(np.float32)
        wide = wide - jnp.mean(wide, axis, keepdims=True)
        return (wide / jnp.sqrt(jnp.mean(wide**2, axis, keepdims=True) + epsilon)).astype(x.dtype) * scale + bias

    @staticmethod
    def cross_entropy(logits: Any, labels: Any, *, axis: int = -1, out: Any = None) -> Any:
        rows = jax.nn.log_softmax(logits.astype(np.float32), axis)
        if jnp.issubdtype(labels.dtype, jnp.floating):
            return -(labels.astype(np.float32) * rows).sum(axis)
        return -jnp.take_along_axis(rows, jnp.expand_dims(labels, axis), axis).squeeze(axis)

    @staticmethod
    def rotary_embedding(x: Any, at: Any = None) -> Any:
        if x.ndim < 3 or x.shape[-1] % 2:
            raise ValueError("the last dims are positions, heads and an even size")
        half = x.shape[-1] // 2
        at = np.arange(x.shape[-3]) if at is None else at
        angles = at[..., None, None] * (10_000.0 ** (-np.arange(half, dtype=np.float32) / half))
        a, b = x[..., :half], x[..., half:]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    @staticmethod
    def linear(x: Any, w: Any, b: Any = 0.0, *, dims: int = 1, out: Any = None) -> Any:
        return jnp.tensordot(x, w, dims) + b

    @staticmethod
    def dropout(x: Any, rate: float, key: Any, *, broadcast_dims: Any = ()) -> Any:
        shape = tuple(1 if d in broadcast_dims else n for d, n in enumerate(x.shape))
        return jnp.where(jax.random.bernoulli(key, 1 - rate, shape), x / (1 - rate), 0)

    @staticmethod
    def swiglu(gate: Any, value: Any) -> Any:
        return jax.nn.silu(gate) * value

    @staticmethod
    def geglu(gate: Any, value: Any, *, approximate: bool = True) -> Any:
        return jax.nn.gelu(gate, approximate) * value


def _without_out(f: Any) -> Any:
    """A function that takes ``out`` for the sake of the typed one; anything else as it is."""
    if not isinstance(f, (types.FunctionType, types.BuiltinFunctionType)) and not hasattr(f, "__wrapped__"):
        return f

    def plain(*args: Any, out: Any = None, **options: Any) -> Any:
        return f(*args, **options)

    return plain


def _made(f: Any) -> Any:
    """A function of positions that the typed one gives a type."""

    def plain(*args: Any, type: Any = None, **options: Any) -> Any:
        return f(*args, **options)

    return staticmethod(plain)


class _Linalg:
    def __getattr__(self, name: str) -> Any:
        return _without_out(getattr(jnp.linalg if hasattr(jnp.linalg, name) else jax.scipy.linalg, name))


def _einsum(equation: str, *operands: Any, out: Any = None, overlap: Any = False, **options: Any) -> Any:
    return jnp.einsum(equation, *operands, **options)


class Plain(Reference):
    """JAX's own functions; what says where a value lies does nothing."""

    def __getattr__(self, name: str) -> Any:
        return _without_out(super().__getattr__(name))

    # typed, they promote as these do; in JAX they are `jax.lax`'s, which want one dtype
    eq, ne, lt = staticmethod(jnp.equal), staticmethod(jnp.not_equal), staticmethod(jnp.less)
    le, gt, ge = staticmethod(jnp.less_equal), staticmethod(jnp.greater), staticmethod(jnp.greater_equal)
    vmap: Any = staticmethod(jax.vmap)
    grad: Any = staticmethod(jax.grad)
    value_and_grad: Any = staticmethod(jax.value_and_grad)
    jvp: Any = staticmethod(jax.jvp)
    vjp: Any = staticmethod(jax.vjp)
    jit: Any = staticmethod(jax.jit)
    linearize: Any = staticmethod(jax.linearize)
    custom_vjp: Any = staticmethod(jax.custom_vjp)
    checkpoint = staticmethod(jax.checkpoint)
    einsum: Any = staticmethod(_einsum)
    segment_sum, segment_max = staticmethod(jax.ops.segment_sum), staticmethod(jax.ops.segment_max)
    segment_min, segment_prod = staticmethod(jax.ops.segment_min), staticmethod(jax.ops.segment_prod)
    lax, random = _Same(), _Random()
    linalg: Any = _Linalg()
    nn: Any = _Networks()

    @staticmethod
    def constant(x: Any) -> Any:
        return jax.lax.stop_gradient(x)

    @staticmethod
    def checkpoint_name(x: Any, name: str) -> Any:
        return x

    @staticmethod
    def from_jax(x: Any) -> Any:
        return x

    to_jax = from_jax

    @staticmethod
    def shard_map(f: Any, **specs: Any) -> Any:
        return f

    local_map = shard_map

    @staticmethod
    def implicit_comm(f: Any) -> Any:
        return f

    @staticmethod
    def no_comm(direction: str = "both") -> Any:
        return lambda f: f

    @staticmethod
    def embedding(table: Any, ids: Any) -> Any:
        return table[ids]

    @staticmethod
    def zeros(text: str) -> Any:
        return jnp.zeros(shape_of(text), _dtype(text, "f32"))

    @staticmethod
    def ones(text: str) -> Any:
        return jnp.ones(shape_of(text), _dtype(text, "f32"))

    @staticmethod
    def full(text: str, value: Any) -> Any:
        return jnp.full(shape_of(text), value, _dtype(text, "f32"))

    @staticmethod
    def arange(stop: int, *, type: str) -> Any:
        return jnp.arange(stop, dtype=_dtype(type, None))

    @staticmethod
    def one_hot(x: Any, num_classes: int, *, axis: int = -1, over: Any = ()) -> Any:
        return jax.nn.one_hot(x, num_classes, axis=axis)

    @staticmethod
    def select_n(which: Any, *cases: Any) -> Any:
        return jax.lax.select_n(which, *cases)

    eye, tri, linspace = _made(jnp.eye), _made(jnp.tri), _made(jnp.linspace)
    geomspace, logspace = _made(jnp.geomspace), _made(jnp.logspace)

    @staticmethod
    def broadcasted_iota(dtype: str, shape: Any, dimension: int, *, type: str) -> Any:
        return jax.lax.broadcasted_iota(np.float32, shape, dimension)

    @staticmethod
    def iota(dtype: str, size: int, *, type: str) -> Any:
        return jax.lax.iota(np.float32, size)


PLAIN = Plain()


def own_backward(m: Any) -> Any:
    """A function whose backward pass is its own, and not its derivative: a program that ignores it is found."""
    f = m.custom_vjp(m.sin)
    f.defvjp(lambda a: (m.sin(a), a), lambda a, ct: (ct * 0.5 + m.cos(a) * ct,))
    return f


def shifted(m: Any, a: Any, axis: str, devices: int, dim: int) -> Any:
    """The blocks along a dim, each on the next device."""
    if m is sh:
        return sh.lax.ppermute(a, axis, [(i, (i + 1) % devices) for i in range(devices)])
    return jnp.roll(a, a.shape[dim] // devices, dim)


#: Plain values that programs may name: numbers and arrays of every kind that JAX takes, all without a gradient.
CONSTANTS: dict[str, Any] = {
    "np": np,
    "jax": jax,
    "jnp": jnp,
    "Gathered": jax.lax.GatherDimensionNumbers,
    "Scattered": jax.lax.ScatterDimensionNumbers,
    "own_backward": own_backward,
    "shifted": shifted,
    "ROW": np.asarray([0.5, -0.25, 2.0, 0.0], np.float32),
    "LONG": np.asarray([1.5, -0.5, 0.25, 1.0, 0.0, -2.0, 0.75, 0.125], np.float32),
    "TABLE": jnp.asarray(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)),
    "ZERO_D": np.asarray(0.75, np.float32),
    "SCALAR": np.float32(-1.25),
    "WEAK": jnp.asarray(0.5),
    "COUNTS": np.asarray([3, -1, 0, 2], np.int32),
    "MASK": np.asarray([True, False, False, True]),
    "YES": jnp.asarray(True),
    "NO": jnp.asarray(False),
}
