"""Programs of plain JAX, lifted: calls of functions that the library has too, and of those that it lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import shtypes as sh
from tests.peers.programs import EVERYTHING, Program, program

#: Of functions that have no namesake here, or that want other arguments than `public.CALLS` has.
OTHERS: Final = """
jax.scipy.special.multigammaln(a + 6, 2)
jax.scipy.special.betainc(a + 3, b + 3, jax.nn.sigmoid(c))
jax.scipy.linalg.solve_triangular(jnp.tril(q) + 5 * jnp.eye(4), r, lower=True)
jax.nn.dot_product_attention(t[:, :, None], g[:, :, None], t[:, :, None])
jax.lax.associative_scan(jnp.add, a, axis=1)
jax.lax.conv(t[:, None], jnp.ones((3, 1, 2, 2)), (1, 1), 'SAME')
jax.lax.reduce_window((a, b), (0.0, 1.0), lambda x, z: (x[0] + z[0], x[1] * z[1]), (1, 2), (1, 1), 'VALID')[1]
jax.lax.bitcast_convert_type(a, jnp.int8)
jax.lax.bitcast_convert_type(t.astype(jnp.int8), jnp.int32)
jax.lax.reduce_window(a, 0.0, jax.lax.add, (1, 2), (1, 2), 'VALID')
jax.ops.segment_sum(v, d % 4, 4)
jnp.linalg.inv(t + 9 * jnp.eye(4))
jnp.linalg.eigh(q + q.T)[0]
jnp.interp(a, jnp.arange(4.0), ROW4)
jnp.histogram(v, bins=4)[0]
jnp.convolve(v, ROW4)
jax.scipy.special.i0(a)
jax.scipy.special.logsumexp(a, axis=1)
jax.scipy.special.logsumexp(a, axis=0, b=b * b)
jax.scipy.special.softmax(a, axis=1)
jax.scipy.special.log_softmax(a, axis=0)
jax.scipy.stats.norm.logpdf(a, b, 2.0)
jax.scipy.stats.norm.cdf(a)
jax.scipy.stats.norm.ppf(jax.nn.sigmoid(a))
jax.scipy.stats.laplace.logpdf(a)
jax.scipy.stats.logistic.logpdf(a)
jax.scipy.stats.cauchy.logpdf(a)
jax.scipy.stats.t.logpdf(a, 3.0)
jax.scipy.stats.gamma.logpdf(a * a + 1, 2.0)
jax.scipy.stats.beta.logpdf(jax.nn.sigmoid(a), 2.0, 3.0)
jax.scipy.stats.expon.logpdf(a * a)
jax.scipy.stats.uniform.logpdf(a)
jax.scipy.stats.poisson.logpmf(y, 3.0)
jax.scipy.stats.bernoulli.logpmf(y % 2, 0.4)
jax.scipy.stats.multivariate_normal.logpdf(a[:, :4], v[:4], jnp.eye(4) * 2)
jax.scipy.linalg.cholesky(q @ q.T + jnp.eye(4))
jax.scipy.linalg.solve(q + 5 * jnp.eye(4), r)
jax.scipy.linalg.det(t)
jax.scipy.signal.convolve(v, ROW4)
jax.scipy.fft.dct(a)
jax.scipy.ndimage.map_coordinates(q, [i, i], order=1)
jax.lax.map(jnp.sin, a)
jax.lax.map(lambda x: x * 2, a, batch_size=2)
jax.lax.fori_loop(0, 3, lambda l, x: jnp.sin(x) * 2, a)
jax.lax.scan(lambda c, x: (c + jnp.sum(x), x * c), 0.0, v)[1]
jax.lax.switch(e, [jnp.sin, jnp.cos, jnp.tanh, jnp.abs], a)
jax.lax.cond(e > 1, lambda x: x * 2, lambda x: x - 1, a)
jax.lax.dot(q, r)
jax.lax.reduce(a, np.float32(0), jax.lax.add, (1,))
jax.lax.reduce((a, y), (0.0, ZERO), lambda x, z: (x[0] + z[0], jnp.maximum(x[1], z[1])), (1,))[1]
jax.lax.reduce(a, s, jax.lax.add, (1,))
jax.lax.exp2(a)
jax.vmap(jnp.dot)(a, b)
jax.vmap(lambda row: jax.lax.fori_loop(0, 2, lambda l, x: x * row, row))(a)
jax.vmap(lambda x, y: jnp.sum(x) + y, (0, None))(a, s)
jnp.vectorize(lambda x, y: jnp.sum(x) * y, signature='(n),()->()')(a, s)
jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2))(a)
jax.jvp(jnp.tanh, (a,), (b,))[1]
jax.vjp(jnp.tanh, a)[1](b)[0]
jax.jacfwd(jnp.sin)(v)
jax.hessian(lambda x: jnp.sum(x ** 3))(v)
jax.checkpoint(jnp.sin)(a)
jnp.piecewise(a, [a < 0, a >= 0], [lambda x: -x, lambda x: x * 2])
jnp.apply_along_axis(jnp.cumsum, 1, a)
jnp.apply_over_axes(jnp.sum, a, [0])
"""


class Lifted(Program):
    """A program whose plain form is lifted where it is given typed values."""

    __slots__ = ()

    @property
    def fn(self) -> Callable[..., Any]:
        """``(m, *operands)``: lifted where ``m`` is `shtypes`."""
        plain = Program(*self).fn
        return lambda m, *operands: _lifted(Program(*self))(*operands) if m is sh else plain(m, *operands)


@functools.cache
def _lifted(plain: Program) -> Callable[..., Any]:
    return sh.lift(functools.partial(plain.fn, EVERYTHING))


@functools.cache
def other_calls() -> tuple[Program, ...]:
    """Of those that it lacks."""
    return tuple(program(line) for line in OTHERS.strip().splitlines())


def lifted(plain: Program) -> Lifted:
    """The same program, lifted."""
    return Lifted(*plain)
