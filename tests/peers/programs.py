"""Small programs that users write, one per line, and what their variables are.

Each is an expression in ``m``, which is `shtypes` or plain JAX, and in variables that `VARIABLES` describes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.custom_batching
import jax.extend.random
import jax.numpy as jnp
import numpy as np

import shtypes as sh
from tests.end_to_end import Reference


class Variable(NamedTuple):
    """What a variable of a program is.

    Attributes:
        shape: Its shape.
        dtype: Its dtype's short name.
        high: Integers are sampled below it.
    """

    shape: tuple[int, ...]
    dtype: str = "f32"
    high: int = 0


VARIABLES = {
    "a": Variable((4, 8)),
    "b": Variable((4, 8)),
    "c": Variable((4, 8)),
    "w": Variable((8, 4)),
    "q": Variable((4, 4)),
    "r": Variable((4, 4)),
    "v": Variable((8,)),
    "k": Variable((4, 1)),
    "o": Variable((1, 8)),
    "s": Variable(()),
    "t": Variable((2, 4, 4)),
    "g": Variable((2, 4, 4)),
    "f": Variable((32,)),
    "h": Variable((4, 8), "bf16"),
    "z": Variable((4, 4), "c64"),
    "p": Variable((4, 8), "bool"),
    "n": Variable((4, 8), "i32"),
    "d": Variable((8,), "i32"),
    "y": Variable((4, 8), "i32", 8),
    "i": Variable((4,), "i32", 4),
    "j": Variable((8,), "i32", 4),
    "e": Variable((), "i32", 4),
}


class Everything(Reference):
    """JAX's own functions; what only typed programs have means nothing on one device."""

    vmap: Any = staticmethod(jax.vmap)
    checkpoint = staticmethod(jax.checkpoint)
    scan = staticmethod(jax.lax.scan)
    fori_loop = staticmethod(jax.lax.fori_loop)
    while_loop = staticmethod(jax.lax.while_loop)
    cond = staticmethod(jax.lax.cond)
    switch = staticmethod(jax.lax.switch)
    fft = jnp.fft
    linalg = jnp.linalg
    slice = staticmethod(jax.lax.slice)
    stop_gradient: Any = staticmethod(jax.lax.stop_gradient)

    @staticmethod
    def embedding(table: Any, ids: Any) -> Any:
        return jnp.take(table, ids, axis=0, mode="clip")

    segment_sum: Any = staticmethod(jax.ops.segment_sum)


EVERYTHING = Everything()

TEXTS = """
# elementwise, linear in one operand
-a
+a
a * 2
2 * a
a / 4
a * 0.5 + 0.0
a - 0.0
0.0 - a
m.negative(a)
m.multiply(a, 3)
m.astype(a, 'f32')
a.astype(m_f32)
m.astype(h, 'f32')
m.real(z)
m.imag(z)
m.conj(z)
z * 2j
m.positive(a)
m.degrees(a)
m.deg2rad(a)
a * np.float32(1.5)
a * ROW8
a / ROW8
ROW8 * a + 0
a + 0
0 + a
a - b
a + b
a + a
a - a
b - a * 2
a + v
v + a
a + k
o + a
k + o
a * v
a * k
k * o
a * b
a * a
a * s
s * a
a + s
s - a
v * s
a / s
a / b
a / v
v / a
s / a
# constants in additive positions, and what is not linear
a + 1
1 + a
a - 1
1 - a
a + ROW8
a - ROW8
1 / a
a ** 1
a ** 2
a ** 3
a ** 0
a ** 1.0
a ** 2.0
2 ** a
a ** b
a // 2
a % 2
2 % b
abs(a)
m.abs(a)
m.square(a)
m.sign(a)
m.exp(a)
m.log(m.square(a) + 1)
m.cos(a)
m.sin(a)
m.tanh(a)
m.sqrt(a * a + 1)
m.rsqrt(a * a + 1)
m.reciprocal(a)
m.sigmoid(a)
m.relu(a)
m.silu(a)
m.gelu(a)
m.elu(a)
m.softplus(a)
m.leaky_relu(a)
m.floor(a)
m.round(a)
m.astype(a, 'i32')
m.astype(a, 'bf16')
m.astype(h, 'i32')
m.astype(n, 'f32')
m.astype(n, 'bool')
m.astype(p, 'f32')
m.maximum(a, b)
m.minimum(a, v)
m.maximum(a, 0)
m.clip(a, -1, 1)
m.clip(a, b, None)
m.arctan2(a, b)
m.hypot(a, b)
m.logaddexp(a, b)
m.isfinite(a)
a > b
a > 0
a == b
a < v
m.where(a > 0, a, 0)
n + 1
n * 2
n // 2
n % 3
n >> 1
n & 3
n + n
n * n
-n
n - d
p & p
~p
p | (a > 0)
m.abs(z)
z * z
z + 1
m.angle(z)
m.ones_like(a)
m.zeros_like(a)
m.full_like(a, 3)
m.full_like(a, 0)
m.ones_like(n)

m.stop_gradient(a)
m.stop_gradient(a) * b
m.stop_gradient(a) + b
m.stop_gradient(a * 2) * v
# select and masks
m.where(p, a, 0)
m.where(p, 0, a)
m.where(p, a, 1)
m.where(p, a, b)
m.where(p, a, v)
m.where(p, a, s)
m.where(p, a * 2, -a)
m.where(p, 1.0, a)
m.where(p, a, ROW8)
m.where(a > b, a, b)
m.where(n > 3, a, 0)
m.where(MASK8, a, 0)
m.where(np.arange(8) < 5, a, 0)
m.where(m.arange(8) < 5, a, 0)
m.where(m.arange(8) < 5, a, b)
m.where(m.arange(4)[:, None] >= m.arange(8), a, 0)
m.where(m.arange(4)[:, None] >= m.arange(8), a, -1)
m.where(e > 1, a, b)
m.where(e > 1, a, 0)
m.select([p], [a], b)
a * p
p * a
a * (a > 0)
a * m.astype(p, 'f32')
m.tril(a)
m.triu(q)
m.tril(q, 1)
m.triu(a, -1)
m.diag(q)
m.diag(v)
m.diagonal(q)
m.trace(q)
m.arange(8) * a
m.arange(8.0) + a
# einsum and the dot family
m.einsum('ij->ji', a)
m.einsum('ij->i', a)
m.einsum('ij->', a)
m.einsum('ij->ij', a)
m.einsum('ii->i', q)
m.einsum('ii->', q)
m.einsum('bij->bji', t)
m.einsum('ij,jk->ik', a, w)
m.einsum('ij,kj->ik', a, b)
m.einsum('ij,ij->ij', a, b)
m.einsum('ij,ij->i', a, b)
m.einsum('ij,ij->j', a, b)
m.einsum('ij,ij->', a, b)
m.einsum('ij,j->ij', a, v)
m.einsum('ij,j->i', a, v)
m.einsum('ij,->ij', a, s)
m.einsum('i,j->ij', v, v)
m.einsum('bij,bjk->bik', t, g)
m.einsum('bij,bkj->bik', t, g)
m.einsum('bij,bkj->ik', t, g)
m.einsum('bij,jk->bik', t, q)
m.einsum('bij,jk->bk', t, q)
m.einsum('bij,bij->', t, g)
m.einsum('ij,jk,k->i', q, q, ROW4)
m.einsum('ij,jk,kl->il', q, a, w)
m.einsum('ij,j,j->i', a, v, v)
m.einsum('ij,j,->i', a, v, s)
m.einsum('ij,kj->ijk', a, b)
a @ w
a @ v
v @ w
q @ q
t @ q
t @ g
m.matmul(a, w)
m.dot(a, w)
m.dot(v, v)
m.vdot(a, b)
m.inner(a, b)
m.outer(v, v)
m.tensordot(a, w, 1)
m.tensordot(t, g, ((1, 2), (1, 2)))
m.vecdot(a, b)
m.matvec(a, v)
a @ WEIGHT
WEIGHT.T @ w
m.einsum('ij,jk->ik', a, WEIGHT)
m.einsum('ij,jk->ik', m.exp(a), w)
m.einsum('ij,jk->ik', a * v, w)
(a @ w) @ q
m.einsum('ij,jk->ik', a, w) + q
m.einsum('ij,jk->ik', a, w) * q
m.einsum('ij,jk->ik', a, w) * 2
# reductions
m.sum(a)
m.sum(a, 0)
m.sum(a, 1)
m.sum(a, -1, keepdims=True)
m.sum(t, (0, 2))
m.sum(m.square(a), 1)
m.sum(a * b, 0)
m.sum(n, 0)
m.sum(p, 1)
m.mean(a)
m.mean(a, 0)
m.mean(a, 1)
m.mean(t, (1, 2), keepdims=True)
m.mean(n, 0)
m.max(a, 0)
m.max(a, 1)
m.max(a)
m.min(a, 1)
m.prod(a, 0)
m.any(p, 0)
m.all(p, 1)
m.any(a > 0)
m.argmax(a, 0)
m.argmin(a, 1)
m.var(a, 1)
m.var(a, 0)
m.std(a, 1)
m.logsumexp(a, 0)
m.logsumexp(a, 1)
m.linalg.norm(a, axis=1)
m.count_nonzero(a, 0)
a.sum(1)
a.mean(0)
a.max(1)
m.sum(a, 0) + v
m.sum(a, 0) * v
m.sum(a) * s
m.sum(a) / m.sum(p)
# compositions of models
a - m.mean(a, 1, keepdims=True)
a - m.sum(a, 1, keepdims=True)
a - m.max(a, 1, keepdims=True)
m.exp(a - m.max(a, 1, keepdims=True))
a / m.sum(a * a, 1, keepdims=True)
a * m.rsqrt(m.mean(m.square(a), 1, keepdims=True) + 1e-6)
a * m.rsqrt(m.mean(m.square(a), 1, keepdims=True) + 1e-6) * v
(a - m.mean(a, 1, keepdims=True)) * m.rsqrt(m.var(a, 1, keepdims=True) + 1e-6) * v + v
m.softmax(a, 1)
m.softmax(a, 0)
m.log_softmax(a, 1)
m.softmax(m.einsum('bij,bkj->bik', t, g), -1)
m.einsum('bij,bjk->bik', m.softmax(t, -1), g)
m.silu(a) * b
m.gelu(a @ w)
m.silu(a @ w) * (b @ w)
a * v + v
m.sum(m.square(a - b))
m.mean(m.square(a - b))
m.mean(m.square(a - b), 1)
m.sum(a * m.log_softmax(b, 1))
m.concatenate([a[:, 4:], -a[:, :4]], 1) * v + a
m.stack([a, b], -1).reshape(4, 16)
m.stack([a, -b])
m.einsum('sd,de->se', a, w).reshape(4, 2, 2)
m.logsumexp(a, 1) - m.sum(a * b, 1)
# slicing and indexing
a[0]
a[:, 0]
a[:, -1]
a[1:3]
a[:2]
a[:, :4]
a[:, ::2]
a[:, 2:6]
a[:, None]
a[..., None]
a[::-1]
a[:, ::-1]
a[:]
t[0]
t[:, 1:, :2]
t[0, 1]
a[e]
a[:, e]
a[i]
a[:, i]
a[i, 0]
a[i, i]
a[np.array([0, 3])]
m.slice_in_dim(a, 1, 3, axis=0)
m.slice_in_dim(a, 2, 6, axis=1)
m.slice(a, (0, 2), (4, 6))
m.dynamic_slice(a, (e, ZERO), (1, 8))
m.dynamic_slice_in_dim(a, e, 4, axis=1)
m.dynamic_index_in_dim(a, e, 0, False)
m.index_in_dim(a, 2, 1)
m.dynamic_update_slice(a, b[:1], (e, ZERO))
m.dynamic_update_slice_in_dim(a, k, e, 1)
a.at[0].set(0)
a.at[0].set(1)
a.at[:, 2].set(0)
a.at[0].add(1)
a.at[0].add(0)
a.at[0].mul(2)
a.at[0].max(0)
a.at[0].set(b[0])
a.at[0].add(v)
a.at[i].add(b)
a.at[i].set(b)
a.at[:, i].add(q)
m.take(a, i, axis=0)
m.take(a, i, axis=1)
m.take(a, j, axis=0)
m.take(a, 0, axis=0)
m.embedding(q, j)
m.embedding(q, i)
m.embedding(w, i)
m.one_hot(i, 4)
m.one_hot(j, 4) @ q
m.one_hot(y, 4)
m.segment_sum(a, i, 4)
m.segment_sum(w, j, 4)
m.segment_sum(v, j, 4)
m.take_along_axis(a, y, 1)
m.take_along_axis(a, y % 4, 0)
m.argsort(a, 1)
m.sort(a, 1)
m.sort(a, 0)
m.top_k(a, 2)[0]
m.top_k(a, 2)[1]
m.top_k(w, 2)[0]
# arranging
m.pad(a, ((0, 0), (1, 1)))
m.pad(a, ((1, 1), (0, 0)))
m.pad(a, ((0, 0), (1, 1)), constant_values=1)
m.pad(a, ((2, 2), (0, 0)), constant_values=1)
m.pad(a, ((0, 0), (2, 2)), mode='edge')
m.stack([a, b])
m.stack([a, b], 1)
m.stack([a, b], -1)
m.stack([a, m.zeros_like(a)])
m.stack([a, m.ones_like(a)])
m.stack([a, a * 2, b])
m.concatenate([a, b])
m.concatenate([a, b], 1)
m.concatenate([a, q], 1)
m.concatenate([a, m.ones_like(a)], 1)
m.concatenate([a, m.zeros_like(a)], 0)
m.hstack([a, b])
m.vstack([a, b])
m.split(a, 2, 1)[0]
m.split(a, 2, 0)[1]
m.split(a, 2, 1)[0] * m.split(a, 2, 1)[1]
m.unstack(a)[0]
m.flip(a, 0)
m.flip(a, 1)
m.roll(a, 1, 0)
m.roll(a, 1, 1)
m.roll(a, 3)
m.tile(a, (1, 2))
m.tile(a, (2, 1))
m.repeat(a, 2, axis=0)
m.repeat(a, 2, axis=1)
m.repeat(v, 2)
m.rot90(q)
m.cumsum(a, 0)
m.cumsum(a, 1)
m.cumsum(a)
m.cumprod(a, 1)
m.cummax(a, axis=1)
m.cumlogsumexp(a, axis=0)
m.diff(a, axis=1)
m.diff(a, axis=0)
m.fft.fft(z, axis=0)
m.fft.fft(z)
m.real(m.fft.fft(m.astype(a, 'c64')))
# shapes
a.T
m.transpose(a)
m.transpose(t, (2, 0, 1))
m.swapaxes(t, 0, 2)
m.moveaxis(t, 0, -1)
m.reshape(a, (32,))
m.reshape(a, (4, 2, 4))
m.reshape(a, (2, 2, 8))
m.reshape(a, (2, 16))
m.reshape(a, (8, 4))
m.reshape(a, (4, 8, 1))
m.reshape(a, (1, 32))
m.reshape(t, (8, 4))
m.reshape(t, (2, 16))
m.reshape(t, (32,))
m.reshape(f, (4, 8))
m.reshape(f, (8, 4))
m.reshape(f, (2, 4, 4))
m.reshape(v, (2, 4))
m.reshape(v, (4, 2))
m.ravel(a)
m.ravel(t)
m.broadcast_to(v, (4, 8))
m.broadcast_to(k, (4, 8))
m.broadcast_to(o, (4, 8))
m.broadcast_to(s, (8,))
m.broadcast_to(a, (2, 4, 8))
m.expand_dims(a, 0)
m.expand_dims(a, (0, 3))
m.squeeze(k, 1)
m.squeeze(o, 0)
m.squeeze(k)
a[None] * t[0, :, :1]
# what is easily wrong on a pending sum
a / a
2 / a
a + 1j
a * 1j + b
a + 0.3 * (b - a)
a[:1] + b
m.sum(a) + b
m.sum(a) * 2 + 1
m.ones_like(a) + a
m.broadcast_to(a[:1], (4, 8))
m.astype(a, 'c64')
m.astype(a, 'i8')
m.nan_to_num(a)
m.einsum('ij,ij->', a, a)
m.average(a, 1, weights=ROW8)
m.average(a, 1, weights=v)
m.sum(a, where=MASK8)
m.sum(a, 1, initial=5.0)
m.mean(a, where=MASK8)
m.where(MASK8, a, -1e3)
m.select([p, a > 0], [b, b * 2], 1.0)
m.diff(a, prepend=1.0)
m.triu(a) - 1
m.pad(a, ((1, 0), (0, 2)), constant_values=((1, 2), (3, 4)))
m.pad(a, ((0, 0), (1, 1)), mode='linear_ramp', end_values=1)
m.pad(a, ((0, 0), (1, 1)), mode='maximum')
m.pad(a, ((0, 0), (1, 1)), mode='reflect')
m.concatenate([a, WEIGHT.T])
m.stack([a, WEIGHT.T])
a.at[-1, 2].add(-3)
a.at[1].divide(5)
a.at[:, 2].set(v[:4])
a.at[1].min(b[0])
a.at[FAR].get(mode='fill', fill_value=1)
m.take(a, FAR, axis=0, mode='fill', fill_value=1)
m.take(a, FAR, axis=0, mode='clip')
m.fori_loop(0, 3, lambda l, r: r + 1, a)
m.fori_loop(0, 3, lambda l, r: r + a, b * 0)
m.while_loop(lambda r: r[0] < 3, lambda r: (r[0] + 1, r[1] + 1), (0, n))[1]
m.scan(lambda r, x: (r + a, None), m.zeros_like(a), None, length=3)[0]
m.scan(lambda r, x: (r + 1, r + 2), v, None, length=3)[1]
m.switch(1, [lambda x, y: x, lambda x, y: y], a, b)
m.vmap(lambda x: x.at[0].add(1.0))(a)
m.vmap(lambda x: m.pad(x, 1, constant_values=2.0))(a)
m.vmap(lambda x: m.where(MASK8, x, 7.0))(a)
m.vmap(lambda x: x + ROW8)(a)
m.vmap(lambda x, y: x + y, (0, None))(a, v)
m.vmap(lambda x, y: m.stack([x, y]), (1, 1), 2)(a, b)
m.checkpoint(lambda x: x + 1)(a)
m.checkpoint(lambda x, y: m.where(MASK8, x, 1.0) * y)(a, b)
# control flow and transformations
m.scan(lambda r, x: (r + x, r), v, a)
m.scan(lambda r, x: (r + x, r * 2), v * 0, a)[0]
m.scan(lambda r, x: (r * x, None), v, a)[0]
m.scan(lambda r, x: (r + v, None), v * 0, None, length=3)[0]
m.scan(lambda r, x: (r + v, None), m.zeros_like(v), None, length=3)[0]
m.scan(lambda r, x: (r + x * v, None), v, a)[0]
m.scan(lambda r, x: (r * 2 + s, None), v, None, length=2)[0]
m.scan(lambda r, x: (m.tanh(r @ q), None), q, None, length=2)[0]
m.scan(lambda r, x: (r, x * 2), s, a)[1]
m.fori_loop(0, 3, lambda l, r: r + v, v * 0)
m.fori_loop(0, 3, lambda l, r: r * 2, a)
m.fori_loop(0, 3, lambda l, r: r + a, b)
m.fori_loop(0, 3, lambda l, r: m.sin(r), a)
m.cond(e > 1, lambda x: x * 2, lambda x: -x, a)
m.cond(e > 1, lambda x: x, lambda x: x * 0, a)
m.cond(e > 1, lambda x: x + 1, lambda x: x, a)
m.cond(e > 1, lambda x, y: x, lambda x, y: y, a, b)
m.cond(e > 1, lambda x, y: x + y, lambda x, y: x, a, v)
m.switch(e % 2, [lambda x: x, lambda x: x * 3], a)
m.while_loop(lambda r: r[0] < 3, lambda r: (r[0] + 1, r[1] * 2), (0, n))[1]
m.vmap(lambda x: x * 2)(a)
m.vmap(lambda x: m.sum(x))(a)
m.vmap(lambda x, y: x * y, (0, None))(a, v)
m.vmap(lambda x: -x, 1, 1)(a)
m.vmap(m.vmap(lambda x: x + 0.5))(a)
m.vmap(m.vmap(lambda x: x * 3))(t)
m.vmap(lambda x: m.flip(x, 0))(a)
m.vmap(lambda x, y: x @ y, (0, None))(a, w)
m.checkpoint(lambda x: m.sin(x) * 2)(a)
m.checkpoint(lambda x, y: x @ y)(a, w)
m.checkpoint(lambda x: -x * 2)(a)
"""


class Program(NamedTuple):
    """A program of one to three operands.

    Attributes:
        text: The expression.
        names: Its variables, in the order in which it names them.
    """

    text: str
    names: tuple[str, ...]

    @property
    def operands(self) -> tuple[Variable, ...]:
        return tuple(VARIABLES[name] for name in self.names)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return tuple(array(name) for name in self.names)

    @property
    def fn(self) -> Callable[..., Any]:
        """``(m, *operands) -> array``; the last leaf, of several."""
        return _function(self.text)

    @property
    def differentiated(self) -> tuple[int, ...]:
        """The operands that have a gradient: the floats, if the result has floats."""
        return _differentiated(self)

    def __str__(self) -> str:
        return self.text


@functools.cache
def _differentiated(program: Program) -> tuple[int, ...]:
    out = jax.eval_shape(functools.partial(program.fn, EVERYTHING), *map(jnp.asarray, program.arrays))
    if not jnp.issubdtype(out.dtype, jnp.inexact):
        return ()
    return tuple(i for i, v in enumerate(program.operands) if v.dtype in ("f32", "bf16", "c64"))


@jax.custom_vjp
def _own_vjp(x: Any) -> Any:
    """A function whose gradient is another's, which shows that its own rule is used."""
    return jnp.sin(x)


_own_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cosh(x),))
_own_vmap: Any = jax.custom_batching.custom_vmap(jnp.sinh)
_own_vmap.def_vmap(lambda size, batched, x: (jnp.sinh(x), batched[0]))

_PLAIN: dict[str, Any] = {
    "np": np,
    "jax": jax,
    "jnp": jnp,
    "OWN_VJP": _own_vjp,
    "OWN_VMAP": _own_vmap,
    "WINDOW": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID"),
    "ZERO": np.int32(0),
    "m_f32": jnp.float32,
    "ROW8": np.asarray([1.5, -0.5, 0.25, 1.0, 0.5, -2.0, 0.75, 0.125], np.float32),
    "FAR": np.asarray([0, 9, 3], np.int32),  # of int64, JAX 0.12 mixes up programs of both x64 modes
    "ROW4": np.asarray([0.5, -0.25, 2.0, 1.0], np.float32),
    "WEIGHT": np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4),
    "MASK8": np.asarray([True, False, False, True, True, False, True, True]),
}


@functools.cache
def _function(text: str) -> Callable[..., Any]:
    names = _names(text)
    made = eval(f"lambda m, {', '.join(names)}: {text}", dict(_PLAIN))

    def run(m: Any, *operands: Any) -> Any:
        leaves = jax.tree.leaves(made(m, *operands), is_leaf=lambda x: isinstance(x, sh.Array))
        return leaves[-1]

    return run


def _names(text: str) -> tuple[str, ...]:
    bound = {name for group in re.findall(r"lambda ([^:]*):", text) for name in re.split(r",\s*", group)}
    bare = re.sub(r"'[^']*'", "", text)
    words = re.findall(r"(?<![\w.])([a-z])\b(?!=[^=])", bare)
    return tuple(dict.fromkeys(w for w in words if w != "m" and w not in bound))


@functools.cache
def programs() -> tuple[Program, ...]:
    """All programs, in the order of the text."""
    return tuple(program(line) for line in TEXTS.splitlines() if line and not line.startswith("#"))


def program(text: str) -> Program:
    """A program from its text."""
    return Program(text, _names(text))


@functools.cache
def array(name: str) -> Any:
    """The values of a variable: no zeros, no ties, and no sums near a kink."""
    v = VARIABLES[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    if v.dtype == "bool":
        return rng.random(v.shape) < 0.5
    if v.dtype == "i32":
        return rng.integers(0, v.high or 8, v.shape).astype(np.int32)
    size = int(np.prod(v.shape, dtype=int))
    sampled = (rng.permutation(size) + 1) / size * rng.choice([-1, 1], size) * 1.5 + 0.0625 / size
    if v.dtype == "c64":
        return (sampled + 1j * rng.permutation(sampled)).reshape(v.shape).astype(np.complex64)
    kind = np.float32 if v.dtype == "f32" else jnp.bfloat16
    return sampled.reshape(v.shape).astype(kind)
